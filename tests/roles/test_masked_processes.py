"""A silo asked by several processes at once: an engine that starts one for every message may do so."""

import multiprocessing
import time

import numpy as np
import pytest
from masked import MaskedWorld, changed, refused

from fulcrum.errors import FulcrumError

pytest.importorskip("cryptography", reason="needs the extra secure")

NORTH = ("caen", "lille", "metz", "nancy")


def slowly_at_random(model, assignment):
    """Trains so long that the others train as well, and never twice alike."""
    time.sleep(0.5)
    return {name: array + np.random.default_rng().normal(size=array.shape) for name, array in model.items()}


@pytest.fixture
def world(tmp_path):
    made = MaskedWorld(tmp_path, {"north": dict.fromkeys(NORTH, 100)}, dropouts=1, train=slowly_at_random)
    yield made
    made.check_ledgers()


def at_once(world, silo, requests):
    """What processes get that each ask a silo for one thing at the same moment; a refusal is a text."""
    world.restart()
    context = multiprocessing.get_context("fork")
    told, begin = context.Queue(), context.Barrier(len(requests))

    def ask(request):
        world.silo(silo)
        begin.wait(60)
        try:
            told.put(world.answer(silo, request))
        except FulcrumError as error:
            told.put(str(error))

    processes = [context.Process(target=ask, args=(request,)) for request in requests]
    for process in processes:
        process.start()
    found = [told.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return found


def test_processes_that_are_asked_for_one_input_send_one_vector_and_charge_one_release(world):
    requests = world.run(world.round(), until="input")
    first, *others = at_once(world, "caen", [requests["caen"]] * 3)
    assert isinstance(first, bytes)
    assert all(other == first for other in others)
    assert len(world.ledger("caen")) == 1


def test_processes_that_are_told_other_survivors_attest_one_list(world):
    requests = world.run(world.round(), until="attestation")
    lists = [requests["caen"], *(changed(requests["caen"], members=fewer(silo)) for silo in NORTH[1:])]
    answers = at_once(world, "caen", lists)
    assert sum(isinstance(answer, bytes) for answer in answers) == 1
    assert all("asked out of turn" in answer for answer in answers if isinstance(answer, str))


def fewer(silo):
    return tuple(other for other in NORTH if other != silo)


def test_an_input_whose_attempt_is_given_up_while_it_is_trained_does_not_leave(world):
    again = world.round(attempt=2).requests()["caen"]

    def begun_again(model, assignment):
        assert world.silo("caen").answer(again)
        return dict(model)

    requests = world.run(world.round(), until="input")
    world.train = begun_again
    world.restart()
    assert "than the round that the silo began" in refused(world.answer, "caen", requests["caen"])
    assert len(world.ledger("caen")) == 1, "it was released, and waits for the attempt that goes on"
