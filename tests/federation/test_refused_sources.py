"""What is no source of a federation is refused in one line that says what to do."""

import os
import sys
from pathlib import Path

import polars as pl
import pytest
from sources import CSV, refusal, written

from fulcrum.errors import MissingExtraError, listing
from fulcrum.readers.profiles import PROFILES

KNOWN = ".toml, .csv, .tsv, .txt, .xlsx, .xlsm, .xlsb, .xls, .ods, .parquet, .yml, .yaml"


def test_an_unknown_name_is_refused_with_the_nearest():
    known = listing(PROFILES)
    assert refusal("sevre") == f"no built-in federation or file 'sevre'. Known: {known}. Did you mean 'severe'?"


@pytest.mark.parametrize("source", ["", "a\0b", Path("nowhere.csv"), "nowhere/silos.csv", "two\nlines"])
def test_a_missing_file_is_refused(source):
    assert refusal(source).startswith(f"no built-in federation or file {str(source)!r}. Known: balanced, ")


def test_a_name_too_long_for_a_file_is_refused():
    assert "cannot be read: File name too long. " in refusal("x" * 5000)


def test_a_directory_is_refused(tmp_path):
    assert refusal(tmp_path) == f"{str(tmp_path)!r} is a folder. Give a file: {KNOWN}"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("silos.json", "Save it as CSV"),
        ("silos.numbers", "In Numbers: File, Export To, CSV; then give that .csv file"),
    ],
)
def test_an_unknown_extension_is_refused_with_how_to_export_it(tmp_path, name, remedy):
    ending = Path(name).suffix
    message = f"{name}: files that end in {ending!r} cannot be read. Known: {KNOWN}. {remedy}"
    assert refusal(written(tmp_path, name, b"")) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("name", ["a.csv", "a.toml", "a.yml", "a.parquet"])
def test_an_unreadable_file_is_refused(tmp_path, name):
    path = written(tmp_path, name, CSV)
    path.chmod(0)
    assert refusal(path).startswith(f"{name} cannot be read: Permission denied. ")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose first byte cannot be read")
@pytest.mark.parametrize("name", ["a.csv", "a.toml", "a.yml"])
def test_a_file_that_fails_while_it_is_read_is_refused(tmp_path, name):
    (tmp_path / name).symlink_to("/proc/self/mem")
    assert refusal(tmp_path / name).startswith(f"{name} cannot be read: Input/output error. ")


@pytest.mark.parametrize(
    ("name", "package", "message"),
    [
        (
            "a.parquet",
            "pyarrow",
            "reading Parquet needs pyarrow. Run: pip install '.[parquet]' in the checkout, or pip install 'WHEEL[parquet]' with the wheel's file",
        ),
        (
            "a.yml",
            "yaml",
            "reading project.yml needs pyyaml. Run: pip install '.[nvflare]' in the checkout, or pip install 'WHEEL[nvflare]' with the wheel's file",
        ),
    ],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name, package, message):
    monkeypatch.setitem(sys.modules, package, None)
    assert refusal(written(tmp_path, name, b""), MissingExtraError) == message


@pytest.mark.parametrize("source", [3, None, {"silo": ["a"]}, b"severe", [1], pl.Series([1])])
def test_what_is_not_a_frame_is_refused(source):
    kind = type(source).__name__
    assert refusal(source) == (f"a federation cannot be read from {kind}. Give a built-in name, a path or a data frame")
