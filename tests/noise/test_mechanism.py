"""The conformance test of `Mechanism`: every implementation below keeps every rule, and so must a new one.

An implementation is a function of the factor on its noise and of a release's number, which returns a mechanism for the
first silo of its plan whose noise can be drawn again: two mechanisms of one number add the same noise.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from repeated_noise import RepeatedNoise
from scipy.stats import chi2

import fulcrum
from fulcrum.core.noise.mechanism import (
    GaussianMechanism,
    LatticeMechanism,
    Mechanism,
    apply_mechanism,
    batch_factors,
    clip,
)
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import seeded_mechanism
from fulcrum.errors import DivergedUpdateError
from fulcrum.planning.plan import Plan

PARAMETERS = 24
MANY = 6_000
CHANCE = 1e-6  # of a statistical test that fails a sound mechanism; seeds are fixed
FEDERATION = fulcrum.Federation.from_sizes({"north": [120, 80], "south": [300]})
PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def planned(**settings: Any) -> Plan:
    return fulcrum.plan(FEDERATION, rounds=3, epsilon=1.0, parameters=PARAMETERS, **settings)


RESEARCH, JOINT = planned(), planned(recipe="joint")
DEPLOYED, DEPLOYED_JOINT = planned(purpose="deployment"), planned(purpose="deployment", recipe="joint")


def seeded(plan: Plan, times: float, number: int) -> GaussianMechanism:
    mechanism = seeded_mechanism(plan, 0, SeededNoise(seed=5), number)
    return dataclasses.replace(mechanism, noise_multiplier=times * mechanism.noise_multiplier)


def on_lattice(plan: Plan, times: float, number: int) -> LatticeMechanism:
    terms = release_parameters_of(plan, plan.federation.silo_name(0))
    return dataclasses.replace(terms, noise=RepeatedNoise(bytes([number] * 32)), width=times * terms.width)


def example_of_the_docs(plan: Plan, times: float, number: int) -> Mechanism:
    """The worked example of docs/extending.md."""
    [source] = re.findall(r"<!-- file: single_precision\.py -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(source, names)
    made: Mechanism = names["SinglePrecision"](seeded(plan, times, number))
    return made


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A mechanism under test: how it is made, under which plan, and the dtype of its releases."""

    make: Callable[[Plan, float, int], Mechanism]
    plan: Plan
    dtype: type

    def mechanism(self, *, times: float = 1.0, number: int = 1) -> Mechanism:
        return self.make(self.plan, times, number)

    @property
    def unit(self) -> float:
        """What a number of a release stands for."""
        return 1.0 if self.plan.lattice_steps is None else float(self.plan.lattice_steps[0])

    @property
    def most(self) -> float:
        """The largest norm that may enter the noise, by the plan."""
        return float(self.plan.weights[0]) * self.plan.clip_norm / self.unit

    @property
    def noise_std(self) -> float:
        """The width of the noise, by the plan."""
        return float(self.plan.noise_multiplier[0]) * self.most


IMPLEMENTATIONS = {
    "seeded Gaussian": Implementation(seeded, RESEARCH, np.float64),
    "seeded Gaussian, clipped at a share": Implementation(seeded, JOINT, np.float64),
    "lattice": Implementation(on_lattice, DEPLOYED, np.int64),
    "lattice, clipped at a share": Implementation(on_lattice, DEPLOYED_JOINT, np.int64),
    "single precision, of the docs": Implementation(example_of_the_docs, RESEARCH, np.float32),
}

each = pytest.mark.parametrize("tested", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)

UPDATES = hnp.arrays(np.float64, PARAMETERS, elements=st.floats(-1e200, 1e200))


