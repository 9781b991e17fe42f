"""What masking costs one silo and the server in a round, against parameters and group size, beside floor and peer.

The floor of a silo is the keystream of its masks, AES-256 in counter mode, and one copy of its vector: no masking with
these masks does with less. The floor of the server is the keystream of the masks that it takes off, and a copy of every
vector that comes in. The peer is Flower's own SecAgg+, where Flower is installed, with as many neighbours and the same
threshold: how many times our time it takes. It signs nothing, attests nothing and draws masks from a seed of 32 bits;
its silo clips and rounds as well, and its server checks nothing.

All is processor time, measured in one run. The stages in which no vector travels do not depend on parameters: they are
stated for each size of group, all of them together. Where the group is large enough one silo drops out after it shared
masks, so that the server takes off its masks with all its neighbours as well.

    python benchmarks/masking.py [--full | --members 60 500 --parameters 10000000] [--format json]
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from _secagg_plus import SecAggPlus, available, seconds
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fulcrum
from fulcrum.aggregation.masked_group import STAGES, MaskedGroup, session_of
from fulcrum.core.masking.masking_group import Group, group_of
from fulcrum.core.masking.masking_messages import (
    INPUT,
    Attested,
    Begin,
    Inbox,
    Roster,
    Survivors,
    _verify,
    request_from_bytes,
    signed_reply,
)
from fulcrum.core.masking.member_protocol import MemberProtocol, State
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.noise.keystream import repeated_bytes
from fulcrum.core.plan.keys import public_text
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

MEMBERS, MOST_MEMBERS = (2, 10, 60), (2, 5, 10, 20, 60, 100, 200, 500)
PARAMETERS, MOST_PARAMETERS = (100, 10_000, 1_000_000), tuple(10**power for power in range(2, 8))
"""What is measured by default, and with --full."""

PROMISED_PARAMETERS, PROMISED_MEMBERS, MOST_RATIO = 1_000_000, 10, 4.0
FIRST, DROPPED = "silo-000", "silo-001"
WORK: dict[Any, str] = {
    Begin: "begin",
    Roster: "share_secrets",
    Inbox: "accept_shares",
    Survivors: "attest_survivors",
    Attested: "unmask_sum",
}
"""What a member does at each request."""

SHARED = 1
"""The state of a member from which its masked input is made, by its place."""

SIZES = (
    Column(key="members", heading="silos"),
    Column(key="neighbours", heading="neighbours"),
    Column(key="parameters", heading="parameters"),
)
OURS = (
    Column(key="handshake", heading="all but input, ms"),
    Column(key="silo", heading="masked input, ms"),
    Column(key="silo_ratio", heading="over floor"),
    Column(key="server", heading="server, ms"),
    Column(key="server_ratio", heading="over floor"),
)
THEIRS = (
    Column(key="peer_handshake", heading="all but input"),
    Column(key="peer_silo", heading="masked input"),
    Column(key="peer_server", heading="server"),
)

SMALL = 100
"""Parameters of the round that every group goes through first."""


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
    return dataclasses.replace(group_of(fulcrum.verified_plan(made), "region"), parameters=None), keys


def keystream_seconds(count: int, masks: int) -> float:
    """The time to expand so many masks of so many bytes, and to copy one vector."""
    source, room = np.zeros(count, dtype=np.uint8), np.empty(count, dtype=np.uint8)

    def expand() -> None:
        np.copyto(room, source)
        for _ in range(masks):
            draw = repeated_bytes(bytes(32))
            for start in range(0, count, 2**17):
                draw(min(2**17, count - start))

    return seconds(expand, 3)


class Measured:
    """A group that went through a small round: what its first member and its server do, for vectors of any length.

    Attributes:
        handshake: The processor time of the first member in all stages but the masked input.
    """

    def __init__(self, members: int) -> None:
        self.group, keys = group_for(members)
        self.members = {name: MemberProtocol(group=self.group, silo=name, key=key) for name, key in keys.items()}
        self.session = session_of(self.group, 1, "model")
        self.dropped = {DROPPED} if members > 3 else set[str]()
        self.states: dict[str, list[State]] = {name: [] for name in self.members}
        self.inboxes: dict[str, Inbox] = {}
        self.handshake = 0.0
        server = self._server(SMALL)
        requests: Any = server.requests()
        while isinstance(requests, dict):
            for name, data in requests.items():
                answer = self._answer(name, request_from_bytes(data))
                if server.stage != INPUT or name not in self.dropped:
                    server.take(answer)
            requests = server.proceed()
        assert isinstance(requests, RegionalSum), requests
        assert set(requests.values.tolist()) == {len(self.members) - len(self.dropped)}

    def _server(self, parameters: int) -> MaskedGroup:
        return MaskedGroup(self.group, self.session, Layout(names=("all",), shapes=((parameters,),)))

    def _answer(self, name: str, request: Any) -> bytes:
        """Returns what a silo answers; the first one's time counts, as that of a silo alone in its process."""
        member = self.members[name]
        if name == FIRST:
            _verify.cache_clear()
        start = time.process_time()
        state: State = getattr(member, WORK[type(request)])(*self.states[name][-1:], request)
        spent = time.process_time() - start
        self.states[name].append(state)
        if isinstance(request, Inbox):
            self.inboxes[name] = request
            return member.masked_input(state, np.ones(SMALL, dtype=np.int64))
        if name == FIRST:
            self.handshake += spent
        return state.answers[-1]

    def silo_seconds(self, parameters: int) -> tuple[float, float]:
        """The time of one masked input, with the neighbours' shares opened before, and its floor."""
        values = np.ones(parameters, dtype=np.int64)
        member, state, inbox = self.members[FIRST], self.states[FIRST][SHARED], self.inboxes[FIRST]
        spent = seconds(lambda: member.masked_input(member.accept_shares(state, inbox), values), 3)
        return spent, keystream_seconds(parameters * self.group.bits // 8, self.group.neighbours + 1)

    def server_seconds(self, parameters: int) -> tuple[float, float]:
        """The time of the server's whole round, and its floor; answers are those of the small round.

        What comes in is not masked: the server does with it what it does with masked inputs, and gets another sum.
        """
        server, spent = self._server(parameters), 0.0
        zeros = np.zeros(parameters, dtype=self.group.dtype).data.cast("B")
        _verify.cache_clear()
        for turn, stage in enumerate(STAGES):
            for name in server.requests():
                if name in self.dropped and turn >= STAGES.index(INPUT):
                    continue
                if stage == INPUT:
                    answer = signed_reply(INPUT, self.session, name, zeros, self.members[name].key)
                else:
                    answer = self.states[name][turn].answers[turn]
                start = time.process_time()
                server.take(answer)
                spent += time.process_time() - start
            start = time.process_time()
            outcome = server.proceed()
            spent += time.process_time() - start
        assert isinstance(outcome, RegionalSum), outcome
        masks = len(outcome.members) + len(self.dropped) * self.group.neighbours
        return spent, masks * keystream_seconds(parameters * self.group.bits // 8, 1)


def rows_of(members: int, counts: Sequence[int], *, peers: bool) -> list[dict[str, Any]]:
    """What is measured of a group of this size."""
    measured = Measured(members)
    group, present = measured.group, members - len(measured.dropped)
    peer = SecAggPlus(group.neighbours, group.threshold) if peers else None
    rows = []
    for parameters in counts:
        silo, floor = measured.silo_seconds(parameters)
        row: dict[str, Any] = {"members": members, "neighbours": group.neighbours, "parameters": parameters}
        row |= {"handshake": 1e3 * measured.handshake, "silo": 1e3 * silo, "silo_ratio": silo / floor}
        server, floor = measured.server_seconds(parameters)
        row |= {"server": 1e3 * server, "server_ratio": server / floor}
        if peer is not None:
            row["peer_handshake"] = peer.handshake / measured.handshake
            row["peer_silo"] = peer.silo_seconds(parameters) / silo
            theirs = peer.server_seconds(parameters, present=present, dropped=len(measured.dropped))
            row["peer_server"] = theirs / server
        rows.append(row)
    return rows


def main() -> None:
    """Measures, prints, and fails if the promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="2 to 500 silos, 10^2 to 10^7 parameters")
    parser.add_argument("--members", type=int, nargs="+", default=MEMBERS, help="silos of a group")
    parser.add_argument("--parameters", type=int, nargs="+", default=PARAMETERS)
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args()
    peers = available()
    if not peers:
        print(
            "Flower is not installed: its SecAgg+ is left out. Run: pip install 'fulcrum-dp[flower]'", file=sys.stderr
        )
    sizes, counts = (MOST_MEMBERS, MOST_PARAMETERS) if options.full else (options.members, options.parameters)
    rows: list[dict[str, Any]] = []
    for members in sizes:
        print(f"{members} silos ...", file=sys.stderr)
        rows += rows_of(members, counts, peers=peers)
    pictures = [table("A masked round", SIZES + OURS, rows)]
    if peers:
        pictures.append(table("Flower's SecAgg+, in times of ours", SIZES + THEIRS, rows))
    show(Result(data=rows, rows=rows, picture=pictures), options.format)
    promised = [row for row in rows if row["parameters"] >= PROMISED_PARAMETERS and row["members"] >= PROMISED_MEMBERS]
    large = [row["silo_ratio"] for row in promised]
    if large and max(large) > MOST_RATIO:
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
