import json
from dataclasses import replace

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import DataError, ParameterError, PlanError
from fulcrum.simulation import tuning
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.batched_engine import LocalTraining
from fulcrum.simulation.training_runs import TrainedVariants

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

GRID = {"rounds": [1, 4], "learning_rates": [0.3], "seeds": 2}


@pytest.fixture(scope="module")
def made():
    return fulcrum.plan("severe", rounds=4, epsilon={"region": 1.0, "aggregator": 9.0}, colluders=1)


@pytest.fixture(scope="module")
def tuned(made):
    return fulcrum.tune(made, "digits", **GRID)


def test_every_combination_is_tried_at_the_promise_of_the_plan(made, tuned):
    assert {(one.recipe, one.rounds) for one in tuned.tries} == {
        (recipe, rounds) for recipe in tuning.TRIED for rounds in (1, 4)
    }
    accuracy = [one.accuracy for one in tuned.tries]
    assert accuracy == sorted(accuracy, reverse=True)
    assert tuned.plan.epsilon_target == made.epsilon_target
    assert (tuned.plan.delta, tuned.plan.accountant, tuned.plan.colluders) == (made.delta, made.accountant, 1)
    assert tuned.plan.worst_epsilon() <= 1.0 + 1e-9
    assert tuned.plan.worst_epsilon("silo") <= 9.0 + 1e-9
    assert all(check.holds for check in fulcrum.verify(tuned.plan.content()))
    assert tuned.plan.rounds == tuned.best.rounds


def test_what_is_tried_is_what_the_new_plan_trains(tuned):
    alone = fulcrum.train(tuned.plan, "digits", seeds=2)
    assert alone.accuracy[:, -1].mean() == pytest.approx(tuned.best.accuracy, abs=1e-12)


def answers(monkeypatch, by_recipe):
    """Stands the accuracies of recipes in for training, by seed."""

    def trained(plans_by_seed, task, *, seeds, training):
        found = [
            [by_recipe(tuning._own_recipe(made), made.rounds, seed) for made in plans_by_seed[0]] for seed in seeds
        ]
        return TrainedVariants(
            accuracy=np.array(found),
            worst_region=np.array(found),
            reference=np.ones(len(seeds)),
            reference_worst_region=np.ones(len(seeds)),
        )

    monkeypatch.setattr(tuning, "train_variants", trained)


def test_chance_alone_makes_no_new_plan(made, monkeypatch):
    answers(monkeypatch, lambda recipe, rounds, seed: 0.8 + (0.01 * (-1) ** seed if recipe == "joint" else 0))
    kept = fulcrum.tune(made, "digits", rounds=[1, 4], learning_rates=[0.3], seeds=4)
    assert (kept.best.recipe, kept.best.rounds, kept.best.changes) == ("paper", 4, 0)
    assert kept.plan.noise_multiplier == pytest.approx(made.noise_multiplier)


def test_what_is_clearly_better_is_taken(made, monkeypatch):
    answers(monkeypatch, lambda recipe, rounds, seed: 0.8 + 0.01 * seed + 0.1 * (recipe == "joint") + 0.01 * rounds)
    found = fulcrum.tune(made, "digits", rounds=[1, 4], learning_rates=[0.1, 0.3], seeds=3)
    assert (found.best.recipe, found.best.rounds) == ("joint", 4)
    assert (found.plan.server, found.plan.weights_rule, found.plan.clip_share < 1) == ("random-effects", "equal", True)
    behind = {(one.recipe, one.rounds): one.behind for one in found.tries}
    assert (behind["paper", 4], behind["joint", 1]) == (pytest.approx(0.1), pytest.approx(0.03))


def test_what_is_far_behind_is_not_taken_for_being_uncertain(made, monkeypatch):
    answers(
        monkeypatch, lambda recipe, rounds, seed: 0.9 if recipe == "joint" else 0.5 + 0.9 * (rounds == 1) * (-1) ** seed
    )
    found = fulcrum.tune(made, "digits", rounds=[1, 4], learning_rates=[0.3], seeds=4)
    assert found.best.recipe == "joint"


def test_data_that_names_silos_is_refused_before_anything_is_trained(made):
    task = load_task("digits")
    own = replace(task, silo=tuple("region-1-1" for _ in task.labels_train))
    with pytest.raises(DataError, check=coded("tuning.silos-named")):
        fulcrum.tune(made, own)
    for name in ("eicu", "tcga-brca", "heart"):  # by name, before the files are looked for
        with pytest.raises(DataError, check=coded("tuning.silos-named", data=name)):
            fulcrum.tune(made, name)


