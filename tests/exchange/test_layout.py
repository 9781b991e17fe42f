import warnings
from collections import OrderedDict, UserDict, deque
from collections.abc import Mapping

import numpy as np
import pytest
from error_codes import coded

from fulcrum.core.messages.layout import Layout, flatten_arrays
from fulcrum.core.messages.model_message import model_digest
from fulcrum.errors import ExchangeError, ReleaseError


class Forgetful(Mapping):
    """A mapping that is empty from the second time on that it is gone through."""

    def __init__(self, arrays):
        self.arrays, self.times = arrays, 0

    def __getitem__(self, name):
        return self.arrays[name]

    def __iter__(self):
        self.times += 1
        return iter(self.arrays if self.times == 1 else ())

    def __len__(self):
        return len(self.arrays)


class Stuttering(UserDict):
    """A mapping that tells its first array twice."""

    def items(self):
        return [*self.data.items(), next(iter(self.data.items()))]


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("this lives\non another device")


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, Forgetful], ids=lambda kind: kind.__name__)
def test_a_mapping_is_gone_through_once(kind):
    layout, flat = flatten_arrays(kind({"a": np.ones((2, 2)), "b": np.zeros(1)}))
    assert (layout.names, layout.shapes, flat.tolist()) == (("a", "b"), ((2, 2), (1,)), [1.0, 1.0, 1.0, 1.0, 0.0])


@pytest.mark.parametrize("kind", [list, tuple, deque], ids=lambda kind: kind.__name__)
def test_a_sequence_is_named_by_its_places(kind):
    layout, flat = flatten_arrays(kind([np.ones(2), np.float32(3.0), [4.0, 5.0]]))
    assert (layout.names, layout.shapes) == (("0", "1", "2"), ((2,), (), (2,)))
    assert flat.tolist() == [1.0, 1.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8", ">f4", "<f2"])
def test_half_single_and_double_precision_are_held_exactly(dtype):
    values = np.array([0.1, -65504.0, 6e-8, 0.0], dtype=dtype)
    for array in (values, values.reshape(2, 2).T, values[::-1], np.broadcast_to(values, (3, 4)), values[:, None]):
        layout, flat = flatten_arrays(array)
        assert (layout.names, layout.shapes, flat.dtype) == (("update",), (array.shape,), np.float64)
        assert (flat == array.ravel()).all()


def test_what_comes_back_is_a_copy_of_its_own():
    array = np.ones(3)
    _, flat = flatten_arrays(array)
    array[:] = 7.0
    assert flat.tolist() == [1.0, 1.0, 1.0]


def test_a_subclass_is_what_its_numbers_are(tmp_path):
    mapped = np.memmap(tmp_path / "a", dtype=np.float32, mode="w+", shape=(2, 2))
    mapped[:] = 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = np.matrix([[1.0, 2.0]])
    layout, flat = flatten_arrays([mapped, matrix])
    assert (layout.shapes, flat.tolist()) == (((2, 2), (1, 2)), [2.0, 2.0, 2.0, 2.0, 1.0, 2.0])


@pytest.mark.parametrize("mode", ["raise", "warn"])
def test_no_value_is_refused_whatever_numpy_is_told_to_raise(mode):
    signalling = [
        np.array([0x7D00], dtype=np.uint16).view(np.float16),
        np.array([0x7FA00000], dtype=np.uint32).view(np.float32),
        np.array([0x7FF4000000000000], dtype=np.uint64).view(np.float64),
    ]
    with np.errstate(all=mode):
        _, flat = flatten_arrays([*signalling, np.array([np.inf, -np.inf, 5e-324])])
    assert np.isnan(flat[:3]).all()
    assert flat[3:].tolist() == [np.inf, -np.inf, 5e-324]


WRONG = {
    "nothing": (None, "there is no update"),
    "generator": (
        (np.ones(2) for _ in range(2)),
        "must be an array, or a mapping or sequence of arrays, got generator",
    ),
    "iterator": (iter([np.ones(2)]), "got list_iterator"),
    "map": (map(np.asarray, [[1.0]]), "got map"),
    "view": ({"a": np.ones(2)}.values(), "got dict_values"),
    "set": (frozenset([1.0]), "got frozenset"),
    "text": ("", "got str"),
    "bytes": (b"", "got bytes"),
    "number": (1.0, "got float"),
    "whole names": ({1: np.ones(2), "1": np.ones(2)}, "must be texts that can be printed, got 1"),
    "twice": (Stuttering({"a": np.ones(2), "b": np.ones(2)}), "has two arrays called 'a'"),
    "control": ({"a\x1b[2J": np.ones(2)}, r"must be texts that can be printed, got 'a\x1b[2J'"),
    "integers": ({"a": np.ones(2, dtype=int)}, "the update's array 'a' is int64, not floating point"),
    "booleans": ([np.ones(2, dtype=bool)], "'0' is bool, not floating point"),
    "complex": ([np.ones(2, dtype=complex)], "'0' is complex128, not floating point"),
    "objects": ([np.array([1.0, None])], "'0' is object, not floating point"),
    "structure": (np.zeros(2, dtype=[("a", float)]), "not floating point"),
    "texts": ([np.array(["1.0"])], "not floating point"),
    "inner generator": ([(value for value in (1.0, 2.0))], "'0' is object, not floating point"),
    "inner mapping": ({"a": {"b": np.ones(2)}}, "'a' is object, not floating point"),
    "ragged": ([[[1.0], [1.0, 2.0]]], "the update's array '0' is not an array: "),
    "unreadable": ([Unreadable()], "is not an array: this lives on another device"),
    "masked": (
        [np.ma.masked_array([1.0, 2.0], mask=[True, False])],
        "is a masked array, and the mask of the array would be lost",
    ),
    "masked alone": (np.ma.masked_array([1.0, 2.0]), "is a masked array, and the mask of the array would be lost"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_arrays_is_refused_in_one_line(name):
    update, reason = WRONG[name]
    with pytest.raises(ReleaseError) as caught:
        flatten_arrays(update)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long doubles are doubles here")
def test_floats_that_double_precision_would_round_are_refused():
    with pytest.raises(ReleaseError, check=coded("arrays.too-wide")):
        flatten_arrays(np.ones(2, dtype=np.longdouble))


def test_a_model_is_held_to_the_same():
    for model, reason in (
        ({1: np.ones(2), "1": np.ones(2)}, "the names of the model's arrays must be texts"),
        ({"a": np.ma.masked_array([1.0])}, "the model's array 'a' is a masked array"),
        ({"a": np.ones(2)}.items(), "the model must be an array"),
    ):
        with pytest.raises(ExchangeError, match=reason):
            model_digest(model)
    assert model_digest(Forgetful({"a": np.ones(2)})) == model_digest({"a": np.ones(2)})


def test_a_shape_of_too_many_axes_is_refused_without_their_product(monkeypatch):
    """The product of 60,000 large axes takes half a minute, and a message of 500 kB can state them."""
    layout = Layout(names=("a",), shapes=((2**62 - 1,) * 60_000,))

    def product(factors):
        raise AssertionError(f"multiplied {len(list(factors))} axes")

    monkeypatch.setattr("fulcrum.core.messages.layout.math.prod", product)
    with pytest.raises(ExchangeError, check=coded("message.layout-invalid")):
        layout.check("release")
