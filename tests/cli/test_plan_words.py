"""What commands say to the person in front of them: verdicts, one rule for epsilons, one meaning a word."""

import json
from pathlib import Path

import numpy as np
import pytest

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.cli.shared_options.options import RecipeOption, ServerOption, WeightsOption
from fulcrum.core.choices import WEIGHTS
from fulcrum.errors import listing
from fulcrum.planning.inputs.recipes import RECIPES
from fulcrum.rules.rule_registry import known_rules
from fulcrum.simulation.data.tasks import DATA_VARIABLE
from fulcrum.views.terminal.screen import QUIET_FOR, progress
from fulcrum.words.numbers import figure


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return code, " ".join(shown.out.split()), shown.err

    return call


def planned(command, *settings):
    code, said, _ = command("plan", "severe", "--rounds", 10, *settings)
    assert code == 0
    return said


def test_the_first_screen_says_how_often_both_observers_are_right(command):
    said = planned(command, "--epsilon", 0.99)
    assert "is right up to 56 of 100 times above the regions, little better than a coin (50)" in said
    assert "and up to 85 of 100 times inside a region, clearly better than a coin (50)" in said
    assert "Hardly any protection" not in said


def test_a_plan_that_protects_nobody_warns(command):
    said = planned(command, "--epsilon", 100, "--epsilon-inside", 100)
    assert said.count("up to 100 of 100 times") == 2
    assert (
        "! Hardly any protection is promised against observers above and inside. "
        "Ask for a smaller epsilon with --epsilon and --epsilon-inside."
    ) in said


def test_a_warning_that_advice_gives_with_its_remedy_is_not_given_twice(command):
    said = planned(command, "--epsilon", 3)
    assert "up to 100 of 100 times inside a region" in said
    assert "Against a curious region aggregator the worst epsilon is" in said
    assert "Hardly any protection is promised against" not in said


def test_an_epsilon_reads_the_same_in_the_sentence_in_the_table_and_in_a_difference(command):
    code, said, _ = command("plan", "consortium", "--rounds", 10, "--epsilon", 3, "-o", "three.json")
    assert code == 0
    assert "epsilon 23.89 against whoever sees its own updates" in said  # 23.8805 in the file
    assert "country-1 30 30 1.606 3 23.89 " in said
    assert "the worst epsilon is 23.89 " in said
    assert json.loads(Path("three.json").read_text())["summary"]["epsilon_inside_worst"] == 23.8805
    command("plan", "consortium", "--rounds", 10, "--epsilon", 1, "-o", "one.json")
    _, said, _ = command("diff", "one.json", "three.json")
    assert "summary epsilon_inside_worst 6.873 23.89 " in said
    assert "23.88" not in said


def test_a_noise_multiplier_is_that_of_a_silo_wherever_it_is_shown(command):
    _, planned_so, _ = command("plan", "severe", "--rounds", 10, "--epsilon", 1, "-o", "one.json")
    command("plan", "severe", "--rounds", 10, "--epsilon", 2, "-o", "two.json")
    _, said, _ = command("diff", "one.json", "two.json")
    multiplier = figure(fulcrum.read_plan("one.json").noise_multiplier[0])
    assert f"region-1 60 60 {multiplier} " in planned_so
    in_sum = f"{float(fulcrum.read_plan('one.json').node_noise('region')[0]) ** 0.5:.6g}"
    assert f"region region-1 noise on the sum {in_sum} " in said
    assert "region region-1 noise_multiplier" not in said
    _, listed, _ = command("diff", "one.json", "two.json", "--format", "csv")
    assert "silo,region-1-1,noise_multiplier," in listed
    assert "region,region-1,noise on the sum," in listed


def test_what_lattice_noise_costs_is_said_in_words_where_no_delta_pays_it(command):
    deployment = ("--purpose", "deployment", "--parameters", 66)
    code, _, said = command("plan", "severe", "--rounds", 10, "--epsilon", 30, *deployment)
    assert code == 2
    assert "e+" not in said
    assert "The largest epsilon is 759.5, against the observer 'aggregator', and the part exceeds any delta" in said
    assert said.endswith("Give 'aggregator' a target with a smaller epsilon (--epsilon-inside)\n")
    code, _, said = command("plan", "severe", "--rounds", 10, "--epsilon", 1, "--delta", 1e-30, *deployment)
    assert code == 2
    remedy = said.split("raise delta to ")[1].strip()
    assert command("plan", "severe", "--rounds", 10, "--epsilon", 1, "--delta", remedy, *deployment)[0] == 0