def test_a_recipe_that_cannot_keep_the_targets_is_left_out_with_the_reason():
    outer = fulcrum.plan("severe", rounds=2, epsilon={"federation": 1.0})
    found = fulcrum.tune(outer, "digits", rounds=[2], learning_rates=[0.3], seeds=2)
    assert {one.recipe for one in found.tries} == {"paper"}
    assert set(found.left_out) == {"joint", "joint, not shrunk"}
    assert "no target on 'federation' can hold" in found.left_out["joint"]


def test_a_plan_of_its_own_kind_is_tried_as_planned(made):
    own = fulcrum.plan("mild", rounds=2, epsilon=3.0, weights="least-noise", least_influence=0.7)
    found = fulcrum.tune(own, "digits", rounds=[2], learning_rates=[0.3], seeds=2)
    assert {one.recipe for one in found.tries} == {*tuning.TRIED, tuning.AS_PLANNED}
    same = next(one for one in found.tries if one.recipe == tuning.AS_PLANNED)
    assert same.noise_budget == pytest.approx(own.noise_budget)
    assert same.changes == 0
    assert found.plan.least_influence == 0.7


def test_a_deployment_plan_stays_one_with_its_keys_and_its_lattice():
    made = fulcrum.plan(
        "mild", rounds=2, epsilon=3.0, purpose="deployment", parameters=34, keys={"region-1": "ed25519:" + "0" * 64}
    )
    found = fulcrum.tune(made, "digits", rounds=[1], learning_rates=[0.3], seeds=2).plan
    assert (found.purpose, found.accountant, found.keys) == ("deployment", "renyi", made.keys)
    assert found.lattice_steps is not None
    assert all(check.holds for check in fulcrum.verify(found.content()))


def test_a_budget_stays_the_budget():
    made = fulcrum.plan("mild", rounds=2, budget=0.3)
    found = fulcrum.tune(made, "digits", rounds=[2], learning_rates=[0.3], seeds=2)
    assert found.plan.target.budget == 0.3
    assert found.plan.noise_budget == pytest.approx(0.3)


def test_data_of_another_size_and_plans_that_follow_others_are_refused(made):
    with pytest.raises(ParameterError, check=coded("tuning.plan-parameters", planned=66, data="digits", parameters=34)):
        fulcrum.tune(fulcrum.plan("mild", rounds=2, epsilon=3.0, parameters=66), "digits")
    follows = replace(made, spent={"region": np.ones(96), "silo": np.ones(96)})
    with pytest.raises(PlanError, check=coded("tuning.plan-continues")):
        fulcrum.tune(follows, "digits")


def test_the_command_says_that_the_data_is_public_and_writes_a_plan_that_verifies(made, tmp_path, capsys):
    fulcrum.save_plan(made, tmp_path / "plan.json")
    told = ["tune", str(tmp_path / "plan.json"), "--data", "digits", "-o", str(tmp_path / "new.json"), "--seeds", "2"]
    assert run([*told, "--rounds", "4", "--learning-rates", "0.3"]) == 0
    shown = capsys.readouterr()
    assert "Every try used digits alone, which must be public or synthetic" in " ".join(shown.out.split())
    assert "Tried on public data: 3 of 3" in shown.err
    assert run(["verify", str(tmp_path / "new.json")]) == 0
    capsys.readouterr()
    assert run([*told, "--rounds", "4", "--learning-rates", "0.3", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["public_data"] == "digits"
    assert found["plan_digest"] == fulcrum.read_plan(tmp_path / "new.json").digest
    assert len(found["tries"]) == 3


def test_rates_that_are_no_numbers_are_refused_in_one_line(made, tmp_path, capsys):
    fulcrum.save_plan(made, tmp_path / "plan.json")
    told = ["tune", str(tmp_path / "plan.json"), "--data", "digits", "-o", str(tmp_path / "new.json")]
    assert run([*told, "--learning-rates", "0.3;1"]) == 2
    assert "--learning-rates must be numbers separated by commas, got '0.3;1'" in capsys.readouterr().err
    assert not (tmp_path / "new.json").exists()


def test_a_rate_that_cannot_be_is_refused_before_anything_is_trained(made, tmp_path, capsys):
    fulcrum.save_plan(made, tmp_path / "plan.json")
    told = ["tune", str(tmp_path / "plan.json"), "--data", "digits", "-o", str(tmp_path / "new.json")]
    assert run([*told, "--learning-rates", "0.3,nan"]) == 2
    assert capsys.readouterr().err == "fulcrum: learning rate must be a finite number above 0, got nan\n"


def test_the_learning_rate_as_planned_is_always_tried(made, monkeypatch):
    answers(monkeypatch, lambda *_: 0.5)
    found = fulcrum.tune(
        made, "digits", rounds=[4], learning_rates=[1.0], seeds=2, training=LocalTraining(learning_rate=0.2)
    )
    assert {one.learning_rate for one in found.tries} == {0.2, 1.0}
    assert found.best.learning_rate == 0.2
