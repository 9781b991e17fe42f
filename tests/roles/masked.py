"""Silos of a masked federation, each with its own folder, ledger and record; and rounds that a server drives."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

import fulcrum
from fulcrum.aggregation.answer_opening import AnswerOpener
from fulcrum.aggregation.masked_group import STAGES
from fulcrum.aggregation.masked_round import MaskedRound
from fulcrum.aggregation.site_setup import init_site, site_toml
from fulcrum.core.masking.masking_messages import member_reply_from_bytes, request_from_bytes
from fulcrum.core.messages.membership import region_of
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.site import FORMAT, Site, SiteSettings, ledger_name, read_site
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import FulcrumError
from fulcrum.planning.files.plan_issue import write_signature

SIZES = {"north": dict.fromkeys(("caen", "lille", "metz", "nancy", "reims"), 100), "south": {"lyon": 100, "nice": 80}}
MODEL = {"weight": np.linspace(-1, 1, 38).reshape(2, 19), "bias": np.zeros(2)}
PARAMETERS = 40


def half_a_step(model, assignment):
    return {name: array + 0.5 for name, array in model.items()}


class MaskedWorld:
    """A federation whose sums are masked, on disk. One key a name, for as many plans as a test makes."""

    def __init__(
        self,
        folder: Path,
        sizes=SIZES,
        *,
        policy="",
        purpose="deployment",
        train=half_a_step,
        outer=None,
        sealed=False,
        **options,
    ):
        self.folder, self.sizes, self.train, self.sealed = folder, sizes, train, sealed
        silos = [silo for members in sizes.values() for silo in members]
        keys = {silo: fulcrum.new_key(folder / f"{silo}.key") for silo in silos}
        nodes = [*sizes, *(node for tier in outer.values() for node in tier)] if outer else []
        keys |= {node: fulcrum.new_key(folder / f"{node}.key", kind="sealing") for node in nodes}
        options = {"rounds": 3, "epsilon": {"region": 1.0}, "dropouts": 0, "aggregation": "masked"} | options
        self.plan = fulcrum.plan(
            fulcrum.Federation.from_sizes(sizes, outer=outer),
            parameters=PARAMETERS,
            purpose=purpose,
            keys=keys,
            **options,
        )
        fulcrum.save_plan(self.plan, folder / "plan.json")
        issuer = fulcrum.new_key(folder / "issuer.key")
        write_signature(folder / "plan.json", folder / "issuer.key", purpose=purpose)
        for silo in silos:
            home = folder / silo
            home.mkdir()
            for name in ("plan.json", "plan.json.sig"):
                (home / name).write_bytes((folder / name).read_bytes())
            (home / "site.key").write_bytes((folder / f"{silo}.key").read_bytes())
            settings = SiteSettings(
                format=FORMAT, role="silo", name=silo, issuer=issuer, purpose=purpose, policy=bool(policy)
            )
            (home / "site.toml").write_text(site_toml(settings))
            if policy:
                (home / "policy.toml").write_text(policy)
            (home / "state").mkdir()
            init_site(Site(folder=home, settings=settings, plan=self.plan))
        self.silos: dict[str, MaskedSilo] = {}
        self.left: list[tuple[str, int, bytes]] = []
        """Every masked vector that a silo let go: whose, of which round, and its bytes."""

    def silo(self, name):
        if name not in self.silos:
            learner = TrainingModule(start=lambda options: MODEL, train=self.train)
            self.silos[name] = MaskedSilo(read_site(self.folder / name, "silo"), learner, sealed=self.sealed)
        return self.silos[name]

    def restart(self):
        """All silos die; what they know is on disk."""
        self.silos = {}

    def answer(self, name, request, model=MODEL):
        silo = self.silo(name)
        if not silo.asks_for_update(request):
            return silo.answer(request)
        answer = silo.masked_update(request, model)
        self.left.append((name, request_from_bytes(request).session.round_number, self.opened(name, answer)))
        return answer

    def opened(self, name, answer):
        """What a silo signed: the region opens an answer that is sealed to it."""
        if not self.sealed:
            return answer
        region = region_of(self.plan, name)
        return AnswerOpener(verified_plan(self.plan), region, self.folder / f"{region}.key").open(answer)

    def round(self, number=1, attempt=1, model=MODEL):
        return MaskedRound(self.plan, number, model, attempt)

    def run(self, masked, *, until=None, gone=None, model=MODEL):
        """Drives a round on, up to the stage named or to its end; returns what is asked then, or the answers."""
        gone, requests = gone or {}, masked.requests()
        for stage in STAGES:
            if until == stage:
                return requests
            for name, request in requests.items():
                if name not in gone or STAGES.index(gone[name]) > STAGES.index(stage):
                    masked.take(self.answer(name, request, model))
            requests = masked.proceed()
        assert not requests
        return masked.answers

    def ledger(self, name):
        with read_ledger(self.folder / name / "state" / ledger_name(name)) as ledger:
            assert all(check.holds for check in verify_ledger(ledger))
            return ledger.entries()

    def check_ledgers(self):
        """No ledger shows less than what left: one entry for every masked vector that a server could have kept."""
        for name in {name for name, _, _ in self.left}:
            rounds = [entry.round_number for entry in self.ledger(name)]
            gone = {number for who, number, _ in self.left if who == name}
            assert gone <= set(rounds), name
            assert len(rounds) == len(set(rounds))
            vectors = {(number, answer) for who, number, answer in self.left if who == name}
            sessions = {member_reply_from_bytes(answer).session for _, answer in vectors}
            assert len(vectors) == len(sessions), f"{name} masked one round of one attempt in two ways"


def changed(request, **fields):
    """A request as a modified server sends it."""
    return msgspec.structs.replace(request_from_bytes(request), **fields).to_bytes()


def refused(work, *arguments):
    """What a refusal says, in one line; anything but a refusal fails."""
    with pytest.raises(FulcrumError) as caught:
        work(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)