def entered(tested: Implementation, update: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns what of an update entered its release, and how far rounding of the release may be off, in norm."""
    sent, silent = (apply_mechanism(tested.mechanism(), each_one) for each_one in (update, np.zeros_like(update)))
    rounding = 0.0 if sent.dtype == np.int64 else float(np.finfo(sent.dtype).eps)
    return sent.astype(np.float64) - silent, 2 * rounding * float(np.linalg.norm(sent) + np.linalg.norm(silent))


@each
@given(update=UPDATES)
def test_before_noise_the_norm_is_at_most_weight_times_the_clip_norm(tested, update):
    before = update.copy()
    signal, rounding = entered(tested, update)
    assert np.linalg.norm(signal) <= tested.most * (1 + 1e-12) + rounding
    assert np.array_equal(update, before)


@each
def test_an_update_beyond_the_clip_fills_the_norm_and_keeps_its_direction(tested):
    update = np.linspace(-3.0, 5.0, PARAMETERS)
    signal, rounding = entered(tested, update)
    along = tested.most * update / np.linalg.norm(update)
    # A lattice cuts at most a hundredth of the lightest silo's signal away.
    assert np.linalg.norm(signal - along) <= 0.01 * tested.most + rounding


@each
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_zero_plus_noise_and_the_caller_is_told(tested, value):
    update = np.ones(PARAMETERS)
    update[3] = value
    told = []
    sent = apply_mechanism(tested.mechanism(), update, on_diverged=lambda: told.append(1))
    assert told == [1]
    assert np.array_equal(sent, apply_mechanism(tested.mechanism(), np.zeros(PARAMETERS)))
    assert np.count_nonzero(sent) > PARAMETERS / 2
    with pytest.raises(DivergedUpdateError, check=coded("clip.update-not-finite")):
        apply_mechanism(tested.mechanism(), update)


def is_as_wide(values: np.ndarray, noise_std: float) -> bool:
    squares = float(((values / noise_std) ** 2).sum())
    return CHANCE / 2 < float(chi2.cdf(squares, values.size)) < 1 - CHANCE / 2


@each
def test_noise_is_as_wide_as_the_plan_says_and_no_other_width_passes(tested):
    drawn = tested.mechanism().perturb(np.zeros(MANY)).astype(np.float64)
    assert is_as_wide(drawn, tested.noise_std)
    assert abs(drawn.mean()) < 5 * tested.noise_std / math.sqrt(MANY)
    for times in (2 / 3, 3 / 2):
        assert not is_as_wide(tested.mechanism(times=times).perturb(np.zeros(MANY)).astype(float), tested.noise_std)


@each
def test_noise_is_independent_by_coordinate_and_by_release(tested):
    first, second = (tested.mechanism(number=number).perturb(np.zeros(MANY)).astype(float) for number in (1, 2))
    farthest = 5 / math.sqrt(MANY)
    assert abs(np.corrcoef(first, second)[0, 1]) < farthest
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < farthest
    assert abs(np.corrcoef(np.abs(first[1:]), np.abs(first[:-1]))[0, 1]) < farthest


@each
def test_a_coordinate_holds_itself_and_its_noise_and_nothing_else(tested):
    clipped = clip(np.linspace(-3.0, 5.0, PARAMETERS), tested.plan.clip_norm)
    changed = clipped.copy()
    changed[7] = -0.5 * tested.plan.clip_norm
    one, other = (tested.mechanism().perturb(values) for values in (clipped, changed))
    assert np.flatnonzero(one != other).tolist() == [7]
    # The noise does not depend on the update: what is left without it is that of an update of zeros.
    quiet = tested.mechanism().perturb(np.zeros(PARAMETERS))
    left = (one.astype(float) - quiet) / tested.most
    assert left == pytest.approx(clipped / tested.plan.clip_norm, abs=0.01)


@each
@pytest.mark.parametrize("count", [0, 1, PARAMETERS, 3 * PARAMETERS])
def test_a_release_has_the_shape_of_its_coordinates_and_one_dtype(tested, count):
    sent = tested.mechanism().perturb(np.zeros(count))
    assert (sent.shape, sent.dtype) == ((count,), tested.dtype)


@each
def test_the_clip_is_that_of_the_plan(tested):
    mechanism = tested.mechanism()
    assert (mechanism.clip_norm, mechanism.clip_share) == (tested.plan.clip_norm, tested.plan.clip_share)


def test_both_ways_to_clip_are_tested():
    assert JOINT.clip_share < 1 == RESEARCH.clip_share
    assert DEPLOYED_JOINT.clip_share < 1 == DEPLOYED.clip_share


@given(update=hnp.arrays(np.float64, 5, elements=st.floats(-1e6, 1e6)), share=st.sampled_from([1.0, 0.25]))
def test_the_factors_of_many_silos_are_the_mechanism_of_each(update, share):
    weights, multipliers = np.array([0.25, 0.75]), np.array([3.0, 0.0])
    drawn = np.random.default_rng(3).standard_normal(5)
    size = np.full(2, np.linalg.norm(update))
    signal, noise = batch_factors(
        size,
        weight=weights,
        noise_multiplier=multipliers,
        clip_norm=np.array([2.0, np.inf]),
        clip_share=np.array([share, 1.0]),
    )
    for silo, (norm, part) in enumerate([(2.0, share), (math.inf, 1.0)]):
        mechanism = GaussianMechanism(
            clip_norm=norm,
            clip_share=part,
            weight=weights[silo],
            noise_multiplier=multipliers[silo],
            draw=drawn.reshape,
        )
        alone = apply_mechanism(mechanism, update)
        assert signal[silo] * update + noise[silo] * drawn == pytest.approx(alone, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("make", [seeded, on_lattice])
def test_a_mechanism_that_clips_at_twice_the_norm_is_caught(make):
    plan = RESEARCH if make is seeded else DEPLOYED
    tested = Implementation(
        lambda *given: dataclasses.replace(make(*given), clip_norm=2 * plan.clip_norm), plan, np.float64
    )
    signal, rounding = entered(tested, np.full(PARAMETERS, 9.0))
    assert np.linalg.norm(signal) > 1.9 * tested.most + rounding
