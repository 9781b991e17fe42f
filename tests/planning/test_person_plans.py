"""Every feature of a plan, with persons or records as the unit of privacy."""

import json
import math

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.planning.comparisons.variants import other_weights
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.content.region_merges import best_merge
from fulcrum.planning.files.differences import differences
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.plan import save_plan
from fulcrum.planning.planner import plan
from fulcrum.planning.replanning import replan
from fulcrum.readers.editing import merge_regions
from fulcrum.readers.federation import Federation
from fulcrum.words.reproduction import reproducing_commands
from fulcrum.words.verdict import verdict

FEDERATION = Federation.from_sizes(
    {"north": [120, 80, 40], "south": [300, 20], "west": [50, 60]},
    outer={"country": {"x": ["north", "south"], "y": ["west"]}},
)
SETTINGS = [
    {},
    {"unit": "record", "neighbours": "add-remove"},
    {"unit_name": "patient", "silos_per_person": 2},
    {"epsilon": {"region": 1.0, "country": 0.5, "aggregator": 4.0}},
    {"aggregation": "masked"},
    {"aggregation": "masked", "epsilon": {"federation": 1.0}, "colluders": 1},
    {"aggregation": "masked", "epsilon": {"region": 1.0, "server+silo": 2.0}, "silos_per_person": 3},
    {"colluders": 1, "dropouts": 1},
    {"weights": "least-noise", "least_influence": 0.5},
    {"weights": "equal"},
    {"weights": 0.5, "epsilon": {"region": 1.0, "federation": 0.4}},
    {"recipe": "joint", "parameters": 100},
    {"budget": 0.01, "epsilon": None, "silos_per_person": 2},
    {"silo_epsilon": 5.0, "silo_clip": 3.0},
    {"purpose": "deployment", "parameters": 40, "silo_clip": 8.0},
    {"purpose": "deployment", "parameters": 40, "aggregation": "masked", "colluders": 1, "silos_per_person": 2},
    {"allocation": "uniform", "clip_norm": 0.1},
]


