"""Every kind of file that has a journal, on the disk."""

import pytest
from journaled_files import KINDS


@pytest.fixture
def tmp_path(on_disk):
    return on_disk


@pytest.fixture(params=KINDS, ids=["ledger", "region", "masking"])
def kind(request):
    return request.param()
