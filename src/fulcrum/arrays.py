"""Array types that every module shares.

>>> import numpy as np
>>> read_only(np.ones(2)).flags.writeable
False
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.intp]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
NameArray: TypeAlias = np.ndarray[Any, Any]  # of numpy's StringDType, which its stubs cannot name

ArrayLike: TypeAlias = npt.NDArray[Any] | list[float] | tuple[float, ...]
FloatLike: TypeAlias = float | ArrayLike


def read_only(array: Any) -> Any:
    """Returns the array, no longer writable: what a frozen dataclass holds must not change beneath it."""
    array.flags.writeable = False
    return array
