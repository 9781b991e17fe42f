"""The answers of a silo in a masked round: the release is recorded in the ledger and then masked.

`fulcrum.core.masking.masking_messages` defines the stages. An engine passes every request to the silo and sends back
the answer. One of the five requests asks for an update and comes with the model. If a method raises an error, the
engine sends no answer.

    silo = MaskedStation(site, worker_of(site.settings))
    if silo.asks_for_update(request):
        answer = silo.masked_update(request, model)
    else:
        answer = silo.answer(request)
"""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import FloatArray
from fulcrum.core.masking.answer_sealing import AnswerSealer
from fulcrum.core.masking.masking_group import Group, check_sheltered, group_of
from fulcrum.core.masking.masking_messages import Attested, Begin, Inbox, Request, Survivors, request_from_bytes
from fulcrum.core.masking.member_protocol import MemberProtocol
from fulcrum.core.masking.member_replies import MemberReplies
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.messages.membership import group_name_of, seals_answers
from fulcrum.core.messages.model_message import input_digest_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.figures import first_round
from fulcrum.core.plan.keys import load_private_key
from fulcrum.core.silo.preconditions import check_aggregation, check_silos_draw_noise
from fulcrum.core.silo.release_parameters import checked_round, release_parameters_of
from fulcrum.core.silo.releasing_silo import ReleasingSilo
from fulcrum.core.silo.site import Site, once_free, record_name
from fulcrum.core.silo.site_records import own_record
from fulcrum.core.training.assignment import Training
from fulcrum.errors import ExchangeError, PolicyError, ReleaseError


