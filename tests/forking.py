"""Work in a forked process, where there are forks."""

import os
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
