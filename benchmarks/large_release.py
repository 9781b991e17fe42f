"""Clipping, noise, lattice, sealing and opening of one large release, each beside what it cannot do without.

The floors are measured in the same run, in turns: copying the update in memory, the keystream that the noise is made
from, and AES-256-GCM and SHA-256 over the bytes that are sealed and signed. All of it is work of one core, so processor
time is compared: a busy machine is nobody's fault. Memory is the peak of the process beyond what was there before, as a
multiple of the release's bytes (eight a coordinate), the result included; where the system does not tell, it is left
out. What the ledger takes is in `ledger_overhead.py`.

    python benchmarks/large_release.py [--parameters 100000000]
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import fulcrum
from fulcrum.aggregation.release_opening import Opener
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.release_message import Release
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian
from fulcrum.core.noise.keystream import random_bytes
from fulcrum.core.noise.mechanism import clip
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

REPEATS = 3
MOST_MEMORY = 3.0
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CHUNK = 2**15  # what the sampler draws at a time


class Stage(NamedTuple):
    """One step of a release.

    Attributes:
        name: What it is.
        than: What its floor is.
        most: How many times its floor it may take.
        work: The step.
        floor: The floor.
    """

    name: str
    than: str
    most: float
    work: Callable[[], object]
    floor: Callable[[], object]


def kilobytes(field: str) -> int:
    """What Linux says of this process's memory."""
    return next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(field))


def peak_of(work: Callable[[], object]) -> float | None:
    """The memory that some work takes at most, in bytes."""
    gc.collect()
    try:
        _CLEAR.write_text("5")  # the peak begins anew
    except OSError:
        return None
    before = kilobytes("VmRSS:")
    work()
    return 1024.0 * (kilobytes("VmHWM:") - before)


def processor_seconds(work: Callable[[], object]) -> float:
    """What some work takes of the processor."""
    before = time.process_time()
    work()
    return time.process_time() - before


def keystream(count: int, draws: int) -> None:
    """Draws the bytes that so many samples are made from, and keeps none."""
    for start in range(0, count, _CHUNK):
        random_bytes(4 * draws * min(_CHUNK, count - start))


def encrypted(aead: AESGCM, plain: memoryview) -> bytes:
    """Encrypts and hashes, and nothing else."""
    found = aead.encrypt(bytes(12), plain, None)
    sha256(found)
    return found


def decrypted(aead: AESGCM, data: bytes) -> bytes:
    """Hashes and decrypts, and nothing else."""
    sha256(data)
    return aead.decrypt(bytes(12), data, None)


def stages(folder: Path, parameters: int) -> Iterator[Stage]:
    """Yields the stages in turn; what one leaves behind is dropped before the next is measured."""
    keys = {"lyon": new_key(folder / "lyon"), "south": new_key(folder / "south", "sealing")}
    federation = fulcrum.Federation.from_sizes({"south": {"lyon": 100}})
    plan = fulcrum.plan(federation, rounds=1, epsilon=5.0, parameters=parameters, purpose="deployment", keys=keys)
    terms = release_parameters_of(plan, "lyon")
    update = np.full(parameters, 2 * parameters**-0.5)  # twice the norm that is kept
    yield Stage("clip", "copying it", 6.0, partial(clip, update, terms.clip_norm), update.copy)
    clipped = clip(update, terms.clip_norm)
    del update
    noise = DiscreteGaussian(width=terms.width)
    alone = partial(noise.sample, parameters, random_bytes)
    drawn = partial(keystream, parameters, noise.convolution.draws)
    yield Stage(f"noise {noise.width:.2g} wide", "its keystream", 10.0, alone, drawn)
    perturbed = partial(terms.perturb, clipped)
    del clipped
    yield Stage("lattice and noise", "noise alone", 2.0, perturbed, alone)
    sent = Release(
        plan_digest=plan.digest,
        silo="lyon",
        region="south",
        round_number=1,
        layout=Layout(names=("weights",), shapes=((parameters,),)),
        values=perturbed(),
        step=terms.step,
    )
    del perturbed
    plain, aead = sent.values.data.cast("B"), AESGCM(os.urandom(32))
    sound = fulcrum.verified_plan(plan)
    sealer, opener = Sealer(sound, "lyon", folder / "lyon"), Opener(sound, "south", folder / "south")
    yield Stage("seal", "AES-GCM, SHA-256", 2.5, partial(sealer.seal, sent), partial(encrypted, aead, plain))
    sealed, theirs = sealer.seal(sent), encrypted(aead, plain)
    del sent, plain
    yield Stage("open", "AES-GCM, SHA-256", 2.5, partial(opener.open, sealed), partial(decrypted, aead, theirs))


def main() -> None:
    """Measures, prints, and fails if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--parameters", type=int, default=100_000_000)
    options = parser.parse_args()
    parameters = options.parameters
    DiscreteGaussian(width=1e5).sample(2**17, random_bytes)  # compiled now, where numba is installed
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages(Path(folder), parameters):
            peak = peak_of(stage.work)
            pairs = [(processor_seconds(stage.work), processor_seconds(stage.floor)) for _ in range(REPEATS)]
            taken, least = (statistics.median(times) for times in zip(*pairs, strict=True))
            rows.append(
                {
                    "stage": stage.name,
                    "seconds": taken,
                    "than": stage.than,
                    "ratio": taken / least,
                    "most": stage.most,
                    "memory": None if peak is None else peak / (8 * parameters),
                }
            )
    columns = (
        Column(key="stage", heading="stage", figures=False),
        Column(key="seconds", heading="s"),
        Column(key="ratio", heading="times"),
        Column(key="than", heading="than", figures=False),
        Column(key="most", heading="at most"),
        Column(key="memory", heading="memory"),
    )
    title = f"A release of {parameters:,} parameters, {8 * parameters / 1e6:,.0f} MB; memory at most {MOST_MEMORY:g}"
    show(Result(data=rows, rows=rows, picture=[table(title, columns, rows)]), options.format)
    if any(row["ratio"] > row["most"] or (row["memory"] or 0.0) > MOST_MEMORY for row in rows):
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
