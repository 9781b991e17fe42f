"""A user's own Flower app under a plan: arguments of FedAvg, notes, records, progress and refusals, without engines."""

import json

import numpy as np
import pytest

import fulcrum

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from flower_world import START, FlowerWorld, record
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg
from numpy_app import write_app

from fulcrum.cli.command_line import run as run_command
from fulcrum.core.masking.masking_messages import Begin, Session
from fulcrum.core.silo.site import read_site
from fulcrum.engines.flower.kits.app_files import app_files
from fulcrum.engines.flower.kits.flower_loopback import FlowerSites, follow_run
from fulcrum.engines.flower.kits.user_apps import app_package
from fulcrum.engines.flower.server_side import flower_version, stage_progress
from fulcrum.engines.flower.server_side.run_recorder import run_of
from fulcrum.engines.flower.server_side.stage_progress import ProgressFile, read_progress
from fulcrum.engines.flower.strategy import FulcrumStrategy
from fulcrum.engines.local_sites import RoundWatch
from fulcrum.engines.log_reasons import end_of
from fulcrum.engines.training_failures import ALL_SILOS, Failures
from fulcrum.errors import EngineError, FulcrumError, ParameterError


@pytest.fixture
def world(tmp_path):
    return FlowerWorld(tmp_path)


def test_the_defaults_of_fedavg_are_accepted_but_for_the_evaluation_at_silos(world):
    usual = {name: value for name, value in vars(FedAvg()).items() if not name.endswith("aggr_fn")}
    assert len(usual) == 8
    FulcrumStrategy(world.folder / "server", **usual | {"fraction_evaluate": 0.0})


@pytest.mark.parametrize(
    ("argument", "value", "code"),
    [
        ("fraction_train", 0.5, "flower.argument-silos"),
        ("fraction_evaluate", 1.0, "flower.argument-metrics"),
        ("min_train_nodes", 3, "flower.argument-dropouts"),
        ("min_available_nodes", 10, "flower.argument-dropouts"),
        ("min_evaluate_nodes", 3, "flower.argument-metrics"),
        ("train_metrics_aggr_fn", print, "flower.argument-metrics"),
        ("evaluate_metrics_aggr_fn", print, "flower.argument-metrics"),
        ("weighted_by_key", "rows", "flower.argument-weights"),
        ("arrayrecord_key", "model", "flower.argument-record"),
        ("configrecord_key", "settings", "flower.argument-record"),
        ("proximal_mu", 0.1, "flower.argument-proximal"),
        ("eta", 0.01, "flower.argument-server"),
        ("beta_1", 0.9, "flower.argument-server"),
        ("fraction_evalute", 0.0, "flower.argument-unknown"),
    ],
)
def test_an_argument_that_a_plan_cannot_honour_is_refused_by_name(world, argument, value, code):
    with pytest.raises(ParameterError) as refusal:
        FulcrumStrategy(world.folder / "server", **{argument: value})
    assert refusal.value.code == code
    assert argument in str(refusal.value)


def test_a_version_of_flower_that_is_not_tested_is_refused(world, monkeypatch):
    monkeypatch.setattr(flower_version, "version", lambda name: "1.99.1")
    with pytest.raises(EngineError) as refusal:
        FulcrumStrategy(world.folder / "server")
    assert refusal.value.code == "flower.version"
    assert refusal.value.details["installed"] == "1.99.1"
    monkeypatch.setattr(flower_version, "version", lambda name: "1.41.7")
    FulcrumStrategy(world.folder / "server")


def run(world, start=START, **options):
    strategy = FulcrumStrategy(world.folder / "server")
    return strategy.start(grid=world.grid(), initial_arrays=record(start), **options)


def test_the_metrics_of_an_app_are_in_run_json_also_after_a_new_start(world):
    def measure(number, arrays):
        return MetricRecord({"accuracy": number / 10, "loss": 1.0 / (number + 1)})

    run(world, num_rounds=1, evaluate_fn=measure)
    run(world, evaluate_fn=measure)
    rounds = run_of(read_site(world.folder / "server", "server")).rounds
    assert [(found.round, found.accuracy, found.metrics) for found in rounds] == [
        (number, number / 10, {"loss": 1.0 / (number + 1)}) for number in (1, 2, 3)
    ]


def test_running_variances_of_a_batch_norm_give_the_note_that_a_training_module_gives(tmp_path, caplog):
    world = FlowerWorld(tmp_path, parameters=42)
    start = START | {"norm.running_var": np.ones(2), "norm.num_batches_tracked": np.array(7)}

    def train(message, context):
        from flwr.app import Message, RecordDict

        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    world.train = train
    with caplog.at_level("WARNING", logger="flwr.fulcrum"):
        run(world, start, num_rounds=1)
    notes = run_of(read_site(world.folder / "server", "server")).notes
    assert any("norm.running_var" in note and "group norm" in note for note in notes)
    assert any("norm.num_batches_tracked" in note for note in notes)
    assert all(note in caplog.text for note in notes)


