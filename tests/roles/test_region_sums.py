"""What goes up: a sum, or word that it is withheld."""

import itertools
import math
import sys

import pytest
from error_codes import coded
from regional import MEMBERS

from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld, regional_reply_from_bytes
from fulcrum.core.remaining_noise import remaining_noise
from fulcrum.errors import ExchangeError


def test_too_few_releases_are_withheld_and_may_be_summed_later(world, region):
    region.accept(world.sealed("lille"), 1)
    answer = region.close_round(1)
    assert isinstance(answer, Withheld)
    assert answer.missing == ("caen", "metz")
    assert answer.reason == "2 of 3 silos are missing, the plan does without 1"
    assert answer == region.close_round(1)
    assert region.rounds()[0].status == "withheld"
    assert not region.is_summed(1)
    region.accept(world.sealed("metz"), 1)
    region.accept(world.sealed("caen"), 1)
    total = region.close_round(1)
    assert isinstance(total, RegionalSum)
    assert total.members == MEMBERS


@pytest.mark.parametrize("absent", MEMBERS)
def test_a_plan_does_without_its_dropouts_and_never_rescales(world, region, absent):
    sent = [world.release(silo) for silo in MEMBERS if silo != absent]
    for made in sent:
        region.accept(world.seal(made), 1)
    total = region.close_round(1)
    assert total.members == tuple(made.silo for made in sent)
    assert (total.values == sent[0].values + sent[1].values).all()
    late = world.sealed(absent)
    with pytest.raises(ExchangeError, check=coded("region.release-late")):
        region.accept(late, 1)
    assert region.close_round(1).to_bytes() == total.to_bytes()


@pytest.mark.parametrize("line", [1, 2, 3, 4])
def test_an_interrupt_while_a_release_is_added_up_leaves_no_sum_without_it(world, region, line):
    """A sum that names a silo whose noise is not in it would hold less noise than the plan counts on."""
    sent = [world.release(silo) for silo in MEMBERS]
    region.accept(world.seal(sent[0]), 1)
    left = [line]

    def strike(frame, event, _):
        if frame.f_code.co_name != "_add":
            return strike if event == "call" else None
        left[0] -= event == "line"
        if left[0] == 0:
            raise KeyboardInterrupt
        return strike

    before = sys.gettrace()
    sys.settrace(strike)
    try:
        with pytest.raises(KeyboardInterrupt):
            region.accept(world.seal(sent[1]), 1)
    finally:
        sys.settrace(before)
    region.accept(world.seal(sent[1]), 1)
    region.accept(world.seal(sent[2]), 1)
    total = region.close_round(1)
    assert total.members == MEMBERS
    assert (total.values == sent[0].values + sent[1].values + sent[2].values).all()


def test_a_plan_without_dropouts_needs_every_silo(world, path):
    with world.open(path, world.tight) as region:
        for silo in MEMBERS[:2]:
            region.accept(world.sealed(silo, plan=world.tight), 1)
        answer = region.close_round(1)
        assert (answer.missing, answer.reason) == (
            ("metz",), "1 of 3 silos are missing, the plan does without 0",
        )  # fmt: skip


def test_a_round_without_any_release_is_withheld(world, region, tmp_path):
    assert region.close_round(1).missing == MEMBERS
    with world.open(tmp_path / "south", region="south") as south:
        assert isinstance(south.close_round(1), Withheld)  # though the plan does without one, and there is one


def test_less_noise_than_the_plan_counts_on_is_withheld(world, region, monkeypatch):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    monkeypatch.setattr("fulcrum.aggregation.presence.remaining_noise", lambda *a, **k: remaining_noise(*a, **k) * 9)
    assert "less than the plan counts on" in region.close_round(1).reason


def test_a_dropout_does_not_use_up_a_colluder(world, tmp_path):
    both = world.made(colluders=1, dropouts=1, sizes={"north": dict.fromkeys((*MEMBERS, "nice"), 100)})
    variance = both.noise_variance
    for absent, colluder in itertools.permutations(range(4), 2):
        honest = [index for index in range(4) if index not in (absent, colluder)]
        left = both.federation.weights[0] / math.sqrt(variance[honest].sum())
        spent = epsilon_of_shift(2 * math.sqrt(both.rounds) * left, delta=both.delta, accountant="renyi")
        assert spent <= 1.0
    alone = world.made(colluders=1)
    with world.open(tmp_path / "alone", alone) as region:
        for silo in MEMBERS[:2]:
            region.accept(world.sealed(silo, plan=alone), 1)
        assert region.close_round(1).reason == "1 of 3 silos are missing, the plan does without 0"


def test_whoever_drops_out_the_noise_left_is_what_the_plan_counts_on(world):
    plan = world.plan
    counted = remaining_noise(plan.federation, plan.noise_variance, tier="region", excluded_silos=1)
    for absent in range(3):
        there = [index for index in range(3) if index != absent]
        assert plan.noise_variance[there].sum() >= counted[there].max() * (1 - 1e-9)
        assert not plan.noise_variance[there[:1]].sum() >= counted[there[:1]].max() * (1 - 1e-9)


def test_a_region_of_one_silo_sends_up_its_release(world, tmp_path):
    made = world.release("nice", 2)
    with world.open(tmp_path / "south", region="south") as region:
        region.accept(world.seal(made), 2)
        total = region.close_round(2)
    assert (total.members, total.region) == (("nice",), "south")
    assert (total.values == made.values).all()


def test_research_sums_are_taken_in_the_order_of_names(world, tmp_path):
    sent = {silo: world.release(silo, plan=world.research) for silo in MEMBERS}
    totals = []
    for order in (MEMBERS, MEMBERS[::-1]):
        with world.open(tmp_path / order[0], world.research) as region:
            for silo in order:
                region.accept(world.seal(sent[silo], world.research), 1)
            totals.append(region.close_round(1).to_bytes())
    assert totals[0] == totals[1]
    expected = sent["caen"].values + sent["lille"].values + sent["metz"].values
    assert (regional_reply_from_bytes(totals[0]).values == expected).all()
