"""The promise of settings of other tools: what is known is accounted, what is unknown is named."""

import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import ParameterError
from fulcrum.planning.promises.found_settings import find_settings, rounds_in, settings_in_job, settings_in_python
from fulcrum.planning.promises.promise_reading import Circumstances, read_numbers, read_promise
from fulcrum.planning.promises.sampled_gaussian import sampled_epsilon
from fulcrum.readers.profiles import profile

FACTS = Circumstances(rounds=10, delta=1e-5)


def epsilons(reading):
    return {entry.observer: entry.epsilon for entry in reading.observers}


def one(source, facts=FACTS):
    (setting,) = settings_in_python(source, "app.py")
    return read_promise(setting, facts)


def gaussian_oracle(deviation, sensitivity, rounds, delta):
    """The tight epsilon by privacy loss distributions; the sensitivity is given, so no relation is left to the library."""
    scaled = deviation / (sensitivity * math.sqrt(rounds))
    loss = privacy_loss_distribution.from_gaussian_mechanism(scaled, value_discretization_interval=1e-4)
    return loss.get_epsilon_for_delta(delta)


@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 1), (20.0, 10), (60.0, 100)])
def test_plain_numbers_have_the_epsilon_of_sensitivity_2c(multiplier, rounds):
    reading = read_numbers(clip=0.5, multiplier=multiplier, rounds=rounds, delta=1e-5)
    expected = gaussian_oracle(multiplier * 0.5, 2 * 0.5, rounds, 1e-5)
    assert epsilons(reading)["server"] == pytest.approx(expected, rel=1e-3)
    wrong = gaussian_oracle(multiplier * 0.5, 0.5, rounds, 1e-5)
    assert abs(epsilons(reading)["server"] - wrong) > 0.1 * wrong


def test_each_observer_of_the_topology_has_the_epsilon_of_a_plan_with_uniform_noise():
    federation = profile("severe")
    reading = read_numbers(clip=1.0, multiplier=20.0, rounds=10, delta=1e-5, federation=federation)
    weights, place = federation.weights, federation.membership("region")
    for tier, nodes in (("region", place), ("federation", np.zeros(len(weights), int))):
        noise = np.sqrt(np.bincount(nodes, weights=(20.0 * weights) ** 2))[nodes]
        worst = max(
            gaussian_oracle(float(s), 2 * float(w), 10, 1e-5)
            for s, w in {(s, w) for s, w in zip(noise, weights, strict=True)}
        )
        assert epsilons(reading)[tier] == pytest.approx(worst, rel=1e-2)


@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(1.1, 0.01, 1000), (0.8, 0.1, 50), (4.0, 1.0, 20)])
def test_sampled_steps_agree_with_a_second_accountant(multiplier, rate, steps):
    oracle = rdp_privacy_accountant.RdpAccountant(orders=list(range(2, 257)))
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    oracle.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    ours = sampled_epsilon(multiplier=multiplier, rate=rate, steps=steps, delta=1e-5)
    assert ours == pytest.approx(oracle.get_epsilon(1e-5), rel=1e-9)
    loss = privacy_loss_distribution.from_gaussian_mechanism(multiplier, sampling_prob=rate).self_compose(steps)
    assert ours >= loss.get_epsilon_for_delta(1e-5) * (1 - 1e-6)


def test_local_dp_mod_is_read_with_the_sensitivity_of_a_replaced_dataset_and_all_rounds():
    reading = one("m = LocalDpMod(1.0, 1.0, epsilon=1.0, delta=1e-5)")
    deviation = math.sqrt(2 * math.log(1.25e5))
    assert epsilons(reading)["server"] == pytest.approx(gaussian_oracle(deviation, 2.0, 10, 1e-5), rel=1e-3)
    a_round = one("m = LocalDpMod(1.0, 1.0, epsilon=1.0, delta=1e-5)", Circumstances(rounds=1))
    assert epsilons(a_round)["server"] > 1.0, "the mod states 1 a round, for half of the sensitivity"
    assert "--rounds 10" in reading.plan


