"""A rule from outside: defined here, registered or installed, and followed from plan to coordinator."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import ParameterError, PlanError
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.rules import rule_registry
from fulcrum.rules.rule_registry import known_rules, register_server_rule, rule_named
from fulcrum.rules.sum_rule import SumRule
from fulcrum.server.coordinator import Coordinator
from fulcrum.simulation.embedded.server_variants import Servers


class MedianRule(fulcrum.ServerRule):
    """Moves the model by the median of the regional means, so that no single region can lead it astray."""

    name: ClassVar[str] = "median"
    clause: ClassVar[str] = "takes the median of regions"

    def __init__(self, weight):
        self._weight = weight

    @classmethod
    def of(cls, facts):
        return cls(facts.weight)

    def begin(self, start):
        return fulcrum.ServerState(model=start, numbers={"rounds": 0.0})

    def step(self, state, sums):
        weight = self._weight if sums.weight is None else sums.weight
        rounds = {"rounds": state.numbers["rounds"] + 1}
        if not sums.present.any():
            return fulcrum.ServerState(model=state.model, numbers=rounds), None
        rows = [
            np.reshape(sums.values[place], -1) * sums.unit / weight[place] for place in np.flatnonzero(sums.present)
        ]
        moved = np.median(rows, axis=0).reshape(state.model.shape)
        return fulcrum.ServerState(model=state.model + moved, numbers=rounds), None


@pytest.fixture
def median(monkeypatch):
    monkeypatch.setattr(rule_registry, "_RULES", dict(rule_registry._RULES))
    return register_server_rule(MedianRule)


def test_a_registered_rule_is_planned_saved_verified_and_read(median, tmp_path):
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, server="median")
    plain = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0)
    assert np.array_equal(plan.noise_multiplier, plain.noise_multiplier)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    assert isinstance(read.server_rule, median)
    assert all(check.holds for check in fulcrum.verify(tmp_path / "plan.json"))
    report = fulcrum.report(plan)
    assert "The server takes the median of regions." in report
    assert "if sums were added up" in report


@pytest.mark.usefixtures("median")
def test_a_registered_rule_trains_in_process_and_moves_a_coordinators_model_by_the_same_sums(tmp_path):
    plan = fulcrum.plan("mild", rounds=3, epsilon=8.0, server="median")
    trained = fulcrum.train(plan, "digits", seeds=[1], keep_regional_sums=True)
    sums = trained.regional_sums[0]
    weight = np.bincount(plan.federation.innermost.parent_of, weights=plan.weights)
    expected = np.median(sums / weight.reshape(1, -1, 1, 1), axis=1).sum(axis=0)
    assert trained.models[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    regions = plan.federation.innermost.nodes
    layout = fulcrum.Layout(names=("head",), shapes=(sums.shape[2:],))
    for number, by_region in enumerate(sums, 1):  # opened anew in every round
        server = Coordinator.open(tmp_path, plan, {"head": np.zeros(sums.shape[2:])}, classes=sums.shape[-1])
        for place, region in enumerate(regions):
            members = tuple(sorted(plan.federation.silo_names[plan.federation.innermost.parent_of == place].tolist()))
            answer = fulcrum.RegionalSum(
                plan_digest=plan.digest,
                round_number=number,
                region=region,
                members=members,
                layout=layout,
                step=None,
                values=by_region[place].ravel(),
            )
            server.receive(answer.to_bytes(), region)
        server.finish_round()
    assert server.is_finished
    assert server.model["head"] == pytest.approx(trained.models[0], rel=1e-9, abs=1e-12)


def test_a_silo_releases_under_a_plan_whose_rule_it_does_not_know_and_every_server_refuses_it(monkeypatch, tmp_path):
    with monkeypatch.context() as known:
        known.setattr(rule_registry, "_RULES", rule_registry._RULES | {"median": MedianRule})
        plan = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, server="median", parameters=4)
        fulcrum.save_plan(plan, tmp_path / "plan.json")
        content = fulcrum.verified_plan(plan)
    update = {"head": np.ones(4)}
    released = fulcrum.release(update, content, "region-1-1", 1, noise=fulcrum.SeededNoise(seed=1))
    assert released.round_number == 1
    words = "unknown server 'median'. Known: sum, random-effects, momentum."
    with pytest.raises(PlanError, check=coded("errors.name-unknown")):
        fulcrum.read_plan(tmp_path / "plan.json")
    with pytest.raises(ParameterError, match=words):
        Coordinator.open(tmp_path / "server", content, {"head": np.zeros(4)})
    assert not (tmp_path / "server").exists()


def test_a_silo_verifies_a_plan_whose_rule_it_does_not_know_and_holds_it_against_its_policy(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    issuer = new_key(Path("issuer.key"))
    with monkeypatch.context() as known:
        known.setattr(rule_registry, "_RULES", rule_registry._RULES | {"median": MedianRule})
        target = {"rounds": 3, "epsilon": 1.0, "purpose": "deployment", "parameters": 4}
        fulcrum.save_plan(fulcrum.plan("isic-paper", server="median", **target), "plan.json")
        assert run(["sign", "plan.json", "--key", "issuer.key"]) == 0
        assert run(["verify", "plan.json", "--format", "json"]) == 0
        told = json.loads(capsys.readouterr().out.partition("\n")[2])
        assert told["verdict"]["level"]
        assert "notes" not in told
    remark = "The server rule 'median' is not known here, so there is no verdict. No silo's privacy rests on the rule."
    assert run(["verify", "plan.json", "--issuer", issuer]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Every check holds." in shown
    assert remark in shown
    assert run(["verify", "plan.json", "--federation", "isic-paper", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["holds"], told["verdict"], told["notes"][-1]) == (True, None, remark)
    for insists in ("", f'issuer = "{issuer}"\n'):
        for allowed, code in ((1.0, 0), (0.1, 2)):
            limits = f"{insists}largest_epsilon_above = {allowed}\nlargest_epsilon_inside = 100.0\n"
            Path("policy.toml").write_text(f"{limits}largest_delta = 1e-5\n")
            silo = ["--silo", "region-1-1", "--policy", "policy.toml"]
            assert run(["policy", "plan.json", *silo]) == code, capsys.readouterr().err
            assert ("allows epsilon 0.1" in capsys.readouterr().err) == (code == 2)
    for refused in (["report", "plan.json", "-o", "report.html"], ["export", "plan.json", "--to", "csv"]):
        assert run(refused) == 2
        assert "unknown server 'median'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "Median", "a b", "-a", "a" * 33, "median\n", "é"])
def test_a_name_that_no_plan_file_carries_is_not_registered(median, name):
    unnamed = type("Unnamed", (median,), {"name": name})
    with pytest.raises(ParameterError, check=coded("rule.name-invalid")):
        register_server_rule(unnamed)


def test_two_rules_do_not_share_a_name(median):
    assert register_server_rule(median) is median
    with pytest.raises(ParameterError, check=coded("rule.name-taken", name="sum")):
        register_server_rule(type("Other", (median,), {"name": "sum"}))


def test_a_rule_that_is_defined_again_takes_its_own_place(median):
    again = type(median.__name__, (median,), {"__module__": median.__module__, "__qualname__": median.__qualname__})
    assert register_server_rule(again) is again
    assert rule_registry.rule_named(median.name) is again


@pytest.mark.parametrize("attribute", ["name", "clause", "of", "begin", "step"])
def test_a_rule_without_a_part_of_the_protocol_is_not_registered(attribute):
    parts = {"name": "partial", **{part: vars(MedianRule)[part] for part in ("clause", "of", "begin", "step")}}
    del parts[attribute]
    with pytest.raises(ParameterError, check=coded("rule.attribute-missing", rule="Partial", attribute=attribute)):
        register_server_rule(type("Partial", (fulcrum.ServerRule,), parts))


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (lambda state: state, "rule.result-type"),
        (lambda state: (state.model, None), "rule.result-type"),
        (lambda state: (fulcrum.ServerState(model=state.model[:3]), None), "rule.result-shape"),
    ],
)
def test_a_result_that_no_server_could_keep_is_refused_in_one_line(median, result, code):
    servers = Servers(
        [type("Wrong", (median,), {"step": lambda _, state, __: result(state)})(np.ones(4))], (5, 2), classes=2
    )
    with pytest.raises(ParameterError, check=coded(code, rule="median")):
        servers.advance(np.zeros((5, 2, 1)), np.ones((4, 5, 2, 1)))


def test_a_rule_that_claims_to_add_up_is_not_registered(median):
    """A silo counts the global sum as all that "sum" reads, and nothing else knows of another rule that it does."""
    with pytest.raises(ParameterError, check=coded("rule.adds-up", name="claims")):
        register_server_rule(type("Claims", (median,), {"name": "claims", "adds_up": True}))
    assert "claims" not in known_rules()
    assert register_server_rule(SumRule) is SumRule


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 0.0, -1.0, None, "1", 1j])
def test_a_noise_factor_that_is_no_finite_number_above_0_is_told_in_one_line(median, factor):
    register_server_rule(type("Odd", (median,), {"name": "odd", "noise_factor": lambda self: factor}))
    words = "noise_factor of the server rule 'odd' must return a finite number above 0, got "
    with pytest.raises(ParameterError, match=words):
        fulcrum.report(fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, server="odd"))


@pytest.mark.parametrize("factor", [1, 1.5, np.float32(2), np.int64(3)])
def test_a_noise_factor_may_be_any_number_above_0(median, factor):
    register_server_rule(type("Sound", (median,), {"name": "sound", "noise_factor": lambda self: factor}))
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, server="sound")
    assert plan.model_noise == pytest.approx(factor * plan.noise_budget)


@pytest.mark.parametrize("kind", ["arrays", "numbers"])
@pytest.mark.parametrize("name", ["state", "file", "model", "classes", "allow_pickle", "", "a/b", "a\0b", "../a"])
def test_a_state_with_a_name_that_a_checkpoint_cannot_keep_is_refused_before_anything_is_written(
    median, kind, name, tmp_path
):
    state = {"arrays": {name: np.zeros(2)}} if kind == "arrays" else {"numbers": {name: 1.0}}
    begin = {"begin": lambda self, start: fulcrum.ServerState(model=start, **state)}
    register_server_rule(type("Named", (median,), {"name": "named", **begin}))
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, server="named")
    with pytest.raises(ParameterError, check=coded("rule.state-name")) as caught:
        Coordinator.open(tmp_path, plan, {"head": np.zeros(4)})
    assert repr(name) in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_installed_package_offers_its_rule_by_an_entry_point(monkeypatch, tmp_path):
    monkeypatch.setattr(rule_registry, "_RULES", dict(rule_registry._RULES))
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "medians-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: medians\nVersion: 1.0\n")
    source = Path(__file__).read_text(encoding="utf-8")
    (tmp_path / "medians.py").write_text(source.partition("\n\n@pytest.fixture")[0].replace("import pytest\n", ""))
    (folder / "entry_points.txt").write_text(
        "[fulcrum.server_rules]\nmedian = medians:MedianRule\nmean = medians:MedianRule\n"
    )
    assert "median" not in known_rules()
    assert rule_named("median").__module__ == "medians"
    assert "median" in known_rules()
    with pytest.raises(ParameterError, check=coded("rule.entry-point-name")):
        rule_named("mean")
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="server", name="mode")):
        rule_named("mode")
