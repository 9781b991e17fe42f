"""The Chromium of this system, driven by Playwright."""

import os
import shutil
import statistics
from contextlib import contextmanager

_EVEN_LETTERS = """
(widest) => {
  const text = "every silo's whole dataset is protected against anyone outside its region";
  const pen = document.createElement("canvas").getContext("2d");
  const spacing = new Map();
  for (const element of document.querySelectorAll("body, body *")) {
    const family = getComputedStyle(element).fontFamily;
    if (!spacing.has(family)) {
      pen.font = `100px ${family}`;
      spacing.set(family, widest - pen.measureText(text).width / text.length / 100);
    }
    element.style.letterSpacing = `${spacing.get(family)}em`;
  }
}
"""

_WORK = """
() => {
  const start = performance.now();
  const cells = [];
  for (let place = 0; place < 60000; place += 1) cells.push(`${place * 7919 % 60000}`);
  cells.sort();
  return performance.now() - start;
}
"""
_USUAL_MILLISECONDS = 14.0  # of this work on two idle cores, where the limits of the tests were set

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def installed_browser():
    """The Chromium of this system, or None; `FULCRUM_BROWSER` names another executable."""
    return os.environ.get("FULCRUM_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def chromium(executable):
    """A browser, driven by Playwright, that asks for nothing of its own."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright, launched(playwright.chromium, executable) as opened:
        yield opened


@contextmanager
def launched(kind, executable, **options):
    """A browser of a kind that Playwright knows; `env` replaces the variables it runs under."""
    quiet = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
    quiet = (*quiet, "disable-component-update", "disable-sync")
    opened = kind.launch(executable_path=executable, args=[f"--{flag}" for flag in quiet], **options)
    yield opened
    opened.close()


def has_fonts(opened):
    """Whether a browser has a font to draw with: without one every text is empty."""
    page = opened.new_page()
    page.set_content("<p>text</p>")
    drawn = page.locator("p").inner_text() == "text"
    page.close()
    return drawn


def with_even_letters(page):
    """Spaces letters so that in any font of any machine they are half as wide as high, the mean of usual fonts.

    Tests of where parts of a page stand would otherwise depend on how often the machine's fonts break lines.
    """
    page.evaluate(_EVEN_LETTERS, 0.5)
    return page


def slowness(page):
    """Returns how many times the usual time a page takes for fixed work, now and on this machine; at least 1.

    A time divided by it asks the same of a page on a machine with fewer, slower or busier cores.
    """
    return max(1.0, statistics.median(page.evaluate(_WORK) for _ in range(5)) / _USUAL_MILLISECONDS)
