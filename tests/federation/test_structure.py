import math

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.core.topology import Tier
from fulcrum.errors import FederationError, OverlapError, ParameterError
from fulcrum.readers.federation import Federation

NESTED = {"north": [120, 80], "south": [300], "east": [90]}
COUNTRIES = {"country": {"france": ["north", "south"], "poland": ["east"]}}


def test_weights_are_shares_of_all_records():
    federation = Federation.from_sizes({"a": [1, 3], "b": [4]})
    assert federation.weights.tolist() == [0.125, 0.375, 0.5]
    assert len(federation) == 3


def test_membership_follows_the_tree_from_silo_to_root():
    federation = Federation.from_sizes(NESTED, outer=COUNTRIES)
    assert federation.tier_names == ("silo", "region", "country", "federation")
    assert federation.membership("silo").tolist() == [0, 1, 2, 3]
    assert federation.membership("region").tolist() == [0, 0, 1, 2]
    assert federation.membership("country").tolist() == [0, 0, 0, 1]
    assert federation.membership("federation").tolist() == [0, 0, 0, 0]
    assert [federation.node_count(tier) for tier in federation.tier_names] == [4, 3, 2, 1]


def test_what_a_federation_holds_cannot_be_written_to():
    federation = Federation.from_sizes(NESTED)
    for array in (federation.sizes, federation.weights, federation.innermost.parent_of):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_silos_without_names_are_numbered():
    federation = Federation(name="plain", sizes=np.array([2.0, 3.0]), tiers=(Tier.from_labels("region", ["a", "b"]),))
    assert federation.silo_names.tolist() == ["silo-1", "silo-2"]
    assert federation.silo_name(1) == "silo-2"


def with_change(**change):
    columns = {
        "silo": ["lille", "lyon", "nice"],
        "records": np.array([10.0, 20.0, 30.0]),
        "tiers": {"region": ["north", "south", "south"], "country": ["france", "france", "france"]},
        "epsilon": np.array([math.nan, 0.5, math.nan]),
        "group": ["x", "x", "y"],
    }
    return Federation.from_columns(**(columns | change))


@pytest.mark.parametrize(
    "change",
    [
        {"silo": ["lille", "lyon", "nizza"]},
        {"records": np.array([10.0, 20.0, 31.0])},
        {"tiers": {"region": ["north", "north", "south"], "country": ["france"] * 3}},
        {"tiers": {"region": ["north", "south", "south"]}},
        {"tiers": {"region": ["north", "south", "south"], "land": ["france"] * 3}},
        {"epsilon": np.array([math.nan, 0.6, math.nan])},
        {"epsilon": None},
        {"group": ["x", "y", "y"]},
        {"group": None},
    ],
)
def test_the_digest_sees_every_change(change):
    assert with_change().digest == with_change().digest
    assert with_change().digest != with_change(**change).digest


def test_a_silo_in_two_regions_is_refused_as_overlap():
    with pytest.raises(OverlapError) as caught:
        with_change(silo=["lille", "lyon", "lille"])
    assert "overlap: silo lille is in two regions, 'north' and 'south'" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"silo": ["lille", "lyon", "lyon"]},
            "row 3: silo lyon is listed a second time, first at row 2. Remove one of the two",
        ),
        ({"silo": ["lille", "", "nice"]}, "row 2: a silo's name must be printable and not empty, got ''"),
        ({"silo": ["lille", "a\nb", "nice"]}, "row 2: a silo's name must be printable and not empty, got 'a\\nb'"),
        ({"records": np.array([10.0, 0.0, 30.0])}, "silo 'lyon': size must be above 0 and at most 1e+100, got 0"),
        (
            {"records": np.array([10.0, math.nan, 30.0])},
            "silo 'lyon': size must be above 0 and at most 1e+100, got nan",
        ),
        (
            {"records": np.array([10.0, math.inf, 30.0])},
            "silo 'lyon': size must be above 0 and at most 1e+100, got inf",
        ),
        ({"records": np.array([10.0, 20.0])}, "federation has 2 sizes and 3 names. Give one value for each silo"),
        ({"epsilon": np.array([1.0, -1.0, 1.0])}, "row 2: epsilon must be a finite number above 0, got -1"),
        (
            {"tiers": {"region": ["north", "south", "south"], "country": ["france", "france", "italy"]}},
            "row 3: region 'south' is in two nodes of the tier 'country', 'france' and 'italy'. Columns after "
            "'region' are outer tiers. Name the same country in every row of a region, or ignore the column 'country': --column ignore=country",
        ),
        (
            {"tiers": {}},
            (
                "the federation 'federation' has no tier above the silos. Name a region for each silo; "
                "without real regions, give each silo a region of its own"
            ),
        ),
        (
            {"tiers": {"federation": ["a", "a", "b"]}},
            "a tier cannot be called 'federation': that name has a meaning of its own",
        ),
        (
            {"tiers": {"re\x1b[2Jgion": ["a", "a", "b"]}},
            r"a tier's name must be printable and not empty, got 're\x1b[2Jgion'",
        ),
        (
            {"silo": [], "records": np.array([]), "epsilon": None, "group": None},
            "federation has no silos, and a federation needs at least one silo",
        ),
    ],
)
def test_bad_rosters_are_refused_in_one_line(change, line):
    if change.get("silo") == []:
        change = change | {"tiers": {"region": []}}
    with pytest.raises(FederationError) as caught:
        with_change(**change)
    assert str(caught.value) == line


