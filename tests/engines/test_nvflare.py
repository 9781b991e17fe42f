"""Plans on NVIDIA FLARE: the kits, and one short run of real processes; what goes wrong is in tests/engines."""

import dataclasses
import json
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.cli.command_line import run
from fulcrum.core.silo.site import read_site
from fulcrum.core.silo.site_records import MARK
from fulcrum.core.training.assignment import Assignment
from fulcrum.engines.built_in_training import evaluate
from fulcrum.errors import DataError, EngineError, PlanError
from fulcrum.server.run_results import read_results

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

from harness import Federation, exposed

from fulcrum.engines.nvflare.kits.console import _ending_of, session
from fulcrum.engines.nvflare.kits.nvflare_kits import Deployment, write_job, write_kits

MEMBERS = {"north": ["a1", "a2"], "south": ["c1"]}


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits")
    (folder / "policy.toml").write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")
    (folder / "fed.csv").write_text("silo,records,region\na1,200,north\na2,220,north\nc1,300,south\n")
    plan = fulcrum.plan(str(folder / "fed.csv"), rounds=3, epsilon=5.0, parameters=34, purpose="deployment")
    fulcrum.save_plan(plan, folder / "plan.json")
    command = ["deploy", "nvflare", str(folder / "plan.json"), "-o", str(folder / "kits"), "--port", "9102"]
    assert run([*command, "--policy", str(folder / "policy.toml"), "--host", "fl.example.org", "--format", "csv"]) == 0
    return folder / "kits"


def read(path):
    return json.loads(path.read_text())


def test_a_short_run_of_real_processes(tmp_path, capsys):
    """Five sites with mutual TLS: what the server adds up is what silos released, and it cannot read any of it.

    Whoever follows it knows of every round what the server measured, and leaves it for the report.
    """
    federation = Federation(tmp_path, rounds=2, members=MEMBERS, train="fulcrum.engines.built_in_training")
    silos = [silo for members in MEMBERS.values() for silo in members]
    try:
        federation.start(conduct=dict.fromkeys(silos, "tell") | {"server": "record"})
        assert run(["follow", "nvflare", str(federation.kits), "-o", str(tmp_path / "run")]) == 0
        federation.finish(5)
    finally:
        federation.stop()
    assert not federation.left_behind()
    told = capsys.readouterr()
    assert "round 2 of 2: 2 sums, accuracy 0." in told.err
    assert "accuracy" in told.out
    found = read_results(tmp_path / "run", federation.plan).run
    assert [(row.round, row.regions, row.silos) for row in found.rounds] == [(1, 2, 3), (2, 2, 3)]
    assert (found.engine, found.task, found.accuracy) == ("nvflare", "digits", found.rounds[-1].accuracy)
    head = {"head": federation.model.reshape(17, 2)}
    assignment = Assignment(silo="", round_number=2, plan=federation.plan, seed=0, options={"data": "digits"})
    assert found.accuracy == evaluate(head, assignment)["accuracy"]
    assert [told["summed"] for told in federation.history] == [["north", "south"]] * 2
    releases = federation.releases()
    assert len(releases) == 6
    expected = sum(release.values * release.step for release in releases.values())
    assert np.array_equal(federation.model, expected)
    recorded = federation.recorded()
    assert recorded.count(b"fulcrum.sealed/2") >= 6
    assert {silo for (silo, _), made in releases.items() if exposed(recorded, made)} == {"c1"}  # alone in its region
    for silo in silos:
        assert federation.released(silo) == [1, 2]


