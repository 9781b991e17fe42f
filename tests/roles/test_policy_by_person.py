"""Limits are for one unit of privacy: a policy for silos takes no plan for persons, and the other way round."""

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.silo.policy import Policy, read_policy
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import PlanError, PolicyError, RefusedReleaseError

SIZES = {"north": {"caen": 40.0, "lille": 60.0}, "south": {"nice": 50.0}}
LIMITS = {"largest_epsilon_above": 9.0, "largest_epsilon_inside": 99.0}
ROWS = np.random.default_rng(0).normal(size=(6, 6))


def made(unit="person", **options):
    options = {"rounds": 4, "epsilon": 1.0, "parameters": 6, "purpose": "deployment", "unit": unit} | options
    return fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), **options)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "lille.ledger", silo="lille") as opened:
        yield opened


def test_a_policy_for_silos_takes_no_plan_for_persons(ledger):
    with pytest.raises(PolicyError, check=coded("policy.unit-differs", unit="silo", plan_unit="person")) as caught:
        Policy(**LIMITS).check(made(), "lille")
    assert 'unit = "person"' in str(caught.value)
    with pytest.raises(PolicyError, check=coded("policy.unit-differs")):
        release(None, made(), "lille", 1, gradients=ROWS, ledger=ledger, policy=Policy(**LIMITS))
    for policy_unit, unit in (("person", "silo"), ("record", "person"), ("person", "record")):
        with pytest.raises(PolicyError, check=coded("policy.unit-differs")):
            Policy(**LIMITS, unit=policy_unit).check(made(unit), "lille")
    Policy(**LIMITS, unit="person").check(made(), "lille")
    assert ledger.sequence == 0


def test_limits_of_epsilon_are_in_the_convention_of_the_policy():
    added = made(neighbours="add-remove")
    with pytest.raises(PolicyError, check=coded("policy.neighbours-differ")):
        Policy(**LIMITS, unit="person").check(added, "lille")
    Policy(**LIMITS, unit="person", neighbours="add-remove").check(added, "lille")
    Policy(**LIMITS, unit="person", neighbours="add-remove").check(made(), "lille")  # the stricter convention
    tight = LIMITS | {"largest_epsilon_above": 0.9}
    with pytest.raises(PolicyError, check=coded("policy.epsilon-exceeded")):
        Policy(**tight, unit="person", neighbours="add-remove").check(made(), "lille")


def test_a_policy_may_ask_for_persons_in_several_silos():
    policy = Policy(**LIMITS, unit="person", silos_per_person=2)
    with pytest.raises(PolicyError, check=coded("policy.silos-per-person-few", least=2, provided=1)):
        policy.check(made(), "lille")
    policy.check(made(silos_per_person=2), "lille")


def test_limits_hold_for_a_person_who_is_also_in_the_silo_with_the_largest_epsilon():
    sizes = {"large": [100.0] * 20, "small": [100.0] * 2}
    targets = {"region": 4.0, "aggregator": 6.0}
    options = {"rounds": 10, "epsilon": targets, "unit": "person", "parameters": 6, "purpose": "deployment"}
    shared, apart = (
        fulcrum.plan(fulcrum.Federation.from_sizes(sizes), **options, silos_per_person=count) for count in (2, 1)
    )
    policy = Policy(largest_epsilon_above=3.0, largest_epsilon_inside=9.0, unit="person")
    policy.check(apart, "large-1")
    assert apart.epsilon_above[0] < 3.0 < shared.epsilon_above[0]  # a person may also be in a silo of `small`
    with pytest.raises(PolicyError, check=coded("policy.epsilon-exceeded", silo="large-1")):
        policy.check(shared, "large-1")
    Policy(largest_epsilon_above=4.001, largest_epsilon_inside=9.0, unit="person").check(shared, "large-1")


