"""A federation may say what its silos count for, and keep their sizes secret, in every format it can be read from."""

import msgspec
import numpy as np
import pytest
from error_codes import coded
from sources import frames, parquet, written

import fulcrum
from fulcrum.errors import FederationError, ParameterError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.plan import check_federation
from fulcrum.readers.editing import add_region, merge_regions, rescale_region, resize_region, split_region
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.federation_json import Roster, federation_of, roster_of
from fulcrum.readers.federation_reader import read_federation
from fulcrum.words.recipe_words import recipe_words

COLUMNS = {"silo": ["lille", "paris", "lyon"], "records": [800, 2400, 1200], "region": ["north", "north", "south"]}
WEIGHT = [2.0, 1.0, 1.0]


def as_csv(columns):
    rows = zip(*columns.values(), strict=True)
    return ",".join(columns) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


def as_toml(columns):
    silos = {}
    for k, silo in enumerate(columns["silo"]):
        keys = [f"{key} = {columns[key][k]}" for key in ("records", "weight") if key in columns]
        silos.setdefault(columns["region"][k], []).append(f"{silo} = {{ {', '.join(keys)} }}")
    return "".join(f"[region.{region}]\n" + "\n".join(lines) + "\n" for region, lines in silos.items())


def every_reading(tmp_path, columns):
    yield read_federation(written(tmp_path, "a.csv", as_csv(columns)))
    yield read_federation(written(tmp_path, "a.toml", as_toml(columns)))
    yield read_federation(parquet(tmp_path, columns))
    yield from map(read_federation, frames(columns).values())


@pytest.mark.parametrize("without_records", [False, True])
def test_every_format_says_the_same_of_weights_and_secret_sizes(tmp_path, without_records):
    columns = {**COLUMNS, "weight": WEIGHT}
    if without_records:
        del columns["records"]
    digests = set()
    for federation in every_reading(tmp_path, columns):
        assert federation.weights.tolist() == [0.5, 0.25, 0.25]
        assert federation.sizes_known is not without_records
        sent = msgspec.json.encode(roster_of(federation))
        assert federation_of(msgspec.json.decode(sent, type=Roster)).digest == federation.digest
        assert read_federation(written(tmp_path, "back.csv", federation_csv(federation))).digest == federation.digest
        digests.add(federation.digest)
    assert len(digests) == 1


def test_weights_and_secret_sizes_are_part_of_the_digest_and_their_unit_is_not(tmp_path):
    def digest(**columns):
        return read_federation(written(tmp_path, "a.csv", as_csv(columns))).digest

    secret = {key: values for key, values in COLUMNS.items() if key != "records"}
    digests = [
        digest(**COLUMNS),
        digest(**COLUMNS, weight=WEIGHT),
        digest(**COLUMNS, weight=[1.0, 2.0, 1.0]),
        digest(**secret),
        digest(**{**COLUMNS, "records": [1, 1, 1]}),
        digest(**secret, weight=WEIGHT),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(**COLUMNS, weight=[8, 4, 4]) == digests[1]
    # That of a federation without them is what it always was.
    assert (
        digests[0]
        == fulcrum.Federation.from_sizes({"north": {"lille": 800, "paris": 2400}, "south": {"lyon": 1200}}).digest
    )


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "a.csv line 3: weight is missing. Give the weight of silo 'paris', or leave all weights out"),
        ("0", "a.csv line 3: weight=0 must be a finite number above 0"),
        ("-1", "a.csv line 3: weight=-1 must be a finite number above 0"),
        ("inf", "a.csv line 3: weight=inf must be a finite number above 0"),
        ("nan", "a.csv line 3: weight=nan must be a finite number above 0"),
        ("much", "a.csv line 3: weight='much' must be a finite number above 0"),
    ],
)
def test_a_weight_that_is_none_is_refused(tmp_path, cell, message):
    table = as_csv({**COLUMNS, "weight": [2, cell, 1]})
    with pytest.raises(FederationError) as caught:
        read_federation(written(tmp_path, "a.csv", table))
    assert str(caught.value) == message


def test_records_are_given_for_every_silo_or_for_none(tmp_path):
    with pytest.raises(FederationError, check=coded("sheet.records-missing", place="a.toml line 3", silo="b")):
        read_federation(written(tmp_path, "a.toml", "[region.north]\na = 5\nb = { weight = 1 }\n"))
    roster = Roster(name="x", silos=["a", "b"], records=[1], tiers=[])
    with pytest.raises(FederationError, check=coded("federation.columns-unequal")):
        federation_of(roster)


def test_weights_of_a_federation_are_used_unless_others_are_asked_for(tmp_path):
    federation = read_federation(written(tmp_path, "a.csv", as_csv({**COLUMNS, "weight": WEIGHT})))
    for recipe, settings in (("paper", {}), ("joint", {"parameters": 10})):
        plan = fulcrum.plan(federation, rounds=3, epsilon=1.0, recipe=recipe, **settings)
        assert (plan.weights_rule, plan.weights.tolist()) == ("declared", [0.5, 0.25, 0.25])
    by_size = fulcrum.plan(federation, rounds=3, epsilon=1.0, weights="sizes")
    assert by_size.weights == pytest.approx(np.array([800, 2400, 1200]) / 4400)
    for made in (plan, by_size):
        fulcrum.save_plan(made, tmp_path / "plan.json")
        again = read_plan(tmp_path / "plan.json")
        assert again.weights.tolist() == made.weights.tolist()
        check_federation(again, federation)
        assert all(check.holds for check in fulcrum.verify(tmp_path / "plan.json"))


