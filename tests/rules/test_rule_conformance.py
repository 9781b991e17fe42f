"""Every registered server rule keeps to the terms of `ServerRule`, whatever it does with the sums."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import fulcrum
from fulcrum.core.choices import SERVER_NAME
from fulcrum.core.messages.layout import Layout
from fulcrum.planning.inputs.server_settings import server_rule_of
from fulcrum.rules.rule_registry import known_rules, rule_named
from fulcrum.rules.server_rule import RESERVED, RoundSums
from fulcrum.server.checkpoint import Checkpoint, Standing, read_checkpoint

ROWS, CLASSES, ROUNDS = 8, 2, 4
SIZE = ROWS * CLASSES

every_rule = pytest.mark.parametrize("name", known_rules())


def plan_of(name, **options):
    settings = {"rounds": ROUNDS, "epsilon": 1.0, "parameters": SIZE, "recipe": "joint", "server": name}
    return fulcrum.plan("isic-paper", **(settings | options))


def rounds_of(plan, *, absent=(), seed=0):
    """Sums of some rounds, as regions that agree and add the plan's noise would send them; `absent` are (round, region)."""
    stream, facts = np.random.default_rng(seed), np.sqrt(plan.node_noise("region"))
    direction = stream.normal(size=SIZE) / np.sqrt(SIZE)
    for number in range(ROUNDS):
        sums = 0.2 * direction * np.ones((len(facts), 1)) + facts[:, None] * stream.normal(size=(len(facts), SIZE))
        present = np.array([(number, region) not in absent for region in range(len(facts))])
        yield sums * present[:, None], present


def told(rule, sums, present, **options):
    values = sums if rule.reads_regions else sums.sum(axis=0)[None]
    return RoundSums(values=values, present=present, classes=CLASSES, **options)


def states_of(rule, rounds, *, start=None):
    """The state before the first round, and after each."""
    states = [rule.begin(np.full(SIZE, 0.1) if start is None else start)]
    for sums, present in rounds:
        states.append(rule.step(states[-1], told(rule, sums, present))[0])
    return states


def bits(state):
    parts = [state.model, *(state.arrays[name] for name in sorted(state.arrays))]
    return b"".join(part.tobytes() for part in parts) + msgspec.json.encode(state.numbers, order="sorted")


@every_rule
def test_a_rule_has_a_name_that_plan_files_carry_and_says_what_it_does(name):
    rule = rule_named(name)
    assert rule.name == name
    assert re.search(SERVER_NAME, name)
    assert rule.clause
    assert rule.adds_up == (name == "sum") == (rule.proviso == "")
    assert "{" not in (rule.sentences + rule.proviso).format(inner="region")


@every_rule
def test_model_and_state_keep_their_shapes_and_stay_finite(name):
    rule = plan_of(name).server_rule
    first, *after = states_of(rule, rounds_of(plan_of(name)))
    assert np.array_equal(first.model, np.full(SIZE, 0.1))
    for state in (first, *after):
        assert state.model.shape == (SIZE,)
        assert {key: array.shape for key, array in state.arrays.items()} == {
            key: array.shape for key, array in first.arrays.items()
        }
        assert all(array.dtype == np.float64 for array in (state.model, *state.arrays.values()))
        assert set(state.numbers) == set(first.numbers)
        assert state.finite
        assert rule.can_be(state)
    assert not np.array_equal(after[-1].model, first.model)
    assert not RESERVED & {*first.arrays, *first.numbers}
    assert set(rule.reused) <= set(first.arrays)
    if rule.adds_up:
        assert not first.arrays
        assert not first.numbers


@every_rule
def test_sums_of_any_layout_in_memory_and_integers_times_a_unit_mean_the_same(name):
    plan, unit = plan_of(name), 2.0**-20
    rule = plan.server_rule
    whole = [(np.rint(sums / unit).astype(np.int64), present) for sums, present in rounds_of(plan)]
    scaled, integers = rule.begin(np.zeros(SIZE)), rule.begin(np.zeros(SIZE))
    for sums, present in whole:
        scaled, _ = rule.step(scaled, told(rule, sums * unit, present))
        integers, _ = rule.step(integers, told(rule, sums, present, unit=unit))
    assert integers.model == pytest.approx(scaled.model, rel=1e-9, abs=1e-12)


@every_rule
def test_the_same_plan_and_sums_give_the_same_bits_and_nothing_given_is_written_to(name):
    plan = plan_of(name)
    rounds = list(rounds_of(plan))
    for sums, present in rounds:
        sums.flags.writeable = present.flags.writeable = False
    start = np.full(SIZE, 0.1)
    start.flags.writeable = False
    first = states_of(plan.server_rule, rounds, start=start)
    before = [bits(state) for state in first]
    again = states_of(server_rule_of(plan_of(name)), rounds, start=start)
    assert [bits(state) for state in again] == before == [bits(state) for state in first]


