"""A release under a plan that protects persons: rows in, each clipped in the core, and one sum out."""

import logging
import math

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.messages.layout import layout_of
from fulcrum.core.noise.noise_sources import SecureNoise, SeededNoise
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.releasing import GradientSum, release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import FulcrumError, ReleaseError

SIZES = {"north": {"caen": 4.0, "lille": 6.0}, "south": {"nice": 5.0}}
MODEL = {"weight": np.zeros((2, 16)), "bias": np.zeros(2)}
ROWS = np.random.default_rng(0).normal(size=(6, 34))


def made(purpose, **options):
    options = {"rounds": 3, "epsilon": 1.0, "parameters": 34, "unit": "person", "unit_name": "patient"} | options
    return fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), purpose=purpose, **options)


@pytest.fixture(scope="module")
def research():
    return made("research")


@pytest.fixture(scope="module")
def deployment():
    return made("deployment")


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "lille.ledger", silo="lille") as opened:
        yield opened


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(SecureNoise, "integers", lambda self, *, width, count: np.zeros(count, dtype=np.int64))


def test_research_releases_the_sum_of_clipped_rows_plus_seeded_noise(research):
    noise = SeededNoise(seed=4)
    index = research.federation.silo_names.tolist().index("lille")
    drawn = noise.standard_normal(round_number=2, block=index, shape=(34,))
    rows = [ROWS[0], ROWS[1:3] * 0.01, ROWS[3:]]
    sent = release(None, research, "lille", 2, gradients=iter(rows), model=MODEL, noise=noise)
    clipped = sum(row / max(1.0, np.linalg.norm(row)) for row in np.vstack(rows))
    weight, multiplier = research.weights[index], research.noise_multiplier[index]
    assert sent.values == pytest.approx(weight * (clipped + multiplier * drawn))
    assert sent.arrays()["weight"].shape == (2, 16)
    assert sum(research.weights * [4, 6, 5]) == pytest.approx(1)


def test_deployment_releases_integers_whose_signal_is_the_clipped_sum(deployment, ledger, silent):
    sent = release(None, deployment, "lille", 1, gradients=ROWS, ledger=ledger)
    index = deployment.federation.silo_names.tolist().index("lille")
    clipped = (ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)).sum(axis=0)
    assert sent.values.dtype == np.int64
    lost = np.abs(sent.values * sent.step - deployment.weights[index] * clipped)
    assert (lost < 6 * sent.step).all()  # every row is cut by itself
    assert sent.layout.shapes == ((34,),)
    assert ledger.entries()[0].cost.shifts == pytest.approx(verified_plan(deployment).release_cost("lille"))


def test_the_noise_is_as_wide_as_the_plan_says(tmp_path):
    many = made("deployment", parameters=20_000, rounds=1)
    with Ledger.open(tmp_path / "many.ledger", silo="lille") as book:
        sent = release(None, many, "lille", 1, gradients=[], ledger=book)
    width = many.lattice_width(many.federation.silo_names.tolist().index("lille"))
    assert sent.values.std() == pytest.approx(width, rel=0.03)


def test_a_row_that_is_not_finite_is_zero_for_its_person_alone(deployment, ledger, silent, caplog):
    rows = ROWS.copy()
    rows[2] = np.nan
    with caplog.at_level(logging.CRITICAL, logger="fulcrum.alarm"):
        sent = release(None, deployment, "lille", 1, gradients=rows, ledger=ledger)
    assert "the gradients of 1 patients are not finite" in caplog.text
    assert (
        sent.values == release(None, deployment, "lille", 2, gradients=np.delete(ROWS, 2, 0), ledger=ledger).values
    ).all()


