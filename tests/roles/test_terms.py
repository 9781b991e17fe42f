import dataclasses
import math
import signal
import threading
import time
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from forking import fate_of, forks

import fulcrum
from fulcrum.core.plan import verified_plan as verified_contents
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.release_parameters import _PASSED, release_parameters_of
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import FulcrumError, PolicyError, ReleaseError, UnreachableTargetError

SILO, UPDATE = "region-1-1", np.ones(34)
LOOSE = Policy(largest_epsilon_above=9.0, largest_epsilon_inside=99.0)


def made(name="isic-paper", **options):
    keys = {"region-1": "key"}
    return fulcrum.plan(name, rounds=3, epsilon=1.0, parameters=34, purpose="deployment", keys=keys, **options)


@pytest.fixture(autouse=True)
def nothing_verified_yet():
    _PASSED.clear()
    verified_contents._VERIFIED.clear()


@pytest.fixture
def read(tmp_path):
    """Reads the same plan file anew, as often as asked."""
    fulcrum.save_plan(made(), tmp_path / "plan.json")
    return lambda: fulcrum.read_plan(tmp_path / "plan.json")


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "silo.ledger", silo=SILO) as opened:
        yield opened


def in_place(array, index, factor):
    array.flags.writeable = True
    array[index] *= factor
    array.flags.writeable = False


CHANGES = {
    "clip norm": lambda plan: object.__setattr__(plan, "clip_norm", plan.clip_norm * 0.98),
    "clip share": lambda plan: object.__setattr__(plan, "clip_share", plan.clip_share * 0.98),
    "multipliers": lambda plan: object.__setattr__(plan, "noise_multiplier", plan.noise_multiplier * 0.98),
    "one multiplier in place": lambda plan: in_place(plan.noise_multiplier, 0, 0.98),
    "a weight in place": lambda plan: in_place(plan.federation.weights, 0, 1.02),
    "lattice steps": lambda plan: plan.__dict__.update(lattice_steps=plan.lattice_steps * 2),
    "no lattice": lambda plan: plan.__dict__.update(lattice_steps=np.ones(0)),
    "rounds": lambda plan: object.__setattr__(plan, "rounds", 4),
    "parameters": lambda plan: object.__setattr__(plan, "parameters", 33),
    "keys": lambda plan: plan.keys.update({"region-1": "another"}),
}


