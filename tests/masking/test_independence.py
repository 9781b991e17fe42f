"""What the server received tells nothing of a single update; a test that would notice if it did."""

import functools

import numpy as np
import pytest
from groups import Round, inputs_of, names, region
from scipy import stats

from fulcrum.aggregation.masked_group import MaskedGroup
from fulcrum.core.masking.masking_messages import INPUT, member_reply_from_bytes
from fulcrum.core.masking.masks import add_mask, derived_key

COUNT = 60_000
TAIL = 1e-9
"""The chance that an honest round is taken for a leak, for each of some 60 statistics."""


def dependence(update, received, bits):
    """The smallest p-value of tests that a vector is uniform, whatever the update is, byte by byte and bit by bit.

    Looked at are the vector itself and its difference from its neighbour; both must be uniform, and independent of the
    update's size and sign.
    """
    values = []
    classes = np.digitize(update, np.quantile(update, [0.25, 0.5, 0.75]))
    for looked_at in (received, received - np.roll(received, 1)):
        for shift in range(0, bits, 8):
            part = (looked_at >> looked_at.dtype.type(shift)).astype(np.uint8)
            values.append(stats.chisquare(np.bincount(part, minlength=256)).pvalue)
            table = np.array([np.bincount(part[classes == one] >> 4, minlength=16) for one in range(4)])
            met = table[:, table.any(axis=0)]
            values.append(stats.chi2_contingency(met).pvalue if met.shape[1] > 1 else 0.0)
    half = received.astype(np.float64) / 2.0**bits
    values.append(stats.pearsonr(update.astype(np.float64), half).pvalue)
    return min(values)


@functools.cache
def whole_round():
    """A round in which one silo's update is far from chance, and all that the server received."""
    group = region(6, dropouts=1, parameters=COUNT)
    inputs = inputs_of(group, seed=1)
    most = int(group.largest["silo-003"])
    inputs["silo-003"] = np.linspace(-most, most, COUNT).astype(np.int64)
    masked = Round(group, inputs)
    masked.run({"silo-001": 2})
    return group, inputs, masked


def received_from(silo):
    group, _, masked = whole_round()
    answers = [member_reply_from_bytes(data) for name, data in masked.seen if name == silo]
    bodies = [answer.body for answer in answers if answer.holds == INPUT]
    assert len(bodies) == 1
    return np.frombuffer(bodies[0], dtype=group.dtype)


def without_self_mask(silo):
    """The most that the server can take off a single input: its self-mask, once the sum is unmasked."""
    _, _, masked = whole_round()
    vector = received_from(silo).copy()
    seed = masked.server._secret(silo, "seeds")
    add_mask(vector, derived_key(seed, masked.session.info("self mask", silo)), negative=True)
    return vector


@pytest.mark.parametrize("look", [received_from, without_self_mask])
def test_what_the_server_received_is_independent_of_the_update(look):
    group, inputs, _ = whole_round()
    assert dependence(inputs["silo-003"], look("silo-003"), group.bits) > TAIL


def test_the_sum_is_all_that_the_server_can_take_the_masks_off():
    group, inputs, masked = whole_round()
    left = [without_self_mask(silo) for silo in names(6) if silo != "silo-001"]
    pairs = sum(left[1:], left[0].copy())
    assert isinstance(masked.server, MaskedGroup)
    plain = sum(inputs[silo] for silo in names(6) if silo != "silo-001").astype(group.dtype)
    assert not (pairs == plain).any()  # the masks that silo-001 shares with each of them are still there
    for part in range(1, 5):
        assert dependence(inputs["silo-003"], sum(left[2 : 2 + part], np.zeros_like(plain)), group.bits) > TAIL


LEAKS = {
    "one coordinate in fifty is not masked": lambda x, y: np.where(np.arange(len(x)) % 50 == 0, x, y),
    "the mask is 8 bits too narrow": lambda x, y: x + ((y - x) >> y.dtype.type(8)),
    "one number is added to every coordinate": lambda x, y: x + y[0],
    "the mask repeats after 500 coordinates": lambda x, y: x + np.tile((y - x)[:500], len(x) // 500),
    "the highest bit is the update's sign": lambda x, y: np.where(x > x.dtype.type(2**31), y | HIGH, y & ~HIGH),
    "nothing is masked": lambda x, y: x,
}
HIGH = np.uint32(2**31)


@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_noticed(leak):
    group, inputs, _ = whole_round()
    assert group.bits == 32
    update = inputs["silo-003"].astype(group.dtype)
    leaking = LEAKS[leak](update, received_from("silo-003"))
    assert dependence(inputs["silo-003"], leaking, group.bits) < TAIL


def test_two_rounds_of_one_update_share_no_mask():
    """A mask used twice would show the difference of two updates, and here that they are alike."""
    group, inputs, _ = whole_round()
    again = Round(group, inputs, number=2)
    again.run()
    second = [member_reply_from_bytes(data) for name, data in again.seen if name == "silo-003"]
    later = np.frombuffer(next(answer.body for answer in second if answer.holds == INPUT), dtype=group.dtype)
    assert dependence(inputs["silo-003"], later - received_from("silo-003"), group.bits) > TAIL
