"""NumPy archives from elsewhere: their headers are read, and what would inflate too far is not."""

import tracemalloc
import zipfile

import numpy as np
import pytest

from fulcrum.errors import DataError
from fulcrum.npz import read_npz


def claim(path, header, *, says=None, content=b"", version=1, kind=zipfile.ZIP_DEFLATED):
    """Writes an archive whose only array has a header of its own, and whose entry says how long the array is."""
    text = header.encode()
    start = b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("sums.npy", start + content)
        [entry] = archive.infolist()
        entry.file_size = len(start) + (len(content) if says is None else says)
    return path


def header_of(shape, kind="<f8"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n"


def refusal(path):
    tracemalloc.start()
    with pytest.raises(DataError) as caught:
        read_npz(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_arrays_are_read_as_numpy_reads_them(tmp_path):
    arrays = {"X": np.arange(6.0).reshape(2, 3), "silo": np.array(["a", "b"]), "empty": np.zeros((0, 4))}
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "data.npz", **arrays)
        found = read_npz(tmp_path / "data.npz")
        assert list(found) == list(arrays)
        assert all((found[name] == array).all() and found[name].dtype == array.dtype for name, array in arrays.items())
        assert list(read_npz(tmp_path / "data.npz", wanted=("silo", "other"))) == ["silo"]


def test_zeros_that_are_worth_no_limit_are_read(tmp_path):
    np.savez_compressed(tmp_path / "zeros.npz", X=np.zeros(2_000_000))
    assert (tmp_path / "zeros.npz").stat().st_size < 50_000
    assert not read_npz(tmp_path / "zeros.npz")["X"].any()


def test_what_would_inflate_a_thousandfold_is_refused_by_its_header(tmp_path):
    path = claim(tmp_path / "bomb.npz", header_of((10, 66_250_000)), says=8 * 662_500_000)
    told = refusal(path)
    assert told.startswith(f"{path} would grow from 0.0 MB to 5.3 GB when")
    assert told.endswith("write the file with np.savez, without compression")


def test_headers_are_checked_before_anything_is_inflated(tmp_path):
    path = claim(tmp_path / "wrong.npz", header_of((100, 1_000_000)), says=8 * 100_000_000)

    def check(headers):
        assert headers["sums"].shape == (100, 1_000_000)
        raise DataError("of another shape")

    with pytest.raises(DataError, match="of another shape"):
        read_npz(path, check=check)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (header_of((2**62, 0)), 0),
        (header_of((-1,)), 8),
        (header_of((3,)), 16),
        (header_of((3,), "|O"), 24),
        (header_of((10**30,)), 24),
        (header_of((2**62,), "|S0"), 0),
        ("{'descr': '<f8', 'shape': " + "(" * 5_000 + "}\n", 24),
        ("nothing\n", 24),
    ],
    ids=["no such shape", "below 0", "shorter", "objects", "longer than any", "no bytes", "nested", "no header"],
)
def test_headers_that_no_array_has_are_refused(tmp_path, header, says):
    assert "is not a NumPy archive without pickles" in refusal(claim(tmp_path / "wrong.npz", header, says=says))


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_members_that_inflate_without_a_bound_are_refused(tmp_path, kind):
    path = claim(tmp_path / "bomb.npz", header_of((1,)), says=8, content=bytes(40_000_000), kind=kind)
    assert path.stat().st_size < 10_000
    assert "is neither stored nor deflated. Write the file with np.savez" in refusal(path)


def test_a_header_longer_than_any_of_numpy_is_not_read(tmp_path):
    path = claim(tmp_path / "bomb.npz", header_of((1,)).rstrip().ljust(40_000_000) + "\n", says=8, version=2)
    assert path.stat().st_size < 100_000
    assert "has a header of 40,000,001 bytes, more than 65,536" in refusal(path)


def test_arrays_of_format_2_are_read(tmp_path):
    path = claim(tmp_path / "data.npz", header_of((2,)), content=np.array([1.0, 2.0]).tobytes(), version=2)
    assert read_npz(path)["sums"].tolist() == [1.0, 2.0]


def test_files_that_are_no_archives_are_refused(tmp_path):
    path = tmp_path / "file.npz"
    np.savez_compressed(path, X=np.arange(1000.0))
    whole = path.read_bytes()
    for data in (b"", b"text", whole[: len(whole) // 2], whole[:200] + b"\xff" * 50 + whole[250:]):
        path.write_bytes(data)
        assert "is not a NumPy archive without pickles" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README.txt", b"no array")
    assert "is not a NumPy archive without pickles" in refusal(path)
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    assert "is a single array, not an archive" in refusal(path)
