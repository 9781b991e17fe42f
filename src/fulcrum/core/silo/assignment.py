"""The assignment of a round: all that training is told beside the model, and the one error that training ends in."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

    def __init__(self, reason: str, report: str = "") -> None:
        super().__init__(reason)
        self.report = report or reason


def check_installed(name: str) -> None:
    """Raises `DataError` unless there is a module of that name; it is not imported, and may yet fail when it is."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    except KeyboardInterrupt:
        raise
    except BaseException:  # the code of the package that it is in, which is there
        return
    if found is None:
        raise DataError(f"there is no training module {name!r} at this site. Install it, or correct train in site.toml")
