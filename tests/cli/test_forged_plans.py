"""No command but verify takes a plan file whose words or stated figures are false, whoever signed it."""

from pathlib import Path

import pytest
from forging import lie, sign_anyway

import fulcrum
from fulcrum.cli.command_line import run

pytest.importorskip("cryptography", reason="needs the extra secure")

DEPLOYED = {
    "policy": ["policy", "plan.json", "--silo", "lille", "--policy", "policy.toml"],
    "sign": ["sign", "plan.json", "--key", "issuer.key"],
    "report": ["report", "plan.json", "-o", "report.html"],
    "replan": ["replan", "plan.json", "--federation", "silos.csv", "--ledgers", "ledgers"],
    "diff": ["diff", "plan.json", "true.json"],
    "diff, the other": ["diff", "true.json", "plan.json"],
    "export": ["export", "plan.json", "--to", "csv"],
    "audit": ["audit", "plan.json"],
    "kits for NVIDIA FLARE": ["deploy", "nvflare", "plan.json", "-o", "kits"],
    "kits for Flower": ["deploy", "flower", "plan.json", "-o", "kits"],
    "one machine, NVIDIA FLARE": ["up", "nvflare", "plan.json"],
    "one machine, Flower": ["up", "flower", "plan.json"],
    "simulation": ["simulate", "flower", "plan.json"],
}
RESEARCHED = {
    "train": ["train", "plan.json"],
    "tune": ["tune", "plan.json", "--data", "digits", "-o", "tuned.json"],
}
FALSE = "plan.json does not hold what it says: epsilon at silo, silo 'lille': stated 0.1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a federation, an issuer, a policy, and room for ledgers."""
    monkeypatch.chdir(tmp_path)
    Path("silos.csv").write_text("silo,records,region\nlille,200,north\nmetz,220,north\nnice,300,south\n")
    Path("policy.toml").write_text("largest_epsilon_above = 99\nlargest_epsilon_inside = 99\n")
    Path("ledgers").mkdir()
    fulcrum.new_key("issuer.key")
    return tmp_path


def save_plan(path, purpose="deployment"):
    epsilon = {"region": 1.0, "aggregator": 6.0}
    fulcrum.save_plan(fulcrum.plan("silos.csv", rounds=2, epsilon=epsilon, parameters=34, purpose=purpose), path)


@pytest.fixture
def refused(folder, capsys):
    """Runs a command that must be refused in one line and leave no file, and returns the line."""

    def call(*arguments):
        before = sorted(folder.rglob("*"))
        code = run(list(arguments))
        shown = capsys.readouterr()
        assert (code, shown.out, sorted(folder.rglob("*"))) == (2, "", before)
        assert shown.err.count("\n") == 1
        return shown.err

    return call


@pytest.mark.parametrize("name", [*DEPLOYED, *RESEARCHED])
def test_no_command_but_verify_takes_a_plan_whose_words_are_false(refused, name):
    save_plan("plan.json", "deployment" if name in DEPLOYED else "research")
    Path("true.json").write_bytes(Path("plan.json").read_bytes())
    lie(Path("plan.json"))
    if name != "sign":
        sign_anyway(Path("plan.json"), Path("issuer.key"))
    assert FALSE in refused(*(DEPLOYED | RESEARCHED)[name])


def test_kits_whose_plan_was_changed_are_not_followed(refused):
    Path("kits").mkdir()
    save_plan("kits/plan.json")
    lie(Path("kits/plan.json"))
    assert f"kits/{FALSE}" in refused("follow", "nvflare", "kits")


def test_a_policy_that_asks_for_an_issuer_reads_the_words_too(refused):
    save_plan("plan.json")
    with Path("policy.toml").open("a") as file:
        file.write(f'issuer = "{Path("issuer.key.pub").read_text().strip()}"\n')
    lie(Path("plan.json"))
    sign_anyway(Path("plan.json"), Path("issuer.key"))
    assert FALSE in refused(*DEPLOYED["policy"])


def test_verify_shows_every_check_of_a_false_plan_that_is_well_signed(folder, capsys):
    save_plan("plan.json")
    lie(Path("plan.json"))
    sign_anyway(Path("plan.json"), Path("issuer.key"))
    assert run(["verify", "plan.json", "--issuer", "issuer.key.pub", "--federation", "silos.csv"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name in ("purpose", "signature", "issuer"):
        assert any(row[:2] == [name, "yes"] for row in rows)
    assert any(row[:2] == ["words", "no"] for row in rows)
