"""Verification of what beyond noise a plan chooses: weights, clip share, server. Forged ones fail."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.plan.plan_file import content_digest, to_json
from fulcrum.core.plan.verification import verify
from fulcrum.core.silo.policy import Policy
from fulcrum.errors import PlanError, PolicyError
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.files.plan_from_file import plan_of, read_plan
from fulcrum.planning.planner import plan
from fulcrum.planning.theory.weights import region_shares
from fulcrum.readers.federation import Federation
from fulcrum.readers.profiles import lognormal_sizes, profile

NESTED = Federation.from_sizes(
    {"a": [5, 3, 1], "b": [4, 4], "c": [7], "d": [2, 2, 9]}, outer={"country": {"x": ["a", "b"], "y": ["c", "d"]}}
)
RULES = [
    "sizes",
    "equal",
    "least-noise",
    0.2,
    0.9,
    {f"{region}-{k}": 1 + k for region, m in (("a", 3), ("b", 2), ("c", 1), ("d", 3)) for k in range(1, m + 1)},
]
TARGETS = [
    {"region": 1.0},
    {"aggregator": 4.0},
    {"country": 1.0},
    {"federation": 1.0},
    {"region": 1.0, "aggregator": 4.0},
    {"region": 1.0, "country": 0.6},
    {"aggregator": 8.0, "region": 2.0, "country": 1.0, "federation": 0.6},
]


def failed(content):
    return {check.name for check in verify(content) if not check.holds}


def forged(made, weights):
    """The plan that was made honestly for other weights, and claims the rule of the first: all but the rule is true."""
    names = made.federation.silo_names.tolist()
    honest = plan(
        made.federation,
        rounds=made.rounds,
        epsilon={"aggregator" if tier == "silo" else tier: value for tier, value in made.epsilon_target.items()},
        weights=dict(zip(names, weights, strict=True)),
        colluders=made.colluders,
    ).content()
    settings = msgspec.structs.replace(honest.settings, weights=made.weights_rule)
    return msgspec.structs.replace(honest, settings=settings)


@pytest.mark.parametrize("least_influence", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("colluders", [0, 1])
@pytest.mark.parametrize("epsilon", TARGETS, ids=lambda target: "+".join(target))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "by silo" if isinstance(rule, dict) else str(rule))
def test_weights_of_every_rule_and_target_hold(rule, epsilon, colluders, least_influence):
    made = plan(NESTED, rounds=5, epsilon=epsilon, weights=rule, colluders=colluders, least_influence=least_influence)
    assert failed(made.content()) == set()


@pytest.mark.parametrize("epsilon", TARGETS, ids=lambda target: "+".join(target))
@pytest.mark.parametrize("rule", ["sizes", "equal", "least-noise", 0.2, 0.9])
def test_weights_that_are_not_those_of_the_rule_fail_and_nothing_else_does(rule, epsilon):
    made = plan(NESTED, rounds=5, epsilon=epsilon, weights=rule)
    shifted = made.weights.copy()
    shifted[[0, 5]] *= 1.05, 0.97
    assert failed(forged(made, made.weights)) == set()
    assert failed(forged(made, shifted / shifted.sum())) == {"weights"}


def test_weights_that_do_not_add_up_to_one_fail_whatever_their_rule():
    content = plan(NESTED, rounds=5, epsilon=1.0, weights=RULES[-1]).content()
    silos = [msgspec.structs.replace(entry, weight=entry.weight / 2) for entry in content.silos]
    assert "weights" in failed(msgspec.structs.replace(content, silos=silos))


def test_weights_by_budget_are_those_that_ask_the_same_of_all():
    made = plan(NESTED, rounds=5, budget=3.0, weights="least-noise")
    assert failed(made.content()) == set()


def test_a_region_quieter_than_promised_and_a_needless_mix_fail():
    made = plan(NESTED, rounds=5, epsilon=1.0, weights="least-noise", least_influence=0.5)
    assert made.influence_mix > 0
    content = made.content()
    for change in ({"least_influence": 0.9}, {"least_influence": 0.1}, {"influence_mix": 0.1}, {"influence_mix": 0.9}):
        settings = msgspec.structs.replace(content.settings, **change)
        assert "weights" in failed(msgspec.structs.replace(content, settings=settings)), change
    unmixed = msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, influence_mix=0.0))
    nodes = [msgspec.structs.replace(node, rule_weight=None) for node in unmixed.tiers["region"]]
    unmixed = msgspec.structs.replace(unmixed, tiers={**unmixed.tiers, "region": nodes})
    assert "weights" in failed(unmixed)


def test_sizes_that_stay_secret_give_no_weights_by_size():
    content = plan(NESTED, rounds=5, epsilon=1.0, weights="equal").content()
    silos = [msgspec.structs.replace(entry, records=None) for entry in content.silos]
    lying = msgspec.structs.replace(content, silos=silos)
    with pytest.raises(PlanError, check=coded("plan.inconsistent")):  # it is another federation
        verify(lying)


@pytest.mark.parametrize("epsilon", [1.0, {"region": 1.0, "aggregator": 6.0}])
@pytest.mark.parametrize("colluders", [0, 2])
def test_clip_share_and_server_are_recomputed(epsilon, colluders):
    made = plan("tcga-brca", rounds=5, epsilon=epsilon, recipe="joint", parameters=40, colluders=colluders)
    content = made.content()
    assert failed(content) == set()
    assert made.clip_share < 1
    for share in (made.clip_share * 1.001, made.clip_share / 2):
        settings = msgspec.structs.replace(content.settings, clip_share=share)
        assert failed(msgspec.structs.replace(content, settings=settings)) == {"clip share"}
    settings = msgspec.structs.replace(content.settings, parameters=None)
    assert "clip share" in failed(msgspec.structs.replace(content, settings=settings))


def test_a_pooling_server_beside_a_target_further_out_fails():
    made = plan(NESTED, rounds=5, epsilon={"region": 1.0, "country": 1.0})
    content = made.content()
    settings = msgspec.structs.replace(content.settings, server="random-effects")
    assert {"server", "words"} <= failed(msgspec.structs.replace(content, settings=settings))


def test_the_words_say_what_the_server_does_and_where_no_smaller_epsilon_is_claimed():
    joint = plan(NESTED, rounds=5, epsilon=1.0, recipe="joint", parameters=10)
    paper = plan(NESTED, rounds=5, epsilon=1.0)
    said = (
        "the server pools the sums of regions, which tells an observer of those sums nothing new; no epsilon smaller "
        "than that against one of them is claimed further out"
    )
    assert said in fulcrum.guarantee_of(joint).assumptions
    assert not any("pools" in line for line in fulcrum.guarantee_of(paper).assumptions)
    assert joint.epsilon("federation") == pytest.approx(joint.epsilon("region"))
    silent = msgspec.structs.replace(
        joint.content().guarantee,
        assumptions=[line for line in fulcrum.guarantee_of(joint).assumptions if line != said],
    )
    assert failed(msgspec.structs.replace(joint.content(), guarantee=silent)) == {"words"}


def test_a_plan_of_the_paper_has_none_of_it_in_its_file(tmp_path):
    made = plan("severe", rounds=10, epsilon=0.99)
    settings = json.loads(to_json(made.content()))["settings"]
    assert not {"weights", "clip_share", "server", "shrink", "least_influence", "influence_mix"} & set(settings)
    assert not {"weight", "declared_weight"} & set(json.loads(to_json(made.content()))["silos"][0])


@pytest.mark.parametrize("rule", ["equal", "least-noise", 0.5, "sizes"])
def test_a_plan_with_other_weights_comes_back_from_its_file_the_same(tmp_path, rule):
    federation = lognormal_sizes(profile("severe"), seed=2)
    made = plan(federation, rounds=10, epsilon=0.99, weights=rule, least_influence=0.4)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again.digest == made.digest
    assert np.array_equal(again.weights, made.weights)
    assert np.array_equal(again.influence, made.influence)
    assert (again.weights_rule, again.least_influence) == (made.weights_rule, 0.4)
    # A plan is made for silos, not for the weights of the plan before.
    by_size = plan(again.federation, rounds=10, epsilon=0.99)
    assert np.array_equal(by_size.weights, federation.weights)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda silos: [msgspec.structs.replace(silos[0], weight=None), *silos[1:]],
            "weight must be given for every silo, or for none",
        ),
        (
            lambda silos: [msgspec.structs.replace(silos[0], records=None), *silos[1:]],
            "records must be given for every silo, or for none",
        ),
        (
            lambda silos: [msgspec.structs.replace(entry, weight=None) for entry in silos],
            "weights must be given for every silo unless they are by size",
        ),
    ],
)
def test_a_file_with_weights_or_sizes_for_some_silos_alone_does_not_hold_together(tmp_path, change, problem):
    content = plan(NESTED, rounds=5, epsilon=1.0, weights="equal").content()
    forgery = msgspec.structs.replace(content, silos=change(content.silos))
    (tmp_path / "plan.json").write_bytes(to_json(forgery))
    with pytest.raises(PlanError, match=problem):
        read_plan(tmp_path / "plan.json")


def test_a_silo_refuses_a_plan_whose_weights_are_not_what_it_says():
    policy = Policy(largest_epsilon_above=2.0, largest_epsilon_inside=100.0)
    made = plan(NESTED, rounds=5, epsilon=1.0, weights="equal")
    policy.check(made, "a-1")
    skewed = made.weights.copy()
    skewed[0] *= 1.5
    content = forged(made, skewed / skewed.sum())
    with pytest.raises(PlanError, check=coded("plan.check-failed", source="the plan", check="weights")):
        plan_of(msgspec.structs.replace(content, digest=content_digest(content)))
    federation = made.federation.with_weights(skewed / skewed.sum())
    lying = replace(plan_of(made.content()), federation=federation)
    with pytest.raises(PolicyError, check=coded("plan.check-failed", source="the plan", check="weights")):
        policy.check(lying, "a-1")


def test_exports_carry_the_weights_and_what_else_is_not_the_papers():
    made = plan(NESTED, rounds=5, epsilon=1.0, recipe="joint", parameters=10)
    sites = json.loads(export_plan(made, "nvflare"))
    assert [site["weight"] for site in sites["sites"].values()] == made.weights.tolist()
    assert (sites["clip_share"], sites["server"], sites["shrink"]) == (made.clip_share, "random-effects", "even-heads")
    assert f"fulcrum-clip-share = {made.clip_share!r}" in export_plan(made, "flower")
    assert 'fulcrum-server = "random-effects"' in export_plan(made, "flower")
    rows = [line.split(",") for line in export_plan(made, "csv").splitlines()]
    where = rows[0].index("weight")
    assert [float(row[where]) for row in rows[1:]] == made.weights.tolist()
    paper = plan(NESTED, rounds=5, epsilon=1.0)
    assert not {"clip_share", "server", "shrink"} & set(json.loads(export_plan(paper, "nvflare")))
    assert "server" not in export_plan(paper, "flower").replace("num-server-rounds", "")


def test_exports_of_a_plan_with_secret_sizes_say_none():
    federation = Federation.from_columns(silo=["a", "b"], records=None, tiers={"region": ["x", "y"]})
    rows = export_plan(fulcrum.plan(federation, rounds=5, epsilon=1.0, weights="equal"), "csv").splitlines()
    assert rows[0].startswith("silo,records,region,weight")
    assert rows[1].startswith("a,,x,0.5,")


# ------------------------------------------------------------------------------------------------- forged weights

SKEWED = {"a-1": 8.9, "a-2": 0.05, "a-3": 0.05, "b-1": 7.9, "b-2": 0.1, "c-1": 7.0, "d-1": 1.0, "d-2": 1.0, "d-3": 11.0}
"""By region what sizes give; within regions one silo has nearly all of it."""


def with_settings(content, **settings):
    return msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, **settings))


def with_rule_weights(content, weights):
    nodes = [msgspec.structs.replace(node, rule_weight=weights.get(node.name)) for node in content.tiers["region"]]
    return msgspec.structs.replace(content, tiers={**content.tiers, "region": nodes})


@pytest.mark.parametrize("mix", [0.5, 0.999, 1.0])
@pytest.mark.parametrize("rule", ["sizes", "equal", "least-noise", 0.3])
def test_one_silo_cannot_take_the_voice_of_its_region_behind_shares_that_are_mixed_in(rule, mix):
    """However much of the regions' weights is by share, silos count within them as the rule says."""
    honest = plan(NESTED, rounds=5, epsilon=1.0, weights=SKEWED).content()
    share = {
        node.name: sum(w for silo, w in SKEWED.items() if silo.startswith(node.name)) for node in honest.tiers["region"]
    }
    total = sum(share.values())
    lying = with_settings(honest, weights=rule, least_influence=1.0, influence_mix=mix)
    assert failed(with_rule_weights(lying, {region: part / total for region, part in share.items()})) == {"weights"}


