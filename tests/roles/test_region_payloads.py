"""Releases and sums too large for a region's own file: beside it, and overwritten once they are summed."""

import shutil

import pytest
from regional import MEMBERS, refusal

from fulcrum.errors import ExchangeError, StorageError
from fulcrum.roles.region_file import RegionFile
from fulcrum.storage import payloads


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Whatever a silo of these tests releases is large."""
    monkeypatch.setattr(payloads, "MOST_INSIDE", 100)


def beside(path):
    return path.with_name(f"{path.name}-payloads")


def everywhere(path):
    return b"".join(entry.read_bytes() for entry in path.parent.iterdir())


def gathered(world, region, number):
    made = {silo: world.release(silo, number) for silo in MEMBERS}
    for one in made.values():
        region.accept(world.seal(one), number)
    return made


def test_large_releases_survive_a_restart_and_are_summed_as_small_ones_are(world, path):
    with world.open(path) as region:
        made = gathered(world, region, 1)
    assert all(one.values.tobytes() in beside(path).read_bytes() for one in made.values())
    assert not any(one.values.tobytes() in path.read_bytes() for one in made.values())
    with world.open(path) as region:
        assert "sent another release" in refusal(region.accept, world.sealed("lille"), 1)
        total = region.close_round(1)
        assert (total.values == sum(one.values for one in made.values())).all()
    with world.open(path) as region:
        assert region.close_round(1).to_bytes() == total.to_bytes()


def test_large_releases_are_nowhere_once_they_are_summed(world, path):
    with world.open(path) as region:
        for number in (1, 2):
            made = gathered(world, region, number)
            data = region.close_round(number).to_bytes()
            assert not any(one.values.tobytes() in everywhere(path) for one in made.values())
            assert data in beside(path).read_bytes()
        first = beside(path).stat().st_size
        for number in (3, 4):
            gathered(world, region, number)
            region.close_round(number)
    # What was overwritten is used again: each round adds its sum alone, on a block of its own.
    assert beside(path).stat().st_size <= first + 2 * 4096


def test_a_crash_between_overwriting_and_forgetting_leaves_the_sum_and_is_made_good(world, path, tmp_path):
    with world.open(path) as region:
        made = gathered(world, region, 1)
        total = region.close_round(1, forget=False)
        places = [row[0] for row in region._file.rows("SELECT bytes FROM release")]
        assert len(set(places)) == len(MEMBERS)
        region._file.overwrite(places)
        crashed = tmp_path / "crashed" / path.name
        crashed.parent.mkdir()
        for entry in path.parent.glob(f"{path.name}*"):
            shutil.copy(entry, crashed.parent)
    with world.open(crashed) as region:
        assert region.close_round(1).to_bytes() == total.to_bytes()
    assert not any(one.values.tobytes() in everywhere(crashed) for one in made.values())


def test_a_release_that_a_crash_left_and_no_row_knows_is_overwritten_when_the_file_is_opened(world, path):
    with world.open(path) as region:
        gathered(world, region, 1)
        region.close_round(1)
    gap = world.release("lille", 2).values.tobytes()  # what was overwritten leaves room for it
    size = beside(path).stat().st_size
    for left, grown in ((gap, False), (500 * gap, True)):
        with world.open(path) as region:
            region._file.keep(memoryview(left))  # and no row, as if killed
        assert left in beside(path).read_bytes()
        assert (beside(path).stat().st_size > size) == grown
        with world.open(path) as region:
            assert gap not in beside(path).read_bytes()
            assert beside(path).stat().st_size == size
            region.close_round(1)


def test_a_region_without_its_payloads_is_refused_and_left_alone(world, path):
    with world.open(path) as region:
        gathered(world, region, 1)
    whole = beside(path).read_bytes()
    for content in (None, whole[:-1], b"something else"):
        beside(path).unlink()
        if content is not None:
            beside(path).write_bytes(content)
        assert "north.region-payloads" in refusal(world.open, path, kind=StorageError)
        assert (beside(path).read_bytes() if content is not None else None) == content
        beside(path).write_bytes(whole)
    with world.open(path) as region:
        region.close_round(1)


def test_an_older_region_beside_newer_payloads_is_refused_and_nothing_is_overwritten(world, path):
    with world.open(path) as region:
        gathered(world, region, 1)
    older = path.read_bytes()
    with world.open(path) as region:
        total = region.close_round(1).to_bytes()
    newest, left = path.read_bytes(), beside(path).read_bytes()
    path.write_bytes(older)
    assert "north.region is an older copy, or damaged" in refusal(world.open, path, kind=StorageError)
    assert (path.read_bytes(), beside(path).read_bytes()) == (older, left)
    path.write_bytes(newest)
    with world.open(path) as region:
        assert region.close_round(1).to_bytes() == total


def test_a_region_opened_under_another_plan_has_nothing_overwritten(world, path):
    with world.open(path) as region:
        gathered(world, region, 1)
        region._file.keep(memoryview(bytes(range(256)) * 100))  # and no row, as if killed
    left = beside(path).read_bytes()
    with pytest.raises(ExchangeError, match="is that of another region or plan"):
        RegionFile.bound(path, region="south", plan_digest="other")
    assert beside(path).read_bytes() == left


def test_a_damaged_large_release_is_never_summed(world, path):
    with world.open(path) as region:
        gathered(world, region, 1)
    broken = bytearray(beside(path).read_bytes())
    broken[-1] ^= 1
    beside(path).write_bytes(broken)
    with world.open(path) as region:
        assert "is not the one accepted" in refusal(region.close_round, 1, kind=StorageError)
