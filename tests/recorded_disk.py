"""A disk put together from what a process asked of the system, as a power cut may leave it.

`strace` records the calls. Synced data is there after a cut; of data written since, any of the blocks may be.
A name that was made or removed lasts once its folder is synced, and may last before.
"""

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BLOCK_BYTES = 4096

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

_CALLS = "openat,link,rename,unlink,lseek,write,pwrite64,ftruncate,fsync,fdatasync"
_STEP = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (\d+)")


@dataclass(frozen=True)
class Step:
    """A call: its name, the texts and numbers in it, its flags, and what it returned."""

    call: str
    texts: list[bytes]
    numbers: list[int]
    flags: str
    result: int


def steps(command: list[str], trace: Path) -> Iterator[Step]:
    """Runs a command to its end and yields what it asked of the system."""
    strace = ["strace", "-f", "-qq", "-xx", "-s", "10000000", "-o", str(trace), "-e", f"trace={_CALLS}"]
    done = subprocess.run(
        [*strace, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120
    )
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip("may not trace")
    assert done.returncode == 0, done.stderr
    with trace.open() as lines:
        for line in lines:
            if (found := _STEP.match(line)) is None:
                continue
            call, said, result = found.groups()
            texts = [bytes.fromhex(text.replace("\\x", "")) for text in re.findall(r'"([^"]*)"', said)]
            rest = re.sub(r'"[^"]*"', "", said)
            numbers = [int(number) for number in re.findall(r"(?:^|, )(\d+)(?=,|$)", rest)]
            yield Step(call, texts, numbers, rest, int(result))


@dataclass
class File:
    """The content of a file: what was synced, and what was written or cut off since."""

    synced: bytearray = field(default_factory=bytearray)
    since: list[tuple[int, bytes | None]] = field(default_factory=list)
    place: int = 0
    folder: str = ""

    def content(self, keep: float, rng: random.Random) -> bytes:
        """Returns the content after a power cut that keeps a share of unsynced data."""
        data = bytearray(self.synced)
        for place, part in self.since:
            if rng.random() < keep:
                data.extend(bytes(max(0, place - len(data))))
                data[place : place + len(part) if part is not None else len(data)] = part or b""
        return bytes(data)

    def sync(self) -> None:
        self.synced[:] = self.content(1.0, random.Random(0))
        del self.since[:]


class Disk:
    """Files by name, as the system has them and as the disk has them, and names that are on their way there."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.names: dict[str, File] = {}
        self.durable: dict[str, File] = {}
        self.changes: list[tuple[str, File | None]] = []
        self.handles: dict[int, File] = {}
        self.told: list[bytes] = []

    def take(self, step: Step) -> bool:
        """Takes in a step; returns whether it was about this disk."""
        if step.call == "write" and step.numbers[0] == 1:
            self.told.append(step.texts[0])
            return True
        if step.call == "openat":
            return self._open(step)
        if step.call in ("link", "rename", "unlink"):
            return self._name(step.call, *(text.decode() for text in step.texts))
        file = self.handles.get(step.numbers[0])
        if file is None:
            return False
        if step.call == "lseek":
            file.place = step.result
        elif step.call == "ftruncate":
            file.since.append((step.numbers[1], None))
        elif step.call in ("write", "pwrite64"):
            self._write(file, step)
        elif file.folder:
            for name, kept in self.changes:
                self._put(self.durable, name, kept)
            del self.changes[:]
        else:
            file.sync()
        return True

    def cut(self, folder: Path, keep: float, rng: random.Random) -> None:
        """Leaves the files as a power cut does that keeps a share of what was not synced."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        names = dict(self.durable)
        for name, file in self.changes:
            if rng.random() < keep:
                self._put(names, name, file)
        for name, file in names.items():
            (folder / Path(name).name).write_bytes(file.content(keep, rng))

    def _open(self, step: Step) -> bool:
        name = step.texts[0].decode()
        self.handles.pop(step.result, None)
        if name == self.folder:
            self.handles[step.result] = File(folder=name)
            return False
        if str(Path(name).parent) != self.folder:
            return False
        if name not in self.names:
            if "O_CREAT" not in step.flags:
                return False
            self.names[name] = File()
            self.changes.append((name, self.names[name]))
        known = self.names[name]
        self.handles[step.result] = File(known.synced, known.since)  # a place of its own
        return True

    def _name(self, call: str, first: str, second: str = "") -> bool:
        if first not in self.names:
            return False
        if call != "unlink":
            self.names[second] = self.names[first]
            self.changes.append((second, self.names[first]))
        if call != "link":
            del self.names[first]
            self.changes.append((first, None))
        return True

    @staticmethod
    def _put(names: dict[str, File], name: str, file: File | None) -> None:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file

    @staticmethod
    def _write(file: File, step: Step) -> None:
        place, data = (step.numbers[-1] if step.call == "pwrite64" else file.place), step.texts[0][: step.result]
        if step.call == "write":
            file.place += len(data)
        begin = place
        while begin < place + len(data):  # a block is written whole or not at all
            end = min((begin // BLOCK_BYTES + 1) * BLOCK_BYTES, place + len(data))
            file.since.append((begin, data[begin - place : end - place]))
            begin = end
