"""Where a test's ledger is."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lyon.ledger"
