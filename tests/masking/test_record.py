"""What a silo remembers of its masked rounds: on disk before an answer leaves, and lost by nothing that strikes."""

import os

import msgspec
import pytest
from error_codes import coded
from groups import Round, inputs_of, names, private_key, refusal, region

from fulcrum.aggregation.masked_group import STAGES
from fulcrum.core.masking.member_protocol import MemberProtocol
from fulcrum.core.masking.member_replies import MemberReplies
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.errors import ExchangeError, StorageError

SILO = "silo-000"


@pytest.fixture
def group():
    return region(5, dropouts=1)


@pytest.fixture
def masked(group, tmp_path):
    made = Round(group, inputs_of(group, seed=2), tmp_path)
    yield made
    made.close()


def reopened(masked):
    masked.close()
    return masked.silo(SILO)


@pytest.mark.parametrize("stage", STAGES)
def test_every_answer_is_synced_before_it_leaves(masked, stage, monkeypatch):
    requests = masked.until(stage)
    synced = []
    monkeypatch.setattr("fulcrum.core.store.commit_mark.sync_file", lambda *_, **__: synced.append(stage))
    masked.answer(SILO, requests[SILO])
    first = len(synced)
    assert first >= 3  # the journal, and the marks before and after the commit; SQLite syncs the rest
    masked.answer(SILO, requests[SILO])
    assert len(synced) == first, "the same answer again writes nothing"


@pytest.mark.parametrize("stage", STAGES)
def test_a_write_that_fails_answers_nothing_and_loses_nothing(masked, stage, monkeypatch):
    requests = masked.until(stage)
    masked.silo(SILO)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fulcrum.core.store.database.DatabaseFile._commit", full)
        told = refusal(masked.answer, SILO, requests[SILO], kind=StorageError)
    assert "No space left" in told
    with pytest.raises(StorageError, check=coded("storage.file-unusable")):
        masked.answer(SILO, requests[SILO])
    reopened(masked)
    answer = masked.answer(SILO, requests[SILO])
    assert masked.server.take(answer) == SILO
    masked.server.proceed()


def test_a_record_is_one_silos_and_is_not_made_anew(group, tmp_path):
    path = tmp_path / "record"
    MemberStore.open(path, silo=SILO, create=True).close()
    other = MemberProtocol(group=group, silo="silo-001", key=private_key("silo-001"))
    with pytest.raises(ExchangeError, check=coded("mask.record-of-other-silo")):
        MemberReplies.open(path, other)
    path.unlink()
    with pytest.raises(StorageError, check=coded("storage.file-lost")):
        MemberReplies.open(path, other)
    path.write_bytes(b"")
    with pytest.raises(StorageError, check=coded("storage.file-empty")):
        MemberReplies.open(path, other)
    path.write_bytes(os.urandom(5000))
    with pytest.raises(StorageError, check=coded("storage.file-kind")):
        MemberReplies.open(path, other)


def test_a_record_of_an_earlier_format_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "record"
    MemberStore.open(path, silo=SILO, create=True).close()
    older = path.read_bytes()[:60] + (2).to_bytes(4, "big") + path.read_bytes()[64:]
    path.write_bytes(older)
    assert refusal(MemberStore.open, path, silo=SILO, kind=StorageError) == (
        f"{path} is a silo's record of masked rounds of format 2, of an earlier Fulcrum. Finish its plan with the "
        "version that wrote it, or ask for a new plan and begin a new record"
    )
    assert path.read_bytes() == older


def secrets_of(silo, session):
    """The seed, the keys and the secrets of pairs that a silo's record holds of a round."""
    state = silo._record.state(session)[0]
    pairs = [secret for pair in state.pairs.values() for secret in (pair.masking, pair.sealing)]
    return {secret for secret in (state.seed, state.masking_key, state.sealing_key, *pairs) if secret}


def test_a_state_that_is_unmasked_leaves_nothing_of_the_one_before_in_any_file(masked, tmp_path):
    masked.until("input")
    secrets = secrets_of(masked.silo(SILO), masked.session)
    masked.close()
    record = MemberStore.open(tmp_path / f"{SILO}.masking", silo=SILO)
    state, _ = record.state(masked.session)
    record.store(state)  # the journal of the next write holds this one's secrets
    record.store(msgspec.structs.replace(state, seed=b"", masking_key=b"", sealing_key=b"", pairs={}), unmasked=True)
    files = list(tmp_path.glob(f"{SILO}.masking*"))
    assert len(files) == 2
    held = b"".join(path.read_bytes() for path in files)
    record.close()
    assert secrets
    assert not [secret for secret in secrets if secret in held]


