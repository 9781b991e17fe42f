"""A silo of masked rounds for any engine: trains in a separate process, or in the process of the engine.

An engine passes every request of the server to the silo:

    silo = MaskedSilo(site)
    if silo.asks_for_update(request):
        answer = silo.masked_update(request, model)
    else:
        answer = silo.answer(request)
"""

from typing import cast

from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.masking.scratch_store import ScratchStore
from fulcrum.core.silo.masked_station import MaskedStation
from fulcrum.core.silo.releasing_silo import worker_of
from fulcrum.core.silo.site import Site, record_name
from fulcrum.core.training.assignment import Training, check_installed
from fulcrum.core.training.in_process_training import InProcessTraining


class MaskedSilo(MaskedStation):
    """A silo whose server receives masked sums; `MaskedStation` lists the guarantees.

    Args:
        site: The silo's own folder, with ledger and record of masked rounds.
        training: The object that trains in this process, for an engine that calls the user's code. By default the
            site's training module trains in a separate process.
        sealed: True on an engine with an aggregator in every region, which opens sealed answers (`MaskedRegion`).

    Raises:
        FulcrumError: The plan or the policy does not let this silo take part.
    """

    def __init__(self, site: Site, training: Training | None = None, *, sealed: bool = False) -> None:
        trained = worker_of(site.settings) if training is None else InProcessTraining(training)
        super().__init__(site, trained, sealed=sealed)
        if training is None:
            check_installed(site.settings.train)

    def _research_record(self) -> MemberStore:
        """Opens the small record of a simulation, which is not synced: a simulation takes every stage on one disk."""
        path = (self._site.state / record_name(self._site.settings.name)).with_suffix(".scratch")
        return cast("MemberStore", ScratchStore(path))  # the same methods
