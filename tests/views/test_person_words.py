"""Plans that protect persons, in every view: the person is named, all figures are stated, and no sentence is false."""

import json
import math
import re
from html import unescape

import numpy as np
import pytest
from scipy.special import ndtr

import fulcrum
from fulcrum.cli import command_line as cli
from fulcrum.planning.comparisons.weight_tradeoff import weight_choices
from fulcrum.views.html import further_claims
from fulcrum.views.report.deployments_registry import check_shape, registry_entry
from fulcrum.views.report.dossier import Answers, questions_of
from fulcrum.views.report.html_report import report
from fulcrum.views.terminal.silo_columns import silo_table
from fulcrum.views.tracking import run_description
from fulcrum.words.person_words import conventions_words, guess_words, meaning_for_one
from fulcrum.words.recipe_words import recipe_words
from fulcrum.words.verdict import verdict

FALSE = (
    "whole dataset",
    "two equally likely datasets",
    "the first dataset",
    "another dataset",
    "twice",
    "Updates are clipped",
    "updates are clipped",
    "class concentration",
    "one over the number of silos",
    "datasets of silos are disjoint",
)
"""Sentences on silos that no view of a plan for persons may have."""

PLANS = {
    "replaced": {"unit": "person", "unit_name": "patient"},
    "added": {"unit": "person", "unit_name": "patient", "neighbours": "add-remove", "silos_per_person": 2},
    "deployed": {
        "unit": "person",
        "unit_name": "patient",
        "purpose": "deployment",
        "parameters": 40,
        "recipe": "joint",
    },
    "records": {"unit": "record"},
    "masked": {"unit": "person", "unit_name": "patient", "aggregation": "masked"},
    "one group": {"unit": "person", "aggregation": "masked", "epsilon": {"federation": 1.0}},
    "both units": {"unit": "person", "unit_name": "patient", "silo_epsilon": 9.0, "silo_clip": 50.0},
}


def plan_of(kind, federation="consortium", **more):
    return fulcrum.plan(federation, rounds=10, **({"epsilon": 1.0} | PLANS[kind] | more))


def text_of(page):
    """Returns the words of a page as a reader sees them."""
    bare = re.sub(r"<script.*?</script>|<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", bare)).replace("’", "'").split())


@pytest.mark.parametrize(
    ("unit", "guess"),
    [
        ({"unit": "silo"}, "which of two equally likely datasets a silo holds"),
        (PLANS["replaced"], "which of two equally likely patients' records a silo holds"),
        (PLANS["added"], "whether up to 2 silos hold one patient's records (as likely as not)"),
        (PLANS["records"], "which of two equally likely records a silo holds"),
        ({"unit": "record", "neighbours": "add-remove"}, "whether a silo holds one record (as likely as not)"),
    ],
)
def test_the_guess_of_an_observer_is_about_the_unit(unit, guess):
    made = fulcrum.plan("mild", rounds=10, epsilon=1.0, **unit)
    assert guess_words(made.unit) == guess
    assert f"guesses {guess} is right" in verdict(made).sentence
    assert all(f"guesses {guess} and is right" in observer.sentence for observer in verdict(made).observers)


@pytest.mark.parametrize(("neighbours", "kappa"), [("replace", 2), ("add-remove", 1)])
def test_the_rate_of_right_guesses_is_that_of_one_person(neighbours, kappa):
    made = plan_of("replaced", neighbours=neighbours)
    smallest = np.sqrt(made.node_noise("region")[made.federation.innermost.parent_of]) / made.federation.weights
    mu = kappa * math.sqrt(10) / smallest.min()
    assert verdict(made).above.right == pytest.approx(ndtr(mu / 2), rel=1e-9)


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
def test_both_conventions_are_stated_with_their_figures(neighbours):
    made = plan_of("replaced", neighbours=neighbours)
    s = fulcrum.noise_for(1.0, rounds=10, delta=1e-5)  # of the unit silo, with sensitivity 2C
    other = fulcrum.epsilon_of(2 * s if neighbours == "replace" else s / 2, rounds=10, delta=1e-5)
    own, stated = (float(figure) for figure in re.findall(r"epsilon ([\d.]+)", conventions_words(made)))
    assert own == 1.0
    assert other <= stated <= 1.001 * other  # rounded up to four digits
    first, second = ("replaced by another", "added or removed")[:: 1 if neighbours == "replace" else -1]
    assert conventions_words(made).startswith(f"A patient who is {first} has epsilon 1 above")
    assert conventions_words(made).index(second) > 0


