"""What a silo answers when it is asked for a round: its release, sealed for its region, or nothing."""

from fulcrum.core.messages.model_message import model_digest, unpack_model
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.silo.preconditions import check_aggregation
from fulcrum.core.silo.releasing import checked_round
from fulcrum.core.silo.releasing_silo import ReleasingSilo, worker_of
from fulcrum.core.silo.site import Site
from fulcrum.core.training.assignment import check_installed


class SiloStation(ReleasingSilo):
    """One silo of a region that is trusted: it trains in a worker process, releases, and seals to its region."""

    def __init__(self, site: Site) -> None:
        check_aggregation(site.plan, "trusted")
        super().__init__(site, worker_of(site.settings))
        check_installed(site.settings.train)
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