class MaskedStation(ReleasingSilo):
    """A silo whose server receives masked sums: releases, and masks every release.

    Neighbouring datasets differ in the silo's whole dataset. Guarantees in deployment, against a server that sends any
    requests and cooperates with the plan's colluders:

    - at most one masked vector leaves the silo in a round, and its content is in the ledger, charged, before;
    - the vector is unmasked only in a sum of all members of the group, or of all but the plan's dropouts, and of at
      least as many silos as the policy's smallest region. The plan carries the keys of all members in the sum, and all
      of them received the same round, the same model and the same settings beside the model;
    - the vector is in a single sum: no second sum of the round is unmasked, not even after a restart. The difference
      of two sums would reveal the release of a single silo;
    - the policy is read at every stage. A stricter rule holds at once, and a smaller `smallest_region` from the next
      begun round on. The silo answers no request while the policy cannot be read or forbids the plan.

    With `sealed`, and outer aggregators in the plan, every answer leaves sealed to the region's key in the plan, so a
    server learns the sum of the region by no request. Without `sealed` a plan with a target on an outer tier is
    refused.

    Args:
        site: The silo's own folder, with ledger and record of masked rounds.
        training: The way to train, which turns every failure of the user's code into `TrainingFailedError`.
        sealed: True on an engine with an aggregator in every region, which opens sealed answers.

    Raises:
        FulcrumError: The plan or the policy does not let this silo take part.
    """

    _masks = True

    def __init__(self, site: Site, training: Training, *, sealed: bool = False) -> None:
        super().__init__(site, training)
        plan, silo = site.plan, site.settings.name
        check_silos_draw_noise(plan)
        check_aggregation(plan, "masked", sealed=sealed)
        self._sealer = AnswerSealer(plan, silo) if sealed and seals_answers(plan) else None
        self._least_in_a_sum()
        check_sheltered(plan, silo)
        self._name = group_name_of(plan, silo)
        self._group = group_of(plan, self._name, first_round(plan, plan.index_of(silo)))
        self._key = load_private_key(plan, silo, site.key, "signing")

    def own_request(self, requests: Iterable[bytes]) -> bytes:
        """Returns the request for this silo's group; a server that does not know the silos yet sends all requests."""
        for request in requests:
            if request_from_bytes(request).session.group == self._name:
                return request
        raise ExchangeError("mask.request-missing", group=self._name)

    @staticmethod
    def asks_for_update(request: bytes) -> bool:
        """Returns True for a request that asks for an update; such a request is for `masked_update`."""
        return isinstance(request_from_bytes(request), Inbox)

    def answer(self, request: bytes, *, settings: str = "") -> bytes:
        """Returns the answer to a request that asks for no update.

        Args:
            request: The bytes of the request.
            settings: The digest of the settings that this silo trains by and no message of the round holds, such as
                the settings of a run; see `MemberProtocol`.
        """
        message = request_from_bytes(request)
        group = self._group_of_round(message.session.round_number)
        rounds = self._released_rounds(message) if group.deployed else None
        with self._masking(group, settings) as masking:
            if rounds is not None:
                self._check_agree(message, rounds, masking)
            return self._leave(masking.answer(request), message.session.round_number)

    def masked_update(
        self, request: bytes, model: Mapping[str, FloatArray], *, config_digest: str = "", settings: str = ""
    ) -> bytes:
        """Trains on a model and returns the masked release; a second call masks the same release again.

        A refusal depends on request, model, `config_digest`, plan, policy, ledger and record of masked rounds, and
        never on the silo's data.

        Args:
            request: The bytes of the request.
            model: The model that came with the request.
            config_digest: The digest of everything else that came with the request and that training receives.
            settings: The digest of further settings, as in `answer`.
        """
        group = self._group_of_round(request_from_bytes(request).session.round_number)
        with self._masking(group, settings) as masking:
            session = masking.check_inbox(request)
        if input_digest_of(model, config_digest) != session.input_digest:
            raise ExchangeError("mask.model-differs", round_number=session.round_number)
        release = self._release(model, session.round_number, input_digest_of(model, config_digest, settings))
        with self._masking(group, settings) as masking:
            masked = masking.masked_input(request, whole_numbers(release, group))
        return self._leave(masked, session.round_number)

    def _leave(self, answer: bytes, round_number: int) -> bytes:
        """Returns an answer or a decline in the form that leaves the silo."""
        return answer if self._sealer is None else self._sealer.seal(answer, round_number)

    def _group_of_round(self, round_number: int) -> Group:
        """Returns the group that the signed plan states for a round; the server has no influence on the members.

        A round without this silo, or outside of the plan, is refused: the silo answers no stage of it.
        """
        plan, group = self._site.plan, self._group
        if group.round_number not in (None, round_number):
            number = checked_round(plan, round_number, self._site.settings.name)
            self._group = group = group_of(plan, self._name, number)
        return group

    def _released_rounds(self, request: Request) -> set[int]:
        """Returns the released rounds of a request's plan: without its ledger the silo answers no stage."""
        with self._ledger() as ledger:
            plan = request.session.plan_digest
            return {entry.round_number for entry in ledger.entries() if entry.plan_digest == plan}

    def _check_agree(self, request: Request, rounds: set[int], masking: MemberReplies) -> None:
        """Raises `ReleaseError` if ledger and record of masked rounds contradict: a file is new, or an old copy.

        A round enters the record before its release enters the ledger, and is unmasked after the release. A site that
        went on with an old copy could unmask a second sum of a round, or release a round again with new noise.
        """
        session = request.session
        released, number = session.round_number in rounds, session.round_number
        if isinstance(request, Begin) and released and not masking.has_begun(session):
            raise ReleaseError("mask.record-behind-ledger", round_number=number)
        if isinstance(request, Begin) and (lost := masking.unmasked_rounds(session) - rounds):
            raise ReleaseError("mask.ledger-behind-record", round_number=min(lost), silo=self._site.settings.name)
        if isinstance(request, Survivors | Attested) and not released:
            raise ReleaseError("mask.round-not-released", round_number=number, silo=self._site.settings.name)

    def _masking(self, group: Group, settings: str = "") -> MemberReplies:
        """Opens the silo's record of masked rounds, which must exist in deployment: a new record would forget sums."""
        site, silo = self._site, self._site.settings.name

        def open_record() -> MemberReplies:
            if site.settings.purpose == "research":
                record = self._research_record()
            else:
                record = own_record(site, record_name(silo), lambda path: MemberStore.open(path, silo=silo))
            try:
                # Read now: the policy may have changed during the wait.
                return MemberReplies(record, self._member(group, settings))
            except BaseException:
                record.close()
                raise

        return once_free(open_record)

    def _research_record(self) -> MemberStore:
        """Opens the record of a research plan, or makes a new record: research draws its noise from a public seed."""
        silo = self._site.settings.name
        return MemberStore.open(self._site.state / record_name(silo), silo=silo, create=True)

    def _member(self, group: Group, settings: str) -> MemberProtocol:
        """Returns this silo as a member of its group, under the policy that is on disk now."""
        silo, least = self._site.settings.name, self._least_in_a_sum()
        return MemberProtocol(group=group, silo=silo, key=self._key, least=least, settings=settings)

    def _least_in_a_sum(self) -> int:
        """Returns the policy's least number of silos in a sum; checks the plan against the policy on disk first."""
        site, policy = self._site, self._site.policy
        if site.settings.purpose == "deployment":
            plan, silo = site.plan, site.settings.name
            release_parameters_of(plan, silo, first_round(plan, plan.index_of(silo)), policy=policy)
        elif policy is not None:
            raise PolicyError("policy.plan-for-research")
        return 1 if policy is None else policy.smallest_region


def whole_numbers(release: Release, group: Group) -> npt.NDArray[np.int64]:
    """Returns the integers to be masked: a deployed release itself, or a research release in steps of 2^-40 C."""
    if group.deployed:
        if release.step != group.step:
            raise ReleaseError("mask.release-lattice", silo=release.silo, group=group.name)
        return release.values
    return np.rint(release.values / group.step).astype(np.int64)
