"""A silo's answers in a masked round: its release, recorded in its ledger and then masked.

The stages are those of `fulcrum.core.masking.masking_messages`. An engine hands every request to the silo and sends
back what it returns; one of the five requests asks for an update, and comes with the model. Where a method raises,
nothing is sent.

    silo = MaskedSilo(site)
    if silo.asks_for_update(request):
        answer = silo.masked_update(request, model)
    else:
        answer = silo.answer(request)
"""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import FloatArray
from fulcrum.core.masking.masking_group import Group, check_sheltered, group_of
from fulcrum.core.masking.masking_messages import Begin, Inbox, Request, Survivors, request_from_bytes
from fulcrum.core.masking.member_protocol import MemberProtocol
from fulcrum.core.masking.member_replies import MemberReplies
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.masking.scratch_store import ScratchStore
from fulcrum.core.messages.membership import group_name_of
from fulcrum.core.messages.model_message import basis_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.keys import load_private_key
from fulcrum.core.silo.preconditions import check_aggregation, check_one_tier
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing_silo import ReleasingSilo, worker_of
from fulcrum.core.silo.site import Site, once_free, record_name
from fulcrum.core.silo.site_records import own_record
from fulcrum.core.training.assignment import Training, check_installed
from fulcrum.core.training.in_process_training import InProcessTraining
from fulcrum.errors import ExchangeError, PolicyError, ReleaseError


