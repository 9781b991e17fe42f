import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from scipy import stats

from fulcrum.core.noise import keystream
from fulcrum.core.noise.keystream import random_bytes, repeated_bytes

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
    drawn = repeated_bytes(key, counter)(64).tobytes()
    assert bytes(a ^ b for a, b in zip(drawn, plain, strict=True)) == cipher


def test_a_source_for_tests_is_one_stream_however_it_is_cut():
    whole = repeated_bytes(b"k" * 32)(600_000)
    draw = repeated_bytes(b"k" * 32)
    counts = (0, 3, 13, 0, 8, 2**18, 2**18 + 1, 7)
    parts = [draw(count) for count in counts]
    assert [len(part) for part in parts] == list(counts)
    assert (np.concatenate([*parts, draw(600_000 - sum(counts))]) == whole).all()


def test_every_draw_has_a_key_of_its_own_and_a_long_one_several(monkeypatch):
    keys = []

    def noted(count):
        keys.append(bytes([len(keys)]) * count)
        return keys[-1]

    monkeypatch.setattr(keystream.os, "urandom", noted)
    limit = 2**24  # 2^20 blocks, which the bound in the module's docstring is for
    for count, needed in ((0, 0), (1, 1), (limit, 1), (limit + 1, 2), (2 * limit + 5, 3)):
        before = len(keys)
        drawn = random_bytes(count)
        assert len(keys) == before + needed
        assert len(drawn) == count
        for place, key in enumerate(keys[before:]):
            part = drawn[place * limit : (place + 1) * limit]
            assert (part == repeated_bytes(key)(len(part))).all()
    assert {len(key) for key in keys} == {32}


def test_no_word_is_ever_drawn_twice():
    drawn = np.concatenate([random_bytes(160_000).view(np.uint64) for _ in range(10)])
    # 200,000 words of 64 bits: two that agree by chance have odds of 2^-29.
    assert len(np.unique(drawn)) == len(drawn)


def test_every_bit_of_a_word_is_fair():
    words = repeated_bytes(b"b" * 32)(800_000)
    ones = np.unpackbits(words.reshape(-1, 8), axis=1).sum(axis=0)
    pvalues = [stats.binomtest(int(k), len(words) // 8).pvalue for k in ones]
    assert min(pvalues) > 1e-4
    assert stats.kstest(pvalues, "uniform").pvalue > 1e-3


def test_threads_draw_no_words_of_each_other():
    found = []
    threads = [threading.Thread(target=lambda: found.extend(random_bytes(4000) for _ in range(40))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = np.concatenate(found).view(np.uint64)
    assert len(drawn) == 8 * 40 * 500
    assert len(np.unique(drawn)) == len(drawn)


FORKING = """
    import os
    from fulcrum.core.noise.noise_sources import SecureNoise

    noise = SecureNoise()
    noise.integers(width=1e15, count=4)

    def show():
        os.write(1, (" ".join(map(str, noise.integers(width=1e15, count=100).tolist())) + "\\n").encode())

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
def test_processes_that_fork_never_repeat_noise():
    code = textwrap.dedent(FORKING)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [len(line) for line in lines] == [100] * 5
    # 500 samples of width 1e15: odds of 4e-11 that any two agree by chance.
    assert len({sample for line in lines for sample in line}) == 500


@pytest.mark.parametrize(("key", "counter"), [(b"short", bytes(16)), (bytes(16), bytes(16)), (bytes(32), bytes(8))])
def test_a_key_of_another_length_is_refused(key, counter):
    with pytest.raises(ValueError, match=r"key|nonce"):
        repeated_bytes(key, counter)


def test_without_the_package_the_error_says_what_to_install():
    code = "import sys; sys.modules['cryptography'] = None; from fulcrum.core.noise.keystream import random_bytes; random_bytes(1)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    told = "secure noise needs the package cryptography. Run: pip install '.[secure]' in the checkout, or pip install 'WHEEL[secure]' with the wheel's file"
    assert ran.stderr.splitlines()[-1] == f"fulcrum.errors.MissingExtraError: {told}"
