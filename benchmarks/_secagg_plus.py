"""Flower's own SecAgg+ (of its legacy API), by its own functions: what one client and the server spend in a round.

The client is its mod's: `_setup`, `_share_keys`, `_collect_masked_vectors` and `_unmask` of one client, whose
neighbours do no more than it needs of them. The server's work is the same for every member, so each part of it, done by
the functions that its workflow calls, is measured once and multiplied: it would take hours in the largest groups.
"""

import copy
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

MANY = 100_000_000
"""Parameters times neighbours above which a masked input is measured once: it takes seconds."""

OWN = 1
"""The node whose work is measured."""


def available() -> bool:
    """Whether Flower is installed, with what its SecAgg+ needs."""
    try:
        importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    except ImportError:
        return False
    return True


def _part(name: str) -> Any:
    return importlib.import_module(f"flwr.{name}")


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median processor time of some work."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


class SecAggPlus:
    """One client of Flower's SecAgg+, and its server, at Flower's own settings: clipping at 8, 22 bits, modulo 2^32.

    Args:
        neighbours: Of the client.
        threshold: Shares that give a secret back.
    """

    def __init__(self, neighbours: int, threshold: int) -> None:
        self._mod = _part("client.mod.secure_aggregation.secaggplus_mod")
        self._keys = _part("common.secure_aggregation.secaggplus_constants").Key
        self._shamir = _part("common.secure_aggregation.crypto.shamir")
        self._arrays = _part("common")
        self.neighbours = neighbours
        key, shares = self._keys, neighbours + 1
        settings = {key.SAMPLE_NUMBER: shares, key.SHARE_NUMBER: shares, key.THRESHOLD: threshold}
        settings |= {key.CLIPPING_RANGE: 8.0, key.TARGET_RANGE: 2**22, key.MOD_RANGE: 2**32, key.MAX_WEIGHT: 1000.0}
        self._state = self._mod.SecAggPlusState()
        self._state.nid = OWN
        start = time.process_time()
        self._mod._setup(self._state, settings)
        spent = time.process_time() - start
        public = {str(OWN): [self._state.pk1, self._state.pk2]}
        public |= {str(OWN + 1 + number): self._public_keys() for number in range(neighbours)}
        start = time.process_time()
        self._mod._share_keys(self._state, public)
        spent += time.process_time() - start
        self._inbox = self._sealed_by_neighbours()
        everybody = [OWN, *self._inbox[key.SOURCE_LIST]]
        ready = self._received(100)
        lists = {key.ACTIVE_NODE_ID_LIST: everybody, key.DEAD_NODE_ID_LIST: []}
        start = time.process_time()
        self._mod._unmask(ready, lists)
        self.handshake = spent + time.process_time() - start
        self._seeds = self._shamir.create_shares(self._state.rd_seed, threshold, shares)
        self._private = self._shamir.create_shares(self._state.sk1, threshold, shares)

    def _public_keys(self) -> list[bytes]:
        pairs = [self._mod.generate_key_pairs() for _ in range(2)]
        return [self._mod.public_key_to_bytes(public) for _, public in pairs]

    def _sealed_by_neighbours(self) -> dict[str, Any]:
        """The shares that all neighbours sealed to this client; the client's own stand for theirs."""
        state, sources, texts = self._state, [], []
        seed, private = state.rd_seed_share_dict[OWN], state.sk1_share_dict[OWN]
        for node, secret in state.ss2_dict.items():
            sources.append(node)
            texts.append(self._mod.encrypt(secret, self._mod.share_keys_plaintext_concat(node, OWN, seed, private)))
        return {self._keys.SOURCE_LIST: sources, self._keys.CIPHERTEXT_LIST: texts}

    def _received(self, parameters: int) -> Any:
        state = copy.deepcopy(self._state)
        self._collect(state, self._vector(parameters))
        return state

    def _vector(self, parameters: int) -> Any:
        return self._arrays.ndarrays_to_parameters([np.zeros(parameters, dtype=np.float32)])

    def _collect(self, state: Any, vector: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._mod._collect_masked_vectors(state, self._inbox, 1, vector)
        return found

    def silo_seconds(self, parameters: int) -> float:
        """The time of one masked input: shares opened, clipped, rounded and masked."""
        vector, repeats = self._vector(parameters), 1 if parameters * self.neighbours > MANY else 3
        return seconds(lambda: self._collect(copy.deepcopy(self._state), vector), repeats)

    def server_seconds(self, parameters: int, *, present: int, dropped: int, repeats: int = 3) -> float:
        """The time to add up all masked inputs and to take the masks off."""
        mod, modulus = self._mod, 2**32
        sent = self._collect(copy.deepcopy(self._state), self._vector(parameters))[self._keys.MASKED_PARAMETERS]
        total = [self._arrays.bytes_to_ndarray(data) for data in sent]
        shapes = [array.shape for array in total]
        loaded = mod.bytes_to_private_key(self._state.sk1)

        def add() -> None:
            mod.parameters_addition(total, [self._arrays.bytes_to_ndarray(data) for data in sent])

        def take_off() -> None:
            mod.parameters_subtraction(total, mod.pseudo_rand_gen(self._state.rd_seed, modulus, shapes))

        def agree() -> None:
            mod.generate_shared_key(loaded, mod.bytes_to_public_key(self._state.pk1))

        each = seconds(add, repeats) + seconds(take_off, repeats)
        each += seconds(lambda: self._shamir.combine_shares(self._seeds), 1)
        if not dropped:
            return present * each
        lost = seconds(lambda: self._shamir.combine_shares(self._private), 1)
        lost += self.neighbours * (seconds(agree, repeats) + seconds(take_off, repeats))
        return present * each + dropped * lost
