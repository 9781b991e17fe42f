"""The results file: one row a run, with all that a run depends on, so that no run is repeated and none goes stale.

A run is known by its identity: settings, digests of federation, plan, data and engine, and versions. A table or a
figure asks for the identities that it needs; rows of other identities stay in the file and are never read.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import numpy as np

import fulcrum
from fulcrum.core.store.durable_files import write_whole

_ENGINE = (
    "embedded.batched_engine",
    "embedded.federation_jobs",
    "embedded.training_settings",
    "embedded.models",
    "embedded.server_variants",
    "data.partition",
    "reference_engine",
    "data.tasks",
)
_RULES = (
    "random_effects",
    "random_effects_rule",
    "regional_dispute",
    "server_rule",
    "shrinkage",
    "spectrum_prior",
    "sum_rule",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What decides a run.

    Attributes:
        task: The data's name.
        profile: The federation's name.
        size_law: How silo sizes were drawn.
        shares: How far class shares follow the region.
        allocation: The rule of the noise; "none" without privacy.
        variant: Which promise the plan keeps, and what was chosen along with the noise.
        model: What was trained.
        seed: Of partition, batches and noise; of sizes and misallocation where these are drawn.
        parameters: d.
        rounds: T.
        learning_rate: Of the local steps.
        federation: Its digest.
        plan: Its digest; empty without privacy.
        data: The digest of the data.
        engine: The digest of the code that trains.
        batch: The digest of the arms that were trained together: how many they are moves the last bits of a model.
        fulcrum: The version.
        numpy: The version.
    """

    task: str
    profile: str
    size_law: str
    shares: str
    allocation: str
    variant: str
    model: str
    seed: int
    parameters: int
    rounds: int
    learning_rate: float
    federation: str
    plan: str
    data: str
    engine: str
    batch: str
    fulcrum: str = fulcrum.__version__
    numpy: str = np.__version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a run.

    Attributes:
        identity: What decided it.
        records: Mean records a silo.
        epsilon: The worst over silos, above the regions.
        epsilon_inside: The worst over silos, against whoever sees single updates.
        dispersion: Of the federation.
        noise_budget: U, in units of C².
        saving: The share of the uniform budget that the plan does not need.
        signal_to_noise: Predicted, at its best.
        accuracy: On the test split after the last round.
        worst_region: The same on test records mixed as a region's are, for the region that it is least for.
        least_influence: Of the least represented region, its share of the model over its share by size.
    """

    identity: Identity
    records: float
    epsilon: float
    epsilon_inside: float
    dispersion: float
    noise_budget: float
    saving: float
    signal_to_noise: float
    accuracy: float
    worst_region: float
    least_influence: float


_IDENTITY = {field.name: field.type for field in fields(Identity)}
_OUTCOME = [field.name for field in fields(Run) if field.name != "identity"]


def read_runs(path: Path) -> dict[Identity, Run]:
    """Returns the runs of a results file; none where there is no file, or one of other columns."""
    if not path.is_file():
        return {}
    reader = csv.DictReader(io.StringIO(path.read_text("utf-8")))
    if reader.fieldnames != [*_IDENTITY, *_OUTCOME]:
        raise SystemExit(f"{path} has other columns than this version writes. Move it away, or give --results")
    runs = (_run(cells) for cells in reader)
    return {run.identity: run for run in runs}


def add_runs(path: Path, runs: Iterable[Run]) -> None:
    """Adds runs to a results file; the old file stays until the new one is whole."""
    kept = read_runs(path) | {run.identity: run for run in runs}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_IDENTITY, *_OUTCOME])
    for run in kept.values():
        writer.writerow([*astuple(run.identity), *(getattr(run, name) for name in _OUTCOME)])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.getvalue().encode())


def _run(cells: Mapping[str, str]) -> Run:
    kinds = {str: str, int: int, float: float}
    identity = Identity(**{name: kinds[kind](cells[name]) for name, kind in _IDENTITY.items()})  # type: ignore[index]
    return Run(identity=identity, **{name: float(cells[name]) for name in _OUTCOME})


@cache
def engine_digest(*more: str) -> str:
    """Returns a digest of the code that trains, `more` modules included: a changed engine makes every run a new one."""
    names = [
        *(f"fulcrum.simulation.{name}" for name in _ENGINE),
        "fulcrum.core.noise.noise_sources",
        "fulcrum.core.noise.mechanism",
        *(f"fulcrum.rules.{name}" for name in _RULES),
        *more,
    ]
    content = sha256()
    for name in names:
        content.update(Path(str(import_module(name).__file__)).read_bytes())
    return content.hexdigest()[:16]


@cache
def file_digest(path: Path) -> str:
    """Returns the digest of a data file."""
    return sha256(path.read_bytes()).hexdigest()[:16]
