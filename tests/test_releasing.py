import dataclasses
import logging
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.errors import DivergedUpdateError, FulcrumError, PolicyError, RefusedReleaseError, ReleaseError
from fulcrum.ledger import Ledger
from fulcrum.noise import SecureNoise, SeededNoise
from fulcrum.planfile import to_json
from fulcrum.policy import Policy
from fulcrum.releasing import Release, release

UPDATE = {"weight": np.ones((2, 16)), "bias": np.ones(2)}
SILO = "region-1-1"


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


def test_a_retry_resends_the_same_bytes_free_of_charge(deployment, ledger):
    first = release(UPDATE, deployment, SILO, 1, ledger=ledger, basis="model-0")
    spent = ledger.spent
    again = release(
        {"weight": np.zeros((2, 16)), "bias": np.zeros(2)}, deployment, SILO, 1, ledger=ledger, basis="model-0"
    )
    assert again.to_bytes() == first.to_bytes()
    assert ledger.spent == spent
    assert ledger.sequence == 1


def test_another_model_in_the_same_round_is_refused(deployment, ledger):
    release(UPDATE, deployment, SILO, 1, ledger=ledger, basis="model-0")
    with pytest.raises(RefusedReleaseError):
        release(UPDATE, deployment, SILO, 1, ledger=ledger, basis="model-1")
    assert ledger.sequence == 1


def test_no_round_past_the_plan_and_never_more_than_its_epsilon(deployment, ledger):
    for round_number in (1, 2, 3):
        release(UPDATE, deployment, SILO, round_number, ledger=ledger)
    for wrong in (0, 4):
        with pytest.raises(ReleaseError, match="outside the plan's rounds 1 to 3"):
            release(UPDATE, deployment, SILO, wrong, ledger=ledger)
    spent = fulcrum.accounting.epsilon_of_shift(
        math.sqrt(ledger.spent.shift_above), delta=deployment.target.accounted_delta, accountant="renyi"
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


@given(
    seed=st.integers(0, 500),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    scale=st.floats(-3, 3),
    shape=st.sampled_from([(34,), (2, 17), (34, 1), (1, 2, 17)]),
)
def test_what_enters_the_noise_never_exceeds_weight_times_the_clip_norm(seed, dtype, scale, shape, tmp_path_factory):
    plan = fulcrum.plan("isic-paper", rounds=1, epsilon=1.0, parameters=34, purpose="deployment")
    update = (np.random.default_rng(seed).normal(size=shape) * 10.0**scale).astype(dtype)
    folder = tmp_path_factory.mktemp("ledger")
    with Ledger.open(folder / "s.ledger", silo=SILO) as book, pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureNoise, "integers", lambda self, *, width, count: np.zeros(count, dtype=np.int64))
        sent = release(update, plan, SILO, 1, ledger=book)
    weight = plan.federation.weights[0]
    exact = math.sqrt(sum(int(value) ** 2 for value in sent.values.tolist()))
    assert exact * sent.step <= weight * plan.clip_norm
    direction = update.astype(float).ravel() @ sent.values
    assert direction >= 0


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


def test_purposes_do_not_mix(research, deployment, ledger):
    assert "refuses seeded noise" in refused(UPDATE, deployment, ledger=ledger, noise=SeededNoise(seed=1))
    assert "cannot be deployed" in refused(UPDATE, research, ledger=ledger)
    assert "cannot be deployed" in refused(UPDATE, research, noise=SecureNoise())
    assert "needs the silo's ledger" in refused(UPDATE, deployment)
    assert "the ledger is that of silo" in refused(UPDATE, deployment, ledger=ledger, silo="region-2-1")
    assert "knows no silo 'region-1-9'. Did you mean 'region-1" in refused(UPDATE, deployment, silo="region-1-9")
    assert ledger.sequence == 0


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
        "isic-paper", rounds=3, epsilon={"region": 9.0, "silo": 20.0}, parameters=34, purpose="deployment"
    )
    release(UPDATE, loose, SILO, 1, ledger=ledger)
    with pytest.raises(PolicyError):
        release(
            UPDATE, loose, SILO, 2, ledger=ledger, policy=Policy(largest_epsilon_above=2.0, largest_epsilon_inside=9.0)
        )


def test_a_plan_that_does_not_verify_is_not_released_under(deployment, ledger, tmp_path):
    content = deployment.content()
    content.silos[0].noise_multiplier = 1e-5
    (tmp_path / "forged.json").write_bytes(to_json(content))
    with pytest.raises(ReleaseError, match="does not hold what it says"):
        release(UPDATE, fulcrum.read_plan(tmp_path / "forged.json"), SILO, 1, ledger=ledger)
    assert ledger.sequence == 0


def test_a_plan_changed_in_memory_is_another_plan(deployment, ledger, tmp_path):
    deployment.save(tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    release(UPDATE, read, SILO, 1, ledger=ledger)
    weaker = dataclasses.replace(read, noise_multiplier=read.noise_multiplier / 2.9)
    assert weaker.sealed == ""
    with pytest.raises(FulcrumError):
        release(UPDATE, weaker, SILO, 2, ledger=ledger)
    assert ledger.sequence == 1


def test_noise_of_another_making_and_aggregators_are_refused(deployment, ledger):
    class Zero:
        def integers(self, *, width, count):
            return np.zeros(count, dtype=np.int64)

    assert "takes SecureNoise alone, got Zero" in refused(UPDATE, deployment, ledger=ledger, noise=Zero())
    aggregated = dataclasses.replace(deployment, injection="aggregator", aggregator_noise_multiplier=np.ones(4))
    assert "leaves it to aggregators" in refused(UPDATE, aggregated, ledger=ledger)
    for wrong in ("1", 1.0, None):
        assert "a round is a whole number" in refused(UPDATE, deployment, ledger=ledger, round_number=wrong)
    assert "no update" in refused(None, deployment, ledger=ledger)
    assert release(UPDATE, deployment, SILO, np.int64(1), ledger=ledger).round_number == 1


def test_nothing_else_leaves(deployment, ledger):
    sent = release(UPDATE, deployment, SILO, 1, ledger=ledger)
    data = sent.to_bytes()
    header_size = int.from_bytes(data[:4], "little")
    assert len(data) == 4 + header_size + 8 * 34
    import msgspec

    header = msgspec.msgpack.decode(data[4 : 4 + header_size])
    assert set(header) == {"plan_digest", "silo", "region", "round_number", "layout", "step"}


def test_bytes_come_back_as_the_release_they_were(deployment, ledger):
    sent = release(UPDATE, deployment, SILO, 1, ledger=ledger)
    again = Release.from_bytes(sent.to_bytes())
    assert (again.values == sent.values).all()
    assert again.layout == sent.layout
    for broken in (b"", b"\x00" * 10, sent.to_bytes()[:-3], sent.to_bytes()[:-8]):
        with pytest.raises(ReleaseError):
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
