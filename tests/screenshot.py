"""Takes the pictures of the report at the top of the readme, in light and in dark; `make screenshot` runs it."""

import sys
import tempfile
from pathlib import Path

import fulcrum
from fulcrum.views.report.html_report import report

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDE, PHONE = (1280, 1510), (390, 844)
PICTURES = {
    "report.png": ("light", WIDE),
    "report-dark.png": ("dark", WIDE),
    "report-phone.png": ("light", PHONE),
    "report-phone-dark.png": ("dark", PHONE),
}


def take(browser, folder):
    """Writes the pictures into a folder: the report to its signature, for a consortium that bounds both observers."""
    page = Path(folder) / "report.html"
    made = fulcrum.plan(
        "consortium",
        rounds=10,
        epsilon={"region": 1.0, "aggregator": 3.0},
        recipe="joint",
        parameters=34,
        least_influence=0.5,
        purpose="deployment",
    )
    page.write_text(report(made), encoding="utf-8")
    for name, (scheme, (width, height)) in PICTURES.items():
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            device_scale_factor=2 if width < 600 else 1,
        )
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
