"""Sites of masked sums on NVIDIA FLARE in one process: executors, updaters and an assessor, and the tasks between them."""

import types

from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from fulcrum.core.silo.site import read_site
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.engines.nvflare.flare_masked_region import RelayUpdater, SummingUpdater
from fulcrum.engines.nvflare.flare_masked_server import MaskedAssessor
from fulcrum.engines.nvflare.flare_masked_silo import MaskedSiloExecutor
from fulcrum.engines.nvflare.site_jobs.job_messages import TASK

MEMBERS = {"north": ["a1", "a2", "a3", "a4"], "south": ["c1", "c2", "c3", "c4"]}


def context(kit, peer="nobody"):
    engine = types.SimpleNamespace(
        get_workspace=lambda: Workspace(str(kit), kit.name), fire_event=lambda event_type, fl_ctx: None
    )
    made, other = FLContext(), FLContext()
    made.put(ReservedKey.ENGINE, engine, private=True, sticky=False)
    made.put(ReservedKey.RUN_NUM, "0ea763a1-4d7c-4cfd-b337-b3698f0d931f", private=False, sticky=False)
    other.put(ReservedKey.IDENTITY_NAME, peer, private=False, sticky=False)
    made.set_peer_context(other)
    return made


class World:
    """Every site in this process, and the tasks that go between them."""

    def __init__(self, kits):
        self.kits = kits
        self.silos, self.regions = {}, {}
        self.assessor = MaskedAssessor()
        self.assessor.open(context(kits / "server"))
        kind = SummingUpdater if self.assessor.by_region else RelayUpdater
        for region in MEMBERS:
            self.regions[region] = kind(read_site(kits / region / "local/fulcrum"))

    def answer(self, silo, task):
        if silo not in self.silos:
            self.silos[silo] = MaskedSiloExecutor()
            self.silos[silo]._listening.set()
        return self.silos[silo].execute(TASK, task, context(self.kits / silo), Signal())

    def copied(self, task):
        copy = Shareable()
        copy.update(task)
        return copy

    def carry(self, requests, take):
        task = self.assessor.stage_task(requests, take)
        targets = self.assessor.targets(requests) or list(self.regions)
        for region in targets:
            self.stage(region, self.copied(task))
        self.assessor.end_stage()

    def stage(self, region, task):
        updater, here = self.regions[region], self.kits / region
        updater.start_task(task, context(here))
        for silo in MEMBERS[region]:
            updater.process_child_update(self.answer(silo, self.copied(task)), context(here, silo))
        assert updater.ready
        reply = updater.prepare_update_for_parent(context(here))
        self.assessor.take(region, reply, context(self.kits / "server"))
        return reply

    def run_round(self):
        return self.assessor.server.run_round(self.carry)

    def ledger(self, silo):
        with read_ledger(self.kits / silo / "local/fulcrum/state" / f"{silo}.ledger") as ledger:
            return [entry.round_number for entry in ledger.entries()]
