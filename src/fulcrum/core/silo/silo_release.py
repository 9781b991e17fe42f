"""What a silo answers when it is asked for a round: its release, sealed for its region, or nothing."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.model_message import model_digest, unpack_model
from fulcrum.core.messages.release_message import Release
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.noise.noise_sources import SeededNoiseBySilo
from fulcrum.core.silo.preconditions import check_aggregation
from fulcrum.core.silo.releasing import checked_round, prepared_release, release, sound_alarm
from fulcrum.core.silo.site import Site, ledger_name, once_free
from fulcrum.core.silo.site_records import check_initialised, own_record
from fulcrum.core.silo.spare import set_aside
from fulcrum.core.silo.training_module import Assignment, Learner, check_installed, load_learner
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import PolicyError, ReleaseError

FAILED = "training failed in round"
"""What the silo's own log says, with the round after it, and nobody else is told."""


class ReleasingSilo:
    """One silo at work: trains, and releases through its ledger; what hides a release on its way is for subclasses.

    Args:
        site: The silo's own folder.
        learner: What trains; the module that the site names by default.
    """

    _masks = False  # whether what is released leaves masked

    def __init__(self, site: Site, learner: Learner | None = None) -> None:
        check_initialised(site)
        self._site = site
        self._learner = learner
        if learner is None:
            check_installed(site.settings.train)

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
            raise PolicyError("a silo with a policy releases under deployment plans alone")
        noise = SeededNoiseBySilo(seed=assignment.seed, silos=len(assignment.plan.federation))
        try:
            update = self._update(arrays, assignment)
        except Exception:
            sound_alarm(f"{FAILED} %d: nothing is released", assignment.round_number, trace=True)
            raise
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        return release(update, plan, silo, number, noise=noise, masked=self._masks)

    def _accounted(self, arrays: Mapping[str, FloatArray], assignment: Assignment, basis: str) -> Release:
        """Returns the round's release: the one in the ledger if there is one, else a fresh one."""
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        with self._ledger() as ledger:
            policy = self._site.policy  # once the ledger is there, which may be waited for
            kept = prepared_release(arrays, plan, silo, number, ledger=ledger, policy=policy, basis=basis)
        if kept is not None:
            return kept
        update = self._hidden_update(arrays, assignment)
        with self._ledger() as ledger:
            policy = self._site.policy  # again: training may take long
            return release(update, plan, silo, number, ledger=ledger, policy=policy, basis=basis, masked=self._masks)

    def _update(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Trains. The module is imported here: one that reads records when it is imported may fail by what they are."""
        if self._learner is None:
            self._learner = load_learner(self._site.settings.train)
        return self._learner.update(arrays, assignment)

    def _hidden_update(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Trains. If that fails, the update is zero: a silo that declined would tell something of its records.

        Whatever training raises is hidden, a cancelled task, an exit or a group of errors among it. An interrupt alone
        is not: it is the operator's, who wants the site to end. Nor does it show what training used up: memory, files
        and room for the release are set aside before it.
        """
        instead = {name: np.zeros_like(array) for name, array in arrays.items()}  # later there may be no memory for it
        with contextlib.ExitStack() as spare:
            spare.enter_context(set_aside(self._site.state, parameters=sum(array.size for array in instead.values())))
            try:
                with _nothing_left_behind():
                    return self._update(arrays, assignment)
            except KeyboardInterrupt:
                raise
            except BaseException:
                spare.close()  # telling the silo may take some of it
                told = f"{FAILED} %d: zero plus noise is released in its place"
                sound_alarm(told, assignment.round_number, trace=True)
        return instead

    def _ledger(self) -> Ledger:
        """Opens the silo's ledger, which must be there: a missing one may not be begun anew."""
        site, silo = self._site, self._site.settings.name

        def opened(path: Path) -> Ledger:
            if not path.exists():  # asked each time: it may go while another process still holds it
                raise ReleaseError(f"{path} is not there, and with it what this silo has spent. Ask for a new plan")
            return Ledger.open(path, silo=silo, create=False)

        return once_free(lambda: own_record(site, ledger_name(silo), opened))


class SiloStation(ReleasingSilo):
    """One silo of a region that is trusted: it releases, and seals to its region."""

    def __init__(self, site: Site) -> None:
        check_aggregation(site.plan, "trusted")
        super().__init__(site)
        self._sealer = Sealer(site.plan, site.settings.name, site.key)

    def answer(self, model: bytes, round_number: int) -> bytes:
        """Returns the sealed release of a round on a model; asked again, the same release is sealed again.

        Raises:
            FulcrumError: Plan, policy, ledger or request keep the release from being made; nothing may be sent then.
                None of that depends on the silo's records: what goes wrong in training is hidden, not told.
        """
        round_number, arrays = checked_round(self._site.plan, round_number), unpack_model(model)
        return self._sealer.seal(self._released(arrays, round_number, model_digest(arrays)))

    def decline(self, round_number: int) -> bytes:
        """Returns this silo's signed statement that it releases nothing in a round."""
        return self._sealer.decline(checked_round(self._site.plan, round_number))


@contextlib.contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Ends here what training began and what would go on into the release.

    A process that training forked and that comes back, by returning, failing or `sys.exit`, is no silo: it would answer
    the round in the place of its parent. An alarm that training set, of any clock, or a trace that it left would strike
    while the release is made, and the silo would decline because its training took long.
    """
    process = os.getpid()
    clocks = [
        getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name)
    ]
    idle = [clock for clock in clocks if signal.getitimer(clock) == (0.0, 0.0)]
    trace, profile = sys.gettrace(), sys.getprofile()
    status = 1
    try:
        yield
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)
        if os.getpid() != process:
            os._exit(status & 0xFF)
        for clock in idle:
            signal.setitimer(clock, 0)