@pytest.mark.parametrize("side", ["ServerSide", "ClientSide"])
def test_a_strategy_with_noise_at_the_server_promises_nothing_against_the_server(side):
    source = f"s = DifferentialPrivacy{side}FixedClipping(FedAvg(), 20.0, 1.0, num_sampled_clients=4)"
    reading = one(source)
    assert epsilons(reading)["server"] is None
    assert epsilons(reading)["federation"] == pytest.approx(gaussian_oracle(20.0, 2.0, 10, 1e-5), rel=1e-3)
    assert any(part.startswith("weights") for part in reading.unknown)


def test_adaptive_clipping_has_no_epsilon_and_the_reason_is_named():
    reading = one("s = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 1.0, 4)")
    assert epsilons(reading) == {"server": None}
    assert any("adaptive clip norm" in part for part in reading.unknown)


def test_opacus_needs_rate_steps_and_rounds_and_then_has_the_epsilon_of_a_record():
    source = "m, o, d = PrivacyEngine().make_private(module=m, noise_multiplier=1.1, max_grad_norm=1.0)"
    asked = one(source)
    assert asked.observers == ()
    assert {part.partition(":")[0] for part in asked.unknown} == {"rate", "steps"}
    full = one(source, Circumstances(rounds=10, rate=0.01, steps=100))
    assert epsilons(full)["server"] == sampled_epsilon(multiplier=1.1, rate=0.01, steps=1000, delta=1e-5)
    assert "record" in full.unit
    assert "--unit record --neighbours add-remove" in full.plan


def test_a_target_of_opacus_adds_up_over_rounds():
    source = "e.make_private_with_epsilon(target_epsilon=2.0, target_delta=1e-6, epochs=1, max_grad_norm=1.0)"
    reading = one(source)
    assert epsilons(reading) == {"server": 20.0}
    assert reading.delta == pytest.approx(1e-5)


def test_a_value_that_is_no_number_in_the_text_is_unknown_and_the_code_never_runs(tmp_path):
    (tmp_path / "client_app.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nCLIP = 1.0\nEPS = 1\nEPS = 2\n"
        "m = LocalDpMod(clipping_norm=CLIP, sensitivity=float('1'), epsilon=EPS, delta=1e-5)\n"
    )
    (setting,) = find_settings(tmp_path)
    assert (setting.values, setting.unknown) == ({"clipping_norm": 1.0, "delta": 1e-5}, ("sensitivity", "epsilon"))
    assert epsilons(read_promise(setting, FACTS)) == {"server": None}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "source",
    [
        "CLIP = 1.0\ndef made(CLIP):\n    return LocalDpMod(CLIP, 1.0, 1.0, 1e-5)",
        "CLIP = 1.0\nfrom settings import CLIP\nm = LocalDpMod(CLIP, 1.0, 1.0, 1e-5)",
        "CLIP = 1.0\nfrom settings import *\nm = LocalDpMod(CLIP, 1.0, 1.0, 1e-5)",
        "CLIP = 1.0\nfor CLIP in (1, 2):\n    m = LocalDpMod(CLIP, 1.0, 1.0, 1e-5)",
    ],
)
def test_a_name_that_something_else_may_bind_is_unknown(source):
    (setting,) = settings_in_python(source, "app.py")
    assert setting.unknown == ("clipping_norm",)


STRATEGY = """
def main(grid, context):
    clip: float = context.run_config["dp.clip"]
    size = context.run_config["sampled"]
    s = DifferentialPrivacyServerSideFixedClipping(FedAvg(), noise, clip, size)
    noise = float(context.run_config["noise"])
"""


