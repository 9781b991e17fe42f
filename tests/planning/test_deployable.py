import pytest
from error_codes import coded

from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.errors import ExchangeError
from fulcrum.planning.engine_limits import refusals, refusals_on_flower
from fulcrum.planning.planner import plan
from fulcrum.planning.site_names import technical_names
from fulcrum.readers.federation_reader import read_federation

RESEARCH = {"rounds": 2, "epsilon": 5.0}


def planned(tmp_path, rows, header="silo,records,region", **settings):
    path = tmp_path / "fed.csv"
    path.write_text(f"{header}\n{rows}", encoding="utf-8")
    return plan(read_federation(path), **RESEARCH | settings)


def test_a_plan_that_can_be_deployed_is_not_refused(tmp_path):
    assert refusals(planned(tmp_path, "a,10,north\nb-2,10,north\nC_3,10,south\n")) == ()
    named = planned(tmp_path, f"{'a' * 63},10,north\nb,10,north\n")
    assert refusals(named) == ()


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("Zürich", "north"),
        ("saint malo", "north"),
        ("a.1", "north"),
        ("-a", "north"),
        ("a" * 64, "north"),
        ("a", "Baden-Württemberg"),
        ("東京", "関東"),
    ],
)
def test_any_printable_name_of_a_silo_or_region_can_be_deployed(tmp_path, name, region):
    assert refusals(planned(tmp_path, f"{name},10,{region}\nb,10,{region}\n")) == ()


@pytest.mark.parametrize("name", ["a/b", "../a", ".a", "a\\b", "ü" * 101])
def test_names_that_no_file_of_records_can_have_are_refused(tmp_path, name):
    [reason] = refusals(planned(tmp_path, f"{name},10,north\nb,10,north\n"))
    assert f"{name!r} cannot name the files of a site" in reason
    [reason] = refusals_on_flower(planned(tmp_path, f"{name},10,north\nb,10,north\n", aggregation="masked"))
    assert f"{name!r} cannot name the files of a site" in reason


def test_two_names_with_one_technical_name_are_refused_until_a_column_site_tells_them_apart(tmp_path):
    [reason] = refusals(planned(tmp_path, "Zürich,10,north\nZurich,10,north\n"))
    assert "the sites of 'Zürich' and 'Zurich' would both have the name 'Zurich'" in reason
    assert "column site" in reason
    told_apart = planned(tmp_path, "Zürich,10,north,zh\nZurich,10,north,\n", header="silo,records,region,site")
    assert refusals(told_apart) == ()
    assert technical_names(told_apart.federation) == {"north": "north", "Zürich": "zh", "Zurich": "Zurich"}


@pytest.mark.parametrize("rows", ["Lille,10,north\nlille,10,north\n", "Server,10,north\nb,10,north\n"])
def test_two_sites_whose_names_differ_in_capital_letters_alone_are_refused(tmp_path, rows):
    for found in (refusals(planned(tmp_path, rows)), refusals_on_flower(planned(tmp_path, rows, aggregation="masked"))):
        [reason] = found
        assert "would both have the name" in reason


def test_a_silo_with_the_servers_name_is_refused_whatever_the_name_of_its_site(tmp_path):
    rows, header = "server,10,north,x\nb,10,north,\n", "silo,records,region,site"
    [reason] = refusals(planned(tmp_path, rows, header=header))
    assert "'server' names two sites" in reason
    [reason] = refusals_on_flower(planned(tmp_path, rows, header=header, aggregation="masked"))
    assert "'server' names two sites" in reason


@pytest.mark.parametrize("site", ["../x", "a b", "é", "-a", "a" * 64])
def test_a_declared_site_must_be_a_technical_name(tmp_path, site):
    [reason] = refusals(planned(tmp_path, f"a,10,north,{site}\nb,10,north,\n", header="silo,records,region,site"))
    assert f"{site!r} in the column site cannot name a site" in reason


def test_every_reason_is_given_with_its_remedy(tmp_path):
    found = refusals(
        planned(
            tmp_path,
            "server,10,x,c\nl/é,10,y,c\n",
            header="silo,records,region,country",
            injection="aggregator",
            keys={"x": "key"},
        )
    )
    for reason, said in zip(
        found,
        (
            "silos draw their own noise. Plan with --injection silo",
            "'l/é' cannot name the files of a site",
            "'server' names two sites",
            "the plan carries keys, but none of 'y'",
        ),
        strict=True,
    ):
        assert said in reason


