"""Flower's own processes on loopback, with TLS and SuperNodes that are registered: silos and server are killed."""

import json
import ssl
import subprocess
import sys
import time

import pytest

import fulcrum

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from numpy_app import write_app

from fulcrum.core.silo.site import ledger_name, once_free
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.engines.flower.kits.flower_kits import write_kits
from fulcrum.engines.flower.kits.flower_loopback import FlowerSites
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.site_folders import BUILT_IN, SERVER, Deployment
from fulcrum.errors import EngineError
from fulcrum.server.checkpoint import history_of

pytestmark = pytest.mark.engines

LONG = 2400.0


class Federation:
    """Kits of a deployment plan on the digits, and their processes."""

    def __init__(self, folder, sizes, *, patience, **options):
        given = {"epsilon": 5.0, "purpose": "deployment", "parameters": 34, "aggregation": "masked"} | options
        plan = fulcrum.plan(fulcrum.Federation.from_sizes(sizes), **given)
        self.deployment = Deployment(
            plan=plan,
            train=BUILT_IN,
            options={"data": "digits"},
            host="127.0.0.1",
            port=free_port(),
            patience=patience,
            runs_here=True,
        )
        self.kits = folder / "kits"
        write_kits(self.deployment, self.kits)
        self.plan = fulcrum.read_plan(self.kits / "plan.json")
        self.sites = FlowerSites(self.kits, self.deployment)

    @property
    def history(self):
        return history_of(self.kits / SERVER / "state", self.plan, logical=True)

    def wait_for(self, done, what):
        deadline = time.monotonic() + LONG
        while not done():
            assert time.monotonic() < deadline, f"no {what}; {self.history}"
            self.sites.check()
            time.sleep(0.5)

    def released(self, silo):
        path = self.kits / silo / "state" / ledger_name(silo)
        with once_free(lambda: read_ledger(path)) as ledger:  # which a message at hand may hold
            return [entry.round_number for entry in ledger.entries()]


@pytest.fixture
def federation(tmp_path, request):
    made = Federation(tmp_path, **request.param)
    yield made
    made.sites.close()
    for name in (SERVER, *made.plan.federation.silo_names.tolist()):
        assert made.sites.processes_of(name) == []


FOURS = {"north": dict.fromkeys("abcd", 200), "south": dict.fromkeys("efgh", 150)}


@pytest.mark.parametrize("federation", [{"sizes": FOURS, "rounds": 3, "dropouts": 1, "patience": 150.0}], indirect=True)
def test_two_regions_of_four_end_after_three_rounds_with_a_silo_killed_in_the_second(federation):
    federation.sites.start_all()
    federation.sites.run_script("run.sh")
    federation.wait_for(lambda: len(federation.history) == 1, "end of round 1")
    federation.sites.kill("c")
    federation.wait_for(lambda: len(federation.history) == 3, "end of round 3")
    members = [summary["members"] for summary in federation.history]
    assert [sorted(summary) for summary in members] == [["north", "south"]] * 3
    assert [len(summary["south"]) for summary in members] == [4, 4, 4]
    assert [summary["north"] for summary in members] == [list("abcd"), list("abd"), list("abd")]
    assert federation.released("a") == [1, 2, 3]
    assert federation.released("c")[0] == 1
    assert 3 not in federation.released("c")


@pytest.mark.parametrize(
    "federation", [{"sizes": {"north": {"a": 200, "b": 150}}, "rounds": 3, "patience": 150.0}], indirect=True
)
def test_a_killed_superlink_stops_cleanly_and_goes_on_from_its_checkpoint(federation):
    federation.sites.start_all()
    federation.sites.run_script("run.sh")
    federation.wait_for(lambda: len(federation.history) == 1 and federation.released("a") == [1, 2], "round 2")
    process = federation.sites._processes[SERVER]
    for pid in federation.sites.processes_of(SERVER):
        if pid == process.pid:
            process.kill()
    process.wait()
    with pytest.raises(EngineError, match="the process of 'server' ended"):
        federation.sites.check()
    federation.sites.kill(SERVER)
    federation.sites.start(SERVER)
    federation.sites.wait_for_server()
    federation.sites.run_script("run.sh")
    federation.wait_for(lambda: len(federation.history) == 3, "end of round 3")
    assert federation.history[2]["summed"] == ["north"]
    assert federation.released("a") == [1, 2, 3]
    assert federation.released("b") == [1, 2, 3]


@pytest.mark.parametrize(
    "federation", [{"sizes": {"north": {"a": 200, "b": 150}}, "rounds": 1, "patience": 40.0}], indirect=True
)
def test_a_node_that_is_not_registered_is_not_let_in(federation):
    federation.sites.start(SERVER)
    federation.sites.wait_for_server()
    federation.sites.start("a")
    deadline = time.monotonic() + 120
    process = federation.sites._processes["a"]
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
    assert process.poll() is not None, "it goes on trying"
    assert "this SuperNode's key is not registered" in (federation.kits / "a" / "output.log").read_text()
    assert federation.released("a") == []


@pytest.mark.parametrize(
    "federation", [{"sizes": {"north": {"a": 200, "b": 150}}, "rounds": 1, "patience": 40.0}], indirect=True
)
def test_who_reaches_the_server_asks_what_supernodes_ask_and_submits_no_run(federation):
    """Flower has no accounts: at its own port a silo could have all others run an app that reads their records."""
    sites, port = federation.sites, federation.deployment.port
    sites.start(SERVER)
    sites.wait_for_server()
    trusted = ssl.create_default_context(cafile=federation.kits / "ca.crt")
    with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted, timeout=60) as outside:
        for path in (
            *("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/"),
            *("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/pull-messages?run=1"),
        ):
            assert (outside.post(path).status_code, outside.post(path).content) == (403, b""), path
        assert outside.get("/v1/fleet/pull-messages").status_code == 403
        answer = outside.post("/v1/fleet/pull-messages")
        assert (answer.status_code, answer.content) == (401, b""), "the SuperLink is not asked who this is"
        sites.run_script("register.sh")
        private = load_ssh_private_key((federation.kits / "a" / "node.key").read_bytes(), None)
        signing = NodeAuthHttpInterceptor(private, private.public_key())
        request = outside.build_request("POST", "/v1/fleet/pull-messages", content=b"no message")
        context = ProtobufRequestContext(rpc_method="", message=None, request=request)
        answer = signing.intercept(context, lambda signed: outside.send(signed.request))
        assert (answer.status_code // 100, bool(answer.content)) == (4, True), "the SuperLink itself answers a silo"
    control, sites._control = sites._control, port
    with pytest.raises(EngineError, match=r"register\.sh failed"):
        sites.run_script("register.sh")
    sites._control = control


def test_an_app_of_a_users_runs_by_one_command_that_shows_every_stage(tmp_path):
    write_app(tmp_path / "own")
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes({"north": {"a": 200, "b": 150}}),
        rounds=2,
        epsilon=5.0,
        purpose="deployment",
        parameters=8,
        aggregation="masked",
    )
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    words = ["up", "flower", "plan.json", "--app", "own", "-o", "run", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "fulcrum.cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert [found["silos"] for found in json.loads(done.stdout)["rounds"]] == [2, 2]
    assert "2 silos: starting the SuperLink" in done.stderr
    assert "round 2 of 2, stage 5 of 5: silos unmask the sum" in done.stderr
