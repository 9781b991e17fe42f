import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fulcrum
from fulcrum.core.plan.verification import verify
from fulcrum.planning.content.learning_signal import WEAK_SIGNAL, most_parameters, signal_to_noise
from fulcrum.planning.content.region_merges import best_merge
from fulcrum.planning.planner import plan
from fulcrum.planning.theory.prior import Coupling
from fulcrum.readers.editing import merge_regions
from fulcrum.readers.federation import Federation


def advice_kinds(made):
    return {advice.kind for advice in fulcrum.advice_on(made)}


def test_advice_warns_of_the_curious_aggregator_until_a_target_covers_it():
    assert "curious-aggregator" in advice_kinds(plan("severe", epsilon=0.99, rounds=10))
    assert "curious-aggregator" not in advice_kinds(
        plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 8.0})
    )
    assert fulcrum.advice_on(plan("severe", rounds=1, epsilon=1.0, injection="aggregator"))[0].warning


def test_advice_says_when_uniform_is_already_optimal():
    assert "balanced" in advice_kinds(plan("balanced", rounds=10, epsilon=1.0))
    assert "balanced" not in advice_kinds(plan("mild", rounds=10, epsilon=1.0))


@settings(max_examples=40)
@given(
    sizes=st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=4), min_size=2, max_size=5),
    inside=st.one_of(st.none(), st.floats(1, 20)),
    colluders=st.integers(0, 2),
)
def test_the_advised_merge_is_the_best_of_all_pairs(sizes, inside, colluders):
    def made(regions):
        federation = Federation.from_sizes({f"r{k}": silos for k, silos in enumerate(regions)})
        target = {"region": 1.0} if inside is None else {"region": 1.0, "aggregator": inside}
        return plan(federation, rounds=10, epsilon=target, colluders=colluders)

    now = made(sizes)
    merged = [
        made([*(silos for k, silos in enumerate(sizes) if k not in (i, j)), sizes[i] + sizes[j]]).noise_budget
        for i in range(len(sizes))
        for j in range(i)
    ]
    best = 1 - min(merged) / now.noise_budget
    found = best_merge(now)
    assert (0.0 if found is None else found.saving) == pytest.approx(max(best, 0.0), abs=2e-9)


RULES = (
    {"weights": "equal"},
    {"weights": "least-noise"},
    {"weights": 0.3},
    {"weights": "least-noise", "least_influence": 0.5},
    {"weights": "sizes", "server": "random-effects"},
    {"weights": "equal", "server": "random-effects", "least_influence": 0.25},
    {"recipe": "joint", "parameters": 34},
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(map(str, rule.values())))
@settings(max_examples=8, deadline=None)
@given(
    sizes=st.lists(st.lists(st.floats(1, 20), min_size=1, max_size=4), min_size=2, max_size=4),
    colluders=st.integers(0, 1),
)
def test_the_advised_merge_follows_the_weights_and_the_server(rule, sizes, colluders):
    def made(regions):
        federation = Federation.from_sizes({f"r{k}": silos for k, silos in enumerate(regions)})
        return plan(federation, rounds=10, epsilon=1.0, colluders=colluders, **rule)

    now = made(sizes)
    after = {
        (f"r{j}", f"r{i}"): made([*(silos for k, silos in enumerate(sizes) if k not in (i, j)), sizes[j] + sizes[i]])
        for i in range(len(sizes))
        for j in range(i)
    }
    saved = {regions: 1 - made_so.model_noise / now.model_noise for regions, made_so in after.items()}
    found = best_merge(now)
    assert (0.0 if found is None else found.saving) == pytest.approx(max(*saved.values(), 0.0), abs=1e-7)
    if found is not None:
        assert saved[found.regions] == pytest.approx(found.saving, abs=1e-7)


@pytest.mark.parametrize("server", ["sum", "random-effects"])
def test_weights_given_by_silo_stay_with_their_silos(server):
    federation = Federation.from_sizes({"a": [5, 3], "b": [4, 4, 9], "c": [7]})
    settings = {"rounds": 10, "epsilon": 1.0, "server": server, "weights": dict.fromkeys(federation.silo_names, 1.0)}
    settings["weights"]["b-3"] = 4.0
    made = plan(federation, **settings)
    found = best_merge(made)
    after = plan(merge_regions(federation, found.regions), **settings)
    assert found.saving == pytest.approx(1 - after.model_noise / made.model_noise, rel=1e-9)


