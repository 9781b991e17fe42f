"""Silos masked as one group: everyone of the federation sees the sum, so the observer above is outside it."""

import math

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.audit.evidence.findings import Audit, Finding
from fulcrum.audit.replays.canary_game import observer_words
from fulcrum.core.silo.policy import Policy
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.planner import make_plan
from fulcrum.planning.theory.calibration import epsilon_of
from fulcrum.planning.theory.observer_power import observer_power
from fulcrum.views.charts.region_charts import epsilon_chart, region_rows
from fulcrum.views.report.deployments_registry import registry_entry
from fulcrum.views.report.dossier import Answers, questions_of
from fulcrum.views.report.html_report import report
from fulcrum.views.terminal.plan_tables import observers_in_words
from fulcrum.words.verdict import verdict


def one_group(sizes, **options):
    federation = fulcrum.Federation.from_sizes(sizes)
    return fulcrum.plan(federation, rounds=10, epsilon={"federation": 1.0}, aggregation="masked", **options)


def epsilons_against_silos_elsewhere(plan):
    """By silo, the worst epsilon against one silo of another region, which sees the global sum and its own noise."""
    noise, region, weight = plan.noise_variance, plan.federation.innermost.parent_of, plan.weights
    found = []
    for silo in range(len(noise)):
        elsewhere = [other for other in range(len(noise)) if region[other] != region[silo]]
        left = min(math.fsum(np.delete(noise, other)) for other in elsewhere)
        found.append(epsilon_of(math.sqrt(left) / weight[silo], rounds=10, delta=1e-5))
    return found


@pytest.mark.parametrize(
    ("sizes", "allocation", "elsewhere"),
    [
        ({"a": [1], "b": [1]}, "optimal", 1.465),
        ({"a": [1] * 12, "b": [1]}, "inverse-size", 4.208),
        ({"a": [3, 1, 2], "b": [5, 1], "c": [4]}, "uniform", None),
    ],
)
def test_a_silo_of_another_region_is_never_outside_and_has_no_more_than_the_epsilon_inside(
    sizes, allocation, elsewhere
):
    """By trying every silo: the epsilon above does not hold against silos elsewhere, and the words claim nothing else."""
    plan = one_group(sizes, allocation=allocation)
    against = epsilons_against_silos_elsewhere(plan)
    if elsewhere is not None:
        assert max(against) == pytest.approx(elsewhere, abs=5e-4)
    assert max(against) > plan.worst_epsilon() * 1.1
    assert all(epsilon <= inside * (1 + 1e-9) for epsilon, inside in zip(against, plan.epsilon_inside, strict=True))
    assert (
        "epsilon 1 against anyone outside the federation who sees the global sum, the one sum"
        in fulcrum.guarantee_of(plan).statement
    )
    assert "outside its region" not in fulcrum.guarantee_of(plan).statement
    silent = (
        "no silo of the federation, but for those named with the server, helps an observer of the global sum, is one"
    )
    assert (
        f"{silent}, or leaves out its noise: it conceals the others by its noise"
        in fulcrum.guarantee_of(plan).assumptions
    )
    assert all(check.holds for check in fulcrum.verify(plan))


def test_advice_on_one_group_speaks_of_an_observer_outside_the_federation():
    [told] = [one.text for one in fulcrum.advice_on(one_group({"a": [1, 2], "b": [1]})) if one.kind == "dropout"]
    assert told.startswith(
        "If one silo of each region dropped out or colluded, the worst epsilon outside the federation"
    )


def test_each_observer_stands_once_in_the_statement_of_one_group():
    statement = fulcrum.guarantee_of(one_group({"a": [1, 2], "b": [1]})).statement
    assert statement.count(" against ") == 2
    assert statement.count("the global sum") == 1


