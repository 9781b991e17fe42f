import contextlib
import dataclasses
import itertools
import json
import math
import os
import sqlite3
import stat
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import fulcrum
from fulcrum.errors import ExchangeError, FileInUseError, LedgerError, StorageError
from fulcrum.exchange.answer import RegionalSum, Withheld, answer_from_bytes
from fulcrum.exchange.layout import Layout
from fulcrum.exchange.release import Release
from fulcrum.exchange.sealing import Sealer
from fulcrum.ledger.ledger import Ledger
from fulcrum.noise.sources import SecureNoise, SeededNoise
from fulcrum.planning.plan_file import to_json
from fulcrum.planning.signing import new_key
from fulcrum.privacy.accounting import epsilon_of_shift
from fulcrum.privacy.exposure import remaining_noise
from fulcrum.roles.region import Region, RegionRound, norm_bounds
from fulcrum.roles.region_file import RegionFile, create_region_file
from fulcrum.roles.releasing import _lattice_release, release
from fulcrum.roles.terms import terms_of

SIZES = {"north": {"lille": 120, "metz": 80, "caen": 100}, "south": {"nice": 300}}
MEMBERS = ("caen", "lille", "metz")
PARAMETERS = 40
LAYOUT = Layout(names=("weight", "bias"), shapes=((2, 19), (2,)))
UPDATE = {"weight": np.full((2, 19), 0.5), "bias": np.zeros(2)}
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class World:
    def __init__(self, folder):
        self.folder = folder
        silos = [silo for members in SIZES.values() for silo in members]
        self.keys = {name: new_key(folder / name) for name in silos}
        self.keys |= {name: new_key(folder / name, "sealing") for name in SIZES}
        self.plan, self.tight = self.made(dropouts=1), self.made(dropouts=0)
        self.research = self.made(dropouts=1, purpose="research")
        self.sealers = {}

    def made(self, parameters=PARAMETERS, purpose="deployment", sizes=SIZES, **options):
        return fulcrum.plan(
            fulcrum.Federation.from_sizes(sizes),
            rounds=6,
            epsilon={"region": 1.0, "silo": 6.0},
            parameters=parameters,
            purpose=purpose,
            keys=self.keys,
            **options,
        )

    def release(self, silo, number=1, plan=None, *, values=None, layout=LAYOUT):
        """An honest release, or one of chosen values."""
        plan = plan or self.plan
        if values is None and plan.purpose == "research":
            return release(UPDATE, plan, silo, number, noise=SeededNoise(seed=5))
        flat = np.concatenate([array.ravel() for array in UPDATE.values()])
        made = None
        if plan.purpose == "deployment":
            made = _lattice_release(flat, LAYOUT, terms_of(plan, silo), number, SecureNoise())
        else:
            made = release(UPDATE, plan, silo, number, noise=SeededNoise(seed=5))
        return dataclasses.replace(made, layout=layout, **({} if values is None else {"values": np.asarray(values)}))

    def seal(self, made, plan=None):
        plan = plan or self.plan
        key = (plan.digest, made.silo)
        if key not in self.sealers:
            self.sealers[key] = Sealer(plan, made.silo, self.folder / made.silo)
        return self.sealers[key].seal(made)

    def sealed(self, silo, number=1, plan=None, **options):
        return self.seal(self.release(silo, number, plan, **options), plan)

    def open(self, path, plan=None, region="north", layout=LAYOUT, **options):
        """A region to which the server has sent a model, unless its layout is None."""
        opened = Region.open(path, plan or self.plan, region, self.folder / region, **options)
        if layout is not None:
            opened.expect_layout(layout)
        return opened


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("regional"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.region"


@pytest.fixture
def region(world, path):
    with world.open(path) as opened:
        yield opened


def test_a_plan_changed_in_memory_does_not_have_a_region_sum_without_more_silos(world, path):
    plan = world.made(dropouts=0)
    with world.open(path, plan) as region:
        region.accept(world.sealed("lille", plan=plan), 1)
        object.__setattr__(plan.target, "dropouts", 2)
        assert region.close_round(1).missing == ("caen", "metz")
    assert "the plan was changed in memory" in refusal(Region.open, path, plan, "north", world.folder / "north")


def refusal(work, *arguments, kind=ExchangeError, **options):
    with pytest.raises(kind) as caught:
        work(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is accepted


def test_releases_are_gathered_and_summed(world, region):
    sent = {silo: world.release(silo) for silo in MEMBERS}
    for number, (silo, made) in enumerate(sent.items()):
        assert region.present(1) == set(MEMBERS[:number])
        assert region.accept(world.seal(made), 1) == silo
    assert region.missing(1) == set()
    assert region.members == set(MEMBERS)
    assert not region.summed(1)
    total = region.close_round(1)
    assert region.summed(1)
    assert isinstance(total, RegionalSum)
    assert (total.region, total.round_number, total.members) == ("north", 1, MEMBERS)
    assert (total.plan_digest, total.layout, total.step) == (world.plan.digest, LAYOUT, sent["lille"].step)
    assert (total.values == sum(made.values for made in sent.values())).all()


def test_what_a_silo_really_releases_is_accepted(world, region, tmp_path):
    for silo in MEMBERS:
        with Ledger.open(tmp_path / f"{silo}.ledger", silo=silo) as ledger:
            region.accept(world.seal(release(UPDATE, world.plan, silo, 1, ledger=ledger)), 1)
    assert isinstance(region.close_round(1), RegionalSum)


def test_the_same_release_again_changes_nothing(world, region, path):
    made = world.release("lille")
    first = world.seal(made)
    for sealed in (first, first, world.seal(made)):
        assert region.accept(sealed, 1) == "lille"
    region.close()
    with world.open(path) as again:
        assert again.accept(world.seal(made), 1) == "lille"
        assert again.present(1) == {"lille"}


def test_another_release_of_a_silo_is_refused_even_after_a_restart(world, region, path):
    made = world.release("lille")
    region.accept(world.seal(made), 1)
    other = world.sealed("lille")
    assert "'lille' sent another release for round 1" in refusal(region.accept, other, 1)
    region.close()
    with world.open(path) as again:
        assert "'lille' sent another release for round 1" in refusal(again.accept, other, 1)
        changed = dataclasses.replace(made, values=made.values + (np.arange(PARAMETERS) == 3))
        assert "another release" in refusal(again.accept, world.seal(changed), 1)
        assert again.present(1) == {"lille"}


def test_early_late_and_replayed_releases_are_refused(world, region):
    first = {silo: world.sealed(silo) for silo in MEMBERS}
    assert "for round 2, round 1 is gathered" in refusal(region.accept, world.sealed("lille", 2), 1)
    for sealed in first.values():
        region.accept(sealed, 1)
    region.close_round(1)
    assert "'lille' is late: round 1 is summed" in refusal(region.accept, first["lille"], 1)
    assert "for round 1, round 2 is gathered" in refusal(region.accept, first["lille"], 2)
    for wrong in (0, 7, -1, "1", 1.0, True, None):
        assert "a round is a whole number from 1 to 6" in refusal(region.accept, first["lille"], wrong)
        assert "a round is a whole number from 1 to 6" in refusal(region.close_round, wrong)
        assert "a round is a whole number from 1 to 6" in refusal(region.present, wrong)


def test_other_plans_regions_and_strangers_are_refused(world, region):
    assert "under another plan" in refusal(region.accept, world.sealed("lille", plan=world.tight), 1)
    assert "another region" in refusal(region.accept, world.sealed("nice"), 1)
    assert "not a sealed release" in refusal(region.accept, b"junk", 1)
    assert region.present(1) == set()
    assert region.rounds() == ()


TURNED = Layout(names=("weight", "bias"), shapes=((19, 2), (2,)))
RENAMED = Layout(names=("weights", "bias"), shapes=LAYOUT.shapes)


def test_other_layouts_are_refused_in_and_across_rounds_and_restarts(world, region, path):
    region.accept(world.sealed("lille"), 1)
    for other in (TURNED, RENAMED):
        assert "'metz' releases other names or shapes" in refusal(region.accept, world.sealed("metz", layout=other), 1)
        assert "other names or shapes" in refusal(region.accept, world.sealed("metz", 2, layout=other), 2)
    region.close()
    with world.open(path, layout=None) as again:
        assert "other names or shapes" in refusal(again.accept, world.sealed("metz", 2, layout=TURNED), 2)
        assert again.accept(world.sealed("metz", 2), 2) == "metz"


@pytest.mark.parametrize("foreign", [TURNED, RENAMED])
def test_a_silo_that_comes_first_with_another_layout_is_refused_alone(world, region, path, foreign):
    assert "'metz' releases other names" in refusal(region.accept, world.sealed("metz", layout=foreign), 1)
    region.close()
    with world.open(path, layout=None) as again:
        assert "'metz' releases other names" in refusal(again.accept, world.sealed("metz", layout=foreign), 1)
        for silo in ("lille", "caen"):
            assert again.accept(world.sealed(silo), 1) == silo
        total = again.close_round(1)
    assert (total.members, total.layout) == (("caen", "lille"), LAYOUT)


def test_before_any_model_was_sent_every_release_is_refused(world, path):
    with world.open(path, layout=None) as region:
        assert "other names or shapes than the model has" in refusal(region.accept, world.sealed("lille"), 1)
        region.expect_layout(RENAMED)  # a start that was given up
        region.expect_layout(LAYOUT)
        assert region.accept(world.sealed("lille"), 1) == "lille"


def test_the_model_of_a_plan_keeps_its_layout_once_a_release_is_there(world, region, path):
    region.accept(world.sealed("lille"), 1)
    for _ in range(2):
        region.expect_layout(LAYOUT)
        assert "holds releases of other names or shapes than the model" in refusal(region.expect_layout, RENAMED)
        region.close()
        region = world.open(path)
    assert region.present(1) == {"lille"}
    region.close()


def test_a_model_that_the_plan_was_not_made_for_is_refused(world, path):
    with world.open(path, layout=None) as region:
        longer = Layout(names=("a",), shapes=((41,),))
        assert "the model has 41 parameters, the plan was made for 40" in refusal(region.expect_layout, longer)
        twice = Layout(names=("a", "a"), shapes=((20,), (20,)))
        assert "the model has names or shapes that no arrays have" in refusal(region.expect_layout, twice)


# Who declines


def test_a_silo_declines_a_round_in_its_own_signed_word(world, region):
    sealer = Sealer(world.plan, "lille", world.folder / "lille")
    assert region.checked_decline(sealer.decline(1), 1) == "lille"
    assert region.present(1) == set()
    assert "'lille' declines round 1, round 2 is gathered" in refusal(region.checked_decline, sealer.decline(1), 2)
    assert region.accept(world.sealed("lille"), 1) == "lille"  # it may come to another mind
    for wrong in (0, 7, "1", None):
        assert "a round is a whole number" in refusal(region.checked_decline, sealer.decline(1), wrong)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(names=("a", "a"), shapes=((20,), (20,))),
        Layout(names=("a",), shapes=((20,), (20,))),
        Layout(names=("a", "b"), shapes=((40,),)),
        Layout(names=("a\n",), shapes=((40,),)),
        Layout(names=("a",), shapes=((-8, -5),)),
    ],
)
def test_layouts_that_no_arrays_have_are_refused(world, region, layout):
    assert "names or shapes that no arrays have" in refusal(region.accept, world.sealed("lille", layout=layout), 1)