def refused(plan, code, update=None, **options):
    with pytest.raises(FulcrumError) as caught:
        release(update, plan, "lille", 1, **options)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_units_do_not_mix(purpose, research, deployment, ledger):
    persons = {"research": research, "deployment": deployment}[purpose]
    silos = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=3, epsilon=1.0, parameters=34, purpose=purpose)
    needed = {"ledger": ledger} if purpose == "deployment" else {"noise": SeededNoise(seed=0)}
    update = np.ones(34)
    assert "one row for each patient" in refused(persons, "release.gradients-missing", update, **needed)
    refused(persons, "release.gradients-missing", update, gradients=ROWS, **needed)
    refused(persons, "release.gradients-missing", **needed)
    assert "unit='person'" in refused(silos, "release.gradients-unexpected", gradients=ROWS, **needed)
    refused(silos, "release.gradients-unexpected", update, gradients=ROWS, **needed)
    refused(silos, "release.gradients-unexpected", update, model=MODEL, **needed)
    refused(silos, "arrays.missing", **needed)
    assert ledger.sequence == 0


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (np.ones((2, 33)), "release.row-shape"),
        ([ROWS[0], ROWS[1, :1]], "release.row-shape"),
        (np.ones((1, 1, 34)), "release.row-shape"),
        ([ROWS[0], np.ones(34, dtype=int)], "arrays.not-floats"),
        ([np.ma.masked_array(ROWS[0], mask=True)], "arrays.masked"),
        ([ROWS[0].astype(object)], "arrays.not-floats"),
        ({"weight": ROWS}, "release.gradients-type"),
        ("rows", "release.gradients-type"),
        (7.0, "release.gradients-type"),
    ],
    ids=str,
)
def test_what_is_not_rows_is_refused_before_anything_is_recorded(deployment, ledger, rows, code):
    refused(deployment, code, gradients=rows, ledger=ledger)
    assert ledger.sequence == 0


def test_the_model_of_another_size_is_refused(deployment, research, ledger):
    refused(deployment, "release.parameters-differ", gradients=ROWS, model={"bias": np.zeros(2)}, ledger=ledger)
    unsized = made("research", parameters=None)
    refused(unsized, "release.model-missing", gradients=ROWS, noise=SeededNoise(seed=0))


def test_a_retry_resends_the_same_bytes_and_reads_no_row(deployment, ledger):
    first = release(None, deployment, "lille", 1, gradients=ROWS, model=MODEL, ledger=ledger, input_digest="model-0")

    def never():
        raise AssertionError
        yield

    again = release(None, deployment, "lille", 1, gradients=never(), model=MODEL, ledger=ledger, input_digest="model-0")
    assert again.to_bytes() == first.to_bytes()
    assert ledger.sequence == 1


def test_a_sum_is_released_in_its_own_round_of_its_own_plan_alone(deployment, ledger):
    sound, layout = verified_plan(deployment), layout_of(MODEL)
    total = GradientSum(ROWS, layout, sound, "lille", 1)
    other = verified_plan(made("deployment", epsilon=2.0))
    for wrong in (
        GradientSum(ROWS, layout, other, "lille", 1),
        GradientSum(ROWS, layout, sound, "caen", 1),
        GradientSum(ROWS, layout, sound, "lille", 2),
        GradientSum(ROWS, layout_of({"update": np.zeros(34)}), sound, "lille", 1),
    ):
        refused(deployment, "release.sum-of-other-release", gradients=wrong, model=MODEL, ledger=ledger)

    class Unclipped(GradientSum):
        def values(self, mechanism):
            return np.full(len(ROWS[0]), 2**40)

    forged = Unclipped(ROWS, layout, sound, "lille", 1)
    refused(deployment, "release.gradients-type", gradients=forged, model=MODEL, ledger=ledger)
    assert release(None, deployment, "lille", 1, gradients=total, model=MODEL, ledger=ledger).round_number == 1
    silos = verified_plan(fulcrum.plan("isic-paper", rounds=2, epsilon=1.0))
    with pytest.raises(ReleaseError, check=coded("release.gradients-unexpected")):
        GradientSum(ROWS, layout, silos, "region-1-1", 1)


def test_more_rows_than_declared_are_scaled_down_to_the_declared_number(deployment, ledger, silent):
    sent = release(None, deployment, "lille", 1, gradients=np.tile(ROWS[:1], (50, 1)), ledger=ledger)
    index = deployment.federation.silo_names.tolist().index("lille")
    largest = 6 * deployment.weights[index]
    norm = math.sqrt(sum(int(value) ** 2 for value in sent.values)) * sent.step
    assert largest * 0.99 < norm <= largest


def test_no_round_past_the_plan(deployment, ledger):
    for number in (1, 2, 3):
        release(None, deployment, "lille", number, gradients=ROWS, ledger=ledger)
    spent = fulcrum.core.accounting.epsilon_of_shift(
        math.sqrt(ledger.total_cost.shifts["region"]), delta=deployment.target.accounted_delta, accountant="renyi"
    )
    assert spent == pytest.approx(deployment.worst_epsilon("region"), rel=1e-6)
    assert spent <= 1.0 * (1 + 1e-12)
