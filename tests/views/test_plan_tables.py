"""What tables of plans and comparisons say."""

import pytest

import fulcrum
from fulcrum.views.terminal.plan_tables import training_sentence

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")


def test_what_was_learned_is_one_sentence_with_the_reference():
    rows = fulcrum.compare_trained("mild", "digits", seeds=2, rounds=2, epsilon=5.0)
    right = {row.allocation: f"{100 * row.accuracy:.0f}" for row in rows}
    assert training_sentence(rows) == (
        f"At the same target, of 100 test records one multiplier for all gets {right['uniform']} right, the paper's optimum "
        f"{right['optimal']}, noise, weights and server chosen together {right['joint']}, training without privacy "
        f"{100 * rows[0].reference:.0f}."
    )
    assert training_sentence(rows[:1]).startswith("At the same target, of 100 test records the paper's optimum")
