"""The built-in federations have the structure and the dispersion that the paper gives."""

import os
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded

from fulcrum.errors import FederationError, ParameterError
from fulcrum.readers.profiles import DESCRIPTIONS, PROFILES, cellular, profile, profile_from_counts
from fulcrum.simulation.data.eicu import read_eicu
from fulcrum.simulation.data.heart_disease import read_heart_disease

COUNTS = {
    "balanced": [16] * 6,
    "balanced-4": [24] * 4,
    "mild": [24, 24, 24, 12, 12],
    "severe": [60, 20, 8, 4, 4],
    "consortium": [30, 10, 5, 3, 1, 1],
}


def dispersion(federation):
    """The definition of the paper: 1 - <rho>_V / rho_max, with rho = W / V by region."""
    squares = federation.weights**2
    regions = federation.innermost.parent_of
    total = np.bincount(regions, squares)
    largest = np.zeros(len(total))
    np.maximum.at(largest, regions, squares)
    exposure = largest / total
    return 1 - (total @ exposure) / total.sum() / exposure.max()


@pytest.mark.parametrize("name", COUNTS)
def test_equal_profiles_have_the_counts_of_the_paper(name):
    federation = profile(name)
    assert np.bincount(federation.innermost.parent_of).tolist() == COUNTS[name]
    assert set(federation.sizes) == {200}
    assert federation.name == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("balanced", 0),
        ("balanced-4", 0),
        ("mild", 0.375),
        ("severe", 0.791667),
        ("consortium", 0.88),
        ("isic-paper", 0.1441),
        ("isic-hospital", 0.0615),
    ],
)
def test_profiles_have_the_dispersion_of_the_paper(name, expected):
    assert dispersion(profile(name)) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(("seed", "percent"), [(0, 85.6), (1, 82.8), (2, 87.6)])
def test_cellular_has_the_three_dispersions_that_the_paper_prints(seed, percent):
    federation = cellular(seed)
    assert federation.node_count("region") == 60
    assert np.bincount(federation.innermost.parent_of).min() == 1
    assert round(100 * dispersion(federation), 1) == percent


def test_cellular_by_name_is_seed_0():
    assert profile("cellular").digest == cellular(0).digest != cellular(1).digest


def test_isic_profiles_hold_the_same_centres():
    assert sorted(profile("isic-paper").sizes) == sorted(profile("isic-hospital").sizes)
    assert profile("isic-paper").sizes.sum() == 18597


@pytest.mark.parametrize(
    ("name", "silos", "regions", "records"),
    [("heart", 4, 1, 740), ("fets", 23, 1, 1251), ("kits19", 89, 1, 300), ("eicu", 186, 5, 2179)],
)
def test_real_federations_have_the_published_numbers_of_sites_and_records(name, silos, regions, records):
    # FeTS 2022 has 1,251 training cases and KiTS19 300 (210 train, 90 test); heart and eICU: the readers' counts.
    federation = profile(name)
    assert (len(federation), federation.node_count("region"), federation.sizes.sum()) == (silos, regions, records)


@pytest.mark.skipif("FULCRUM_DATA" not in os.environ, reason="needs the tables of the federations")
@pytest.mark.parametrize(("name", "reader"), [("eicu", read_eicu), ("heart", read_heart_disease)])
def test_sizes_by_region_are_those_of_the_source(name, reader):
    stated, counted = (
        {
            region: sorted(federation.sizes[federation.innermost.parent_of == number].tolist())
            for number, region in enumerate(federation.innermost.nodes)
        }
        for federation in (profile(name), reader(Path(os.environ["FULCRUM_DATA"]) / "federations").federation())
    )
    assert list(stated.values()) == list(counted.values())


def test_regions_and_silos_have_readable_names():
    assert profile("consortium").innermost.nodes[0] == "country-1"
    assert profile("severe").silo_name(60) == "region-2-1"
    assert cellular().innermost.nodes[-1] == "station-60"


def test_every_profile_has_a_description_of_one_sentence():
    assert tuple(DESCRIPTIONS) == PROFILES
    for name, text in DESCRIPTIONS.items():
        assert text.endswith(".")
        assert "\n" not in text
        assert len(profile(name)) > 0


def test_an_unknown_profile_is_refused_with_the_nearest():
    with pytest.raises(FederationError, check=coded("profile.name-unknown", name="sevre")):
        profile("sevre")


@pytest.mark.parametrize("counts", [[3, 0], [3, -1], [3, 1.5], [3, "4"], [3, None]])
def test_a_count_that_is_not_a_whole_number_above_0_is_refused(counts):
    with pytest.raises(ParameterError, check=coded("profile.silos-range", region="region", number=2)):
        profile_from_counts(counts)


@pytest.mark.parametrize("records", [0, -3, float("nan"), float("inf")])
def test_a_size_that_is_not_at_least_1_is_refused(records):
    with pytest.raises(ParameterError, check=coded("federation.records-range", least=1)):
        profile_from_counts([2], records)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None])
def test_a_seed_that_is_not_a_whole_number_is_refused(seed):
    with pytest.raises(ParameterError, check=coded("number.whole-range", name="seed", least=0)):
        cellular(seed)


def test_numpy_counts_are_whole_numbers():
    assert len(profile_from_counts(np.array([2, 3]))) == 5
