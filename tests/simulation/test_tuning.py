import json
from dataclasses import replace

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import DataError, ParameterError, PlanError
from fulcrum.simulation import halving, tuning, tuning_search
from fulcrum.simulation.data.input_scaling import read_inputs, scale_inputs
from fulcrum.simulation.data.input_variances import spectrum_of_task
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import TrainedVariants

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

GRID = {
    "rounds": [1, 4],
    "learning_rates": [0.3],
    "clip_norms": [1.0],
    "least_influences": [0.5],
    "input_powers": [0],
    "seeds": 2,
}


@pytest.fixture(scope="module")
def made():
    return fulcrum.plan("severe", rounds=4, epsilon={"region": 1.0, "aggregator": 9.0}, colluders=1)


@pytest.fixture(scope="module")
def tuned(made):
    return fulcrum.tune(made, "digits", **GRID)


def test_every_combination_is_tried_at_the_promise_of_the_plan(made, tuned):
    assert {(one.recipe, one.prior, one.rounds) for one in tuned.tries} == {
        (recipe, prior, rounds)
        for recipe in tuning_search.TRIED
        for prior in (False, True)
        for rounds in (1, 4)
        if recipe == "joint" or not prior
    }
    accuracy = [one.accuracy for one in tuned.tries]
    assert accuracy == sorted(accuracy, reverse=True)
    assert tuned.plan.epsilon_target == made.epsilon_target
    assert (tuned.plan.delta, tuned.plan.accountant, tuned.plan.colluders) == (made.delta, made.accountant, 1)
    assert tuned.plan.worst_epsilon() <= 1.0 + 1e-9
    assert tuned.plan.worst_epsilon("silo") <= 9.0 + 1e-9
    assert all(check.holds for check in fulcrum.verify(tuned.plan.content()))
    assert tuned.plan.rounds == tuned.best.rounds


def test_what_is_confirmed_is_what_the_new_plan_trains(made, tuned):
    alone = fulcrum.train(tuned.plan, "digits", seeds=2)
    assert alone.accuracy[:, -1].mean() == pytest.approx(tuned.confirmation.chosen, abs=1e-12)
    before = fulcrum.train(made, "digits", seeds=2)
    gains = alone.accuracy[:, -1] - before.accuracy[:, -1]
    assert tuned.confirmation.gain == pytest.approx(gains.mean(), abs=1e-12)
    assert tuned.confirmation.gain_se == pytest.approx(abs(gains[0] - gains[1]) / 2, abs=1e-12)


def test_seeds_that_choose_are_no_seeds_that_are_reported(made, tuned):
    assert tuned.choosing_seeds == (1000, 1001)
    assert tuned.confirmation.seeds == (0, 1)
    again = fulcrum.train(tuned.plan, "digits", seeds=[1000, 1001])
    assert again.accuracy[:, -1].mean() == pytest.approx(tuned.best.accuracy, abs=1e-12)
    with pytest.raises(ParameterError, check=coded("tuning.seeds-shared", seed=3, first=3)):
        fulcrum.tune(made, "digits", seeds=[1, 3], choosing_seeds=[3, 4])


def answers(monkeypatch, by_recipe):
    """Stands the accuracies of recipes in for training, by seed; returns the numbers of plans and the seeds of calls."""
    seen = []

    def trained(plans_by_seed, task, *, seeds, training):
        found = [
            [by_recipe(tuning_search.own_recipe(made), made.rounds, seed) for made in plans_by_seed[0]]
            for seed in seeds
        ]
        seen.append((len(plans_by_seed[0]), list(seeds)))
        return TrainedVariants(
            accuracy=np.array(found),
            worst_region=np.array(found),
            reference=np.ones(len(seeds)),
            reference_worst_region=np.ones(len(seeds)),
        )

    monkeypatch.setattr(halving, "train_variants", trained)
    return seen


def test_chance_alone_makes_no_new_plan(made, monkeypatch):
    answers(monkeypatch, lambda recipe, rounds, seed: 0.8 + (0.01 * (-1) ** seed if recipe == "joint" else 0))
    kept = fulcrum.tune(made, "digits", **GRID | {"seeds": 4})
    assert (kept.best.recipe, kept.best.rounds, kept.best.changes) == ("paper", 4, 0)
    assert kept.plan.noise_multiplier == pytest.approx(made.noise_multiplier)


