"""A VerifiedPlan is made by `verified_plan` alone, from one copy of a content, and is not changed or forged by accident."""

import copy
import pickle

import msgspec
import pytest

import fulcrum
from fulcrum.core.plan import verified_plan as verified_contents
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.errors import PlanError, PolicyError, ReleaseError

PLAN = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, parameters=6, purpose="deployment")
SILO = PLAN.federation.silo_name(0)


@pytest.mark.parametrize("field", ["required_multiplier", "epsilon_target", "keys", "spent", "moved", "index"])
def test_no_mapping_of_it_is_written_to(field):
    with pytest.raises(TypeError, match="does not support item assignment"):
        getattr(fulcrum.verified_plan(PLAN), field)["region"] = 1.0


def test_a_content_that_is_changed_afterwards_changes_nothing():
    sound = fulcrum.verified_plan(PLAN)
    before = release_parameters_of(sound, SILO)
    sound.content().silos.clear()
    assert release_parameters_of(PLAN, SILO) == before
    assert len(sound.content().silos) == len(PLAN.federation)
    Policy(largest_epsilon_above=1.01, largest_epsilon_inside=100.0).check(sound, SILO)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied(copied):
    with pytest.raises(TypeError, match="a VerifiedPlan is not copied"):
        copied(fulcrum.verified_plan(PLAN))


def test_one_that_was_put_together_by_hand_is_refused():
    sound = fulcrum.verified_plan(PLAN)
    forged = object.__new__(type(sound))
    vars(forged).update(vars(sound), noise_multiplier=sound.noise_multiplier / 100)
    with pytest.raises(ReleaseError, match=r"was not made by fulcrum\.verified"):
        release_parameters_of(forged, SILO)
    with pytest.raises(PlanError, match=r"was not made by fulcrum\.verified"):
        fulcrum.verified_plan(forged)


def test_a_content_that_another_thread_changes_meanwhile_is_one_content_throughout(monkeypatch):
    """The digest, the checks and the noise come from one copy: none is of an earlier moment than the others."""
    content = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0, parameters=6, purpose="deployment").content()
    honest = list(content.silos)
    quiet = [msgspec.structs.replace(entry, noise_multiplier=entry.noise_multiplier / 1000) for entry in honest]
    verify, seen = verified_contents.verify, []

    def verify_and_change(checked):
        checks = verify(checked)
        seen.append(checked is content)
        content.silos[:] = quiet
        return checks

    monkeypatch.setattr(verified_contents, "verify", verify_and_change)
    sound = fulcrum.verified_plan(content)
    assert seen == [False]
    assert sound.noise_multiplier.tolist() == [entry.noise_multiplier for entry in honest]


def test_nobody_calls_a_plan_signed_without_its_signature(tmp_path):
    fulcrum.save_plan(PLAN, tmp_path / "plan.json")
    with pytest.raises(TypeError, match="issuer"):
        fulcrum.verified_plan(tmp_path / "plan.json", issuer="A" * 43 + "=")
    policy = Policy(issuer="A" * 43 + "=", largest_epsilon_above=9.0, largest_epsilon_inside=99.0)
    with pytest.raises(PolicyError, match="takes plans signed by"):
        policy.check(fulcrum.verified_plan(tmp_path / "plan.json"), SILO)


def test_the_old_name_still_verifies_and_warns():
    with pytest.warns(
        DeprecationWarning, match=r"^fulcrum\.verified goes with version 0\.3\. Use fulcrum\.verified_plan$"
    ):
        old_name = fulcrum.verified
    assert old_name is fulcrum.verified_plan
    assert "verified" not in fulcrum.__all__