def test_weights_that_merge_otherwise_change_the_advice():
    sizes = {"a": [100.0] * 3, "b": [100.0] * 3, "c": [5.0] * 9, "d": [5.0] * 9}
    federation = Federation.from_sizes(sizes)
    by_size = best_merge(plan(federation, rounds=10, epsilon=1.0))
    by_noise = best_merge(plan(federation, rounds=10, epsilon=1.0, weights="least-noise"))
    assert (by_size.regions, by_noise.regions) == (("a", "b"), ("c", "d"))


def test_merges_stay_within_one_parent():
    federation = Federation.from_sizes(
        {"a": [1.0], "b": [1.0], "c": [0.5]}, outer={"country": {"x": ["a", "c"], "y": ["b"]}}
    )
    assert best_merge(plan(federation, rounds=1, epsilon=1.0)).regions == ("a", "c")


def test_signal_to_noise_warns_when_the_model_will_not_train():
    head = plan("severe", rounds=10, epsilon=0.99, parameters=66)
    network = plan("severe", rounds=10, epsilon=0.99, parameters=500_000)
    # equal weights: sqrt(n T / d) / sigma for a uniform multiplier
    uniform = plan("severe", rounds=10, epsilon=0.99, allocation="uniform")
    expected = math.sqrt(96 * 10 / 66) / uniform.noise_multiplier[0]
    assert signal_to_noise(uniform, 66) == pytest.approx(expected, rel=1e-12)
    assert [a.warning for a in fulcrum.advice_on(head) if a.kind == "signal"] == [False]
    assert [a.warning for a in fulcrum.advice_on(network) if a.kind == "signal"] == [True]


def test_the_signal_is_held_against_the_noise_that_enters_the_model():
    by_size = plan("severe", rounds=10, epsilon=0.99, parameters=258)
    joint = plan("severe", rounds=10, epsilon=0.99, parameters=258, recipe="joint", least_influence=0)
    # regions of equal silos that count by size, and pooled by precision: noise in proportion to 5 and to 96² / sum m²
    ratio = 5 / (96**2 / (60**2 + 20**2 + 8**2 + 2 * 4**2))
    assert signal_to_noise(joint, 258) / signal_to_noise(by_size, 258) == pytest.approx(math.sqrt(ratio), rel=1e-9)
    said = next(advice.text for advice in fulcrum.advice_on(joint) if advice.kind == "signal")
    assert f"is at most {signal_to_noise(joint, 258):.2g}" in said


@pytest.mark.parametrize("recipe", ["paper", "joint"])
def test_the_most_parameters_are_those_at_which_the_signal_is_still_strong_enough(recipe):
    made = plan("severe", rounds=10, epsilon=0.3, parameters=500_000, recipe=recipe)
    most = most_parameters(made)
    assert signal_to_noise(made, most) >= WEAK_SIGNAL > signal_to_noise(made, most + 1)
    said = next(advice.text for advice in fulcrum.advice_on(made) if advice.kind == "signal")
    assert f"Train at most about {most:,} parameters" in said


def test_a_bound_that_says_nothing_is_called_so():
    informative = plan("severe", rounds=10, information=0.88, floor=0.85)
    vacuous = plan("severe", rounds=10, information=3.5, floor=0.85)
    assert [a.warning for a in fulcrum.advice_on(informative) if a.kind == "information"] == [False]
    assert [a.warning for a in fulcrum.advice_on(vacuous) if a.kind == "information"] == [True]


def test_delta_above_one_over_the_silos_is_a_warning():
    assert "delta" in advice_kinds(plan("severe", rounds=1, epsilon=1.0, delta=0.05))


def test_what_undoes_the_promise_is_said_first():
    warned = fulcrum.advice_on(
        plan("consortium", rounds=10, epsilon=1.0, delta=0.5, parameters=10, purpose="deployment", accountant="exact")
    )
    assert [advice.kind for advice in warned if advice.warning][:3] == ["accountant", "delta", "curious-aggregator"]
    proven = plan("consortium", rounds=10, epsilon=1.0, parameters=10, purpose="deployment")
    assert "accountant" not in {advice.kind for advice in fulcrum.advice_on(proven)}


@pytest.mark.parametrize("silos", [1, 2, 6, 7, 9, 10, 11, 60, 96, 100, 999, 1000, 1001])
def test_the_delta_that_is_advised_is_below_one_over_the_silos(silos):
    made = plan(Federation.from_sizes({"r": [1.0] * silos}), rounds=1, epsilon=1.0, delta=0.999999)
    text = [advice.text for advice in fulcrum.advice_on(made) if advice.kind == "delta"]
    assert bool(text) == (silos > 1)
    for line in text:
        most = float(line.removesuffix(".").split("at most ")[1])
        assert 0.5 / silos < most <= 1 / silos


