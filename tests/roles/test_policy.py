import dataclasses

import numpy as np
import pytest

import fulcrum
from fulcrum.core.silo.policy import Policy, read_policy
from fulcrum.errors import PolicyError

SILO = "region-1-1"
LOOSE = {"largest_epsilon_above": 1.0, "largest_epsilon_inside": 20.0}


@pytest.fixture(scope="module")
def made():
    keys = {"region-1-2": "a2V5LTI=", "region-1": "x25519:bm9ydGg=", "region-3": "x25519:c291dGg="}
    return fulcrum.plan("severe", rounds=10, epsilon=1.0, parameters=66, purpose="deployment", keys=keys)


def test_a_plan_within_the_policy_passes(made):
    Policy(**LOOSE, smallest_region=60, largest_rounds=10, peers={"region-1-2": "a2V5LTI=", "region-1-3": ""}).check(
        made, SILO
    )


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"largest_epsilon_above": 0.9}, "allows epsilon 0.9 above its region, the plan spends 1"),
        ({"largest_epsilon_inside": 3.0}, "allows epsilon 3 inside its region, the plan spends"),
        ({"largest_epsilon": {"region": 0.9}}, "allows epsilon 0.9 against the observer 'region', the plan spends 1"),
        ({"largest_epsilon": {"federation": float("nan")}}, "allows epsilon nan against the observer 'federation'"),
        (
            {"largest_epsilon": {"country": 9.0}},
            "limits epsilon against 'country', the plan's observers are silo, region, federation",
        ),
        ({"largest_delta": 1e-6}, "allows delta 1e-06, the plan has 1e-05"),
        ({"largest_epsilon_above": float("nan")}, "allows epsilon nan above its region"),
        ({"least_colluders": 1}, "asks for 1 colluders, the plan allows 0"),
        ({"largest_rounds": 9}, "allows 9 rounds, the plan has 10"),
        ({"smallest_region": 61}, "asks for a region of at least 61 silos, 'region-1' has 60"),
        ({"peers": {"region-2-1": ""}}, "insists on the peer 'region-2-1', who is not in its region 'region-1'"),
        ({"peers": {"region-1-2": "b3RoZXI="}}, "knows the peer 'region-1-2' by another key than the plan carries"),
        ({"peers": {"region-1-3": "a2V5LTI="}}, "knows the peer 'region-1-3' by another key than the plan carries"),
        (
            {"region_key": "x25519:b3RoZXI="},
            "seals to the region_key of its policy alone, x25519:b3RoZXI=.., and the plan carries another key for its "
            "region 'region-1'. If it moved there, or the key was replaced, ask the region for its key",
        ),
        ({"region_key": ""}, "the plan carries another key for its region 'region-1'"),
        ({"issuer": "aXNzdWVy"}, "takes plans signed by aXNzdWVy.. alone"),
    ],
)
def test_every_rule_refuses_with_its_reason(made, rule, reason):
    with pytest.raises(PolicyError) as caught:
        Policy(**(LOOSE | rule)).check(made, SILO)
    assert reason in str(caught.value)


def test_a_policy_limits_epsilon_against_observers_of_any_tier(tmp_path):
    rows = [f"{region}-{number},100,{region},{region[0]}" for region in ("ab", "ac", "bd", "be") for number in range(4)]
    (tmp_path / "fed.csv").write_text("silo,records,region,country\n" + "\n".join(rows) + "\n")
    made = fulcrum.plan(tmp_path / "fed.csv", rounds=10, epsilon={"region": 1.0, "country": 0.5})
    stated = {tier: float(made.epsilon(tier)[0]) for tier in ("region", "country", "federation")}
    assert stated["region"] > stated["country"] > stated["federation"]
    for tier, epsilon in stated.items():
        loose = {"largest_epsilon_above": 1.0, "largest_epsilon_inside": 20.0}
        Policy(**loose, largest_epsilon={tier: epsilon * 1.001}).check(made, "ab-0")
        with pytest.raises(PolicyError, match=rf"allows epsilon \S+ against the observer '{tier}'"):
            Policy(**loose, largest_epsilon={tier: epsilon * 0.99}).check(made, "ab-0")


def test_a_plan_of_one_masked_group_has_no_observers_between_the_silos_and_the_federation():
    """A silo of another region is outside the region, sees the global sum, and knows its own noise."""
    sizes = {"north": {"a": 1, "b": 1}, "south": {"c": 1, "d": 1}}
    as_one = fulcrum.plan(
        fulcrum.Federation.from_sizes(sizes), rounds=10, epsilon={"federation": 1.0}, aggregation="masked"
    )
    assert as_one.worst_epsilon("silo") > 1.4
    Policy(**LOOSE, largest_epsilon={"federation": 1.0, "silo": 1.5}).check(as_one, "a")
    with pytest.raises(PolicyError, match="limits epsilon against 'region', the plan's observers are silo, federation"):
        Policy(**LOOSE, largest_epsilon={"region": 1.0}).check(as_one, "a")


def test_a_number_that_no_message_holds_is_no_policy(tmp_path):
    for rule in ("smallest_region", "largest_rounds", "least_colluders"):
        path = tmp_path / "policy.toml"
        path.write_text(f"largest_epsilon_above = 1\nlargest_epsilon_inside = 20\n{rule} = 1{'0' * 30}\n")
        with pytest.raises(PolicyError, match=f"is not a policy: .*{rule}"):
            read_policy(path)