def test_a_plan_keeps_sizes_secret_where_they_are_not_given(tmp_path):
    secret = {key: values for key, values in COLUMNS.items() if key != "records"}
    federation = read_federation(written(tmp_path, "a.csv", as_csv(secret)))
    plan = fulcrum.plan(federation, rounds=3, epsilon=1.0, recipe="joint", parameters=10)
    assert plan.weights == pytest.approx([1 / 3] * 3)
    assert plan.server_rule.shares == pytest.approx([2 / 3, 1 / 3])
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    content = msgspec.json.decode((tmp_path / "plan.json").read_bytes())
    assert [silo["records"] for silo in content["silos"]] == [None] * 3
    assert "the datasets of silos are disjoint, and their sizes stay secret" in fulcrum.guarantee_of(plan).assumptions
    assert content["guarantee"]["adjacency"] == "replace one silo's whole dataset, of whatever size"
    assert all(check.holds for check in fulcrum.verify(tmp_path / "plan.json"))
    check_federation(read_plan(tmp_path / "plan.json"), federation)
    assert fulcrum.advice_on(plan)  # nothing in it rests on sizes


@pytest.mark.parametrize(
    ("columns", "settings"),
    [
        ("silo,region,weight\nlille,north,800\nparis,north,2400\nlyon,south,1200\n", {}),
        ("silo,region,weight\nlille,north,800\nparis,north,2400\nlyon,south,1200\n", {"weights": "equal"}),
        ("silo,region\nlille,north\nparis,north\nlyon,south\n", {"weights": {"lille": 2, "paris": 6, "lyon": 3}}),
    ],
)
def test_sizes_are_not_said_to_stay_secret_beside_weights_that_show_them(tmp_path, columns, settings):
    """The file alone gives the sizes 800, 2400 and 1200 away, up to their unit."""
    plan = fulcrum.plan(read_federation(written(tmp_path, "a.csv", columns)), rounds=3, epsilon=1.0, **settings)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    silos = msgspec.json.decode((tmp_path / "plan.json").read_bytes())["silos"]
    shown = [silo.get("declared_weight") or silo["weight"] for silo in silos]
    assert [weight / shown[0] for weight in shown] == pytest.approx([1, 3, 1.5])
    told = " ".join([*fulcrum.guarantee_of(plan).assumptions, *recipe_words(plan)])
    assert "secret" not in told
    assert (
        "the datasets of silos are disjoint; their sizes are not declared, but their weights are public, and weights in "
        "proportion to sizes show the sizes"
    ) in fulcrum.guarantee_of(plan).assumptions
    assert all(check.holds for check in fulcrum.verify(tmp_path / "plan.json"))


@pytest.mark.parametrize("settings", [{}, {"weights": "sizes"}, {"weights": 0.5}])
def test_weights_by_size_need_sizes(tmp_path, settings):
    federation = read_federation(written(tmp_path, "a.csv", "silo,region\nlille,north\nlyon,south\n"))
    with pytest.raises(ParameterError) as caught:
        fulcrum.plan(federation, rounds=3, epsilon=1.0, **settings)
    assert str(caught.value) == (
        f"weights={settings.get('weights', 'sizes')!r} need the number of records of every silo, and a has no records. "
        "Give records, or use weights='equal' or 'least-noise'"
    )
    fulcrum.plan(federation, rounds=3, epsilon=1.0, weights={"lille": 1, "lyon": 3})


def test_editing_keeps_weights_and_secrets(tmp_path):
    secret = {**{key: values for key, values in COLUMNS.items() if key != "records"}, "weight": WEIGHT}
    federation = read_federation(written(tmp_path, "a.csv", as_csv(secret)))
    for edited in (
        merge_regions(federation, ["north", "south"]),
        split_region(federation, "north"),
        add_region(federation, silos=2),
        resize_region(federation, "north", silos=4),
    ):
        assert not edited.sizes_known
        ratio = edited.weights[:2] if edited.silo_names[1] == "paris" else edited.weights[[0, 1]]
        assert ratio[0] == pytest.approx(2 * ratio[1])
    with pytest.raises(FederationError, check=coded("federation.sizes-undeclared")):
        rescale_region(federation, "north", mean=10)


def test_a_project_of_nvidia_flare_may_say_what_silos_count_for(tmp_path):
    pytest.importorskip("yaml", reason="project files need pyyaml")
    project = "participants:\n  - {name: server, type: server}\n" + "".join(
        f"  - {{name: {name}, type: client, weight: {weight}}}\n" for name, weight in (("lille", 3), ("lyon", 1))
    )
    assert read_federation(written(tmp_path, "a.yml", project)).weights.tolist() == [0.75, 0.25]
