import inspect
import math

import msgspec
import numpy as np
import pytest
from error_codes import coded
from hypothesis import given, settings
from hypothesis import strategies as st

import fulcrum
from fulcrum import (
    Coupling,
    Federation,
    ForeignPlanError,
    ParameterError,
    StorageError,
    UnreachableTargetError,
    plan,
    read_plan,
    verify,
)
from fulcrum.planning.content.plan_figures import with_uniform_noise
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.plan import check_federation
from fulcrum.planning.planner import make_plan
from fulcrum.planning.theory.calibration import epsilon_of
from fulcrum.readers.profiles import profile

SEVERE = {"rounds": 10, "delta": 1e-5, "accountant": "renyi"}


def test_the_papers_table_of_epsilon_by_region():
    optimal = plan("severe", epsilon=0.99, **SEVERE)
    uniform = plan("severe", epsilon=0.99, allocation="uniform", **SEVERE)
    first = [0, 60, 80, 88, 92]
    assert optimal.epsilon_above == pytest.approx(np.full(96, 0.99), abs=1e-9)
    assert uniform.epsilon_above[first] == pytest.approx([0.229, 0.414, 0.680, 0.990, 0.990], abs=5e-4)
    assert uniform.epsilon_above.mean() == pytest.approx(0.368, abs=5e-4)
    assert optimal.epsilon_inside[first] == pytest.approx([10.06, 5.25, 3.12, 2.12, 2.12], abs=5e-3)
    assert uniform.epsilon_inside == pytest.approx(np.full(96, 2.12), abs=5e-3)


def test_saving_is_dispersion_to_machine_precision_and_free_of_the_target():
    for settings_ in (SEVERE | {"epsilon": 0.99}, {"rounds": 3, "epsilon": 7.0, "delta": 1e-8}):
        made = plan("severe", **settings_)
        assert made.saving == pytest.approx(0.791666666666667, abs=1e-12)
        assert made.dispersion == pytest.approx(made.saving, abs=1e-12)


def test_both_observers_at_once():
    made = plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 8.0})
    assert made.epsilon_above.max() <= 1.0
    assert made.epsilon_inside.max() <= 8.0
    assert made.epsilon_inside.max() == pytest.approx(8.0, rel=1e-9)
    alone = plan("severe", rounds=10, epsilon=1.0)
    assert alone.epsilon_inside.max() > 8.0
    assert alone.noise_budget < made.noise_budget < alone.uniform_noise_budget


def test_a_target_on_the_global_sum_alone_has_nothing_to_distribute():
    made = plan("severe", rounds=10, epsilon={"federation": 1.0})
    assert made.saving == pytest.approx(0, abs=1e-12)
    assert np.ptp(made.noise_multiplier) == pytest.approx(0, abs=1e-12)
    assert made.epsilon("federation").max() == pytest.approx(1.0, rel=1e-9)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.lists(st.floats(1, 1e4), min_size=1, max_size=5), min_size=1, max_size=5),
    epsilon=st.floats(0.05, 30),
    inside=st.one_of(st.none(), st.floats(0.5, 50)),
    colluders=st.integers(0, 2),
    accountant=st.sampled_from(fulcrum.ACCOUNTANTS),
)
def test_no_silo_ever_gets_more_than_its_target(sizes, epsilon, inside, colluders, accountant):
    federation = Federation.from_sizes({f"r{k}": silos for k, silos in enumerate(sizes)})
    target = {"region": epsilon} if inside is None else {"region": epsilon, "aggregator": inside}
    made = plan(federation, rounds=10, epsilon=target, colluders=colluders, accountant=accountant)
    assert made.epsilon_above.max() <= epsilon
    if inside is not None:
        assert made.epsilon_inside.max() <= inside
    assert all(check.holds for check in fulcrum.verify(made.content()))


def test_noise_of_an_aggregator_conceals_above_and_not_inside():
    silo = plan("severe", rounds=10, epsilon=1.0)
    made = plan("severe", rounds=10, epsilon=1.0, injection="aggregator", colluders=3)
    assert made.noise_budget == pytest.approx(silo.noise_budget, rel=1e-12)
    assert made.epsilon_above == pytest.approx(silo.epsilon_above, rel=1e-9)
    assert (made.noise_multiplier == 0).all()
    assert np.isinf(made.epsilon_inside).all()
    assert made.epsilon(colluders=3) == pytest.approx(made.epsilon_above)
    with pytest.raises(UnreachableTargetError, check=coded("plan.updates-bare", observer="aggregator")):
        plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 8.0}, injection="aggregator")


