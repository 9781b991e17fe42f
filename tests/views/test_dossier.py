"""What a deployment must state: questions answered or owned up to, an entry for the registry, and the audit's section."""

import dataclasses
import math
import re
from pathlib import Path

import msgspec
import pytest
from error_codes import coded

import fulcrum
from fulcrum.audit.evidence.findings import save_audit
from fulcrum.audit.replays.canary_game import audit
from fulcrum.cli.command_line import run
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.errors import DataError
from fulcrum.views.report.deployments_registry import SHAPE, as_yaml, check_shape, registry_entry
from fulcrum.views.report.dossier import UNANSWERED, Answers, answers_template, questions_of, read_answers
from fulcrum.views.report.html_report import report
from fulcrum.views.terminal.audit_tables import audit_chart, audit_section, verdict_lines

PLAN = fulcrum.plan("consortium", rounds=10, epsilon=1.0)
FULL = Answers(
    **{
        name: [f"who {name}"] if isinstance(getattr(Answers(), name), list) else f"said of {name}"
        for name in Answers.__struct_fields__
        if name != "format"
    }
)


def test_every_question_is_answered_or_owned_up_to():
    asked = questions_of(PLAN, Answers())
    assert [question.number for question in asked] == list(range(1, 17))
    for question in asked:
        assert question.answer.strip()
        assert question.unanswered or question.answer != UNANSWERED
    assert not any(question.unanswered for question in questions_of(PLAN, FULL))
    epsilon = asked[0].answer
    assert epsilon.startswith(fulcrum.guarantee_of(PLAN).promise), (
        "rounds, delta, unit and both observers in one sentence"
    )
    assert "epsilon 6.873 against whoever sees its own updates" in epsilon


def test_the_final_publication_is_cited_and_the_text_that_the_questions_follow_is_named():
    page = re.sub(r"\s+", " ", Path(__file__).parents[2].joinpath("docs/audit.md").read_text("utf-8"))
    for text in (report(PLAN, answers=Answers()), page):
        assert "doi 10.6028/NIST.SP.800-226" in text
        assert "March 2025" in text
        assert "follow its initial public draft of December 2023" in text
    assert "800-226" not in report(PLAN)


def test_mu_is_stated_for_both_observers_and_is_that_of_the_noise():
    answer = questions_of(PLAN, Answers())[1].answer
    above, inside = re.search(
        r"at most ([\d.]+) for any silo .*, and ([\d.]+) against the observer inside", answer
    ).groups()
    for mu, tier in ((above, "region"), (inside, "silo")):
        least = PLAN.effective_multiplier(tier).min()
        assert 0 <= float(mu) - 2 * math.sqrt(10) / least < 1e-3
        assert epsilon_of_shift(float(mu), delta=1e-5) == pytest.approx(PLAN.worst_epsilon(tier), rel=2e-3)


def test_gaussian_differential_privacy_is_claimed_of_the_exact_accountant_alone():
    for accountant, claimed in (("exact", True), ("renyi", False)):
        made = fulcrum.plan("mild", rounds=3, epsilon=1.0, accountant=accountant)
        answer = questions_of(made, Answers())[1].answer
        assert ("of Gaussian differential privacy" in answer) is claimed
        assert ("the rho of zero-concentrated differential privacy" in answer) is not claimed


def test_a_plan_for_research_says_wherever_it_states_epsilon_that_it_protects_nobody():
    research, deployed = PLAN, fulcrum.plan("consortium", rounds=10, epsilon=1.0, purpose="deployment", parameters=34)
    for plan, told in ((research, True), (deployed, False)):
        asked = questions_of(plan, Answers())
        details = registry_entry(plan, Answers())["deployment"]["privacy_loss"]["privacy_parameters_details"]
        assert ["protects nobody" in text for text in (asked[0].answer, asked[12].answer, details)] == [told] * 3
        assert ("ledger records the spending under every plan" in asked[3].answer) is not told
    assert "the time that a silo takes to answer is visible" in questions_of(deployed, Answers())[12].answer


def test_sizes_that_stay_secret_are_not_called_declared():
    federation = fulcrum.Federation.from_sizes({"north": [1, 1, 1], "south": [1, 1]})
    secret = fulcrum.plan(dataclasses.replace(federation, sizes_known=False), rounds=2, epsilon=1.0, weights="equal")
    known = fulcrum.plan(federation, rounds=2, epsilon=1.0)
    for plan, said in ((secret, False), (known, True)):
        entry = registry_entry(plan, FULL)["deployment"]
        for text in (*entry["dp_variant"].values(), entry["privacy_loss"]["privacy_unit_details"]):
            assert ("declared size" in text) == (said and text != "Approximate DP")