def test_what_is_clearly_better_is_taken(made, monkeypatch):
    answers(monkeypatch, lambda recipe, rounds, seed: 0.8 + 0.01 * seed + 0.1 * (recipe == "joint") + 0.01 * rounds)
    found = fulcrum.tune(made, "digits", **GRID | {"learning_rates": [0.1, 0.3], "seeds": 3})
    assert (found.best.recipe, found.best.rounds) == ("joint", 4)
    assert (found.plan.server, found.plan.weights_rule, found.plan.clip_share < 1) == ("random-effects", "equal", True)
    behind = {(one.recipe, one.rounds): one.behind for one in found.tries}
    assert (behind["paper", 4], behind["joint", 1]) == (pytest.approx(0.1), pytest.approx(0.03))


def test_what_is_far_behind_is_not_taken_for_being_uncertain(made, monkeypatch):
    answers(
        monkeypatch, lambda recipe, rounds, seed: 0.9 if recipe == "joint" else 0.5 + 0.9 * (rounds == 1) * (-1) ** seed
    )
    found = fulcrum.tune(made, "digits", **GRID | {"seeds": 4})
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
    found = fulcrum.tune(outer, "digits", **GRID | {"rounds": [2]})
    assert {one.recipe for one in found.tries} == {"paper"}
    assert set(found.left_out) == {"joint", "joint, not shrunk"}
    assert "no target on 'federation' can hold" in found.left_out["joint"]


def test_a_plan_of_its_own_kind_is_tried_as_planned(made):
    own = fulcrum.plan("mild", rounds=2, epsilon=3.0, weights="least-noise", least_influence=0.7)
    found = fulcrum.tune(own, "digits", **GRID | {"rounds": [2]})
    assert {one.recipe for one in found.tries} == {*tuning_search.TRIED, tuning_search.AS_PLANNED}
    same = next(one for one in found.tries if one.recipe == tuning_search.AS_PLANNED)
    assert same.noise_budget == pytest.approx(own.noise_budget)
    assert same.changes == 0
    assert found.plan.least_influence == 0.7


def test_a_deployment_plan_stays_one_with_its_keys_and_its_lattice():
    made = fulcrum.plan(
        "mild", rounds=2, epsilon=3.0, purpose="deployment", parameters=34, keys={"region-1": "ed25519:" + "0" * 64}
    )
    found = fulcrum.tune(made, "digits", **GRID | {"rounds": [1]}).plan
    assert (found.purpose, found.accountant, found.keys) == ("deployment", "renyi", made.keys)
    assert found.lattice_steps is not None
    assert all(check.holds for check in fulcrum.verify(found.content()))


def test_a_budget_stays_the_budget():
    made = fulcrum.plan("mild", rounds=2, budget=0.3)
    found = fulcrum.tune(made, "digits", **GRID | {"rounds": [2]})
    assert found.plan.target.budget == 0.3
    assert found.plan.noise_budget == pytest.approx(0.3)


def test_data_of_another_size_and_plans_that_follow_others_are_refused(made):
    with pytest.raises(ParameterError, check=coded("tuning.plan-parameters", planned=66, data="digits", parameters=34)):
        fulcrum.tune(fulcrum.plan("mild", rounds=2, epsilon=3.0, parameters=66), "digits")
    follows = replace(made, spent={"region": np.ones(96), "silo": np.ones(96)})
    with pytest.raises(PlanError, check=coded("tuning.plan-continues")):
        fulcrum.tune(follows, "digits")


SMALL = ["--rounds", "4", "--learning-rates", "0.3", "--clip-norms", "1", "--least-influences", "0.5"]


