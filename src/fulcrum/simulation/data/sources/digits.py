"""The handwritten digits that scikit-learn carries: 1,797 images of 8 by 8 pixels, read from the package's file.

>>> images, labels = read_digits()
>>> images.shape, labels[:3].tolist()
((1797, 64), [0, 1, 2])
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import MissingExtraError

_FILE = Path("datasets") / "data" / "digits.csv.gz"


def read_digits() -> tuple[FloatArray, IntArray]:
    """Returns images and labels, the same bits as `sklearn.datasets.load_digits`.

    The import of scikit-learn takes a second, and every silo's process would pay for the import before its first
    round. Reading the package's file takes milliseconds.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    spec = find_spec("sklearn")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    path = next((Path(place) / _FILE for place in places if (Path(place) / _FILE).is_file()), None)
    if path is not None:
        table = np.loadtxt(path, delimiter=",")
        return table[:, :-1], table[:, -1].astype(int)
    try:  # a version of scikit-learn that keeps the digits elsewhere
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("data.scikit-learn-missing") from None
    images, labels = load_digits(return_X_y=True)
    return images, labels
