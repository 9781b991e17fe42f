"""All tests of an audit together err no more often than its confidence admits."""

import numpy as np
import pytest
from faults import made

from fulcrum.audit.evidence.judging import Errors, probe
from fulcrum.audit.replays.canary_game import audit


class Spending(float):
    """An error that a test may make; every comparison with it adds it to what was spent."""

    __array_ufunc__ = None  # numbers of NumPy leave the comparison to this class

    def __new__(cls, value, spent):
        number = super().__new__(cls, value)
        number.spent = spent
        return number

    def __gt__(self, p_value):
        self.spent.append(float(self))
        return float(self) > p_value

    def __truediv__(self, parts):
        return Spending(float(self) / parts, self.spent)


@pytest.mark.parametrize(("views", "probes"), [(1, 0), (4, 0), (4, 5), (0, 3), (1_000, 40)])
@pytest.mark.parametrize("confidence", [0.95, 0.99999])
def test_the_errors_of_all_tests_add_up_to_what_the_confidence_admits(views, probes, confidence):
    errors = Errors.share(views, probes, confidence)
    bounds, noise = 3 * views, 12 * views + 8 * probes
    assert errors.tests == bounds + noise
    assert bounds * errors.bound == pytest.approx(0.9 * (1 - confidence) if views else 0.0)
    assert noise * errors.noise == pytest.approx(0.1 * (1 - confidence))


def test_a_probe_makes_no_test_that_it_does_not_pay_for():
    spent = []
    errors = Errors(bound=0.01, noise=Spending(1e-6, spent), tests=1)
    drawn = np.random.default_rng(5).standard_normal((2, 4, 2_000))
    probe("release", "lille", drawn[0], errors, updates=np.abs(drawn[1]), parameters=40)
    assert len(spent) == 8


@pytest.mark.parametrize(
    "options", [{}, {"purpose": "deployment"}, {"recipe": "joint"}, {"colluders": 1, "dropouts": 1}]
)
def test_an_audit_makes_no_test_of_noise_that_it_does_not_pay_for(monkeypatch, options):
    spent, allowed = [], []
    shared = Errors.share

    def watched(views, probes, confidence):
        errors = shared(views, probes, confidence)
        allowed.append(errors.noise * (12 * views + 8 * probes))
        return Errors(bound=errors.bound, noise=Spending(errors.noise, spent), tests=errors.tests)

    monkeypatch.setattr(Errors, "share", watched)
    plan = made(sizes={"north": [100] * 6, "west": [300, 200, 100]}, rounds=3, **options)
    drawn = np.random.default_rng(5).standard_normal((4, 2_000))
    audit(
        plan,
        trials=1_000,
        seed=3,
        confidence=0.95,
        probing=[lambda errors: [probe("release", "lille", drawn, errors, parameters=40)]],
        probes=1,
    )
    assert allowed == [pytest.approx(0.1 * 0.05)]
    assert 0.2 * allowed[0] < sum(spent) <= allowed[0] * (1 + 1e-9)
