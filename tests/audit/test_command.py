"""`fulcrum audit`: what it prints, writes and refuses; and a silo's operator who audits alone."""

import csv
import io
import json
import tomllib

import msgspec
import pytest
from error_codes import coded, error_shown
from faults import made

import fulcrum
from fulcrum.aggregation.site_setup import site_toml
from fulcrum.audit.evidence.findings import EVERY_COLUMN, Audit, Finding, read_audit
from fulcrum.audit.replays import canary_game as auditing
from fulcrum.cli.command_line import run
from fulcrum.core.silo.site import FORMAT, SiteSettings
from fulcrum.errors import DataError
from fulcrum.planning.files.plan_issue import new_key, sign_plan
from fulcrum.rounding import display_epsilon as shown_up
from fulcrum.simulation.training_runs import save_run, train
from fulcrum.views.terminal.audit_tables import observer_of


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    fulcrum.save_plan(made(), path)
    return path


def said(capsys, *arguments):
    code = run(["audit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_an_audit_prints_its_verdict_and_that_it_proves_nothing(plan_file, capsys):
    code, out, err = said(capsys, plan_file, "--trials", "2000", "--seed", "1", "--confidence", "0.9999")
    assert code == 0
    assert "consistent: no measurement speaks against the claims of the plan" in " ".join(out.split())
    assert "A bound that was not broken is not proven by that" in " ".join(out.split())
    assert "north, 1 colluding" in out
    assert "a region's sum" in out
    assert "Replaying: " in err
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_json_holds_every_bound_and_csv_a_row_for_all_that_was_found(plan_file, capsys):
    code, out, _ = said(capsys, plan_file, "--trials", "2000", "--seed", "1", "--format", "json")
    told = json.loads(out)
    assert code == (1 if told["verdict"] == "violated" else 0)
    assert told["format"] == "fulcrum.audit/1"
    for found in told["findings"]:
        assert {"stated", "exact", "renyi", "assumption_free", "gaussian", "verdict"} <= found.keys()
    _, out, _ = said(capsys, plan_file, "--trials", "2000", "--seed", "1", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["kind"] for row in rows] == ["observer"] * len(told["findings"]) + ["noise"] * len(told["probes"])
    for row, found in zip(rows, [*told["findings"], *told["probes"]], strict=True):
        for name, value in found.items():
            assert row[name] == ("" if value is None else " ".join(value) if name == "reasons" else str(value)), name


def test_rows_of_every_kind_of_finding_fit_one_table():
    about = {"version": "1", "plan_digest": "0", "federation": "f", "purpose": "research", "delta": 1e-5, "rounds": 1}
    about |= {"confidence": 0.95, "tests": 1, "trials": 1, "seed": 1, "seconds": 1.0}
    learned = {"node": "north", "silo": "a", "verdict": "consistent"}
    found = msgspec.convert(
        about
        | {
            "findings": [],
            "properties": [
                learned
                | {
                    "arm": "joint",
                    "weights": "by size",
                    "server": "plain",
                    "noise": True,
                    "observer": "all",
                    "shadows": 9,
                }
                | {"error": 0.5, "blind_error": 0.6, "nats_at_least": 0.0, "nats_at_most": None}
            ],
            "records": [
                learned
                | {"epsilon": 1.0, "allowed": 0.7, "right_at_least": 0.4, "right_at_most": 0.6}
                | {"resemblance": 0.1, "bare_resemblance": 0.9, "trials": 5}
            ],
        },
        Audit,
    )
    rows = found.every_row()
    assert [(row["kind"], row["node"], row["silo"]) for row in rows] == [
        ("concentration", "north", "a"),
        ("record", "north", "a"),
    ]
    assert (rows[0]["error"], rows[1]["allowed"]) == (0.5, 0.7)
    assert all(row.keys() <= set(EVERY_COLUMN) for row in rows)


@pytest.mark.parametrize(
    ("plan", "options"),
    [({}, []), ({}, ["--silo", "south-2"]), ({"aggregation": "masked"}, []), ({"injection": "aggregator"}, [])],
)
def test_json_is_plain_and_holds_the_figures_of_the_table(tmp_path, capsys, plan, options):
    fulcrum.save_plan(made(rounds=3, **plan), tmp_path / "plan.json")
    common = [tmp_path / "plan.json", *options, "--trials", "1000", "--seed", "1", "--confidence", "0.9999"]
    _, table, _ = said(capsys, *common)
    _, out, _ = said(capsys, *common, "--format", "json")
    check_same_figures(json.loads(out, parse_constant=pytest.fail), table)


def check_same_figures(told, table):
    """Every figure of a table, as it stands there, is one of the JSON."""
    shown = " ".join(table.split())
    assert f"verdict {told['verdict']}: " in shown
    assert [line for line in told["notes"] if line not in shown] == []
    rows = [line.split() for line in table.splitlines()]
    for found in told["findings"]:
        who = f"{found['node']}, {observer_of(msgspec.convert(found, Finding))}".split()
        row = next(row[len(who) :] for row in rows if row[: len(who)] == who)
        assert row[0] == ("none" if found["stated"] is None else f"{shown_up(found['stated']):.4g}")
        bounds = [found["assumption_free"], found["gaussian"]]
        assert [float(bound) for bound in row[1:3]] == pytest.approx(bounds, rel=0.01, abs=1e-3)
        noise = found["noise_ratio"]
        assert row[3:-1] == ([] if noise is None else [f"{round(100 * noise, 2):.1f}"])
        assert row[-1] == found["verdict"].split()[0]
    for probe in told["probes"]:
        measured = "" if probe["noise_ratio"] is None else f"{100 * probe['noise_ratio']:.1f} "
        assert f"{probe['node']} {probe['values']:,} {measured}{probe['verdict']}" in shown


def test_a_folder_gets_the_audit_and_its_picture(plan_file, tmp_path, capsys):
    folder = tmp_path / "out"
    said(capsys, plan_file, "--trials", "2000", "--seed", "1", "-o", folder)
    found = read_audit(folder)
    assert found.plan_digest == fulcrum.read_plan(plan_file).digest
    assert found == read_audit(folder / "audit.json")
    assert (folder / "audit.svg").read_text().startswith("<svg")
    (folder / "audit.json").write_text((folder / "audit.json").read_text().replace("audit/1", "audit/9"))
    with pytest.raises(DataError, check=coded("audit.file-format")):
        read_audit(folder)
    with pytest.raises(DataError, check=coded("audit.file-unreadable")):
        read_audit(tmp_path / "nowhere")


def test_a_violated_claim_is_exit_code_1_and_says_what_to_do(plan_file, capsys, monkeypatch):
    real = auditing.audit

    def with_less_noise(plan, **options):
        from faults import narrow_noise

        return real(plan, **options | {"mechanism": narrow_noise(plan)})

    monkeypatch.setattr("fulcrum.audit.audit_run.audit", with_less_noise)
    code, out, _ = said(capsys, plan_file, "--trials", "3000", "--seed", "1")
    assert code == 1
    assert "the claim is broken. Release nothing under this plan" in " ".join(out.split())
    assert "repeat the audit with another seed" in out


def test_a_recorded_run_is_tested_too(tmp_path, capsys):
    plan = made(parameters=None, rounds=3)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    plan = fulcrum.read_plan(tmp_path / "plan.json")
    save_run(train(plan, "digits"), tmp_path / "run")
    options = ["--run", tmp_path / "run", "--trials", "1000", "--seed", "1", "--confidence", "0.9999"]
    code, out, _ = said(capsys, tmp_path / "plan.json", *options)
    assert code == 0
    assert out.count("the recorded run") == 3
    codes = {"run.json": "audit.run-malformed", "observed.npz": "archive.malformed"}
    whole = {name: (tmp_path / "run" / name).read_bytes() for name in codes}
    for name, content in whole.items():
        for cut in (0, 100, len(content) // 2, len(content) - 30):
            (tmp_path / "run" / name).write_bytes(content[:cut])
            code, out, line = said(capsys, tmp_path / "plan.json", *options, "--format", "json")
            assert (code, out, error_shown(line)["code"]) == (2, "", codes[name])
        (tmp_path / "run" / name).write_bytes(content)
    fulcrum.save_plan(made(parameters=None, rounds=4), tmp_path / "other.json")
    code, out, line = said(capsys, tmp_path / "other.json", *options, "--format", "json")
    assert (code, out, error_shown(line)["code"]) == (2, "", "run.other-plan")


@pytest.fixture
def site(tmp_path):
    """The folder of silo north-1, with a ledger that must stay as it is."""
    folder = tmp_path / "north-1"
    folder.mkdir()
    issuer = new_key(tmp_path / "issuer.key")
    fulcrum.save_plan(made("deployment"), folder / "plan.json")
    sign_plan(folder / "plan.json", tmp_path / "issuer.key")
    settings = SiteSettings(format=FORMAT, role="silo", name="north-1", issuer=issuer, policy=True, train="none")
    (folder / "site.toml").write_text(site_toml(settings))
    (folder / "policy.toml").write_text("largest_epsilon_above = 1.0\nlargest_epsilon_inside = 9.0\n")
    (folder / "state").mkdir()
    with fulcrum.Ledger.open(folder / "state" / "north-1.ledger", silo="north-1"):
        pass
    return folder


def contents(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_silos_operator_audits_alone_and_its_ledger_is_not_touched(site, capsys):
    before = contents(site)
    code, out, _ = said(
        capsys, site, "--silo", "north-1", "--trials", "1000", "--format", "json", "--confidence", "0.9999"
    )
    assert code == 0
    assert contents(site) == before
    told = json.loads(out)
    assert {found["silo"] for found in told["findings"]} == {"north-1"}
    assert {probe["of"] for probe in told["probes"]} == {"release"}
    assert "The silo's own ledger was not opened: fulcrum ledger verify checks it." in told["notes"]


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:100]), lambda path: path.unlink()])
def test_a_silos_audit_neither_reads_nor_mends_a_ledger_that_is_damaged_or_missing(site, capsys, damage):
    damage(site / "state" / "north-1.ledger")
    before = contents(site)
    code, _, _ = said(capsys, site, "--silo", "north-1", "--trials", "1000", "--confidence", "0.9999")
    assert code == 0
    assert contents(site) == before


