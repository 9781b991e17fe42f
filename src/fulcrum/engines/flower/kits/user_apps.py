"""A user's own Flower app, as a folder: the name of its package, and the check that it runs under a plan."""

import tomllib
from pathlib import Path

from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import DataError, PlanError, in_one_line
from fulcrum.parsing import toml_of
from fulcrum.planning.plan import Plan

_NAMES = {"fulcrum_mod": ("fulcrum_mod", "FulcrumMod"), "FulcrumStrategy": ("FulcrumStrategy",)}
"""By name in messages: the words of which an app under a plan has one."""

_NOT_OF_THE_APP = {".venv", "venv", "node_modules", "__pycache__", ".git"}


def app_package(folder: Path, plan: Plan | VerifiedPlan) -> str:
    """Returns the package of an app that can run under a plan, by the app's pyproject.toml.

    The text of the app is searched for Fulcrum's names. The app is not imported: that is for Flower's processes to do.

    Raises:
        DataError: The folder holds no app, or the app uses no mod or no strategy of Fulcrum.
        PlanError: The plan protects persons: the update of an app mixes persons before the clip.
    """
    if plan.unit.is_within_silo:
        raise PlanError("flower.app-by-person", unit=plan.unit.noun)
    try:
        settings = toml_of((folder / "pyproject.toml").read_text(encoding="utf-8"))
        component = str(settings["tool"]["flwr"]["app"]["components"]["clientapp"])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError("flower.app-unreadable", folder=folder, reason=in_one_line(error)) from None
    except (KeyError, TypeError):
        reason = "pyproject.toml names no clientapp in [tool.flwr.app.components]"
        raise DataError("flower.app-unreadable", folder=folder, reason=reason) from None
    package = component.partition(":")[0].partition(".")[0]
    if not package.isidentifier():
        raise DataError("flower.app-unreadable", folder=folder, reason=f"{component[:60]!r} is no component")
    files = [path for path in folder.rglob("*.py") if not _NOT_OF_THE_APP & set(path.relative_to(folder).parts)]
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    for name, words in _NAMES.items():
        if not any(word in text for word in words):
            raise DataError("flower.app-without-fulcrum", folder=folder, name=name)
    return package