def test_the_progress_names_every_stage_of_every_round_in_order(world, monkeypatch):
    written = []
    monkeypatch.setattr(stage_progress.ProgressFile, "_write", lambda self, progress: written.append(progress))
    run(world, num_rounds=2)
    assert [(progress.round_number, progress.stage) for progress in written] == [
        (1, 0),
        *((number, stage) for number in (1, 2) for stage in range(1, 6)),
    ]
    assert [progress.begun + progress.left for progress in written[1:]] == [9] * 10


class EndedRun:
    def check(self):
        pass

    def run_has_ended(self):
        return True


def test_a_run_is_followed_by_stage_and_round_and_its_early_end_is_an_error(world, tmp_path):
    run(world, num_rounds=2)
    server = read_site(world.folder / "server", "server")
    assert read_progress(server.folder).stage == 5
    log = tmp_path / "output.log"
    log.write_text("working\n│ ModuleNotFoundError: no module 'tables' │\n╰──╯\n")
    rounds, steps = [], []
    watch = RoundWatch(tmp_path, on_round=rounds.append, stall=60)
    with pytest.raises(EngineError) as ended:
        follow_run(EndedRun(), server, watch, steps.append, log=log, failures=Failures({}))
    assert ended.value.code == "flower.run-ended"
    assert (ended.value.details["finished"], ended.value.details["rounds"]) == (2, 3)
    assert "no module 'tables'" in str(ended.value)
    assert [found.round for found in rounds] == [1, 2]
    assert steps[0].startswith("round 2 of 2, stage 5 of 5: silos unmask the sum")


ALARM = "(Actor pid=7) training failed in round 1: nothing is released\n"
TRACE = (
    "(Actor pid=7) Traceback (most recent call last):\n(Actor pid=7)   File 'app.py'\n(Actor pid=7) KeyError: 'rate'\n"
)


@pytest.mark.parametrize(("logged_at", "code"), [("ab", "engine.training-failed"), ("a", "flower.run-ended")])
def test_a_failed_training_is_the_reason_of_a_run_that_ends(world, tmp_path, logged_at, code):
    server, watch = read_site(world.folder / "server", "server"), RoundWatch(tmp_path, on_round=print, stall=60)
    for silo in "ab":
        (tmp_path / silo).mkdir()
        (tmp_path / silo / "output.log").write_text(ALARM + TRACE if silo in logged_at else "nothing\n")
    failures, log = Failures({silo: tmp_path / silo for silo in "ab"}), tmp_path / "none.log"
    with pytest.raises(EngineError) as ended:
        follow_run(EndedRun(), server, watch, print, log=log, failures=failures)
    assert ended.value.code == code
    assert f"{len(logged_at)} of 2 silos" in str(ended.value)
    assert "KeyError: 'rate'" in str(ended.value)


def test_a_log_that_all_silos_share_names_the_failure_and_ends_no_run(tmp_path):
    (tmp_path / "output.log").write_text("starting\n" + ALARM + TRACE)
    failures = Failures({ALL_SILOS: tmp_path})
    failures.look()
    assert failures.in_words() == f"training failed, see {tmp_path / 'output.log'}: KeyError: 'rate'"
    assert not failures.everywhere


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            TRACE + "ERROR: Exit Code: 700\nAn unhandled exception occurred\nFor more information, visit: <x>\n",
            "KeyError: 'rate'",
        ),
        (
            TRACE + TRACE.replace("KeyError: 'rate'", "fulcrum.errors.DataError: no rows. Give rows"),
            "no rows. Give rows",
        ),
        ("│ The app has no name │\n╰───╯\nFor more information, visit: <x>\n", "The app has no name"),
        ("\x1b[91mERROR\x1b[0m: port in use\n", "ERROR: port in use"),
        ("", "the log is empty"),
    ],
    ids=["trace", "own", "frame", "colour", "empty"],
)
def test_the_reason_in_a_log_is_the_last_exception_or_the_last_line_with_a_reason(log, reason):
    assert end_of(log) == reason


def test_a_repeated_round_shows_the_attempt(tmp_path):
    file = ProgressFile(tmp_path, 2)
    for number, attempt, words in ((1, 1, ""), (1, 2, ", attempt 2"), (2, 1, "")):
        session = Session(plan_digest="0", group="north", round_number=number, attempt=attempt, input_digest="0")
        file.begin(number, Begin(session=session, threshold=2, neighbours=2, bits=32))
        assert read_progress(tmp_path).in_words() == f"round {number} of 2{words}, stage 1 of 5: silos make keys"


