import copy
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from scipy import stats

from fulcrum.errors import MissingExtraError, ParameterError
from fulcrum.noise import keystream
from fulcrum.noise.keystream import Keystream

pytest.importorskip("cryptography", reason="needs the package cryptography (extra `secure`)")

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_it_is_aes_256_in_counter_mode_by_the_vector_of_nist():
    # NIST SP 800-38A, F.5.5 CTR-AES256.Encrypt: its output blocks are plaintext xor ciphertext.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    drawn = Keystream._for_test(key, counter).take(64)
    assert bytes(a ^ b for a, b in zip(drawn, plain, strict=True)) == cipher


def test_bytes_and_words_are_one_stream_however_it_is_cut():
    whole = Keystream._for_test(bytes(32)).take(4000)
    stream = Keystream._for_test(bytes(32))
    assert stream.take(0) == b""
    parts = stream.take(3) + stream.take(13) + stream.words(0).tobytes() + stream.take(8)
    words = stream.words(497)
    assert parts + words.astype("<u8").tobytes() == whole
    assert words.dtype == np.uint64


def test_a_long_draw_is_the_same_as_short_ones_and_crosses_keys():
    count = keystream._BYTES_A_KEY // 8 + 100_003
    long = Keystream._for_test(b"k" * 32).words(count)
    stream = Keystream._for_test(b"k" * 32)
    short = np.concatenate([stream.words(min(70_001, count - start)) for start in range(0, count, 70_001)])
    assert (long == short).all()


def test_a_key_is_replaced_after_its_bytes_and_its_words_do_not_come_back():
    stream = Keystream._for_test(b"k" * 32)
    first = stream._encryptor
    before = stream.words(keystream._BYTES_A_KEY // 8)
    assert stream._encryptor is first
    after = stream.words(1000)
    assert stream._encryptor is not first
    # 2^21 words and 2^10: two that agree by chance have odds of 2^-33.
    assert set(after.tolist()).isdisjoint(before.tolist())


def test_two_keystreams_never_share_a_word():
    drawn = np.concatenate([Keystream().words(20_000) for _ in range(10)])
    assert len(np.unique(drawn)) == len(drawn)


def test_every_bit_of_a_word_is_fair():
    words = Keystream._for_test(b"b" * 32).words(100_000)
    ones = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=0)
    pvalues = [stats.binomtest(int(k), len(words)).pvalue for k in ones]
    assert min(pvalues) > 1e-4
    assert stats.kstest(pvalues, "uniform").pvalue > 1e-3


def test_threads_share_a_stream_without_sharing_words():
    stream, found = Keystream(), []
    threads = [threading.Thread(target=lambda: found.extend(stream.words(500) for _ in range(40))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = np.concatenate(found)
    assert len(drawn) == 8 * 40 * 500
    assert len(np.unique(drawn)) == len(drawn)


FORKING = """
    import os
    from fulcrum.noise import keystream
    from fulcrum.noise.discrete_gaussian import DiscreteGaussian

    stream = keystream.Keystream()
    HIDDEN
    noise = DiscreteGaussian(1e15)
    noise.sample(4, stream)

    def show():
        os.write(1, (" ".join(map(str, noise.sample(100, stream).tolist())) + "\\n").encode())

    for _ in range(2):
        if os.fork() == 0:
            if os.fork() == 0:  # a grandchild
                show()
                os._exit(0)
            os.wait()
            show()
            os._exit(0)
        os.wait()
    show()
"""


@forks
@pytest.mark.parametrize(
    "hidden",
    ["", "keystream._ALIVE.clear()", "os.getpid = lambda: 1; stream._process = 1"],
    ids=["both", "process number alone", "hook alone"],
)
def test_processes_that_fork_never_repeat_noise(hidden):
    """By the hook at the fork or by the process number, each with the other blinded."""
    code = textwrap.dedent(FORKING).replace("HIDDEN", hidden)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [len(line) for line in lines] == [100] * 5
    # 500 samples of width 1e15: odds of 4e-11 that any two agree by chance.
    assert len({sample for line in lines for sample in line}) == 500


@forks
def test_a_child_can_draw_though_another_thread_held_the_lock():
    code = textwrap.dedent(
        """
        import os
        from fulcrum.noise.keystream import Keystream
        stream = Keystream()
        stream._lock.acquire()
        child = os.fork()
        if child == 0:
            os._exit(0 if len(stream.take(16)) == 16 else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_keystream_cannot_be_pickled_or_copied(duplicate):
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(Keystream())


def test_the_key_is_not_to_be_seen():
    key = b"a key of thirty-two bytes, seen?"
    stream = Keystream._for_test(key)
    assert repr(stream) == str(stream) == "<Keystream, key withheld>"
    real = Keystream()
    held = [getattr(real, name) for name in Keystream.__slots__ if name != "__weakref__"]
    assert not any(isinstance(value, bytes | bytearray | memoryview) for value in held)
    assert not hasattr(real, "__dict__")


@pytest.mark.parametrize("count", [-1, 1.5, True, "3", None])
def test_a_count_that_is_no_count_is_refused(count):
    for draw in (Keystream().take, Keystream().words):
        with pytest.raises(ParameterError, match="count must be an integer of at least 0"):
            draw(count)


@pytest.mark.parametrize(("key", "counter"), [(b"short", bytes(16)), (bytes(32), bytes(8))])
def test_a_test_key_of_another_length_is_refused(key, counter):
    with pytest.raises(ParameterError, match="32 and 16 bytes"):
        Keystream._for_test(key, counter)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package cryptography\. Run: pip install 'fulcrum-dp\[secure\]'"
    ):
        Keystream()