def test_what_it_means_for_one_patient_has_the_figures_of_the_plan():
    protected, odds, _, two, whole, general = meaning_for_one(plan_of("replaced"))
    assert protected.startswith("Protected are all records of one patient in one silo")
    assert "no conclusion that is more than 2.72 times as likely with one patient's records as with another" in odds
    assert "up to a probability of 1e-05" in odds
    assert "in two silos has epsilon 2.155 above" in two  # two shifts in one sum
    assert whole.startswith("A silo as a whole is not protected: epsilon 1,665 above the regions.")
    assert "patients in general" in general
    assert meaning_for_one(fulcrum.plan("mild", rounds=10, epsilon=1.0)) == []


def test_a_person_in_two_silos_is_provided_for_or_named():
    assert "up to 2 silos" in meaning_for_one(plan_of("added"))[3]
    assert "A record that two silos hold" in meaning_for_one(plan_of("records"))[3]
    assert not any("two silos" in sentence for sentence in further_claims(plan_of("added")))
    assert any("<strong>epsilon 2.155</strong> against" in sentence for sentence in further_claims(plan_of("replaced")))
    assert further_claims(fulcrum.plan("mild", rounds=10, epsilon=1.0)) == []


def test_a_second_target_for_silos_is_stated_as_a_promise():
    sentence = meaning_for_one(plan_of("both units"))[4]
    assert sentence == "A silo as a whole has epsilon 9 above the regions, all its data replaced."


@pytest.mark.parametrize("kind", PLANS)
def test_no_view_of_a_plan_for_persons_has_a_sentence_on_silos_datasets(kind):
    made = plan_of(kind)
    page = text_of(report(made, answers=Answers()))
    entry = registry_entry(made, Answers())
    check_shape(entry)
    for text in (page, json.dumps(entry), made.content().guarantee.statement, *recipe_words(made)):
        assert [words for words in FALSE if words in text] == []
    assert f"What this means for one {made.unit.noun}" in page
    assert conventions_words(made) in page
    assert "Information about a silo" not in page


@pytest.mark.parametrize(("kind", "sensitivity"), [("replaced", "2C"), ("added", "C"), ("deployed", "2.01C")])
def test_the_clip_is_of_one_person_and_the_sensitivity_is_that_of_the_unit(kind, sensitivity, capsys):
    made = plan_of(kind)
    page = text_of(report(made))
    assert "clip norm of one patient's gradient 1" in page
    assert f", sensitivity {sensitivity} critical" in page
    assert any(f"before its weight, by at most {sensitivity}" in words for words in recipe_words(made))
    assert cli.run(["plan", "mild", "--rounds", "10", "--epsilon", "1", "--unit", "person"]) == 0
    assert "of one person's gradient" in " ".join(capsys.readouterr().out.split())


def test_the_report_names_what_makes_the_guarantee_of_persons_false():
    page = text_of(report(plan_of("added")))
    for words in (
        "Batch normalisation, partial likelihoods, contrastive losses, mixup, matching, graphs",
        "Link records before training",
        "such as a mother and a newborn",
        "do not follow a patient who moves",
        "Scaling, imputation, vocabularies",
        "early stopping, the choice of a round, rules of eligibility, presence and timings",
        "must not be counted from the data",
        "one over the number of patients",
        "No patient is in more than 2 silos, over all rounds and all plans",
    ):
        assert words in page, words


