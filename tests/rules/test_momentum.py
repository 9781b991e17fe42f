"""The rule "momentum": one file, and all that reads plans follows."""

import json
import re

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.errors import ParameterError, StorageError, UnreachableTargetError
from fulcrum.planning.comparisons.weight_tradeoff import own_choice, weight_choices
from fulcrum.planning.content.learning_signal import signal_to_noise
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.rules.momentum_rule import BETA, MomentumRule
from fulcrum.server.coordinator import Coordinator
from fulcrum.views.page.page_head import head
from fulcrum.words.numbers import figure
from fulcrum.words.recipe_words import recipe_words

SIZES = {"north": {"lille": 120, "metz": 80, "caen": 100}, "south": {"nice": 300, "nimes": 17}}
HEAD = {"head": np.zeros((4, 2))}
LAYOUT = Layout(names=("head",), shapes=((4, 2),))


def text_of(page):
    return " ".join(re.sub("<[^>]*>", " ", page.partition("<script")[0]).split())


def made(**options):
    settings = {"rounds": 3, "epsilon": {"region": 1.0, "aggregator": 6.0}, "parameters": 8, "server": "momentum"}
    return fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), **(settings | options))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    keys = {silo: new_key(folder / silo) for members in SIZES.values() for silo in members}
    keys |= {region: new_key(folder / region, "sealing") for region in SIZES}
    return made(purpose="deployment", keys=keys)


def scaled(plan, values):
    """Values with about the norm of the noise of a sum: a server refuses smaller sums."""
    return np.asarray(values) * round(np.sqrt(plan.noise_variance.min()) * plan.clip_norm / plan.lattice_steps[0] / 40)


def sum_of(plan, region, number, values):
    return RegionalSum(
        plan_digest=plan.digest,
        round_number=number,
        region=region,
        members=tuple(sorted(SIZES[region])),
        layout=LAYOUT,
        step=float(plan.lattice_steps[0]),
        values=np.asarray(values, dtype="<i8"),
    ).to_bytes()


def test_a_coordinator_moves_the_model_by_the_velocity_and_a_restart_changes_no_bit(deployed, tmp_path):
    """The recursion written out by hand, in a server of one process and in one that is opened anew before each round."""
    plan, stream = deployed, np.random.default_rng(0)
    values = [{region: scaled(plan, stream.integers(-90, 90, 8)) for region in SIZES} for _ in range(3)]
    once = Coordinator.open(tmp_path / "once", plan, HEAD, classes=2)
    model = velocity = np.zeros(8)
    for number, by_region in enumerate(values, 1):
        again = Coordinator.open(tmp_path / "again", plan, HEAD, classes=2)
        heard = [region for region in SIZES if (number, region) != (2, "south")]
        for server in (once, again):
            for region in heard:
                server.receive(sum_of(plan, region, number, by_region[region]), region)
            if len(heard) == 1:
                why = Withheld(plan_digest=plan.digest, round_number=number, region="south", reason="no", missing=())
                server.receive(why.to_bytes(), "south")
            summary = server.finish_round()
            assert summary["summed"] == heard
            assert "diagnostics" not in summary
        velocity = BETA * velocity + sum(by_region[region] for region in heard) * plan.lattice_steps[0]
        model = model + velocity
        assert np.array_equal(once.model["head"].ravel(), model)
        assert np.array_equal(again.model["head"], once.model["head"])
    assert once.is_finished
    assert velocity.any()


def test_a_checkpoint_keeps_the_velocity_by_its_name(deployed, tmp_path):
    server = Coordinator.open(tmp_path, deployed, HEAD, classes=2)
    server.finish_round()
    with np.load(tmp_path / "checkpoint.npz") as found:
        assert set(found) == {"state", "model", "velocity"}
        assert json.loads(found["state"].tobytes())["pooling"] == {"classes": 2}


