"""One silo at work: from the model of a round to its release, whatever its training does."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.release_message import Release
from fulcrum.core.noise.noise_sources import SeededNoiseBySilo
from fulcrum.core.silo.releasing import checked_round, prepared_release, release, sound_alarm
from fulcrum.core.silo.site import Site, SiteSettings, ledger_name, once_free
from fulcrum.core.silo.site_records import check_initialised, own_record
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.training.assignment import Assignment, Training, TrainingFailedError
from fulcrum.core.training.release_room import memory_for_release, room_for_release
from fulcrum.core.training.training_worker import TrainingWorker
from fulcrum.errors import PolicyError, ReleaseError

FAILED = "training failed in round"
"""What the silo's own log says, with the round after it, and nobody else is told."""


class ReleasingSilo:
    """One silo at work: trains, and releases through its ledger; what hides a release on its way is for subclasses.

    Args:
        site: The silo's own folder.
        training: The way to train.
    """

    _masks = False  # whether what is released leaves masked

    def __init__(self, site: Site, training: Training) -> None:
        check_initialised(site)
        self._site = site
        self._training = training

    def _released(self, arrays: Mapping[str, FloatArray], round_number: int, basis: str) -> Release:
        """Returns the release of a round on a model; asked again on the same basis, it is the same."""
        site = self._site
        assignment = Assignment(
            silo=site.settings.name,
            round_number=checked_round(site.plan, round_number),
            plan=site.plan,
            seed=site.settings.seed,
            options=site.settings.options,
        )
        if site.settings.purpose == "research":
            return self._researched(arrays, assignment)
        return self._accounted(arrays, assignment, basis)

    def _researched(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> Release:
        if self._site.policy is not None:
            raise PolicyError("policy.plan-for-research")
        noise = SeededNoiseBySilo(seed=assignment.seed, silos=len(assignment.plan.federation))
        try:
            update = self._training.update(arrays, assignment)
        except TrainingFailedError as failure:
            sound_alarm(f"{FAILED} %d: nothing is released\n%s", assignment.round_number, failure.report)
            raise
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        return release(update, plan, silo, number, noise=noise, masked=self._masks)

    def _accounted(self, arrays: Mapping[str, FloatArray], assignment: Assignment, basis: str) -> Release:
        """Returns the round's release: the one in the ledger if there is one, else a fresh one."""
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        with self._ledger() as ledger:
            policy = self._site.policy  # once the ledger is there, which may be waited for
            kept = prepared_release(arrays, plan, silo, number, ledger=ledger, policy=policy, basis=basis)
            left = plan.rounds - sum(entry.plan_digest == plan.digest for entry in ledger.entries())
        if kept is not None:
            return kept
        update = self._hidden_update(arrays, assignment, left)
        with self._ledger() as ledger:
            policy = self._site.policy  # again: training may take long
            return release(update, plan, silo, number, ledger=ledger, policy=policy, basis=basis, masked=self._masks)

    def _hidden_update(
        self, arrays: Mapping[str, FloatArray], assignment: Assignment, releases: int
    ) -> dict[str, FloatArray]:
        """Trains. If that fails, the update is zero: a silo that declined would tell something of its records."""
        instead = {name: np.zeros_like(array) for name, array in arrays.items()}  # later there may be no memory for it
        parameters = sum(array.size for array in instead.values())
        later = self._site.state / f"{assignment.silo}.room"
        try:
            room = room_for_release(later, parameters=parameters, releases=releases)
            with room, memory_for_release(parameters):
                return self._training.update(arrays, assignment)
        except TrainingFailedError as failure:
            told = f"{FAILED} %d: zero plus noise is released in its place\n%s"
            sound_alarm(told, assignment.round_number, failure.report)
        return instead

    def _ledger(self) -> Ledger:
        """Opens the silo's ledger, which must be there: a missing one may not be begun anew."""
        site, silo = self._site, self._site.settings.name

        def opened(path: Path) -> Ledger:
            if not path.exists():  # asked each time: it may go while another process still holds it
                raise ReleaseError("site.ledger-missing", file=path)
            return Ledger.open(path, silo=silo, create=False)

        return once_free(lambda: own_record(site, ledger_name(silo), opened))


def worker_of(settings: SiteSettings) -> TrainingWorker:
    """Returns the worker of the training module that a site names, within the site's limits."""
    return TrainingWorker(settings.train, seconds=settings.training_deadline, gigabytes=settings.training_gigabytes)
