"""Both kinds of file that have a log."""

import pytest
from logged_files import Book, Sums


@pytest.fixture(params=[Book, Sums], ids=["ledger", "region"])
def kind(request):
    return request.param()
