"""Children of a process that forks while one of its threads draws, masks, seals or signs for the first time."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest
from forking import forks

pytest.importorskip("cryptography", reason="needs the extra secure")

WORK = """
    import faulthandler, logging, os, sys, tempfile, threading, warnings
    warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads

    def draw():
        from fulcrum.core.noise.keystream import random_bytes
        return lambda: random_bytes(10)

    def mask():
        from fulcrum.core.masking import masks
        def work():
            key = masks.loaded_key(masks.new_private_key())
            secret = masks.derived_key(masks.pair_secret(key, masks.public_half(bytes(32)), "lille"), b"info")
            assert masks.unseal(secret, masks.seal(secret, b"plain", b"about"), b"about") == b"plain"
            masks.unseal(secret, b"", b"about")
        return work

    def sign():
        from fulcrum.core.plan.keys import private_key
        from fulcrum.planning.files.plan_issue import new_key
        from fulcrum.core.masking.masking_messages import _verify
        place = tempfile.mkdtemp()
        def work():
            path = f"{place}/{os.getpid()}-{threading.get_ident()}"
            if not os.path.exists(path):
                new_key(path)
            private = private_key(path)
            _verify(private.public_key().public_bytes_raw(), private.sign(b"plan"), b"plan")
        return work

    def seal():
        from fulcrum.core.messages import sealing
        from fulcrum.primitives import primitives
        def work():
            private = primitives("sealing needs").x25519.X25519PrivateKey.generate()
            sealing.sealing_suite().decrypt(sealing.sealing_suite().encrypt(b"sum", private.public_key(), info=b""), private, info=b"")
        return work

    def draw_much():
        from fulcrum.core.noise.noise_sources import SecureNoise
        return lambda: SecureNoise().integers(width=1e5, count=2**17)
"""

IMPORTED = """
    works = [draw(), mask(), sign(), seal()]
    before = set(sys.modules)
    for work in works:
        work()
    print(sorted(set(sys.modules) - before))
"""

FORKED = """
    work = {name}()
    thread = threading.Thread(target=work)
    thread.start()
    children = []
    while thread.is_alive() and len(children) < 20 or not children:
        if (child := os.fork()) == 0:
            faulthandler.dump_traceback_later(20, exit=True)
            work()
            os._exit(0)
        children.append(child)
    print(sorted({{os.waitpid(child, 0)[1] for child in children}}))
"""


def said_by(code, name=""):
    script = textwrap.dedent(WORK) + textwrap.dedent(code.format(name=name))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    return ran.stdout + ran.stderr


def test_what_a_child_may_do_imports_nothing():
    """A module that a thread of the parent imports as it forks stays locked in the child."""
    assert said_by(IMPORTED) == "[]\n"


@forks
@pytest.mark.parametrize("name", ["draw", "mask", "sign", "seal"])
def test_children_do_not_wait_for_what_a_thread_of_their_parent_does_first(name):
    assert said_by(FORKED, name) == "[0]\n"


@forks
@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed (extra `fast`)")
def test_a_child_does_not_wait_for_numba_that_a_thread_of_its_parent_loads():
    assert said_by(FORKED, "draw_much") == "[0]\n"
