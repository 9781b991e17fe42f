"""Where a test's ledger is: on the disk, or in memory where processes are killed hundreds of times."""

import pytest


@pytest.fixture
def tmp_path(on_disk):
    return on_disk


@pytest.fixture
def in_memory(tmp_path_factory):
    """A folder in memory: a killed process leaves there what it leaves on a disk, since syncs matter to power cuts alone."""
    return tmp_path_factory.mktemp("struck")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lyon.ledger"
