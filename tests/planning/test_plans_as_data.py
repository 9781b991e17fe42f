"""A plan is data: to read, save, print or describe one solves for no noise and no weights."""

import pytest

import fulcrum
from fulcrum.planning import planner, replanning
from fulcrum.planning.comparisons import comparison
from fulcrum.planning.content import levers, plan_figures, region_merges
from fulcrum.planning.inputs import weighted_federation
from fulcrum.planning.theory import allocation, weights, weights_program
from fulcrum.views.terminal.plan_tables import show_plan

SOLVERS = [
    (planner, "make_plan"),
    (replanning, "variant"),
    (planner, "allocate"),
    (planner, "choose_weights"),
    (region_merges, "allocate"),
    (region_merges, "choose_weights"),
    (levers, "allocate"),
    (levers, "choose_weights"),
    (comparison, "allocate"),
    (weighted_federation, "weights_by"),
    (allocation, "_least_variance"),
    (allocation, "_least_variance_under_collusion"),
    (weights, "least_noise_of_one_tier"),
    (weights_program, "solve_weights"),
]


@pytest.fixture
def unsolvable(monkeypatch):
    """Has every function that solves for noise or weights fail."""

    def solved(*_, **__):
        raise AssertionError("something was solved for")

    def uniform(federation, requirement, allocation="optimal"):
        assert allocation == "uniform", "something was solved for"  # one multiplier for all is a maximum of ratios
        return allocate(federation, requirement, allocation)

    allocate = plan_figures.allocate

    def forbid():
        for module, name in SOLVERS:
            monkeypatch.setattr(module, name, solved)
        monkeypatch.setattr(plan_figures, "allocate", uniform)

    return forbid


EVERY_WAY = [
    {},
    {"recipe": "joint", "parameters": 66},
    {"dropouts": 1},
    {"weights": "equal"},
    {"weights": 0.5},
    {"server": "random-effects"},
    {"purpose": "deployment", "parameters": 66, "weights": "least-noise"},
    {"unit": "person", "silos_per_person": 2},
]


@pytest.mark.parametrize("settings", EVERY_WAY)
def test_a_plan_is_saved_read_described_and_printed_without_a_solver(tmp_path, unsolvable, capsys, settings):
    federation = "severe" if "unit" in settings else "consortium"
    made = fulcrum.plan(federation, rounds=10, epsilon=1.0, **settings)
    unsolvable()
    fulcrum.save_plan(made, tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    fulcrum.save_plan(read, tmp_path / "read.json")
    assert (tmp_path / "plan.json").read_bytes() == (tmp_path / "read.json").read_bytes()
    assert fulcrum.verified_plan(read).digest == made.digest
    assert fulcrum.guarantee_of(read).statement == fulcrum.guarantee_of(made).statement
    assert read.content().advice == [piece.text for piece in fulcrum.advice_on(made)]
    assert "<Plan of " in repr(read)
    for style in ("json", "csv"):  # the table also compares the plan with plans of other weights
        for plan in (made, read):
            show_plan(plan, None, style)
    assert "epsilon" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="solved for"):
        fulcrum.plan(federation, rounds=10, epsilon=1.0, **settings)


def test_a_changed_copy_has_advice_of_its_own():
    made = fulcrum.plan("consortium", rounds=10, epsilon=1.0, weights="equal")
    assert made.solved_advice is not None
    assert plan_figures.changed_copy(made, clip_norm=2.0).solved_advice is None


def test_the_advice_is_solved_for_with_a_plan_of_at_most_10_000_silos():
    settings = {"rounds": 3, "epsilon": 1.0}
    assert fulcrum.plan(fulcrum.Federation.from_sizes({"a": [1.0] * 10_000}), **settings).solved_advice is not None
    larger = fulcrum.plan(fulcrum.Federation.from_sizes({"a": [1.0] * 10_001}), **settings)
    assert larger.solved_advice is None
    assert fulcrum.advice_on(larger) == larger.solved_advice


def test_a_draft_has_the_content_of_the_plan_and_solves_for_the_advice_when_asked():
    settings = {"rounds": 10, "epsilon": 1.0, "weights": "equal"}
    draft = planner.draft_plan("consortium", **settings)
    assert draft.solved_advice is None
    assert draft.digest == fulcrum.plan("consortium", **settings).digest
    assert draft.solved_advice is not None