def test_an_entry_marks_what_people_were_asked_for_and_did_not_say():
    for answers, marked in ((Answers(), True), (FULL, False)):
        entry = registry_entry(PLAN, answers)["deployment"]
        assert ("Trust: Unanswered." in entry["deployment_model"]["actors"]) is marked
        assert ("Why this epsilon: Unanswered." in entry["privacy_loss"]["privacy_parameters_details"]) is marked


def test_answers_that_people_give_are_shown_beside_what_the_plan_says():
    told = {question.number: question.answer for question in questions_of(PLAN, FULL)}
    for number, name in {1: "why_this_epsilon", 5: "harms_beyond_the_unit", 9: "utility", 14: "security"}.items():
        assert f"said of {name}" in told[number]


def test_the_template_asks_for_everything_and_is_unanswered(tmp_path):
    (tmp_path / "answers.toml").write_text(answers_template())
    assert read_answers(tmp_path / "answers.toml") == Answers()
    for name in Answers.__struct_fields__:
        assert re.search(rf"^{name} = ", answers_template(), re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nme = 'x'", "does not hold a dossier's answers: Object contains unknown field `nme`"),
        ("name = 3", "does not hold a dossier's answers"),
        ("format = 'fulcrum.dossier/9'", "has the format 'fulcrum.dossier/9'"),
        ("name = ", "does not hold a dossier's answers"),
    ],
)
def test_answers_that_cannot_be_read_are_refused_in_one_line(tmp_path, text, complaint):
    (tmp_path / "answers.toml").write_text(text)
    with pytest.raises(DataError, match=re.escape(complaint)):
        read_answers(tmp_path / "answers.toml")


@pytest.mark.parametrize("answers", [Answers(), FULL])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"purpose": "deployment", "parameters": 40},
        {"injection": "aggregator"},
        {"aggregation": "masked"},
        {"aggregation": "masked", "epsilon": {"federation": 1.0}},
    ],
)
def test_an_entry_has_the_shape_of_the_registry_and_reads_back_from_yaml(answers, options):
    yaml = pytest.importorskip("yaml")
    plan = fulcrum.plan("isic-paper", rounds=3, **{"epsilon": 1.0} | options)
    entry = registry_entry(plan, answers)
    check_shape(entry)
    assert yaml.safe_load(as_yaml(entry)) == entry
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"]["epsilon"] == pytest.approx(plan.worst_epsilon(), rel=1e-5)
    assert (UNANSWERED in as_yaml(entry)) == (answers == Answers())


def test_words_follow_who_adds_up():
    trusted, masked, as_one = (
        fulcrum.plan("isic-paper", rounds=3, **options)
        for options in (
            {"epsilon": 1.0},
            {"epsilon": 1.0, "aggregation": "masked", "colluders": 2},
            {"epsilon": {"federation": 1.0}, "aggregation": "masked"},
        )
    )
    first = [questions_of(plan, Answers())[0].answer for plan in (trusted, masked, as_one)]
    assert "against whoever sees its own updates, such as its region aggregator" in first[0]
    assert "against the server together with 2 silos of its region" in first[1]
    assert "who sees the global sum, the one sum that is not masked" in first[2]
    models = [
        registry_entry(plan, FULL)["deployment"]["deployment_model"]["model_name_details"]
        for plan in (trusted, masked, as_one)
    ]
    assert "aggregators" in models[0]
    assert "the sum of each of 4 regions" in models[1]
    assert "the sum of all and nothing finer" in models[2]
    countries = fulcrum.Federation.from_sizes({"a": [9] * 3, "b": [9] * 3}, outer={"country": {"x": ["a", "b"]}})
    below = fulcrum.plan(countries, rounds=3, epsilon={"region": 2.0, "country": 1.0}, aggregation="masked")
    model = registry_entry(below, FULL)["deployment"]["deployment_model"]["model_name_details"]
    assert "sealed to 2 aggregators, one for each region, of which each gets the sum of its region" in model
    assert (
        "against the server and the region aggregators together with 1 silo" in questions_of(below, Answers())[0].answer
    )


def test_a_small_epsilon_needs_no_reasons_and_a_measured_model_no_words():
    calm = fulcrum.plan("isic-paper", rounds=2, epsilon={"region": 0.01, "aggregator": 0.05})
    loud = fulcrum.plan("isic-paper", rounds=2, epsilon=8.0)
    assert [questions_of(plan, Answers())[0].unanswered for plan in (calm, loud)] == [False, True]
    assert not questions_of(loud, Answers(why_this_epsilon="A study among partners."))[0].unanswered
    assert [questions_of(loud, given)[11].unanswered for given in (Answers(), FULL)] == [True, False]


