"""NumPy archives from other people: the headers are checked before an array is inflated.

A file of 5 MB may inflate to 5 GB, since zeros compress a thousandfold. Measured sums, models and features do not.
"""

import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fulcrum.errors import DataError, in_one_line

_MOST_INFLATION = 64
"""Bytes of arrays for each byte of the file."""

_ALWAYS = 2**30
"""Bytes of arrays that any file may hold."""

_SUFFIX = ".npy"
_SINGLE = b"\x93NUMPY"
_HEADERS: Mapping[tuple[int, int], Callable[[Any], tuple[Any, ...]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayHeader:
    """The form of an array in an archive.

    Attributes:
        shape: The shape.
        dtype: The type of the elements.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


def read_npz(
    path: Path,
    wanted: Collection[str] | None = None,
    check: Callable[[Mapping[str, ArrayHeader]], None] | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of an archive by name.

    Args:
        path: The file.
        wanted: The names of the arrays to read; all by default. Missing names are left out.
        check: A function of the headers, called before an array is inflated. An error in it ends the reading.

    Raises:
        OSError: The file cannot be read.
        DataError: The file is no archive of arrays without pickles, or would inflate far beyond the size of the file.
    """
    with path.open("rb") as file:
        if file.read(len(_SINGLE)) == _SINGLE:
            raise DataError(f"{path} is a single array, not an archive. Write it with: np.savez(path, X=X, y=y)")
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(archive, file, path, wanted, check)
        except DataError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds for bytes of a stranger
            raise DataError(f"{path} is not a NumPy archive without pickles: {in_one_line(error)}") from None


def _read(
    archive: zipfile.ZipFile,
    file: BinaryIO,
    path: Path,
    wanted: Collection[str] | None,
    check: Callable[[Mapping[str, ArrayHeader]], None] | None,
) -> dict[str, np.ndarray[Any, Any]]:
    members = {info.filename.removesuffix(_SUFFIX): info for info in archive.infolist()}
    chosen = {name: info for name, info in members.items() if wanted is None or name in wanted}
    headers = {name: _header(archive, info) for name, info in chosen.items()}
    size, inflated = file.seek(0, 2), sum(header.nbytes for header in headers.values())
    if inflated > max(_ALWAYS, _MOST_INFLATION * size):
        raise DataError(
            f"{path} would inflate from {size / 1e6:,.1f} MB to {inflated / 1e9:,.1f} GB. If its arrays are that "
            "empty, write it with np.savez, which does not compress"
        )
    if check is not None:
        check(headers)
    arrays = {}
    for name, info in chosen.items():
        with archive.open(info) as stream:
            arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    """Returns the header of a member, and inflates no more of the member than the header.

    Raises:
        ValueError: The member is no array without pickles, or its length differs from the header's.
    """
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"{info.filename!r} is an array of format {version}")
        shape, _, dtype = _HEADERS[version](stream)
        header = ArrayHeader(shape=shape, dtype=dtype)
        if dtype.hasobject or any(size < 0 for size in shape):
            raise ValueError(f"{info.filename!r} holds objects, or a shape below 0")
        # NumPy makes room for the header's length before reading, and the archive inflates the entry's length.
        if stream.tell() + header.nbytes != info.file_size:
            raise ValueError(f"{info.filename!r} is not as long as its header says")
    return header