def made(federation=FEDERATION, **settings):
    return plan(federation, **({"rounds": 10, "epsilon": 1.0, "unit": "person"} | settings))


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_plan_for_persons_is_verified_written_read_and_exported(settings, tmp_path):
    new = made(**settings)
    assert [check for check in fulcrum.verify(new) if not check.holds] == []
    save_plan(new, tmp_path / "plan.json")
    read = read_plan(tmp_path / "plan.json")
    assert read.digest == new.digest
    assert read.unit == new.unit
    assert read.federation.persons == pytest.approx(new.federation.persons)
    assert read.federation.shares.sum() == pytest.approx(1, rel=1e-12)
    assert read.epsilon_above == pytest.approx(new.epsilon_above, rel=1e-6)
    assert read.person_epsilons == pytest.approx(new.person_epsilons, rel=1e-6)
    assert differences(new.content(), read.content()) == ()
    sound = verified_plan(new)
    assert (sound.largest_sums == new.largest_sums).all()
    settings_of_flare = json.loads(export_plan(new, "nvflare"))
    assert settings_of_flare["unit"] == new.unit.name
    assert settings_of_flare["neighbours"] == new.unit.neighbours
    sums = [site["largest_sum"] for site in settings_of_flare["sites"].values()]
    assert sums == pytest.approx(new.largest_sums.tolist())
    assert f'fulcrum-unit = "{new.unit.name}"' in export_plan(new, "flower")
    assert export_plan(new, "csv").count("\n") == len(FEDERATION) + 1
    assert len(reproducing_commands(new)) >= 2


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_recorded_command_makes_the_same_plan_again(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    new = made(**settings)
    rows = ["silo,records,region,country"]
    codes = [FEDERATION.membership(tier.name) for tier in FEDERATION.tiers]
    for index, name in enumerate(FEDERATION.silo_names.tolist()):
        nodes = [tier.nodes[code[index]] for tier, code in zip(FEDERATION.tiers, codes, strict=True)]
        rows.append(",".join([name, str(int(FEDERATION.sizes[index])), *nodes]))
    (tmp_path / "FEDERATION").with_suffix(".csv").write_text("\n".join(rows) + "\n")
    words = reproducing_commands(new)[0].split()
    assert words[:3] == ["fulcrum", "plan", "FEDERATION"]
    assert run(["plan", "FEDERATION.csv", *words[3:]]) == 0, capsys.readouterr().err
    again = read_plan(tmp_path / "plan.json")
    assert again.noise_multiplier == pytest.approx(new.noise_multiplier, rel=1e-12)
    assert again.unit == new.unit


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_sentence_for_persons_claims_that_a_silo_is_protected(settings):
    new = made(**settings)
    guarantee, sentence = fulcrum.guarantee_of(new), verdict(new).sentence
    assert guarantee.statement.startswith(f"Over 10 rounds, at delta 1e-05, every {new.unit.protected_data} ha")
    assert "silo's whole dataset" not in " ".join([guarantee.statement, guarantee.adjacency, *guarantee.assumptions])
    assert "datasets" not in sentence
    for advice in advice_on(new):
        assert "conceal" not in advice.text
        assert "whole dataset" not in advice.text


def test_a_federation_without_sizes_takes_the_declared_number():
    bare = Federation.from_sizes({"north": [1, 1, 1], "south": [1, 1]})
    bare = fulcrum.Federation.from_columns(
        silo=bare.silo_names.tolist(), records=None, tiers={"region": ["north"] * 3 + ["south"] * 2}
    )
    for weights in ("sizes", "equal", "least-noise", 0.3):
        new = made(bare, persons_per_silo=25, weights=weights)
        assert [check for check in fulcrum.verify(new) if not check.holds] == []
        assert math.fsum(new.federation.weights * 25) == pytest.approx(1, rel=1e-12)
        assert best_merge(new) is not None
    with pytest.raises(ParameterError, check=coded("unit.persons-missing")):
        made(bare)


@pytest.mark.parametrize("settings", [{}, {"silos_per_person": 2}, {"weights": "equal"}, {"weights": "least-noise"}])
def test_the_advised_merge_saves_what_the_merged_plan_saves(settings):
    flat = Federation.from_sizes({"north": [120, 80, 40], "south": [300, 20], "west": [50]})
    new = made(flat, **settings)
    merge = best_merge(new)
    merged = made(merge_regions(flat, merge.regions), **settings)
    assert merge.saving == pytest.approx(1 - merged.model_noise / new.model_noise, rel=1e-6)


def test_delta_is_compared_with_the_number_of_persons():
    [advice] = [advice for advice in advice_on(made(delta=0.01, unit_name="patient")) if advice.kind == "delta"]
    assert "one over the number of patients (670)" in advice.text
    assert not [advice for advice in advice_on(made(delta=1e-4)) if advice.kind == "delta"]


def test_the_joint_recipe_has_the_least_noise_of_persons():
    """Equal persons within regions, pooled by their noise: kappa² q² over the sum of squared regions."""
    new, least = made(recipe="joint", parameters=100, least_influence=0), made(weights="least-noise")
    assert new.weights_rule == "sizes"
    assert new.federation.weights == pytest.approx(np.full(7, 1 / 670), rel=1e-12)
    assert new.model_noise == pytest.approx(least.model_noise, rel=1e-9)
    advised = other_weights(made())
    assert advised is not None
    assert advised.saving == pytest.approx(1 - least.model_noise / made().model_noise, rel=1e-6)


def test_a_strict_preference_binds_all_silos_that_may_share_persons():
    sizes = {"north": {"a": 9, "b": 5}, "south": {"c": 7}}
    federation = Federation.from_sizes(sizes)
    federation = fulcrum.Federation.from_columns(
        silo=federation.silo_names.tolist(),
        records=federation.sizes,
        tiers={"region": ["north", "north", "south"]},
        epsilon=[0.3, math.nan, math.nan],
    )
    alone, shared = made(federation, epsilon=2.0), made(federation, epsilon=2.0, silos_per_person=2)
    assert alone.epsilon_above == pytest.approx([0.3, 0.3, 2.0], rel=1e-6)
    assert shared.epsilon_above == pytest.approx([0.3, 0.3, 0.3], rel=1e-6)
    assert [check for check in fulcrum.verify(shared) if not check.holds] == []
    # A file that lets the other silos keep to their own target fails.
    loose = msgspec.structs.replace(
        shared.content(), settings=msgspec.structs.replace(alone.content().settings, silos_per_person=2)
    )
    assert "preferences" in {
        check.name
        for check in fulcrum.verify(
            msgspec.structs.replace(loose, digest="", silos=alone.content().silos, summary=shared.content().summary)
        )
        if not check.holds
    }


def test_a_later_plan_for_persons_keeps_unit_weights_and_promise(tmp_path):
    sizes = {"north": {"lille": 100, "metz": 80}, "south": {"nice": 120, "lyon": 60}}
    old = made(
        Federation.from_sizes(sizes),
        rounds=6,
        epsilon={"region": 2.0, "aggregator": 6.0},
        parameters=5,
        purpose="deployment",
        weights={"lille": 1, "metz": 2, "nice": 3, "lyon": 4},
        silos_per_person=2,
    )
    for name in old.federation.silo_names.tolist():
        with Ledger.open(tmp_path / f"{name}.ledger", silo=name) as ledger:
            for number in (1, 2):
                release(None, old, name, number, gradients=[np.ones(5)] * 3, model=np.zeros(5), ledger=ledger)
    new = replan(old, Federation.from_sizes({"north": {"lille": 150, "metz": 80}, "south": {"nice": 120}}), tmp_path)
    assert new.unit == old.unit
    assert new.rounds == 4
    assert new.federation.shares == pytest.approx(np.array([1, 2, 3]) / 6, rel=1e-12)
    assert new.epsilon_above.max() <= 2.0 * (1 + 1e-9)
    assert new.epsilon_inside.max() <= 6.0 * (1 + 1e-9)
    assert [check for check in fulcrum.verify(new) if not check.holds] == []
    # The largest sums of the plan before are not known, so nothing is claimed for a silo as a whole.
    assert new.person_epsilons["whole_silo_above"] == math.inf
    assert "A silo as a whole is not protected" in fulcrum.guarantee_of(new).statement
    with pytest.raises(ParameterError, check=coded("target.silo-epsilon-with-past")):
        replan(
            made(
                Federation.from_sizes(sizes),
                rounds=6,
                epsilon=2.0,
                parameters=5,
                purpose="deployment",
                silo_epsilon=9.0,
                silos_per_person=2,
                weights={"lille": 1, "metz": 2, "nice": 3, "lyon": 4},
            ),
            Federation.from_sizes(sizes),
            tmp_path,
        )


BAD = [
    (["--unit", "persn"], "unknown unit 'persn'. Known: silo, person, record. Did you mean 'person'?"),
    (["--unit", "person", "--neighbours", "add"], "unknown neighbours 'add'. Known: replace, add-remove."),
    (["--neighbours", "add-remove"], "the unit of privacy is the silo, and neighbours"),
    (["--silos-per-person", "2"], "Choose unit person, or leave these settings out"),
    (["--silo-epsilon", "3"], "Choose unit person, or leave these settings out"),
    (["--persons-per-silo", "3"], "Choose unit person, or leave these settings out"),
    (["--unit-name", "patient"], "Choose unit person, or leave these settings out"),
    (["--unit", "person", "--silos-per-person", "0"], "must be a whole number from 1 to 1,000,000, got 0"),
    (["--unit", "person", "--silos-per-person", "1.5"], "--silos-per-person must be a whole number, got '1.5'"),
    (
        ["--unit", "person", "--persons-per-silo", "5"],
        "the federation declares sizes, which are the numbers of persons",
    ),
    (["--unit", "person", "--silo-clip", "0.5"], "silo_clip must be from 1 to 1e+12, got 0.5"),
    (["--unit", "person", "--silo-clip", "nan"], "silo_clip must be from 1 to 1e+12, got nan"),
    (["--unit", "person", "--silo-epsilon", "0"], "silo_epsilon must be a finite number above 0, got 0.0"),
    (["--unit", "person", "--silo-epsilon", "inf"], "silo_epsilon must be a finite number above 0, got inf"),
    (["--unit", "person", "--unit-name", "A patient"], "must be one word of small letters, got 'A patient'"),
    (["--unit", "record", "--floor", "0.5"], "information and floor are about the class concentration of a silo"),
    (
        ["--unit", "person", "--information", "2"],
        "and the unit of privacy is the person. Leave information and floor out",
    ),
    (["--unit", "person", "--injection", "aggregator"], "Set injection to silo"),
]


@pytest.mark.parametrize(("words", "line"), BAD)
def test_a_bad_setting_of_persons_is_refused_in_one_line(words, line, capsys):
    assert run(["plan", "severe", "--rounds", "10", "--epsilon", "1", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert line in err


def test_a_server_that_reads_regions_takes_no_target_further_out():
    with pytest.raises(UnreachableTargetError, check=coded("plan.server-reveals-sums")):
        made(server="random-effects", epsilon={"federation": 1.0})
