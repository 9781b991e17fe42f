"""Plans with the spectrum prior: the variances and their origin in the file, verified as post-processing."""

import json

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.core.plan.plan_file import Spectrum, content_digest
from fulcrum.errors import DataError, ParameterError
from fulcrum.words.recipe_words import recipe_name, recipe_words
from fulcrum.words.reproduction import reproducing_commands

PROMISE = {"rounds": 3, "epsilon": 1.0, "parameters": 10, "recipe": "joint"}
PUBLIC = Spectrum(variances=[4.0, 1.0, 0.2, 0.05], origin="public", source="public.npz")
SPLIT = msgspec.structs.replace(PUBLIC, origin="training-split", source="agnews")


def failing(content):
    return {check.name: check.detail for check in fulcrum.verify(content) if not check.holds}


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_a_plan_carries_the_variances_and_their_origin_and_verifies_as_read(tmp_path, purpose):
    plan = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC, embedding=True, purpose=purpose)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    assert read.shrink == "even-scale"
    assert read.spectrum == msgspec.structs.replace(PUBLIC, embedding=True)
    assert read.server_rule.spectrum.tolist() == PUBLIC.variances
    assert read.digest == plan.digest
    assert any("public data" in claim for claim in read.content().guarantee.assumptions)
    assert "prior" in {check.name for check in fulcrum.verify(read)}
    assert fulcrum.verified_plan(read).spectrum == read.spectrum


def test_the_prior_changes_no_number_of_the_promise():
    with_prior = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC)
    without = fulcrum.plan("isic-paper", **PROMISE)
    assert with_prior.noise_multiplier.tolist() == without.noise_multiplier.tolist()
    assert with_prior.content().summary == without.content().summary
    assert with_prior.content().silos == without.content().silos
    assert "spectrum" not in json.loads(msgspec.json.encode(without.content().settings))


@pytest.mark.parametrize(("shrink", "public"), [("heads", None), ("spectrum", PUBLIC), ("one-scale", PUBLIC)])
def test_a_plan_with_an_earlier_shrinkage_keeps_the_shrinkage_and_its_digest(shrink, public, tmp_path):
    earlier = fulcrum.plan("isic-paper", **PROMISE, public=public, shrink=shrink)
    fulcrum.save_plan(earlier, tmp_path / "plan.json")
    read = fulcrum.read_plan(tmp_path / "plan.json")
    assert (read.shrink, read.server_rule.shrinks, read.digest) == (shrink, shrink, earlier.digest)
    assert all(check.holds for check in fulcrum.verify(read))
    assert recipe_name(read) == "joint"
    command = reproducing_commands(read)[0]
    assert "--recipe joint" in command
    assert f'shrink="{shrink}"' in command
    assert "--shrink" not in command
    assert fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC).server_rule.shrinks == "even-scale"


def test_variances_of_the_training_split_are_for_research_alone():
    plan = fulcrum.plan("isic-paper", **PROMISE, public=SPLIT)
    assert any("outside every epsilon" in claim for claim in plan.content().guarantee.assumptions)
    assert any("outside every epsilon" in sentence for sentence in recipe_words(plan))
    with pytest.raises(ParameterError, check=coded("plan.spectrum-origin", source="agnews")):
        fulcrum.plan("isic-paper", **PROMISE, public=SPLIT, purpose="deployment")


def test_a_forged_plan_fails_the_check_of_the_prior():
    content = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC, purpose="deployment").content()
    for changes in ({"spectrum": SPLIT}, {"spectrum": None}, {"shrink": "even-heads"}, {"shrink": False}):
        settings = msgspec.structs.replace(content.settings, **changes)
        forged = msgspec.structs.replace(content, settings=settings, digest="")
        assert "prior" in failing(forged), changes
    assert failing(content) == {}


@pytest.mark.parametrize(
    "changes",
    [{"source": ""}, {"source": "x\nverified: yes"}, {"source": "\x1b[31m"}, {"variances": [1.0] * 7}],
    ids=str,
)
def test_a_source_that_could_forge_a_line_or_variances_of_another_head_fail_the_check_of_the_prior(changes):
    content = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC, purpose="deployment").content()
    settings = msgspec.structs.replace(content.settings, spectrum=msgspec.structs.replace(PUBLIC, **changes))
    assert list(failing(msgspec.structs.replace(content, settings=settings, digest=""))) == ["prior"]


def test_the_assumption_on_public_variances_names_the_issuer_who_declares_it():
    plan = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC, purpose="deployment")
    [claim] = [claim for claim in plan.content().guarantee.assumptions if "input variances" in claim]
    assert "the issuer of the plan declares so" in claim
    assert any("the issuer declares public, public.npz" in sentence for sentence in recipe_words(plan))


