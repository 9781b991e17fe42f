import dataclasses
import hashlib
import itertools
import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st
from repeated_noise import RepeatedNoise

import fulcrum
from fulcrum.core.messages.layout import Layout, flatten_arrays
from fulcrum.core.messages.release_message import Release
from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian
from fulcrum.core.noise.keystream import repeated_bytes
from fulcrum.core.noise.mechanism import clip
from fulcrum.core.noise.noise_sources import SecureNoise, SeededNoise
from fulcrum.core.plan.plan_file import to_json
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import _lattice_release, prepared_release, release
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.errors import (
    DivergedUpdateError,
    ExchangeError,
    FulcrumError,
    PlanError,
    PolicyError,
    RefusedReleaseError,
    ReleaseError,
)

UPDATE = {"weight": np.ones((2, 16)), "bias": np.ones(2)}
SILO = "region-1-1"


def repeated(terms):
    """The same mechanism with noise that can be drawn again."""
    return dataclasses.replace(terms, noise=RepeatedNoise(bytes(32)))


@pytest.fixture(scope="module")
def research():
    return fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, parameters=34)


@pytest.fixture(scope="module")
def deployment():
    return fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, parameters=34, purpose="deployment")


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "silo.ledger", silo=SILO) as opened:
        yield opened


def test_research_releases_the_weighted_clipped_update_plus_seeded_noise(research):
    noise = SeededNoise(seed=4)
    sent = release(UPDATE, research, SILO, 2, noise=noise)
    index = research.federation.silo_names.tolist().index(SILO)
    drawn = noise.standard_normal(round_number=2, block=index, shape=(34,))
    clipped = np.ones(34) / math.sqrt(34)
    weight = research.federation.weights[index]
    assert sent.values == pytest.approx(weight * (clipped + research.noise_multiplier[index] * drawn))
    assert sent.arrays()["weight"].shape == (2, 16)
    assert (sent.region, sent.round_number, sent.plan_digest) == ("region-1", 2, research.digest)


@pytest.mark.parametrize(("part", "sent"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (1.7, 1.0), (90.0, 1.0)])
@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_a_release_is_clipped_at_the_plans_share_and_scaled_up(purpose, part, sent):
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, parameters=34, purpose=purpose, recipe="joint")
    assert plan.clip_share < 0.1
    update = np.zeros(34)
    update[3] = part * plan.clip_share * plan.clip_norm
    if purpose == "research":
        drawn = SeededNoise(seed=0).standard_normal(round_number=1, block=0, shape=(34,))
        noise = plan.weights[0] * plan.noise_multiplier[0] * plan.clip_norm * drawn
        signal = (release(update, plan, SILO, 1, noise=SeededNoise(seed=0)).values - noise).round(12)
    else:
        terms, layout = release_parameters_of(plan, SILO), Layout(names=("update",), shapes=((34,),))
        made = _lattice_release(update, layout, repeated(terms), 1)
        signal = (made.values - DiscreteGaussian(width=terms.width).sample(34, repeated_bytes(bytes(32)))) * made.step
    equal = 15784 / 18597 / 3  # a region's share by size, equally among its three
    step = 0.0 if plan.lattice_steps is None else float(plan.lattice_steps[0])
    assert signal[3] == pytest.approx(equal * plan.clip_norm * sent, rel=1e-9, abs=step)
    assert not np.delete(signal, 3).any()


def test_deployment_releases_integers_on_the_regions_lattice(deployment, ledger):
    sent = release(UPDATE, deployment, SILO, 1, ledger=ledger)
    assert sent.values.dtype == np.int64
    assert sent.step == deployment.lattice_steps[0]
    index = deployment.federation.silo_names.tolist().index(SILO)
    spread = deployment.noise_multiplier[index] * deployment.federation.weights[index]
    assert np.abs(sent.arrays()["weight"]).max() < 8 * spread
    assert np.abs(sent.values).max() > 1000