@pytest.mark.parametrize("when", ["before it is verified", "after it was verified"])
@pytest.mark.parametrize("source", ["a file", "memory"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_plan_in_memory_has_no_part_in_its_releases(read, ledger, change, source, when):
    plan = read() if source == "a file" else made()
    assert plan.digest
    expected = release_parameters_of(made(), SILO)
    if when == "after it was verified":
        release(UPDATE, plan, SILO, 1, ledger=ledger, policy=LOOSE)
    CHANGES[change](plan)
    if change == "keys" and source == "a file":  # the object and its content share them, so the digest is not theirs
        with pytest.raises(ReleaseError, match="does not hold what it says: digest"):
            release(UPDATE, plan, SILO, 2, ledger=ledger, policy=LOOSE)
        return
    assert release_parameters_of(plan, SILO, policy=LOOSE) == expected
    sent = release(UPDATE, plan, SILO, 2, ledger=ledger, policy=LOOSE)
    assert sent.plan_digest == expected.plan_digest
    assert ledger.entries()[-1].cost == expected.cost


@pytest.mark.parametrize(
    "change", ["clip share", "multipliers", "one multiplier in place", "a weight in place", "rounds"]
)
def test_a_plan_that_was_changed_before_its_content_was_taken_does_not_verify(ledger, change):
    plan = made()
    CHANGES[change](plan)
    with pytest.raises((ReleaseError, UnreachableTargetError)) as caught:
        release(UPDATE, plan, SILO, 1, ledger=ledger)
    assert "\n" not in str(caught.value)
    assert ledger.sequence == 0


def test_another_object_of_the_same_file_is_held_to_what_was_verified(read, ledger):
    release(UPDATE, read(), SILO, 1, ledger=ledger)
    weaker = dataclasses.replace(read(), noise_multiplier=read().noise_multiplier / 2)
    with pytest.raises(ReleaseError, match="does not hold what it says"):
        release(UPDATE, weaker, SILO, 2, ledger=ledger)
    release(UPDATE, read(), SILO, 2, ledger=ledger)
    assert ledger.sequence == 2


@pytest.fixture
def verifications(monkeypatch):
    """The contents whose numbers were recomputed, one entry a time."""
    found, recomputed = [], verified_contents.verify

    def counted(content):
        found.append(content)
        return recomputed(content)

    monkeypatch.setattr(verified_contents, "verify", counted)
    return found


def test_a_plan_is_verified_once_for_all_its_silos(read, verifications):
    plan = read()
    names = plan.federation.silo_names.tolist()
    for silo in (*names, *names):
        release_parameters_of(plan, silo)
    release_parameters_of(read(), names[0])
    assert len(verifications) == 1
    release_parameters_of(made("severe"), SILO)
    assert len(verifications) == 2
    for number in range(2, 7):  # plans of other digests, so that the first is not kept any more
        release_parameters_of(made(seed=number), SILO)
    release_parameters_of(plan, names[1])
    assert len(verifications) == 7, "what was passed stays so, whichever plans are kept"
    policy = Policy(largest_epsilon_above=9.0, largest_epsilon_inside=99.0)
    for silo in names:
        policy.check(plan, silo)
        release_parameters_of(plan, silo, policy=policy)
    policy.check_every_silo(plan)
    assert len(verifications) == 7, "a policy recomputes epsilons, and no more of a plan that was verified"


def test_a_plan_that_does_not_hold_what_it_says_is_refused_to_every_silo_of_it(read, verifications):
    plan = made()
    in_place(plan.noise_multiplier, 5, 0.5)  # before its digest is taken: it is the digest of what it says now
    for silo in plan.federation.silo_names.tolist()[:3]:
        with pytest.raises(ReleaseError, match="does not hold what it says"):
            release_parameters_of(plan, silo)
    assert len(verifications) == 3, "a plan that failed is not known as verified"


@pytest.mark.parametrize("multiplier", [-1.0, math.nan, math.inf, 1e-200])
def test_a_multiplier_that_no_plan_file_holds_is_refused_in_one_line(multiplier):
    plan = made()
    in_place(plan.noise_multiplier, 0, multiplier / plan.noise_multiplier[0])
    for work in (release_parameters_of, LOOSE.check):
        with pytest.raises(FulcrumError) as caught:
            work(plan, SILO)
        assert "\n" not in str(caught.value)


def test_the_content_of_a_file_cannot_be_changed_after_it_was_verified(read, ledger):
    plan = read()
    release_parameters_of(plan, "region-1-2")
    content = plan.content()
    content.silos[0] = msgspec.structs.replace(content.silos[0], noise_multiplier=content.silos[0].noise_multiplier / 2)
    with pytest.raises(ReleaseError):
        release_parameters_of(plan, SILO)


def test_a_plan_is_the_same_whether_or_not_its_signature_was_asked_for(read, ledger, tmp_path):
    issuer = fulcrum.new_key(tmp_path / "issuer.key")
    plain = read()
    fulcrum.sign_plan(tmp_path / "plan.json", tmp_path / "issuer.key")
    signed = fulcrum.read_signed_plan(tmp_path / "plan.json", issuer)
    for round_number, plan in enumerate((plain, signed, made()), 1):
        release(UPDATE, plan, SILO, round_number, ledger=ledger)
    assert ledger.sequence == 3
    assert (
        release_parameters_of(plain, SILO) == release_parameters_of(signed, SILO) == release_parameters_of(made(), SILO)
    )


@forks
def test_a_process_that_is_forked_while_a_thread_verifies_waits_for_nobody(read, monkeypatch):
    begun, recomputed = threading.Event(), verified_contents.verify
    plan = made()

    def slow(content):
        begun.set()
        time.sleep(0.5)
        return recomputed(content)

    def work():
        signal.alarm(20)
        return release_parameters_of(read(), SILO).width

    monkeypatch.setattr(verified_contents, "verify", slow)
    thread = threading.Thread(target=release_parameters_of, args=(plan, SILO))
    thread.start()
    begun.wait()
    said, code = fate_of(work)
    thread.join()
    assert (said, code) == (str(release_parameters_of(read(), SILO).width), 0)


def test_a_policy_that_passed_does_not_pass_another():
    plan = made()
    release_parameters_of(plan, SILO, policy=Policy(largest_epsilon_above=9.0, largest_epsilon_inside=math.inf))
    with pytest.raises(PolicyError, match="allows epsilon nan inside its region"):
        release_parameters_of(plan, SILO, policy=Policy(largest_epsilon_above=9.0, largest_epsilon_inside=math.nan))


class Stricter(Policy, frozen=True, kw_only=True):
    """A silo's own kind of policy, with the same numbers."""

    def check(self, plan, silo, *, before=0):
        super().check(plan, silo, before=before)
        raise PolicyError("not on a Sunday")


def test_a_policy_that_passed_does_not_pass_one_of_another_kind():
    plan = made()
    release_parameters_of(plan, SILO, policy=LOOSE)
    with pytest.raises(PolicyError, match="not on a Sunday"):
        release_parameters_of(plan, SILO, policy=Stricter(largest_epsilon_above=9.0, largest_epsilon_inside=99.0))


def test_what_was_verified_stays_what_is_charged(read, ledger):
    plan = read()
    first = release_parameters_of(plan, SILO)
    in_place(plan.noise_multiplier, 5, 0.01)  # another silo's, which no release of this one draws from
    assert release_parameters_of(plan, SILO) == first
    release(UPDATE, plan, SILO, 1, ledger=ledger)
    assert ledger.total_cost.shifts == first.cost.shifts
    assert ledger.allowance == first.allowance


@pytest.mark.parametrize("clip_norm", [1.0, 0.1, 3.7, 1e-3])
@pytest.mark.parametrize("name", ["isic-paper", "severe", "consortium"])
def test_noise_is_asked_for_exactly_as_wide_as_the_plan_says_or_the_next_number_above(name, clip_norm):
    plan = made(name, clip_norm=clip_norm)
    for index in range(0, len(plan.federation), 7):
        terms = release_parameters_of(plan, plan.federation.silo_name(index))
        region = plan.federation.innermost.parent_of[index]
        step = Fraction(float(plan.lattice_steps[region]))
        weight, multiplier = plan.federation.weights[index], plan.noise_multiplier[index]
        exact = Fraction(float(multiplier)) * Fraction(float(weight)) * Fraction(plan.clip_norm) / step
        assert Fraction(math.nextafter(terms.width, 0)) < exact <= Fraction(terms.width)
        assert (terms.step, terms.weight, terms.clip_norm) == (step, weight, clip_norm)
        assert terms.cost.shifts["silo"] == pytest.approx(4 / multiplier**2, rel=1e-12)
        assert terms.allowance.shifts["silo"] == 3 * terms.cost.shifts["silo"]


def test_a_research_plan_has_no_terms():
    research = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, parameters=34)
    with pytest.raises(ReleaseError, match="a research plan has no lattice"):
        release_parameters_of(research, SILO)
    with pytest.raises(ReleaseError, match=r"knows no silo 'region-1-9'. Did you mean"):
        release_parameters_of(made(), "region-1-9")
