"""The assignment of a round, the protocol of training, and the error of a failed training.

An assignment holds everything that training receives beside the model.
"""

import importlib.util
import pkgutil
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any, Protocol

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The values that training and evaluation receive beside the model.

    Attributes:
        silo: The silo that trains; empty for an evaluation by the server.
        round_number: The round, from 1; for an evaluation by the server, the round of the model.
        plan: The plan of the run.
        seed: The seed of all random numbers in research.
        options: The options of the site, such as the path of its records.
    """

    silo: str
    round_number: int
    plan: VerifiedPlan
    seed: int
    options: Mapping[str, Any]


class TrainingFailedError(DataError):
    """Training gave no update.

    A deployed silo then releases zero plus noise and writes the report to its own log. A silent or late silo would
    tell an observer about the silo's records, and no epsilon covers that leak.

    Attributes:
        report: The lines for the silo's log, such as the traceback of the user's error.
    """

    def __init__(self, code: str, /, *, report: str = "", **details: object) -> None:
        super().__init__(code, **details)
        self.report = report or str(self)


class Training(Protocol):
    """A way to train: `TrainingWorker` in a separate process, or `InProcessTraining` in the process of the engine."""

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the change of the model by local training, under the names and in the shapes of the model.

        Raises:
            TrainingFailedError: Training failed for any reason except the operator's interrupt.
        """
        ...

    def rows(self, model: Mapping[str, FloatArray], assignment: Assignment) -> Generator[FloatArray]:
        """Yields blocks of rows, a row for every unit of privacy, for a plan that protects persons.

        Raises:
            TrainingFailedError: As in `update`. The rows before a failure must not be released.
        """
        ...


def check_installed(name: str) -> None:
    """Raises `DataError` unless a training module of this name is installed.

    No code of the user runs here, not even the code of the package around the module: the user's code may end or delay
    the process that releases, depending on records. An installed module may still fail when training imports the
    module.
    """
    top, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(top)  # imports nothing for a name without a dot
    except (ImportError, ValueError):
        spec = None
    for end, _ in enumerate(inner, start=2):
        spec = _spec_inside(spec, ".".join(name.split(".")[:end]))
    if spec is None:
        raise DataError("training.module-missing", module=name)


def _spec_inside(package: ModuleSpec | None, name: str) -> ModuleSpec | None:
    """Returns the place of a module inside a package, without an import of the package.

    `importlib.util.find_spec` would import the package, and so run the user's code.
    """
    portions = ModuleSpec(name, None)
    portions.submodule_search_locations = []  # several, if the package is folders without __init__.py
    for place in (package and package.submodule_search_locations) or ():
        finder = pkgutil.get_importer(place)
        spec = finder and finder.find_spec(name)
        if spec and spec.loader:
            return spec
        portions.submodule_search_locations += (spec and spec.submodule_search_locations) or []
    return portions if portions.submodule_search_locations else None