def test_a_checkpoint_before_round_1_has_no_velocity_and_none_has_arrays_of_a_stranger(deployed, tmp_path):
    file = tmp_path / "checkpoint.npz"
    Coordinator.open(tmp_path, deployed, HEAD, classes=2)
    whole = dict(np.load(file))
    for changed in ({"velocity": np.full(8, 5.0)}, {"extra": np.zeros(3)}):
        np.savez(file, **(whole | changed))
        with pytest.raises(StorageError, check=coded("checkpoint.format-unknown")):
            Coordinator.open(tmp_path, deployed, HEAD, classes=2)
    np.savez(file, **whole)
    server = Coordinator.open(tmp_path, deployed, HEAD, classes=2)
    server.receive(sum_of(deployed, "north", 1, scaled(deployed, range(8))), "north")
    server.receive(sum_of(deployed, "south", 1, scaled(deployed, range(8))), "south")
    server.finish_round()
    later = dict(np.load(file))
    assert later["velocity"].any()
    begun = json.loads(later["state"].tobytes()) | {"round_number": 1, "history": []}
    np.savez(file, **(later | {"state": np.frombuffer(json.dumps(begun).encode(), dtype=np.uint8)}))
    with pytest.raises(StorageError, check=coded("checkpoint.format-unknown")):
        Coordinator.open(tmp_path, deployed, HEAD, classes=2)


def test_training_in_process_is_the_recursion_on_the_regional_sums():
    plan = fulcrum.plan("mild", rounds=4, epsilon=8.0, server="momentum")
    found = fulcrum.train(plan, "digits", seeds=[1], keep_regional_sums=True)
    plain = fulcrum.train(fulcrum.plan("mild", rounds=4, epsilon=8.0), "digits", seeds=[1], keep_regional_sums=True)
    sums = found.regional_sums[0].sum(axis=1)
    model = velocity = np.zeros_like(sums[0])
    for total in sums:
        velocity = BETA * velocity + total
        model = model + velocity
    assert found.models[0] == pytest.approx(model, rel=1e-12, abs=1e-12)
    assert np.array_equal(sums[0], plain.regional_sums[0].sum(axis=1)[0])
    assert not np.allclose(found.models[0], plain.models[0])


def test_momentum_costs_no_epsilon_and_the_noise_of_early_rounds_is_counted_as_often_as_it_enters():
    """The oracle is the recursion itself, on unit signal and on unit noise of each round."""
    plan, plain = made(rounds=12), made(rounds=12, server="sum")
    assert np.array_equal(plan.noise_multiplier, plain.noise_multiplier)
    assert np.array_equal(plan.influence, plain.influence)
    gains = []
    for entering in range(12):
        model = velocity = 0.0
        for number in range(12):
            velocity = BETA * velocity + (number == entering)
            model += velocity
        gains.append(model)
    gains = np.array(gains)
    expected = 12 * (gains**2).sum() / gains.sum() ** 2
    assert plan.server_rule.noise_factor() == pytest.approx(expected, rel=1e-12)
    assert plan.model_noise == pytest.approx(plain.model_noise * expected, rel=1e-12)
    ratio = gains.sum() / np.sqrt((gains**2).sum() * 8 * plan.noise_budget)
    assert signal_to_noise(plan, 8) == pytest.approx(ratio, rel=1e-12)
    assert signal_to_noise(plan, 8) < signal_to_noise(plain, 8)
    assert MomentumRule(rounds=10**9).noise_factor() == pytest.approx(1, abs=1e-7)
    assert MomentumRule(rounds=1).noise_factor() == pytest.approx(1, rel=1e-12)


