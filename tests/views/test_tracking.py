"""Rounds handed to TensorBoard and MLflow: what is told, and that training does not depend on who is told."""

import sys

import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import DataError, MissingExtraError
from fulcrum.server.run_results import RoundResult
from fulcrum.views import tracking as module
from fulcrum.views.tracking import EXPERIMENT, round_values, run_description, tracking

ROUNDS = [
    RoundResult(round=1, accuracy=0.5, metrics={"loss": 0.9, "längs/α β!": 2.0}, regions=2, silos=5),
    RoundResult(round=2, metrics={"loss": 0.7}, regions=1, silos=4, withheld=["south"]),
]
COUNTS = {"federation/regions_summed": [(1, 2.0), (2, 1.0)], "federation/silos_in_sums": [(1, 5.0), (2, 4.0)]}


@pytest.fixture
def about():
    return run_description(fulcrum.plan("isic-paper", rounds=2, epsilon=1.0)) | {"engine": "nvflare"}


def events(folder):
    """Every scalar that TensorBoard itself reads from a folder, by tag."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(at.step, pytest.approx(at.value, rel=1e-6)) for at in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def histories(folder):
    """Every metric of the one run that MLflow itself reads from a folder, its parameters and its status."""
    client = pytest.importorskip("mlflow.tracking").MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    metrics = {
        name: [(at.step, at.value) for at in client.get_metric_history(found.info.run_id, name)]
        for name in found.data.metrics
    }
    return metrics, found.data.params, found.info.status


def test_what_is_told_of_a_round_is_its_metrics_and_who_is_in_the_sums():
    assert round_values(ROUNDS[1]) == {"loss": 0.7, "federation/regions_summed": 1.0, "federation/silos_in_sums": 4.0}
    assert round_values(RoundResult(round=1, accuracy=0.5, accuracy_se=0.01)) == {"accuracy": 0.5, "accuracy_se": 0.01}


def test_tensorboard_reads_every_round(tmp_path, about):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    with tracking(about, tensorboard=tmp_path / "deep" / "tb", mlflow=None) as tell:
        for found in ROUNDS:
            tell(found)
    wanted = {"accuracy": [(1, 0.5)], "loss": [(1, 0.9), (2, 0.7)], "längs/α β!": [(1, 2.0)]} | COUNTS
    assert events(tmp_path / "deep" / "tb") == wanted


@pytest.mark.filterwarnings("ignore")  # what MLflow's own libraries say to each other
def test_mlflow_reads_every_round_from_a_folder_and_the_plan_it_is_of(tmp_path, about):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    with tracking(about, tensorboard=None, mlflow=str(tmp_path / "deep" / "ml")) as tell:
        for found in ROUNDS:
            tell(found)
    metrics, params, status = histories(tmp_path / "deep" / "ml")
    assert metrics == {"accuracy": [(1, 0.5)], "loss": [(1, 0.9), (2, 0.7)], "l_ngs/_ __": [(1, 2.0)]} | COUNTS
    assert params == about
    assert status == "FINISHED"


@pytest.mark.filterwarnings("ignore")
def test_who_follows_without_a_plan_at_hand_is_tracked_as_well(tmp_path):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    with tracking(run_description(None) | {"engine": "nvflare"}, tensorboard=None, mlflow=str(tmp_path)) as tell:
        tell(ROUNDS[1])
    metrics, params, _ = histories(tmp_path)
    assert (metrics["loss"], params) == ([(2, 0.7)], {"engine": "nvflare"})


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_breaks_off_is_marked_so(tmp_path, about):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")

    def broken_off():
        with tracking(about, tensorboard=None, mlflow=str(tmp_path)) as tell:
            tell(ROUNDS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    metrics, _, status = histories(tmp_path)
    assert metrics["loss"] == [(1, 0.9)]
    assert status == "FAILED"


def test_an_mlflow_server_that_is_not_there_is_told_before_anything_is_trained(about):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    with (
        pytest.raises(DataError, check=coded("tracking.mlflow-unusable")) as caught,
        tracking(about, tensorboard=None, mlflow="http://127.0.0.1:1"),
    ):
        pytest.fail("opened")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("option", "library"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_without_the_library_there_is_one_line_with_the_remedy(tmp_path, monkeypatch, capsys, about, option, library):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)  # as where it is not installed
    with (
        pytest.raises(MissingExtraError, check=coded("tracking.extra-missing")),
        tracking(about, **{"tensorboard": None, "mlflow": None, option: tmp_path / "x"}),
    ):
        pytest.fail("opened")
    fulcrum.save_plan(fulcrum.plan("mild", rounds=2, epsilon=5.0), tmp_path / "plan.json")
    assert (
        run(["train", str(tmp_path / "plan.json"), f"--{option}", str(tmp_path / "x"), "-o", str(tmp_path / "r")]) == 2
    )
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert not (tmp_path / "r" / "run.json").exists()


def test_one_that_fails_in_between_is_told_of_once_and_training_goes_on(tmp_path, monkeypatch, capsys, about):
    told = []

    class Breaking:
        """A tracker whose disk is full from the second round on."""

        def __init__(self, *_):
            pass

        def log(self, round_number, values):
            if round_number > 1:
                raise OSError(28, "No space left\non device")
            told.append(round_number)

        def close(self, *, complete):
            pytest.fail("asked again")

    monkeypatch.setattr(module, "_TensorBoard", Breaking)
    with tracking(about, tensorboard=tmp_path, mlflow=None) as tell:
        for found in [*ROUNDS, RoundResult(round=3)]:
            tell(found)
    assert told == [1]
    assert capsys.readouterr().err == (
        "fulcrum: TensorBoard gets no further rounds: [Errno 28] No space left on device\n"
    )


def test_training_in_process_is_told_as_well(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    plan = fulcrum.plan("mild", rounds=2, epsilon=5.0)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    folder = tmp_path / "tb"
    command = ["train", str(tmp_path / "plan.json"), "--data", "digits", "--seeds", "2", "--format", "json"]
    assert run([*command, "--tensorboard", str(folder), "-o", str(tmp_path / "run")]) == 0
    rounds = fulcrum.server.run_results.read_results(tmp_path / "run", plan).run.rounds
    assert events(folder) == {
        "accuracy": [(row.round, row.accuracy) for row in rounds],
        "accuracy_se": [(row.round, row.accuracy_se) for row in rounds],
    }
    assert "train" not in capsys.readouterr().err.replace("Training", "")