def test_words_of_another_origin_fail_the_check_of_words():
    content = fulcrum.plan("isic-paper", **PROMISE, public=SPLIT).content()
    settings = msgspec.structs.replace(content.settings, spectrum=PUBLIC)
    assert "words" in failing(msgspec.structs.replace(content, settings=settings, digest=""))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"public": None, "shrink": "spectrum"}, "plan.spectrum-missing"),
        ({"public": None, "shrink": "even-scale"}, "plan.spectrum-missing"),
        ({"server": "sum"}, "plan.spectrum-server"),
        ({"recipe": "paper"}, "plan.spectrum-server"),
        ({"parameters": 12 + 1}, "plan.spectrum-length"),
        ({"public": Spectrum(variances=[], origin="public", source="x")}, "plan.spectrum-range"),
        ({"public": Spectrum(variances=[1.0, 0.0], origin="public", source="x")}, "plan.spectrum-range"),
        ({"public": Spectrum(variances=[float("nan")], origin="public", source="x")}, "plan.spectrum-range"),
        ({"public": msgspec.structs.replace(PUBLIC, source="x\nverified: yes")}, "plan.name-invalid"),
    ],
)
def test_a_prior_that_no_server_could_use_is_refused_with_the_reason(changes, code):
    with pytest.raises(ParameterError, check=coded(code)):
        fulcrum.plan("isic-paper", **(PROMISE | {"public": PUBLIC} | changes))


def test_a_user_may_keep_another_shrinkage_beside_public_variances():
    plan = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC, shrink=False)
    assert (plan.shrink, plan.spectrum) == (False, None)


def test_the_recipe_keeps_its_name_and_the_command_names_the_public_inputs():
    plan = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC, embedding=True)
    assert recipe_name(plan) == "joint"
    command = reproducing_commands(plan)[0]
    assert "--recipe joint" in command
    assert "--public PUBLIC_INPUTS --embedding" in command
    assert "shrink" not in command


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_public_inputs_are_read_from_a_file_and_their_variances_are_numpy_s(tmp_path, kind, capsys):
    inputs = np.random.default_rng(3).normal(size=(50, 4)) * [3, 1, 0.5, 0.1]
    path = tmp_path / f"inputs.{kind}"
    if kind == "npz":
        np.savez(path, X=inputs)
    else:
        rows = "\n".join(",".join(map(repr, row)) + ",a" for row in inputs.tolist())
        path.write_text(f"p,q,r,s,label\n{rows}\n")
    words = [
        "plan",
        "isic-paper",
        "--rounds",
        "3",
        "--epsilon",
        "1",
        "--parameters",
        "10",
        "--recipe",
        "joint",
        "--embedding",
        "--format",
        "json",
    ]
    assert run([*words, "--public", str(path)]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["spectrum"]["variances"] == pytest.approx(inputs.var(axis=0).tolist(), rel=1e-12)
    assert settings["spectrum"]["origin"] == "public"
    assert settings["spectrum"]["source"] == path.name
    assert settings["spectrum"]["embedding"] is True


def test_the_variances_of_built_in_data_are_those_of_its_training_split():
    spectrum = fulcrum.public_spectrum("digits")
    task = fulcrum.load_task("digits")
    assert spectrum.origin == "training-split"
    assert spectrum.variances == pytest.approx(task.features_train.var(axis=0).tolist())
    assert not spectrum.embedding


def test_a_constant_input_has_a_variance_above_0(tmp_path):
    np.savez(tmp_path / "inputs.npz", X=np.array([[1.0, 2.0], [3.0, 2.0]]))
    assert fulcrum.public_spectrum(tmp_path / "inputs.npz").variances == [1.0, 1e-12]


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"Y": np.ones((3, 2))}, "spectrum.array-missing"),
        ({"X": np.ones(3)}, "spectrum.rows-missing"),
        ({"X": np.ones((1, 2))}, "spectrum.rows-missing"),
        ({"X": np.array([["a"], ["b"]])}, "spectrum.rows-missing"),
        ({"X": np.ones((3, 2))}, "spectrum.variances-unusable"),
        ({"X": np.array([[1.0], [np.inf]])}, "spectrum.variances-unusable"),
    ],
)
def test_public_inputs_without_usable_variances_are_refused(tmp_path, arrays, code):
    np.savez(tmp_path / "inputs.npz", **arrays)
    with pytest.raises(DataError, check=coded(code)):
        fulcrum.public_spectrum(tmp_path / "inputs.npz")


def test_a_missing_file_and_a_file_of_another_kind_are_refused(tmp_path):
    with pytest.raises(DataError, check=coded("file.unreadable")):
        fulcrum.public_spectrum(tmp_path / "missing.csv")
    with pytest.raises(DataError, check=coded("spectrum.file-kind")):
        fulcrum.public_spectrum(tmp_path / "inputs.txt")


def test_a_digest_covers_the_variances():
    content = fulcrum.plan("isic-paper", **PROMISE, public=PUBLIC).content()
    other = msgspec.structs.replace(PUBLIC, variances=[4.0, 1.0, 0.2, 0.06])
    settings = msgspec.structs.replace(content.settings, spectrum=other)
    assert content_digest(msgspec.structs.replace(content, settings=settings)) != content_digest(content)