def test_a_policy_file_names_its_unit(tmp_path):
    path = tmp_path / "policy.toml"
    lines = 'largest_epsilon_above = 1.0\nlargest_epsilon_inside = 2.0\nunit = "person"\nearlier_units = ["silo"]\n'
    path.write_text(lines)
    assert read_policy(path).earlier_units == ("silo",)
    path.write_text(lines.replace('"person"', '"patient"'))
    with pytest.raises(PolicyError, check=coded("policy.file-malformed")):
        read_policy(path)


def test_a_ledger_of_silos_releases_for_persons_where_the_policy_says_so_alone(ledger):
    silos = made("silo", rounds=1, epsilon=0.1)
    release(np.ones(6), silos, "lille", 1, ledger=ledger)
    persons = made(epsilon=2.0, rounds=4)
    for policy in (None, Policy(**LIMITS, unit="person"), Policy(**LIMITS, unit="person", earlier_units=("record",))):
        with pytest.raises(RefusedReleaseError, check=coded("ledger.unit-differs")):
            release(None, persons, "lille", 1, gradients=ROWS, ledger=ledger, policy=policy)
    allowed = Policy(**LIMITS, unit="person", earlier_units=("silo",))
    sent = release(None, persons, "lille", 1, gradients=ROWS, ledger=ledger, policy=allowed, input_digest="m")
    spent = ledger.spent_by_unit()
    own = fulcrum.verified_plan(persons).release_cost("lille")["region"]
    earlier = fulcrum.verified_plan(silos).release_cost("lille")["region"]
    assert spent["person"].shifts["region"] == pytest.approx(own + earlier)
    ratio = (2 * 60 / persons.unit.sensitivity) ** 2
    assert spent["silo"].shifts["region"] == pytest.approx(earlier + ratio * own)
    again = release(None, persons, "lille", 1, gradients=ROWS, ledger=ledger, policy=allowed, input_digest="m")
    assert again.to_bytes() == sent.to_bytes()


def test_a_plan_for_persons_is_replanned_from_the_spending_of_persons(tmp_path):
    old = made(rounds=6)
    for silo in ("caen", "lille", "nice"):
        with Ledger.open(tmp_path / f"{silo}.ledger", silo=silo) as book:
            for number in (1, 2):
                release(None, old, silo, number, gradients=ROWS, ledger=book)
    changed = {"north": {"caen": 40.0, "lille": 80.0}, "south": {"nice": 50.0, "toulon": 30.0}}
    new = fulcrum.replan(old, fulcrum.Federation.from_sizes(changed), tmp_path)
    assert (new.rounds, new.unit) == (4, old.unit)
    assert new.worst_epsilon("region") <= 1.0 * (1 + 1e-9)
    spent = 2 * fulcrum.verified_plan(old).release_cost("lille")["region"]
    names = new.federation.silo_names.tolist()
    assert new.spent["region"][names.index("lille")] == pytest.approx(spent)
    assert new.spent["region"][names.index("toulon")] == 0
    assert [check for check in fulcrum.verify(new.content()) if not check.holds] == []
    with Ledger.open(tmp_path / "lille.ledger", silo="lille") as book:
        for number in range(1, 5):
            release(None, new, "lille", number, gradients=ROWS, ledger=book)


def test_spending_in_another_unit_is_no_past_of_a_plan(tmp_path):
    old, silos = made(epsilon=2.0), made("silo", rounds=1, epsilon=0.1)
    policy = Policy(**LIMITS, unit="person", earlier_units=("silo",))
    for silo in ("caen", "lille", "nice"):
        with Ledger.open(tmp_path / f"{silo}.ledger", silo=silo) as book:
            if silo == "nice":
                release(np.ones(6), silos, silo, 1, ledger=book)
            release(None, old, silo, 1, gradients=ROWS, ledger=book, policy=policy)
    with pytest.raises(PlanError, check=coded("replan.unit-mixed", unit="person", earlier_unit="silo")):
        fulcrum.replan(old, fulcrum.Federation.from_sizes(SIZES), tmp_path)
