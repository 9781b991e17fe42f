"""The spectrum prior against a slow reading of its definition, and the limits in which its answer is known."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from fulcrum.rules.shrinkage import PRIOR_SCALES, shrink_rows
from fulcrum.rules.spectrum_prior import GAMMAS, shrink_by_one_scale, shrink_by_spectrum

STREAM = np.random.default_rng(5)
SPREAD = np.array([8.0, 3.0, 1.0, 0.4, 0.1, 1.0])


def by_definition(rows, spread, variance):
    """Two classes: one free coordinate a row, along (1, -1) / sqrt(2); every density is SciPy's."""
    along = (rows[:, 0] - rows[:, 1]) / math.sqrt(2)
    means, logs = [], []
    for gamma in GAMMAS:
        prior = np.array([(value / max(spread)) ** gamma for value in spread])
        density = np.array(
            [
                [norm.pdf(value, scale=math.sqrt(variance * (1 + scale * part))) for scale in PRIOR_SCALES]
                for value, part in zip(along, prior, strict=True)
            ]
        )
        weights = np.full(len(PRIOR_SCALES), 1 / len(PRIOR_SCALES))
        for _ in range(50):
            posterior = density * weights
            weights = (posterior / posterior.sum(axis=1, keepdims=True)).mean(axis=0)
        posterior = density * weights
        shrink = np.array([[scale * part / (1 + scale * part) for scale in PRIOR_SCALES] for part in prior])
        means.append((posterior * shrink).sum(axis=1) / posterior.sum(axis=1))
        logs.append(np.log(posterior.sum(axis=1)).sum())
    share = np.exp(np.array(logs) - max(logs))
    return rows * (share @ np.array(means) / share.sum())[:, None]


@pytest.mark.parametrize("variance", [0.01, 0.5, 20.0])
def test_rows_become_the_posterior_means_averaged_by_likelihood(variance):
    along = STREAM.normal(size=6) * np.sqrt(SPREAD)
    rows = along[:, None] * np.array([1, -1]) / math.sqrt(2)
    expected = by_definition(rows, SPREAD, variance)
    assert shrink_by_spectrum(rows, SPREAD, variance=variance, free=1) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def by_definition_of_one_scale(rows, spread, variance):
    """Two classes, as above: one scale for all rows, and every scale and gamma weighs its likelihood."""
    along = (rows[:, 0] - rows[:, 1]) / math.sqrt(2)
    total, weights = np.zeros(len(rows)), 0.0
    for gamma in GAMMAS:
        for scale in PRIOR_SCALES[1:]:
            prior = np.array([scale * (value / max(spread)) ** gamma for value in spread])
            weight = np.prod(norm.pdf(along, scale=np.sqrt(variance * (1 + prior))))
            total, weights = total + weight * prior / (1 + prior), weights + weight
    return rows * (total / weights)[:, None]


@pytest.mark.parametrize("variance", [0.01, 0.5, 20.0])
def test_under_one_scale_rows_become_the_posterior_means_over_scales_and_gammas(variance):
    along = STREAM.normal(size=6) * np.sqrt(SPREAD)
    rows = along[:, None] * np.array([1, -1]) / math.sqrt(2)
    expected = by_definition_of_one_scale(rows, SPREAD, variance)
    assert shrink_by_one_scale(rows, SPREAD, variance=variance, free=1) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_under_one_scale_inputs_of_one_variance_are_shrunk_alike():
    rows = STREAM.normal(size=(30, 4))
    kept = shrink_by_one_scale(rows, np.full(30, 3.0), variance=0.3, free=3) / rows
    assert kept == pytest.approx(np.full((30, 4), kept[0, 0]))
    assert 0 < kept[0, 0] < 1


def test_one_scale_has_a_lower_risk_than_several_where_signal_follows_the_spectrum():
    stream = np.random.default_rng(10)
    spread, gains = np.geomspace(10, 0.01, 32), []
    for _ in range(400):
        signal, noise = stream.normal(size=32) * spread / 10, stream.normal(size=32)
        rows = (signal + noise)[:, None] * np.array([1, -1]) / math.sqrt(2)
        kept = [prior(rows, spread, variance=1.0, free=1) for prior in (shrink_by_one_scale, shrink_by_spectrum)]
        errors = [(((part[:, 0] - part[:, 1]) / math.sqrt(2) - signal) ** 2).sum() for part in kept]
        gains.append(errors[1] - errors[0])
    assert np.mean(gains) > 3 * np.std(gains) / math.sqrt(400)


@pytest.mark.parametrize("classes", [2, 4])
def test_inputs_of_one_variance_are_shrunk_as_without_a_spectrum(classes):
    rows = STREAM.normal(size=(30, classes))
    plain = shrink_rows(rows, variance=0.3, free=classes - 1)
    for level in (1.0, 1e-6, 300.0):
        shrunk_rows = shrink_by_spectrum(rows, np.full(30, level), variance=0.3, free=classes - 1)
        assert shrunk_rows == pytest.approx(plain, rel=1e-12)


def test_a_row_of_an_input_that_hardly_varies_keeps_less_of_itself():
    rows = np.repeat(np.array([[1.5, -1.5]]), 6, axis=0)
    kept = shrink_by_spectrum(rows, SPREAD, variance=2.0, free=1)[:, 0]
    assert (np.diff(kept[:5]) < 0).all()
    assert kept[5] == pytest.approx(kept[2], rel=1e-12)
    assert (kept > 0).all()
    assert (kept < 1.5).all()


def test_the_prior_lowers_the_risk_where_signal_follows_the_spectrum_and_costs_little_where_it_does_not():
    stream = np.random.default_rng(9)
    spread = np.geomspace(10, 0.01, 32)
    gain, loss = [], []
    for _ in range(300):
        noise, draw = stream.normal(size=32), stream.normal(size=32)
        for signal, results in ((draw * spread / 3, gain), (stream.permutation(draw * spread) / 3, loss)):
            rows = (signal + noise)[:, None] * np.array([1, -1]) / math.sqrt(2)
            kept = [
                shrink_by_spectrum(rows, spread, variance=1.0, free=1),
                shrink_rows(rows, variance=1.0, free=1),
            ]
            errors = [(((part[:, 0] - part[:, 1]) / math.sqrt(2) - signal) ** 2).sum() for part in kept]
            results.append(errors[0] - errors[1])
    assert np.mean(gain) < -3 * np.std(gain) / math.sqrt(300)
    assert np.mean(loss) < 2.0  # of an error of about 32 without any shrinkage


@pytest.mark.parametrize("prior", [shrink_by_spectrum, shrink_by_one_scale])
def test_variants_together_are_shrunk_as_each_alone_and_no_noise_leaves_rows_unchanged(prior):
    rows, noise = STREAM.normal(size=(6, 3, 3)), np.array([0.1, 0.0, 4.0])
    together = prior(rows, SPREAD, variance=noise, free=2)
    for variant, variance in enumerate(noise):
        alone = prior(rows[..., variant], SPREAD, variance=variance, free=2)
        assert np.array_equal(together[..., variant], alone)
    assert np.array_equal(together[..., 1], rows[..., 1])