def test_the_verdict_on_one_group_is_on_an_observer_outside_the_federation():
    plan = one_group({"a": [1] * 12, "b": [1]}, allocation="inverse-size")
    found = verdict(plan)
    assert found.above.sentence.startswith("An observer outside the federation guesses")
    assert found.inside.sentence.startswith("An observer inside the federation, who is the server with 1 of the silos")
    assert "is right up to 56 of 100 times outside the federation" in found.sentence
    assert found.headline.startswith("outside the federation: right up to 56 of 100 times; inside: right up to 70")
    left = math.fsum(plan.noise_variance[:-1])  # what the silo of the other region leaves
    right = observer_power(math.sqrt(left) / plan.weights[0], rounds=10).guessing_rate
    assert found.above.right < 0.56 < 0.68 < right <= found.inside.right


def test_the_report_and_its_charts_of_one_group_speak_of_the_federation():
    plan = one_group({"a": [1, 2, 1, 1], "b": [1, 3]})
    page = " ".join(report(plan).split())
    assert "is outside the federation and sees the global sum alone" in page
    assert "is outside a silo" not in page
    assert "and every silo of the federation knows its own noise" in page
    assert "while none of the silos of the federation colludes with the observer" in page
    assert "worst ε outside the federation" in page
    assert "above a region" not in page
    assert "The noise of the whole federation conceals a silo from the observer outside." in page
    chart = epsilon_chart(region_rows(plan), one_group=True)
    assert "up to 1 outside the federation and up to" in chart["description"]


def test_the_dossier_the_registry_and_a_comparison_name_the_federation_for_one_group():
    plan = one_group({"a": [1, 2, 1, 1], "b": [1, 3]})
    assert "against the observer outside the federation" in questions_of(plan, Answers())[1].answer
    details = registry_entry(plan, Answers())["deployment"]["privacy_loss"]["privacy_parameters_details"]
    assert "the first of these, against anyone outside the federation" in details
    compared = observers_in_words("region", aggregation="masked", colluders=0)
    assert "above is then an observer of that sum outside the federation" in compared


def test_a_policy_names_the_federation_where_a_plan_masks_one_group():
    plan = one_group({"a": [1] * 12, "b": [1]}, allocation="inverse-size")
    with pytest.raises(
        fulcrum.PolicyError, check=coded("policy.epsilon-exceeded", largest=0.9, where="outside the federation")
    ):
        Policy(largest_epsilon_above=0.9, largest_epsilon_inside=9.0).check(plan, "a-1")
    with pytest.raises(
        fulcrum.PolicyError, check=coded("policy.epsilon-exceeded", where="inside the federation", epsilon=4.426)
    ):
        Policy(largest_epsilon_above=1.0, largest_epsilon_inside=4.0).check(plan, "a-1")


@pytest.mark.parametrize(("tier", "whose"), [("federation", "each"), ("region", "the")])
def test_an_audit_says_whose_silos_help_the_server(tier, whose):
    finding = dict.fromkeys(Finding.__struct_fields__) | {"observer": "inside", "tier": tier}
    audit = dict.fromkeys(Audit.__struct_fields__) | {"aggregation": "masked", "findings": [Finding(**finding)]}
    found = Audit(**audit)
    assert observer_words(found)["inside"] == f"the server together with silos of {whose} region"


def test_the_words_of_one_group_that_follows_earlier_plans_reach_over_all_of_them():
    plan = one_group({"a": [1, 2], "b": [1]})
    past = {tier: np.full(3, 0.001) for tier in ("region", "silo")}
    later = make_plan(plan.federation, plan.target, Execution(), Past(spent=past))
    assert (
        "anyone outside the federation, in this plan and all before, who sees the global sum"
        in fulcrum.guarantee_of(later).statement
    )
    assert any(
        "no silo of the federation, in any plan so far, " in line for line in fulcrum.guarantee_of(later).assumptions
    )


def test_no_silo_helps_an_observer_of_any_sum_that_holds_its_updates():
    """With a target on an outer tier, a silo of another region is in the sum and knows its own noise."""
    federation = fulcrum.Federation.from_sizes({"a": [1], "b": [1]}, outer={"country": {"all": ["a", "b"]}})
    plan = fulcrum.plan(federation, rounds=10, epsilon={"country": 1.0})
    assert plan.epsilon("country", colluders=1).max() > 1.4
    said = "no silo helps an observer of a sum that holds its updates, is one, or leaves out its noise"
    assert any(line.startswith(said) for line in fulcrum.guarantee_of(plan).assumptions)
