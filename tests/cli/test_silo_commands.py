import contextlib
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from earlier import write_format_1
from error_codes import error_shown

from fulcrum.cli.command_line import run
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.commit_mark import CommitMark
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.rules import rule_registry

PLAN = ["--rounds", 4, "--epsilon", 2, "--epsilon-inside", 6, "--purpose", "deployment", "--parameters", 5]
OBSERVERS = ("silo", "region", "federation")
CSV = "silo,records,region\nlille,100,north\nmetz,80,north\nnice,120,south\n"


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    Path("silos.csv").write_text(CSV)

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def released(rounds=2):
    made = read_plan("plan.json")
    Path("ledgers").mkdir(exist_ok=True)
    for name in ("lille", "metz", "nice"):
        with Ledger.open(f"ledgers/{name}.ledger", silo=name) as ledger:
            for round_number in range(1, rounds + 1):
                release(np.ones(5), made, name, round_number, ledger=ledger)


def test_a_plan_is_signed_and_known_by_its_issuer(command):
    command("plan", "silos.csv", *PLAN, "-o", "plan.json")
    code, out, _ = command("keygen", "-o", "issuer.key", "--format", "json")
    public = json.loads(out)["public_key"]
    assert code == 0
    assert command("sign", "plan.json", "--key", "issuer.key")[0] == 0
    assert command("verify", "plan.json", "--issuer", public)[0] == 0
    assert command("verify", "plan.json", "--issuer", "issuer.key.pub")[0] == 0
    command("keygen", "-o", "other.key")
    code, out, _ = command("verify", "plan.json", "--issuer", "other.key.pub")
    assert (code, "not by the issuer" in out, "checks fail: do not use this plan." in out) == (1, True, True)


def test_a_research_plan_says_so_when_it_is_made_verified_and_signed(command):
    code, out, _ = command("plan", "silos.csv", "--rounds", 2, "--epsilon", 1, "-o", "plan.json")
    assert code == 0
    assert " ".join(out.split()).endswith(
        "· This is a plan for research: it protects nobody, and no issuer signs it. For a plan to deploy, add "
        "--purpose deployment and --parameters N, the number of trained parameters."
    )
    code, out, _ = command("verify", "plan.json", "--format", "json")
    rows = json.loads(out)["checks"][:3]
    assert [(row["name"], row["detail"]) for row in rows] == [
        ("purpose", "research: it protects nobody"),
        ("signature", "none"),
        ("issuer", "nobody signed this plan"),
    ]
    command("keygen", "-o", "issuer.key")
    code, out, line = command("sign", "plan.json", "--key", "issuer.key", "--format", "json")
    assert (code, out, error_shown(line)["code"]) == (2, "", "plan.purpose-not-deployment")
    assert not Path("plan.json.sig").exists()


def test_a_deployment_plan_names_the_next_command(command):
    code, out, _ = command("plan", "silos.csv", *PLAN, "-o", "our plan.json")
    assert code == 0
    told = " ".join(out.split())
    assert told.endswith("This is a plan for deployment. Sign it with: fulcrum sign 'our plan.json' --key issuer.key")


def test_keys_to_seal_to_are_made_too(command):
    code, out, _ = command("keygen", "north.key", "--kind", "sealing", "--format", "json")
    public = json.loads(out)["public_key"]
    assert (code, public[:7]) == (0, "x25519:")
    assert Path("north.key.pub").read_text() == public + "\n"
    Path("keys.toml").write_text(f'north = "{public}"\n')
    assert command("plan", "silos.csv", *PLAN, "--keys", "keys.toml", "-o", "plan.json")[0] == 0
    assert read_plan("plan.json").keys == {"north": public}


def test_a_policy_allows_or_refuses_a_plan(command):
    Path("keys.toml").write_text('metz = "a2V5"\n')
    command("plan", "silos.csv", *PLAN, "--keys", "keys.toml", "-o", "plan.json")
    Path("policy.toml").write_text(
        'largest_epsilon_above = 2.0\nlargest_epsilon_inside = 6.0\n[peers]\nmetz = "a2V5"\n'
    )
    assert command("policy", "plan.json", "--silo", "lille", "--policy", "policy.toml")[0] == 0
    Path("policy.toml").write_text("largest_epsilon_above = 1.0\nlargest_epsilon_inside = 6.0\n")
    code, _, err = command("policy", "plan.json", "--silo", "lille", "--policy", "policy.toml")
    assert code == 2
    assert err.startswith("fulcrum: silo 'lille' allows epsilon 1 above its region, the plan spends 2. ")


