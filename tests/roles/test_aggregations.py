"""Both aggregations keep to the terms of `Aggregation`: it is the one place that decides who may be missing."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

import fulcrum
from fulcrum.aggregation.presence import MaskedAggregation, TrustedAggregation, aggregation_of
from fulcrum.core.choices import AGGREGATIONS
from fulcrum.core.messages.membership import members_of, senders_of
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.planning.inputs.inside_observer import INSIDE_OBSERVERS

SIZES = {"north": dict.fromkeys("abcdefg", 100), "south": dict.fromkeys("hijklmn", 40)}
KINDS = {"trusted": TrustedAggregation, "masked": MaskedAggregation}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    found = {silo: new_key(folder / silo) for members in SIZES.values() for silo in members}
    return found | {region: new_key(folder / region, "sealing") for region in SIZES}


def made(keys, kind, **options):
    sizes = {
        region: {silo: size * (3 if silo in "ah" else 1) for silo, size in members.items()}
        for region, members in SIZES.items()
    }
    settings = {
        "rounds": 2,
        "epsilon": {"region": 1.0, INSIDE_OBSERVERS[kind]: 6.0},
        "parameters": 40,
        "purpose": "deployment",
    }
    plan = fulcrum.plan(fulcrum.Federation.from_sizes(sizes), aggregation=kind, keys=keys, **(settings | options))
    return fulcrum.verified_plan(plan)


both_kinds = pytest.mark.parametrize("kind", AGGREGATIONS)


@both_kinds
def test_the_plan_says_which_aggregation_it_is(keys, kind):
    found = aggregation_of(made(keys, kind))
    assert type(found) is KINDS[kind]
    assert found.name == kind


@both_kinds
@pytest.mark.parametrize(("dropouts", "colluders"), [(0, 0), (1, 0), (1, 1)])
def test_as_many_as_the_plan_provides_for_may_be_missing_and_their_noise_is_not_needed(keys, kind, dropouts, colluders):
    """Every set of silos; the oracle for the noise tries every coalition, and knows no formula for the worst."""
    plan = made(keys, kind, dropouts=dropouts, colluders=colluders)
    aggregation, variance = aggregation_of(plan), plan.noise_variance
    needed = np.max(plan.required_multiplier["region"])
    for sender in senders_of(plan):
        members = members_of(plan, sender)
        allowed = {
            some
            for size in range(len(members) + 1)
            for some in itertools.combinations(members, size)
            if aggregation.lacking(sender, set(some)) is None
        }
        assert {len(members) - len(some) for some in allowed} == set(range(dropouts + 1))
        for some in allowed:
            for silo in some:
                worst = min(
                    sum(variance[members[other]] for other in some if other not in helpers)
                    for helpers in itertools.combinations([other for other in some if other != silo], colluders)
                )
                assert np.sqrt(worst) / plan.weights[members[silo]] >= needed * (1 - 1e-9)
            for other in set(members) - set(some):
                assert aggregation.lacking(sender, {*some, other}) is None


@both_kinds
def test_strangers_and_silos_that_are_named_twice_fill_no_place(keys, kind):
    plan = made(keys, kind, dropouts=1)
    aggregation = aggregation_of(plan)
    assert aggregation.lacking("north", set("abcdef")) is None
    for present in (["a", "b", "c", "d", "e", "e"], [*"abcde", "h"], [*"abcde", "zz"]):
        assert "2 of 7 silos" in aggregation.lacking("north", present)
    assert aggregation.lacking("north", [])


@both_kinds
def test_sums_count_alone_unless_a_target_stands_further_out(keys, kind):
    apart, together = (
        made(keys, kind, epsilon=epsilon) for epsilon in ({"region": 1.0}, {"region": 1.0, "federation": 0.9})
    )
    for plan, alone in ((apart, {"north"}), (together, set())):
        aggregation = aggregation_of(plan)
        assert frozenset().union(*aggregation.joint_senders()) == set(senders_of(plan))
        assert aggregation.usable(["north"]) == alone
        assert aggregation.usable(SIZES) == set(SIZES)
        assert aggregation.usable([]) == frozenset()


def test_a_federation_masked_as_one_group_has_one_sum_that_lacks_no_region(keys):
    plan = made(keys, "masked", epsilon={"federation": 1.0, "server+silo": 6.0}, dropouts=1)
    aggregation, everybody = aggregation_of(plan), {silo for members in SIZES.values() for silo in members}
    assert aggregation.joint_senders() == (frozenset({"federation"}),)
    assert aggregation.lacking("federation", everybody - {"a", "h"}) is None
    assert "2 of 7 silos of region 'south' are missing" in aggregation.lacking("federation", everybody - {"i", "h"})


def test_nothing_else_outside_of_the_core_compares_with_the_number_of_dropouts():
    """A comparison with `dropouts` decides who may be missing: there is one module for that."""
    source = Path(fulcrum.__file__).parent
    deciding = {
        path.relative_to(source).as_posix()
        for folder in ("aggregation", "server", "engines", "simulation")
        for path in (source / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and any(getattr(part, "attr", "") == "dropouts" for part in ast.walk(node))
    }
    assert deciding <= {"aggregation/presence.py", "server/run_results.py"}  # the latter compares settings of two plans
