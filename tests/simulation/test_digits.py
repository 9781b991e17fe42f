"""The digits of scikit-learn, read from the package's file."""

import subprocess
import sys
from pathlib import Path

import pytest
from error_codes import coded

from fulcrum.errors import MissingExtraError
from fulcrum.simulation.data.sources import digits

load_digits = pytest.importorskip("sklearn.datasets", reason="the digits come with scikit-learn").load_digits


def same_as_scikit_learns(images, labels):
    expected_images, expected_labels = load_digits(return_X_y=True)
    pairs = (images, expected_images), (labels, expected_labels)
    return all(mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes() for mine, theirs in pairs)


def test_the_digits_are_those_of_scikit_learn_to_the_bit():
    assert same_as_scikit_learns(*digits.read_digits())


def test_a_version_that_keeps_the_digits_elsewhere_is_asked_for_them(monkeypatch):
    monkeypatch.setattr(digits, "_FILE", Path("nowhere.csv.gz"))
    assert same_as_scikit_learns(*digits.read_digits())


def test_a_process_that_reads_the_digits_does_not_import_scikit_learn():
    code = "import sys; from fulcrum.simulation.data.datasets import read_data; read_data('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_digits_without_scikit_learn_name_the_package_to_install(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, check=coded("data.scikit-learn-missing")):
        digits.read_digits()