@pytest.mark.parametrize("action", ["show", "verify"])
def test_a_text_file_is_not_taken_for_a_damaged_ledger(command, action):
    Path("notes.txt").write_text("Straße 1\n")
    code, _, said = command("ledger", action, "notes.txt")
    assert code == 2
    assert "notes.txt is a text file: it is not a ledger" in said
    assert "Name the file of the ledger" in said
    Path("other").write_bytes(b"\x7fELF\x02\x01\x01\x00\x00")
    assert "other is not a ledger, or its first bytes are damaged" in command("ledger", action, "other")[2]


def test_known_data_whose_file_is_missing_is_asked_for_and_not_corrected(command, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    command("plan", "mild", "--rounds", 1, "--epsilon", 5, "-o", "plan.json")
    code, _, said = command("train", "plan.json", "--data", "agnews")
    assert code == 2
    assert "agnews needs the feature file agnews.npz, and no data folder is set. " in said
    assert "Give --data-dir, or set FULCRUM_DATA. " in said
    assert "paper/make_features.py makes such a file" in said
    assert "Did you mean" not in said
    assert "Did you mean 'agnews'" in command("train", "plan.json", "--data", "agnew")[2]


def test_a_log_of_both_streams_has_each_round_once(command):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    command("plan", "mild", "--rounds", 2, "--epsilon", 5, "-o", "plan.json")
    _, out, err = command("train", "plan.json", "--data", "digits")
    assert "round accuracy" in out
    assert err == ""


def test_long_training_is_not_silent_where_nobody_watches(capsys, monkeypatch):
    clock = iter([0.0, QUIET_FOR - 1, QUIET_FOR, QUIET_FOR, QUIET_FOR + 1])
    monkeypatch.setattr("fulcrum.views.terminal.screen.time.monotonic", lambda: next(clock))
    with progress("Training", 3, listed=True) as tell:
        for done in (1, 2, 3):
            tell(done, [np.array([0.5])])
    assert capsys.readouterr().err == "Training: round 2 of 3, accuracy 0.500\n"


def test_what_deploying_will_refuse_is_said_when_a_deployment_is_planned(command):
    Path("silos.csv").write_text("silo,records,region\nZürich,10,north\nZurich,10,north\n", encoding="utf-8")
    asked = ("plan", "silos.csv", "--rounds", 2, "--epsilon", 1, "--parameters", 10)
    _, said, _ = command(*asked, "--purpose", "deployment")
    assert "These are bounds that are proven for the lattice noise that silos draw." in said
    assert (
        "! `fulcrum deploy nvflare` will refuse this plan: the sites of 'Zürich' and 'Zurich' would both have the name "
        "'Zurich'"
    ) in said
    _, said, _ = command(*asked)
    assert "will refuse" not in said
    assert "These are bounds" not in said
    Path("silos.csv").write_text("silo,records,region,country\na,10,x,fr\nb,10,y,fr\n")
    _, said, _ = command(*asked, "--purpose", "deployment", "-o", "two.json")
    assert "will refuse" not in said


def test_a_masked_deployment_is_told_which_engines_run_it(command):
    Path("silos.csv").write_text("silo,records,region\na,10,x\nb,10,x\nc,10,x\n")
    asked = ("plan", "silos.csv", "--rounds", 2, "--epsilon", 1, "--parameters", 10, "--purpose", "deployment")
    _, said, _ = command(*asked, "--aggregation", "masked")
    assert "Masked sums run with `fulcrum deploy nvflare` or `fulcrum deploy flower`." in said
    assert "will refuse" not in said
    _, said, _ = command(*asked)
    assert "Masked sums run with" not in said


def test_a_masked_deployment_that_one_engine_refuses_is_told_of_the_other(command):
    Path("silos.csv").write_text("silo,records,region\nx,10,x\nb,10,x\nc,10,x\n")  # a silo with its region's name
    asked = ("plan", "silos.csv", "--rounds", 2, "--epsilon", 1, "--parameters", 10, "--purpose", "deployment")
    _, said, _ = command(*asked, "--aggregation", "masked")
    assert "! `fulcrum deploy nvflare` will refuse this plan: 'x' names two sites." in said
    assert "Masked sums run with `fulcrum deploy flower`." in said


def test_what_flower_will_refuse_of_a_masked_deployment_is_said_when_it_is_planned(command):
    Path("silos.csv").write_text("silo,records,region\na/b,10,x\nb,10,x\nc,10,x\n", encoding="utf-8")
    asked = ("plan", "silos.csv", "--rounds", 2, "--epsilon", 1, "--parameters", 10, "--aggregation", "masked")
    _, said, _ = command(*asked, "--purpose", "deployment")
    assert "! `fulcrum deploy flower` will refuse this plan: 'a/b' cannot name the files of a site: no / or" in said
    assert "! `fulcrum deploy nvflare` will refuse this plan: 'a/b' cannot name the files of a site: no / or" in said
    assert "Masked sums run with" not in said


def test_deploying_refuses_with_the_words_of_the_plan(command):
    pytest.importorskip("nvflare")
    Path("silos.csv").write_text("silo,records,region\nZürich,10,north\nZurich,10,north\n", encoding="utf-8")
    settings = ("--rounds", 2, "--epsilon", 1, "--parameters", 10, "--purpose", "deployment")
    _, planned_so, _ = command("plan", "silos.csv", *settings, "-o", "plan.json")
    code, _, said = command(
        "deploy", "nvflare", "plan.json", "-o", "kits", "--train", "mine", "--host", "fl.example.org"
    )
    assert code == 2
    assert said.removeprefix("fulcrum: ").strip() in planned_so


def exposed(command, *settings):
    code, said, _ = command("exposure", "severe", *settings, "--format", "json")
    assert code == 0
    return json.loads(said)


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "equal"},
        {"weights": "least-noise"},
        {"weights": 0.5},
        {"server": "random-effects"},
        {"weights": "least-noise", "least_influence": 0.5},
        {"server": "random-effects", "least_influence": 0.3},
    ],
    ids=str,
)
def test_exposure_follows_weights_and_server_and_shows_influence_beside_it(command, settings):
    asked = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    found = exposed(command, *asked)
    made = fulcrum.plan("severe", rounds=7, epsilon=0.4, **settings)  # how much is asked of all changes nothing
    assert [row["influence"] for row in found["nodes"]] == pytest.approx(made.node_influence("region"), rel=1e-9)
    assert [row["exposure"] for row in found["nodes"]] == pytest.approx(
        fulcrum.exposure_of(made.federation).exposure, rel=1e-9
    )
    assert found["weights"] == settings.get("weights", "sizes")
    assert found["server"] == settings.get("server", "sum")
    _, said, _ = command("exposure", "severe", *asked)
    assert f" {found['nodes'][0]['influence']:.1%} " in said


