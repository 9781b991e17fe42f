"""What a silo remembers of its masked rounds in research: each stage once, in a file that stays small."""

import pytest
from error_codes import coded
from groups import Round, inputs_of, names, private_key, refusal, region

from fulcrum.aggregation.masked_group import STAGES
from fulcrum.core.masking.masking_messages import Attested, request_from_bytes
from fulcrum.core.masking.member_protocol import MemberProtocol
from fulcrum.core.masking.member_replies import MemberReplies
from fulcrum.core.masking.scratch_store import ScratchStore
from fulcrum.errors import ExchangeError, StorageError

pytest.importorskip("cryptography", reason="needs the extra secure")

SILO = names(5)[0]


class ScratchRound(Round):
    """Every answer by a silo that is made anew, as in a process that was started for it."""

    def silo(self, name):
        member = MemberProtocol(group=self.group, silo=name, key=private_key(name))
        return MemberReplies(ScratchStore(self.folder / f"{name}.scratch"), member)


@pytest.fixture
def group():
    return region(5, dropouts=1, purpose="research", parameters=7)


def begun(group, folder, **options):
    return ScratchRound(group, inputs_of(group, seed=1), folder, **options)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_one_answer_whichever_process_is_asked(group, tmp_path, stage):
    masked = begun(group, tmp_path)
    request = masked.until(stage)[SILO]
    first = masked.answer(SILO, request)
    assert masked.answer(SILO, request) == first
    after = begun(group, tmp_path, basis="model-1").server.requests()[SILO]
    why = "has unmasked round 1" if stage == "unmasking" else "was begun on another model"
    assert why in refusal(masked.answer, SILO, after)


def test_a_round_that_was_unmasked_is_never_unmasked_again(group, tmp_path):
    first = begun(group, tmp_path)
    request = first.until("unmasking")[SILO]
    first.answer(SILO, request)
    signed = request_from_bytes(request).attestations[::-1]
    other = Attested(session=first.session, attestations=signed).to_bytes()
    with pytest.raises(ExchangeError, check=coded("mask.round-unmasked", round_number=1)):
        first.answer(SILO, other)
    second = begun(group, tmp_path, number=2)
    second.answer(SILO, second.server.requests()[SILO])
    for asked in (request, other, begun(group, tmp_path, attempt=2).server.requests()[SILO]):
        with pytest.raises(ExchangeError, check=coded("mask.round-unmasked", round_number=1)):
            first.answer(SILO, asked)


def test_the_file_does_not_grow_with_the_answers_of_rounds_that_are_over(group, tmp_path):
    file, sizes = tmp_path / f"{SILO}.scratch", []
    for number in range(1, 7):
        begun(group, tmp_path, number=number).run()
        sizes.append(file.stat().st_size)
    assert sizes[-1] - sizes[0] < 5 * 150, sizes  # a round's number, model and that it was unmasked


@pytest.mark.parametrize("damage", [b"", b"damaged", None])
def test_a_file_written_in_part_is_refused_in_one_line(group, tmp_path, damage):
    masked = begun(group, tmp_path)
    requests = masked.until("attestation")
    file = tmp_path / f"{SILO}.scratch"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) // 2) if damage is None else damage)
    with pytest.raises(StorageError, check=coded("mask.scratch-incomplete")):
        masked.answer(SILO, requests[SILO])
