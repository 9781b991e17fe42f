import pytest

from fulcrum.planning.engine_limits import refusals, refusals_on_flower
from fulcrum.planning.planner import plan
from fulcrum.readers.federation_reader import read_federation

RESEARCH = {"rounds": 2, "epsilon": 5.0}


def planned(tmp_path, rows, header="silo,records,region", **settings):
    path = tmp_path / "fed.csv"
    path.write_text(f"{header}\n{rows}", encoding="utf-8")
    return plan(read_federation(path), **RESEARCH, **settings)


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
        ("a", "süd"),
    ],
)
def test_names_that_no_site_can_have_are_refused(tmp_path, name, region):
    [reason] = refusals(planned(tmp_path, f"{name},10,{region}\nb,10,{region}\n"))
    wrong = region if name == "a" else name
    assert reason == (
        f"{wrong!r} cannot name a site of NVIDIA FLARE: letters without accents, digits, - and _ only, 63 at most. "
        "Rename it"
    )


def test_many_wrong_names_are_one_sentence(tmp_path):
    [two] = refusals(planned(tmp_path, "é,10,north\nè,10,north\n"))
    assert two.startswith("'é' cannot name a site of NVIDIA FLARE, nor can 1 other: ")
    [three] = refusals(planned(tmp_path, "é,10,north\nè,10,north\nê,10,nord 2\n"))
    assert three.startswith("'nord 2' cannot name a site of NVIDIA FLARE, nor can 3 others: ")
    assert three.endswith("Rename them")


def test_every_reason_is_given_with_its_remedy(tmp_path):
    found = refusals(
        planned(
            tmp_path,
            "server,10,x,c\nlé,10,y,c\n",
            header="silo,records,region,country",
            injection="aggregator",
            keys={"x": "key"},
        )
    )
    for reason, said in zip(
        found,
        (
            "one tier of aggregators, this one has region, country. Plan one tier: leave country out",
            "silos draw their own noise. Plan with --injection silo",
            "'lé' cannot name a site",
            "'server' names two sites",
            "the plan carries keys, but none of 'y'",
        ),
        strict=True,
    ):
        assert said in reason


def test_a_silo_named_as_its_region_is_refused(tmp_path):
    assert "'north' names two sites" in refusals(planned(tmp_path, "north,10,north\nb,10,north\n"))[0]


@pytest.mark.parametrize("name", ["app", "App", "flwr", "plan.json", "run.sh", "server"])
def test_a_silo_on_flower_is_not_named_as_what_stands_beside_its_folder(tmp_path, name):
    """The keys of a silo named `app` were in the app's folder, which is sent to every SuperNode."""
    found = refusals_on_flower(planned(tmp_path, f"{name},10,north\nb,10,north\n", aggregation="masked"))
    assert found == (f"{name!r} cannot name a site's folder: the kits have a file or folder of that name. Rename it",)


@pytest.mark.parametrize(("name", "region"), [("admin", "north"), ("Job", "north"), ("a", "authority")])
def test_a_site_of_flare_is_not_named_as_what_stands_beside_its_folder(tmp_path, name, region):
    [reason] = refusals(planned(tmp_path, f"{name},10,{region}\nb,10,{region}\n"))
    wrong = region if name == "a" else name
    assert reason == f"{wrong!r} cannot name a site of NVIDIA FLARE: the kits have a folder of that name. Rename it"


def test_flower_refuses_what_it_cannot_run_each_with_its_remedy(tmp_path):
    assert refusals_on_flower(planned(tmp_path, "a.1,10,north\nb-2,10,north\n", aggregation="masked")) == ()
    found = refusals_on_flower(
        planned(tmp_path, "server,10,x,c\nb,10,y,c\n", header="silo,records,region,country", keys={"server": "key"})
    )
    for reason, said in zip(
        found,
        (
            "one tier of regions, this one has region, country. Plan one tier",
            "sums must be masked. Plan with --aggregation masked",
            "'server' cannot name a site's folder",
            "the plan carries keys, but none of 'b'. Give every silo a key, or none",
        ),
        strict=True,
    ):
        assert said in reason