def test_colluders_are_provisioned_for():
    bare = plan("severe", rounds=10, epsilon=1.0)
    made = plan("severe", rounds=10, epsilon=1.0, colluders=2)
    assert bare.epsilon(colluders=2).max() > 1.0
    assert made.epsilon(colluders=2).max() <= 1.0
    assert made.epsilon(colluders=0).max() < 1.0
    least = plan("isic-hospital", rounds=10, epsilon=1.0, colluders=1, allocation="least-under-collusion")
    constant = plan("isic-hospital", rounds=10, epsilon=1.0, colluders=1)
    assert least.noise_budget < constant.noise_budget
    assert least.epsilon_above.max() <= 1.0


def test_a_plan_survives_its_file(tmp_path):
    nested = Federation.from_sizes(
        {"north": {"Łódź": 120, 'metz "1"': 80}, "south": [300.5], "east": [90]},
        outer={"country": {"france": ["north", "south"], "poland": ["east"]}},
        name="nested",
    )
    for settings_ in (
        {"epsilon": {"region": 1.0, "country": 0.7, "aggregator": 9.0}},
        {"information": 1.2, "floor": {"north": 0.1, "south": 0.0, "east": 0.3}, "parameters": 66},
        {"budget": 3.0, "colluders": 1},
        {"epsilon": 1.0, "injection": "aggregator"},
        {"epsilon": 1.0, "allocation": "misallocated", "seed": 4, "clip_norm": 2.5},
        {"information": 2.2, "floor": Coupling(20), "bound": "capacity"},
    ):
        made = plan(nested, rounds=4, **settings_)
        fulcrum.save_plan(made, tmp_path / "plan.json")
        again = read_plan(tmp_path / "plan.json")
        assert again.digest == made.digest
        assert (again.noise_multiplier == made.noise_multiplier).all()
        assert (again.epsilon_above == made.epsilon_above).all()
        assert again.federation.digest == nested.digest
        assert again.content() == msgspec.structs.replace(made.content(), digest=made.digest)


def test_a_plan_that_was_read_keeps_the_digest_of_its_file(tmp_path, monkeypatch):
    made = plan("mild", rounds=1, epsilon=1.0, colluders=np.int64(1), seed=np.int64(3))
    fulcrum.save_plan(made, tmp_path / "plan.json")
    digest = made.digest
    monkeypatch.setattr("fulcrum.planning.content.plan_document.package_version", lambda: "9.9.9")
    assert read_plan(tmp_path / "plan.json").digest == digest


def test_a_plan_of_another_federation_is_refused():
    made = plan("mild", rounds=1, epsilon=1.0)
    check_federation(made, fulcrum.read_federation("mild"))
    with pytest.raises(ForeignPlanError, check=coded("plan.federation-foreign")):
        check_federation(made, fulcrum.read_federation("severe"))


def test_saving_never_leaves_half_a_file(tmp_path):
    path = tmp_path / "plan.json"
    made = plan("mild", rounds=1, epsilon=1.0)
    fulcrum.save_plan(made, path)
    before = path.read_bytes()
    with pytest.raises(StorageError, check=coded("storage.write-failed")):
        fulcrum.save_plan(made, tmp_path / "missing" / "plan.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, check=coded("storage.target-not-a-file")):
        fulcrum.save_plan(made, tmp_path / "folder")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "plan.json"]


