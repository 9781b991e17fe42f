"""Which plans a region runs."""

import dataclasses

from regional import SIZES, refusal

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region


def test_plans_that_this_aggregator_does_not_run_are_refused(world, path):
    nested = fulcrum.plan(
        fulcrum.Federation.from_sizes(SIZES, outer={"country": {"france": ["north", "south"]}}),
        rounds=2,
        epsilon=1.0,
        keys=world.keys,
    )
    assert refusal(world.open, path, nested) == (
        "this aggregator runs plans of one tier in which silos add the noise, got 2 tiers"
    )
    injected = fulcrum.plan(
        fulcrum.Federation.from_sizes(SIZES), rounds=2, epsilon=1.0, injection="aggregator", keys=world.keys
    )
    assert "got injection 'aggregator'" in refusal(world.open, path, injected)
    bare = dataclasses.replace(world.plan, keys={})
    assert refusal(world.open, path, bare) == "the plan carries no key of region 'north'. Plan with --keys"
    assert "knows no region 'nord'" in refusal(Region.open, path, world.plan, "nord", world.folder / "north")
    assert "south is not the key of 'north'" in refusal(Region.open, path, world.plan, "north", world.folder / "south")
    assert not path.exists()


def test_a_deployment_plan_must_verify(world, path):
    forged = dataclasses.replace(world.plan, noise_multiplier=world.plan.noise_multiplier / 2)
    assert "does not hold what it says" in refusal(world.open, path, forged)


def test_a_plan_changed_in_memory_does_not_have_a_region_sum_without_more_silos(world, path):
    plan = world.made(dropouts=0)
    with world.open(path, plan) as region:
        region.accept(world.sealed("lille", plan=plan), 1)
        object.__setattr__(plan, "dropouts", 2)
        assert region.close_round(1).missing == ("caen", "metz")
    with world.open(path, plan) as region:
        assert region.close_round(1).missing == ("caen", "metz")