def test_a_policy_counts_what_the_ledger_holds_and_pins_the_regions_key(command):
    command("keygen", "-o", "north.key", "--kind", "sealing")
    north = Path("north.key.pub").read_text().strip()
    Path("keys.toml").write_text(f'north = "{north}"\n')
    command("plan", "silos.csv", *PLAN, "--keys", "keys.toml", "-o", "plan.json")
    released()
    command("plan", "silos.csv", *PLAN, "--keys", "keys.toml", "--seed", 1, "-o", "second.json")
    rules = f'largest_epsilon_above = 9.0\nlargest_epsilon_inside = 9.0\nlargest_rounds = 5\nregion_key = "{north}"\n'
    Path("policy.toml").write_text(rules)
    ask = ["--silo", "lille", "--policy", "policy.toml"]
    assert command("policy", "second.json", *ask)[0] == 0
    assert command("policy", "plan.json", *ask, "--ledger", "ledgers/lille.ledger")[0] == 0
    code, _, err = command("policy", "second.json", *ask, "--ledger", "ledgers/lille.ledger")
    assert code == 2
    assert err.startswith(
        "fulcrum: silo 'lille' allows 5 rounds, the plan has 4, and 2 releases were made under others. "
    )
    code, _, line = command("policy", "second.json", *ask, "--ledger", "ledgers/metz.ledger", "--format", "json")
    error = error_shown(line)
    assert (code, error["code"], error["details"]["owner"]) == (2, "ledger.other-silo", "metz")
    Path("policy.toml").write_text(rules.replace(north, "x25519:another"))
    code, _, line = command("policy", "plan.json", *ask, "--format", "json")
    error = error_shown(line)
    assert (code, error["code"], error["details"]["region"]) == (2, "policy.region-key-differs", "north")


def test_ledgers_are_shown_and_verified(command):
    command("plan", "silos.csv", *PLAN, "-o", "plan.json")
    released()
    code, out, _ = command("ledger", "show", "ledgers/lille.ledger", "--format", "json")
    told = json.loads(out)
    assert (code, told["silo"], told["releases"]) == (0, "lille", 2)
    assert list(told["epsilon"]) == ["silo", "region", "federation"]
    assert 0 < told["epsilon"]["region"] < told["epsilon"]["silo"] < 6
    assert told["spent"]["region"] == 2 * told["entries"][0]["shifts"]["region"]
    shown = command("ledger", "show", "ledgers/lille.ledger")[1]
    assert "spent at region" in shown
    assert "spent at federation" in shown
    assert (
        "shift_silo,shift_region,shift_federation"
        in command("ledger", "show", "ledgers/lille.ledger", "--format", "csv")[1]
    )
    assert "2 releases" in command("ledger", "show", "ledgers/lille.ledger")[1]
    assert command("ledger", "verify", "ledgers/lille.ledger", "--least-sequence", 2)[0] == 0
    code, out, _ = command("ledger", "verify", "ledgers/lille.ledger", "--least-sequence", 3)
    assert (code, "release nothing more" in out) == (1, True)


def test_forged_spending_is_neither_shown_nor_counted(command):
    command("plan", "silos.csv", *PLAN, "-o", "plan.json")
    released()
    Path("policy.toml").write_text("largest_epsilon_above = 9.0\nlargest_epsilon_inside = 9.0\n")
    ledger = Path("ledgers/lille.ledger")
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
        connection.execute("UPDATE entry SET spent = ?", (Cost(shifts=dict.fromkeys(OBSERVERS, 0.0)).to_text(),))
    policy = ("policy", "plan.json", "--silo", "lille", "--policy", "policy.toml", "--ledger", ledger)
    replan = ("replan", "plan.json", "--federation", "silos.csv", "--ledgers", "ledgers", "-o", "rest.json")
    for arguments in (("ledger", "show", ledger), policy, replan):
        code, out, line = command(*arguments, "--format", "json")
        assert (code, out, error_shown(line)["code"]) == (2, "", "ledger.check-failed")
    code, out, _ = command("ledger", "verify", ledger, "--format", "json")
    failing = {check["name"] for check in json.loads(out)["checks"] if not check["holds"]}
    assert (code, failing) == (1, {"chain", "sums"})


