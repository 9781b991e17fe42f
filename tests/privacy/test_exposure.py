import itertools
from fractions import Fraction

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.core.remaining_noise import remaining_noise
from fulcrum.errors import ParameterError
from fulcrum.planning.theory.exposure import dispersion, exposure_of
from fulcrum.readers.federation import Federation
from fulcrum.readers.profiles import profile, profile_from_counts

SIZES = st.lists(st.lists(st.floats(0.1, 100), min_size=1, max_size=6), min_size=1, max_size=6)


def federation_of(regions: list[list[float]]) -> Federation:
    return Federation.from_sizes({f"r{k}": sizes for k, sizes in enumerate(regions)})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("balanced", 0.0),
        ("balanced-4", 0.0),
        ("mild", 0.375),
        ("severe", 0.791667),
        ("consortium", 0.88),
        ("isic-paper", 0.1441),
        ("isic-hospital", 0.0615),
    ],
)
def test_dispersion_of_known_structures(name, expected):
    assert dispersion(profile(name)) == pytest.approx(expected, abs=5e-5 if "isic" in name else 5e-7)


@pytest.mark.parametrize(("colluders", "expected"), [(0, 0.7917), (1, 0.8163), (2, 0.8442), (3, 0.8768)])
def test_dispersion_of_severe_against_coalitions(colluders, expected):
    assert dispersion(profile("severe"), colluders=colluders) == pytest.approx(expected, abs=5e-5)


@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_equal_weights_give_the_closed_form(counts):
    closed = 1 - len(counts) * min(counts) / sum(counts)
    assert dispersion(profile_from_counts(counts)) == pytest.approx(closed, abs=1e-12)


@given(regions=SIZES)
def test_flat_and_global_observers_leave_nothing_to_distribute(regions):
    federation = federation_of(regions)
    assert dispersion(federation, tier="silo") == pytest.approx(0, abs=1e-12)
    assert dispersion(federation, tier="federation") == 0
    assert 0 <= dispersion(federation) < 1


def test_noise_factor_is_the_same_saving_in_the_multiplier():
    assert exposure_of(profile("consortium")).noise_factor == pytest.approx(2.887, abs=5e-4)
    assert exposure_of(profile("severe")).noise_factor == pytest.approx(2.191, abs=5e-4)


def test_small_regions_are_fully_exposed_to_a_coalition():
    found = exposure_of(federation_of([[5.0, 3.0, 1.0], [4.0, 4.0], [7.0]]), colluders=1)
    assert found.exposure[1] == pytest.approx(1)
    assert found.exposure[2] == 1
    # a1 / (V - a2) with a = 25, 9, 1
    assert found.exposure[0] == pytest.approx(25 / 26)


@given(
    regions=SIZES, colluders=st.integers(0, 4), seed=st.integers(0, 99), tier=st.sampled_from(["region", "federation"])
)
def test_the_worst_coalition_is_the_worst_of_all_coalitions(regions, colluders, seed, tier):
    federation = federation_of(regions)
    noise = np.random.default_rng(seed).uniform(0, 1, len(federation))
    found = remaining_noise(federation, noise, tier=tier, excluded_silos=colluders)
    region_of, node_of = federation.membership("region"), federation.membership(tier)
    for silo in range(len(federation)):
        left = 0.0
        for region in range(len(regions)):
            members = [i for i in np.flatnonzero(region_of == region) if node_of[i] == node_of[silo]]
            others = [i for i in members if i != silo]
            left += noise[members].sum() - max(
                (
                    sum(noise[list(chosen)])
                    for k in range(colluders + 1)
                    for chosen in itertools.combinations(others, k)
                ),
                default=0.0,
            )
        assert found[silo] == pytest.approx(left, rel=1e-9, abs=1e-12)


def test_outer_tiers_have_their_own_dispersion():
    federation = Federation.from_sizes(
        {"a": [1, 1], "b": [1], "c": [1]}, outer={"country": {"x": ["a", "b"], "y": ["c"]}}
    )
    assert dispersion(federation, tier="country") == pytest.approx(1 - 2 * 1 / 4)
    assert exposure_of(federation, tier="country").nodes == ("x", "y")
    assert exposure_of(federation, tier="silo").nodes == ("a-1", "a-2", "b-1", "c-1")


@pytest.mark.parametrize("colluders", [-1, 1.5, True])
def test_a_coalition_is_a_whole_number(colluders):
    with pytest.raises(ParameterError, check=coded("number.whole-range", name="colluders", least=0)):
        dispersion(profile("mild"), colluders=colluders)


def test_a_misspelt_tier_is_named():
    with pytest.raises(ParameterError, check=coded("federation.tier-unknown", tier="regoin")):
        dispersion(profile("mild"), tier="regoin")


@pytest.mark.parametrize("tier", ["region", "federation"])
@pytest.mark.parametrize("excluded_silos", [1, 2, 3, 4])
def test_beside_a_heavy_silo_the_noise_of_the_light_ones_is_not_lost_to_rounding(tier, excluded_silos):
    federation = federation_of([[1e8, 3.0, 2.0, 1.0], [1e-3], [5e7, 5e7, 0.5]])
    variance = federation.weights**2
    region_of = federation.innermost.parent_of
    found = remaining_noise(federation, variance, tier=tier, excluded_silos=excluded_silos)
    for silo in range(len(federation)):
        left = Fraction(variance[silo])
        for region in {int(region_of[silo])} if tier == "region" else set(region_of.tolist()):
            others = sorted(variance[j] for j in np.flatnonzero(region_of == region) if j != silo)
            left += sum(map(Fraction, others[: max(0, len(others) - excluded_silos)]))
        assert found[silo] == pytest.approx(float(left), rel=1e-14, abs=0)
