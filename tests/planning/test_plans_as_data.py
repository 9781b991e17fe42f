"""A plan is data: to read, save, print or describe one solves for no noise and no weights."""

import pytest

import fulcrum
from fulcrum.planning import planner
from fulcrum.planning.comparisons import comparison
from fulcrum.planning.content import advice
from fulcrum.planning.inputs import weighted_federation
from fulcrum.planning.theory import allocation, weights, weights_program

SOLVERS = [
    (planner, "make_plan"),
    (planner, "allocate"),
    (planner, "choose_weights"),
    (advice, "allocate"),
    (advice, "choose_weights"),
    (comparison, "allocate"),
    (weighted_federation, "weights_by"),
    (allocation, "_least_variance"),
    (weights, "least_noise_of_one_tier"),
    (weights_program, "solve_weights"),
]


@pytest.fixture
def unsolvable(monkeypatch):
    """Has every function that solves for noise or weights fail."""

    def solved(*_, **__):
        raise AssertionError("something was solved for")

    def forbid():
        for module, name in SOLVERS:
            monkeypatch.setattr(module, name, solved)

    return forbid


@pytest.mark.parametrize("settings", [{}, {"recipe": "joint", "parameters": 66}, {"dropouts": 1}])
def test_a_plan_that_was_written_once_is_read_saved_and_described_without_a_solver(tmp_path, unsolvable, settings):
    made = fulcrum.plan("consortium", rounds=10, epsilon=1.0, **settings)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    unsolvable()
    fulcrum.save_plan(made, tmp_path / "again.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    fulcrum.save_plan(read, tmp_path / "read.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "read.json").read_bytes()
    assert fulcrum.verified_plan(read).digest == made.digest
    assert fulcrum.guarantee_of(read).statement == fulcrum.guarantee_of(made).statement
    assert "Plan(" in repr(read)
    with pytest.raises(AssertionError, match="solved for"):
        fulcrum.plan("consortium", rounds=10, epsilon=1.0, **settings)