def test_a_ledger_that_was_left_in_a_write_is_not_shown_without_its_journal(command):
    command("plan", "silos.csv", *PLAN, "-o", "plan.json")
    released()
    ledger = Path("ledgers/lille.ledger")
    whole = ledger.read_bytes()
    with ledger.open("r+b", buffering=0) as file:
        CommitMark(serial=10**6, length=10**5, digest=bytes(32)).write(file)
    replan = ("replan", "plan.json", "--federation", "silos.csv", "--ledgers", "ledgers", "-o", "rest.json")
    for arguments in (("ledger", "show", ledger), ("ledger", "verify", ledger), replan):
        code, out, line = command(*arguments, "--format", "json")
        assert (code, out, error_shown(line)["code"]) == (2, "", "storage.journal-lost")
    assert not Path("rest.json").exists()
    ledger.write_bytes(whole)
    assert command(*replan)[0] == 0


def test_a_ledger_of_an_earlier_version_is_converted_by_the_command_that_is_named(command):
    command("plan", "silos.csv", *PLAN, "-o", "plan.json")
    made = read_plan("plan.json")
    terms = release_parameters_of(made, "lille")
    inside, above = (terms.cost.shifts[name] for name in ("silo", "region"))
    allowed = {made.digest: (4, terms.allowance.shifts["region"], terms.allowance.shifts["silo"])}
    releases = [(made.digest, number, "m", b"x", above, inside) for number in (1, 2)]
    head = write_format_1(Path("old.ledger"), "lille", allowed, releases)
    code, _, err = command("ledger", "show", "old.ledger")
    assert (code, err.count("\n"), "Run: fulcrum ledger convert OLD NEW" in err) == (2, 1, True)
    code, out, _ = command("ledger", "convert", "old.ledger", "new.ledger", "--plan", "plan.json", "--format", "json")
    assert code == 0
    assert json.loads(out) == {
        "silo": "lille", "releases": 2, "ledger": "new.ledger", "former_head": head,
    }  # fmt: skip
    told = json.loads(command("ledger", "show", "new.ledger", "--format", "json")[1])
    assert told["spent"] == {name: 2 * shift for name, shift in terms.cost.shifts.items()}
    assert told["entries"][1]["former_hash"] == head
    assert command("ledger", "verify", "new.ledger", "--least-sequence", 2)[0] == 0
    for arguments in (("ledger", "show", "old.ledger"), ("ledger", "convert", "old.ledger", "third.ledger")):
        code, _, line = command(*arguments, "--format", "json")
        assert (code, error_shown(line)["code"]) in ((2, "ledger.converted"), (2, "conversion.done-before"))
    code, out, _ = command("ledger", "convert", "old.ledger", "new.ledger")
    assert code == 2


