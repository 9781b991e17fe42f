"""The answer of a silo to its region: the release of a round, sealed, or a signed decline."""

from fulcrum.core.messages.model_message import model_digest, unpack_model
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.silo.preconditions import check_aggregation
from fulcrum.core.silo.release_parameters import checked_round
from fulcrum.core.silo.releasing_silo import ReleasingSilo, worker_of
from fulcrum.core.silo.site import Site
from fulcrum.core.training.assignment import check_installed


class SiloStation(ReleasingSilo):
    """A silo of a trusted region: trains in a worker process, releases, and seals the release to the region."""

    def __init__(self, site: Site) -> None:
        check_aggregation(site.plan, "trusted")
        super().__init__(site, worker_of(site.settings))
        check_installed(site.settings.train)
        self._sealer = Sealer(site.plan, site.settings.name, site.key)

    def answer(self, model: bytes, round_number: int) -> bytes:
        """Returns the sealed release of a round on a model; a second call seals the same release again.

        Raises:
            FulcrumError: Plan, policy, ledger or request forbid the release; the engine must send no release. The
                refusal never depends on the silo's records: a failure of training is hidden by zero plus noise.
        """
        round_number, arrays = checked_round(self._site.plan, round_number), unpack_model(model)
        return self._sealer.seal(self._release(arrays, round_number, model_digest(arrays)))

    def decline(self, round_number: int) -> bytes:
        """Returns the signed decline of a round: no release of this silo will come."""
        return self._sealer.decline(checked_round(self._site.plan, round_number))