def test_statement_and_assumptions_name_both_observers():
    made = plan("severe", epsilon=0.99, **SEVERE)
    assert (
        "epsilon 0.99 against anyone outside its region who sees the sums of its region, and"
        in fulcrum.guarantee_of(made).statement
    )
    assert "epsilon 10.0583 against whoever sees its own updates" in fulcrum.guarantee_of(made).statement
    whole = plan("severe", rounds=10, epsilon={"federation": 1.0}, colluders=2)
    assert "epsilon 1 against anyone outside the federation who sees the global sum and no sum below it" in (
        fulcrum.guarantee_of(whole).statement
    )
    assert fulcrum.guarantee_of(whole).statement.endswith(", even if up to 2 silos of each region collude.")
    injected = plan("severe", rounds=10, epsilon=1.0, injection="aggregator")
    assert "no guarantee against whoever sees its own updates" in fulcrum.guarantee_of(injected).statement
    assert any("none can collude it away" in line for line in fulcrum.guarantee_of(injected).assumptions)
    assert any("trusted to see" in line for line in fulcrum.guarantee_of(made).assumptions)
    both = plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 8.0})
    assert any("may be curious" in line for line in fulcrum.guarantee_of(both).assumptions)


def test_the_observer_of_an_outer_tier_sees_no_sum_below_it():
    nested = Federation.from_sizes({"a": [5, 3], "b": [4], "c": [7]}, outer={"country": {"x": ["a", "b"], "y": ["c"]}})
    made = plan(nested, rounds=3, epsilon={"region": 2.0, "country": 1.0})
    said = "epsilon 1 against anyone outside its country who sees the sums of its country and no sum below them"
    assert said in fulcrum.guarantee_of(made).statement


def test_a_fellow_member_knows_its_own_noise_and_the_words_leave_it_out():
    made = plan(Federation.from_sizes({"r": [1, 1, 1, 1]}), rounds=10, epsilon=1.0)
    # Seen by one of the other three, who subtracts its own noise.
    assert made.epsilon(colluders=1).max() == pytest.approx(1.17, abs=0.01)
    assert "against anyone outside its region who sees" in fulcrum.guarantee_of(made).statement
    assert (
        "no silo of a region helps an observer of its sums, is one, or leaves out its noise: it conceals the others by its noise"
        in (fulcrum.guarantee_of(made).assumptions)
    )
    covered = plan(made.federation, rounds=10, epsilon=1.0, colluders=1)
    assert covered.epsilon_above.max() <= 1.0
    assert (
        "up to 1 silo of each region helps an observer, is one, or leaves out its noise"
        in fulcrum.guarantee_of(covered).assumptions
    )


def test_dropouts_and_colluders_are_counted_together_and_named_apart():
    both = plan("severe", rounds=10, epsilon=1.0, colluders=1, dropouts=2)
    alone = plan("severe", rounds=10, epsilon=1.0, colluders=3)
    assert (both.noise_multiplier == alone.noise_multiplier).all()
    assert (both.colluders, both.dropouts) == (1, 2)
    assert fulcrum.guarantee_of(both).statement.endswith(
        ", even if up to 1 silo of each region colludes and up to 2 others of each region are missing from a sum."
    )
    lost = plan("severe", rounds=10, epsilon=1.0, dropouts=1)
    assert fulcrum.guarantee_of(lost).statement.endswith(", even if up to 1 silo of each region is missing from a sum.")
    assert any(
        "up to 1 silo of each region may miss a round" in line for line in fulcrum.guarantee_of(lost).assumptions
    )
    assert lost.epsilon(dropouts=0).max() < 1.0 < lost.epsilon(colluders=1).max()
    assert any("--dropouts 2 or --colluders 1" in advice.text for advice in fulcrum.advice_on(lost))


