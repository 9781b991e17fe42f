"""What one site holds, and what it refuses: its folder, its purpose, its issuer, its files."""

import dataclasses
import os
import subprocess
import sys

import pytest
from site_folder import released, rewritten

import fulcrum
from fulcrum.aggregation.region_store import RegionFile
from fulcrum.aggregation.site_setup import site_toml
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import FORMAT, SiteSettings, once_free, read_site
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.training.training_module import load_training_module
from fulcrum.errors import DataError, FileInUseError, LedgerInUseError, ReleaseError, SignatureError
from fulcrum.planning.files.plan_issue import write_signature

pytest.importorskip("cryptography", reason="needs the extra secure")


def replaced_by_research(home):
    """Another plan of the same issuer and keys takes the place of the site's own: one for research."""
    keys = dict(fulcrum.read_plan(home / "plan.json").keys)
    plan = fulcrum.plan(str(home.parent / "fed.csv"), rounds=3, epsilon=5.0, keys=keys)
    fulcrum.save_plan(plan, home / "plan.json")
    write_signature(home / "plan.json", home.parent / "issuer.key", purpose="research")


@pytest.mark.parametrize("role", ["silo", "region", "server"])
@pytest.mark.parametrize("written", ["fulcrum.site/1", FORMAT])
def test_a_site_runs_no_research_plan_of_its_issuer_unless_it_was_made_for_research(silo, role, written):
    rewritten(silo, 'role = "silo"', f'role = "{role}"')
    if written != FORMAT:  # as it was written before there was a purpose
        rewritten(silo, FORMAT, written)
        rewritten(silo, 'purpose = "deployment"\npolicy = false\n', "")
    assert read_site(silo, role).settings.purpose == "deployment"
    replaced_by_research(silo)
    with pytest.raises(DataError, match=r"a site for deployment, and .* is a plan for research") as caught:
        read_site(silo, role)
    assert "\n" not in str(caught.value)


def test_a_deployed_silo_draws_no_seeded_noise_whatever_plan_it_is_given(silo, model):
    site = read_site(silo, "silo")
    replaced_by_research(silo)
    research = fulcrum.read_signed_plan(silo / "plan.json", site.settings.issuer)
    with pytest.raises(ReleaseError):
        SiloStation(dataclasses.replace(site, plan=research)).answer(pack_model(model), 1)


def test_a_site_for_research_runs_research_plans_alone_and_heeds_no_policy_but_to_refuse(silo, model):
    rewritten(silo, 'purpose = "deployment"', 'purpose = "research"')
    with pytest.raises(DataError, match=r"a site for research, and .* is a plan for deployment"):
        read_site(silo, "silo")
    replaced_by_research(silo)
    SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    (silo / "policy.toml").write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")
    with pytest.raises(fulcrum.PolicyError, match="deployment plans alone"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)


def test_a_format_that_knows_no_purpose_cannot_be_given_one(silo):
    rewritten(silo, FORMAT, "fulcrum.site/1")
    assert read_site(silo, "silo").settings.purpose == "deployment"
    rewritten(silo, 'purpose = "deployment"', 'purpose = "research"')
    with pytest.raises(DataError, match="knows neither purpose nor policy"):
        read_site(silo, "silo")


@pytest.mark.parametrize("written", ["fulcrum.site/1", FORMAT])
def test_a_policy_whose_loss_nobody_would_notice_is_refused_until_the_site_says_that_there_is_one(silo, model, written):
    (silo / "policy.toml").write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")
    rewritten(silo, FORMAT, written)
    with pytest.raises(fulcrum.PolicyError, match=r"its loss would go unnoticed\. Write policy = true") as caught:
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    assert "\n" not in str(caught.value)
    assert released(silo) == []
    rewritten(silo, written, FORMAT)
    rewritten(silo, "policy = false", "policy = true")
    SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    (silo / "policy.toml").unlink()
    with pytest.raises(fulcrum.PolicyError, match="cannot be read"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 2)
    assert released(silo) == [1]


