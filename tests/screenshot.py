"""Takes the pictures of the report at the top of the readme, in light and in dark; `make screenshot` runs it."""

import sys
import tempfile
from pathlib import Path

import fulcrum
from fulcrum.views.report import report

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PICTURES = {"report.png": "light", "report-dark.png": "dark"}
SIZE = {"width": 1280, "height": 1130}


def take(browser, folder):
    """Writes the pictures into a folder: the first screen of the report on the consortium of `make demo`."""
    page = Path(folder) / "report.html"
    page.write_text(report(fulcrum.plan("consortium", rounds=10, epsilon=3.0)), encoding="utf-8")
    for name, scheme in PICTURES.items():
        context = browser.new_context(viewport=SIZE, color_scheme=scheme)
        shown = context.new_page()
        shown.goto(page.as_uri())
        shown.wait_for_selector(f"html[data-drawn={scheme}]")
        shown.screenshot(path=Path(folder) / name)
        context.close()
    page.unlink()


def main():
    """Takes the pictures anew."""
    from browsers import chromium, installed_browser

    found = installed_browser()
    if found is None:
        sys.exit("no Chromium is installed, so no picture can be taken")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium(found) as browser:
        take(browser, folder)
        for name in PICTURES:
            (IMAGES / name).write_bytes((Path(folder) / name).read_bytes())
    sys.stdout.write(f"The pictures are {' and '.join(f'docs/images/{name}' for name in PICTURES)}.\n")


if __name__ == "__main__":
    main()