def test_the_saving_is_that_of_the_file_and_uniform_noise_is_counted_as_the_plans_own():
    plan, uniform = made(rounds=10), made(rounds=10, allocation="uniform")
    assert plan.model_saving == plan.saving == plan.content().summary.saving > 0
    assert uniform.model_saving == pytest.approx(0, abs=1e-12)
    assert uniform.model_noise == pytest.approx(plan.uniform_model_noise, rel=1e-12)
    assert plan.uniform_model_noise == pytest.approx(plan.uniform_noise_budget * 1.1802608, rel=1e-6)
    stated = f"would need {figure(plan.uniform_model_noise)}"
    assert stated in text_of(fulcrum.report(plan))
    assert stated in text_of(head(plan))
    assert "noise saved against uniform 0.0%" in text_of(fulcrum.report(uniform))
    assert "noise saved against uniform 0.0%" in text_of(head(uniform))


def test_other_weights_count_noise_as_the_plan_does():
    """A plan by size with the least noise stands where the curve of weights begins, whatever the server's factor."""
    plan = made(rounds=10, epsilon=1.0)
    first, last = weight_choices(plan)[0], weight_choices(plan)[-1]
    assert own_choice(plan).noise == pytest.approx(first.noise, rel=1e-9)
    least = made(rounds=10, epsilon=1.0, weights="least-noise")
    assert own_choice(least).noise == pytest.approx(last.noise, rel=1e-9)


def test_a_comparison_says_that_the_figure_of_momentum_is_scaled(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    words = "; as asked: with momentum (scaled to the signal of added-up sums). Above:"
    assert run(["compare", "severe", "--rounds", "10", "--epsilon", "1", "--server", "momentum"]) == 0
    assert f"Noise budget: the noise variance that enters the model in one round, in C²{words}" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run(["compare", "severe", "--rounds", "10", "--epsilon", "1"]) == 0
    assert "that enters the model in one round, in C². Above:" in " ".join(capsys.readouterr().out.split())


def test_words_say_momentum_and_claim_no_pooling():
    plan = made()
    assert "keeps a velocity" in recipe_words(plan)[-1]
    said = " ".join(fulcrum.guarantee_of(plan).assumptions)
    assert "the server moves the model by the rule 'momentum' from the sums of regions" in said
    assert "no epsilon smaller than that against one of them is claimed further out" in said
    report = fulcrum.report(plan)
    assert "with momentum" in report
    for text in (said, report):
        assert "pools" not in text
        assert "where regions agree" not in text


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"epsilon": {"federation": 1.0}},
            UnreachableTargetError,
            "counts as a rule that reads the sum of every region",
        ),
        (
            {"injection": "aggregator", "epsilon": 1.0},
            ParameterError,
            "server='momentum' works only with noise that the silos draw",
        ),
    ],
)
def test_what_silos_would_refuse_is_not_planned(options, error, words):
    with pytest.raises(error, match=words):
        made(**options)


def test_least_influence_is_kept_by_the_weights():
    options = {"weights": "least-noise", "least_influence": 0.9}
    plan, plain = made(**options), made(server="sum", **options)
    assert plan.influence_mix == plain.influence_mix > 0
    assert all(check.holds for check in fulcrum.verify(plan))


def test_the_command_line_plans_verifies_and_trains_with_momentum(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["plan", "mild", "--rounds", "3", "--epsilon", "4", "--server", "momentum", "-o", "plan.json"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "adds 0.9 of its last step to every global sum" in told
    plan = fulcrum.read_plan("plan.json")
    assert f"saving {plan.saving:.2%} against uniform" in told
    budget = f"{figure(plan.model_noise)} C² with momentum (scaled to the signal of added-up sums), uniform would need"
    assert f"{budget} {figure(plan.uniform_noise_budget * plan.server_rule.noise_factor())} " in told
    assert run(["verify", "plan.json"]) == 0
    assert run(["train", "plan.json", "--data", "digits", "--seeds", "1"]) == 0
    capsys.readouterr()
    assert run(["plan", "mild", "--rounds", "3", "--epsilon", "4", "--server", "momentun"]) == 2
    told = capsys.readouterr().err
    assert "unknown server 'momentun'. Known: sum, random-effects, momentum. Did you mean 'momentum'?" in told