def test_the_secrets_of_a_round_are_in_no_file_once_its_sum_is_unmasked(masked, tmp_path):
    secrets = set()
    for stage in STAGES:
        requests = masked.until(stage)
        masked.answer(SILO, requests[SILO])
        secrets |= secrets_of(masked.silo(SILO), masked.session)
    assert len(secrets) == 3 + 2 * 4
    for closed in (False, True):  # while the record is open too, and its journal beside it
        if closed:
            masked.close()
        files = list(tmp_path.glob(f"{SILO}.masking*"))
        assert len(files) == 2 - closed
        held = b"".join(path.read_bytes() for path in files)
        assert not [secret for secret in secrets if secret in held]


def test_a_silo_that_unmasked_a_sum_keeps_of_each_member_the_share_alone_that_it_gave_up(masked, tmp_path):
    """With the other share too, records of a threshold of silos would unmask the input of each member."""
    requests = masked.until("unmasking")
    before = masked.silo(SILO)._record.state(masked.session)[0]
    assert set(before.shares) == set(names(5))
    masked.answer(SILO, requests[SILO])
    after = masked.silo(SILO)._record.state(masked.session)[0]
    assert after.answers[:-1] == (b"",) * 4, "the masked input and the shares that were sent are gone too"
    assert (after.shares, after.roster) == ({}, {})
    held = b"".join(path.read_bytes() for path in tmp_path.glob(f"{SILO}.masking*"))
    for share in before.shares.values():  # no member is missing, so the shares of seeds were given up
        assert share.seed in held
        assert share.key not in held


def test_a_state_that_is_damaged_is_refused_in_one_line(masked, tmp_path):
    requests = masked.until("shares")
    masked.close()
    with MemberStore.open(tmp_path / f"{SILO}.masking", silo=SILO).working():
        pass
    record = MemberStore.open(tmp_path / f"{SILO}.masking", silo=SILO)
    record.write(("UPDATE round SET state = ?", (b"\x81\xa1x\x01",)))
    record.close()
    assert "is damaged" in refusal(masked.answer, SILO, requests[SILO], kind=StorageError)


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_record_of_an_earlier_fulcrum_amid_a_round_is_refused_and_begins_another_attempt(
    masked, tmp_path, asked_before
):
    requests = masked.until("input")
    if asked_before:
        masked.answer(SILO, requests[SILO])
    masked.close()
    record = MemberStore.open(tmp_path / f"{SILO}.masking", silo=SILO)
    state, _ = record.state(masked.session)
    record.store(msgspec.structs.replace(state, pairs={}, sent=b""))  # it kept its two keys, and no secrets of pairs
    record.close()
    told = refusal(masked.answer, SILO, requests[SILO])
    assert told.endswith(
        "in the middle of round 1, written by another version of Fulcrum. Begin another attempt of the round"
    )
    masked.close()
    again = Round(masked.group, masked.inputs, tmp_path, attempt=2)
    assert again.run().members == tuple(names(5))


def test_a_silo_that_attested_the_survivors_keeps_neither_its_seed_nor_the_secrets_of_its_pairs(masked):
    """With both, whoever takes the record before the sum is unmasked could take the masks off the silo's input."""
    requests = masked.until("attestation")
    before = masked.silo(SILO)._record.state(masked.session)[0]
    assert (len(before.seed), len(before.pairs)) == (32, 4)
    masked.answer(SILO, requests[SILO])
    after = masked.silo(SILO)._record.state(masked.session)[0]
    assert (after.seed, after.pairs) == (b"", {})
    assert set(after.shares) == set(before.shares), "the shares of others are needed until the sum is unmasked"


def test_an_attempt_that_a_silo_began_is_not_begun_a_second_time(group, tmp_path):
    """Round 2 erases the state of round 1. A second state of that attempt would have other masks for the same release."""
    first = Round(group, inputs_of(group, seed=2), tmp_path)
    request = first.server.requests()[SILO]
    answer = first.answer(SILO, request)
    assert first.answer(SILO, request) == answer, "the same request again gets the same answer"
    first.close()
    second = Round(group, inputs_of(group, seed=2), tmp_path, number=2)
    second.answer(SILO, second.server.requests()[SILO])
    second.close()
    assert "attempt 1 of round 1 is not after attempt 1" in refusal(first.answer, SILO, request)
    first.close()


def test_a_new_round_forgets_the_secrets_of_one_that_was_given_up(group, tmp_path):
    first = Round(group, inputs_of(group, seed=2), tmp_path)
    secrets = set()
    for stage in ("shares", "attestation"):
        first.until(stage)
        secrets |= secrets_of(first.silo(SILO), first.session)
    assert len(secrets) == 3 + 2 * 4
    first.close()
    second = Round(group, inputs_of(group, seed=2), tmp_path, number=2)
    second.answer(SILO, second.server.requests()[SILO])
    second.close()
    held = b"".join(path.read_bytes() for path in tmp_path.glob(f"{SILO}.masking*"))
    assert not [secret for secret in secrets if secret in held]
    again = Round(group, inputs_of(group, seed=2), tmp_path, attempt=2)
    assert again.run().members == tuple(names(5)), "and may still be begun again"