def test_every_site_has_a_kit_with_the_signed_plan_its_key_and_its_policy(kits):
    issuer = (kits / "issuer.key.pub").read_text().strip()
    for name, role in {"a1": "silo", "a2": "silo", "c1": "silo", "north": "region", "south": "region"}.items():
        home = kits / name / "local" / "fulcrum"
        settings = tomllib.loads((home / "site.toml").read_text())
        assert (settings["role"], settings["name"], settings["issuer"]) == (role, name, issuer)
        plan = fulcrum.read_signed_plan(home / "plan.json", issuer)
        assert plan.digest == fulcrum.read_plan(kits / "plan.json").digest
        assert stat.S_IMODE((home / "site.key").stat().st_mode) == 0o600
        assert (home / "policy.toml").exists() == (role == "silo")
        assert not (home / "site.key.pub").exists()
    assert not (kits / "server" / "local" / "fulcrum" / "site.key").exists()
    assert set(plan.keys) == {"a1", "a2", "c1", "north", "south"}


def test_kits_are_closed_where_the_engine_is_open(kits):
    admitted = {"a1": ["flare_silo.SiloExecutor"], "north": ["flare_region.RegionGatherer"]}
    admitted["server"] = ["flare_server.PlanAssessor", "flare_server.FederationController"]
    for name, classes in admitted.items():
        local = kits / name / "local"
        resources, rights = read(local / "resources.json"), read(local / "authorization.json")
        assert resources["class_allow_list"] == [f"fulcrum.engines.nvflare.{one}" for one in classes]
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert rights["permissions"]["project_admin"]["byoc"] == "none"
        assert rights["permissions"]["project_admin"]["shell_commands"] == "none"
        assert not list(local.glob("*.default"))
        assert "/tmp/nvflare" not in (local / "resources.json").read_text()
    for name in ("a1", "north"):
        assert read(kits / name / "local" / "resources.json")["allow_log_streaming"] is False
        assert read(kits / name / "startup" / "fed_client.json")["client"]["connection_security"] == "mtls"
        assert read(kits / name / "local" / "authorization.json")["permissions"]["project_admin"]["view"] == "none"
    assert read(kits / "server" / "startup" / "fed_server.json")["servers"][0]["connection_security"] == "mtls"
    assert "fl.example.org:9102" in (kits / "a1" / "startup" / "fed_client.json").read_text()


def test_the_job_carries_neither_settings_nor_code(kits):
    for file in (kits / "job").rglob("*.json"):
        text = file.read_text()
        assert "plan" not in text.lower().replace("planassessor", "")
        for component in [part for part in text.split('"') if part.startswith("fulcrum.")]:
            assert component.startswith("fulcrum.engines.nvflare.")
    assert not list((kits / "job").rglob("*.py"))
    meta = read(kits / "job" / "meta.json")
    assert meta["mandatory_clients"] == ["north", "south", "a1", "a2", "c1"]


@pytest.mark.parametrize(("silos", "seconds"), [(2, 0.1), (30, 0.3), (80, 0.5)])
def test_sites_ask_for_tasks_soon_and_no_region_answers_over_a_hundred_questions_a_second(tmp_path, silos, seconds):
    rows = [f"s{number},200,north" for number in range(silos)] + ["c1,300,south"]
    (tmp_path / "fed.csv").write_text("\n".join(["silo,records,region", *rows]) + "\n")
    plan = fulcrum.plan(str(tmp_path / "fed.csv"), rounds=3, epsilon=5.0, parameters=34)
    write_job(Deployment(plan=plan, train="unused"), tmp_path / "job")
    for role in ("silo", "region"):
        app = tmp_path / "job" / f"app_{role}" / "config" / "config_fed_client.json"
        assert read(app)["default_task_fetch_interval"] == pytest.approx(seconds)


def test_every_operator_is_told_what_to_do(kits):
    everyone = (kits / "README.md").read_text()
    assert "Give every site its own folder alone" in everyone
    assert "Every private key was made here" in everyone
    assert "fl.example.org:9102" in everyone
    for name in ("a1", "north", "server"):
        text = (kits / name / "README.md").read_text()
        assert "./start.sh" in text
        assert "{" not in text
        assert (kits / name / "start.sh").stat().st_mode & stat.S_IXUSR


