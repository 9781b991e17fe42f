"""One federated round, the same for every peer: its sizes, its seeded records, and the local training in NumPy.

Ninety-six silos of 200 records take part in every round. Each takes ten steps of SGD on batches of 64 from the global
softmax head, clips its whole update to norm 1 and adds Gaussian noise; the weighted sum of the updates is applied.
A column of ones stands for the bias, so that the head is one array of 33 x 2. The noise is as costly as any but small,
so that a peer which trains must reach `LEAST_ACCURACY` on records held out.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]

SILOS, RECORDS, FEATURES, CLASSES, HELD_OUT = 96, 200, 32, 2, 4_000
STEPS, BATCH, LEARNING_RATE = 10, 64, 0.2
CLIP, NOISE = 1.0, 0.01
WARM_UP, ROUNDS = 5, 40
LEAST_ACCURACY = 0.9
ZEROS: Floats = np.zeros((FEATURES + 1, CLASSES), np.float32)
ONE_HOT: Floats = np.eye(CLASSES, dtype=np.float32)


class Records(NamedTuple):
    """Inputs with a last column of ones, and their labels."""

    inputs: Floats
    labels: Labels


@functools.cache
def records(seed: int = 0) -> tuple[list[Records], Records]:
    """Every silo's records, and some held out: two classes that one hyperplane separates."""
    rng = np.random.default_rng(seed)
    count = SILOS * RECORDS + HELD_OUT
    inputs = np.ones((count, FEATURES + 1), np.float32)
    inputs[:, :-1] = rng.standard_normal((count, FEATURES))
    labels = (inputs[:, :-1] @ rng.standard_normal(FEATURES) > 0).astype(np.int32)
    starts = range(0, SILOS * RECORDS, RECORDS)
    silos = [Records(inputs[start : start + RECORDS], labels[start : start + RECORDS]) for start in starts]
    return silos, Records(inputs[-HELD_OUT:], labels[-HELD_OUT:])


def trained(head: Floats, silo: Records, rng: np.random.Generator) -> Floats:
    """The head after one silo's local steps, for the peers that leave training to their users."""
    head = head.copy()
    drawn = rng.integers(RECORDS, size=(STEPS, BATCH))
    for inputs, targets in zip(silo.inputs[drawn], ONE_HOT[silo.labels[drawn]], strict=True):
        scores = inputs @ head
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores -= targets
        head -= LEARNING_RATE / BATCH * (inputs.T @ scores)
    return head


def private(update: Floats, rng: np.random.Generator) -> Floats:
    """An update clipped as a whole, with noise added."""
    scale = min(1.0, CLIP / max(float(np.linalg.norm(update)), 1e-12))
    return scale * update + CLIP * NOISE * rng.standard_normal(update.shape, np.float32)


def timed(one_round: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """The seconds of each round, after some to warm up."""
    times = []
    for _ in range(WARM_UP + rounds):
        start = time.perf_counter()
        one_round()
        times.append(time.perf_counter() - start)
    return times[WARM_UP:]


def report(peer: str, version: str, times: list[float], head: npt.ArrayLike, held_out: Records) -> None:
    """Prints a peer's figures as one line of JSON, or fails if it has not learnt."""
    accuracy = float(np.mean(np.argmax(held_out.inputs @ np.asarray(head), axis=1) == held_out.labels))
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(f"{peer} has not learnt: accuracy {accuracy:.3f} on held-out records")
    seconds = statistics.median(times)
    figures = {"peer": peer, "version": version, "seconds_per_round": seconds, "rounds": len(times)}
    print(json.dumps(figures | {"accuracy": accuracy}))