def test_another_number_of_parameters_is_refused(world, region):
    made = world.release("lille")
    shorter = dataclasses.replace(made, layout=Layout(names=("a",), shapes=((39,),)), values=made.values[:39])
    assert "has 39 parameters, the plan was made for 40" in refusal(region.accept, world.seal(shorter), 1)
    plan = world.made(purpose="research", parameters=None)
    empty = dataclasses.replace(
        world.release("lille", plan=plan), layout=Layout(names=(), shapes=()), values=np.zeros(0)
    )
    with world.open(region._file.path.with_name("other"), plan) as other:
        assert "has 0 parameters" in refusal(other.accept, world.seal(empty, plan), 1)


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63 - 1, -(2**63)])
def test_integers_that_could_overflow_the_sum_are_refused(world, region, value):
    values = world.release("lille").values.copy()
    values[7] = value
    assert "too large for the lattice's integers" in refusal(region.accept, world.sealed("lille", values=values), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(world, path, value):
    values = world.release("lille", plan=world.research).values.copy()
    values[7] = value
    with world.open(path, world.research) as region:
        sealed = world.sealed("lille", plan=world.research, values=values)
        assert "'lille' is not finite" in refusal(region.accept, sealed, 1)
        values[7] = 1e200
        sealed = world.sealed("lille", plan=world.research, values=values)
        assert "norm above" in refusal(region.accept, sealed, 1)


# The norm


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_norms_that_noise_of_this_scale_does_not_have_are_refused(world, path, purpose):
    plan = world.made(purpose=purpose)
    with world.open(path, plan) as region:
        honest = world.release("lille", plan=plan)
        sealed = world.sealed("lille", plan=plan, values=honest.values * 10)
        assert "'lille' has a norm above" in refusal(region.accept, sealed, 1)
        for small in (honest.values * 0, honest.values / 10):
            sealed = world.sealed("lille", plan=plan, values=small.astype(honest.values.dtype))
            assert "'lille' has a norm below" in refusal(region.accept, sealed, 1)
        region.accept(world.seal(honest, plan), 1)


@pytest.mark.parametrize("purpose", ["research", "deployment"])
@pytest.mark.parametrize("parameters", [1, 3, 100, 5_000])
def test_honest_releases_are_never_refused(world, purpose, parameters):
    plan = world.made(parameters=parameters, purpose=purpose)
    layout = Layout(names=("a",), shapes=((parameters,),))
    for index in (0, 1, 3):
        low, high = norm_bounds(plan, index, parameters)
        for draw in range(200):
            flat = np.zeros(parameters)
            flat[0] = (draw % 3) / 2 * plan.clip_norm  # no update, half of one, and one that fills the clip norm
            if purpose == "deployment":
                terms = terms_of(plan, plan.federation.silo_name(index))
                values = _lattice_release(flat, layout, terms, 1, SecureNoise()).values
            else:
                silo = plan.federation.silo_name(index)
                values = release(flat, plan, silo, 1, noise=SeededNoise(seed=draw)).values
            assert low <= np.linalg.norm(values.astype(float)) <= high


def test_the_bounds_are_those_of_chi_and_tell_scales_apart(world):
    plan = world.made(parameters=1_000)
    width = plan.lattice_width(0)
    low, high = norm_bounds(plan, 0, 1_000)
    signal = plan.federation.weights[0] * plan.clip_norm / plan.lattice_steps[0]
    assert low == pytest.approx(width * math.sqrt(stats.chi2.ppf(2.0**-80, 1_000)) - math.sqrt(1_000), rel=1e-6)
    assert high == pytest.approx(
        signal + width * math.sqrt(stats.chi2.isf(2.0**-80, 1_000)) + math.sqrt(1_000), rel=1e-6
    )
    draws = np.random.default_rng(0).normal(size=(200, 1_000)) * width
    sizes = np.linalg.norm(draws, axis=1)
    assert ((low <= sizes) & (sizes <= high)).all()
    assert (sizes * 2 / 3 < low).all()
    assert (sizes * 3 / 2 > high).all()


# What goes up


def test_too_few_releases_are_withheld_and_may_be_summed_later(world, region):
    region.accept(world.sealed("lille"), 1)
    answer = region.close_round(1)
    assert isinstance(answer, Withheld)
    assert answer.missing == ("caen", "metz")
    assert answer.reason == "2 of 3 silos are missing, the plan does without 1"
    assert answer == region.close_round(1)
    assert region.rounds()[0].status == "withheld"
    assert not region.summed(1)
    region.accept(world.sealed("metz"), 1)
    region.accept(world.sealed("caen"), 1)
    total = region.close_round(1)
    assert isinstance(total, RegionalSum)
    assert total.members == MEMBERS


@pytest.mark.parametrize("absent", MEMBERS)
def test_a_plan_does_without_its_dropouts_and_never_rescales(world, region, absent):
    sent = [world.release(silo) for silo in MEMBERS if silo != absent]
    for made in sent:
        region.accept(world.seal(made), 1)
    total = region.close_round(1)
    assert total.members == tuple(made.silo for made in sent)
    assert (total.values == sent[0].values + sent[1].values).all()
    late = world.sealed(absent)
    assert "is late" in refusal(region.accept, late, 1)
    assert region.close_round(1).to_bytes() == total.to_bytes()


def test_a_plan_without_dropouts_needs_every_silo(world, path):
    with world.open(path, world.tight) as region:
        for silo in MEMBERS[:2]:
            region.accept(world.sealed(silo, plan=world.tight), 1)
        answer = region.close_round(1)
        assert (answer.missing, answer.reason) == (
            ("metz",), "1 of 3 silos are missing, the plan does without 0",
        )  # fmt: skip


def test_a_round_without_any_release_is_withheld(world, region, tmp_path):
    assert region.close_round(1).missing == MEMBERS
    with world.open(tmp_path / "south", region="south") as south:
        assert isinstance(south.close_round(1), Withheld)  # though the plan does without one, and there is one


def test_less_noise_than_the_plan_counts_on_is_withheld(world, region, monkeypatch):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    monkeypatch.setattr("fulcrum.roles.region.remaining_noise", lambda *a, **k: remaining_noise(*a, **k) * 9)
    assert "less than the plan counts on" in region.close_round(1).reason


def test_a_dropout_does_not_use_up_a_colluder(world, tmp_path):
    both = world.made(colluders=1, dropouts=1, sizes={"north": dict.fromkeys((*MEMBERS, "nice"), 100)})
    variance = both.noise_variance
    for absent, colluder in itertools.permutations(range(4), 2):
        honest = [index for index in range(4) if index not in (absent, colluder)]
        left = both.federation.weights[0] / math.sqrt(variance[honest].sum())
        spent = epsilon_of_shift(2 * math.sqrt(both.rounds) * left, delta=both.delta, accountant="renyi")
        assert spent <= 1.0
    alone = world.made(colluders=1)
    with world.open(tmp_path / "alone", alone) as region:
        for silo in MEMBERS[:2]:
            region.accept(world.sealed(silo, plan=alone), 1)
        assert region.close_round(1).reason == "1 of 3 silos are missing, the plan does without 0"


def test_whoever_drops_out_the_noise_left_is_what_the_plan_counts_on(world):
    plan = world.plan
    counted = remaining_noise(plan.federation, plan.noise_variance, tier="region", uncounted=1)
    for absent in range(3):
        there = [index for index in range(3) if index != absent]
        assert plan.noise_variance[there].sum() >= counted[there].max() * (1 - 1e-9)
        assert not plan.noise_variance[there[:1]].sum() >= counted[there[:1]].max() * (1 - 1e-9)


def test_a_region_of_one_silo_sends_up_its_release(world, tmp_path):
    made = world.release("nice", 2)
    with world.open(tmp_path / "south", region="south") as region:
        region.accept(world.seal(made), 2)
        total = region.close_round(2)
    assert (total.members, total.region) == (("nice",), "south")
    assert (total.values == made.values).all()


def test_research_sums_are_taken_in_the_order_of_names(world, tmp_path):
    sent = {silo: world.release(silo, plan=world.research) for silo in MEMBERS}
    totals = []
    for order in (MEMBERS, MEMBERS[::-1]):
        with world.open(tmp_path / order[0], world.research) as region:
            for silo in order:
                region.accept(world.seal(sent[silo], world.research), 1)
            totals.append(region.close_round(1).to_bytes())
    assert totals[0] == totals[1]
    expected = sent["caen"].values + sent["lille"].values + sent["metz"].values
    assert (answer_from_bytes(totals[0]).values == expected).all()


# The file


def test_a_restart_between_accept_and_close_loses_nothing(world, path):
    sent = {silo: world.release(silo) for silo in MEMBERS}
    for made in sent.values():
        with world.open(path) as region:
            region.accept(world.seal(made), 1)
    with world.open(path) as region:
        assert (region.close_round(1).values == sum(made.values for made in sent.values())).all()


def test_after_a_restart_a_round_has_the_same_bytes(world, path):
    with world.open(path) as region:
        for silo in MEMBERS:
            region.accept(world.sealed(silo), 1)
        data = region.close_round(1).to_bytes()
    for _ in range(2):
        with world.open(path) as region:
            assert region.close_round(1).to_bytes() == data
            assert "is late" in refusal(region.accept, world.sealed("lille"), 1)


def test_releases_are_forgotten_once_they_are_summed(world, path):
    made = {silo: world.release(silo) for silo in MEMBERS}
    with world.open(path) as region:
        for one in made.values():
            region.accept(world.seal(one), 1)
    for one in made.values():
        assert one.values.tobytes() in path.read_bytes()
    with world.open(path) as region:
        region.close_round(1)
    for one in made.values():
        assert one.values.tobytes() not in path.read_bytes()


def test_summed_releases_are_in_neither_the_file_nor_its_log_while_it_is_open(world, region, path):
    log = path.with_name(f"{path.name}-wal")
    first, second = ({silo: world.release(silo, number) for silo in MEMBERS} for number in (1, 2))
    for number, made in ((1, first), (2, second)):
        for one in made.values():
            region.accept(world.seal(one), number)
            assert one.values.tobytes() in log.read_bytes()
    total = region.close_round(1)
    stored = path.read_bytes() + log.read_bytes()
    assert total.to_bytes() in path.read_bytes()
    assert not any(one.values.tobytes() in stored for one in first.values())
    assert all(one.values.tobytes() in stored for one in second.values())
    assert region.close_round(1).to_bytes() == total.to_bytes()


def test_a_sum_outlives_a_log_that_cannot_be_emptied(world, region, path):
    made = [world.release(silo) for silo in MEMBERS]
    for one in made:
        region.accept(world.seal(one), 1)
    # A reader that has not ended keeps the log as it is.
    region._file.connection.execute("CREATE TEMP TABLE numbers AS VALUES (1), (2)")
    reader = region._file.connection.execute("SELECT * FROM release, numbers")
    reader.fetchone()
    assert str(path) in refusal(region.close_round, 1, kind=StorageError)
    assert "failed a write" in refusal(region.close_round, 1, kind=StorageError)
    reader.close()
    region.close()
    with world.open(path) as again:
        assert again.summed(1)
        assert (again.close_round(1).values == sum(one.values for one in made)).all()
        stored = path.read_bytes() + path.with_name(f"{path.name}-wal").read_bytes()
        assert not any(one.values.tobytes() in stored for one in made)


def test_rounds_are_listed(world, region):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region.close_round(1)
    region.accept(world.sealed("metz", 2), 2)
    region.close_round(2)
    region.accept(world.sealed("lille", 3), 3)
    region.close_round(4)
    assert region.rounds() == (
        RegionRound(round_number=1, status="summed", members=MEMBERS, missing=()),
        RegionRound(round_number=2, status="withheld", members=("metz",), missing=("caen", "lille")),
        RegionRound(round_number=3, status="gathering", members=("lille",), missing=("caen", "metz")),
        RegionRound(round_number=4, status="withheld", members=(), missing=MEMBERS),
    )


def test_a_file_is_bound_to_its_plan_and_region(world, region, path):
    region.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "another region or plan than 'north'" in refusal(world.open, path, world.tight)
    assert "another region or plan than 'south'" in refusal(world.open, path, region="south")
    world.open(path).close()


def test_a_file_that_is_lost_is_not_made_anew_unless_asked(world, path):
    assert refusal(world.open, path, create=False, kind=StorageError) == (
        f"{path} is not there, and with it the record of the sums that went up. Ask for a new plan"
    )
    assert not path.exists()
    world.open(path).close()
    with world.open(path, create=False) as region:
        assert region.rounds() == ()


def test_a_file_is_made_for_a_region_without_its_key(world, path):
    create_region_file(path, plan_digest=world.plan.digest, region="north")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert "another region or plan" in refusal(world.open, path, region="south", create=False)
    with world.open(path, create=False) as region:
        region.accept(world.sealed("lille"), 1)
    again = refusal(create_region_file, path, plan_digest=world.plan.digest, region="north", kind=StorageError)
    assert again == f"{path} is there already, and may hold sums. Name a new file"
    with world.open(path, create=False) as region:
        assert region.present(1) == {"lille"}


def test_one_at_a_time(world, region, path):
    assert "open in this process" in refusal(world.open, path, kind=FileInUseError)
    script = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True).returncode != 0
    region.close()
    region.close()
    assert subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True).returncode == 0
    assert "is closed" in refusal(region.close_round, 1, kind=StorageError)


