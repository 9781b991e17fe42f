"""Ledgers of audited releases lie in memory where there is room: an audit of a deployed plan syncs them hundreds of times."""

import tempfile

import pytest


@pytest.fixture(autouse=True)
def ledgers_in_memory(request, monkeypatch):
    """Has this process put temporary folders where pytest has its own; sites of engines stay on the disk."""
    if request.node.get_closest_marker("engines") is None:
        monkeypatch.setattr(tempfile, "tempdir", str(request.getfixturevalue("tmp_path")))