def test_numbers_of_run_config_are_read_from_the_own_pyproject_and_said_to_be_changeable(tmp_path, capsys):
    for name, clip in (("one", 2.5), ("two", 7.0)):
        (tmp_path / name / "app").mkdir(parents=True)
        (tmp_path / name / "app" / "server_app.py").write_text(STRATEGY)
        config = f"[tool.flwr.app.config]\nnum-server-rounds = 3\nnoise = 20.0\nsampled = 4\ndp.clip = {clip}\n"
        (tmp_path / name / "pyproject.toml").write_text(config)
    one, two = find_settings(tmp_path)
    assert one.values == {"noise_multiplier": 20.0, "clipping_norm": 2.5, "num_sampled_clients": 4.0}
    assert two.values["clipping_norm"] == 7.0
    assert set(one.configured) == set(one.values)
    assert run(["read-settings", str(tmp_path / "one")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2C / n = 1.25 in the mean of n = 4" in printed
    assert "pyproject.toml states 2.5, and flwr run --run-config may state another number" in printed


def test_a_value_of_run_config_that_no_pyproject_states_is_unknown(tmp_path):
    (tmp_path / "server_app.py").write_text(STRATEGY)
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config]\nnoise = 'much'\nsampled = true\n")
    (setting,) = find_settings(tmp_path)
    assert setting.unknown == ("noise_multiplier", "clipping_norm", "num_sampled_clients")
    assert setting.configured == ()


def test_unknown_rounds_and_steps_of_opacus_are_named_in_the_composition():
    source = "e.make_private(module=m, noise_multiplier=1.1, max_grad_norm=1.0)"
    reading = one(source, Circumstances())
    assert reading.composition.startswith("unknown rounds, unknown steps a round, by ")


def test_filters_of_a_job_are_read_and_have_no_epsilon_of_a_whole_update(tmp_path):
    job = {
        "num_rounds": 5,
        "task_result_filters": [
            {
                "tasks": ["train"],
                "filters": [{"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy", "args": {"epsilon": 0.2}}],
            },
            {"tasks": ["train"], "filters": [{"name": "PercentilePrivacy", "args": {"percentile": 10}}]},
            {"tasks": ["train"], "filters": [{"path": "mine.FancyPrivacy", "args": {}}, {"path": "mine.Scaler"}]},
        ],
    }
    settings = settings_in_job(job, "config.json")
    mechanisms = sorted(setting.mechanism for setting in settings)
    assert mechanisms == ["FancyPrivacy", "PercentilePrivacy", "SVTPrivacy", "Scaler"]
    for setting in settings:
        reading = read_promise(setting, FACTS)
        assert epsilons(reading) == {"server": None}
        assert reading.unknown
        assert not reading.plan
    (tmp_path / "config_fed_server.json").write_text(json.dumps(job))
    assert rounds_in(tmp_path) == 5


def test_a_plan_with_the_options_of_a_reading_keeps_its_promise(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fed.csv").write_text("silo,records,region\n" + "".join(f"s{k},{100 + k},r{k % 2}\n" for k in range(8)))
    words = ["read-settings", "--clip", "1", "--multiplier", "20", "--rounds", "10", "--federation", "fed.csv"]
    assert run([*words, "--format", "json"]) == 0
    (reading,) = json.loads(capsys.readouterr().out)["readings"]
    assert run(["plan", "fed.csv", *reading["plan"].split(), "-o", "plan.json"]) == 0
    plan = fulcrum.read_plan(tmp_path / "plan.json")
    stated = {entry["observer"]: entry["epsilon"] for entry in reading["observers"]}
    assert plan.epsilon_above.max() <= stated["region"]
    assert plan.epsilon_inside.max() <= stated["server"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "promise.numbers-missing"),
        (["nowhere"], "promise.source-missing"),
        (["empty"], "promise.settings-missing"),
        (["empty", "--clip", "1"], "promise.numbers-beside-source"),
        (["broken.py"], "promise.source-syntax"),
        (["broken.json"], "promise.json-malformed"),
        (["job"], "promise.files-unread"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_a_code(tmp_path, monkeypatch, capsys, words, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "broken.json").write_text('{"filters": [')
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "config_fed_client.conf").write_text("format_version = 2")
    assert run(["read-settings", *words, "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == code


def test_a_job_configuration_in_another_format_is_named_beside_the_readings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    filters = [{"filters": [{"name": "PercentilePrivacy", "args": {"percentile": 10}}]}]
    (tmp_path / "job" / "config_fed_client.json").write_text(json.dumps({"task_result_filters": filters}))
    (tmp_path / "job" / "config_fed_server.yml").write_text("workflows: []")
    assert run(["read-settings", "job", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unread"] == ["config_fed_server.yml"]
    assert run(["read-settings", "job"]) == 0
    assert "Not read, since JSON alone is read: config_fed_server.yml" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "wrong", [{"multiplier": 0.0}, {"clip": math.inf}, {"rounds": 0}, {"delta": 1.0}, {"rate": 0.0}]
)
def test_numbers_out_of_range_are_refused(wrong):
    numbers = {"clip": 1.0, "multiplier": 2.0, "rounds": 1, "delta": 1e-5} | wrong
    with pytest.raises(ParameterError, check=coded("promise.number-range")):
        read_numbers(**numbers)