@pytest.mark.parametrize("name", ["plan.json", "plan.json.sig", "site.toml", "policy.toml"])
def test_a_site_with_a_file_missing_or_cut_short_is_refused_in_one_line(site, capsys, name):
    settings = (site / "site.toml").read_text().replace("policy = false", "policy = true")
    (site / "site.toml").write_text(settings)
    content = (site / name).read_bytes()
    for left in (content[:40], b"", None):
        (site / name).unlink()
        if left is not None:
            (site / name).write_bytes(left)
        code, out, err = said(capsys, site, "--silo", "north-1", "--trials", "1000")
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert name in err
        (site / name).write_bytes(content)


def test_a_plan_that_another_issuer_signed_is_refused(site, tmp_path, capsys):
    new_key(tmp_path / "other.key")
    fulcrum.save_plan(made("deployment", rounds=3), site / "plan.json")
    sign_plan(site / "plan.json", tmp_path / "other.key")
    code, out, err = said(capsys, site, "--silo", "north-1", "--trials", "1000")
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def test_a_silos_policy_holds_in_its_audit(site, capsys):
    policy = tomllib.loads((site / "policy.toml").read_text()) | {"largest_epsilon_inside": 0.5}
    (site / "policy.toml").write_text("".join(f"{key} = {value}\n" for key, value in policy.items()))
    code, out, line = said(capsys, site, "--silo", "north-1", "--trials", "1000", "--format", "json")
    error = error_shown(line)  # one line, without progress: nobody waits for an audit that is refused
    assert (code, out, error["code"], error["details"]["largest"]) == (2, "", "policy.epsilon-exceeded", 0.5)


