"""The work of a silo in a round: from the model to the release, also if training fails.

If the plan protects persons, training streams one row for each person, and the silo clips and adds every row as the row
arrives. The rows of a training that failed are never released: the round is zero plus noise.
"""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.layout import layout_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.noise.noise_sources import SeededNoiseBySilo
from fulcrum.core.plan.figures import own_rounds
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.release_parameters import checked_round
from fulcrum.core.silo.releasing import GradientSum, prepared_release, release, sound_alarm
from fulcrum.core.silo.site import Site, SiteSettings, ledger_name, once_free
from fulcrum.core.silo.site_records import check_initialised, own_record
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.training.assignment import Assignment, Training, TrainingFailedError
from fulcrum.core.training.release_room import memory_for_release, room_for_release
from fulcrum.core.training.training_worker import TrainingWorker
from fulcrum.errors import ParameterError, PolicyError, ReleaseError

FAILED = "training failed in round"
"""The beginning of the alarm in the silo's own log, before the number of the round."""

_Worker = TypeVar("_Worker", bound=TrainingWorker)

_HIDDEN = f"{FAILED} %d: zero plus noise is released in its place\n%s"


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
            round_number=checked_round(site.plan, round_number, site.settings.name),
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
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        try:
            signal = self._train(arrays, assignment)
        except TrainingFailedError as failure:
            sound_alarm(f"{FAILED} %d: nothing is released\n%s", number, failure.report)
            raise
        return _release_signal(signal, arrays, plan, silo, number, noise=noise, masked=self._masks)

    def _train(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> "dict[str, FloatArray] | GradientSum":
        """Returns the update of training or, if the plan protects persons, the clipped sum of all rows."""
        if not assignment.plan.unit.is_within_silo:
            return self._training.update(arrays, assignment)
        with contextlib.closing(self._training.rows(arrays, assignment)) as rows:
            return _sum_of(rows, arrays, assignment)

    def _deployed_release(self, arrays: Mapping[str, FloatArray], assignment: Assignment, digest: str) -> Release:
        """Returns the round's release: from the ledger if the ledger has the release, else a new release.

        The ledger is closed during training: training may run for long, and the user's code in training may close the
        open files of this process.

        Args:
            arrays: The global model of the round, by the names of its arrays.
            assignment: Plan, silo and number of the round.
            digest: The digest of all inputs from the server.
        """
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        with self._ledger() as ledger:
            policy = self._site.policy  # read after the wait for the ledger: the policy may change meanwhile
            cached = prepared_release(arrays, plan, silo, number, ledger=ledger, policy=policy, input_digest=digest)
            left = own_rounds(plan, plan.index_of(silo)) - sum(
                entry.plan_digest == plan.digest for entry in ledger.entries()
            )
        if cached is not None:
            return cached
        signal = self._hidden_signal(arrays, assignment, left)
        with self._ledger() as ledger:
            policy = self._site.policy  # read again: training may run for long
            return _release_signal(
                signal,
                arrays,
                plan,
                silo,
                number,
                ledger=ledger,
                policy=policy,
                input_digest=digest,
                masked=self._masks,
            )

    def _hidden_signal(
        self, arrays: Mapping[str, FloatArray], assignment: Assignment, releases: int
    ) -> "dict[str, FloatArray] | GradientSum":
        """Returns the update of training, or the clipped sum of all rows; zeros if training failed.

        A silo that declined after a failure would tell an observer about the silo's records. The rows before a failure
        are not used: the number of these rows depends on the records.
        """
        # Made now: training may take all memory.
        zeros: dict[str, FloatArray] | GradientSum = {name: np.zeros_like(array) for name, array in arrays.items()}
        if assignment.plan.unit.is_within_silo:
            zeros = _sum_of((), arrays, assignment)
        parameters = sum(array.size for array in arrays.values())
        later = self._site.state / f"{assignment.silo}.room"
        try:
            room = room_for_release(later, parameters=parameters, releases=releases)
            with room, memory_for_release(parameters):
                return self._train(arrays, assignment)
        except TrainingFailedError as failure:
            sound_alarm(_HIDDEN, assignment.round_number, failure.report)
        except (ParameterError, ReleaseError, MemoryError) as failure:  # rows of a wrong type or shape
            if not assignment.plan.unit.is_within_silo:
                raise
            sound_alarm(_HIDDEN, assignment.round_number, failure)
        return zeros

    def _ledger(self) -> Ledger:
        """Opens the silo's ledger, which must exist: a new ledger would forget the privacy that the silo has spent."""
        site, silo = self._site, self._site.settings.name

        def open_ledger(path: Path) -> Ledger:
            if not path.exists():  # checked in every attempt: the file may vanish while another process holds the file
                raise ReleaseError("site.ledger-missing", file=path)
            return Ledger.open(path, silo=silo, create=False)

        return once_free(lambda: own_record(site, ledger_name(silo), open_ledger))


def _sum_of(rows: Iterable[FloatArray], arrays: Mapping[str, FloatArray], assignment: Assignment) -> GradientSum:
    """Returns the clipped sum of rows for the release of an assignment."""
    return GradientSum(rows, layout_of(arrays), assignment.plan, assignment.silo, assignment.round_number)


def _release_signal(
    signal: dict[str, FloatArray] | GradientSum,
    arrays: Mapping[str, FloatArray],
    plan: VerifiedPlan,
    silo: str,
    number: int,
    **options: Any,
) -> Release:
    """Returns the release of an update, or of a clipped sum in the layout of the model."""
    if isinstance(signal, GradientSum):
        return release(None, plan, silo, number, gradients=signal, model=arrays, **options)
    return release(signal, plan, silo, number, **options)


def worker_of(settings: SiteSettings, kind: type[_Worker] = TrainingWorker) -> _Worker:  # type: ignore[assignment]
    """Returns the worker of a site's training module, within the limits of the site."""
    return kind(settings.train, seconds=settings.training_deadline, gigabytes=settings.training_gigabytes)