@every_rule
def test_memory_that_is_handed_back_changes_no_bit(name):
    plan = plan_of(name)
    rule, rounds = plan.server_rule, list(rounds_of(plan))
    states = states_of(rule, rounds)
    for before, after, (sums, present) in zip(states, states[1:], rounds, strict=False):
        spare = {key: np.full_like(before.arrays[key], np.nan) for key in rule.reused}
        assert bits(rule.step(before, told(rule, sums, present, spare=spare))[0]) == bits(after)


@every_rule
def test_a_state_goes_to_a_checkpoint_and_back_without_losing_a_bit(name, tmp_path):
    plan = fulcrum.verified_plan(plan_of(name))
    rule, rounds = server_rule_of(plan), list(rounds_of(plan_of(name)))
    whole = states_of(rule, rounds)
    layout = Layout(names=("head",), shapes=((ROWS, CLASSES),))
    state = whole[0]
    for number, (sums, present) in enumerate(rounds, 1):
        history = [
            {
                "round": one,
                "summed": list(plan.federation.innermost.nodes),
                "members": {},
                "withheld": {},
                "missing": [],
            }
            for one in range(1, number)
        ]
        kept = None if rule.adds_up else {"classes": CLASSES}
        standing = Standing(plan_digest=plan.digest, round_number=number, layout=layout, history=history, pooling=kept)
        Checkpoint(standing=standing, state=state).write(tmp_path)
        read = read_checkpoint(tmp_path, plan).state
        assert bits(read) == bits(state)
        state, _ = server_rule_of(plan).step(read, told(rule, sums, present))
        assert bits(state) == bits(whole[number])


@every_rule
def test_an_absent_region_changes_nothing_by_what_stands_in_its_place(name):
    """Zeros of any sign, and the weight of a region that is not there, are not read."""
    plan, absent = plan_of(name), {(1, 0), (2, 0), (2, 3)}
    rule = plan.server_rule
    one, other = rule.begin(np.zeros(SIZE)), rule.begin(np.zeros(SIZE))
    weight, variance = (
        np.bincount(plan.federation.innermost.parent_of, weights=plan.weights),
        plan.node_noise("region"),
    )
    for sums, present in rounds_of(plan, absent=absent):
        one, _ = rule.step(one, told(rule, sums, present, weight=weight, variance=variance))
        changed = np.where(present[:, None], sums, -0.0)
        less = {"weight": np.where(present, weight, weight / 3), "variance": np.where(present, variance, variance * 5)}
        other, _ = rule.step(other, told(rule, changed, present, **less))
        assert np.array_equal(one.model, other.model)
        assert one.finite


@every_rule
def test_rounds_without_any_sum_leave_a_finite_model_and_nothing_at_all_leaves_the_start(name):
    plan = plan_of(name)
    rule, nobody = plan.server_rule, np.zeros(len(plan.federation.innermost.nodes), dtype=bool)
    nothing = np.zeros((len(nobody), SIZE))
    state = rule.begin(np.full(SIZE, 0.1))
    for _ in range(2):
        state, _ = rule.step(state, told(rule, nothing, nobody))
        assert np.array_equal(state.model, np.full(SIZE, 0.1))
    for sums, present in rounds_of(plan):
        state, _ = rule.step(state, told(rule, sums, present))
        state, _ = rule.step(state, told(rule, nothing, nobody))
    assert state.finite
    assert rule.can_be(state)


@every_rule
def test_figures_of_a_plan_follow_from_the_rule(name):
    plan = plan_of(name)
    assert plan.influence.sum() == pytest.approx(1, rel=1e-12)
    assert plan.server_rule.noise_factor() >= 1
    assert 0 < plan.model_noise < np.inf
    kept = fulcrum.verify(plan)
    assert all(check.holds for check in kept), [check for check in kept if not check.holds]


_PROCESS = """
import hashlib, sys
sys.path.insert(0, "tests/rules")
import test_rule_conformance as c
plan = c.plan_of(sys.argv[1])
states = c.states_of(plan.server_rule, c.rounds_of(plan, absent={(1, 0)}))
print(hashlib.sha256(b"".join(map(c.bits, states))).hexdigest())
"""


@every_rule
def test_another_process_comes_to_the_same_bits(name):
    """Nothing counts but plan and sums: no clock, no hash seed, no environment."""
    plan = plan_of(name)
    states = states_of(plan.server_rule, rounds_of(plan, absent={(1, 0)}))
    told_there = subprocess.run(
        [sys.executable, "-c", _PROCESS, name],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert told_there.stdout.strip() == hashlib.sha256(b"".join(map(bits, states))).hexdigest()
