import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.core.topology import Tier
from fulcrum.errors import FederationError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.planner import plan
from fulcrum.readers.editing import (
    add_region,
    merge_regions,
    moves_of_merge,
    remove_region,
    rename_region,
    rescale_region,
    resize_region,
    split_region,
)
from fulcrum.readers.federation import Federation
from fulcrum.readers.federation_json import federation_of, roster_of
from fulcrum.readers.profiles import profile

NESTED = Federation.from_columns(
    silo=["a", "b", "c", "d", "e"],
    records=np.array([100.0, 300.0, 50.0, 70.0, 90.0]),
    tiers={
        "region": ["north", "north", "south", "east", "east"],
        "country": ["france", "france", "france", "poland", "poland"],
        "continent": ["europe"] * 5,
    },
    epsilon=np.array([1.0, np.nan, np.nan, np.nan, 2.0]),
    group=["x", "x", "y", "y", "y"],
    name="nested",
)
SIZES = st.dictionaries(st.sampled_from("rstuv"), st.lists(st.integers(1, 10**6), min_size=1, max_size=6), min_size=2)


def places(federation, tier="region"):
    nodes = federation.tier(tier).nodes
    names = federation.silo_names.tolist()
    return {name: nodes[code] for name, code in zip(names, federation.membership(tier), strict=True)}


@given(SIZES)
def test_a_merge_moves_silos_and_changes_nothing_else(sizes):
    before = Federation.from_sizes(sizes)
    first, second, *_ = sizes
    after = merge_regions(before, [first, second])
    assert after.sizes.tolist() == before.sizes.tolist()
    assert len(after.innermost.nodes) == len(sizes) - 1
    for silo, region in places(before).items():
        assert places(after)[silo] == (f"{first} + {second}" if region in (first, second) else region)


@given(SIZES)
def test_a_merge_never_needs_more_noise_and_a_split_never_less(sizes):
    before = Federation.from_sizes(sizes)
    first, second, *_ = sizes
    needed = plan(before, rounds=5, epsilon=1.0).noise_budget
    assert plan(merge_regions(before, [first, second]), rounds=5, epsilon=1.0).noise_budget <= needed * (1 + 1e-9)
    if len(sizes[first]) > 1:
        assert plan(split_region(before, first), rounds=5, epsilon=1.0).noise_budget >= needed * (1 - 1e-9)


def test_a_merge_across_countries_takes_the_place_of_the_first_and_leaves_no_empty_country():
    after = merge_regions(NESTED, ["south", "east"])
    assert places(after) == {"a": "north", "b": "north", "c": "south + east", "d": "south + east", "e": "south + east"}
    assert after.tier("country").nodes == ("france",)
    assert after.tier("continent").nodes == ("europe",)
    assert merge_regions(NESTED, ["east", "south"]).tier("country").nodes == ("france", "poland")
    assert after.preferences[[0, 4]].tolist() == [1.0, 2.0]


def test_a_split_region_stands_beside_its_origin_however_the_file_is_ordered():
    mixed = Federation.from_columns(
        silo=list("abcdefg"),
        records=np.arange(1.0, 8.0),
        tiers={"region": ["n", "s", "n", "e", "s", "n", "n"], "land": ["x", "x", "x", "y", "x", "x", "x"]},
    )
    after = split_region(mixed, "n")
    assert after.innermost.nodes == ("n", "n 2", "s", "e")
    assert places(after) == {"a": "n", "c": "n", "f": "n 2", "g": "n 2", "b": "s", "d": "e", "e": "s"}
    assert dict(zip(after.silo_names.tolist(), after.sizes.tolist(), strict=True)) == dict(
        zip("abcdefg", range(1, 8), strict=True)
    )
    assert split_region(mixed, "s").innermost.nodes == ("n", "s", "s 2", "e")


def test_a_merge_says_whom_it_moves_on_every_outer_tier():
    across = moves_of_merge(NESTED, ["south", "east", "north"])
    assert [(move.region, move.silos, move.tier, move.left, move.joined) for move in across] == [
        ("east", 2, "country", "poland", "france")
    ]
    after = places(merge_regions(NESTED, ["south", "east", "north"]), "country")
    before = places(NESTED, "country")
    assert {silo for silo in before if before[silo] != after[silo]} == {"d", "e"}
    assert moves_of_merge(NESTED, ["north", "south"]) == []


def test_a_split_parts_the_silos_in_their_order():
    after = split_region(Federation.from_sizes({"r": [1, 2, 3], "r 2": [4]}), "r")
    assert places(after) == {"r-1": "r", "r-2": "r", "r-3": "r 3", "r 2-1": "r 2"}
    assert places(split_region(NESTED, "east"), "country")["e"] == "poland"


