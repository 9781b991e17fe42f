"""Both kinds of file that have a log, on the disk."""

import pytest
from logged_files import Book, Sums


@pytest.fixture
def tmp_path(on_disk):
    return on_disk


@pytest.fixture(params=[Book, Sums], ids=["ledger", "region"])
def kind(request):
    return request.param()