def test_the_command_says_that_the_data_is_public_and_writes_a_plan_that_verifies(made, tmp_path, capsys):
    fulcrum.save_plan(made, tmp_path / "plan.json")
    told = ["tune", str(tmp_path / "plan.json"), "--data", "digits", "-o", str(tmp_path / "new.json"), "--seeds", "2"]
    assert run([*told, *SMALL, "--input-powers", "0"]) == 0
    shown = capsys.readouterr()
    printed = " ".join(shown.out.split())
    assert "Every try used digits alone, which must be public or synthetic" in printed
    assert "chosen by digits, 2 seeds, 1000 to 1001" in printed
    assert "(2 seeds, 0 to 1, which chose nothing)" in printed
    assert "Tried on public data: 8 of 8" in shown.err
    assert run(["verify", str(tmp_path / "new.json")]) == 0
    capsys.readouterr()
    assert run([*told, *SMALL, "--input-powers", "0", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["public_data"] == "digits"
    assert found["plan_digest"] == fulcrum.read_plan(tmp_path / "new.json").digest
    assert len(found["tries"]) == 4
    assert found["choosing_seeds"] == [1000, 1001]
    assert found["confirmation"]["seeds"] == [0, 1]


@pytest.mark.parametrize("powers", ["0", "0,2"])
def test_the_printed_command_and_the_settings_make_the_plan_of_the_choice(made, tmp_path, monkeypatch, capsys, powers):
    monkeypatch.chdir(tmp_path)
    # The joint recipe with its prior, in 4 rounds, wins the search.
    monkeypatch.setattr(
        tuning,
        "_choose",
        lambda halving, planned: halving.best(
            [one for one in halving.finalists if one.prior and one.input_power == float(powers[-1])]
        ),
    )
    fulcrum.save_plan(made, "plan.json")
    told = ["tune", "plan.json", "--data", "digits", "-o", "new.json", "--seeds", "2", *SMALL]
    assert run([*told, "--input-powers", powers, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    chosen = fulcrum.read_plan("new.json")
    assert (chosen.shrink, chosen.spectrum.source) == ("even-scale", "new-inputs.json")
    assert run([*found["command"].split()[1:-1], "again.json"]) == 0
    capsys.readouterr()
    again = fulcrum.read_plan("again.json")
    pasted = dict(found["settings"])
    assert pasted.pop("public") == "new-inputs.json"
    promise = {"epsilon": {"region": 1.0, "aggregator": 9.0}, "colluders": 1}
    in_python = fulcrum.plan("severe", **promise, **pasted, public=fulcrum.public_spectrum("new-inputs.json"))
    for same in (again, in_python):
        assert same.noise_multiplier.tolist() == chosen.noise_multiplier.tolist()
        assert same.spectrum == chosen.spectrum
        assert (same.clip_share, same.shrink, same.least_influence, same.rounds) == (
            chosen.clip_share,
            chosen.shrink,
            chosen.least_influence,
            chosen.rounds,
        )
    power = found["best"]["input_power"]
    assert found["training"] == {"learning_rate": 0.3} | ({"input_factors": "new-inputs.json"} if power else {})
    # The file's variances are those of the inputs as the model sees them.
    task = scale_inputs(load_task("digits"), read_inputs("new-inputs.json"))
    assert spectrum_of_task(task).variances == pytest.approx(chosen.spectrum.variances)
    how = ["--learning-rate", "0.3", *(["--input-factors", "new-inputs.json"] if power else [])]
    assert run(["train", "again.json", "--data", "digits", "--seeds", "2", *how, "--format", "json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["accuracy"] == pytest.approx(found["confirmation"]["chosen"], abs=1e-12)


def test_the_plan_keeps_to_the_promise_with_scaled_inputs_and_without(made):
    chosen = {power: fulcrum.tune(made, "digits", **GRID | {"input_powers": [power]}) for power in (0, 2)}
    for found in chosen.values():
        assert found.plan.worst_epsilon() <= 1.0 + 1e-9
        assert {one.input_power for one in found.tries} == {0.0, *([2.0] if found is chosen[2] else [])}


def test_stages_have_fewer_combinations_and_more_seeds_and_the_plan_as_it_is_stays(made, monkeypatch):
    seen = answers(monkeypatch, lambda recipe, rounds, seed: 0.5 + 0.3 * (recipe == "joint") + 0.001 * (seed % 2))
    found = fulcrum.tune(made, "digits", **GRID | {"learning_rates": [0.1, 0.3, 1.0], "seeds": 6})
    choosing = [call for call in seen if call[1][0] >= 1000]
    assert {tuple(seeds) for _, seeds in choosing} == {(1000, 1001), (1002, 1003, 1004, 1005)}
    first, last = (sum(count for count, seeds in choosing if seeds[0] == begin) for begin in (1000, 1002))
    assert (first, last) == (24, 1 + 8)  # a third of the 23 others, and the plan
    assert {one.seeds for one in found.tries} == {2, 6}
    assert [one.seeds for one in found.tries if not one.changes] == [6]
    assert found.best.recipe == "joint"


def test_ctrl_c_ends_the_search_with_the_best_so_far(made, monkeypatch, tmp_path, capsys):
    calls = []
    real = halving.train_variants

    def interrupted(*arguments, **settings):
        calls.append(settings["seeds"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **settings)

    monkeypatch.setattr(halving, "train_variants", interrupted)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    told = ["tune", str(tmp_path / "plan.json"), "--data", "digits", "-o", str(tmp_path / "new.json")]
    assert run([*told, *SMALL[2:], "--input-powers", "0,1", "--rounds", "1,4"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "The search was stopped: the choice is the best so far" in printed
    assert "chosen by digits, 2 seeds, 1000 to 1001" in printed
    assert "other seeds" not in printed.replace("no other seeds confirm it", "")
    assert len(calls) == 3  # nothing is trained afterwards
    assert run(["verify", str(tmp_path / "new.json")]) == 0


def test_ctrl_c_before_the_plan_is_trained_gives_no_result(made, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(halving, "train_variants", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fulcrum.tune(made, "digits", **GRID)


def test_least_influence_0_is_tried_only_where_it_is_named(made, monkeypatch):
    answers(monkeypatch, lambda *_: 0.5)
    small = {name: value for name, value in GRID.items() if name != "least_influences"}
    usual = fulcrum.tune(made, "digits", **small)
    named = fulcrum.tune(made, "digits", **small, least_influences=[0])
    joint = [{one.least_influence for one in found.tries if one.recipe.startswith("joint")} for found in (usual, named)]
    assert joint == [{0.5, 1.0}, {0.0}]


def test_a_deployment_takes_no_prior_from_a_training_split(monkeypatch):
    answers(monkeypatch, lambda *_: 0.5)
    made = fulcrum.plan("mild", rounds=2, epsilon=3.0, purpose="deployment", parameters=34)
    found = fulcrum.tune(made, "digits", **GRID | {"rounds": [2]})
    assert not any(one.prior for one in found.tries)
    assert "public data" in found.left_out["prior"]
    public = fulcrum.tune(made, replace(load_task("digits"), name="pixels"), **GRID | {"rounds": [2]})
    assert any(one.prior for one in public.tries)


@pytest.mark.parametrize(
    ("option", "text", "code"),
    [
        ("--clip-norms", "1;2", "cli.numbers-form"),
        ("--least-influences", "half", "cli.numbers-form"),
        ("--input-powers", "1,x", "cli.numbers-form"),
        ("--input-powers", "-1", "scaling.power-range"),
        ("--input-powers", "nan", "scaling.power-range"),
        ("--clip-norms", "0", "plan.clip-norm-range"),
        ("--least-influences", "2", "plan.least-influence-range"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_is_trained(
    made, tmp_path, capsys, monkeypatch, option, text, code
):
    monkeypatch.setattr(halving, "train_variants", lambda *_, **__: pytest.fail("nothing is to be trained"))
    fulcrum.save_plan(made, tmp_path / "plan.json")
    told = ["tune", str(tmp_path / "plan.json"), "--data", "digits", "-o", str(tmp_path / "new.json")]
    assert run([*told, option, text, "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == code
    assert not (tmp_path / "new.json").exists()


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
        made,
        "digits",
        **GRID | {"rounds": [4], "learning_rates": [1.0]},
        training=LocalTraining(learning_rate=0.2),
    )
    assert {one.learning_rate for one in found.tries} == {0.2, 1.0}
    assert found.best.learning_rate == 0.2
