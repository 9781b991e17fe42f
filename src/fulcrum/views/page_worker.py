"""A process that works for the page: it reads jobs and writes replies, one after the other, until its input ends.

Work in a process of its own can be ended, and gives back all memory that it took. A thread can do neither: a question
of 0.3 MB kept one for minutes after its browser had left.

    python -P -m fulcrum.views.page_worker 60
"""

import os
import signal
import sys
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from fulcrum.views.page_work import Job, Reply, answer

if sys.platform != "win32":
    import resource

READY = Reply(status=0, body=b"")
"""What a process says before the first job: all that it needs is imported."""

MOST_MEMORY = 2**30
"""Bytes that a question may take beside what the process has when it starts."""

_MARGIN = 5
"""Seconds after the deadline at which the process ends itself: the page's server may be gone, and end it no more."""

_LENGTH_BYTES = 8

_Message = TypeVar("_Message", bound=msgspec.Struct)


def write_message(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Writes a message: its length, then its content."""
    content = msgspec.msgpack.encode(message)
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
    stream.flush()


def read_message(stream: IO[bytes], kind: type[_Message]) -> _Message | None:
    """Returns the next message; None where the stream ends before one is whole."""
    length = int.from_bytes(head, "little") if len(head := stream.read(_LENGTH_BYTES)) == _LENGTH_BYTES else None
    if length is None or len(content := stream.read(length)) < length:
        return None
    return msgspec.msgpack.decode(content, type=kind)


def main() -> None:
    """Works until the input ends; the argument is the seconds that a question may take."""
    deadline = float(sys.argv[1])
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no reply
    _limit_memory()
    write_message(replies, READY)
    while (job := read_message(sys.stdin.buffer, Job)) is not None:
        _alarm(deadline + _MARGIN)
        reply = answer(job)
        _alarm(0)
        write_message(replies, reply)


def _limit_memory() -> None:
    """Has allocations fail beyond `MOST_MEMORY`, where the system tells how much the process has.

    Not by RLIMIT_AS: the engine that draws charts reserves gigabytes of addresses, of which it uses little.
    """
    sizes = Path("/proc/self/statm")
    if sizes.exists():
        used = int(sizes.read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_DATA, (used + MOST_MEMORY, used + MOST_MEMORY))


def _alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main()
