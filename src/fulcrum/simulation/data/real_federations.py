"""The real federations by name: reader, origin, task, and the number of silos that share a person.

>>> REAL["eicu"].metric, REAL["eicu"].silos_per_person, sorted(REAL)
('auc', 2, ['eicu', 'heart', 'tcga-brca'])

The names are names of built-in federations too, which have the structure without any data.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fulcrum.errors import DataError, ParameterError, check_known
from fulcrum.simulation.data.eicu import SOURCE as EICU
from fulcrum.simulation.data.eicu import read_eicu
from fulcrum.simulation.data.federated_records import DataSource, FederatedRecords
from fulcrum.simulation.data.heart_disease import SOURCE as HEART_DISEASE
from fulcrum.simulation.data.heart_disease import read_heart_disease
from fulcrum.simulation.data.tasks import DATA_VARIABLE, Task
from fulcrum.simulation.data.tcga_brca import SOURCE as TCGA_BRCA
from fulcrum.simulation.data.tcga_brca import read_tcga_brca

SUBFOLDER = "federations"
"""The folder of the sources' tables in the data folder, if present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealFederation:
    """A federation that a source of tables describes.

    Attributes:
        source: The origin of the tables.
        read: The reader of the tables.
        task: The task, in words.
        metric: The metric of the task, a name of `tasks.METRIC_NAMES`.
        silo_noun: The silos of the source, in words.
        silos_per_person: The number of silos that may hold records of the same person, as a plan declares it.
    """

    source: DataSource
    read: Callable[..., FederatedRecords]
    task: str
    metric: str
    silo_noun: str = "hospital"
    silos_per_person: int = 1


REAL: Mapping[str, RealFederation] = MappingProxyType(
    {
        "eicu": RealFederation(
            source=EICU,
            read=read_eicu,
            task="death in hospital, from the first day in intensive care",
            metric="auc",
            silos_per_person=2,  # transfers between two hospitals; declared, not counted
        ),
        "tcga-brca": RealFederation(
            source=TCGA_BRCA,
            read=read_tcga_brca,
            task="survival with breast cancer, in discrete time",
            metric="concordance",
            silo_noun="site",
        ),
        "heart": RealFederation(
            source=HEART_DISEASE,
            read=read_heart_disease,
            task="heart disease",
            metric="accuracy",
        ),
    }
)
"""The real federations by name."""


def read_real_federation(name: str, folder: str | Path | None = None, *, check_counts: bool = True) -> FederatedRecords:
    """Returns the records of a real federation.

    Args:
        name: A name of `REAL`.
        folder: The folder of the source's files, or a folder with a subfolder `federations` of these files; the folder
            that FULCRUM_DATA names by default.
        check_counts: True refuses tables without the published number of rows.

    Raises:
        DataError: No folder is named, a file or a column is missing, or a table breaks a rule of the reader.
    """
    check_known("real federation", name, REAL)
    real = REAL[name]
    chosen = folder or os.environ.get(DATA_VARIABLE)
    if not chosen:
        about = {"title": real.source.title, "address": real.source.address, "licence": real.source.licence}
        raise DataError("source.folder-unset", variable=DATA_VARIABLE, **about)
    path = Path(chosen)
    inner = path / SUBFOLDER
    return real.read(inner if inner.is_dir() else path, check_counts=check_counts)


def is_real_federation(source: str | Path, folder: str | Path | None = None) -> bool:
    """Returns true for the name of a real federation, unless the data folder has a feature file of the name."""
    chosen = folder or os.environ.get(DATA_VARIABLE)
    return str(source) in REAL and not (chosen and (Path(chosen) / f"{source}.npz").is_file())


def real_task(
    name: str, *, data_dir: str | Path | None = None, seed: int | None = 0, metric: str | None = None, **options: Any
) -> Task:
    """Returns the task of a real federation, with a fifth of the persons to test on.

    Args:
        name: A name of `REAL`.
        data_dir: The folder of the source's files, as for `read_real_federation`.
        seed: Seed of the split by person; None is 0, since published tables are fixed.
        metric: A name of `tasks.METRIC_NAMES`; the metric of the federation by default.
        **options: Further options of `load_task`, of which every value must be the default: the source names labels,
            silos, persons and ranges.
    """
    option = next((word for word, value in options.items() if value not in (None, "classes", False)), None)
    if option is not None:
        raise ParameterError("source.option-unneeded", data=name, option=option)
    records = read_real_federation(name, data_dir)
    task = records.task(records.split_by_person(seed=seed or 0))
    return replace(task, public=True, metric=metric or task.metric)