def test_where_the_optimum_is_not_the_least_it_says_so():
    outer = plan("severe", rounds=10, epsilon={"region": 1.0, "federation": 0.3}, colluders=1)
    assert [advice.kind for advice in fulcrum.advice_on(outer)].count("coalitions") == 1
    for target in ({"epsilon": 1.0, "colluders": 1}, {"epsilon": {"region": 1.0, "federation": 0.3}}):
        assert "coalitions" not in [advice.kind for advice in fulcrum.advice_on(plan("severe", rounds=10, **target))]


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_every_plan_says_what_it_rests_on_and_what_is_public(purpose):
    federation = Federation.from_columns(
        silo=["a", "b"], records=np.array([7.0, 11.0]), tiers={"region": ["r", "r"]}, epsilon=np.array([0.5, math.nan])
    )
    made = plan(federation, rounds=2, epsilon={"region": 1.0, "aggregator": 4.0}, purpose=purpose, parameters=3)
    rests_on = " ".join(fulcrum.guarantee_of(made).assumptions)
    assert "observers are passive" in rests_on
    assert "sizes are public" in rests_on
    assert "datasets of silos are disjoint" in rests_on
    content = made.content()
    assert "its declared size kept" in content.guarantee.adjacency
    assert [(entry.records, entry.preference) for entry in content.silos] == [(7, 0.5), (11, None)]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"rounds": 0, "epsilon": 1.0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 1}, "no target was given. Give one of epsilon, information or budget"),
        ({"rounds": 1, "epsilon": 1.0, "delta": 2.0}, "delta must be in (0, 1), got 2.0"),
        ({"rounds": 1, "epsilon": -1.0}, "epsilon for 'region' must be a finite number above 0, got -1.0"),
        ({"rounds": 1, "epsilon": math.inf}, "epsilon for 'region' must be a finite number above 0, got inf"),
        (
            {"rounds": 1, "epsilon": {"regoin": 1.0}},
            "mild has no tier 'regoin' for an epsilon target. Known observers: aggregator, region, federation. Did you mean 'region'?",
        ),
        (
            {"rounds": 1, "information": 0.8, "floor": 0.85},
            "information=0.8 nats must be above the information floor 0.85: no noise lowers the information floor. "
            "Set information above 0.85",
        ),
        ({"rounds": 1, "information": -1.0}, "information must be above 0 and at most 1e+06 nats, got -1.0"),
        ({"rounds": 1, "budget": 0.0}, "budget must be from 1e-100 to 1e+100, got 0.0"),
        ({"rounds": 1, "budget": 1e-300}, "budget must be from 1e-100 to 1e+100, got 1e-300"),
        (
            {"rounds": 1, "budget": 1.0, "epsilon": 1.0},
            "a budget replaces a target, so budget cannot be combined with epsilon or information. "
            "Give budget alone, or leave budget out",
        ),
        ({"rounds": 1, "epsilon": 1.0, "clip_norm": 0.0}, "clip_norm must be 'auto' or from 1e-50 to 1e+50, got 0.0"),
        (
            {"rounds": 1, "epsilon": 1.0, "parameters": 0},
            "parameters must be a whole number from 1 to 1,000,000,000,000,000, got 0",
        ),
        (
            {"rounds": 1, "epsilon": 1.0, "injection": "silos"},
            "unknown injection 'silos'. Known: silo, aggregator. Did you mean 'silo'?",
        ),
        (
            {"rounds": 1, "epsilon": 1.0, "floor": [0.1, 0.2]},
            "floor must be one number, or one number for each of 96 silos, got an array of shape (2,)",
        ),
        ({"rounds": 1, "epsilon": 1.0, "floor": -0.1}, "floor must be finite and at least 0 nats for every silo"),
        (
            {"rounds": 1, "epsilon": 1.0, "floor": {"region-1": 0.1}},
            "floor has no value for region 'region-2'. Give a value for each region",
        ),
        (
            {"rounds": 1, "epsilon": 1.0, "floor": {"regoin-1": 0.1}},
            "floor has a value for region 'regoin-1', and the federation has no region of this name. "
            "Known: region-1, region-2, region-3, region-4, region-5. Did you mean 'region-1'?",
        ),
        ({"rounds": 1, "epsilon": 1.0, "colluders": -1}, "colluders must be a whole number of at least 0, got -1"),
        ({"rounds": 1, "epsilon": 1.0, "dropouts": 0.5}, "dropouts must be a whole number of at least 0, got 0.5"),
        (
            {"rounds": 1, "epsilon": 1.0, "colluders": -1, "injection": "aggregator"},
            "colluders must be a whole number of at least 0, got -1",
        ),
        ({"rounds": 1, "epsilon": 1.0, "seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"rounds": 1, "epsilon": 1e308}, "epsilon must be from 1e-12 to 1e+12, or inf, got 1e+308"),
        (
            {"rounds": 1, "epsilon": 1.0, "floor": "low"},
            "floor must be a number, one number for each silo, a mapping from region to number, or a Coupling, "
            "got 'low'",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, line):
    with pytest.raises((ParameterError, UnreachableTargetError)) as caught:
        plan("mild", **arguments)
    assert str(caught.value) == line


def test_many_silos_are_planned_without_overspending():
    rng = np.random.default_rng(5)
    federation = Federation(
        name="many",
        sizes=rng.lognormal(5, 0.6, 60_000),
        tiers=(fulcrum.Tier(name="region", nodes=tuple(map(str, range(300))), parent_of=np.arange(60_000) % 300),),
    )
    made = plan(federation, rounds=10, epsilon={"region": 1.0, "aggregator": 5.0})
    assert made.epsilon_above.max() <= 1.0
    assert made.epsilon_inside.max() <= 5.0


@pytest.mark.parametrize(
    "made",
    [
        plan("severe", rounds=10, epsilon=1.0, colluders=2),
        plan("severe", rounds=10, epsilon=1.0, injection="aggregator"),
        make_plan(
            profile("mild"),
            Target(rounds=5, epsilon={"region": 1.0}),
            Execution(),
            Past(spent={"region": np.linspace(0, 0.01, 96), "silo": np.full(96, 0.02)}),
        ),
    ],
    ids=["colluders", "aggregator", "spent"],
)
def test_the_worst_epsilon_is_that_of_the_worst_silo(made):
    for tier in (None, "silo", "region", "federation"):
        assert made.worst_epsilon(tier) == pytest.approx(made.epsilon(tier).max(), rel=1e-9)


@pytest.mark.parametrize("injection", ["silo", "aggregator"])
def test_uniform_noise_keeps_the_same_promise_as_a_plan_made_with_it(injection):
    made = plan("severe", rounds=10, epsilon=1.0, injection=injection)
    uniform, planned = (
        with_uniform_noise(made),
        plan("severe", rounds=10, epsilon=1.0, injection=injection, allocation="uniform"),
    )
    assert uniform.noise_variance == pytest.approx(planned.noise_variance)
    assert uniform.noise_budget == pytest.approx(made.uniform_noise_budget)
    assert uniform.digest == planned.digest


@pytest.mark.parametrize("heavy", [1e7, 1e8, 1e9])
@pytest.mark.parametrize("missing", [{"colluders": 1}, {"dropouts": 1}])
def test_a_light_silo_keeps_its_preference_without_the_noise_of_a_heavy_one(heavy, missing):
    federation = Federation.from_columns(
        silo=["a", "b", "c", "d"],
        records=np.array([heavy, 1.0, 1.0, 1.0]),
        tiers={"region": ["r"] * 4},
        epsilon=np.array([np.nan, 0.1, 0.1, 0.1]),
    )
    made = plan(federation, rounds=10, epsilon=5.0, **missing)
    present = np.sqrt(made.noise_variance[1:].sum()) / federation.weights[1]
    assert epsilon_of(present, rounds=10, delta=1e-5) == pytest.approx(0.1, rel=1e-9)
    assert epsilon_of(present, rounds=10, delta=1e-5) <= 0.1
    assert all(check.holds for check in verify(made))


def test_a_stated_delta_is_rounded_up_and_one_round_is_one():
    made = plan("isic-paper", rounds=1, epsilon=1.0, delta=1.23456449e-5)
    assert fulcrum.guarantee_of(made).statement.startswith("Over 1 round, at delta 1.23457e-05, ")
    spent = {"region": np.full(6, 1e-3), "silo": np.full(6, 1e-3)}
    target = Target(rounds=1, epsilon={"region": 1.0})
    after = make_plan(profile("isic-paper"), target, Execution(), Past(spent=spent))
    assert fulcrum.guarantee_of(after).statement.startswith(
        "Over this 1 round and all released before, at delta 1e-05, "
    )


def test_a_plan_made_from_nothing_has_no_past():
    keywords = set(inspect.signature(plan).parameters)
    assert not keywords & {"spent", "reserved", "reserve", "moved", "past"}
    made = plan("mild", rounds=5, epsilon=1.0)
    assert not made.continues_previous_plan
    spent = {"region": np.full(96, 0.01), "silo": np.full(96, 0.02)}
    after = make_plan(made.federation, made.target, Execution(), Past(spent=spent, moved={"region-1-1": "elsewhere"}))
    assert after.continues_previous_plan
    assert after.noise_budget > made.noise_budget
    assert after.moved == {"region-1-1": "elsewhere"}
    assert after.epsilon_above.max() <= 1.0 * (1 + 1e-12)
