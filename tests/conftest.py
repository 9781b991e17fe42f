"""Settings shared by all tests: property tests draw the same examples on every machine; a browser where there is one.

What tests write lies in memory where there is room, so that they do not wait for the disk. Tests of the folders whose job
is the disk, storage and ledger, work on it (`on_disk`).
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from browsers import chromium, has_fonts, installed_browser
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("fixed")

# Loaded for their fixtures; searched for doctests, several files of one name would be taken for one another.
# What the tests of Flower share needs Flower, and has no doctests.
collect_ignore_glob = ["*conftest.py", "*/flower_world.py", "*/nvflare_world.py"]

MEMORY = Path("/dev/shm")
ROOM = 4 << 30


def has_room(folder):
    """Whether a folder has room for what the tests write, and lets programs that lie in it be started."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize >= ROOM and not about.f_flag & os.ST_NOEXEC


if has_room(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture
def on_disk():
    """A folder where this machine has its temporary files, for as long as a test runs."""
    with tempfile.TemporaryDirectory(prefix="fulcrum-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="session", autouse=True)
def nvflare_ends():
    """The streams that sessions of NVIDIA FLARE share in a process end after its last test: Python waits for their threads."""
    yield
    if "nvflare.fuel.f3.streaming.byte_streamer" in sys.modules:
        from nvflare.fuel.f3.streaming.shutdown import shutdown_f3_streaming

        shutdown_f3_streaming()


@pytest.fixture(scope="session")
def browser():
    """Chromium as the system has it, which Playwright does not install; skips where either is missing."""
    pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    found = installed_browser()
    if found is None:
        pytest.skip("no Chromium is installed: the browser tests are skipped")
    with chromium(found) as opened:
        if not has_fonts(opened):
            pytest.skip("Chromium has no font to draw with: the browser tests are skipped")
        yield opened


@pytest.fixture
def visit(browser):
    """Opens addresses in fresh windows; in the end nothing may have been logged, and nothing else asked for.

    `visit(url)` returns the page once it has loaded; further arguments are those of a new browser context. What pages
    asked for and logged is in `visit.requests` and `visit.messages`; `visit.allow` are beginnings of addresses that they
    may ask for beside their own.
    """
    contexts = []

    def visit(url, **options):
        context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        visit.allow.append(url)
        page.on("request", lambda request: visit.requests.append(request.url))
        page.on("console", lambda message: visit.messages.append(message.text))
        page.on("pageerror", lambda error: visit.messages.append(str(error)))
        page.goto(url)
        return page

    visit.requests, visit.messages, visit.allow = [], [], ["data:"]
    yield visit
    for context in contexts:
        context.close()
    assert visit.messages == []
    assert [url for url in visit.requests if not url.startswith(tuple(visit.allow))] == []


@dataclass(frozen=True)
class Sync:
    """A sync that succeeded: of which inode, how many bytes it had, and which names stood for which inodes then."""

    inode: int
    size: int
    names: dict[str, int]


@pytest.fixture
def syncs(tmp_path, monkeypatch):
    """The syncs that Python asks for, as they come; names are those below `tmp_path`."""
    if sys.platform in ("darwin", "win32"):
        pytest.skip("records the syncs of Linux")
    seen = []

    def recorded(real):
        def sync(handle):
            real(handle)
            about = os.fstat(handle)
            names = {str(path.relative_to(tmp_path)): path.lstat().st_ino for path in [tmp_path, *tmp_path.rglob("*")]}
            seen.append(Sync(about.st_ino, about.st_size, names))

        return sync

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name)))
    return seen
