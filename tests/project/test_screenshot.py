"""The pictures in the readme: they are there, small, and made by a command that works."""

import re
import struct
from pathlib import Path

import pytest
from screenshot import IMAGES, PICTURES, take

ROOT = Path(__file__).parents[2]


def size_of(path):
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return struct.unpack(">II", head[16:])


def expected(name):
    """Pictures of a phone have two pixels for one, as its screen has."""
    _, (width, height) = PICTURES[name]
    return (2 * width, 2 * height) if "phone" in name else (width, height)


def test_the_readme_opens_with_pictures_that_are_there():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|srcset)="([^"]+)"', readme)
    assert sorted(named) == sorted(f"docs/images/{name}" for name in PICTURES)
    assert readme.index("make demo") < readme.index("<picture>") < readme.index("\n## How it works")
    for name in PICTURES:
        assert size_of(IMAGES / name) == expected(name)
        assert (IMAGES / name).stat().st_size < 300_000


def test_the_command_takes_them(browser, tmp_path):
    pytest.importorskip("vl_convert", reason="reports need vl-convert-python")
    take(browser, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(PICTURES)
    assert all(size_of(tmp_path / name) == expected(name) for name in PICTURES)
