"""A federation of real processes on loopback, for tests that kill, cut and lie."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np

import fulcrum
from fulcrum.core.messages.release_message import Release
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.engines.local_sites import free_port, processes
from fulcrum.engines.nvflare.kits.console import session
from fulcrum.engines.nvflare.kits.nvflare_kits import Deployment, write_kits
from fulcrum.engines.nvflare.kits.nvflare_loopback import FlareSites

SITE_CODE = Path(__file__).parent / "site"
MEMBERS = {"north": ["a1", "a2"], "mid": ["b1", "b2", "b3"], "south": ["c1"]}


class Federation:
    """Three regions of two, three and one silos, and a server."""

    def __init__(
        self,
        folder: Path,
        *,
        purpose="deployment",
        rounds=4,
        dropouts=0,
        patience=40.0,
        train="slow_head",
        members=MEMBERS,
        recipe="paper",
        aggregation="trusted",
        epsilon=5.0,
        schedule=None,
        outer=None,
    ):
        country = {region: node for node, regions in (outer or {}).items() for region in regions}
        rows = [
            f"{silo},{200 + 10 * i},{region}" + (f",{country[region]}" if outer else "")
            for region, silos in members.items()
            for i, silo in enumerate(silos)
        ]
        header = "silo,records,region" + (",country" if outer else "")
        (folder / "fed.csv").write_text(header + "\n" + "\n".join(rows) + "\n")
        silos = fulcrum.read_federation(folder / "fed.csv")
        plan = fulcrum.plan(
            silos if schedule is None else fulcrum.with_schedule(silos, schedule),
            rounds=rounds,
            epsilon=epsilon,
            parameters=34,
            purpose=purpose,
            dropouts=dropouts,
            recipe=recipe,
            aggregation=aggregation,
        )
        self.deployment = Deployment(
            plan=plan,
            train=train,
            options={"data": "digits"},
            port=free_port(following=1),
            patience=patience,
            runs_here=True,
        )
        self.kits = folder / "kits"
        write_kits(self.deployment, self.kits)
        self.plan = fulcrum.read_plan(self.kits / "plan.json")
        self.loopback = FlareSites(self.kits, self.deployment)
        self.job = ""

    def environment(self, conduct: str = "") -> dict[str, str]:
        recorded = str(self.kits.parent / "recorded")
        path = os.pathsep.join([str(SITE_CODE), *filter(None, [os.environ.get("PYTHONPATH")])])  # as this test has it
        return {"PYTHONPATH": path, "FULCRUM_TEST_CONDUCT": conduct, "FULCRUM_TEST_RECORD": recorded}

    def start(self, conduct: dict[str, str] | None = None, absent=()) -> None:
        """Starts every site; `conduct` says how some of them misbehave."""
        for name in self.deployment.sites:
            if name not in absent:
                self.loopback.start(name, self.environment((conduct or {}).get(name, "")))

    def submit(self) -> None:
        with session(self.kits) as opened:
            self.job = opened.submit_job(str(self.kits / "job"))

    def tries(self) -> list[str]:
        """What the server found each time it tried to begin the job."""
        with session(self.kits) as opened:
            return list(opened.get_job_meta(self.job).get("schedule_history") or [])

    def status(self) -> str:
        with session(self.kits) as opened:
            return str(opened.get_job_meta(self.job).get("status", ""))

    def state_of(self, name: str) -> Path:
        """Where a site keeps what must outlive it."""
        return self.kits / name / "local" / "fulcrum" / "state"

    @property
    def state(self) -> dict:
        """The server's checkpoint."""
        path = self.state_of("server") / "checkpoint.npz"
        if not path.exists():
            return {"round_number": 0, "history": []}
        with np.load(path) as found:
            return json.loads(found["state"].tobytes())

    @property
    def model(self) -> np.ndarray:
        with np.load(self.state_of("server") / "checkpoint.npz") as found:
            return found["model"]

    @property
    def history(self) -> list[dict]:
        return self.state["history"]

    def wait_for(self, round_number: int, seconds: float = 180.0) -> None:
        """Waits until a round has begun, or all are over."""
        self.wait_until(lambda: self.state["round_number"] >= round_number, seconds, f"round {round_number}")

    def wait_until(self, done, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                told = "\n".join(self.log("server").splitlines()[-20:])
                raise AssertionError(f"no {what} within {seconds:g} s; {self.state['history'][-1:]}\n{told}")
            time.sleep(0.1)

    def finish(self, seconds: float = 180.0) -> None:
        self.wait_for(self.plan.rounds + 1, seconds)

    def job_process(self, name: str) -> int:
        """The process that runs a site's part of the job."""
        pids = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.loopback.processes_of(name)}
        found = [pid for pid, line in pids.items() if b"worker_process" in line or b"runner_process" in line]
        assert found, f"no job process of {name} among {pids}"
        return found[0]

    def kill_job_process(self, name: str) -> None:
        os.kill(self.job_process(name), signal.SIGKILL)

    def restart(self, name: str) -> None:
        self.loopback.kill(name)
        self.loopback.start(name, self.environment())

    def released(self, silo: str) -> list[int]:
        """The rounds in a silo's ledger."""
        with read_ledger(self.state_of(silo) / f"{silo}.ledger") as ledger:
            return [entry.round_number for entry in ledger.entries()]

    def log(self, name: str) -> str:
        return "".join(p.read_text(errors="replace") for p in (self.kits / name).glob("output.log"))

    def stop(self) -> None:
        self.loopback.close()

    def recorded(self) -> bytes:
        """Every frame that reached the server."""
        return b"".join(path.read_bytes() for path in sorted(self.kits.parent.glob("recorded.*")))

    def releases(self) -> dict[tuple[str, int], Release]:
        """What silos released, by silo and round, as they told."""
        found = {}
        for path in self.kits.parent.glob("recorded-*"):
            made = Release.from_bytes(path.read_bytes())
            found[made.silo, made.round_number] = made
        return found

    def left_behind(self, kits: Path | None = None) -> list[int]:
        """The processes that still work in a kit."""
        folder = kits or self.kits
        return [
            pid
            for name in self.deployment.sites
            for pid in processes("cmdline", str((folder / name).resolve()).encode())
        ]


def exposed(recorded: bytes, release: Release) -> bool:
    """Whether any three neighbouring coordinates of a release stand in what was recorded."""
    values = release.values.tobytes()
    return any(values[start : start + 24] in recorded for start in range(0, len(values) - 23, 8))


class Relay:
    """A TCP relay before the server that can be cut."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._open = True
        self._pairs: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open = False
        for connection in self._pairs:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def mend(self) -> None:
        self._open = True

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if not self._open:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is not there yet
                near.close()
                continue
            self._pairs += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.close()
