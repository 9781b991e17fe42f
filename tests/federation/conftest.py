"""The federation that every source gives."""

import pytest

from fulcrum.readers.federation import Federation


@pytest.fixture
def expected():
    regions = {"north": {"lille": 800, "paris": 2400}, "south": {"lyon": 1200}}
    return Federation.from_sizes(regions).digest
