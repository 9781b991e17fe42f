"""A federation, and one of its regions open."""

import pytest
from regional import World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("regional"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.region"


@pytest.fixture
def region(world, path):
    with world.open(path) as opened:
        yield opened
