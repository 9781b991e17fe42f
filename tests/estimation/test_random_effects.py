"""The pooled estimate: check values, no bias where regions agree, the variance it states, and the influence it keeps."""

import numpy as np
import pytest

from fulcrum.rules.random_effects import mix_shares, mixing_share, pool_sums

CHECK = np.array([[1, 2, 0, -1], [1.2, 1.5, 0.3, -0.8], [3, 0, 1, 0.0]])
VARIANCE, SHARES = np.array([0.01, 0.05, 0.2]), np.array([0.6, 0.3, 0.1])


def test_the_check_values_of_the_theory():
    found = pool_sums(CHECK, variance=VARIANCE, shares=SHARES)
    assert found.estimate == pytest.approx([1.2263, 1.6860, 0.1716, -0.8576], abs=5e-5)
    assert float(found.heterogeneity) == pytest.approx(0.26452, abs=5e-6)
    assert found.coefficients == pytest.approx([0.6238, 0.2922, 0.0840], abs=5e-5)
    assert float(found.variance) == pytest.approx(found.coefficients**2 @ VARIANCE, rel=1e-14)
    # t² from the printed Q, by the formula.
    precision = 1 / VARIANCE
    spread = precision.sum() - (precision**2).sum() / precision.sum()
    assert float(found.heterogeneity) == pytest.approx((52.016 - 4 * 2) / (4 * spread), abs=1e-5)


def test_without_heterogeneity_precision_counts_and_with_much_of_it_shares_do():
    same = pool_sums(np.ones((3, 4)), variance=VARIANCE, shares=SHARES)
    assert same.coefficients == pytest.approx(1 / VARIANCE / (1 / VARIANCE).sum())
    apart = pool_sums(1e6 * CHECK, variance=VARIANCE, shares=SHARES)
    assert apart.coefficients == pytest.approx(SHARES, rel=1e-9)
    exact = pool_sums(CHECK, variance=VARIANCE, shares=SHARES, exact=True)
    assert np.array_equal(exact.coefficients, SHARES)


def test_coordinates_that_are_not_free_do_not_count():
    doubled = np.concatenate([CHECK, -CHECK], axis=1) / np.sqrt(
        2
    )  # a head of two classes, its common shift projected out
    found = pool_sums(doubled, variance=VARIANCE, shares=SHARES, free=4)
    assert float(found.heterogeneity) == pytest.approx(
        float(pool_sums(CHECK, variance=VARIANCE, shares=SHARES).heterogeneity)
    )


def test_one_region_is_taken_as_it_is():
    found = pool_sums(CHECK[:1], variance=VARIANCE[:1], shares=np.ones(1))
    assert np.array_equal(found.estimate, CHECK[0])
    assert (float(found.heterogeneity), float(found.variance)) == (0.0, 0.01)


def test_arms_side_by_side_are_what_each_is_alone():
    values = np.stack([CHECK, CHECK[::-1], 0 * CHECK], axis=-1)
    variance = np.stack([VARIANCE, 2 * VARIANCE, VARIANCE], axis=-1)
    together = pool_sums(values, variance=variance, shares=SHARES[:, None], least=0.5)
    for arm in range(3):
        alone = pool_sums(values[..., arm], variance=variance[:, arm], shares=SHARES, least=0.5)
        assert together.estimate[:, arm] == pytest.approx(alone.estimate, rel=1e-13, abs=1e-15)
        assert together.variance[arm] == pytest.approx(float(alone.variance), rel=1e-13)


def test_where_regions_agree_the_estimate_has_no_bias_and_the_variance_it_states():
    draw = np.random.default_rng(11)
    truth, trials = np.linspace(-1, 1, 40), 3000
    variance, shares = np.array([0.02, 0.1, 0.5, 2.0]), np.array([0.4, 0.3, 0.2, 0.1])
    standardised = np.empty((trials, len(truth)))
    for trial in range(trials):
        values = truth + np.sqrt(variance)[:, None] * draw.standard_normal((4, len(truth)))
        found = pool_sums(values, variance=variance, shares=shares)
        standardised[trial] = (found.estimate - truth) / np.sqrt(found.variance)
    count = standardised.size
    assert abs(standardised.mean()) < 4 / np.sqrt(count)  # Monte-Carlo slack: four standard errors
    covered = (np.abs(standardised) < 1.959964).mean()
    slack = 4 * np.sqrt(0.95 * 0.05 / count)
    # t² is read off the same noise, a little of which the stated variance does not know of.
    assert 0.95 - slack - 0.005 < covered < 0.95 + slack
    # The test would notice a variance that is off by a third.
    assert (np.abs(standardised * np.sqrt(1.5)) < 1.959964).mean() < 0.95 - slack - 0.005
    assert (np.abs(standardised / np.sqrt(1.5)) < 1.959964).mean() > 0.95 + slack


def test_given_its_coefficients_the_variance_is_exact():
    draw = np.random.default_rng(3)
    found = pool_sums(CHECK, variance=VARIANCE, shares=SHARES, least=0.9)
    noise = np.sqrt(VARIANCE)[:, None] * draw.standard_normal((3, 200_000))
    assert (found.coefficients @ noise).var() == pytest.approx(float(found.variance), rel=4 * np.sqrt(2 / 200_000))


@pytest.mark.parametrize("least", [0.0, 0.4, 0.9, 1.0])
def test_every_region_keeps_the_least_of_its_share_with_the_smallest_mix(least):
    values, shares = np.ones((3, 4)), np.array([0.2, 0.2, 0.6])  # precision alone would leave the last next to nothing
    plain = pool_sums(values, variance=VARIANCE, shares=shares)
    found = pool_sums(values, variance=VARIANCE, shares=shares, least=least)
    assert found.coefficients.sum() == pytest.approx(1)
    assert (found.coefficients >= least * shares * (1 - 1e-12)).all()
    assert float(found.variance) == pytest.approx(found.coefficients**2 @ VARIANCE)
    if least == 0:
        assert np.array_equal(found.coefficients, plain.coefficients)
    else:
        assert (found.coefficients / shares).min() == pytest.approx(least)
    part = mixing_share(plain.coefficients, shares, least)
    assert np.array_equal(found.coefficients, mix_shares(plain.coefficients, shares, part))
    smaller = mix_shares(plain.coefficients, shares, 0.99 * part)
    assert least == 0 or (smaller < least * shares).any()


def test_the_same_sums_give_the_same_bits():
    values = np.random.default_rng(0).standard_normal((5, 1000))
    variance, shares = np.linspace(0.1, 2, 5), np.full(5, 0.2)
    first, second = (pool_sums(values.copy(), variance=variance, shares=shares) for _ in range(2))
    assert first.estimate.tobytes() == second.estimate.tobytes()