@pytest.mark.parametrize("least", [0.7, 0.999999, 1 - 1e-9, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("rule", ["equal", "least-noise", 0.2])
def test_weights_hold_however_much_of_them_is_by_share(rule, least, tmp_path):
    made = plan(NESTED, rounds=5, epsilon={"region": 1.0, "country": 0.6}, weights=rule, least_influence=least)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    assert failed(tmp_path / "plan.json") == set()
    again = read_plan(tmp_path / "plan.json")
    assert again.digest == made.digest
    if made.influence_mix:
        assert again.rule_weights.tolist() == made.rule_weights.tolist()
        shifted = made.rule_weights * [1.001, 1, 1, 1]
        content = with_rule_weights(made.content(), dict(zip("abcd", shifted.tolist(), strict=True)))
        assert "weights" in failed(content)


@pytest.mark.parametrize("rule", [0.99, 0.999999999, 1 - 2**-53])
def test_weights_next_to_least_noise_hold_and_others_do_not(rule):
    made = plan(NESTED, rounds=5, epsilon=1.0, weights=rule)
    assert failed(made.content()) == set()
    shifted = made.weights * (1 + 1e-4 * np.arange(9))
    assert failed(forged(made, shifted / shifted.sum())) == {"weights"}


WIDE = [
    [1e-6, 1e6, 1e-6, 1e6, 1e-6, 1e6, 1e6, 1e-6, 1e-6],
    [725.0, 725.0, 725.0, 0.0572, 0.0572, 0.0185, 4.5e-6, 2620.0, 1.5e-6],
]


@pytest.mark.parametrize(
    "epsilon", [{"region": 34000.0, "aggregator": 7700.0}, {"region": 1.0, "aggregator": 2.0, "country": 1e5}]
)
@pytest.mark.parametrize("preferences", WIDE)
def test_least_noise_weights_hold_however_far_apart_silos_ask_and_others_do_not(preferences, epsilon):
    asking = replace(NESTED, preferences=np.array(preferences))
    made = plan(asking, rounds=3, epsilon=epsilon, weights="least-noise")
    assert not failed(made.content())
    for silo in (int(np.argmin(preferences)), int(np.argmax(preferences))):
        weights = np.array(made.federation.weights)
        weights[silo] *= 1.1
        assert failed(forged(made, weights)) == {"weights"}, silo


def test_weights_that_a_federation_declares_are_those_that_count():
    columns = {
        "silo": list("abcd"),
        "records": np.array([1.0, 2, 3, 4]),
        "tiers": {"region": ["n", "n", "s", "s"]},
        "weight": np.array([1.0, 1, 1, 1]),
    }
    federation = Federation.from_columns(**columns)
    declared = plan(federation, rounds=5, epsilon=1.0)
    given = plan(federation, rounds=5, epsilon=1.0, weights={"a": 97, "b": 1, "c": 1, "d": 1})
    assert (declared.weights_rule, given.weights_rule) == ("declared", "by-silo")
    assert failed(declared.content()) == failed(given.content()) == set()
    assert failed(with_settings(given.content(), weights="declared")) == {"weights"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"weights": "loudest"}, "Invalid enum value 'loudest' - at `$.settings.weights`"),
        ({"required_multiplier": {"region": 1e-300}}, "a required multiplier is out of its range"),
        ({"required_multiplier": {"region": 0.0}}, "its targets ask for no noise"),
        ({"rounds": 10**30}, "Expected `int` <= 1000000000 - at `$.settings.rounds`"),
        ({"allocation": "optimal\x1b[2J"}, "the allocation's name is not printable"),
        ({"floor": -1.0}, "Expected `float` >= 0.0 - at `$.settings.floor`"),
        ({"floor": [0.0] * 8 + [-1e-9]}, "Expected `float` >= 0.0 - at `$.settings.floor[8]`"),
        ({"clip_share": 0.0}, "Expected `float` >= 1e-100 - at `$.settings.clip_share`"),
        ({"clip_share": -0.5}, "Expected `float` >= 1e-100 - at `$.settings.clip_share`"),
        ({"clip_share": 1.5}, "Expected `float` <= 1.0 - at `$.settings.clip_share`"),
        ({"influence_mix": 0.3}, "weights by the rule alone stand elsewhere"),
    ],
)
def test_settings_that_no_plan_has_are_refused_in_one_line(tmp_path, settings, told):
    path = tmp_path / "plan.json"
    content = with_settings(plan(NESTED, rounds=5, epsilon=1.0, recipe="joint", parameters=10).content(), **settings)
    path.write_bytes(to_json(content))
    for work in (verify, read_plan):
        with pytest.raises(PlanError) as caught:
            work(path)
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_plan_in_which_nobody_draws_noise_is_refused_in_one_line(tmp_path):
    path = tmp_path / "plan.json"
    for injection in ("silo", "aggregator"):
        content = plan(NESTED, rounds=5, epsilon=1.0, injection=injection).content()
        silos = [msgspec.structs.replace(entry, noise_multiplier=0.0) for entry in content.silos]
        nodes = [msgspec.structs.replace(node, noise_multiplier=0.0) for node in content.tiers["region"]]
        bare = msgspec.structs.replace(content, silos=silos, tiers={**content.tiers, "region": nodes})
        path.write_bytes(to_json(bare))
        with pytest.raises(PlanError, check=coded("plan.inconsistent", problem="nobody draws any noise")):
            read_plan(path)


def test_a_silo_of_whom_no_noise_is_asked_fails_and_does_not_end_verification():
    content = plan(NESTED, rounds=5, epsilon=1.0, recipe="joint", weights="least-noise", parameters=10).content()
    asked = content.settings.required_multiplier["region"]
    lying = with_settings(content, required_multiplier={"region": [0.0, *[asked] * 8]})
    assert {"weights", "clip share", "requirement at region"} <= failed(lying)


@pytest.mark.parametrize("rule", ["least-noise", "equal"])
def test_a_region_that_has_less_than_the_promised_influence_fails_where_no_shares_are_mixed_in(rule):
    federation = Federation.from_sizes({"a": [5, 3, 1], "b": [4, 4], "c": [70]})
    made = plan(federation, rounds=5, epsilon=1.0, weights=rule)
    assert made.influence_mix == 0
    least = float((made.node_influence("region") / region_shares(made.federation)).min())
    content = made.content()
    for promised, kept in ((least * (1 - 1e-6), True), (min(1.0, least * (1 + 1e-6)), least == 1), (1.0, least >= 1)):
        settings = msgspec.structs.replace(content.settings, least_influence=promised)
        assert ("weights" not in failed(msgspec.structs.replace(content, settings=settings))) == kept
