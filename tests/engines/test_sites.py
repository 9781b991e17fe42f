"""The folders of sites get a plan that is signed for their purpose, once every silo's policy has passed it."""

from pathlib import Path

import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.run_commands.deployments import SiteOptions
from fulcrum.cli.shared_options.training_options import TrainingOptions
from fulcrum.core.plan import verified_plan as verified_contents
from fulcrum.core.plan.signatures import read_signed_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.engines.site_folders import BUILT_IN, Deployment, signed_plan
from fulcrum.errors import PlanError, PolicyError
from fulcrum.planning.files.plan_issue import new_key, write_signature

pytest.importorskip("cryptography", reason="needs the extra secure")

SIZES = {"north": [200 + k for k in range(20)], "south": [300] * 20}
LOOSE = "largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verified_contents._VERIFIED.clear()
    Path("work").mkdir()
    Path("policy.toml").write_text(LOOSE)
    return tmp_path


@pytest.fixture
def verifications(monkeypatch):
    """The contents whose numbers were recomputed, one entry a time."""
    found, recomputed = [], verified_contents.verify

    def counted(content):
        found.append(content)
        return recomputed(content)

    monkeypatch.setattr(verified_contents, "verify", counted)
    return found


def made(purpose="deployment"):
    federation = fulcrum.Federation.from_sizes(SIZES)
    fulcrum.save_plan(fulcrum.plan(federation, rounds=2, epsilon=1.0, parameters=34, purpose=purpose), "plan.json")
    return fulcrum.read_plan("plan.json")


def test_a_plan_is_verified_once_for_the_kits_of_all_silos_and_their_policies(folder, verifications):
    deployment = SiteOptions(policy=Path("policy.toml")).deployment(made(), TrainingOptions())
    assert len(verifications) == 1
    plan = signed_plan(deployment, folder / "work", {"north-1": new_key("silo.key")}, None)
    assert len(verifications) == 2, "with keys it is another plan"
    assert plan.keys
    Policy(largest_epsilon_above=9.0, largest_epsilon_inside=90.0).check_every_silo(plan)
    assert len(verifications) == 2


def test_a_policy_may_name_the_issuer_that_signs_the_kits(folder):
    issuer = new_key("issuer.key")
    Path("policy.toml").write_text(f'{LOOSE}issuer = "{issuer}"\n')
    deployment = SiteOptions(policy=Path("policy.toml")).deployment(made(), TrainingOptions())
    assert signed_plan(deployment, folder / "work", {}, Path("issuer.key")).issuer == issuer
    new_key("other.key")
    with pytest.raises(PolicyError, match="takes plans signed by"):
        signed_plan(deployment, folder / "work", {}, Path("other.key"))


def test_no_kit_is_made_under_a_plan_that_one_silo_does_not_allow(folder):
    Path("policy.toml").write_text(LOOSE + "smallest_region = 21\n")
    deployment = SiteOptions(policy=Path("policy.toml")).deployment(made(), TrainingOptions())
    with pytest.raises(PolicyError, match="silo 'north-1' asks for a region of at least 21 silos"):
        signed_plan(deployment, folder / "work", {}, None)


def test_sites_for_research_get_a_signed_plan_and_those_for_deployment_none_for_research(folder):
    research = Deployment(plan=made("research"), train=BUILT_IN)
    plan = signed_plan(research, folder / "work", {}, None)
    assert (plan.purpose, read_signed_plan("work/plan.json", plan.issuer).digest) == ("research", plan.digest)
    with pytest.raises(PlanError, check=coded("plan.purpose-not-deployment")):
        write_signature("work/plan.json", "work/issuer.key", purpose="deployment")