def test_an_entry_of_another_shape_is_refused_with_its_place():
    entry = registry_entry(PLAN, FULL)
    assert entry.keys() == SHAPE.keys()
    for wrong, where in (
        ({**entry, "status": "Ready"}, r"entry\.status must be one of"),
        ({**entry, "more": 1}, "entry must have the fields"),
        (entry | {"deployment": entry["deployment"] | {"accounting": {}}}, r"entry\.deployment\.accounting must have"),
    ):
        with pytest.raises(DataError, match=where):
            check_shape(wrong)


def test_yaml_quotes_what_yaml_would_take_for_something_else():
    yaml = pytest.importorskip("yaml")
    hard = {"a": "no", "b": "1e3", "c": 'x: "y"\n- z', "d": [{"e": "é"}, {"e": "#", "f": 1e-7}], "g": ["", "~"]}
    assert yaml.safe_load(as_yaml(hard)) == hard


@pytest.fixture(scope="module")
def audited():
    return audit(PLAN, trials=1_000, seed=1, confidence=0.9999)


def test_what_an_audit_found_is_evidence_only_as_far_as_it_goes(audited):
    sound = questions_of(PLAN, Answers(), audit=audited)[7].answer
    assert "at a confidence of 99.99% for all bounds and verdicts together its verdict is consistent" in sound
    assert "is not proven by that" in sound
    broken = msgspec.structs.replace(audited.findings[0], verdict="violated", reasons=["Too little noise."])
    told = msgspec.structs.replace(audited, findings=[broken, *audited.findings[1:]])
    said = questions_of(PLAN, Answers(), audit=told)[7].answer
    assert "its verdict is violated: the claim is broken. Release nothing under this plan" in said
    assert "proven" not in said
    assert "at most 0.01% are violated by chance" in dict(verdict_lines(told))["next"]
    assert "The plan was not audited." in questions_of(PLAN, Answers())[7].answer


def test_the_report_shows_an_audit_of_its_plan_and_refuses_anothers(audited):
    page = report(PLAN, audit=audited, answers=Answers(intended_use="<b>x</b>"))
    assert 'id="audit"' in page
    assert "is not proven by that" in page
    assert "<li>above: who sees the sums, and knows none of their noise</li>" in page
    assert "<li>inside: who sees single releases</li>" in page
    assert 'id="questions"' in page
    assert page.count('<span class="severity">unanswered</span>') == 5
    assert page.count('<span class="severity">unanswered in part</span>') == 4
    assert "<b>x</b>" not in page
    bare = report(PLAN)
    assert 'id="audit"' not in bare
    assert 'id="questions"' not in bare
    other = msgspec.structs.replace(audited, plan_digest="0" * 64)
    with pytest.raises(DataError, check=coded("report.audit-of-other-plan")):
        report(PLAN, audit=other)


def test_the_command_writes_report_registry_and_a_file_to_fill_in(tmp_path, audited, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(PLAN, "plan.json")
    save_audit(audited, tmp_path)
    arguments = ["report", "plan.json", "-o", "r.html", "--audit", ".", "--answers", "a.toml", "--registry", "r.yaml"]
    assert run(arguments) == 0
    assert "a.toml was written for you to fill in" in " ".join(capsys.readouterr().out.split())
    first = (tmp_path / "a.toml").read_text()
    assert first == answers_template()
    (tmp_path / "a.toml").write_text(first.replace('minimisation = ""', 'minimisation = "Raw images are deleted."'))
    assert run(arguments) == 0
    assert "written for you" not in capsys.readouterr().out
    assert "Raw images are deleted." in (tmp_path / "r.html").read_text()
    assert "Raw images are deleted." in (tmp_path / "a.toml").read_text(), "what people wrote is not written over"
    assert (tmp_path / "r.yaml").read_text().startswith('url_slug: "consortium"')


def test_epsilons_of_an_audit_are_rounded_up_where_claimed_and_down_where_proven(audited):
    first = msgspec.structs.replace(audited.findings[0], stated=1.00001, exact=1.00001, gaussian=0.99999)
    told = msgspec.structs.replace(audited, findings=[first])
    [row] = audit_section(told)["rows"]
    assert row[1:4:2] == ("1.001", "0.999")
    [point, *_, lower] = audit_chart(told)["layer"][-1]["data"]["values"][:2]
    assert (point["shown"], lower["shown"]) == ("1.001", "0.999")