def test_a_silo_named_as_its_region_is_refused(tmp_path):
    assert "'north' names two sites" in refusals(planned(tmp_path, "north,10,north\nb,10,north\n"))[0]


@pytest.mark.parametrize("name", ["app", "App", "flwr", "äpp"])
def test_a_silo_on_flower_is_not_named_as_what_stands_beside_its_folder(tmp_path, name):
    """The keys of a silo named `app` were in the app's folder, which is sent to every SuperNode."""
    found = refusals_on_flower(planned(tmp_path, f"{name},10,north\nb,10,north\n", aggregation="masked"))
    [reason] = found
    assert f"the site of {name!r} would have the name" in reason
    assert "the kits have a file or folder of that name" in reason


@pytest.mark.parametrize(("name", "region"), [("admin", "north"), ("Job", "north"), ("a", "authority")])
def test_a_site_of_flare_is_not_named_as_what_stands_beside_its_folder(tmp_path, name, region):
    [reason] = refusals(planned(tmp_path, f"{name},10,{region}\nb,10,{region}\n"))
    wrong = region if name == "a" else name
    assert f"the site of {wrong!r} would have the name" in reason


def test_flower_refuses_what_it_cannot_run_each_with_its_remedy(tmp_path):
    assert refusals_on_flower(planned(tmp_path, "a.1,10,north\nb-2,10,north\n", aggregation="masked")) == ()
    found = refusals_on_flower(
        planned(tmp_path, "server,10,x,c\nb,10,y,c\n", header="silo,records,region,country", keys={"server": "key"})
    )
    for reason, said in zip(
        found,
        (
            "sums must be masked. Plan with --aggregation masked",
            "'server' names two sites",
            "the plan carries keys, but none of 'b'. Give every silo a key, or none",
        ),
        strict=True,
    ):
        assert said in reason


@pytest.mark.parametrize("settings", [{}, {"aggregation": "masked"}])
def test_a_model_whose_release_no_ledger_stores_is_refused_before_anything_is_signed(tmp_path, settings):
    table = "a,10,north\nb,10,north\n"
    of_engine = refusals_on_flower if settings else refusals
    assert of_engine(planned(tmp_path, table, parameters=111_500_000, **settings)) == ()
    [reason] = of_engine(planned(tmp_path, table, parameters=111_500_001, **settings))
    assert "larger than a ledger stores, 900,000,000 bytes. Train at most 111,500,000 parameters" in reason


@pytest.mark.parametrize(
    ("epsilon", "tiers"),
    [
        ({"region": 3.0, "country": 2.0}, "country"),
        ({"region": 3.0, "federation": 2.0}, ""),
        ({"federation": 2.0}, ""),
    ],
)
def test_flower_runs_masked_sums_of_tiers_that_no_target_hides_from_its_server(tmp_path, epsilon, tiers):
    rows = "".join(
        f"{silo},10,{region},{country}\n" for silo, region, country in ("axc", "bxc", "dyc", "eyc", "fzw", "gzw")
    )
    header = "silo,records,region,country"
    plan = planned(tmp_path, rows, header=header, epsilon=epsilon, aggregation="masked")
    assert refusals(plan) == ()
    found = refusals_on_flower(plan)
    assert len(found) == bool(tiers)
    for reason in found:
        assert f"a target against a server that sees the sums of {tiers} alone" in reason
        assert "Run the plan on NVIDIA FLARE, or plan without the target of country" in reason
    trusted = planned(tmp_path, rows, header=header, epsilon=epsilon)
    assert refusals(trusted) == ()
    assert ("Run the plan on NVIDIA FLARE" in refusals_on_flower(trusted)[0]) is bool(tiers)


def test_engines_and_aggregators_refuse_membership_that_changes_below_countries(tmp_path):
    rows = "".join(f"{silo},10,{region},east,{begins},4\n" for silo, region, begins in ("ax1", "bx2", "cy1", "dy1"))
    plan = planned(tmp_path, rows, header="silo,records,region,country,from,until", rounds=4, epsilon={"region": 4.0})
    [reason] = refusals(plan)
    assert "membership changes with one tier of regions, this one has region, country. Plan one tier" in reason
    assert refusals_on_flower(plan)[0] == reason
    with pytest.raises(ExchangeError, check=coded("plan.rosters-in-tiers")):
        tree_of(plan)
