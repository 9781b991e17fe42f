"""Power cuts: of what a ledger wrote and did not sync, any part may be lost, in whatever order it was written.

`strace` tells what a process that releases asks of the system. After each of these steps the files are put together as
a disk may have them: what was synced, and any of the blocks written since. `FULCRUM_STRIDE=1` cuts after every step.
"""

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledgers import PLAN, holds, opened, release

from fulcrum.storage import payloads
from fulcrum.storage.payload_file import BLOCK_BYTES

STRIDE = int(os.environ.get("FULCRUM_STRIDE", "5"))

RELEASES = """
import hashlib, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ledgers import PLAN, opened, release
from fulcrum.storage import payloads

payloads.MOST_INSIDE = 100
for size in (9_000, 50, 20_000, 9_500):
    with opened(Path(sys.argv[2])) as ledger:
        number = ledger.sequence + 1
        sent = release(ledger, number, os.urandom(size)).payload
        os.write(1, b"%d %s" % (number, hashlib.sha256(sent).hexdigest().encode()))
"""
CALLS = "openat,link,unlink,lseek,write,pwrite64,ftruncate,fsync,fdatasync"
STEP = re.compile(r"(\w+)\((.*)\) += (\d+)")


def steps(script: list[str], trace: Path) -> Iterator[tuple[str, str, list[bytes], list[int]]]:
    """Yields what a process asked of the system: the call, the file, the texts and the numbers in it."""
    command = ["strace", "-qq", "-y", "-xx", "-s", "1000000", "-o", str(trace), "-e", f"trace={CALLS}", *script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    for line in trace.read_text().splitlines():
        if (found := STEP.match(line)) is None:
            continue
        call, said, result = found.groups()
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in re.findall(r'"([^"]*)"', said)]
        file = re.match(r"(\d+)<([^>]*)>", said)
        name = bytes.fromhex(file[2].replace("\\x", "")).decode() if file and "\\x" in file[2] else file and file[2]
        numbers = [int(one) for one in re.findall(r", (\d+)(?=,|$)", re.sub(r'"[^"]*"', "", said))]
        yield call, name or "", texts, [int(file[1]) if file else -1, *numbers, int(result)]


class Disk:
    """Files by name, each with what was synced and what was written since."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytearray, list[tuple[int, bytes | None]]]] = {}
        self.places: dict[int, int] = {}
        self.sent: dict[int, str] = {}

    def take(self, call: str, name: str, texts: list[bytes], numbers: list[int]) -> None:
        """Takes in a step; the names of files last at once."""
        handle = numbers[0]
        if call == "openat":
            self.places[numbers[-1]] = 0
        elif call == "link":
            self.files[texts[1].decode()] = self.files[texts[0].decode()]
        elif call == "unlink":
            self.files.pop(texts[0].decode(), None)
        elif call == "write" and handle == 1:
            number, digest = texts[0].split()
            self.sent[int(number)] = digest.decode()
        elif call == "lseek":
            self.places[handle] = numbers[-1]
        elif call == "ftruncate":
            self._file(name)[1].append((numbers[1], None))
        elif call in ("write", "pwrite64"):
            place = self.places.get(handle, 0) if call == "write" else numbers[-2]
            if call == "write":
                self.places[handle] = place + len(texts[0])
            for begin in range(place, place + len(texts[0]), BLOCK_BYTES):
                part = texts[0][begin - place : begin - place + BLOCK_BYTES]
                self._file(name)[1].append((begin, part))
        elif name in self.files:
            synced, since = self.files[name]
            synced[:] = _written(synced, since)
            del since[:]

    def cut(self, folder: Path, name: str, keep: float, rng: random.Random) -> None:
        """Leaves the files of a ledger as a power cut does that keeps a share of what was not synced."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path, (synced, since) in self.files.items():
            if Path(path).name.startswith(name):
                data = _written(synced, [one for one in since if rng.random() < keep])
                (folder / Path(path).name).write_bytes(data)

    def _file(self, name: str) -> tuple[bytearray, list[tuple[int, bytes | None]]]:
        return self.files.setdefault(name, (bytearray(), []))


def _written(data: bytearray, since: list[tuple[int, bytes | None]]) -> bytearray:
    data = bytearray(data)
    for place, part in since:
        data.extend(bytes(max(0, place - len(data))))
        data[place : place + len(part) if part is not None else len(data)] = part or b""
    return data


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_power_cut_loses_no_release_that_was_sent_and_leaves_none_by_half(path, tmp_path, monkeypatch):
    script = [sys.executable, "-c", RELEASES, str(Path(__file__).parent), str(path)]
    disk, rng, folder, cuts, recorded = Disk(), random.Random(1), tmp_path / "cut", 0, set()
    monkeypatch.setattr(payloads, "MOST_INSIDE", 100)
    for step, told in enumerate(steps(script, tmp_path / "trace")):
        disk.take(*told)
        if str(path) not in disk.files or step % STRIDE:
            continue
        disk.cut(folder, path.name, (0.0, 1.0, 0.5)[cuts % 3], rng)
        cuts += 1
        with opened(folder / path.name) as ledger:
            recorded.add(ledger.sequence)
            assert len(disk.sent) <= ledger.sequence <= len(disk.sent) + 1
            for number, digest in disk.sent.items():
                assert hashlib.sha256(ledger.stored(PLAN, number, "model")).hexdigest() == digest
            if ledger.sequence < PLAN.rounds - 1:
                release(ledger, ledger.sequence + 1, os.urandom(9_000))
        assert all(holds(folder / path.name, least_sequence=len(disk.sent)).values())
    assert len(disk.sent) == 4
    assert recorded == {0, 1, 2, 3, 4}
    assert cuts > 100 // STRIDE