def test_a_silo_seals_to_the_key_it_knows_in_whatever_region(made):
    known = Policy(**LOOSE, region_key="x25519:bm9ydGg=")
    known.check(made, "region-1-1")
    with pytest.raises(PolicyError, match="another key for its region 'region-3'"):  # moved to a region of another key
        known.check(made, "region-3-1")
    with pytest.raises(PolicyError, match="no key for its region 'region-2'"):  # and to one of none
        known.check(made, "region-2-1")
    Policy(**LOOSE, region_key="x25519:c291dGg=").check(made, "region-3-1")
    renamed = dataclasses.replace(made, keys={"region-3": "x25519:bm9ydGg="})
    known.check(renamed, "region-3-1")


def test_releases_under_other_plans_count_towards_the_rounds(made):
    policy = Policy(**LOOSE, largest_rounds=15)
    policy.check(made, SILO, before=5)
    with pytest.raises(PolicyError, match="allows 15 rounds, the plan has 10, and 6 releases were made under others"):
        policy.check(made, SILO, before=6)
    Policy(**LOOSE).check(made, SILO, before=10**9)


def test_a_silo_recomputes_what_the_plan_says(made):
    # A plan whose multipliers were lowered for one silo, its words and epsilons untouched.
    multiplier = made.noise_multiplier.copy()
    multiplier[0] /= 10
    forged = dataclasses.replace(made, noise_multiplier=multiplier)
    with pytest.raises(PolicyError):
        Policy(**LOOSE).check(forged, SILO)
    with pytest.raises(PolicyError, match="knows no silo"):
        Policy(**LOOSE).check(made, "nobody")


def test_a_policy_is_a_small_toml_file(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        'largest_epsilon_above = 1.0\nlargest_epsilon_inside = 8.0\nsmallest_region = 5\n[peers]\nlyon = ""\n'
    )
    found = read_policy(path)
    assert (found.smallest_region, found.peers) == (5, {"lyon": ""})
    for text, reason in (
        ("largest_epsilon_above = 1.0\n", "missing required field `largest_epsilon_inside`"),
        ("largest_epsilon_above = 'a'\nlargest_epsilon_inside = 1.0", "Expected `float`"),
        (
            "largest_epsilon_above = 1.0\nlargest_epsilon_inside = 1.0\nlargest_epsilom = 2.0",
            "no limit 'largest_epsilom'",
        ),
        ("= 3", "is not a policy"),
    ):
        path.write_text(text)
        with pytest.raises(PolicyError, match=reason):
            read_policy(path)
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(tmp_path / "none.toml")


def test_infinite_epsilons_are_never_allowed():
    bare = fulcrum.plan("severe", rounds=10, epsilon=1.0, injection="aggregator")
    assert np.isinf(bare.epsilon_inside).all()
    with pytest.raises(PolicyError, match="inside its region"):
        Policy(largest_epsilon_above=1.0, largest_epsilon_inside=1e9).check(bare, SILO)


def test_every_silo_is_asked_and_the_first_that_refuses_is_named(made):
    Policy(**LOOSE, smallest_region=4).check_every_silo(made)
    with pytest.raises(PolicyError, match="silo 'region-4-1' asks for a region of at least 5 silos"):
        Policy(**LOOSE, smallest_region=5).check_every_silo(made)
    strict = Policy(largest_epsilon_above=1.0, largest_epsilon_inside=3.0)
    with pytest.raises(PolicyError) as of_all:
        strict.check_every_silo(made)
    with pytest.raises(PolicyError) as of_one:
        strict.check(made, SILO)
    assert str(of_all.value) == str(of_one.value)


class Stricter(Policy, frozen=True, kw_only=True):
    """A silo's own kind of policy, with a rule more."""

    def check(self, plan, silo, *, before=0):
        super().check(plan, silo, before=before)
        if silo == "region-2-3":
            raise PolicyError("not on a Sunday")


def test_a_policy_of_another_kind_is_asked_for_every_silo_by_its_own_rules(made):
    Policy(**LOOSE).check_every_silo(made)
    with pytest.raises(PolicyError, match="not on a Sunday"):
        Stricter(**LOOSE).check_every_silo(made)


@pytest.mark.parametrize("observer", ["above", "inside"])
def test_a_deployed_silo_is_counted_by_what_is_proven_for_the_noise_that_it_draws(observer):
    """The exact accountant is one of continuous noise: its epsilon 1 is 1.093 for noise on a lattice."""
    tier, other = ("region", "aggregator") if observer == "above" else ("aggregator", "region")
    options = {"rounds": 10, "epsilon": {tier: 1.0, other: 9.0}, "accountant": "exact", "parameters": 66}
    deployed = fulcrum.plan("mild", purpose="deployment", **options)
    stated = deployed.epsilon_above if observer == "above" else deployed.epsilon_inside
    assert stated.max() == pytest.approx(1.0, rel=1e-9)
    silo = deployed.federation.silo_name(int(stated.argmax()))
    multiplier = deployed.effective_multiplier("region" if observer == "above" else "silo").min()
    proven = fulcrum.epsilon_of(multiplier, rounds=10, delta=1e-5, accountant="renyi")
    assert 1.092 < proven < 1.093
    limits = {"largest_epsilon_above": 9.0, "largest_epsilon_inside": 9.0}
    strict, enough = (Policy(**limits | {f"largest_epsilon_{observer}": limit}) for limit in (1.0, 1.093))
    with pytest.raises(PolicyError, match=rf"allows epsilon 1 {observer} its region, the plan spends 1\.093"):
        strict.check(deployed, silo)
    enough.check(deployed, silo)
    strict.check(fulcrum.plan("mild", **options), silo)  # research draws continuous noise
