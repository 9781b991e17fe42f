from dataclasses import replace

import numpy as np
import pytest

from fulcrum.core.choices import EVEN_HEADS, EVEN_SCALE, HEADS, ONE_SCALE, SPECTRUM
from fulcrum.rules.random_effects_rule import RandomEffectsRule
from fulcrum.rules.server_rule import RoundSums
from fulcrum.simulation.embedded.server_variants import PoolingVariants

REGIONS = 4


def rules(stream, count):
    """Servers that differ in all that a rule holds."""
    for arm in range(count):
        shares = stream.dirichlet(np.ones(REGIONS) * 3)
        yield RandomEffectsRule(
            shares=shares,
            weight=stream.dirichlet(np.ones(REGIONS) * 3),
            variance=stream.uniform(1e-4, 1e-2, REGIONS),
            least_noise=float(stream.uniform(1e-3, 1e-1)),
            scale=[0.2, 0.7, 1.0][arm % 3],
            rounds=[5, 20][arm // 3],
            clip_norm=float(stream.uniform(0.5, 2)),
            shrinks=[True, False, HEADS, EVEN_HEADS][arm % 4],
            least_influence=[0.0, 0.6][arm % 2],
            disputed_influence=[0.9, 0.0, 0.8][arm % 3],
        )


@pytest.mark.parametrize("classes", [2, 3, None])
@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("rows", [7, 1500])
def test_arms_together_do_what_each_does_alone(classes, spread, rows):
    stream = np.random.default_rng(0)
    width = classes or 1
    shape = (rows, width)
    chosen = list(rules(stream, 6))
    together = PoolingVariants(chosen, coordinates=rows * width, classes=classes)
    states = [rule.begin(np.zeros(shape)) for rule in chosen]
    for _ in range(5):
        signal = 0.2 + spread * stream.standard_normal((REGIONS, *shape, 1))
        sums = signal + 0.05 * stream.standard_normal((REGIONS, *shape, len(chosen)))
        sums *= np.sqrt(7 / rows)  # of one norm, as what is clipped has
        moved = together.advance(sums.reshape(REGIONS, -1, len(chosen))).reshape(*shape, -1)
        for arm, rule in enumerate(chosen):
            told = RoundSums(values=sums[..., arm], present=np.ones(REGIONS, dtype=bool), classes=classes)
            states[arm], _ = rule.step(states[arm], told)
            assert moved[..., arm] == pytest.approx(states[arm].model, abs=1e-12)
    assert np.abs(moved).max() * np.sqrt(rows / 7) > 0.01


@pytest.mark.parametrize("classes", [2, 6])
def test_arms_with_different_priors_are_each_shrunk_by_their_own(classes):
    stream, rows = np.random.default_rng(1), 9
    plain = list(rules(stream, 4))
    first, second = stream.uniform(0.01, 4, rows - 1), stream.uniform(0.01, 4, rows - 1)
    chosen = [
        plain[0],
        replace(plain[1], shrinks=SPECTRUM, spectrum=first),
        replace(plain[2], shrinks=SPECTRUM, spectrum=second),
        replace(plain[3], shrinks=SPECTRUM, spectrum=first),
        replace(plain[3], shrinks=ONE_SCALE, spectrum=first),
        replace(plain[3], shrinks=EVEN_SCALE, spectrum=first),
        replace(plain[3], shrinks=HEADS),
        replace(plain[3], shrinks=EVEN_HEADS),
    ]
    together = PoolingVariants(chosen, coordinates=rows * classes, classes=classes)
    sums = 0.1 * stream.standard_normal((REGIONS, rows, classes, 1)) * np.ones(len(chosen))
    moved = together.advance(sums.reshape(REGIONS, -1, len(chosen))).reshape(rows, classes, -1)
    models = []
    for arm, rule in enumerate(chosen):
        told = RoundSums(values=sums[..., arm], present=np.ones(REGIONS, dtype=bool), classes=classes)
        models.append(rule.step(rule.begin(np.zeros((rows, classes))), told)[0].model)
        assert moved[..., arm] == pytest.approx(models[-1], abs=1e-12)
    swapped = replace(chosen[1], spectrum=second)
    told = RoundSums(values=sums[..., 1], present=np.ones(REGIONS, dtype=bool), classes=classes)
    other = swapped.step(swapped.begin(np.zeros((rows, classes))), told)[0].model
    assert np.abs(other - models[1]).max() > 1e-4  # the prior matters
    assert swapped.key != chosen[1].key
    assert np.abs(models[4] - models[3]).max() > 1e-4
    assert np.array_equal(models[5], models[4]) == (classes == 2)  # with few classes no factor is evened out
    assert np.array_equal(models[7], models[6]) == (classes == 2)
    assert len({rule.key for rule in chosen}) == len(chosen)


def test_a_model_that_has_not_moved_keeps_its_step():
    rule = next(rules(np.random.default_rng(0), 1))
    together = PoolingVariants([rule], coordinates=6, classes=2)
    state = rule.begin(np.zeros((3, 2)))
    for sums in (np.zeros((REGIONS, 3, 2)), np.full((REGIONS, 3, 2), 0.5) * [1, -1]):
        moved = together.advance(sums.reshape(REGIONS, 6, 1))
        state, _ = rule.step(state, RoundSums(values=sums, present=np.ones(REGIONS, dtype=bool), classes=2))
        assert moved[:, 0] == pytest.approx(state.model.ravel(), abs=1e-15)