def test_outer_tiers_must_place_every_child_once():
    with pytest.raises(
        FederationError, check=coded("federation.child-unplaced", child="east", tier="country", nodes="france")
    ):
        Federation.from_sizes(NESTED, outer={"country": {"france": ["north", "south"]}})
    with pytest.raises(
        FederationError, check=coded("federation.child-repeated", child="north", tier="country", first="a", second="b")
    ):
        Federation.from_sizes(NESTED, outer={"country": {"a": ["north", "south"], "b": ["north", "east"]}})
    with pytest.raises(
        FederationError, check=coded("federation.child-unknown", tier="country", node="a", child="nord")
    ):
        Federation.from_sizes(NESTED, outer={"country": {"a": ["nord", "south", "east"]}})


def test_sizes_too_far_apart_are_refused():
    with pytest.raises(FederationError, check=coded("federation.size-ratio", most=1e50)):
        Federation.from_sizes({"a": [1.0], "b": [1e-60]})


def test_what_the_caller_passed_stays_the_callers():
    sizes, declared = np.array([1.0, 2.0]), np.array([1.0, -math.nan])
    federation = Federation.from_columns(silo=["a", "b"], records=sizes, tiers={"region": ["r", "r"]}, epsilon=declared)
    sizes[0] = 9
    declared[0] = 9
    assert federation.sizes[0] == 1
    assert federation.preferences[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        federation.silo_names[0] = "c"


def test_every_nan_means_no_preference():
    columns = {"silo": ["a", "b"], "records": np.ones(2), "tiers": {"region": ["r", "r"]}}
    digests = {Federation.from_columns(**columns, epsilon=np.array([1.0, nan])).digest for nan in (math.nan, -math.nan)}
    assert len(digests) == 1
    assert Federation.from_columns(**columns, epsilon=np.array([math.nan, -math.nan])).preferences is None


@pytest.mark.parametrize("regions", [{1: [2.0]}, {"a": 5}])
def test_regions_map_names_to_sizes(regions):
    with pytest.raises(FederationError, check=coded("federation.regions-type")):
        Federation.from_sizes(regions)


def test_sizes_must_be_numbers():
    with pytest.raises(FederationError, check=coded("federation.size-type", silo="a-1", size="many")):
        Federation.from_sizes({"a": ["many"]})


def test_unknown_tiers_are_named_with_the_nearest():
    with pytest.raises(ParameterError, check=coded("federation.tier-unknown", federation="federation")):
        Federation.from_sizes(NESTED, outer=COUNTRIES).tier("contry")


@given(st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=40))
def test_duplicates_are_found_exactly(names):
    unique = len(set(names)) == len(names)
    printable = all(name.isprintable() for name in names)
    columns = {"silo": names, "records": np.ones(len(names)), "tiers": {"region": ["r"] * len(names)}}
    if unique and printable:
        assert Federation.from_columns(**columns).silo_names.tolist() == names
    else:
        with pytest.raises(FederationError):
            Federation.from_columns(**columns)


def test_the_earlier_name_of_with_weights_still_works_and_warns():
    federation = Federation.from_sizes({"north": [120, 80], "south": [300]})
    with pytest.warns(DeprecationWarning, match=r"weighted goes with version 0\.3\. Use with_weights"):
        chosen = federation.weighted(np.array([0.5, 0.25, 0.25]))
    assert chosen.weights.tolist() == [0.5, 0.25, 0.25]
    assert not hasattr(federation, "weighed")
