"""What stands around the code: the files for those who join, and how it is built and checked, agree with each other."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from test_package import LAYERS
from wheel import lacking, package_files

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WHOLE = package_files() | {f"fulcrum_dp-0.1.0.dist-info/{name}" for name in ("licenses/LICENSE", "entry_points.txt")}


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(text_of(name))


def make_targets():
    return set(re.search(r"^\.PHONY: (.+)$", text_of("Makefile"), re.MULTILINE)[1].split())


def test_the_readme_names_every_target_of_make_and_no_other():
    assert set(re.findall(r"(?:`|^)make ([\w-]+)", text_of("README.md"), re.MULTILINE)) == make_targets() - {"clean"}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_targets_of_make_that_a_page_names_are_there(page):
    assert set(re.findall(r"(?:`|^)make ([\w-]+)", text_of(page), re.MULTILINE)) <= make_targets()


def test_whoever_joins_is_told_where_a_change_goes_on_every_layer():
    table = re.findall(r"^\| .+ \| (.+) \|$", text_of("CONTRIBUTING.md"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == set(LAYERS)


def test_the_citation_is_of_this_version_and_of_the_paper_of_the_readme():
    cited = read_yaml("CITATION.cff")
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert [author["name"] for author in cited["authors"]] == [author["name"] for author in PROJECT["authors"]]
    (paper,) = cited["references"]
    authors = ", ".join(author["family-names"] for author in paper["authors"])
    assert f"*{paper['title']}* ({authors})" in text_of("README.md")


def test_the_readme_has_the_citation_in_bibtex():
    cited = read_yaml("CITATION.cff")
    (paper,) = cited["references"]
    bibtex = re.search(r"```bibtex\n(.+?)```", text_of("README.md"), re.DOTALL)[1]
    entries = re.findall(r"@(\w+)\{(.+?)\n\}", bibtex, re.DOTALL)
    fields = {
        (kind, name): value for kind, body in entries for name, value in re.findall(r"(\w+) += \{\{?(.+?)\}", body)
    }
    assert fields == {
        ("software", "author"): cited["authors"][0]["name"],
        ("software", "title"): cited["title"],
        ("software", "version"): cited["version"],
        ("software", "license"): cited["license"],
        ("article", "author"): " and ".join(author["family-names"] for author in paper["authors"]),
        ("article", "title"): paper["title"],
    }


def test_hooks_before_a_commit_fetch_nothing_and_run_the_lint_of_make():
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert [(hook["entry"], hook["language"]) for hook in repository["hooks"]] == [("make lint", "system")]


def test_only_python_versions_that_the_workflow_runs_are_claimed():
    steps = read_yaml(".github/workflows/ci.yml")["jobs"]["run"]["steps"]
    ran = {step["with"]["python-version"] for step in steps if "with" in step}
    claimed = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python" in line]
    assert set(claimed) == ran
    assert {step["run"] for step in steps if "run" in step} == {".ci/run"}


def test_a_submission_runs_the_readers_command_before_any_other_installs_more():
    commands = re.findall(r"^ *make (.+)$", text_of(".ci/run"), re.MULTILINE)
    assert commands == ["clean", "test", "lint", "test-lowest", "test-torch"]
    assert re.findall(r"install (torch\S*)$", text_of("Makefile"), re.MULTILINE) == ["torch==2.13.0"]


@pytest.mark.parametrize("arguments", [["--fast"], [""], ["tests", "-x"]])
def test_the_check_of_a_submission_takes_no_arguments(arguments):
    done = subprocess.run([ROOT / ".ci" / "run", *arguments], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f".ci/run takes no arguments, got: {' '.join(arguments)}\n"


@pytest.mark.parametrize(
    "left_out",
    ["fulcrum/py.typed", "fulcrum/views/templates/report.html", "fulcrum/cli/command_line.py", "licenses/LICENSE"],
)
def test_a_wheel_that_lacks_something_is_refused(left_out):
    assert lacking(WHOLE) == []
    assert lacking({name for name in WHOLE if not name.endswith(left_out)}) == [left_out]