@pytest.mark.parametrize(
    ("kind", "epsilon"), [("replaced", ""), ("added", ", and have the epsilon of replaced patients")]
)
def test_persons_with_a_record_in_common_share_an_identifier_and_the_epsilon_of_replaced_persons(kind, epsilon):
    made = plan_of(kind)
    [assumption] = [line for line in fulcrum.guarantee_of(made).assumptions if "under k identifiers" in line]
    assert assumption.endswith(f"patients with a record in common carry one identifier{epsilon}")
    assert f"such as a mother and a newborn, need one identifier{epsilon}." in text_of(report(made))


def test_a_plan_for_silos_speaks_of_silos_as_before():
    page = text_of(report(fulcrum.plan("consortium", rounds=10, epsilon=1.0)))
    assert "every silo's whole dataset has epsilon 1 against" in page
    assert "Replace one, sensitivity 2C" in page
    assert "Information about a silo" in page
    assert "What this means for one" not in page


def test_the_answers_to_nist_name_unit_neighbours_and_both_conventions():
    answers = {question.number: question for question in questions_of(plan_of("deployed"), Answers())}
    assert answers[4].answer.startswith("The unit is a patient's records in one silo. Neighbouring federations replace")
    assert "The gradient of one patient's records enters the sum of one silo once a round, clipped to norm 1" in (
        answers[4].answer
    )
    assert conventions_words(plan_of("deployed")) in answers[4].answer
    assert answers[5].answer.startswith("A silo as a whole is not protected")
    assert answers[5].unanswered
    assert "for any patient against the observer above the silo's region" in answers[2].answer
    assert "counts as zero for that patient alone" in answers[13].answer


def test_the_registry_entry_names_the_person():
    entry = registry_entry(plan_of("added"), Answers())["deployment"]
    assert entry["privacy_loss"]["privacy_unit"] == "Person-level: a patient's records in up to 2 silos"
    assert entry["dp_variant"]["data_domain"] == (
        "The records of patients in 50 silos, no patient in more than 2 silos, with a declared number of patients each."
    )
    assert "declared number of patients" in entry["dp_variant"]["unprotected_quantities"]
    assert "A silo as a whole is not protected" in entry["dp_variant"]["unprotected_quantities"]


def test_sizes_are_numbers_of_persons(tmp_path):
    assert [column["heading"] for column in silo_table(plan_of("replaced"))["columns"]][2] == "patients"
    unsized = tmp_path / "unsized.csv"
    unsized.write_text("silo,region\na,north\nb,north\nc,north\n", encoding="utf-8")
    assert silo_table(plan_of("replaced", federation=unsized, persons_per_silo=40.0))["columns"][2]["values"] == [40]
    assert recipe_words(plan_of("replaced"))[0] == (
        "Every patient has the same weight, so the share of a silo is by its declared number of patients."
    )


def test_noise_at_other_weights_is_that_of_plans_with_those_weights():
    made = plan_of("replaced", federation="tcga-brca")
    choices = weight_choices(made, points=5)
    for rule, choice in ((0.0, choices[0]), (1.0, choices[-1])):
        other = plan_of("replaced", federation="tcga-brca", weights=rule)
        assert choice.noise == pytest.approx(other.noise_budget, rel=1e-9)
        assert choice.influence_ratio == pytest.approx(
            (other.node_influence("region") / made.node_influence("region")).min(), rel=1e-9
        )


def test_exposure_of_a_person_counts_equal_silos(capsys):
    assert cli.run(["exposure", "tcga-brca", "--unit", "person", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["unit"] == "person"
    assert all(node["effective_size"] == pytest.approx(node["silos"]) for node in shown["nodes"])
    assert sum(node["influence"] for node in shown["nodes"]) == pytest.approx(1)


def test_trackers_get_the_unit_and_all_its_epsilons():
    about = run_description(plan_of("replaced"))
    assert about["privacy_unit"] == "patient's records in one silo"
    assert about["neighbours"] == "replace"
    stated = plan_of("replaced").content().guarantee.statement
    for name in ("other_neighbours_above", "two_silos_above", "whole_silo_above"):
        assert f"epsilon {about[f'epsilon_{name}_worst']}" in stated