def test_foreign_and_damaged_files_are_refused(world, tmp_path):
    junk, empty, ledger, other = (tmp_path / name for name in ("junk", "empty", "ledger", "other"))
    junk.write_bytes(b"not a database at all")
    empty.write_bytes(b"")
    Ledger.open(ledger, silo="north").close()
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
    for path, reason in (
        (junk, "is not a region's file of sums, or its first bytes are damaged"),
        (empty, "is empty: it was a region's file of sums that lost its content"),
        (ledger, "but not a region's file of sums"),
        (other, "but not a region's file of sums"),
        (tmp_path, "is a folder. Name the region's file of sums"),
        (tmp_path / "none" / "file", "does not exist"),
    ):
        assert reason in refusal(world.open, path, kind=StorageError)
    with Ledger.open(ledger, silo="north") as book:
        assert book.sequence == 0
    region = tmp_path / "north"
    world.open(region).close()
    assert "not a ledger" in refusal(Ledger.open, region, silo="north", kind=LedgerError)
    region.write_bytes(region.read_bytes()[:-5])
    assert "damaged" in refusal(world.open, region, kind=StorageError)


def test_nobody_is_told_to_restore_a_copy_of_a_regions_file(world, region, path):
    region.close()
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) - 100))
    said = refusal(world.open, path, kind=StorageError)
    assert "is damaged (" in said
    assert said.endswith("). Ask for a new plan")
    path.write_bytes(data[:16] + bytes(100) + data[116:])
    assert "is not a region's file of sums, or" in refusal(world.open, path, kind=StorageError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_and_not_waited_for(world, path):
    os.mkfifo(path)
    assert refusal(world.open, path, kind=StorageError) == f"{path} is not a file. Name the region's file of sums"


def test_a_read_only_file_is_refused(path, monkeypatch):
    create_region_file(path, plan_digest="p", region="north")
    monkeypatch.setattr(os, "access", lambda place, mode: place != path)  # root may write to any
    said = refusal(RegionFile.bound, path, plan_digest="p", region="north", kind=StorageError)
    assert said == f"{path} is read-only: a release cannot be recorded. Make it writable"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE release SET bytes = zeroblob(320) WHERE silo = 'lille'",
        "UPDATE release SET bytes = NULL WHERE silo = 'lille'",
        "UPDATE release SET digest = 'f00d' WHERE silo = 'lille'",
        "UPDATE region SET layout = x'00'",
    ],
)
def test_changed_releases_are_not_summed(world, region, path, change):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
    with world.open(path, layout=None) as again:
        assert "is not the one accepted" in refusal(again.close_round, 1, kind=StorageError)


