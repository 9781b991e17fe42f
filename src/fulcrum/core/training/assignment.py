"""The assignment of a round: all that training is told beside the model, the way to ask for training, and its error."""

import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any, Protocol

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What training and evaluation are told beside the model.

    Attributes:
        silo: Who trains; empty where the server evaluates.
        round_number: From 1; where the server evaluates, the round that the model comes from.
        plan: The plan that is run.
        seed: Of everything that is drawn in research.
        options: The options of the site, such as where its records are.
    """

    silo: str
    round_number: int
    plan: VerifiedPlan
    seed: int
    options: Mapping[str, Any]


class TrainingFailedError(DataError):
    """Training gave no update. A deployed silo releases zero plus noise then, and tells its own log alone.

    Attributes:
        report: The lines for the silo's log, such as the traceback of what training raised.
    """

    def __init__(self, code: str, /, *, report: str = "", **details: object) -> None:
        super().__init__(code, **details)
        self.report = report or str(self)


class Training(Protocol):
    """A way to train: `TrainingWorker` in a process of its own, `InProcessTraining` where the engine calls the user."""

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns what local training changed, under the model's names and in its shapes.

        Raises:
            TrainingFailedError: Whatever went wrong, unless it is the operator's interrupt.
        """
        ...


def check_installed(name: str) -> None:
    """Raises `DataError` unless there is a module of that name.

    No code of the user's runs here, that of the package which the module is in neither: it may end or hold up the
    process that releases, by what it reads. A module that is there may yet fail when training imports it.
    """
    top, *inner = name.split(".")
    try:
        found = importlib.util.find_spec(top)  # of a name without a dot it imports nothing
    except (ImportError, ValueError):
        found = None
    for end, _ in enumerate(inner, start=2):
        found = _inside(found, ".".join(name.split(".")[:end]))
    if found is None:
        raise DataError("training.module-missing", module=name)


def _inside(package: ModuleSpec | None, name: str) -> ModuleSpec | None:
    """Returns where a module of a package is; the package is not imported, which `importlib` would do."""
    portions = ModuleSpec(name, None)
    portions.submodule_search_locations = []  # several, where a package is folders without __init__.py
    for place in (package and package.submodule_search_locations) or ():
        finder = pkgutil.get_importer(place)
        found = finder and finder.find_spec(name)
        if found and found.loader:
            return found
        portions.submodule_search_locations += (found and found.submodule_search_locations) or []
    return portions if portions.submodule_search_locations else None
