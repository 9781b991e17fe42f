"""Groups with keys, and rounds driven through them, for tests of masked sums."""

import functools

import numpy as np
import pytest

import fulcrum
from fulcrum.aggregation.masked_group import STAGES, MaskedGroup, session_of
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.masking.masking_messages import Attested, Begin, Inbox, Roster, Survivors, request_from_bytes
from fulcrum.core.masking.member_protocol import MemberProtocol
from fulcrum.core.masking.member_replies import MemberReplies
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.plan.keys import public_text
from fulcrum.errors import ExchangeError, FulcrumError

BASIS = "model-0"


@functools.cache
def private_key(name):
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519", reason="needs the extra secure")
    return ed25519.Ed25519PrivateKey.generate()


def names(count):
    return [f"silo-{number:03d}" for number in range(count)]


def plan_of(sizes, *, parameters=40, purpose="deployment", rounds=6, epsilon=1.0, **options):
    silos = [silo for members in sizes.values() for silo in members]
    return fulcrum.plan(
        fulcrum.Federation.from_sizes(sizes),
        rounds=rounds,
        epsilon=epsilon,
        parameters=parameters,
        purpose=purpose,
        keys={silo: public_text(private_key(silo)) for silo in silos},
        **{"aggregation": "masked"} | options,
    )


@functools.cache
def region(count, dropouts=0, colluders=0, parameters=40, purpose="deployment"):
    """The group of one region of equal silos."""
    sizes = {"north": dict.fromkeys(names(count), 100)}
    made = plan_of(sizes, dropouts=dropouts, colluders=colluders, parameters=parameters, purpose=purpose)
    return group_of(made, "north")


def layout_of(group, parameters=None):
    return Layout(names=("head",), shapes=((parameters or group.parameters,),))


def inputs_of(group, seed, parameters=None):
    """Releases as large as the plan allows."""
    rng = np.random.default_rng(seed)
    count = parameters or group.parameters
    return {
        silo: rng.integers(-int(most), int(most), size=count, endpoint=True) for silo, most in group.largest.items()
    }


class InMemory:
    """A silo that keeps its states in memory: the same answers without the disk."""

    def __init__(self, member):
        self.member, self.state = member, None

    def answer(self, data):
        request = request_from_bytes(data)
        if isinstance(request, Begin):
            self.state = self.member.begin(request)
        else:
            work = {Roster: "share_secrets", Survivors: "attest_survivors", Attested: "unmask_sum"}[type(request)]
            self.state = getattr(self.member, work)(self.state, request)
        return self.state.answers[-1]

    def masked_input(self, data, values):
        self.state = self.member.accept_shares(self.state, request_from_bytes(data))
        return self.member.masked_input(self.state, values)

    def close(self):
        self.state = None


class Round:
    """One masked round: silos, on disk if there is a folder, and a server that follows the protocol."""

    def __init__(self, group, inputs, folder=None, *, number=1, attempt=1, basis=BASIS, parameters=None, least=1):
        self.group, self.folder, self.inputs, self.least = group, folder, inputs, least
        self.silos = {}
        self.session = session_of(group, number, basis, attempt)
        self.server = MaskedGroup(group, self.session, layout_of(group, parameters))
        self.seen = []
        """All that the server received, by silo and in order."""

    def silo(self, name):
        if name not in self.silos:
            member = MemberProtocol(group=self.group, silo=name, key=private_key(name), least=self.least)
            path = None if self.folder is None else self.folder / f"{name}.masking"
            self.silos[name] = InMemory(member) if path is None else MemberReplies.open(path, member, create=True)
        return self.silos[name]

    def answer(self, name, request):
        silo = self.silo(name)
        if isinstance(request_from_bytes(request), Inbox):
            return silo.masked_input(request, self.inputs[name])
        return silo.answer(request)

    def run(self, gone=None):
        """Runs to the end; `gone` says by silo the first stage that it does not answer."""
        gone = gone or {}
        requests = self.server.requests()
        while isinstance(requests, dict):
            stage = STAGES.index(self.server.stage)
            for name, request in requests.items():
                if gone.get(name, len(STAGES)) > stage:
                    answer = self.answer(name, request)
                    self.seen.append((name, answer))
                    self.server.take(answer)
            requests = self.server.proceed()
        self.close()
        assert isinstance(requests, RegionalSum | Withheld)
        return requests

    def until(self, stage, gone=None):
        """Runs until a stage is asked for, and returns its requests."""
        gone = gone or {}
        requests = self.server.requests()
        while self.server.stage != stage:
            at = STAGES.index(self.server.stage)
            for name, request in requests.items():
                if gone.get(name, len(STAGES)) > at:
                    self.server.take(self.answer(name, request))
            requests = self.server.proceed()
        return requests

    def close(self):
        for silo in self.silos.values():
            silo.close()
        self.silos = {}


def plain_sum(inputs, members):
    """The sum in Python's integers, which never wrap."""
    return [sum(int(inputs[silo][place]) for silo in members) for place in range(len(next(iter(inputs.values()))))]


def refusal(work, *arguments, kind=ExchangeError, **options):
    with pytest.raises(kind) as caught:
        work(*arguments, **options)
    assert isinstance(caught.value, FulcrumError)
    assert "\n" not in str(caught.value)
    return str(caught.value)
