"""A worker process of the page: reads jobs and writes replies in turn until the input ends.

A process can be ended at any time, and returns all memory. A thread can do neither: a question of 0.3 MB kept a thread
busy for minutes after the browser had left.

    python -P -m fulcrum.views.page.page_worker 60
"""

import os
import signal
import sys
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from fulcrum.views.page.page_work import Job, Reply, answer

if sys.platform != "win32":
    import resource

READY = Reply(status=0, body=b"")
"""The first message of a process, after all imports."""

MOST_MEMORY = 2**30
"""Bytes for a question, beside the memory of the process at the start."""

_MARGIN = 5
"""Seconds after the deadline until the process ends without the page's server, which may be gone."""

_LENGTH_BYTES = 8

_Message = TypeVar("_Message", bound=msgspec.Struct)


def write_message(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Writes a message: length, then content."""
    content = msgspec.msgpack.encode(message)
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
    stream.flush()


def read_message(stream: IO[bytes], kind: type[_Message]) -> _Message | None:
    """Returns the next message; None at the end of the stream."""
    length = int.from_bytes(head, "little") if len(head := stream.read(_LENGTH_BYTES)) == _LENGTH_BYTES else None
    if length is None or len(content := stream.read(length)) < length:
        return None
    return msgspec.msgpack.decode(content, type=kind)


def main() -> None:
    """Works until the input ends; the argument is the deadline of a question in seconds."""
    deadline = float(sys.argv[1])
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a library is no reply
    _limit_memory()
    write_message(replies, READY)
    while (job := read_message(sys.stdin.buffer, Job)) is not None:
        _alarm(deadline + _MARGIN)
        reply = answer(job)
        _alarm(0)
        write_message(replies, reply)


def _limit_memory() -> None:
    """Lets allocations beyond `MOST_MEMORY` fail, on systems with /proc.

    RLIMIT_AS would not do: the engine behind charts reserves gigabytes of addresses and uses few.
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
