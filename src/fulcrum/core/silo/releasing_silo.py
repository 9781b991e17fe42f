"""The work of a silo in a round: from the model to the release, also if training fails."""

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
"""The beginning of the alarm in the silo's own log, before the number of the round."""


class ReleasingSilo:
    """Trains, and releases through the silo's ledger; subclasses seal or mask the release.

    Args:
        site: The silo's own folder.
        training: The way to train.
    """

    _masks = False  # True in the subclass that masks every release

    def __init__(self, site: Site, training: Training) -> None:
        check_initialised(site)
        self._site = site
        self._training = training

    def _release(self, arrays: Mapping[str, FloatArray], round_number: int, digest: str) -> Release:
        """Returns the release of a round on a model; a second call for the same inputs returns the same release."""
        site = self._site
        assignment = Assignment(
            silo=site.settings.name,
            round_number=checked_round(site.plan, round_number),
            plan=site.plan,
            seed=site.settings.seed,
            options=site.settings.options,
        )
        if site.settings.purpose == "research":
            return self._research_release(arrays, assignment)
        return self._deployed_release(arrays, assignment, digest)

    def _research_release(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> Release:
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

    def _deployed_release(self, arrays: Mapping[str, FloatArray], assignment: Assignment, digest: str) -> Release:
        """Returns the round's release: from the ledger if the ledger has the release, else a new release.

        The ledger is closed during training, which may run for long and may close files of this process.
        """
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        with self._ledger() as ledger:
            policy = self._site.policy  # read after the wait for the ledger: the policy may change meanwhile
            cached = prepared_release(arrays, plan, silo, number, ledger=ledger, policy=policy, input_digest=digest)
            left = plan.rounds - sum(entry.plan_digest == plan.digest for entry in ledger.entries())
        if cached is not None:
            return cached
        update = self._hidden_update(arrays, assignment, left)
        with self._ledger() as ledger:
            policy = self._site.policy  # read again: training may run for long
            return release(
                update, plan, silo, number, ledger=ledger, policy=policy, input_digest=digest, masked=self._masks
            )

    def _hidden_update(
        self, arrays: Mapping[str, FloatArray], assignment: Assignment, releases: int
    ) -> dict[str, FloatArray]:
        """Returns the update of training, or zeros if training failed.

        A silo that declined after a failure would tell an observer about the silo's records.
        """
        zeros = {name: np.zeros_like(array) for name, array in arrays.items()}  # made now: training may take all memory
        parameters = sum(array.size for array in zeros.values())
        later = self._site.state / f"{assignment.silo}.room"
        try:
            room = room_for_release(later, parameters=parameters, releases=releases)
            with room, memory_for_release(parameters):
                return self._training.update(arrays, assignment)
        except TrainingFailedError as failure:
            text = f"{FAILED} %d: zero plus noise is released in its place\n%s"
            sound_alarm(text, assignment.round_number, failure.report)
        return zeros

    def _ledger(self) -> Ledger:
        """Opens the silo's ledger, which must exist: a new ledger would forget the privacy that the silo has spent."""
        site, silo = self._site, self._site.settings.name

        def open_ledger(path: Path) -> Ledger:
            if not path.exists():  # checked in every attempt: the file may vanish while another process holds the file
                raise ReleaseError("site.ledger-missing", file=path)
            return Ledger.open(path, silo=silo, create=False)

        return once_free(lambda: own_record(site, ledger_name(silo), open_ledger))


def worker_of(settings: SiteSettings) -> TrainingWorker:
    """Returns the worker of a site's training module, within the limits of the site."""
    return TrainingWorker(settings.train, seconds=settings.training_deadline, gigabytes=settings.training_gigabytes)
