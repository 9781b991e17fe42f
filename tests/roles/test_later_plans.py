"""Plans one after the other: a tier has the same name in both, and other observers."""

import base64
import dataclasses

import pytest

import fulcrum
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.store.ledger import Assumptions, Cost, Ledger

TWO = {"north": dict.fromkeys("ab", 200), "south": dict.fromkeys("cd", 210)}


def plan(sizes, *, outer=None, **options):
    federation = fulcrum.Federation.from_sizes(sizes, outer=outer)
    settings = {"rounds": 4, "parameters": 6, "purpose": "deployment", "epsilon": {"region": 2.0}} | options
    keys = {
        silo: base64.b64encode(bytes([index]) * 32).decode()
        for index, silo in enumerate(federation.silo_names.tolist())
    }
    if settings.get("aggregation") == "masked":
        settings["keys"] = keys
    return fulcrum.plan(federation, **settings)


def released(first, second, folder):
    """The spending that the ledger of silo "a" states after two rounds of one plan and as many of the next as go."""
    before, after = release_parameters_of(first, "a"), release_parameters_of(second, "a")
    folder.mkdir(exist_ok=True)
    with Ledger.open(folder / "a.ledger", silo="a") as ledger:
        ledger.enter_plan(before.allowance)
        for number in (1, 2):
            ledger.record(before.allowance, round_number=number, input_digest="m", payload=b"x", cost=before.cost)
        spent, rounds = ledger.spent_at(after.allowance.observers, after.allowance.assumptions).shifts, 0
        try:
            ledger.enter_plan(after.allowance)
        except fulcrum.RefusedReleaseError:
            return spent, rounds
        while ledger.would_exceed(after.allowance, after.cost, rounds + 1) is None:
            rounds += 1
            ledger.record(after.allowance, round_number=rounds, input_digest="m", payload=b"x", cost=after.cost)
    return spent, rounds


def test_with_more_colluders_the_past_counts_as_inside(tmp_path):
    first, second = (
        plan({"north": dict.fromkeys("abcd", 200)}),
        plan({"north": dict.fromkeys("abcd", 200)}, colluders=2),
    )
    spent, rounds = released(first, second, tmp_path)
    assert spent["region"] >= 2 * 4 / first.effective_multiplier("region", colluders=2)[0] ** 2
    assert spent["region"] == spent["silo"] == 2 * 4 / first.noise_multiplier[0] ** 2
    assert rounds < 4


def test_with_fewer_colluders_the_past_counts_as_it_was_charged(tmp_path):
    first = plan({"north": dict.fromkeys("abcd", 200)}, colluders=1)
    spent, _ = released(first, plan({"north": dict.fromkeys("abcd", 200)}), tmp_path)
    assert spent["region"] == 2 * release_parameters_of(first, "a").cost.shifts["region"] < spent["silo"]


def test_after_masks_of_one_group_all_silos_of_other_regions_are_observers(tmp_path):
    """They know their own noise in the global sum, and are outside the region under the later plan, all of them."""
    sizes = {"north": {"a": 100}, "south": {f"s{index}": 100 for index in range(10)}}
    first = plan(sizes, epsilon={"federation": 2.0}, aggregation="masked")
    assert first.one_group
    alone = 2 * release_parameters_of(first, "a").cost.alone
    laters = [{}, {"colluders": 1}, {"aggregation": "masked"}]
    for number, options in enumerate(laters):
        later = plan(sizes, epsilon={"region": 9.0}, **options)
        spent, _ = released(first, later, tmp_path / str(number))
        weight, variance = first.weights[0], first.noise_multiplier[0] ** 2 * first.weights[0] ** 2
        seen = 2 * 4 * weight**2 / variance  # when every silo of the south takes its own noise off
        assert spent["region"] == spent["federation"] == pytest.approx(seen, rel=1e-9)
        # Whoever sees the silo's own updates now may be one of them: inside a silo has no more than outside.
        assert spent["silo"] == spent["region"] == alone