@pytest.mark.parametrize(
    ("arguments", "expected", "values"),
    [
        (["plan.json", "--silo", "nobody"], "plan.silo-unknown", {"silo": "nobody"}),
        (["plan.json", "--trials", "5"], "audit.trials-range", {"least": 1000, "most": 100_000_000, "trials": 5}),
        (["plan.json", "--trials", "many"], "cli.number-not-whole", {"option": "--trials", "text": "many"}),
        (["plan.json", "--confidence", "nan"], "audit.confidence-range", {}),
        (["plan.json", "--seed", "-1"], "audit.seed-range", {"most": 2**31 - 1, "seed": -1}),
        (["plan.json", "--shadows", "10001"], "cli.shadows-range", {"least": 20, "most": 10_000, "shadows": 10_001}),
        (["plan.json", "--steps", "3"], "cli.learning-without-attack", {}),
        (["plan.json", "--shadows", "20", "--records", "9"], "cli.audit-records", {}),
        (["plan.json", "--shadows", "20", "--batch", "0"], "number.whole-range", {"name": "batch", "value": 0}),
        (["plan.json", "--run", "nowhere", "--batch", "8"], "cli.learning-of-recorded-run", {}),
        (["plan.json", "-o", "plan.json"], "run.folder-unusable", {"folder": "plan.json", "reason": "File exists"}),
        (["plan.json", "--run", "nowhere"], "audit.run-unreadable", {"folder": "nowhere"}),
        (["plan.json", "--engine", "flare"], "errors.name-unknown", {"suggestion": " Did you mean 'nvflare'?"}),
        (["plan.json", "--engine", "flower"], "engine.plan-refused", {}),
        (["plan.json", "--engine", "nvflare", "--silo", "north-1"], "cli.silo-with-engine", {}),
        (["."], "cli.audit-of-folder", {"folder": "."}),
        (["missing.json"], "plan.file-unreadable", {"file": "missing.json"}),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(plan_file, capsys, monkeypatch, arguments, expected, values):
    monkeypatch.chdir(plan_file.parent)
    code, out, line = said(capsys, *arguments)
    assert (code, out) == (2, "")
    code, out, parts = said(capsys, *arguments, "--format", "json")
    assert (code, out) == (2, "")
    error = error_shown(parts)
    assert line == f"fulcrum: {error['message']}\n"
    assert error["code"] == expected
    assert {name: error["details"][name] for name in values} == values


def test_an_engine_is_asked_for_no_more_sites_than_a_machine_holds(tmp_path, capsys):
    fulcrum.save_plan(made(sizes={"north": [100] * 60}), tmp_path / "plan.json")
    code, out, line = said(capsys, tmp_path / "plan.json", "--engine", "nvflare", "--format", "json")
    error = error_shown(line)
    assert (code, out, error["code"]) == (2, "", "audit.sites-too-many")
    assert (error["details"]["most"], error["details"]["sites"]) == (40, 62)


def test_shadows_add_what_is_learned_of_classes_and_records(tmp_path, capsys):
    fulcrum.save_plan(made(parameters=None, rounds=3), tmp_path / "plan.json")
    code, out, err = said(
        capsys, tmp_path / "plan.json", "--shadows", "20", "--trials", "1000", "--seed", "1", "--confidence", "0.9999"
    )
    assert code == 0
    assert "A silo's class concentration, as observers estimate it" in out
    assert "no privacy" in out
    assert "told apart" in out
    assert "Training shadows: 20 of 20" in err
    _, learned, _ = said(
        capsys,
        *[tmp_path / "plan.json", "--shadows", "20", "--trials", "1000", "--seed", "1", "--confidence", "0.9999"],
        *["--format", "json"],
    )
    told = json.loads(learned, parse_constant=pytest.fail)
    check_same_figures(told, out)
    assert [one for one in told["properties"] if f"{one['error']:.3f}" not in out] == []
    assert [one for one in told["records"] if f"{one['right_at_least']:.3f}" not in out] == []
    assert told["properties"]
    assert told["records"]
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    code, _, line = said(capsys, tmp_path / "plan.json", "--shadows", "3", "--format", "json")
    assert (code, error_shown(line)["code"]) == (2, "cli.shadows-range")
    code, _, line = said(capsys, tmp_path / "plan.json", "--silo", "north-1", "--shadows", "20", "--format", "json")
    assert (code, error_shown(line)["code"]) == (2, "cli.silo-with-run-or-shadows")
