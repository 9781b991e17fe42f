"""Work in a forked process, where there are forks."""

import os
import sys
import warnings

import pytest

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def fate_of(work) -> tuple[str, int]:
    """Runs the work in a forked process; returns what it returned, or the error it raised, and its exit code.

    The code is minus the number of a signal that ended the process, of which nothing was said then.
    """
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            try:
                said = str(work())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(send, said.encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        said = pipe.read().decode()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work) -> str:
    """Runs the work in a forked process and returns what it returned, or the error it raised."""
    return fate_of(work)[0]


def killed_at_line(work, module, last) -> str:
    """Runs the work in a forked process that is killed at a line of a module, the `last` one that the work comes to.

    Returns the number of lines of the module that the work came to, "" if the process was killed.
    """

    def traced():
        lines = 0

        def trace(frame, event, _):
            nonlocal lines
            if frame.f_code.co_filename != module.__file__:
                return None
            if event == "line":
                lines += 1
                if lines == last:
                    os._exit(9)
            return trace

        sys.settrace(trace)
        work()
        sys.settrace(None)
        return lines

    return in_child(traced)