def test_noise_is_as_wide_as_the_plan_says(deployment, tmp_path):
    many = fulcrum.plan("isic-paper", rounds=1, epsilon=1.0, parameters=20_000, purpose="deployment")
    with Ledger.open(tmp_path / "many.ledger", silo=SILO) as book:
        sent = release(np.zeros(20_000), many, SILO, 1, ledger=book)
    width = many.lattice_width(many.federation.silo_names.tolist().index(SILO))
    assert sent.values.std() == pytest.approx(width, rel=0.03)
    assert abs(sent.values.mean()) < 5 * width / math.sqrt(20_000)


def test_the_sampler_is_asked_for_the_plans_width_and_its_integers_are_what_is_added(deployment, ledger, monkeypatch):
    asked = []

    def recorded(width):
        asked.append(width)
        return DiscreteGaussian(width=width)

    monkeypatch.setattr("fulcrum.core.noise.noise_sources.DiscreteGaussian", recorded)
    for round_number in (1, 2, 3):
        release(UPDATE, deployment, SILO, round_number, ledger=ledger)
    index = deployment.federation.silo_names.tolist().index(SILO)
    weight, step = deployment.federation.weights[index], deployment.lattice_steps[0]
    width = deployment.noise_multiplier[index] * weight * deployment.clip_norm / step
    assert len(asked) == 3
    assert all(width * (1 - 1e-15) <= found <= width * (1 + 1e-15) for found in asked)
    assert set(asked) == {release_parameters_of(deployment, SILO).width}

    terms, flat = release_parameters_of(deployment, SILO), np.linspace(-1.0, 1.0, 34)
    layout = Layout(names=("update",), shapes=((34,),))
    sent = _lattice_release(flat, layout, repeated(terms), 1)
    noise = DiscreteGaussian(width=terms.width).sample(34, repeated_bytes(bytes(32)))
    assert (sent.values - noise == np.trunc(clip(flat, 1.0) * weight / step)).all()


def test_a_retry_resends_the_same_bytes_free_of_charge(deployment, ledger):
    first = release(UPDATE, deployment, SILO, 1, ledger=ledger, input_digest="model-0")
    spent = ledger.total_cost
    again = release(
        {"weight": np.zeros((2, 16)), "bias": np.zeros(2)}, deployment, SILO, 1, ledger=ledger, input_digest="model-0"
    )
    assert again.to_bytes() == first.to_bytes()
    assert ledger.total_cost == spent
    assert ledger.sequence == 1


def test_another_model_in_the_same_round_is_refused(deployment, ledger):
    release(UPDATE, deployment, SILO, 1, ledger=ledger, input_digest="model-0")
    with pytest.raises(RefusedReleaseError):
        release(UPDATE, deployment, SILO, 1, ledger=ledger, input_digest="model-1")
    assert ledger.sequence == 1


def test_no_round_past_the_plan_and_never_more_than_its_epsilon(deployment, ledger):
    for round_number in (1, 2, 3):
        release(UPDATE, deployment, SILO, round_number, ledger=ledger)
    for wrong in (0, 4, 10**5000, -(10**5000)):  # Python refuses to write the last two as text
        with pytest.raises(ReleaseError, match="outside the plan's rounds 1 to 3"):
            release(UPDATE, deployment, SILO, wrong, ledger=ledger)
    spent = fulcrum.core.accounting.epsilon_of_shift(
        math.sqrt(ledger.total_cost.shifts["region"]), delta=deployment.target.accounted_delta, accountant="renyi"
    )
    assert spent <= 1.0 * (1 + 1e-12)
    assert spent == pytest.approx(deployment.epsilon_above[0], rel=1e-9)


def test_no_two_releases_share_their_noise(deployment, tmp_path):
    values = []
    for number in range(3):
        with Ledger.open(tmp_path / f"{number}.ledger", silo=SILO) as book:
            values.append(release(UPDATE, deployment, SILO, 1, ledger=book).values)
    assert len({row.tobytes() for row in values}) == 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_silo_is_hidden_in_deployment_and_raises_in_research(research, deployment, ledger, caplog, value):
    update = {"weight": np.full((2, 16), value), "bias": np.ones(2)}
    with caplog.at_level(logging.CRITICAL, logger="fulcrum.alarm"):
        sent = release(update, deployment, SILO, 1, ledger=ledger)
    assert "not finite" in caplog.text
    assert np.isfinite(sent.arrays()["weight"]).all()
    with pytest.raises(DivergedUpdateError, match="not finite"):
        release(update, research, SILO, 1, noise=SeededNoise(seed=0))


