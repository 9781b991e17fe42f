"""The result of the user's training: arrays that fit the model, or a failure in words.

>>> import numpy as np
>>> update_of({"weights": np.zeros(2)}, {"weights": np.ones(2)})
{'weights': array([1., 1.])}
>>> error_in_words(ValueError("no records"))
'ValueError: no records'
"""

import contextlib
import os
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, in_one_line


def checked_result(
    model: Mapping[str, FloatArray], trained: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, FloatArray]:
    """Returns the arrays of training in double precision; names and shapes must be equal to those of the model."""
    if list(trained) != list(model):
        raise DataError("training.result-names", returned=sorted(trained), expected=sorted(model))
    for name, array in model.items():
        dtype, shape = trained[name].dtype, trained[name].shape
        if dtype.kind not in "fiu" or shape != array.shape:
            raise DataError("training.result-shape", array=name, dtype=dtype, shape=shape, expected=array.shape)
    return {name: array.astype(np.float64, copy=False) for name, array in trained.items()}


def update_of(model: Mapping[str, FloatArray], trained: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, FloatArray]:
    """Returns the change that training made to the model; the result of training is checked first."""
    result = checked_result(model, trained)
    return {name: result[name] - array for name, array in model.items()}


def error_in_words(error: BaseException) -> str:
    """Returns an error of the user's code as words; most errors say too little without the name of their class."""
    name = type(error).__name__
    try:
        words = in_one_line(error)
    except BaseException:  # the text of an error is the user's code too
        words = ""
    if isinstance(error, ImportError | SyntaxError) and words:
        return words
    return f"{name}: {words}" if words else name


def report_of(error: BaseException) -> str:
    """Returns the traceback of an error of the user's code; the name of the class if the traceback itself fails."""
    try:
        return "".join(traceback.format_exception(error)).strip()
    except BaseException:
        return type(error).__name__


@contextlib.contextmanager
def forked_children_end() -> Iterator[None]:
    """Ends a process that training forked, when the process returns, fails or calls `sys.exit`.

    A forked process that went on would answer the round in the place of the silo's process, a second time.
    """
    process, status = os.getpid(), 1
    try:
        yield
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    finally:
        if os.getpid() != process:
            os._exit(status & 0xFF)
