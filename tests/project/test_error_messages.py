"""Every error has a code whose words are in the tables, and docs/errors.md shows all of them."""

import ast
import importlib.util
import pickle
import string
import tomllib
from functools import cache
from pathlib import Path

import msgspec
import pytest

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import DataError, FulcrumError, ParameterError, PlanError, ReleaseError, error_messages

SOURCE = Path(fulcrum.__file__).parent
ROOT = Path(__file__).parents[2]
HOLDERS_OF_CLASSES = {"error", "in_use"}  # variables and attributes that hold a class of errors


def catalogue():
    spec = importlib.util.spec_from_file_location("error_catalogue", ROOT / "docs" / "_ext" / "error_catalogue.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def trees():
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if "templates" not in path.parts]
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def error_classes():
    """Returns the names of `FulcrumError` and of all classes that inherit from it."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    classes = {"FulcrumError"}
    for _ in bases:
        classes |= {name for name, above in bases.items() if above & classes}
    return classes


def errors_made():
    """Yields the place, the first argument and the keywords of every call that makes an error."""
    for module, tree in trees().items():
        if module == "errors.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in error_classes() or name in HOLDERS_OF_CLASSES:
                    yield f"{module}:{node.lineno}", node.args, {keyword.arg for keyword in node.keywords}


def code_of(arguments):
    match arguments:
        case [ast.Constant(value=str(code))] if code in error_messages():
            return code
    return None


def fields_of(template):
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def test_every_error_that_the_source_makes_has_a_code_of_the_tables():
    assert [place for place, arguments, _ in errors_made() if code_of(arguments) is None] == []


def test_every_detail_that_a_message_names_is_given():
    wrong = []
    for place, arguments, given in errors_made():
        code = code_of(arguments)
        if code is not None and None not in given:
            wanted = set().union(*map(fields_of, error_messages()[code]))
            wrong += [f"{place} {code} lacks {name}" for name in sorted(wanted - given)]
    assert wrong == []


def test_messages_name_details_alone_and_end_without_a_full_stop():
    for code, (message, remedy) in error_messages().items():
        assert all(name.isidentifier() for name in fields_of(message) | fields_of(remedy)), code
        assert "\n" not in message + remedy, code
        assert not message.endswith("."), code
        assert not remedy.endswith(".") or remedy.endswith("}."), code


def test_every_code_of_the_tables_is_used():
    used = {code_of(arguments) for _, arguments, _ in errors_made()}
    text = (SOURCE / "errors.py").read_text(encoding="utf-8")
    assert [code for code in error_messages() if code not in used and f'"{code}"' not in text] == []


def test_no_code_stands_in_two_tables():
    codes = [
        f"{area}.{name}"
        for table in sorted((SOURCE / "error_messages").glob("*.toml"))
        for area, messages in tomllib.loads(table.read_text(encoding="utf-8")).items()
        for name in messages
    ]
    assert sorted(set(codes)) == sorted(codes)


def test_the_page_of_errors_is_the_one_that_the_tables_give():
    made = catalogue()
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "Run: python docs/_ext/error_catalogue.py"


def test_an_error_keeps_its_parts_through_pickle_and_behind_a_place():
    error = ParameterError("errors.name-unknown", noun="format", name="jsn", known="table, json", suggestion="")
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.code, copied.details, copied.remedy, str(copied)) == (
        error.code,
        error.details,
        error.remedy,
        str(error),
    )
    located = PlanError.at("plan.json", error)
    assert isinstance(located, PlanError)
    assert str(located) == f"plan.json: {error}"
    assert (located.code, located.details["place"]) == ("errors.name-unknown", "plan.json")


def test_an_empty_place_changes_the_class_alone():
    error = ParameterError("errors.name-unknown", noun="format", name="jsn", known="table, json", suggestion="")
    same = PlanError.at("", error)
    assert type(same) is PlanError
    assert (same.code, same.details, same.remedy, str(same)) == (error.code, error.details, error.remedy, str(error))
    assert same.details is not error.details


def test_a_code_without_words_still_tells_code_and_details():
    assert str(FulcrumError("plan.no-such-code", silo="lille")) == "plan.no-such-code silo='lille'"
    assert str(FulcrumError("errors.name-unknown", name="lille")) == "errors.name-unknown name='lille'"


class Mute:
    """A detail that has no text."""

    def __repr__(self):
        raise RuntimeError

    __str__ = __repr__


def test_a_detail_without_a_text_does_not_hide_the_error():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    for detail, shown in ((deep, "round_number=[[["), (Mute(), "round_number=<Mute instance at ")):
        error = ReleaseError("release.round-type", round_number=detail)
        assert str(error).startswith(f"release.round-type {shown}")
        assert error.code == "release.round-type"
    assert str(FulcrumError("plan.no-such-code", detail=Mute())).startswith("plan.no-such-code detail=<Mute instance")


def test_no_detail_makes_a_second_line():
    """A line of foreign words in a silo's log would look like one of the silo's own."""
    error = DataError("file.unreadable", file="a\nCRITICAL: b\r\u2028c", reason="d")
    assert str(error).startswith("a CRITICAL: b c cannot be read: d")
    assert str(PlanError.at("e\nf", error)) == f"e f: {error}"


def test_a_sentence_of_an_extension_stays_as_it_is():
    error = FulcrumError("the sensor is off {really}. Turn it on")
    assert (str(error), error.code, error.details) == ("the sensor is off {really}. Turn it on", "unlisted", {})


@pytest.mark.parametrize("words", [["--format", "json"], ["--format=json"]])
def test_json_has_all_parts_of_an_error(words, capsys):
    assert run(["compare", "severe", "--rounds", "3", "--rounds", "3", "--epsilon", "1", *words]) == 2
    out, line = capsys.readouterr()
    assert out == ""
    error = msgspec.json.decode(line)["error"]
    assert error["code"] == "cli.option-repeated"
    assert error["details"]["option"] == "--rounds"
    assert error["message"].endswith(error["remedy"])


def test_an_error_in_json_shows_names_that_are_no_text_and_nothing_that_a_terminal_obeys(tmp_path, capsys):
    assert run(["verify", "\udcff.json", "--format", "json"]) == 2
    assert msgspec.json.decode(capsys.readouterr().err)["error"]["details"]["file"] == r"\udcff.json"
    (tmp_path / "fed.csv").write_text("silo,records,region\na,1,n\nb\x9b2J,1,n\n", encoding="utf-8")
    assert run(["plan", str(tmp_path / "fed.csv"), "--rounds", "2", "--epsilon", "1", "--format", "json"]) == 2
    line = capsys.readouterr().err
    assert line.rstrip("\n").isprintable()
    assert msgspec.json.decode(line)["error"]["details"]["name"] == "b\x9b2J"