def test_a_listener_that_fails_does_not_keep_back_the_release_of_a_diverged_silo(deployment, ledger):
    def fail(record):
        raise OSError("no room for logs")

    alarm = logging.getLogger("fulcrum.alarm")
    alarm.addFilter(fail)
    try:
        sent = release(np.full(34, np.nan), deployment, SILO, 1, ledger=ledger)
    finally:
        alarm.removeFilter(fail)
    assert (sent.values.shape, ledger.sequence) == ((34,), 1)


@pytest.mark.parametrize(
    "values", [[1e308, -1e308], [5e-324, 1e300], [5e-324, 0.0], [0.0, 0.0], [np.nan, 1.0], [-np.inf, 1e-320]], ids=str
)
@pytest.mark.filterwarnings("error")
def test_no_value_makes_a_release_fail_whatever_numpy_is_told_to_raise(deployment, ledger, values):
    update = {"weight": np.zeros((2, 16)), "bias": np.array(values)}
    with np.errstate(all="raise"):
        sent = release(update, deployment, SILO, 1, ledger=ledger)
    assert sent.values.shape == (34,)
    assert ledger.sequence == 1


@pytest.fixture(scope="module")
def next_round(tmp_path_factory):
    """A plan of many rounds by recipe; for each and a layout its ledger, and the rounds not released yet."""
    promise = {"rounds": 500, "epsilon": 1.0, "parameters": 34, "purpose": "deployment"}
    plans = {recipe: fulcrum.plan("isic-paper", **promise, recipe=recipe) for recipe in ("paper", "joint")}
    opened = {}

    def of(recipe, layout):
        if (recipe, layout) not in opened:
            ledger = Ledger.open(tmp_path_factory.mktemp("ledger") / "s.ledger", silo=SILO)
            opened[recipe, layout] = ledger, itertools.count(1)
        ledger, rounds = opened[recipe, layout]
        return plans[recipe], ledger, next(rounds)

    yield of
    for ledger, _ in opened.values():
        ledger.close()


@given(
    seed=st.integers(0, 500),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    scale=st.floats(-3, 3),
    shape=st.sampled_from([(34,), (2, 17), (34, 1), (1, 2, 17)]),
    recipe=st.sampled_from(["paper", "joint"]),
)
def test_what_enters_the_noise_never_exceeds_weight_times_the_clip_norm(seed, dtype, scale, shape, recipe, next_round):
    plan, book, round_number = next_round(recipe, (dtype, shape))
    update = (np.random.default_rng(seed).normal(size=shape) * 10.0**scale).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureNoise, "integers", lambda self, *, width, count: np.zeros(count, dtype=np.int64))
        sent = release(update, plan, SILO, round_number, ledger=book)
    weight = plan.federation.weights[0]
    exact = math.sqrt(sum(int(value) ** 2 for value in sent.values.tolist()))
    assert exact * sent.step <= weight * plan.clip_norm
    direction = update.astype(float).ravel() @ sent.values
    assert direction >= 0


@pytest.mark.parametrize("clip_norm", [1.3, "auto"])
@pytest.mark.parametrize("parameters", [1, 2, 3, 50])
def test_nothing_enters_the_noise_beyond_the_clip_norm_on_a_lattice_much_finer_than_the_silos_weight(
    parameters, clip_norm
):
    """There cutting toward zero takes off less than the norm was rounded by."""
    sizes = {"north": {"lille": 1.0, "metz": 1e12 / math.sqrt(parameters)}}
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(sizes),
        rounds=1,
        delta=1e-2,
        epsilon={"aggregator": 40.0},
        parameters=parameters,
        clip_norm=clip_norm,
        purpose="deployment",
    )
    terms = release_parameters_of(plan, "metz")
    assert (terms.clip_share < 1) == (clip_norm == "auto")
    most = Fraction(terms.weight) * Fraction(terms.clip_norm) / Fraction(terms.step)
    assert most > 2**45
    rng = np.random.default_rng(3)
    nothing = SimpleNamespace(integers=lambda *, width, count: np.zeros(count, dtype=np.int64))
    silent = dataclasses.replace(terms, noise=nothing)
    for _ in range(1000):
        layout, flat = flatten_arrays(rng.normal(size=parameters) * 1e4)
        entered = _lattice_release(flat, layout, silent, 1).values.tolist()
        assert most**2 * (1 - Fraction(1, 10**12)) < sum(value**2 for value in entered) <= most**2
        flat *= terms.clip_share / np.linalg.norm(flat) * (1 + 1e-16 * rng.normal())  # where clipping begins
        assert sum(value**2 for value in _lattice_release(flat, layout, silent, 1).values.tolist()) <= most**2