def test_of_one_group_and_then_one_group_the_past_counts_as_it_was_charged(tmp_path):
    first = plan(TWO, epsilon={"federation": 2.0}, aggregation="masked")
    spent, _ = released(first, plan(TWO, epsilon={"federation": 3.0}, aggregation="masked"), tmp_path)
    assert spent["region"] == 2 * release_parameters_of(first, "a").cost.shifts["region"]


def test_with_more_colluders_than_masks_counted_the_past_counts_as_the_silos_own_noise_alone(tmp_path):
    sizes = {"north": dict.fromkeys("abcdefgh", 200)}
    first, second = plan(sizes, aggregation="masked", colluders=1), plan(sizes, aggregation="masked", colluders=2)
    spent, _ = released(first, second, tmp_path)
    assert (
        spent["silo"]
        == 2 * 4 / first.noise_multiplier[0] ** 2
        > 2 * release_parameters_of(first, "a").cost.shifts["silo"]
    )


def test_a_tier_that_was_further_out_is_not_the_same_observer(tmp_path):
    """Tier "country" of the first plan held the sums of regions; in the second it is the tier that silos report to."""
    first = plan(
        {"w1": dict.fromkeys("ab", 200), "w2": dict.fromkeys("cd", 200)}, outer={"country": {"x": ["w1", "w2"]}}
    )
    inner = fulcrum.Federation.from_sizes({"x": dict.fromkeys("abcdefgh", 200)})
    renamed = dataclasses.replace(inner, tiers=(dataclasses.replace(inner.tiers[0], name="country"),))
    second = fulcrum.plan(renamed, rounds=4, parameters=6, purpose="deployment", epsilon={"country": 3.7})
    spent, _ = released(first, second, tmp_path)
    assert spent["country"] == spent["silo"]


def test_after_a_move_by_a_fresh_plan_the_aggregator_of_then_is_an_observer(tmp_path):
    second = plan({"north": dict.fromkeys("bx", 200), "south": dict.fromkeys("acdefg", 200)})
    spent, rounds = released(plan(TWO), second, tmp_path)
    assert spent["region"] == spent["silo"]
    assert rounds < 4


def test_a_plan_that_continues_counts_a_move_as_it_says():
    """Its promise is against those who were outside in every plan, so the aggregator that the silo left is none."""
    cost, before = Cost(shifts={"silo": 1.0, "region": 0.25}), Assumptions(federation="a")
    fresh, continuing = Assumptions(federation="b"), Assumptions(federation="b", continuing=True)
    assert cost.charge_to(("silo", "region"), before, fresh).shifts["region"] == 1.0
    assert cost.charge_to(("silo", "region"), before, continuing).shifts["region"] == 0.25
    more = dataclasses.replace(continuing, colluders=1)
    assert cost.charge_to(("silo", "region"), before, more).shifts["region"] == 1.0
    inserted = cost.charge_to(("silo", "ward", "region"), before, continuing).shifts
    assert (inserted["ward"], inserted["region"]) == (1.0, 0.25)
    outer = Cost(shifts={"silo": 1.0, "ward": 0.5, "region": 0.25})
    assert outer.charge_to(("silo", "region"), before, continuing).shifts["region"] == 1.0


@pytest.mark.parametrize("known", [None, Assumptions(federation="a")])
def test_where_one_plan_has_no_assumptions_the_past_counts_as_the_silos_own_noise(known):
    cost = Cost(shifts={"silo": 1.0, "region": 0.25}, alone=3.0)
    other = Assumptions(federation="b") if known is None else None
    assert set(cost.charge_to(("silo", "region"), known, other).shifts.values()) == {3.0}
    assert cost.charge_to(("silo", "region"), known, known).shifts["region"] == 0.25


@pytest.mark.parametrize(
    "wrong", [{"federation": ""}, {"colluders": -1}, {"colluders": True}, {"group": None}, {"continuing": 1}]
)
def test_assumptions_are_of_their_types(wrong):
    with pytest.raises(fulcrum.LedgerError):
        Assumptions(**({"federation": "a"} | wrong))
    with pytest.raises(fulcrum.LedgerError):
        Assumptions.from_text("[1,2]")