def test_kits_and_the_certificate_authority_are_for_the_owner_alone(kits):
    for folder in ("authority", "a1", "server", "a1/local/fulcrum/state"):
        assert stat.S_IMODE((kits / folder).stat().st_mode) == 0o700
    assert stat.S_IMODE((kits / "authority/state/cert.json").stat().st_mode) == 0o600


def test_kits_hold_no_records_and_their_operators_make_them_once(kits, tmp_path, capsys):
    kits = shutil.copytree(kits, tmp_path / "kits")
    assert not [path for path in kits.rglob("*") if path.suffix in (".ledger", ".masking", ".db") or path.name == MARK]
    for name in ("a1", "north", "server"):
        text = (kits / name / "README.md").read_text()
        assert ("fulcrum site init ." in text) == (name != "server")
        assert run(["site", "init", str(kits / name)]) == 0
    with fulcrum.read_ledger(kits / "a1/local/fulcrum/state/a1.ledger") as ledger:
        assert (ledger.silo, len(ledger.entries())) == ("a1", 0)
    plan = fulcrum.read_plan(kits / "plan.json")
    home = kits / "north/local/fulcrum"
    with Region.open(home / "state/sums.db", plan, "north", home / "site.key", create=False) as region:
        assert region.rounds() == ()
    capsys.readouterr()
    for name in ("a1", "north"):
        assert run(["site", "init", str(kits / name)]) == 2
        assert "is initialised already" in capsys.readouterr().err


ORDERS = """
import io, json, sys, types, zipfile
from nvflare.private.admin_defs import Message
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.training_cmds import DeployProcessor
from fulcrum.engines.nvflare.site_launcher import SiteLauncher

SiteLauncher()
orders = ClientRequestProcessors.request_processors
deploy = orders[-1]
DeployProcessor.process = lambda self, req, app_ctx: types.SimpleNamespace(body="deployed")
kit, own = sys.argv[1], open(sys.argv[1] + "/local/fulcrum/config_fed_client.json", "rb").read()
UUID = "0ea763a1-4d7c-4cfd-b337-b3698f0d931f"

def reply(job=UUID, meta=UUID, **files):
    app = io.BytesIO()
    with zipfile.ZipFile(app, "w") as archive:
        for name, content in ({"config/config_fed_client.json": own, "config/.__nvfl_sig.json": b"s"} | files).items():
            archive.writestr(name, content)
    message = Message(topic="deploy", body=app.getvalue())
    message.set_header("job_id", job)
    message.set_header("job_meta", {"job_id": meta})
    return deploy.process(message, types.SimpleNamespace(args=types.SimpleNamespace(workspace=kit))).body

print(json.dumps({
    "orders": sorted(type(order).__name__ for order in orders),
    "commands": [type(command).__name__ for command in AdminCommands.commands],
    "honest": reply(),
    "jobs": [reply(job, job) for job in ("state", "local", "../a2", "", None)] + [reply(meta="local")],
    "apps": [
        reply(**{"custom/sitecustomize.py": b""}),
        reply(**{"config/comm_config.json": b"{}"}),
        reply(**{"config/resources.json": b"{}"}),
        reply(**{"config/config_fed_client.conf": b""}),
        reply(**{"config/config_fed_client.json": own + b" "}),
    ],
}))
"""