def test_a_region_is_added_with_all_that_the_others_have():
    after = add_region(NESTED, silos=2)
    assert after.innermost.nodes == ("north", "south", "east", "region 1")
    assert after.sizes[-2:].tolist() == [122.0, 122.0]
    assert places(after, "country")["region 1-1"] == "france"
    assert np.isnan(after.preferences[-2:]).all()
    assert after.group.nodes[-2:] == ("region 1-1", "region 1-2")
    assert add_region(after).innermost.nodes[-1] == "region 2"


def test_silos_come_with_the_mean_size_and_go_from_the_end():
    after = resize_region(NESTED, "north", silos=4)
    assert after.silo_names.tolist()[-2:] == ["north-1", "north-2"]
    assert after.sizes[-2:].tolist() == [200.0, 200.0]
    assert resize_region(NESTED, "east", silos=1).silo_names.tolist() == ["a", "b", "c", "d"]
    taken = Federation.from_sizes({"r": {"r-1": 5}, "s": {"r-2": 5}})
    assert resize_region(taken, "r", silos=3).silo_names.tolist() == ["r-1", "r-2", "r-3", "r-4"]


def test_sizes_keep_their_proportions_and_stay_whole():
    assert rescale_region(NESTED, "north", mean=400).sizes.tolist() == [200, 600, 50, 70, 90]
    assert rescale_region(NESTED, "north", mean=1).sizes.tolist()[:2] == [1, 2]


def test_a_region_is_removed_and_renamed():
    after = remove_region(NESTED, "east")
    assert after.tier("country").nodes == ("france",)
    assert len(after) == 3
    assert rename_region(NESTED, "east", "west").innermost.nodes == ("north", "south", "west")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda: remove_region(Federation.from_sizes({"r": [1]}), "r"), "'r' is the last region"),
        (lambda: split_region(NESTED, "south"), "'south' has one silo"),
        (lambda: rename_region(NESTED, "east", "south"), "the federation already has a region 'south'"),
        (lambda: rename_region(NESTED, "east", "a\tb"), "printable"),
        (lambda: resize_region(NESTED, "east", silos=200_000), "more than 100,000"),
        (lambda: rescale_region(NESTED, "east", mean=float("nan")), "must be from 1"),
        (lambda: merge_regions(NESTED, ["north", "est"]), "Did you mean 'east'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(edit, reason):
    with pytest.raises(FederationError, match=reason) as told:
        edit()
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(
    "federation",
    [
        NESTED,
        merge_regions(NESTED, ["north", "east"]),
        split_region(NESTED, "north"),
        add_region(NESTED),
        resize_region(NESTED, "east", silos=9),
    ],
)
def test_a_roster_gives_the_same_federation(federation):
    assert federation_of(roster_of(federation)).digest == federation.digest


@pytest.mark.parametrize("federation", [NESTED, profile("consortium")], ids=lambda federation: federation.name)
@pytest.mark.parametrize(
    "edit",
    [
        lambda f: split_region(f, f.innermost.nodes[0]),
        lambda f: merge_regions(f, [f.innermost.nodes[2], f.innermost.nodes[0]]),
        lambda f: remove_region(f, f.innermost.nodes[0]),
        lambda f: split_region(merge_regions(f, f.innermost.nodes[1:]), f.innermost.nodes[0]),
        lambda f: resize_region(add_region(f, silos=3), f.innermost.nodes[0], silos=7),
        lambda f: rename_region(rescale_region(f, f.innermost.nodes[1], mean=40), f.innermost.nodes[1], "another"),
    ],
)
def test_the_plan_of_an_edited_federation_is_read_back(tmp_path, federation, edit):
    made = plan(edit(federation), rounds=3, epsilon=2.0)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").federation.digest == made.federation.digest
    assert federation_of(roster_of(made.federation)).digest == made.federation.digest


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=4, max_size=12))
def test_nodes_stand_in_the_order_of_their_first_silos_however_they_are_given(order, codes):
    codes = [*range(4), *codes]
    shuffled = Tier(name="region", nodes=tuple(f"r{node}" for node in order), parent_of=np.argsort(order)[codes])
    labels = [f"r{code}" for code in codes]
    silos = [f"s{number}" for number in range(len(codes))]
    one, other = (
        Federation.from_columns(silo=silos, records=np.ones(len(codes)), tiers={"region": region})
        for region in (shuffled, labels)
    )
    assert one.digest == other.digest
