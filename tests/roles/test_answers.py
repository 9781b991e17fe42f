"""A region's answers as bytes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from regional import refusal

from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld, regional_reply_from_bytes
from fulcrum.core.messages.release_message import Release


def total_of(values, step=0.5, **changed):
    shape = ((len(values),),)
    known = {"plan_digest": "p", "region": "north", "round_number": 1, "members": ("a", "b"), "step": step}
    layout = Layout(names=("x",), shapes=shape)
    return RegionalSum(**({"layout": layout, "values": np.array(values)} | known | changed))


def test_answers_come_back_as_they_were():
    for answer in (
        total_of([1, -(2**60)]),
        total_of([0.1, -0.0], step=None),
        Withheld(plan_digest="p", region="north", round_number=3, missing=("a",), reason="why"),
    ):
        again = regional_reply_from_bytes(answer.to_bytes())
        assert type(again) is type(answer)
        assert again.to_bytes() == answer.to_bytes()
    withheld = Withheld(plan_digest="p", region="north", round_number=3, missing=(), reason="why")
    assert regional_reply_from_bytes(withheld.to_bytes()) == withheld


@pytest.mark.parametrize(
    "wrong",
    [
        total_of([1], members=("b", "a")),
        total_of([1], members=("a", "a")),
        total_of([1], members=()),
        total_of([1], round_number=0),
        total_of([1], step=-1.0),
        total_of([1], step=math.inf),
        total_of([1], step=math.nan),
        total_of([math.nan], step=None),
        total_of([1], layout=Layout(names=("x",), shapes=((2,),))),
        total_of([1], layout=Layout(names=("x",), shapes=((-1, -1),))),
        total_of([1, 2], layout=Layout(names=("x", "x"), shapes=((1,), (1,)))),
        Withheld(plan_digest="p", region="north", round_number=0, missing=(), reason="why"),
        Withheld(plan_digest="p", region="north", round_number=1, missing=("b", "a"), reason="why"),
        Withheld(plan_digest="p", region="north", round_number=1, missing=(), reason="x" * 10_000),
        Withheld(plan_digest="p", region="north", round_number=1, missing=(), reason="why\x1b[2J"),
    ],
)
def test_answers_that_no_region_gives_are_refused(wrong):
    refusal(regional_reply_from_bytes, wrong.to_bytes())


@given(junk=st.binary(max_size=100))
def test_what_is_no_answer_is_refused(junk):
    refusal(regional_reply_from_bytes, junk)


def test_cut_and_lengthened_answers_are_refused():
    for answer in (
        total_of([1, 2]).to_bytes(),
        Withheld(plan_digest="p", region="north", round_number=3, missing=(), reason="why").to_bytes(),
    ):
        for size in range(len(answer)):
            refusal(regional_reply_from_bytes, answer[:size])
        refusal(regional_reply_from_bytes, answer + b"\0")
        refusal(regional_reply_from_bytes, answer + bytes(8))
    for nothing in (None, "text", 7):
        refusal(regional_reply_from_bytes, nothing)


def test_an_answer_is_not_a_release_nor_the_other_way_round(world):
    refusal(regional_reply_from_bytes, world.release("lille").to_bytes())
    refusal(Release.from_bytes, total_of([1]).to_bytes())
