"""Names of tiers, schedules and commands beside the rounds of silos."""

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from error_codes import coded, error_shown

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.core.plan.verification import verify
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.topology import Tier, Topology, tier_name_problem
from fulcrum.errors import FederationError
from fulcrum.planning.theory.scheduling import repeats_rounds
from fulcrum.readers.schedule_file import with_schedule

SIZES = {"north": {"a": 100, "b": 100, "c": 100}}
PLAIN = fulcrum.Federation.from_sizes(SIZES)
ROUNDS = {"a": "1", "b": "1", "c": "1-"}


def made(rounds=4, schedule=ROUNDS, **options):
    return fulcrum.plan(with_schedule(PLAIN, schedule), rounds=rounds, epsilon=1.0, **options)


def test_a_plan_file_of_an_earlier_version_keeps_a_tier_that_is_called_every():
    outer = {"country": {"fr": ["north"], "de": ["south"]}}
    federation = fulcrum.Federation.from_sizes({"north": [4, 3], "south": [5]}, outer=outer)
    text = msgspec.json.encode(fulcrum.plan(federation, rounds=4, epsilon={"country": 1.0}).content()).decode()
    content = msgspec.json.decode(text.replace("country", "every"), type=fulcrum.PlanFile)
    tiers = tuple(replace(tier, name=tier.name.replace("country", "every")) for tier in federation.tiers)
    same = Topology(name=federation.name, sizes=federation.sizes, tiers=tiers, declared_names=federation.declared_names)
    entry = msgspec.structs.replace(content.federation, digest=same.digest)
    content = msgspec.structs.replace(content, federation=entry, digest="")
    assert [check for check in verify(content) if not check.holds] == []
    with pytest.raises(FederationError, check=coded("federation.tier-name")):
        fulcrum.Federation.from_sizes({"north": [4]}, outer={"every": {"fr": ["north"]}})
    with pytest.raises(FederationError, check=coded("federation.tier-name")):
        Topology(name="x", sizes=np.ones(2), tiers=(Tier(name="from", nodes=("a",), parent_of=np.zeros(2, int)),))


@pytest.mark.parametrize("name", ["from", "From", "UNTIL", "Every", " every"])
def test_no_tier_of_a_federation_has_the_name_of_a_column_of_rounds(name):
    assert "meaning of its own" in tier_name_problem(name)
    with pytest.raises(FederationError, check=coded("federation.tier-name")):
        fulcrum.Federation.from_sizes({"north": [4]}, outer={name: {"fr": ["north"]}})


def test_a_schedule_that_is_no_regular_file_is_refused_and_not_opened(tmp_path, monkeypatch):
    with pytest.raises(FederationError, check=coded("file.unreadable", file=".")):
        with_schedule(PLAIN, ".")
    if not hasattr(os, "mkfifo"):
        return
    os.mkfifo(tmp_path / "pipe.csv")

    def opened(*_):
        raise AssertionError("opening a pipe waits for ever")

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(FederationError, check=coded("file.unreadable", file="pipe.csv")):
        with_schedule(PLAIN, tmp_path / "pipe.csv")


def test_a_ledger_is_not_converted_under_a_plan_that_no_earlier_version_made(tmp_path, capsys):
    fulcrum.save_plan(made(purpose="deployment", parameters=66), tmp_path / "plan.json")
    command = ["ledger", "convert", str(tmp_path / "a"), str(tmp_path / "b"), "--plan", str(tmp_path / "plan.json")]
    assert run([*command, "--format", "json"]) == 2
    assert error_shown(capsys.readouterr().err.splitlines(keepends=True)[-1])["code"] == "cli.ledger-plan-scheduled"


TABLE = "silo,records,region,from,until\na,100,north,,\nb,100,north,,2\nc,100,north,3,\n"


@pytest.mark.parametrize(("table", "noted"), [(TABLE, True), (TABLE.replace(",2", ",1").replace(",3,", ",2,"), False)])
def test_a_replan_by_the_same_table_notes_that_rounds_count_anew(tmp_path, capsys, table, noted):
    (tmp_path / "fed.csv").write_text(TABLE)
    plan = fulcrum.plan(tmp_path / "fed.csv", rounds=5, epsilon=1.0, purpose="deployment", parameters=66)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    for silo in "abc":
        with Ledger.open(tmp_path / f"{silo}.ledger", silo=silo) as ledger:
            if silo != "c":
                release({"weight": np.ones(66)}, plan, silo, 1, ledger=ledger)
    (tmp_path / "fed.csv").write_text(table)
    command = ["replan", str(tmp_path / "plan.json"), "--federation", str(tmp_path / "fed.csv")]
    assert run([*command, "--ledgers", str(tmp_path), "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert ("same rounds as in the plan before" in shown.err) == noted
    assert json.loads(shown.out)


def test_rounds_are_the_same_by_name_and_only_where_silos_have_rounds_of_their_own():
    before = made().federation
    assert repeats_rounds(before, with_schedule(PLAIN, ROUNDS))
    larger = fulcrum.Federation.from_sizes({"north": {"z": 1} | SIZES["north"]})
    assert repeats_rounds(before, with_schedule(larger, ROUNDS | {"z": "2-"}))
    assert not repeats_rounds(before, with_schedule(larger, ROUNDS | {"a": "2", "z": "1-"}))
    assert not repeats_rounds(before, with_schedule(PLAIN, ROUNDS | {"a": "9"}))
    assert not repeats_rounds(before, PLAIN)
    always = with_schedule(fulcrum.Federation.from_sizes({"north": {"c": 5, "z": 5}}), {"c": "1-", "z": "2-"})
    assert not repeats_rounds(before, always)
