"""Masked sums are the sums of what was masked, bit for bit, whoever drops out and when; or they are withheld."""

import numpy as np
import pytest
from groups import Round, inputs_of, names, plain_sum, plan_of, region
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.aggregation.masked_group import STAGES
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.messages.membership import senders_of
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld

INPUT = STAGES.index("input")


def check_outcome(group, inputs, gone, outcome):
    """A member is in the sum if it sent its input; the plan's number may be missing, and as many more may go after."""
    members = [silo for silo in group.regions if gone.get(silo, len(STAGES)) > INPUT]
    if len(group.regions) - len(members) > group.dropouts:
        assert isinstance(outcome, Withheld)
        assert "the plan does without" in outcome.reason
    elif len(gone) <= group.dropouts:
        assert isinstance(outcome, RegionalSum)
    if isinstance(outcome, RegionalSum):
        assert outcome.members == tuple(members)
        assert outcome.values.tolist() == plain_sum(inputs, members)
        assert outcome.step == group.step


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 20])
def test_a_masked_sum_is_the_sum_bit_for_bit(count):
    group = region(count)
    inputs = inputs_of(group, seed=count)
    outcome = Round(group, inputs).run()
    check_outcome(group, inputs, {}, outcome)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_silos_that_drop_out_at_any_stage_leave_the_sum_of_the_others_or_none(data):
    count = data.draw(st.integers(4, 10))
    group = region(count, dropouts=(count - 1) // 3)
    leaving = data.draw(st.lists(st.sampled_from(names(count)), unique=True, max_size=group.dropouts + 1))
    gone = {silo: data.draw(st.integers(0, len(STAGES) - 1)) for silo in leaving}
    inputs = inputs_of(group, seed=data.draw(st.integers(0, 2**32)))
    outcome = Round(group, inputs).run(gone)
    check_outcome(group, inputs, gone, outcome)


@pytest.mark.parametrize("stage", range(len(STAGES)))
def test_the_plans_number_of_dropouts_at_one_stage_leaves_the_round_valid(stage):
    group = region(7, dropouts=2)
    inputs = inputs_of(group, seed=stage)
    gone = {"silo-001": stage, "silo-005": stage}
    outcome = Round(group, inputs).run(gone)
    assert isinstance(outcome, RegionalSum)
    check_outcome(group, inputs, gone, outcome)


@pytest.mark.parametrize("stage", range(INPUT + 1))
def test_one_more_than_the_plans_number_of_dropouts_withholds_the_round(stage):
    group = region(7, dropouts=2)
    gone = {"silo-001": 0, "silo-003": stage, "silo-005": stage}
    outcome = Round(group, inputs_of(group, seed=1)).run(gone)
    assert isinstance(outcome, Withheld)
    assert outcome.missing == tuple(sorted(gone))
    assert outcome.reason == "3 of 7 silos of region 'north' are missing, the plan does without 2"


def test_a_large_group_is_summed_over_a_sparse_graph_with_dropouts_at_every_stage():
    group = region(90, dropouts=5, colluders=3)
    assert group.neighbours < 50
    inputs = inputs_of(group, seed=9)
    gone = {f"silo-{number:03d}": stage for stage, number in enumerate((7, 8, 9, 40, 89))}
    outcome = Round(group, inputs).run(gone)
    assert isinstance(outcome, RegionalSum)
    check_outcome(group, inputs, gone, outcome)


@pytest.mark.parametrize(("heaviest", "bits"), [(100, 32), (1_000_000, 64)])
@pytest.mark.parametrize("side", [-1, 1])
def test_integers_of_both_widths_reach_their_bounds_without_wrapping(heaviest, bits, side):
    sizes = dict.fromkeys(names(5), 100) | {"silo-004": heaviest}
    group = group_of(plan_of({"north": sizes}, dropouts=1), "north")
    assert group.bits == bits
    inputs = {silo: np.full(40, side * int(most), dtype=np.int64) for silo, most in group.largest.items()}
    gone = {"silo-002": INPUT}
    check_outcome(group, inputs, gone, Round(group, inputs).run(gone))


def test_a_whole_federation_is_one_group_where_the_plan_promises_for_the_federation_alone():
    sizes = {"north": dict.fromkeys(names(9)[:5], 100), "south": dict.fromkeys(names(9)[5:], 200)}
    made = plan_of(sizes, epsilon={"federation": 1.0}, dropouts=1)
    assert senders_of(made) == ("federation",)
    assert senders_of(plan_of(sizes)) == ("north", "south")
    group = group_of(made, "federation")
    inputs = inputs_of(group, seed=3)
    gone = {"silo-000": 2, "silo-008": 1}
    outcome = Round(group, inputs).run(gone)
    assert isinstance(outcome, RegionalSum)
    assert outcome.members == tuple(names(9)[1:8])
    assert outcome.values.tolist() == plain_sum(inputs, outcome.members)


def test_silos_on_disk_give_the_same_sum_and_answer_again_what_they_answered(tmp_path):
    group = region(5, dropouts=1)
    inputs = inputs_of(group, seed=4)
    one = Round(group, inputs, tmp_path)
    requests = one.server.requests()
    while isinstance(requests, dict):
        for silo, request in requests.items():
            if (silo, one.server.stage) != ("silo-004", "input"):
                answer = one.answer(silo, request)
                one.close()  # every message may start a process
                assert one.answer(silo, request) == answer
                one.server.take(answer)
        requests = one.server.proceed()
    one.close()
    assert requests.values.tolist() == plain_sum(inputs, names(5)[:4])
