"""What a silo answers when it is asked for a round: its release, sealed for its region, or nothing."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import PolicyError, ReleaseError
from fulcrum.exchange.model import model_digest, unpack_model
from fulcrum.exchange.release import Release
from fulcrum.exchange.sealing import Sealer
from fulcrum.ledger.ledger import Ledger
from fulcrum.noise.sources import SeededNoiseBySilo
from fulcrum.roles.learning import Assignment, Learner, load_learner
from fulcrum.roles.releasing import checked_round, prepared_release, release, sound_alarm
from fulcrum.roles.site import Site, ledger_name, once_free


class SiloStation:
    """One silo at work: trains, releases through its ledger, seals."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._learner: Learner = load_learner(site.settings.train)
        self._sealer = Sealer(site.plan, site.settings.name, site.key)

    def answer(self, model: bytes, round_number: int) -> bytes:
        """Returns the sealed release of a round on a model; asked again, the same release is sealed again.

        Raises:
            FulcrumError: Plan, policy, ledger or request keep the release from being made; nothing may be sent then.
                None of that depends on the silo's records: what goes wrong in training is hidden, not told.
        """
        site = self._site
        assignment = Assignment(
            silo=site.settings.name,
            round_number=checked_round(site.plan, round_number),
            plan=site.plan,
            seed=site.settings.seed,
            options=site.settings.options,
        )
        arrays = unpack_model(model)
        made = self._researched if site.settings.purpose == "research" else self._accounted
        return self._sealer.seal(made(arrays, assignment))

    def decline(self, round_number: int) -> bytes:
        """Returns this silo's signed statement that it releases nothing in a round."""
        return self._sealer.decline(checked_round(self._site.plan, round_number))

    def _researched(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> Release:
        if self._site.policy is not None:
            raise PolicyError("a silo with a policy releases under deployment plans alone")
        noise = SeededNoiseBySilo(seed=assignment.seed, silos=len(assignment.plan.federation))
        update = self._learner.update(arrays, assignment)
        return release(update, assignment.plan, assignment.silo, assignment.round_number, noise=noise)

    def _accounted(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> Release:
        """Returns the round's release: the one in the ledger if there is one, else a fresh one."""
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        policy, basis = self._site.policy, model_digest(arrays)
        with self._ledger() as ledger:
            kept = prepared_release(arrays, plan, silo, number, ledger=ledger, policy=policy, basis=basis)
        if kept is not None:
            return kept
        update = self._hidden_update(arrays, assignment)
        with self._ledger() as ledger:
            return release(update, plan, silo, number, ledger=ledger, policy=policy, basis=basis)

    def _hidden_update(self, arrays: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Trains. If that fails, the update is zero: a silo that declined would tell something of its records.

        Whatever training raises is hidden, a cancelled task, an exit or a group of errors among it. An interrupt alone
        is not: it is the operator's, who wants the site to end.
        """
        try:
            with _nothing_left_behind():
                return self._learner.update(arrays, assignment)
        except KeyboardInterrupt:
            raise
        except BaseException:
            told = "training failed in round %d: zero plus noise is released in its place"
            sound_alarm(told, assignment.round_number, trace=True)
            return {name: np.zeros_like(array) for name, array in arrays.items()}

    def _ledger(self) -> Ledger:
        """Opens the silo's ledger, which must be there: a missing one may not be begun anew."""
        path = self._site.state / ledger_name(self._site.settings.name)

        def opened() -> Ledger:
            if not path.exists():  # asked each time: it may go while another process still holds it
                raise ReleaseError(f"{path} is not there, and with it what this silo has spent. Ask for a new plan")
            return Ledger.open(path, silo=self._site.settings.name, create=False)

        return once_free(opened)


@contextlib.contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Ends here what training began and what would go on into the release.

    A process that training forked and that comes back, by returning, failing or `sys.exit`, is no silo: it would answer
    the round in the place of its parent. An alarm that training set would strike while the release is made, and the
    silo would decline because its training took long.
    """
    process = os.getpid()
    timer = signal.getitimer(signal.ITIMER_REAL) if hasattr(signal, "getitimer") else None
    status = 1
    try:
        yield
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    finally:
        if os.getpid() != process:
            os._exit(status & 0xFF)
        if timer == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, 0)