def test_exposure_by_size_says_influence_to_programs_alone(command):
    found = exposed(command)
    assert [row["influence"] for row in found["nodes"]] == pytest.approx([60 / 96, 20 / 96, 8 / 96, 4 / 96, 4 / 96])
    assert "influence" not in command("exposure", "severe")[1]
    assert "every region has its share by size" in command("exposure", "severe", "--weights", "equal")[1]


def test_exposure_under_the_joint_recipe_names_the_quietest(command):
    _, said, _ = command("exposure", "severe", "--recipe", "joint", "--least-influence", "0")
    assert "region-4 4 4 0.25 0.4%" in said
    assert "'region-4' has 0.094 times its share by size" in said
    assert "is waste where sums are added up" in said
    assert command("exposure", "severe", "--recipe", "jiont")[2].endswith("Did you mean 'joint'?\n")


def test_exposure_follows_the_weights_that_a_federation_declares(command):
    Path("silos.csv").write_text("silo,records,region,weight\na,10,x,3\nb,10,x,3\nc,10,y,2\n")
    _, said, _ = command("exposure", "silos.csv")
    assert "x 2 2 0.5 75.0%" in said
    assert "declared; region 'y' has 0.75 times its share by size" in said


def test_the_help_of_shared_options_names_all_that_there_is():
    for option, words in ((RecipeOption, RECIPES), (WeightsOption, WEIGHTS), (ServerOption, known_rules())):
        assert listing(words) in option.__metadata__[0].help


def test_diff_says_why_digests_differ_where_nothing_else_does(command):
    command("plan", "mild", "--rounds", 3, "--epsilon", 1, "-o", "plan.json")
    Path("keys.toml").write_text(f'region-1 = "x25519:{"A" * 43}="\n')
    command("plan", "mild", "--rounds", 3, "--epsilon", 1, "--keys", "keys.toml", "-o", "keyed.json")
    plain, keyed = (fulcrum.read_plan(path).digest[:12] for path in ("plan.json", "keyed.json"))
    code, said, _ = command("diff", "plan.json", "keyed.json")
    assert code == 0
    assert f"Both promise the same, with the same noise. The digest is {keyed} in place of {plain} since" in said
    assert "the second carries keys that the first does not, of 1 site." in said
    assert "key of region-1" in said