def test_uniform_noise_is_called_optimal_only_where_no_allocation_needs_less():
    """Regions that are exposed alike may be promised different things, and then need different noise."""
    even = Federation.from_sizes({"a": [1.0] * 4, "b": [1.0] * 4})
    floors = {"a": 0.1, "b": 0.9}
    made = plan(even, rounds=10, information=1.0, floor=floors, allocation="uniform")
    assert made.dispersion == made.saving == 0
    assert made.noise_budget > 1.5 * plan(even, rounds=10, information=1.0, floor=floors).noise_budget
    assert "balanced" not in advice_kinds(made)
    assert "balanced" in advice_kinds(plan(even, rounds=10, epsilon=1.0, allocation="uniform"))


def test_information_without_a_floor_is_what_the_releases_add():
    bare = plan("severe", rounds=10, information=0.03)
    text = next(advice.text for advice in fulcrum.advice_on(bare) if advice.kind == "information")
    assert text.startswith("The releases reveal at most 0.03 nats of a silo's class concentration. No floor")
    assert not bare.floor_declared
    assert not plan("severe", rounds=10, epsilon=1.0).floor_declared
    for floor in (0.85, {f"region-{number}": float(number == 2) for number in range(1, 6)}, Coupling(20.0)):
        assert plan("severe", rounds=10, information=2.0, floor=floor).floor_declared
    alone = plan(Federation.from_sizes({"r": [1.0]}), rounds=10, information=2.0, floor=Coupling(20.0))
    assert alone.floor_declared, "a silo alone in its group has a floor of 0 that follows from the coupling"
    [check] = [check for check in verify(bare) if check.name == "information bound"]
    assert check.detail == "worst 0.03 nats, added by releases, promised 0.03"


def test_an_information_bound_is_rounded_up():
    made = plan("severe", rounds=10, information=0.88049, floor=0.85)
    text = next(advice.text for advice in fulcrum.advice_on(made) if advice.kind == "information")
    assert text.startswith("The information bound 0.881 nats")


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        ({"weights": "least-noise"}, 20_000),
        ({"recipe": "joint", "parameters": 34}, 20_000),
        ({"weights": 0.5}, 200),
        ({"weights": "least-noise", "epsilon": {"region": 1.0, "aggregator": 30.0}}, 200),
    ],
    ids=str,
)
def test_no_reader_waits_for_merges_of_very_many_silos(rule, most):
    def merge(silos):
        federation = Federation.from_sizes({"a": [1.0] * (silos - 60), "b": [1.0] * 40, "c": [1.0] * 20})
        return best_merge(plan(federation, **({"rounds": 10, "epsilon": 1.0} | rule)))

    assert merge(most) is not None
    assert merge(most + 1) is None


def _offered(made, kind):
    [found] = [advice for advice in fulcrum.advice_on(made) if advice.kind == kind]
    return found


def test_advice_offers_settings_that_do_what_it_says():
    settings = {"rounds": 10, "epsilon": {"region": 1.0}}
    made = plan("consortium", **settings)
    curious = _offered(made, "curious-aggregator")
    [(name, inside)] = curious.offers
    assert name == "epsilon_inside"
    held = plan("consortium", rounds=10, epsilon={"region": 1.0, "aggregator": inside})
    assert held.worst_epsilon("silo") <= inside < made.worst_epsilon("silo")
    assert [advice for advice in fulcrum.advice_on(held) if advice.kind == "curious-aggregator"] == []
    [(name, (one, other))] = _offered(made, "merge").offers
    assert name == "merge"
    assert plan(merge_regions(made.federation, [one, other]), **settings).noise_budget < made.noise_budget
    split = plan(Federation.from_sizes({"n": [100, 100, 300], "s": [200, 100, 100]}), **settings)
    for name, value in _offered(split, "dropout").offers:
        provided = plan(split.federation, **settings, **{name: value})
        assert provided.epsilon(dropouts=1, colluders=0).max() <= 1.0 + 1e-9
    wide = plan("consortium", rounds=10, epsilon=1.0, delta=0.1)
    [(name, delta)] = _offered(wide, "delta").offers
    assert (
        name,
        [a for a in fulcrum.advice_on(plan("consortium", rounds=10, epsilon=1.0, delta=delta)) if a.kind == name],
    ) == (
        "delta",
        [],
    )


def test_a_finding_stands_without_its_remedy():
    for advice in fulcrum.advice_on(plan("consortium", rounds=10, epsilon=1.0)):
        assert advice.text.startswith(advice.finding)
        assert "--" not in advice.finding
        assert advice.finding.endswith(".")
