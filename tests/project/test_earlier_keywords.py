"""Programs written for earlier keywords run for a version more, and are told the keywords in use."""

import inspect
import pickle
from functools import partial

import pytest

import fulcrum
from fulcrum import earlier_keywords

COST = fulcrum.Cost(shifts={"silo": 1.0, "region": 1.0})
PLAN = fulcrum.Allowance(plan_digest="plan-a", rounds=2, shifts={"silo": 9.0, "region": 9.0})


def takes(function, keyword):
    """Checks the keyword in the signature that a reader of the documentation sees."""
    return keyword in inspect.signature(function).parameters


@pytest.mark.parametrize("name", earlier_keywords._KEYWORDS)
def test_the_keywords_in_use_are_those_of_the_signatures(name):
    public = getattr(fulcrum, name)
    for method, keywords in earlier_keywords._KEYWORDS[name].items():
        function = getattr(public, method) if method else public
        for earlier, keyword in keywords.items():
            assert takes(function, keyword)
            assert not takes(function, earlier)


def test_a_ledger_takes_the_earlier_keyword_and_an_entry_has_the_earlier_attribute(tmp_path):
    with fulcrum.Ledger.open(tmp_path / "a.ledger", silo="a") as ledger:
        ledger.enter_plan(PLAN)
        record = partial(ledger.record, PLAN, round_number=1, payload=b"x", cost=COST)
        with pytest.deprecated_call(match=r"^Ledger\.record\(basis=\.\.\) goes with version 0\.3\. Use input_digest="):
            assert record(basis="model").fresh
        assert not record(input_digest="model").fresh
        with pytest.deprecated_call(match=r"^Ledger\.stored_payload\(basis=\.\.\) goes with version 0\.3"):
            assert ledger.stored_payload(PLAN, 1, basis="model") == b"x"
        with pytest.deprecated_call(match=r"^Ledger\.would_exceed\(basis=\.\.\) goes with version 0\.3"):
            assert ledger.would_exceed(PLAN, COST, 1, basis="model") is None
        with pytest.deprecated_call(match=r"^Entry\.basis goes with version 0\.3\. Use input_digest$"):
            assert ledger.entries()[0].basis == ledger.entries()[0].input_digest == "model"
        with pytest.deprecated_call(), pytest.raises(TypeError, match="input_digest"):
            record(basis="model", input_digest="model")


def test_a_release_takes_the_earlier_keyword():
    plan = fulcrum.plan("severe", rounds=2, epsilon=1.0)
    send = partial(fulcrum.release, [[0.5]], plan, "region-1-1", 1)
    with pytest.deprecated_call(match=r"^release\(basis=\.\.\) goes with version 0\.3\. Use input_digest=\.\.$"):
        earlier = send(noise=fulcrum.SeededNoise(seed=0), basis="model")
    assert earlier.to_bytes() == send(noise=fulcrum.SeededNoise(seed=0), input_digest="model").to_bytes()


def test_a_function_with_earlier_keywords_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(fulcrum.release)) is fulcrum.release
