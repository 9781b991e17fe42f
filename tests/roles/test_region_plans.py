"""Which plans a region runs."""

import dataclasses

import pytest
from error_codes import coded
from regional import SIZES

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.errors import ExchangeError


def test_plans_that_this_aggregator_does_not_run_are_refused(world, path):
    injected = fulcrum.plan(
        fulcrum.Federation.from_sizes(SIZES), rounds=2, epsilon=1.0, injection="aggregator", keys=world.keys
    )
    with pytest.raises(ExchangeError, check=coded("plan.form-unsupported")):
        world.open(path, injected)
    bare = dataclasses.replace(world.plan, keys={})
    with pytest.raises(ExchangeError, check=coded("plan.key-missing", name="north")):
        world.open(path, bare)
    with pytest.raises(ExchangeError, check=coded("plan.region-unknown", region="nord")):
        Region.open(path, world.plan, "nord", world.folder / "north")
    with pytest.raises(ExchangeError, check=coded("key.not-of-plan", name="north")):
        Region.open(path, world.plan, "north", world.folder / "south")
    assert not path.exists()


def test_a_deployment_plan_must_verify(world, path):
    forged = dataclasses.replace(world.plan, noise_multiplier=world.plan.noise_multiplier / 2)
    with pytest.raises(ExchangeError, check=coded("plan.check-failed")):
        world.open(path, forged)


def test_a_plan_changed_in_memory_does_not_have_a_region_sum_without_more_silos(world, path):
    plan = world.made(dropouts=0)
    with world.open(path, plan) as region:
        region.accept(world.sealed("lille", plan=plan), 1)
        object.__setattr__(plan, "dropouts", 2)
        assert region.close_round(1).missing == ("caen", "metz")
    with world.open(path, plan) as region:
        assert region.close_round(1).missing == ("caen", "metz")
