"""A federation, and one of its regions open; and the folder of a silo."""

import pytest
from regional import World

import fulcrum
from fulcrum.aggregation.site_setup import init_site, site_toml
from fulcrum.core.silo.site import FORMAT, SiteSettings, read_site
from fulcrum.engines.built_in_training import start


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


@pytest.fixture
def silo(tmp_path):
    """The folder of a silo, its plan signed, and the key of its region beside it."""
    home = tmp_path / "site"
    home.mkdir()
    (tmp_path / "fed.csv").write_text("silo,records,region\na,200,north\nb,220,north\n")
    keys = {"a": fulcrum.new_key(home / "site.key"), "b": fulcrum.new_key(tmp_path / "b.key")}
    keys["north"] = fulcrum.new_key(tmp_path / "north.key", kind="sealing")
    plan = fulcrum.plan(
        str(tmp_path / "fed.csv"), rounds=3, epsilon=5.0, parameters=34, purpose="deployment", keys=keys
    )
    fulcrum.save_plan(plan, home / "plan.json")
    issuer = fulcrum.new_key(tmp_path / "issuer.key")
    fulcrum.sign_plan(home / "plan.json", tmp_path / "issuer.key")
    settings = SiteSettings(
        format=FORMAT, role="silo", name="a", issuer=issuer, train="fulcrum.engines.built_in_training"
    )
    (home / "site.toml").write_text(site_toml(settings))
    init_site(read_site(home))
    return home


@pytest.fixture
def model():
    return start({})
