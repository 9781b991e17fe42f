"""Passes on what training prints: a separate process between the training process and the silo's own stderr.

Training that wrote to the silo's own stderr could fill a pipe whose reader stands still. The silo would then wait for
the reader with the next line of its own log, and whether the silo answers would depend on how much training prints.

- Text is passed on while the reader of stderr keeps up. Text that stderr does not take is left out, and a later line
  states the number of bytes: training waits for no reader.
- A pipe is filled by a quarter at most, so that the silo's own log has the rest.
- The process holds nothing but the two files, imports nothing of Fulcrum, and ends when no training process is left.
"""

import os
import select
import stat
import sys
import time

if sys.platform != "win32":
    import fcntl
    import termios

_BLOCK = 1_900
"""Bytes of one write. With the line on bytes that were left out, a write stays below half a page of a pipe."""

_PATIENCE = 0.2
"""Seconds until text is left out: a reader that is busy for a moment loses nothing."""

_INTERVAL = 0.005


def pass_on(source: int, target: int) -> None:
    """Copies text from one file to another until the source ends, and leaves out what the target does not take."""
    left_out, note = 0, b""
    while text := os.read(source, _BLOCK):
        try:
            if not has_room_in_time(target, 0.0 if left_out else _PATIENCE):
                raise BlockingIOError
            os.write(target, note + text)
            left_out, note = 0, b""
        except OSError:  # also a file that is closed, or a disk that is full: training goes on
            left_out += len(text)
            note = b"\n[the log took no more: %d bytes that training printed are left out]\n" % left_out


def has_room_in_time(target: int, seconds: float, *, share: float = 1 / 4) -> bool:
    """Returns True if a file takes a block within some seconds, and if a pipe is filled by no more than a share."""
    until = time.monotonic() + seconds
    while not (room := _has_room(target, share)) and time.monotonic() < until:
        time.sleep(_INTERVAL)
    return room


def _has_room(target: int, share: float) -> bool:
    if sys.platform == "win32":
        return True
    if not select.select([], [target], [], 0)[1]:
        return False
    if not stat.S_ISFIFO(os.fstat(target).st_mode):
        return True
    capacity = fcntl.fcntl(target, fcntl.F_GETPIPE_SZ) if hasattr(fcntl, "F_GETPIPE_SZ") else 2**14
    return unread_bytes(target) <= share * capacity


def unread_bytes(pipe: int) -> int:
    """Returns the number of bytes in a pipe that its reader has not read yet."""
    if sys.platform == "win32":
        return 0
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


if __name__ == "__main__":
    pass_on(0, 2)
