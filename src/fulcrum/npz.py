"""NumPy archives from other people: the headers are checked before an array is inflated.

A file of 5 MB may inflate to 5 GB, since zeros compress a thousandfold. Measured sums, models and features do not.
"""

import io
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from fulcrum.errors import DataError, in_one_line
from fulcrum.regular_files import regular_file

_MOST_INFLATION = 64
"""Bytes of arrays for each byte of the file."""

_ALWAYS = 2**30
"""Bytes of arrays that any file may hold."""

_SUFFIX = ".npy"
_SINGLE = b"\x93NUMPY"
_HEADERS: Mapping[tuple[int, int], tuple[int, Callable[[Any], tuple[Any, ...]]]] = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}
"""By format of an array: the bytes of the header's length, and NumPy's reader of the header."""

_LONGEST_HEADER = 2**16
"""Bytes. NumPy reads the whole header before it looks at the header, and format 2.0 has room for 4 GiB."""

_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The kinds of compression that `zipfile` inflates piece by piece. It inflates bzip2 and LZMA without a bound: a first
read of 128 bytes makes gigabytes of a file of 1 KB."""


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
    with regular_file(path).open("rb") as file:
        if file.read(len(_SINGLE)) == _SINGLE:
            raise DataError("archive.single-array", file=path)
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(archive, file, path, wanted, check)
        except DataError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds for bytes of a stranger
            raise DataError("archive.malformed", file=path, reason=in_one_line(error)) from None


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
        raise DataError("archive.inflation", file=path, megabytes=size / 1e6, gigabytes=inflated / 1e9)
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
    if info.compress_type not in _BOUNDED:
        raise ValueError(f"{info.filename!r} is neither stored nor deflated. Write the file with np.savez")
    with archive.open(info) as stream:
        prefix = _prefix(stream, info.filename)
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(prefix)][1](prefix)
        header = ArrayHeader(shape=shape, dtype=dtype)
        if dtype.hasobject or any(size < 0 for size in shape):
            raise ValueError(f"{info.filename!r} holds objects, or a shape below 0")
        if dtype.itemsize == 0:  # any number of such elements fits into a file of any length
            raise ValueError(f"{info.filename!r} holds elements of no bytes")
        # NumPy makes room for the header's length before reading, and the archive inflates the entry's length.
        if stream.tell() + header.nbytes != info.file_size:
            raise ValueError(f"{info.filename!r} is not as long as its header says")
    return header


def _prefix(stream: IO[bytes], name: str) -> io.BytesIO:
    """Returns the bytes of a member up to the end of its header; a header that is too long is not read.

    Raises:
        ValueError: The member is no array of a known format, or has no header of a possible length.
    """
    magic = stream.read(np.lib.format.MAGIC_LEN)
    version = np.lib.format.read_magic(io.BytesIO(magic))
    if version not in _HEADERS:
        raise ValueError(f"{name!r} is an array of format {version}")
    length = stream.read(_HEADERS[version][0])
    size = int.from_bytes(length, "little")
    if size > _LONGEST_HEADER:
        raise ValueError(f"{name!r} has a header of {size:,} bytes, more than {_LONGEST_HEADER:,}")
    return io.BytesIO(magic + length + stream.read(size))
