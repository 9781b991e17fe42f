"""What a silo answers when it is asked for a round: its release, sealed for its region, or nothing."""

from pathlib import Path

from fulcrum.arrays import FloatArray
from fulcrum.coordination import model_digest
from fulcrum.engines.head import EngineNoise
from fulcrum.engines.learning import Assignment, Learner, load_learner
from fulcrum.engines.sites import Site
from fulcrum.engines.wire import unpack_model
from fulcrum.errors import PolicyError
from fulcrum.ledger import Ledger
from fulcrum.releasing import Release, checked_round, release, stored_release
from fulcrum.sealing import Sealer


class SiloStation:
    """One silo at work: trains, releases through its ledger, seals."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._learner: Learner = load_learner(site.settings.train)
        self._sealer = Sealer(site.plan, site.settings.name, site.key)

    @property
    def ledger_path(self) -> Path:
        """Where what was spent is kept."""
        return self._site.state / "ledger.db"

    def answer(self, model: bytes, round_number: int) -> bytes:
        """Returns the sealed release of a round on a model; asked again, the same release is sealed again.

        Raises:
            FulcrumError: Whatever keeps the release from being made; nothing may be sent then.
        """
        site = self._site
        round_number = checked_round(site.plan, round_number)
        arrays = unpack_model(model)
        basis = model_digest(arrays)
        assignment = Assignment(
            silo=site.settings.name,
            round_number=round_number,
            plan=site.plan,
            seed=site.settings.seed,
            options=site.settings.options,
        )
        if site.plan.purpose == "research":
            if site.policy is not None:
                raise PolicyError("a silo with a policy releases under deployment plans alone")
            noise = EngineNoise(seed=site.settings.seed, silos=len(site.plan.federation))
            made = release(
                self._learner.update(arrays, assignment), site.plan, assignment.silo, round_number, noise=noise
            )
            return self._sealer.seal(made)
        with Ledger.open(self.ledger_path, silo=assignment.silo) as ledger:
            return self._sealer.seal(self._accounted(ledger, arrays, assignment, basis))

    def _accounted(self, ledger: Ledger, arrays: dict[str, FloatArray], assignment: Assignment, basis: str) -> Release:
        """Returns the round's release: the one in the ledger if there is one, else a fresh one."""
        plan, silo, number = assignment.plan, assignment.silo, assignment.round_number
        kept = stored_release(arrays, plan, silo, number, ledger=ledger, basis=basis)
        if kept is not None:
            return kept
        update = self._learner.update(arrays, assignment)
        return release(update, plan, silo, number, ledger=ledger, policy=self._site.policy, basis=basis)
