"""What masking costs one silo and the server in a round, against parameters and group size, beside the floor.

The floor of a silo is the keystream of its masks, AES-256 in counter mode, and one copy of its vector: no masking with
these masks does with less. The floor of the server is the keystream of the masks that it takes off, and a copy of every
vector that comes in. All is processor time, measured in one run. The stages in which no vector travels do not depend on
parameters; they are stated for each size of group, all of them together. Where the group is large enough one silo drops
out after it shared masks, so that the server takes off its masks with all its neighbours as well.

    python benchmarks/masking.py [--most-parameters 10000000] [--most-members 500]
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fulcrum
from fulcrum.exchange.layout import Layout
from fulcrum.masking.aggregation import Aggregation
from fulcrum.masking.group import Group, group_of
from fulcrum.masking.messages import INPUT, request_from_bytes, signed_answer
from fulcrum.masking.silo import Member, State
from fulcrum.noise.keystream import repeated_bytes
from fulcrum.planning.signing import public_text
from fulcrum.views.columns import Column
from fulcrum.views.terminal import FORMATS, Result, show, table

MEMBERS = (2, 10, 50, 500)
PARAMETERS = (100, 10_000, 1_000_000, 10_000_000)
MOST_NUMBERS = 500_000_000
"""Parameters times members: what the server is measured with at most."""

PROMISED_PARAMETERS, PROMISED_MEMBERS, MOST_RATIO = 1_000_000, 10, 4.0
DROPPED = "silo-001"


def group_for(members: int) -> tuple[Group, dict[str, Any]]:
    """A region of equal silos under a deployment plan, and their keys; it takes vectors of any length."""
    names = [f"silo-{number:03d}" for number in range(members)]
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    made = fulcrum.plan(
        fulcrum.Federation.from_sizes({"region": dict.fromkeys(names, 100)}),
        rounds=1,
        epsilon=1.0,
        dropouts=1 if members > 3 else 0,
        parameters=10_000,
        purpose="deployment",
        aggregation="masked",
        keys={name: public_text(key) for name, key in keys.items()},
    )
    return dataclasses.replace(group_of(made, "region"), parameters=None), keys


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The median processor time of some work."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


def keystream_seconds(count: int, masks: int) -> float:
    """The time to expand so many masks of so many bytes, and to copy one vector."""
    source, room = np.zeros(count, dtype=np.uint8), np.empty(count, dtype=np.uint8)

    def expand() -> None:
        np.copyto(room, source)
        for _ in range(masks):
            draw = repeated_bytes(bytes(32))
            for start in range(0, count, 2**17):
                draw(min(2**17, count - start))

    return seconds(expand)


class Measured:
    """A group whose silos have shared their keys: what its first member and its server do from there on."""

    def __init__(self, members: int) -> None:
        self.group, keys = group_for(members)
        self.members = {name: Member(group=self.group, silo=name, key=key) for name, key in keys.items()}
        self.session = self.group.session(1, "model")
        self.states: dict[str, State] = {}
        self.handshake = 0.0
        self.dropped = {DROPPED} if members > 3 else set[str]()
        server = self.server(100)
        for work in ("begun", "shared", "received"):
            requests = server.requests()
            for name, data in requests.items():
                self.states[name] = self._timed(name, work, data)
                if work != "received":
                    server.take(self.states[name].answers[-1])
            if work != "received":
                server.proceed()
        self.after_shares = server

    def _timed(self, name: str, work: str, data: bytes) -> State:
        before = () if work == "begun" else (self.states[name],)
        start = time.process_time()
        state: State = getattr(self.members[name], work)(*before, request_from_bytes(data))
        if name == "silo-000":
            self.handshake += time.process_time() - start
        return state

    def server(self, parameters: int) -> Aggregation:
        """A server before its first stage."""
        return Aggregation(self.group, self.session, Layout(names=("all",), shapes=((parameters,),)))

    def silo_seconds(self, parameters: int) -> tuple[float, float]:
        """The time of one masked input, and its floor."""
        values = np.ones(parameters, dtype=np.int64)
        member, state = self.members["silo-000"], self.states["silo-000"]
        spent = seconds(lambda: member.masked_input(state, values))
        return spent, keystream_seconds(parameters * self.group.bits // 8, self.group.neighbours + 1)

    def server_seconds(self, parameters: int) -> tuple[float, float]:
        """The time of the server's whole round after the shares, and its floor; inputs are made beforehand.

        What comes in is not masked: the server does with it what it does with masked inputs, and gets another sum.
        """
        server = self.server(parameters)
        for stage in ("begun", "shared"):
            for name in server.requests():
                server.take(self.states[name].answers[0 if stage == "begun" else 1])
            server.proceed()
        zeros = np.zeros(parameters, dtype=self.group.dtype).data.cast("B")
        present = [name for name in self.members if name not in self.dropped]
        spent = 0.0
        for name in present:
            sent = signed_answer(INPUT, self.session, name, zeros, self.members[name].key)
            start = time.process_time()
            server.take(sent)
            spent += time.process_time() - start
        states = {name: self.states[name] for name in present}
        for work in ("attested", "unmasked"):
            start = time.process_time()
            server.proceed()
            requests = server.requests()
            spent += time.process_time() - start
            for name in present:
                states[name] = getattr(self.members[name], work)(states[name], request_from_bytes(requests[name]))
                start = time.process_time()
                server.take(states[name].answers[-1])
                spent += time.process_time() - start
        start = time.process_time()
        server.proceed()
        spent += time.process_time() - start
        masks = len(present) + len(self.dropped) * self.group.neighbours
        size = parameters * self.group.bits // 8
        return spent, masks * keystream_seconds(size, 1)


def main() -> None:
    """Measures, prints, and fails if the promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most-parameters", type=int, default=max(PARAMETERS))
    parser.add_argument("--most-members", type=int, default=max(MEMBERS))
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for members in (size for size in MEMBERS if size <= options.most_members):
        measured = Measured(members)
        for parameters in (count for count in PARAMETERS if count <= options.most_parameters):
            silo, floor = measured.silo_seconds(parameters)
            row = {
                "members": members,
                "neighbours": measured.group.neighbours,
                "parameters": parameters,
                "handshake": 1e3 * measured.handshake,
                "silo": 1e3 * silo,
                "silo_ratio": silo / floor,
                "server": None,
                "server_ratio": None,
            }
            if parameters * members <= MOST_NUMBERS:
                server, floor = measured.server_seconds(parameters)
                row |= {"server": 1e3 * server, "server_ratio": server / floor}
            rows.append(row)
    columns = (
        Column(key="members", heading="silos"),
        Column(key="neighbours", heading="neighbours"),
        Column(key="parameters", heading="parameters"),
        Column(key="handshake", heading="keys and shares of a silo, ms"),
        Column(key="silo", heading="masked input, ms"),
        Column(key="silo_ratio", heading="over its floor"),
        Column(key="server", heading="server, ms"),
        Column(key="server_ratio", heading="over its floor"),
    )
    show(Result(data=rows, rows=rows, picture=[table("A masked round", columns, rows)]), options.format)
    promised = [row for row in rows if row["parameters"] >= PROMISED_PARAMETERS and row["members"] >= PROMISED_MEMBERS]
    large = [row["silo_ratio"] for row in promised]
    if large and max(large) > MOST_RATIO:
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
