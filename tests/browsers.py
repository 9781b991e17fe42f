"""The Chromium of this system, driven by Playwright."""

import os
import shutil
from contextlib import contextmanager

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