@pytest.fixture
def plan():
    return fulcrum.plan("severe", rounds=2, epsilon=3.0, aggregation="masked")


def test_the_package_of_an_app_is_read_and_an_app_without_fulcrum_is_refused(tmp_path, plan):
    assert app_package(write_app(tmp_path / "private"), plan) == "steps"
    for folder, code in (
        (write_app(tmp_path / "plain", private=False), "flower.app-without-fulcrum"),
        (tmp_path / "nowhere", "flower.app-unreadable"),
    ):
        with pytest.raises(FulcrumError) as refusal:
            app_package(folder, plan)
        assert refusal.value.code == code
    (tmp_path / "private" / "pyproject.toml").write_text('[project]\nname = "x"\n')
    with pytest.raises(FulcrumError) as refusal:
        app_package(tmp_path / "private", plan)
    assert refusal.value.code == "flower.app-unreadable"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("app = ClientApp(client_fn=make_client, mods=[fulcrum_mod])", "flower.app-by-client"),
        ("app = flwr.clientapp.ClientApp(make_client, mods=[fulcrum_mod])", "flower.app-by-client"),
        ("app = ClientApp(mods=[fulcrum_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)])", "flower.app-own-noise"),
        ("app = ClientApp(mods=[fulcrum_mod, mod.fixedclipping_mod])", "flower.app-own-noise"),
    ],
)
def test_an_app_without_updates_by_message_or_with_noise_of_its_own_is_refused(tmp_path, plan, line, code):
    app = write_app(tmp_path / "own")
    assert app_package(app, plan) == "steps"
    with (app / "steps" / "client_app.py").open("a") as file:
        file.write(f"\n\n{line}\n")
    with pytest.raises(FulcrumError) as refusal:
        app_package(app, plan)
    assert refusal.value.code == code
    assert refusal.value.details["line"] == (app / "steps" / "client_app.py").read_text().splitlines().index(line) + 1


def test_the_names_of_privacy_mods_in_imports_and_comments_alone_are_no_use(tmp_path, plan):
    app = write_app(tmp_path / "own")
    with (app / "steps" / "client_app.py").open("a") as file:
        file.write("\nfrom flwr.clientapp.mod import LocalDpMod  # LocalDpMod(1.0) was here; ClientApp(client_fn)\n")
    assert app_package(app, plan) == "steps"


@pytest.mark.parametrize(
    "option", [["--train", "mine"], ["--option", "a=1"], ["--data", "x.csv"], ["--only-sites", "--batch", "8"]]
)
def test_options_of_another_training_are_refused_for_an_app(tmp_path, plan, capsys, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(plan, "plan.json")
    write_app(tmp_path / "own")
    words = ["simulate", "flower", "plan.json", "--app", "own", *option, "-o", "run", "--format", "json"]
    assert run_command(words) == 2
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["error"]["code"] == "cli.app-own-training"
    assert not (tmp_path / "run").exists()


def test_the_sites_of_a_simulation_are_written_with_the_commands_that_run_an_app(tmp_path, plan, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(plan, "plan.json")
    write_app(tmp_path / "own")
    assert (
        run_command(
            ["simulate", "flower", "plan.json", "--app", "own", "--only-sites", "-o", "sites", "--format", "json"]
        )
        == 0
    )
    commands = json.loads(capsys.readouterr().out)["commands"]
    assert commands[0] == f"export FULCRUM_SITES={tmp_path / 'sites'} FULCRUM_SITE={tmp_path / 'sites' / 'server'}"
    assert commands[1] == "flwr run own --stream --federation-config 'num-supernodes=96'"
    assert read_site(tmp_path / "sites" / "server", "server").settings.train == "steps"
    assert run_command(["simulate", "flower", "plan.json", "--only-sites"]) == 2


def test_no_app_of_fulcrum_asks_an_index_for_packages(plan):
    import tomllib

    assert tomllib.loads(app_files(plan)["pyproject.toml"])["project"]["dependencies"] == []


def test_nodes_on_this_machine_have_the_numbers_of_a_simulation(tmp_path, plan):
    from fulcrum.engines.site_folders import Deployment

    sites = FlowerSites(tmp_path, Deployment(plan=plan, train="steps"))
    names = plan.federation.silo_names.tolist()
    assert sites.environment(names[7])["NODE_CONFIG"] == "partition-id=7 num-partitions=96"
    assert "NODE_CONFIG" not in sites.environment("server")