@pytest.mark.parametrize("shapes", [[(), (33,)], [(0,), (34,)], [(2, 0, 3), (34,)]])
def test_scalars_and_empty_arrays_are_part_of_an_update(deployment, ledger, shapes):
    sent = release([np.zeros(shape) for shape in shapes], deployment, SILO, 1, ledger=ledger)
    assert [array.shape for array in sent.arrays().values()] == shapes


def refused(update, plan, **options):
    with pytest.raises(FulcrumError) as caught:
        release(update, plan, options.pop("silo", SILO), options.pop("round_number", 1), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_an_update_is_refused(deployment, ledger):
    counts = {"weight": np.ones((2, 16)), "bias": np.ones(2, dtype=int)}
    assert "'bias' is int64, not floating point" in refused(counts, deployment, ledger=ledger)
    assert "has 32 parameters, the plan was made for 34" in refused(
        {"weight": np.ones((2, 16))}, deployment, ledger=ledger
    )
    release(UPDATE, deployment, SILO, 1, ledger=ledger)
    other = {"weight": np.ones((16, 2)), "bias": np.ones(2)}
    assert "other names or shapes than that of round 1" in refused(other, deployment, ledger=ledger, round_number=2)
    assert ledger.sequence == 1


@pytest.mark.parametrize(
    "update",
    [
        (array for array in UPDATE.values()),
        iter([np.ones(34)]),
        map(np.asarray, [np.ones(34)]),
        {1: np.ones(17), "1": np.ones(17)},
        {"a": np.ma.masked_array(np.ones(34), mask=True)},
        np.ones(34, dtype=object),
    ],
    ids=["generator", "iterator", "map", "one name twice", "masked", "objects"],
)
def test_what_could_lose_a_layer_is_refused_before_anything_is_recorded(research, deployment, ledger, update):
    refused(update, deployment, ledger=ledger)
    assert (ledger.sequence, ledger.allowance) == (0, None)
    refused(update, research, noise=SeededNoise(seed=1))


def test_purposes_do_not_mix(research, deployment, ledger):
    assert "refuses seeded noise" in refused(UPDATE, deployment, ledger=ledger, noise=SeededNoise(seed=1))
    assert "cannot be deployed" in refused(UPDATE, research, ledger=ledger)
    assert "cannot be deployed" in refused(UPDATE, research, noise=SecureNoise())
    assert "needs the silo's ledger" in refused(UPDATE, deployment)
    assert "is the ledger of silo 'region-1-1'" in refused(UPDATE, deployment, ledger=ledger, silo="region-2-1")
    assert "knows no silo 'region-1-9'. Did you mean 'region-1" in refused(UPDATE, deployment, silo="region-1-9")
    assert ledger.sequence == 0


def test_a_research_release_beside_a_ledger_or_a_policy_is_refused(research, ledger):
    """Whoever gives either counts on it, and in research it would be left out without a word."""
    seeded, strict = SeededNoise(seed=1), Policy(largest_epsilon_above=0.0, largest_epsilon_inside=0.0)
    assert "in no ledger and under no policy" in refused(UPDATE, research, ledger=ledger, noise=seeded)
    assert "in no ledger and under no policy" in refused(UPDATE, research, policy=strict, noise=seeded)


def test_the_ledger_of_another_silo_neither_answers_nor_takes_a_plan(deployment, ledger):
    release(UPDATE, deployment, SILO, 1, ledger=ledger, input_digest="model")
    for round_number in (1, 2):
        with pytest.raises(ReleaseError, check=coded("ledger.other-silo", owner="region-1-1", silo="region-2-1")):
            prepared_release(UPDATE, deployment, "region-2-1", round_number, ledger=ledger, input_digest="model")
    release(UPDATE, deployment, SILO, 2, ledger=ledger, input_digest="model")


def test_what_only_looks_like_a_ledger_is_none(deployment):
    looks_like_one = SimpleNamespace(silo=SILO, entries=tuple, stored=lambda *_: None)
    assert "needs the silo's ledger" in refused(UPDATE, deployment, ledger=looks_like_one)


def test_a_policy_is_checked_before_the_first_release(deployment, ledger):
    strict = Policy(largest_epsilon_above=0.1, largest_epsilon_inside=9.0)
    with pytest.raises(PolicyError, match=r"allows epsilon 0.1 above its region, the plan spends"):
        release(UPDATE, deployment, SILO, 1, ledger=ledger, policy=strict)
    assert ledger.sequence == 0
    assert ledger.allowance is None
    generous = Policy(largest_epsilon_above=1.0, largest_epsilon_inside=9.0)
    release(UPDATE, deployment, SILO, 1, ledger=ledger, policy=generous)


def test_a_policy_is_never_forgotten(ledger):
    loose = fulcrum.plan(
        "isic-paper", rounds=3, epsilon={"region": 9.0, "aggregator": 20.0}, parameters=34, purpose="deployment"
    )
    release(UPDATE, loose, SILO, 1, ledger=ledger)
    with pytest.raises(PolicyError):
        release(
            UPDATE, loose, SILO, 2, ledger=ledger, policy=Policy(largest_epsilon_above=2.0, largest_epsilon_inside=9.0)
        )


def test_a_plan_that_does_not_verify_is_not_released_under(deployment, ledger, tmp_path):
    content = deployment.content()
    first = msgspec.structs.replace(content.silos[0], noise_multiplier=1e-5)
    forgery = msgspec.structs.replace(content, silos=[first, *content.silos[1:]])
    (tmp_path / "forged.json").write_bytes(to_json(forgery))
    with pytest.raises(PlanError, match=r"forged\.json does not hold what it says"):
        fulcrum.read_plan(tmp_path / "forged.json")
    multiplier = np.concatenate([[1e-5], deployment.noise_multiplier[1:]])
    with pytest.raises(ReleaseError, match="does not hold what it says"):
        release(UPDATE, dataclasses.replace(deployment, noise_multiplier=multiplier), SILO, 1, ledger=ledger)
    assert ledger.sequence == 0


def test_a_plan_changed_in_memory_is_another_plan(deployment, ledger, tmp_path):
    fulcrum.save_plan(deployment, tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    release(UPDATE, read, SILO, 1, ledger=ledger)
    weaker = dataclasses.replace(read, noise_multiplier=read.noise_multiplier / 2.9)
    assert weaker.digest != read.digest
    with pytest.raises(FulcrumError):
        release(UPDATE, weaker, SILO, 2, ledger=ledger)
    assert ledger.sequence == 1


def test_noise_of_another_making_and_aggregators_are_refused(deployment, ledger):
    class Zero:
        def integers(self, *, width, count):
            return np.zeros(count, dtype=np.int64)

    assert "takes SecureNoise alone, got Zero" in refused(UPDATE, deployment, ledger=ledger, noise=Zero())
    assert "takes SecureNoise alone" in refused(UPDATE, deployment, ledger=ledger, noise=RepeatedNoise(bytes(32)))
    aggregated = dataclasses.replace(deployment, injection="aggregator", aggregator_noise_multiplier=np.ones(4))
    assert "one in which silos do not draw the noise" in refused(UPDATE, aggregated, ledger=ledger)
    for wrong in ("1", 1.0, None):
        assert "a round is a whole number" in refused(UPDATE, deployment, ledger=ledger, round_number=wrong)
    assert "no update" in refused(None, deployment, ledger=ledger)
    assert release(UPDATE, deployment, SILO, np.int64(1), ledger=ledger).round_number == 1


def test_nothing_else_leaves(deployment, ledger):
    sent = release(UPDATE, deployment, SILO, 1, ledger=ledger)
    data = sent.to_bytes()
    header_size = int.from_bytes(data[:4], "little")
    assert len(data) == 4 + header_size + 8 * 34

    header = msgspec.msgpack.decode(data[4 : 4 + header_size])
    assert set(header) == {"plan_digest", "silo", "region", "round_number", "layout", "step"}


def test_bytes_come_back_as_the_release_they_were(deployment, ledger):
    sent = release(UPDATE, deployment, SILO, 1, ledger=ledger)
    again = Release.from_bytes(sent.to_bytes())
    assert (again.values == sent.values).all()
    assert again.layout == sent.layout
    for broken in (b"", b"\x00" * 10, sent.to_bytes()[:-3], sent.to_bytes()[:-8]):
        with pytest.raises(ExchangeError):
            Release.from_bytes(broken)


def test_regional_sums_are_integer_sums(deployment, tmp_path):
    total = np.zeros(34, dtype=np.int64)
    for name in ("region-1-1", "region-1-2", "region-1-3"):
        with Ledger.open(tmp_path / f"{name}.ledger", silo=name) as book:
            sent = release(UPDATE, deployment, name, 1, ledger=book)
        assert sent.step == deployment.lattice_steps[0]
        total += sent.values
    noise = math.sqrt(deployment.node_noise("region")[0]) / deployment.lattice_steps[0]
    assert np.abs(total).max() < 8 * noise


# Threads


@pytest.fixture(scope="module")
def plans():
    """Two plans, each with room for what is released under both."""
    return [
        fulcrum.plan("isic-paper", rounds=90, epsilon=epsilon, parameters=34, purpose="deployment")
        for epsilon in (1.0, 1.1)
    ]


@pytest.fixture
def interrupted(monkeypatch):
    """Makes the next release be interrupted, while its noise is drawn, by some other work."""
    drawn = SecureNoise.integers

    def interrupt(work):
        def integers(self, *, width, count):
            monkeypatch.setattr(SecureNoise, "integers", drawn)
            found.append(work())
            return drawn(self, width=width, count=count)

        found = []
        monkeypatch.setattr(SecureNoise, "integers", integers)
        return found

    return interrupt


def test_threads_under_two_plans_get_one_content_a_round_filed_where_it_belongs(plans, ledger):
    together, rounds = threading.Barrier(4, timeout=20), 30

    def work(number):
        sent = []
        for round_number in range(1, rounds + 1):
            together.wait()
            sent.append(release(UPDATE, plans[number % 2], SILO, round_number, ledger=ledger, input_digest="model"))
        return [(plans[number % 2].digest, made) for made in sent]

    with ThreadPoolExecutor(4) as pool:
        sent = [item for found in pool.map(work, range(4)) for item in found]
    contents = {(digest, made.round_number, made.to_bytes()) for digest, made in sent}
    assert len(contents) == ledger.sequence == 2 * rounds
    assert all(made.plan_digest == digest for digest, made in sent)
    filed = {entry.payload_digest: entry.plan_digest for entry in ledger.entries()}
    for digest, _, data in contents:
        assert filed[hashlib.sha256(data).hexdigest()] == digest
    assert all(check.holds for check in verify_ledger(ledger))


def test_threads_on_two_models_get_one_release_and_one_refusal(plans, ledger):
    together, rounds = threading.Barrier(2, timeout=20), 30

    def work(basis):
        refusals = []
        for round_number in range(1, rounds + 1):
            together.wait()
            try:
                made = release(UPDATE, plans[0], SILO, round_number, ledger=ledger, input_digest=basis)
            except RefusedReleaseError:
                refusals.append(round_number)
            else:
                kept = prepared_release(UPDATE, plans[0], SILO, round_number, ledger=ledger, input_digest=basis)
                assert kept.to_bytes() == made.to_bytes()
        return refusals

    with ThreadPoolExecutor(2) as pool:
        refusals = sorted(number for found in pool.map(work, ("model-a", "model-b")) for number in found)
    assert refusals == list(range(1, rounds + 1))
    assert ledger.sequence == rounds


def test_another_plan_that_is_entered_while_noise_is_drawn_changes_nothing(plans, ledger, interrupted):
    other = interrupted(lambda: release(UPDATE, plans[1], SILO, 1, ledger=ledger, input_digest="model"))
    sent = release(UPDATE, plans[0], SILO, 1, ledger=ledger, input_digest="model")
    assert [entry.plan_digest for entry in ledger.entries()] == [plans[1].digest, plans[0].digest]
    for plan, made in ((plans[0], sent), (plans[1], other[0])):
        assert made.plan_digest == plan.digest
        again = release(UPDATE, plan, SILO, 1, ledger=ledger, input_digest="model")
        assert again.to_bytes() == made.to_bytes()
    assert ledger.sequence == 2


def test_what_another_thread_released_first_is_what_comes_back(plans, ledger, interrupted):
    first = interrupted(lambda: release(UPDATE, plans[0], SILO, 1, ledger=ledger, input_digest="model"))
    sent = release(UPDATE, plans[0], SILO, 1, ledger=ledger, input_digest="model")
    assert sent.to_bytes() == first[0].to_bytes()
    assert ledger.sequence == 1


def test_a_round_that_another_thread_released_on_another_model_is_refused(plans, ledger, interrupted):
    interrupted(lambda: release(UPDATE, plans[0], SILO, 1, ledger=ledger, input_digest="model-a"))
    with pytest.raises(RefusedReleaseError, check=coded("ledger.round-released")):
        release(UPDATE, plans[0], SILO, 1, ledger=ledger, input_digest="model-b")
    assert ledger.sequence == 1


def test_layers_are_those_of_the_round_that_another_thread_released_first(plans, ledger, interrupted):
    interrupted(lambda: release(UPDATE, plans[0], SILO, 1, ledger=ledger))
    with pytest.raises(ReleaseError, match="other names or shapes than that of round 1"):
        release(np.ones(34), plans[0], SILO, 2, ledger=ledger)
    assert ledger.sequence == 1


# Releases in all


def test_rounds_are_counted_over_all_plans(tmp_path):
    old, new = (
        fulcrum.plan("isic-paper", rounds=10, epsilon=epsilon, parameters=34, purpose="deployment")
        for epsilon in (1.0, 2.0)
    )
    policy = Policy(largest_epsilon_above=2.0, largest_epsilon_inside=99.0, largest_rounds=15)
    path = tmp_path / "silo.ledger"
    for round_number in range(1, 11):
        with Ledger.open(path, silo=SILO) as book:  # resumed after every round, and not counted twice
            release(UPDATE, old, SILO, round_number, ledger=book, policy=policy)
    with Ledger.open(path, silo=SILO) as book:
        first = release(UPDATE, old, SILO, 1, ledger=book, policy=policy)
        with pytest.raises(PolicyError, match="allows 15 rounds, the plan has 10, and 10 releases were made under oth"):
            release(UPDATE, new, SILO, 1, ledger=book, policy=policy)
        assert (book.sequence, book.allowance.plan_digest) == (10, old.digest)
        wider = Policy(largest_epsilon_above=2.0, largest_epsilon_inside=99.0, largest_rounds=20)
        release(UPDATE, new, SILO, 1, ledger=book, policy=wider)
        # What was released may be sent again, though nothing more may be made under the old plan.
        again = release(UPDATE, old, SILO, 1, ledger=book, policy=policy)
        assert again.to_bytes() == first.to_bytes()
        assert book.sequence == 11


def test_plans_used_side_by_side_never_release_more_than_the_policy_allows(plans, ledger, interrupted):
    policy = Policy(largest_epsilon_above=2.0, largest_epsilon_inside=99.0, largest_rounds=92)
    for round_number in (1, 2):
        release(UPDATE, plans[0], SILO, round_number, ledger=ledger, policy=policy)
    # Under the second plan one more of the first would be one too many, while its noise is drawn.
    interrupted(lambda: release(UPDATE, plans[0], SILO, 3, ledger=ledger, policy=policy))
    with pytest.raises(PolicyError, match="allows 92 rounds, the plan has 90, and 3 releases"):
        release(UPDATE, plans[1], SILO, 1, ledger=ledger, policy=policy)
    assert {entry.plan_digest for entry in ledger.entries()} == {plans[0].digest}
