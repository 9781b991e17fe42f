"""The observer inside a region has a name in targets; plans keep the stored key."""

import pytest

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.core.topology import SILO
from fulcrum.errors import ParameterError
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.inside_observer import INSIDE_OBSERVERS, inside_observer
from fulcrum.planning.planner import make_plan

BOTH = pytest.mark.parametrize(("aggregation", "name"), list(INSIDE_OBSERVERS.items()))
MADE = {"rounds": 10, "delta": 1e-5}
NESTED = fulcrum.Federation.from_sizes(
    {"north": [120, 80, 60, 50], "south": [300, 200, 100, 90]}, outer={"aggregator": {"all": ["north", "south"]}}
)


def earlier(federation, **settings):
    with pytest.warns(DeprecationWarning, match=r"epsilon=\{'silo': \.\.\} goes with version 0\.3\. Use epsilon="):
        return fulcrum.plan(federation, **settings)


@BOTH
def test_a_target_by_the_name_of_the_observer_is_the_plan_of_the_earlier_word(aggregation, name):
    settings = MADE | {"aggregation": aggregation}
    plan = fulcrum.plan("mild", epsilon={"region": 1.0, name: 1.5}, **settings)
    before = earlier("mild", epsilon={"region": 1.0, SILO: 1.5}, **settings)
    assert plan.epsilon_target == {"region": 1.0, SILO: 1.5}
    assert plan.content() == before.content()
    assert plan.digest == before.digest


@BOTH
def test_a_target_takes_the_name_too_and_its_plan_has_the_stored_key(aggregation, name):
    epsilon = {"region": 1.0, name: 1.5}
    target = fulcrum.Target(epsilon=epsilon, aggregation=aggregation, **MADE)
    plan = make_plan(fulcrum.read_federation("mild"), target, Execution())
    assert plan.digest == fulcrum.plan("mild", epsilon=epsilon, aggregation=aggregation, **MADE).digest
    assert set(target.requirement(plan.federation).multiplier) == {"region", SILO}


@BOTH
def test_the_observer_of_the_other_aggregation_is_refused_with_the_remedy(aggregation, name):
    [other] = set(INSIDE_OBSERVERS.values()) - {name}
    with pytest.raises(ParameterError) as refused:
        fulcrum.plan("mild", epsilon={"region": 1.0, other: 1.5}, aggregation=aggregation, **MADE)
    assert refused.value.code == "target.observer-of-other-aggregation"
    assert refused.value.details == {"observer": other, "aggregation": aggregation, "expected": name}
    assert refused.value.remedy == f"Use the observer {name!r}"


def test_two_targets_for_the_observer_inside_are_refused():
    with pytest.raises(ParameterError) as refused:
        fulcrum.plan("mild", epsilon={"aggregator": 1.0, SILO: 1.5}, **MADE)
    assert refused.value.code == "target.observer-repeated"


def test_the_warning_points_to_the_line_of_the_user():
    for make in (fulcrum.plan, fulcrum.compare):
        with pytest.warns(DeprecationWarning, match="Use epsilon=") as warned:
            make("mild", epsilon={"region": 1.0, SILO: 8.0}, **MADE)
        assert [warning.filename for warning in warned] == [__file__]


def test_a_comparison_takes_the_name_as_a_plan_does():
    [first, *_] = fulcrum.compare("mild", epsilon={"region": 1.0, "aggregator": 8.0}, **MADE)
    assert first.epsilon_inside_worst == pytest.approx(8.0, rel=1e-6) or first.epsilon_inside_worst < 8.0
    named = fulcrum.compare("mild", epsilon={"region": 1.0, "server+silo": 3.0}, aggregation="masked", **MADE)
    assert "one masked group" in [row.allocation for row in named]


def test_a_tier_of_the_same_name_stays_a_tier():
    assert inside_observer(NESTED, "trusted") == SILO
    plan = fulcrum.plan(
        NESTED, epsilon={"region": 1.0, "aggregator": 0.9, SILO: 8.0}, **MADE
    )  # and nothing is warned of
    assert plan.epsilon_target == {"region": 1.0, "aggregator": 0.9, SILO: 8.0}
    assert plan.epsilon("aggregator").max() <= 0.9
    fulcrum.save_plan(plan, "plan.json")
    assert fulcrum.read_plan("plan.json").target.requirement(NESTED).multiplier.keys() == plan.epsilon_target.keys()


@BOTH
def test_the_command_line_takes_both_words_and_notes_the_earlier(aggregation, name, capsys):
    words = ["plan", "mild", "--rounds", "10", "--aggregation", aggregation]
    assert run([*words, "--epsilon", f"region=1,{name}=1.5", "-o", "new.json"]) == 0
    assert "goes with" not in capsys.readouterr().err
    assert run([*words, "--epsilon", "region=1,silo=1.5", "-o", "earlier.json"]) == 0
    note = f"note: --epsilon silo=... goes with version 0.3. Use --epsilon {name}=...\n"
    assert note in capsys.readouterr().err
    assert run([*words, "--epsilon", "1", "--epsilon-inside", "1.5", "-o", "inside.json"]) == 0
    digests = {fulcrum.read_plan(file).digest for file in ("new.json", "earlier.json", "inside.json")}
    assert len(digests) == 1


def test_the_earlier_name_of_excluded_silos_answers_with_a_warning():
    requirement = fulcrum.Requirement(multiplier={"region": 1.0}, colluders=1, dropouts=2)
    with pytest.warns(DeprecationWarning, match=r"Use Requirement\.excluded_silos"):
        assert requirement.uncounted == requirement.excluded_silos == 3
    with pytest.raises(AttributeError, match="has no attribute 'counted'"):
        _ = requirement.counted


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