def test_a_changed_sum_is_not_sent(world, region, path):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region.close_round(1)
    region.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("UPDATE answer SET bytes = zeroblob(99)")
    with world.open(path) as again:
        assert "is not the one given" in refusal(again.close_round, 1, kind=StorageError)


def test_a_failed_write_sends_nothing_until_the_file_is_opened_again(world, region, path):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region._file.connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON answer BEGIN SELECT raise(ABORT, 'no'); END"
    )
    assert "nothing may be sent" in refusal(region.close_round, 1, kind=StorageError)
    assert "failed a write" in refusal(region.close_round, 1, kind=StorageError)
    region.close()
    with world.open(path) as again:
        assert again.rounds()[0].status == "gathering"
        assert isinstance(again.close_round(1), RegionalSum)


def test_threads_share_a_region(world, region):
    sealed = [(world.sealed(silo, number), number) for number in (1, 2, 3) for silo in MEMBERS]
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda pair: region.accept(*pair), sealed * 4))
        sums = list(pool.map(region.close_round, [1, 2, 3] * 4))
    assert names == list(MEMBERS) * 12
    assert len({total.to_bytes() for total in sums}) == 3


@forks
def test_a_forked_child_sends_nothing(world, region):
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            region.close_round(1)
            os.write(send, b"closed")
        except StorageError as error:
            os.write(send, str(error).encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        assert b"before a fork" in pipe.read()
    os.waitpid(child, 0)
    assert isinstance(region.close_round(1), Withheld)


CLOSE_UNTIL_KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from fulcrum.planning.plan_reading import read_plan
from fulcrum.roles.region import Region

path, plan, key, out, kills = sys.argv[1], read_plan(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
draw, inside = random.Random(7), 0
for kill in range(kills):
    receive, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with Region.open(path, plan, "north", key) as region:
            for number in range(1, plan.rounds + 1):
                os.write(tell, b"(")
                data = region.close_round(number).to_bytes()
                with Path(out, f"{kill}-{number}").open("wb") as file:
                    file.write(data)
                os.write(tell, b")")
        os._exit(0)
    os.close(tell)
    for _ in range(2 * kill + 1):
        os.read(receive, 1)
    time.sleep(draw.uniform(0, 0.002))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    inside += not os.read(receive, 10**6).startswith(b")")
    os.close(receive)
print(json.dumps(inside))
"""


@forks
def test_a_process_killed_while_it_closes_leaves_a_sum_whole_or_absent(world, path, tmp_path):
    world.plan.save(tmp_path / "plan.json")
    plan = fulcrum.read_plan(tmp_path / "plan.json")
    expected = {}
    with world.open(path) as region:
        for number in range(1, 7):
            sent = [world.release(silo, number) for silo in MEMBERS]
            for made in sent:
                region.accept(world.seal(made), number)
            expected[number] = sum(made.values for made in sent)
    told = tmp_path / "told"
    told.mkdir()
    arguments = [path, tmp_path / "plan.json", world.folder / "north", told, 5]
    done = subprocess.run(
        [sys.executable, "-c", CLOSE_UNTIL_KILLED, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) >= 1  # the test means something only if kills fell inside `close_round`
    left = list(told.iterdir())
    assert left
    with Region.open(path, plan, "north", world.folder / "north") as region:
        statuses = {row.round_number: row.status for row in region.rounds()}
        assert set(statuses.values()) <= {"summed", "gathering"}
        for file in left:
            number = int(file.name.split("-")[1])
            assert statuses[number] == "summed"
            # The last file of a killed process may be cut short: what left is a part of what is stored.
            assert region.close_round(number).to_bytes().startswith(file.read_bytes())
        for number, values in expected.items():
            assert (region.close_round(number).values == values).all()


# Which plans


def test_plans_that_this_aggregator_does_not_run_are_refused(world, path):
    nested = fulcrum.plan(
        fulcrum.Federation.from_sizes(SIZES, outer={"country": {"france": ["north", "south"]}}),
        rounds=2,
        epsilon=1.0,
        keys=world.keys,
    )
    assert refusal(world.open, path, nested) == (
        "this aggregator runs plans of one tier in which silos add the noise, got 2 tiers"
    )
    injected = fulcrum.plan(
        fulcrum.Federation.from_sizes(SIZES), rounds=2, epsilon=1.0, injection="aggregator", keys=world.keys
    )
    assert "got injection 'aggregator'" in refusal(world.open, path, injected)
    bare = dataclasses.replace(world.plan, keys={})
    assert refusal(world.open, path, bare) == "the plan carries no key of region 'north'. Plan with --keys"
    assert "knows no region 'nord'" in refusal(Region.open, path, world.plan, "nord", world.folder / "north")
    assert "south is not the key of 'north'" in refusal(Region.open, path, world.plan, "north", world.folder / "south")
    assert not path.exists()


def test_a_deployment_plan_must_verify(world, path, tmp_path):
    content = world.plan.content()
    content.silos[0].noise_multiplier /= 2
    (tmp_path / "forged.json").write_bytes(to_json(content))
    forged = fulcrum.read_plan(tmp_path / "forged.json")
    assert "does not hold what it says" in refusal(world.open, path, forged)


# Answers as bytes


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
        again = answer_from_bytes(answer.to_bytes())
        assert type(again) is type(answer)
        assert again.to_bytes() == answer.to_bytes()
    withheld = Withheld(plan_digest="p", region="north", round_number=3, missing=(), reason="why")
    assert answer_from_bytes(withheld.to_bytes()) == withheld


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
    ],
)
def test_answers_that_no_region_gives_are_refused(wrong):
    refusal(answer_from_bytes, wrong.to_bytes())


@given(junk=st.binary(max_size=100))
def test_what_is_no_answer_is_refused(junk):
    refusal(answer_from_bytes, junk)


def test_cut_and_lengthened_answers_are_refused():
    for answer in (
        total_of([1, 2]).to_bytes(),
        Withheld(plan_digest="p", region="north", round_number=3, missing=(), reason="why").to_bytes(),
    ):
        for size in range(len(answer)):
            refusal(answer_from_bytes, answer[:size])
        refusal(answer_from_bytes, answer + b"\0")
        refusal(answer_from_bytes, answer + bytes(8))
    for nothing in (None, "text", 7):
        refusal(answer_from_bytes, nothing)


def test_an_answer_is_not_a_release_nor_the_other_way_round(world):
    refusal(answer_from_bytes, world.release("lille").to_bytes())
    refusal(Release.from_bytes, total_of([1]).to_bytes())
