"""The report of a plan for masked sums: whom the observer inside is."""

import re

import fulcrum
from fulcrum.views.report import report


def words_of(**options):
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0, **options)
    return " ".join(re.sub(r"<[^>]+>", " ", report(made)).split())


def test_a_report_says_that_nobody_sees_single_updates_where_sums_are_masked():
    masked, trusted = words_of(aggregation="masked", colluders=2), words_of()
    inside = "inside is the server together with 2 of the silos of a region: sums are masked, and nobody sees single"
    assert inside in masked
    assert "The server and its helpers" in masked
    assert "sums are masked, so both observers meet the noise of a sum" in masked
    assert "curious" not in masked
    assert "sees single updates: a curious aggregator" in trusted
    assert "masked" not in trusted
