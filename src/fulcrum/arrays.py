"""Array types for all modules.

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
NameArray: TypeAlias = np.ndarray[Any, Any]  # of numpy's StringDType, which numpy's stubs cannot name

ArrayLike: TypeAlias = npt.NDArray[Any] | list[float] | tuple[float, ...]
FloatLike: TypeAlias = float | ArrayLike


def read_only(array: Any) -> Any:
    """Returns the array, no longer writable: the arrays of a frozen dataclass must not change."""
    array.flags.writeable = False
    return array