class MaskedSilo(ReleasingSilo):
    """One silo whose server gets sums alone: it releases, and masks. It needs its ledger and its record of rounds.

    Guarantees in deployment, against a server that asks for whatever it likes, together with the plan's colluders:

    - what leaves is at most one masked vector a round, whose content is in the ledger, charged, before;
    - it is unmasked only in a sum with all members of the group, or all but the plan's dropouts, and no fewer than the
      policy's smallest region, whose keys the plan carries and who were asked for the same round on the same model, and
      were told the same beside it;
    - it is in one sum: no second one of the round is unmasked, after a restart neither;
    - the policy is read at every stage. Whatever of it is stricter holds at once, a smaller smallest region once a
      round is next begun; while it cannot be read, or does not pass the plan, nothing is answered.

    Args:
        site: The silo's own folder.
        learner: Trains in this process, where an engine calls the user's code. By default the module that the site
            names trains in a process of its own.

    Raises:
        FulcrumError: Plan or policy do not let this silo take part.
    """

    _masks = True

    def __init__(self, site: Site, learner: Training | None = None) -> None:
        super().__init__(site, worker_of(site.settings) if learner is None else InProcessTraining(learner))
        if learner is None:
            check_installed(site.settings.train)
        plan, silo = site.plan, site.settings.name
        check_one_tier(plan)
        check_aggregation(plan, "masked")
        self._least_in_a_sum()
        check_sheltered(plan, silo)
        self._group = group_of(plan, group_name_of(plan, silo))
        self._key = load_private_key(plan, silo, site.key, "signing")

    def own_request(self, requests: Iterable[bytes]) -> bytes:
        """Returns the request that is for this silo's group: a server that does not know yet who is who sends all."""
        for request in requests:
            if request_from_bytes(request).session.group == self._group.name:
                return request
        raise ExchangeError("mask.request-missing", group=self._group.name)

    @staticmethod
    def asks_for_update(request: bytes) -> bool:
        """Returns whether a request asks for an update, so that it is for `masked_update`."""
        return isinstance(request_from_bytes(request), Inbox)

    def answer(self, request: bytes, *, settings: str = "") -> bytes:
        """Returns the answer to a request that asks for no update.

        Args:
            request: As it came.
            settings: The digest of what this silo's training goes by and no message of the round holds, such as the
                settings of a run; see `Member`.
        """
        asked = request_from_bytes(request)
        rounds = self._released_rounds(asked) if self._group.deployed else None
        with self._masking(settings) as masking:
            if rounds is not None:
                self._check_agree(asked, rounds, masking)
            return masking.answer(request)

    def masked_update(
        self, request: bytes, model: Mapping[str, FloatArray], *, beside: str = "", settings: str = ""
    ) -> bytes:
        """Trains on a model and returns the masked release; asked again, the same release is masked again.

        Whether it is refused depends on request, model and what stands beside it, plan, policy, ledger and record,
        never on the silo's records.

        Args:
            request: As it came.
            model: What came with it.
            beside: The digest of all else that came with it and that training is told.
            settings: As in `answer`.
        """
        with self._masking(settings) as masking:
            session = masking.check_inbox(request)
        if basis_of(model, beside) != session.basis:
            raise ExchangeError("mask.model-differs", round_number=session.round_number)
        made = self._released(model, session.round_number, basis_of(model, beside, settings))
        with self._masking(settings) as masking:
            return masking.masked_input(request, whole_numbers(made, self._group))

    def _released_rounds(self, request: Request) -> set[int] | None:
        """Returns the rounds of a request's plan that are in the ledger, where what is asked depends on them."""
        if not isinstance(request, Begin | Survivors):
            return None
        with self._ledger() as ledger:
            plan = request.session.plan_digest
            return {entry.round_number for entry in ledger.entries() if entry.plan_digest == plan}

    def _check_agree(self, request: Request, rounds: set[int], masking: MemberReplies) -> None:
        """Raises `ReleaseError` where ledger and record do not belong together: one of them is new, or an old copy.

        A round is in the record before its release is in the ledger, and is unmasked after that.
        """
        session = request.session
        released, number = session.round_number in rounds, session.round_number
        if isinstance(request, Begin) and released and not masking.has_begun(session):
            raise ReleaseError("mask.record-behind-ledger", round_number=number)
        if isinstance(request, Begin) and (lost := masking.unmasked_rounds(session) - rounds):
            raise ReleaseError("mask.ledger-behind-record", round_number=min(lost), silo=self._site.settings.name)
        if isinstance(request, Survivors) and not released:
            raise ReleaseError("mask.round-not-released", round_number=number, silo=self._site.settings.name)

    def _masking(self, settings: str = "") -> MemberReplies:
        """Opens the silo's record of masked rounds, which in deployment must be there: a lost one is not begun anew."""
        site, silo = self._site, self._site.settings.name
        if site.settings.purpose == "research":
            path = (site.state / record_name(silo)).with_suffix(".scratch")
            return MemberReplies(ScratchStore(path), self._member(settings))

        def opened() -> MemberReplies:
            record = own_record(site, record_name(silo), lambda path: MemberStore.open(path, silo=silo))
            try:
                return MemberReplies(record, self._member(settings))  # its policy may have changed meanwhile
            except BaseException:
                record.close()
                raise

        return once_free(opened)

    def _member(self, settings: str) -> MemberProtocol:
        """Returns this silo as a member of its group, by its policy as it is now."""
        silo, least = self._site.settings.name, self._least_in_a_sum()
        return MemberProtocol(group=self._group, silo=silo, key=self._key, least=least, settings=settings)

    def _least_in_a_sum(self) -> int:
        """Returns how many silos the policy asks for in a sum, as it is on disk, once it has passed the plan."""
        site, policy = self._site, self._site.policy
        if site.settings.purpose == "deployment":
            release_parameters_of(site.plan, site.settings.name, policy=policy)
        elif policy is not None:
            raise PolicyError("policy.plan-for-research")
        return 1 if policy is None else policy.smallest_region


def whole_numbers(release: Release, group: Group) -> npt.NDArray[np.int64]:
    """Returns a release as it is masked: in deployment as it is, in research rounded to a lattice of step 2^-40 C."""
    if group.deployed:
        if release.step != group.step:
            raise ReleaseError("mask.release-lattice", silo=release.silo, group=group.name)
        return release.values
    return np.rint(release.values / group.step).astype(np.int64)
