"""The report of a plan for masked sums: whom the observer inside is."""

import re
from html import unescape

import pytest

import fulcrum
from fulcrum.planning.content.advice import advice_on
from fulcrum.views.report.dossier import Answers, questions_of
from fulcrum.views.report.html_report import report
from fulcrum.views.terminal.plan_tables import observers_in_words
from fulcrum.words.verdict import verdict


def words_of(epsilon=1.0, federation="severe", **options):
    made = fulcrum.plan(federation, rounds=10, epsilon=epsilon, **options)
    return " ".join(re.sub(r"<[^>]+>", " ", report(made)).split())


def without_spaces(text):
    return "".join(unescape(text).split())


def test_a_report_says_that_the_server_gets_sums_alone_where_they_are_masked():
    masked, trusted = words_of(aggregation="masked", colluders=2), words_of()
    inside = "inside is the server together with 2 of the silos of a region: sums are masked, and the server gets sums"
    assert inside in masked
    assert "The server and its helpers" in masked
    assert "sums are masked, so both observers face the noise of a sum" in masked
    assert "curious" not in masked
    assert "is a curious aggregator, which sees single updates" in trusted
    assert "sums are masked" not in trusted
    assert "gets sums alone" not in trusted


def test_a_report_of_trusted_sums_speaks_of_masks_in_advice_alone():
    """Advice may offer masks; no other word of the report may let a reader think that sums are masked."""
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0)
    offered = [piece.text for piece in advice_on(made) if "mask" in piece.text.lower()]
    assert all(
        "Plan with --aggregation masked" in text or "mask the sums with --aggregation" in text for text in offered
    )
    rest = without_spaces(re.sub(r"<[^>]+>", "", report(made)))
    for text in offered:
        assert without_spaces(text) in rest
        rest = rest.replace(without_spaces(text), "")
    assert "mask" not in rest.lower()


def test_no_report_says_that_nobody_sees_single_updates():
    """The consortium has regions of one silo, whose sum is that silo's update."""
    told = words_of(federation="consortium", aggregation="masked")
    assert (
        "sums are masked, and the server gets sums alone; the sum of a single silo is the release of that silo" in told
    )
    assert "nobody sees single" not in told
    assert "no one sees single" not in told


@pytest.mark.parametrize(("epsilon", "whose"), [(1.0, "a"), ({"federation": 1.0}, "each")])
def test_a_report_says_whose_silos_help_the_server_and_that_they_are_the_colluders(epsilon, whose):
    told = words_of(epsilon=epsilon, aggregation="masked", colluders=2)
    assert f"against the server together with 2 of the silos of {whose} region the worst epsilon is 1. The plan" in told
    assert (
        "of each region collude with the observer, or are observers themselves, those that help the server among"
        in told
    )


def test_a_report_of_one_masked_group_names_the_global_sum_and_silos_of_each_region():
    told = words_of(epsilon={"federation": 1.0}, aggregation="masked")
    assert "sees the global sum alone" in told
    assert "is the server together with 1 of the silos of each region: sums are masked" in told
    made = fulcrum.plan("severe", rounds=10, epsilon={"federation": 1.0}, aggregation="masked")
    assert "who is the server with 1 of the silos of each region" in verdict(made).inside.sentence


@pytest.mark.parametrize(
    ("epsilon", "above", "inside"),
    [
        (1.0, "who sees the sums of its region", "the server together with 2 silos of its region,"),
        (
            {"federation": 1.0},
            "who sees the global sum, the one sum",
            "the server together with 2 silos of each region,",
        ),
    ],
)
def test_a_dossier_says_whom_epsilon_is_against_where_sums_are_masked(epsilon, above, inside):
    made = fulcrum.plan("severe", rounds=10, epsilon=epsilon, aggregation="masked", colluders=2)
    answer = questions_of(made, Answers())[0].answer
    assert above in answer
    assert inside in answer
    assert answer.startswith(fulcrum.guarantee_of(made).promise)
    assert "own updates" not in answer
    trusted = fulcrum.plan("severe", rounds=10, epsilon=1.0)
    assert "against whoever sees its own updates" in questions_of(trusted, Answers())[0].answer


def test_a_comparison_says_who_is_inside_by_how_sums_are_made():
    trusted = observers_in_words("region", aggregation="trusted", colluders=2)
    assert trusted == "Above: an observer of the sums of a region. Inside: an observer of single updates."
    masked = observers_in_words("region", aggregation="masked", colluders=0)
    assert "Inside: the server together with 1 silo of the region" in masked
    assert "together with 3 silos" in observers_in_words("region", aggregation="masked", colluders=3)
    assert "who sees one update" not in masked
