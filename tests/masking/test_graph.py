"""Who shares masks with whom: enough holders left, no member uncovered, the rest in one piece."""

import itertools
import math
import random

import pytest
from groups import names, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fulcrum.core.masking.harary_graph import COMPLETE, FAILURE, HararyGraph, _tail, neighbour_count
from fulcrum.core.masking.masking_thresholds import threshold_for, tolerates
from fulcrum.errors import ParameterError


def in_one_piece(circle, left):
    """Whether members hang together by the edges among themselves."""
    left = set(left)
    reached, waiting = set(), {min(left)}
    while waiting:
        member = waiting.pop()
        reached.add(member)
        waiting |= (set(circle.neighbours(member)) & left) - reached
    return reached == left


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 10, COMPLETE])
def test_small_groups_share_masks_with_everybody(size):
    count = neighbour_count(size, colluders=min(1, size - 1), dropouts=0)
    circle = HararyGraph(names(size), b"seed", count)
    for member in names(size):
        assert circle.neighbours(member) == tuple(silo for silo in names(size) if silo != member)


@settings(max_examples=80, deadline=None)
@given(size=st.integers(1, 300), colluders=st.integers(0, 40), dropouts=st.integers(0, 40))
def test_thresholds_are_above_two_thirds_and_hold_out_against_colluders_and_dropouts(size, colluders, dropouts):
    colluders, dropouts = min(colluders, size - 1), min(dropouts, size - 1)
    if not tolerates(size, colluders=colluders, dropouts=dropouts):
        told = refusal(neighbour_count, size, colluders=colluders, dropouts=dropouts, kind=ParameterError)
        assert "more than two thirds must be left" in told
        return
    count = neighbour_count(size, colluders=colluders, dropouts=dropouts)
    holders = count + 1
    threshold = threshold_for(holders, colluders=colluders, dropouts=dropouts)
    assert 3 * threshold > 2 * holders
    assert 2 * threshold > holders + colluders
    assert threshold > colluders + dropouts or threshold == holders
    assert threshold <= holders - dropouts
    assert count == size - 1 or count > colluders + dropouts


def test_a_group_does_without_a_third_of_its_silos_and_not_one_more():
    for dropouts in range(1, 30):
        assert tolerates(3 * dropouts + 1, colluders=1, dropouts=dropouts)
        assert not tolerates(3 * dropouts, colluders=1, dropouts=dropouts)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_whoever_colludes_or_drops_out_the_others_hang_together(data):
    size = data.draw(st.integers(65, 130))
    colluders, dropouts = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 6))
    count = neighbour_count(size, colluders=colluders, dropouts=dropouts)
    circle = HararyGraph(names(size), data.draw(st.binary(min_size=4, max_size=4)), count)
    start = data.draw(st.integers(0, size - 1))
    order = sorted(names(size), key=lambda silo: circle.point(names(size)[start], silo))
    side_by_side = [order[place % size] for place in range(1, 1 + colluders + dropouts)]  # the worst that can be taken
    assert in_one_piece(circle, set(names(size)) - set(side_by_side))
    taken = data.draw(st.permutations(names(size)))[: colluders + dropouts]
    assert in_one_piece(circle, set(names(size)) - set(taken))


def test_a_circle_falls_apart_where_its_neighbours_are_taken_away():
    """That the search for pieces sees one: k members, k/2 side by side in each of two places."""
    circle = HararyGraph(names(40), b"seed", 6)
    order = sorted(names(40), key=lambda silo: circle.point("silo-000", silo))
    taken = {*order[3:6], *order[20:23]}
    assert not in_one_piece(circle, set(order) - taken)
    assert in_one_piece(circle, set(order) - set(sorted(taken)[:5]))


def test_edges_go_both_ways_and_points_of_holders_differ():
    for size, count in ((90, 36), (90, 89), (7, 6), (71, 20)):
        circle = HararyGraph(names(size), b"seed", count)
        for member in names(size):
            near = circle.neighbours(member)
            assert len(near) == count
            assert all(member in circle.neighbours(other) for other in near)
            points = [circle.point(member, holder) for holder in circle.holders(member)]
            assert len(set(points)) == count + 1
            assert min(points) == 1


def test_the_order_on_the_circle_follows_from_the_seed_alone():
    one, same, other = (
        HararyGraph(order, seed, 4) for order, seed in (("abcdefgh", b"1"), ("hgfedcba", b"1"), ("abcdefgh", b"2"))
    )
    assert all(one.neighbours(member) == same.neighbours(member) for member in "abcdefgh")
    assert any(one.neighbours(member) != other.neighbours(member) for member in "abcdefgh")
    counts = dict.fromkeys(itertools.permutations("abc"), 0)
    for seed in range(6000):
        circle = HararyGraph("abc", seed.to_bytes(4, "big"), 2)
        counts[tuple(sorted("abc", key=lambda member: circle._place[member]))] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


@pytest.mark.parametrize("size", [96, 200, 500, 1000])
def test_a_tenth_beyond_the_plan_fails_with_a_chance_of_at_most_2_to_the_minus_40(size):
    """The same tails by another library; and that two neighbours fewer would be too few."""
    assert FAILURE == 2.0**-40
    limits = {"colluders": 1, "dropouts": 2}
    count = neighbour_count(size, **limits)

    def failure(count):
        holders = count + 1
        threshold = threshold_for(holders, **limits)
        gone = math.ceil(size / 10)
        near = stats.hypergeom(size - 1, gone, count)
        in_two = size**2 * stats.hypergeom(size, 2 * gone, count // 2).pmf(count // 2)
        return size * near.sf(2 * threshold - holders - 1) + size * near.sf(holders - threshold) + in_two

    assert failure(count) <= FAILURE * (1 + 1e-6)
    assert failure(count - 2) > FAILURE


def test_tails_are_those_that_random_draws_have():
    rng = random.Random(5)
    members, gone, drawn, least = 30, 6, 10, 4
    hits = sum(sum(member < gone for member in rng.sample(range(members), drawn)) >= least for _ in range(40_000))
    chance = float(_tail(members, gone, drawn, least))
    assert abs(hits / 40_000 - chance) < 5 * math.sqrt(chance / 40_000)
    assert abs(hits / 40_000 - 1.5 * chance) > 5 * math.sqrt(chance / 40_000)