def test_a_site_takes_no_order_but_to_run_its_own_job_and_to_stop_it(kits):
    """Stock, a server reads every file of a site, and runs code there by what it puts beside a job's settings."""
    command = [sys.executable, "-c", ORDERS, str(kits / "a1")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["orders"] == [
        "AbortAppProcessor",
        "AbortTaskProcessor",
        "CancelResourceProcessor",
        "CarefulDeployProcessor",
        "CheckResourceProcessor",
        "NotifyJobStatusProcessor",
        "StartJobProcessor",
    ]
    assert told["commands"] == ["CheckStatusCommand", "AbortCommand", "AbortTaskCommand", "ByeCommand"]
    assert told["honest"] == "deployed"
    assert all("known by a UUID" in reply for reply in told["jobs"])
    assert all("not the job of this kit" in reply for reply in told["apps"])


class Cell:
    """Remembers the filter that a site puts before its ears."""

    def __init__(self):
        self.core_cell = self

    def add_incoming_request_filter(self, channel, topic, refused):
        assert (channel, topic) == ("*", "*")
        self.refused = refused

    def hears(self, origin, channel="aux_communication", topic="__task_check__"):
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
        from nvflare.fuel.f3.message import Message

        headers = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
        bare = self.refused(Message(headers, None)) is None
        headers |= {MessageHeaderKey.CHANNEL: "sm__STREAM", MessageHeaderKey.TOPIC: "sm__DATA"}
        headers |= {"sm__ch": channel, "sm__tp": topic}
        assert (self.refused(Message(headers, None)) is None) == bare  # as it travels: in pieces, inside of another
        return bare


def test_a_site_hears_its_neighbours_in_the_plan_and_takes_orders_of_the_server_alone(kits):
    from fulcrum.engines.nvflare.site_jobs.admission import restrict_peers

    silo, region = Cell(), Cell()
    restrict_peers(silo, read_site(kits / "a1/local/fulcrum"))
    restrict_peers(region, read_site(kits / "north/local/fulcrum"))
    assert [silo.hears(origin) for origin in ("server", "server.job", "a1.job", "north.job")] == [True] * 4
    assert [silo.hears(origin) for origin in ("a2.job", "south.job", "c1", "", "northern", "admin")] == [False] * 6
    assert [region.hears(origin) for origin in ("server.job", "a1.job", "a2.job", "north")] == [True] * 4
    assert [region.hears(origin) for origin in ("c1.job", "south.job", "a3")] == [False] * 3
    for topic in ("get_task", "submit_update"):
        assert [region.hears(origin, "server_command", topic) for origin in ("a1.job", "c1.job")] == [True, False]


@pytest.mark.parametrize(
    ("channel", "topic"),
    [
        ("admin", "admin"),
        ("client_command", "abort"),
        ("aux_communication", "SAGE__train_end"),  # the round is over
        ("aux_communication", "SAGE__train_update"),
        ("aux_communication", "__end_run__"),  # the job is over
        ("aux_communication", "__do_task__"),
        ("aux_communication", "RM.RELIABLE_REQUEST"),
        ("_net_manager", "stop"),
        ("cellnet.channel", "bye"),
        ("server_command", "handle_dead_job"),
        ("", ""),
        (None, None),
    ],
)
def test_a_neighbour_is_heard_in_what_a_round_is_made_of_and_in_nothing_else(kits, channel, topic):
    from fulcrum.engines.nvflare.site_jobs.admission import restrict_peers

    silo, region = Cell(), Cell()
    restrict_peers(silo, read_site(kits / "a1/local/fulcrum"))
    restrict_peers(region, read_site(kits / "north/local/fulcrum"))
    assert [silo.hears(origin, channel, topic) for origin in ("server", "a1.job", "north.job")] == [True, True, False]
    assert [region.hears(origin, channel, topic) for origin in ("server", "a1.job")] == [True, False]


def test_kits_are_not_written_where_jobs_cannot_start(tmp_path):
    with pytest.raises(DataError, check=coded("flare.folder-blank")):
        write_kits(deployment(tmp_path, "a,10,north\nb,10,north\n"), tmp_path / "my kits")


def deployment(tmp_path, rows, **settings):
    (tmp_path / "fed.csv").write_text("silo,records,region\n" + rows)
    plan = fulcrum.plan(str(tmp_path / "fed.csv"), rounds=2, epsilon=5.0, **settings)
    return Deployment(plan=plan, train="fulcrum.engines.built_in_training")


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ("a/1,10,north\nb,10,north\n", {}, "'a/1' cannot name the files of a site"),
        ("a 1,10,north\na.1,10,north\n", {}, "would both have the name 'a-1'"),
        ("north,10,north\nb,10,north\n", {}, "'north' names two sites"),
        ("server,10,north\nb,10,north\n", {}, "'server' names two sites"),
        ("a,10,north\nb,10,north\n", {"injection": "aggregator"}, "silos draw their own noise"),
        ("a,10,north\nb,10,north\n", {"keys": {"a": "x"}}, "none of 'north'"),
    ],
)
def test_what_cannot_be_deployed_is_refused_before_anything_is_written(tmp_path, rows, settings, message):
    with pytest.raises(PlanError, match=message):
        write_kits(deployment(tmp_path, rows, **settings), tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


NESTED = "silo,records,region,country\na,10,x,c é\nb,10,y,c é\nd,10,z,w\n"


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_every_tier_is_a_level_of_sites_with_keys_and_neighbours_of_their_own(tmp_path, aggregation):
    (tmp_path / "fed.csv").write_text(NESTED)
    plan = fulcrum.plan(
        str(tmp_path / "fed.csv"),
        rounds=2,
        epsilon={"region": 5.0, "country" if aggregation == "trusted" else "federation": 4.0},
        parameters=34,
        purpose="deployment",
        aggregation=aggregation,
    )
    write_kits(Deployment(plan=plan, train="fulcrum.engines.built_in_training"), tmp_path / "kits")
    kits, issued = tmp_path / "kits", fulcrum.read_plan(tmp_path / "kits" / "plan.json")
    assert set(issued.keys) == {"a", "b", "d", "x", "y", "z", "c é", "w"}
    places = {name: read(kits / name / "startup" / "fed_client.json")["client"]["fqsn"] for name in ("a", "x", "c-e")}
    assert places == {"a": "c-e.x.a", "x": "c-e.x", "c-e": "c-e"}
    for name, near in {"x": {"c é": "c-e"}, "c-e": {"c é": "c-e"}, "w": {}, "server": {"c é": "c-e"}}.items():
        settings = tomllib.loads((kits / name / "local" / "fulcrum" / "site.toml").read_text())
        assert (settings["role"], settings.get("engine_names", {})) == (
            "server" if name == "server" else "region",
            near,
        )
    told = (kits / "c-e" / "README.md").read_text()
    assert "opens the sealed sums of its aggregators (x, y), checks them, and sends their sum to the server" in told
    assert "sends their sum to c é" in (kits / "x" / "README.md").read_text()
    assert read(kits / "job" / "meta.json")["deploy_map"]["app_region"] == ["x", "y", "z", "c-e", "w"]
    assert run(["site", "init", str(kits / "w")]) == 0


@pytest.mark.parametrize("settings", [{"recipe": "joint"}, {"aggregation": "masked", "epsilon": {"federation": 5.0}}])
def test_tiers_whose_sums_no_observer_needs_are_no_sites(tmp_path, settings):
    """A server that pools reads regional sums, and one masked group has a single sum: no country adds up anything."""
    (tmp_path / "fed.csv").write_text(NESTED)
    plan = fulcrum.plan(
        str(tmp_path / "fed.csv"), **({"rounds": 2, "epsilon": {"region": 5.0}, "parameters": 34} | settings)
    )
    made = Deployment(plan=plan, train="fulcrum.engines.built_in_training")
    assert set(made.sites) == set(made.engine_names) == {"server", "a", "b", "d", "x", "y", "z"}
    write_kits(made, tmp_path / "kits")
    assert read(tmp_path / "kits" / "a" / "startup" / "fed_client.json")["client"]["fqsn"] == "x.a"


def test_two_nodes_of_one_name_are_refused(tmp_path):
    (tmp_path / "fed.csv").write_text("silo,records,region,country\na,10,x,x\nb,10,y,x\n")
    plan = fulcrum.plan(str(tmp_path / "fed.csv"), rounds=2, epsilon=5.0)
    with pytest.raises(PlanError, check=coded("engine.plan-refused")):
        write_kits(Deployment(plan=plan, train="fulcrum.engines.built_in_training"), tmp_path / "kits")


def test_a_research_plan_stays_on_this_machine(tmp_path):
    research = deployment(tmp_path, "a,10,north\nb,10,north\n")
    with pytest.raises(PlanError, check=coded("kit.plan-research")):
        write_kits(dataclasses.replace(research, host="fl.example.org"), tmp_path / "kits")


def test_kits_say_what_they_are_for_and_none_for_research_are_handed_out(tmp_path, kits, capsys):
    research = deployment(tmp_path, "a,10,north\nb,10,north\n")
    write_kits(research, tmp_path / "kits")  # as `up` does
    for made, purpose in ((kits, "deployment"), (tmp_path / "kits", "research")):
        for home in made.glob("*/local/fulcrum"):
            settings = read_site(home).settings
            assert settings.purpose == purpose
            assert settings.policy == (made == kits and settings.role == "silo")
    fulcrum.save_plan(research.plan, tmp_path / "plan.json")
    words = ["deploy", "nvflare", str(tmp_path / "plan.json"), "-o", str(tmp_path / "out"), "--format", "json"]
    assert run(words) == 2
    line = capsys.readouterr().err
    assert json.loads(line)["error"]["code"] == "cli.research-plan-deployed"
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_kits_are_not_written_over_others(tmp_path):
    (tmp_path / "kits").mkdir()
    (tmp_path / "kits" / "precious").write_text("kept")
    with pytest.raises(DataError, check=coded("kit.folder-occupied")):
        write_kits(deployment(tmp_path, "a,10,north\nb,10,north\n"), tmp_path / "kits")
    assert (tmp_path / "kits" / "precious").read_text() == "kept"


def test_keys_that_sites_made_stay_with_the_sites(tmp_path):
    keys = {"a": fulcrum.new_key(tmp_path / "a.key"), "b": fulcrum.new_key(tmp_path / "b.key")}
    keys["north"] = fulcrum.new_key(tmp_path / "north.key", kind="sealing")
    wanted = deployment(tmp_path, "a,10,north\nb,10,north\n", keys=keys, purpose="deployment", parameters=34)
    fulcrum.save_plan(wanted.plan, tmp_path / "plan.json")
    issuer = fulcrum.new_key(tmp_path / "issuer.key")
    fulcrum.sign_plan(tmp_path / "plan.json", tmp_path / "issuer.key")
    made = write_kits(dataclasses.replace(wanted, plan_file=tmp_path / "plan.json"), tmp_path / "kits")
    assert made["keys_made"] is False
    assert made["issuer"] == issuer  # the signature that was there stays
    assert not (tmp_path / "kits" / "issuer.key").exists()
    assert (tmp_path / "kits" / "a/local/fulcrum/plan.json").read_bytes() == (tmp_path / "plan.json").read_bytes()
    assert not list((tmp_path / "kits").rglob("site.key"))
    assert "Put the private key" in (tmp_path / "kits" / "a" / "README.md").read_text()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--option", "steps"], "--option must be NAME=VALUE"),
        (["--patience", "0"], "--patience must be"),
        (["--policy", "strict.toml"], "allows epsilon 0.1 above"),
        (["--key", "no.key"], "no.key"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, extra, message):
    monkeypatch.chdir(tmp_path)
    Path("strict.toml").write_text("largest_epsilon_above = 0.1\nlargest_epsilon_inside = 90\n")
    fulcrum.save_plan(
        fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, parameters=34, purpose="deployment"), "plan.json"
    )
    assert run(["deploy", "nvflare", "plan.json", "-o", "kits", *extra]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not Path("kits").exists()
    assert not list(tmp_path.glob(".kits*"))


TRAIN = "\ndef train(model, assignment): return model\n"


@pytest.mark.parametrize(
    ("module", "body", "message"),
    [
        ("no_such_module", "", "cannot be imported"),
        ("json", "", "has no function start"),
        ("broken_syntax", "def start(", "cannot be imported: '(' was never closed (broken_syntax.py, line 1)"),
        ("broken_import", "import no_such_package", "cannot be imported: No module named 'no_such_package'"),
        ("broken_exit", "import sys; sys.exit(0)", "cannot be imported: SystemExit: 0"),
        ("broken_list", "def start(options): return [1.0]" + TRAIN, "must return a dict of named arrays, got list"),
        ("broken_none", "def start(options): pass" + TRAIN, "must return a dict of named arrays, got NoneType"),
        ("broken_count", "def start(options): return {'w': 0.5}" + TRAIN, "1 parameters, the plan was made for 34"),
        ("broken_kind", "def start(options): return {'w': range(34)}" + TRAIN, "'w' is int64, not floating point"),
        ("broken_empty", "def start(options): return {}" + TRAIN, "the model has no parameters"),
        ("broken_size", "import numpy as np\ndef start(options): return {'w': np.zeros(6)}" + TRAIN, "--parameters 6"),
        (
            "broken_nan",
            "def start(options): return {'w': [float('nan')] * 34}" + TRAIN,
            "'w' values that are not finite",
        ),
        ("broken_measure", "evaluate = 3\ndef start(options): return {}" + TRAIN, "must be a function, got int"),
    ],
)
def test_training_that_cannot_work_is_noticed_before_any_site_starts(
    tmp_path, monkeypatch, capsys, module, body, message
):
    if body:
        (tmp_path / f"{module}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    fulcrum.save_plan(fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, parameters=34), tmp_path / "plan.json")
    assert run(["up", "nvflare", str(tmp_path / "plan.json"), "--train", module, "-o", str(tmp_path / "up")]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "up").exists()


def test_kits_are_not_made_for_a_model_that_the_plan_was_not_made_for(tmp_path, monkeypatch, capsys):
    (tmp_path / "six_weights.py").write_text("def start(options): return {'w': [0.0] * 6}" + TRAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    fulcrum.save_plan(
        fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, parameters=34, purpose="deployment"), tmp_path / "plan.json"
    )
    command = ["deploy", "nvflare", str(tmp_path / "plan.json"), "-o", str(tmp_path / "kits"), "--train"]
    assert run([*command, "six_weights"]) == 2
    told = capsys.readouterr().err
    assert "the model has 6 parameters, the plan was made for 34. Run fulcrum plan with --parameters 6" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "kits").exists()
    assert run([*command, "not_here"]) == 0  # silos and server have it, this machine need not
    printed = " ".join(capsys.readouterr().out.split())
    assert "The model could not be checked against the plan on this machine" in printed
    assert "No module named 'not_here'" in printed


def test_options_of_a_training_module_keep_their_types(tmp_path):
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, parameters=34, purpose="deployment")
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    command = ["deploy", "nvflare", str(tmp_path / "plan.json"), "-o", str(tmp_path / "kits"), "--train", "theirs"]
    assert run([*command, "--option", "steps=3", "--option", "records=/data/x.npy", "--option", "deep=true"]) == 0
    settings = tomllib.loads((tmp_path / "kits" / "region-1-1" / "local" / "fulcrum" / "site.toml").read_text())
    assert settings["options"] == {"steps": 3, "records": "/data/x.npy", "deep": True}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"reason": "the model has 5 parameters", "final": True}, ("the model has 5 parameters", True)),
        ({"reason": "two\nlines\x1b[2J", "final": False}, ("two lines[2J", False)),
        ({"reason": "x" * 9_000, "final": 1}, ("x" * 500, True)),
        ({}, ("", False)),
        (None, ("", False)),
        ("text", ("", False)),
        ([1], ("", False)),
    ],
)
def test_what_the_server_says_of_a_job_is_shown_in_one_plain_line(told, expected):
    assert _ending_of({"status": "FINISHED:EXECUTION_EXCEPTION", "fulcrum_ended": told}) == expected


def test_without_kits_or_a_server_there_is_one_clear_line(tmp_path, kits):
    with pytest.raises(EngineError, check=coded("flare.admin-kit-missing")), session(tmp_path):
        pass