def test_a_ledger_is_converted_with_a_plan_whose_server_rule_is_not_known_here(command, monkeypatch):
    command("plan", "silos.csv", *PLAN, "--server", "momentum", "-o", "plan.json")
    made = read_plan("plan.json")
    terms = release_parameters_of(made, "lille")
    inside, above = (terms.cost.shifts[name] for name in ("silo", "region"))
    allowed = {made.digest: (4, terms.allowance.shifts["region"], terms.allowance.shifts["silo"])}
    write_format_1(Path("old.ledger"), "lille", allowed, [(made.digest, 1, "m", b"x", above, inside)])
    monkeypatch.delitem(rule_registry._RULES, "momentum")
    code, out, err = command("ledger", "convert", "old.ledger", "new.ledger", "--plan", "plan.json", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["releases"] == 1
    told = json.loads(command("ledger", "show", "new.ledger", "--format", "json")[1])
    assert told["spent"] == dict(terms.cost.shifts)


def test_a_conversion_without_plans_is_refused(command):
    write_format_1(Path("old.ledger"), "lille", {"p": (3, 1.0, 8.0)}, [("p", 1, "m", b"x", 0.25, 1.0)])
    code, _, line = command("ledger", "convert", "old.ledger", "new.ledger", "--format", "json")
    error = error_shown(line)
    assert (code, error["code"], error["details"]["plans"]) == (2, "conversion.plans-missing", "p")
    assert not Path("new.ledger").exists()


def test_a_ledger_gives_the_terminal_no_orders(command):
    orders = "lille\x1b]0;mine\x07\x1b[2J\x9b31m"
    allowed = Allowance(plan_digest=orders, rounds=2, shifts={"silo": 1.0, orders: 1.0})
    with Ledger.open("odd.ledger", silo=orders) as ledger:
        ledger.enter_plan(allowed)
        cost = Cost(shifts={"silo": 0.1, orders: 0.1})
        ledger.record(allowed, round_number=1, input_digest=orders, payload=b"", cost=cost)
    for arguments in (
        ("ledger", "show", "odd.ledger"),
        ("ledger", "show", "odd.ledger", "--format", "json"),
        ("ledger", "show", "odd.ledger", "--format", "csv"),
        ("ledger", "verify", "odd.ledger"),
        ("ledger", "show", "\x1b[2Jnone.ledger"),
        ("policy", "\x1b[2Jnone.json", "--silo", orders, "--policy", "\x1b[2J.toml"),
    ):
        _, out, err = command(*arguments)
        assert out or err
        assert all(char == "\n" or char.isprintable() for char in out + err), arguments
    assert r"lille\x1b]0;mine\x07" in command("ledger", "show", "odd.ledger")[1]


def test_the_remaining_rounds_are_replanned(command):
    command("plan", "silos.csv", *PLAN, "-o", "plan.json")
    released()
    Path("new.csv").write_text(CSV + "caen,40,south\n")
    code, out, err = command("replan", "plan.json", "--federation", "new.csv", "--ledgers", "ledgers", "-o", "new.json")
    assert (code, err) == (0, "")
    assert "Over these 2 rounds and all released before" in " ".join(out.split())
    assert command("verify", "new.json")[0] == 0
    assert (
        "caen"
        in command("replan", "plan.json", "--federation", "new.csv", "--ledgers", "ledgers", "--format", "csv")[1]
    )


BAD = {
    "deployment without size": (
        ["plan", "silos.csv", "--rounds", 1, "--epsilon", 1, "--purpose", "deployment"],
        "lattice.parameters-missing",
        {},
    ),
    "no key": (["sign", "plan.json", "--key", "none.key"], "file.unreadable", {"file": "none.key"}),
    "not a key": (["sign", "plan.json", "--key", "silos.csv"], "key.private-invalid", {"file": "silos.csv"}),
    "no issuer": (["verify", "plan.json", "--issuer", "YWJj"], "key.public-invalid", {"kind": "signing"}),
    "no policy": (
        ["policy", "plan.json", "--silo", "lille", "--policy", "none.toml"],
        "file.unreadable",
        {"file": "none.toml"},
    ),
    "no silo": (
        ["policy", "plan.json", "--silo", "lile", "--policy", "policy.toml"],
        "plan.silo-unknown",
        {"silo": "lile", "suggestion": " Did you mean 'lille'?"},
    ),
    "no ledger": (["ledger", "show", "none.ledger"], "storage.operation-failed", {"operation": "read"}),
    "not a ledger": (["ledger", "show", "silos.csv"], "storage.file-kind", {"noun": "a ledger"}),
    "no ledgers": (
        ["replan", "plan.json", "--federation", "silos.csv", "--ledgers", "none"],
        "cli.ledgers-not-a-folder",
        {"folder": "none"},
    ),
    "missing ledger": (
        ["replan", "plan.json", "--federation", "silos.csv", "--ledgers", "."],
        "replan.ledger-missing",
        {"silo": "lille", "file": "lille.ledger"},
    ),
    "kind": (
        ["keygen", "-o", "a.key", "--kind", "sealin"],
        "errors.name-unknown",
        {"known": "signing, sealing", "suggestion": " Did you mean 'sealing'?"},
    ),
    "keys": (["plan", "silos.csv", *PLAN, "--keys", "silos.csv"], "cli.keys-not-toml", {"file": "silos.csv"}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_two(command, name):
    command("plan", "silos.csv", *PLAN, "-o", "plan.json")
    Path("policy.toml").write_text("largest_epsilon_above = 9.0\nlargest_epsilon_inside = 9.0\n")
    arguments, expected, values = BAD[name]
    code, out, line = command(*arguments)
    assert (code, out) == (2, "")
    code, out, parts = command(*arguments, "--format", "json")
    assert (code, out) == (2, "")
    error = error_shown(parts)
    assert line == f"fulcrum: {error['message']}\n"
    assert error["code"] == expected
    assert {name: error["details"][name] for name in values} == values