def test_a_policy_that_is_gone_or_cannot_be_reached_is_not_left_out(silo, model):
    (silo / "policy.toml").symlink_to(silo / "moved.toml")
    with pytest.raises(fulcrum.PolicyError, match="cannot be read"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    (silo / "policy.toml").unlink()
    rewritten(silo, "policy = false", "policy = true")
    with pytest.raises(fulcrum.PolicyError, match="cannot be read"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    assert released(silo) == []


@pytest.mark.parametrize("known", [False, True])
def test_a_policy_that_is_changed_while_a_silo_runs_holds_from_the_next_round_on(silo, model, known):
    if known:
        rewritten(silo, "policy = false", "policy = true")
        (silo / "policy.toml").write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")
    station = SiloStation(read_site(silo, "silo"))
    station.answer(pack_model(model), 1)
    (silo / "policy.toml").write_text("largest_epsilon_above = 0.001\nlargest_epsilon_inside = 90\n")
    with pytest.raises(fulcrum.PolicyError):
        station.answer(pack_model(model), 2)
    assert released(silo) == [1]


def test_a_policy_that_becomes_stricter_while_a_silo_trains_holds_for_that_round(silo, model):
    rewritten(silo, "policy = false", "policy = true")
    path = silo / "policy.toml"
    path.write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")

    def train(given, assignment):
        path.write_text("largest_epsilon_above = 0.001\nlargest_epsilon_inside = 90\n")
        return given

    station = SiloStation(read_site(silo, "silo"))
    station._training = dataclasses.replace(load_training_module("fulcrum.engines.built_in_training"), train=train)
    with pytest.raises(fulcrum.PolicyError, match=r"allows epsilon 0\.001 above"):
        station.answer(pack_model(model), 1)
    assert released(silo) == []


def test_a_policy_that_becomes_stricter_while_a_silo_waits_for_its_ledger_holds_for_that_round(
    silo, model, monkeypatch
):
    """Training holds the ledger's place, as another process of the site does that is about to end."""
    rewritten(silo, "policy = false", "policy = true")
    path, held = silo / "policy.toml", []
    path.write_text("largest_epsilon_above = 9\nlargest_epsilon_inside = 90\n")

    def train(given, assignment):
        held.append(Ledger.open(silo / "state" / "a.ledger", silo="a"))
        return given

    def let_go(seconds):
        path.write_text("largest_epsilon_above = 0.001\nlargest_epsilon_inside = 90\n")
        held[0].close()

    monkeypatch.setattr("fulcrum.core.silo.site.time.sleep", let_go)
    station = SiloStation(read_site(silo, "silo"))
    station._training = dataclasses.replace(load_training_module("fulcrum.engines.built_in_training"), train=train)
    with pytest.raises(fulcrum.PolicyError, match=r"allows epsilon 0\.001 above"):
        station.answer(pack_model(model), 1)
    assert released(silo) == []


def test_the_issuer_of_a_site_is_a_key_and_never_a_file(silo, monkeypatch):
    issuer = read_site(silo, "silo").settings.issuer
    monkeypatch.chdir(silo.parent)
    forger = fulcrum.new_key(silo.parent / "forger.key")
    fulcrum.sign_plan(silo / "plan.json", silo.parent / "forger.key")
    named = silo.parent / issuer  # a file that is named like the key
    named.parent.mkdir(parents=True, exist_ok=True)
    named.write_text(forger)
    with pytest.raises(SignatureError, match="not by the issuer"):
        read_site(silo, "silo")
    rewritten(silo, issuer, "forger.key.pub")
    with pytest.raises(SignatureError, match="is not a public key"):
        read_site(silo, "silo")


def test_an_unsigned_or_changed_plan_is_refused(silo):
    (silo / "plan.json.sig").unlink()
    with pytest.raises(SignatureError, match="cannot be read"):
        read_site(silo, "silo")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("silo", "region"), "is that of a region"),
        (("fulcrum.site/2", "fulcrum.site/9"), "expected fulcrum.site/2"),
        (("role", "rule"), "does not describe a site"),
        (("=", ":"), "does not describe a site"),
    ],
)
def test_a_site_file_that_is_wrong_says_so(silo, change, message):
    path = silo / "site.toml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(DataError, match=message):
        read_site(silo, "silo")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["site.toml", "plan.json", "plan.json.sig", "site.key", "policy.toml"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(silo, name):
    (silo / name).unlink(missing_ok=True)
    os.mkfifo(silo / name)
    reading = "import sys; from fulcrum.core.silo.site import read_site; site = read_site(sys.argv[1]); site.policy"
    done = subprocess.run(
        [sys.executable, "-c", reading, silo],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"{name} is not a file. Copy the file" in done.stderr.splitlines()[-1]


def test_a_missing_site_file_says_so(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_site(tmp_path, "silo")


def test_site_files_are_read_as_they_were_written():
    options = {"data": 'quo"ted\\', "steps": 3, "rate": 0.5, "deep": True, "classes": ["a", "b"]}
    settings = SiteSettings(format=FORMAT, role="server", name="s", issuer="k", train="m", options=options)
    import tomllib

    import msgspec

    assert msgspec.convert(tomllib.loads(site_toml(settings)), SiteSettings) == settings
    with pytest.raises(DataError, match="an option must be"):
        site_toml(SiteSettings(format=FORMAT, role="server", name="s", issuer="k", options={"a": None}))


HOLDING = """
import sys, time
from fulcrum.core.store.ledger import Ledger
from fulcrum.planning.files.plan_issue import write_signature

with Ledger.open(sys.argv[1], silo="lyon"):
    print("held", flush=True)
    time.sleep(1.0)
"""


def test_a_file_that_another_process_of_the_site_is_about_to_let_go_is_waited_for(tmp_path):
    path = tmp_path / "lyon.ledger"
    other = subprocess.Popen([sys.executable, "-c", HOLDING, str(path)], stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LedgerInUseError):
            Ledger.open(path, silo="lyon")
        with once_free(lambda: Ledger.open(path, silo="lyon")) as ledger:
            assert ledger.silo == "lyon"


@pytest.mark.parametrize("kind", ["ledger", "region"])
def test_a_file_that_is_never_let_go_is_given_up(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("fulcrum.core.silo.site._LONGEST_WAIT", 0.3)
    opening = {
        "ledger": lambda: Ledger.open(tmp_path / "file", silo="lyon"),
        "region": lambda: RegionFile.open(tmp_path / "file", region="north", plan_digest="p"),
    }[kind]
    held, tries = opening(), []
    with pytest.raises(FileInUseError, match=r"is open in this process\. Close it first"):
        once_free(lambda: tries.append(1) or opening())
    assert len(tries) > 1
    held.close()
    once_free(opening).close()
