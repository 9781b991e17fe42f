import json

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.cli.run_commands.deployments import _options
from fulcrum.cli.shared_options.training_options import TrainingOptions
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.engines import built_in_training
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.input_scaling import read_inputs, save_inputs, scale_inputs, scaled_inputs
from fulcrum.simulation.data.input_variances import public_spectrum, spectrum_of_task
from fulcrum.simulation.data.tasks import load_task

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_factors_follow_the_power_of_the_variances_and_keep_the_mean_length(task, power):
    inputs = scaled_inputs(spectrum_of_task(task), power=power)
    scaled = scale_inputs(task, inputs)
    before, after = (one.features_train.var(axis=0) for one in (task, scaled))
    assert after.sum() == pytest.approx(before.sum())
    assert np.log(after / after[0]) == pytest.approx((1 + power) * np.log(before / before[0]))
    assert inputs.variances == pytest.approx(after)
    test_factors = scaled.features_test[:5] / task.features_test[:5]
    assert test_factors == pytest.approx(np.broadcast_to(inputs.factors, (5, 16)))


def test_no_scaling_leaves_every_input_as_it_is(task):
    scaled = scale_inputs(task, scaled_inputs(spectrum_of_task(task), power=0.0))
    assert scaled.features_train == pytest.approx(task.features_train, rel=1e-12)


def test_an_input_that_hardly_varies_is_neither_removed_nor_infinite():
    inputs = scaled_inputs(Spectrum(variances=[1.0, 1e-12], origin="public", source="texts"), power=8.0)
    assert inputs.factors[1] / inputs.factors[0] == pytest.approx(1e-6)
    assert min(inputs.variances) > 0


@pytest.mark.parametrize("power", [-0.1, 8.1, float("nan"), "1"])
def test_a_power_out_of_range_is_refused(task, power):
    with pytest.raises(ParameterError, check=coded("scaling.power-range", most=8.0)):
        scaled_inputs(spectrum_of_task(task), power=power)


def test_the_file_gives_the_factors_to_training_and_the_variances_to_a_plan(task, tmp_path):
    inputs = scaled_inputs(
        Spectrum(variances=spectrum_of_task(task).variances, origin="public", source="texts", embedding=True), power=1.0
    )
    save_inputs(inputs, tmp_path / "inputs.json")
    assert read_inputs(tmp_path / "inputs.json").factors == inputs.factors
    read = read_data("digits", input_factors=tmp_path / "inputs.json")
    assert read.features_train.tolist() == scale_inputs(task, inputs).features_train.tolist()
    spectrum = public_spectrum(tmp_path / "inputs.json")
    assert (spectrum.variances, spectrum.origin, spectrum.source, spectrum.embedding) == (
        inputs.variances,
        "public",
        "inputs.json",
        True,
    )
    made = fulcrum.plan(
        "mild", rounds=2, epsilon=3.0, recipe="joint", parameters=34, purpose="deployment", public=spectrum
    )
    assert all(check.holds for check in fulcrum.verify(made.content()))


def test_sites_of_a_deployment_multiply_their_inputs_by_the_factors(task, tmp_path):
    inputs = scaled_inputs(spectrum_of_task(task), power=1.0)
    save_inputs(inputs, tmp_path / "inputs.json")
    options = _options(TrainingOptions(data="digits", input_factors=tmp_path / "inputs.json"))
    assert (
        built_in_training._task(options).features_train.tolist() == scale_inputs(task, inputs).features_train.tolist()
    )


def test_variances_of_a_training_split_stay_that_in_a_file_and_in_a_plan(task, tmp_path):
    save_inputs(scaled_inputs(spectrum_of_task(task), power=0.0), tmp_path / "inputs.json")
    spectrum = public_spectrum(tmp_path / "inputs.json")
    assert spectrum.origin == "training-split"
    with pytest.raises(ParameterError, check=coded("plan.spectrum-origin")):
        fulcrum.plan(
            "mild", rounds=2, epsilon=3.0, recipe="joint", parameters=34, purpose="deployment", public=spectrum
        )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"factors": [1.0]}, "scaling.file-lengths"),
        ({"factors": [1.0] * 15 + [0.0]}, "scaling.file-range"),
        ({"factors": [1.0] * 15 + [1e999]}, "scaling.file-form"),
        ({"variances": [-1.0] * 16}, "scaling.file-form"),
        ({"origin": "hearsay"}, "scaling.file-form"),
        ({"more": 1}, "scaling.file-form"),
    ],
)
def test_a_file_of_another_form_is_refused(task, tmp_path, change, code):
    file = tmp_path / "inputs.json"
    save_inputs(scaled_inputs(spectrum_of_task(task), power=1.0), file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, check=coded(code)):
        read_inputs(file)


def test_factors_for_other_data_and_files_that_are_not_there_are_refused_in_one_line(task, tmp_path, capsys):
    made = fulcrum.plan("mild", rounds=2, epsilon=3.0)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    save_inputs(scaled_inputs(spectrum_of_task(task), power=1.0), tmp_path / "inputs.json")
    told = ["train", str(tmp_path / "plan.json"), "--data", "digits", "--format", "json"]
    for words, code in (
        (["--components", "8", "--input-factors", str(tmp_path / "inputs.json")], "scaling.factors-number"),
        (["--input-factors", str(tmp_path / "none.json")], "file.unreadable"),
        (["--input-factors", str(tmp_path / "plan.json")], "scaling.file-form"),
    ):
        assert run([*told, *words]) == 2
        assert json.loads(capsys.readouterr().err)["error"]["code"] == code
