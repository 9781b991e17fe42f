"""The site builds without a warning, holds every page and public name, and asks nothing of any other machine."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fulcrum

for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
    pytest.importorskip(package, reason=f"the site is built with {package}. Run: pip install --group docs")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = sorted(
    path.relative_to(DOCS)
    for kind in ("*.md", "*.rst", "*.ipynb")
    for path in DOCS.rglob(kind)
    if not path.relative_to(DOCS).parts[0].startswith("_")
)
_ELSEWHERE = re.compile(r"\s*(?:\w+:)?//|\s*(?:https?|ftp):", re.IGNORECASE)
_CSS_RESOURCE = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", re.IGNORECASE)


class Page(HTMLParser):
    """What a page loads, the anchors it has, its formulas, and its text outside code and formulas."""

    LOADED = {  # noqa: RUF012
        **{(tag, "src"): True for tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "track")},
        **{("link", "href"): True, ("object", "data"): True, ("use", "href"): True, ("img", "srcset"): True},
    }

    def __init__(self, text):
        super().__init__()
        self.loaded, self.anchors, self.formulas, self.text, self.style = [], set(), 0, [], []
        self._inside = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.loaded += [value for name, value in attrs if (tag, name) in self.LOADED and value]
        self.style += [value for name, value in attrs if name == "style" and value]
        self.anchors |= {value for name, value in attrs if name == "id"}
        self.formulas += tag == "math"
        if tag in ("math", "code", "pre", "script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.text.append(data)
        elif self._inside[-1] == "style":
            self.style.append(data)

    def elsewhere(self):
        """Returns what it loads from another machine."""
        styled = [target for style in self.style for target in _CSS_RESOURCE.findall(style)]
        return [target for target in self.loaded + styled if _ELSEWHERE.match(target)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-d", built / "doctrees"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    made = subprocess.run(
        [*command, DOCS, built / "html"], capture_output=True, text=True, env=environment, check=False
    )
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    return built / "html"


def page(path):
    return Page(path.read_text(encoding="utf-8"))


def test_every_page_is_there(site):
    missing = [str(source) for source in SOURCES if not (site / source.with_suffix(".html")).exists()]
    assert missing == []
    assert "What does our topology cost us?" in (site / "index.html").read_text(encoding="utf-8")  # the readme


def test_every_public_name_has_an_anchor_in_the_reference(site):
    anchors = set().union(*(page(path).anchors for path in (site / "api").glob("*.html")))
    assert {f"fulcrum.{name}" for name in fulcrum.__all__} - anchors == set()


def test_nothing_is_loaded_from_elsewhere(site):
    for path in site.rglob("*.html"):
        assert page(path).elsewhere() == [], path.name
    for path in site.rglob("*.css"):
        loaded = _CSS_RESOURCE.findall(path.read_text(encoding="utf-8"))
        assert [target for target in loaded if _ELSEWHERE.match(target)] == [], path.name


def test_every_formula_became_mathml(site):
    source = re.sub(r"```.*?```|`[^`\n]*`", "", (DOCS / "maths.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = page(site / "maths.html")
    assert shown.formulas == len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", source, flags=re.DOTALL)) > 200
    assert not re.search(r"\$|\\[a-z]+", "".join(shown.text))


def test_names_in_the_pages_lead_to_the_reference(site):
    maths = (site / "maths.html").read_text(encoding="utf-8")
    assert 'href="api/planning.html#fulcrum.Plan.saving"' in maths
    assert 'href="api/accounting.html#fulcrum.epsilon_of"' in maths


def test_names_in_the_reference_lead_to_their_source(site):
    reference = (site / "api" / "planning.html").read_text(encoding="utf-8")
    for link in ("planning/planner.html#plan", "planning/plan.html#Plan", "core/plan/verified_plan.html#VerifiedPlan"):
        assert f'href="../_modules/fulcrum/{link}"' in reference
    assert "Noise for every silo" in (site / "_modules/fulcrum/planning/plan.html").read_text(encoding="utf-8")


def test_tutorials_show_the_results_of_their_cells(site):
    tutorial = (site / "tutorials" / "plan_a_consortium.html").read_text(encoding="utf-8")
    assert tutorial.count('<div class="fulcrum-result">') == 3
    assert "21 of 21 checks hold" in tutorial


def test_a_copied_block_has_neither_prompts_nor_results(site):
    script = (site / "_static" / "copybutton.js").read_text(encoding="utf-8")
    settings = re.search(r"formatCopyText\(text, '(.+)', true, true, true, true, '(.*)', '(.*)'\)", script)
    prompts, continued = settings[1].replace("\\\\", "\\"), settings[2].replace("\\\\", "\\")
    assert continued == "\\"
    for prompt in ("$ ", ">>> ", "... "):
        assert re.match(prompts, f"{prompt}x")
    assert not re.match(prompts, "hospitals: 7 silos")


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<img src="http://example/pixel.png">',
        "<style>@font-face { src: url('https://fonts.example/f.woff2') }</style>",
        '<p style="background: url(https://example/b.png)">',
    ],
)
def test_what_is_loaded_from_elsewhere_is_noticed(html):
    assert len(Page(html).elsewhere()) == 1


def test_links_and_files_of_the_site_are_not_from_elsewhere():
    assert Page('<a href="https://example"></a><script src="../_static/x.js"></script>').elsewhere() == []


@pytest.fixture
def mathml(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_ext")
    return pytest.importorskip("mathml").mathml


def test_a_subscript_of_an_accented_letter_stands_beside_it(mathml):
    assert re.search(r"<msub>\s*<mover.*</mover>\s*<mi>i</mi>\s*</msub>", mathml(r"\hat p_i", block=False), re.DOTALL)


def test_brackets_grow_with_left_and_right_alone(mathml):
    assert 'stretchy="false"' not in mathml(r"\left( \frac{1}{2} \right)", block=True)
    assert mathml(r"\langle \frac{1}{2} \rangle_v", block=True).count('stretchy="false"') == 2


def test_an_unknown_command_is_refused(mathml):
    from docutils.utils.math import MathError

    with pytest.raises(MathError, match="nosuch"):
        mathml(r"\nosuch{x}", block=False)
