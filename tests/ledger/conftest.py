"""Where a test's ledger is: on the disk."""

import pytest


@pytest.fixture
def tmp_path(on_disk):
    return on_disk


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lyon.ledger"
