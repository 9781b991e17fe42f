"""What a site inflates of a job before it knows that the job is its own: next to nothing."""

import io
import tracemalloc
import zipfile
import zlib

import pytest

import fulcrum

pytest.importorskip("nvflare", reason="needs the extra nvflare")

from fulcrum.engines.nvflare.site_jobs.admission import _holds_only, _neighbours
from fulcrum.engines.nvflare.site_jobs.job_messages import APP

OWN = b'{"format_version": 2}\n'
SIGNATURE = "config/.__nvfl_sig.json"


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "config_fed_client.json"
    path.write_bytes(OWN)
    return path


def app(*entries, kind=zipfile.ZIP_DEFLATED):
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", kind) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return body.getvalue()


def claiming(name, size, *, inflated=64 << 20):
    """An app in which one file inflates to `inflated` bytes, and says of itself that it has `size`."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join([packer.compress(bytes(1 << 20)) for _ in range(inflated >> 20)] + [packer.flush()])
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        if name != APP:
            archive.writestr(APP, OWN)
        entry = zipfile.ZipInfo(name)
        archive.writestr(entry, packed)
        entry.compress_type, entry.file_size = zipfile.ZIP_DEFLATED, size
    assert len(body.getvalue()) < 1 << 17
    return body.getvalue()


def test_the_job_of_the_kit_is_known_with_and_without_its_signatures(own):
    assert _holds_only(app((APP, OWN)), own)
    assert _holds_only(app(("config/", b""), (APP, OWN), (SIGNATURE, b"s" * 5000), (".__nvfl_sig.json", b"s")), own)
    assert not _holds_only(app((APP, OWN + b" ")), own)
    assert not _holds_only(app((SIGNATURE, b"s")), own)


@pytest.mark.parametrize(
    "body",
    [
        claiming(APP, 64 << 20),
        claiming(SIGNATURE, 64 << 20),
        claiming(APP, len(OWN)),
        claiming(SIGNATURE, 10),
        claiming(APP, -1 & 0xFFFFFFFE),
        app((APP, OWN), *((f"{number}/.__nvfl_sig.json", b"s") for number in range(40))),
        app((APP, OWN), *((f"{number}/.__nvfl_sig.json", bytes(1 << 18)) for number in range(8))),
        app((APP, OWN), kind=zipfile.ZIP_BZIP2),
        app((APP, OWN), kind=zipfile.ZIP_LZMA),
        app((APP, OWN), (SIGNATURE, b"s")) + bytes(2 << 20),
        bytes(2 << 20) + app((APP, OWN)),
    ],
    ids=[
        "large",
        "a large signature",
        "larger than it says",
        "a signature larger than it says",
        "larger than anything",
        "many files",
        "large together",
        "bzip2",
        "lzma",
        "padded behind",
        "padded before",
    ],
)
def test_what_is_large_says_it_is_small_or_cannot_be_bounded_is_refused_unread(own, body):
    tracemalloc.start()
    try:
        assert not _holds_only(body, own)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_damaged_encrypted_and_missing_apps_are_refused_and_raise_nothing(own):
    whole = app((APP, OWN), (SIGNATURE, b"s" * 300))
    for place in range(len(whole)):
        for byte in (whole[place] ^ 0xFF, 0):  # a name of zeros is none
            changed = bytearray(whole)
            changed[place] = byte
            _holds_only(bytes(changed), own)
        assert not _holds_only(whole[:place], own)
    for nothing in (None, b"", 7, "text", []):
        assert not _holds_only(nothing, own)
    own.unlink()
    assert not _holds_only(whole, own)


def test_a_tier_without_sites_has_no_neighbours():
    """A server that pools reads the sums of regions, and the country named like a silo of another region is no site."""
    sizes = {region: {f"{region}{k}": 100 for k in (1, 2, 3)} for region in "abcd"}
    federation = fulcrum.Federation.from_sizes(sizes, outer={"country": {"c1": ["a", "b"], "west": ["c", "d"]}})
    pools = fulcrum.plan(federation, rounds=1, epsilon={"region": 3.0}, recipe="joint", parameters=40)
    assert pools.server != "sum"
    assert _neighbours(pools, "a") - {"a"} == {"a1", "a2", "a3"}
    adds = fulcrum.plan(federation, rounds=1, epsilon={"region": 3.0}, parameters=40)
    assert _neighbours(adds, "a") - {"a"} == {"a1", "a2", "a3", "c1"}
    assert _neighbours(adds, "west") - {"west"} == {"c", "d"}
