"""A user's own Flower app, as a folder: the name of its package, and the check that it runs under a plan."""

import ast
import tomllib
from pathlib import Path

from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import DataError, PlanError, in_one_line
from fulcrum.parsing import toml_of
from fulcrum.planning.plan import Plan

_PARTS = (
    ("fulcrum_mod", "FulcrumMod", "the ClientApp", "ClientApp(mods=[fulcrum_mod])", "client_mod"),
    ("FulcrumStrategy", "FulcrumStrategy", "the ServerApp", "FulcrumStrategy() in the place of FedAvg()", "strategy"),
)
"""The two parts of Fulcrum in an app: the name, another name for the same part, component, use, and module."""

_OWN_NOISE = frozenset(
    {
        "LocalDpMod",
        "fixedclipping_mod",
        "adaptiveclipping_mod",
        "secaggplus_mod",
        "secagg_mod",
        "DifferentialPrivacyClientSideFixedClipping",
        "DifferentialPrivacyServerSideFixedClipping",
        "DifferentialPrivacyClientSideAdaptiveClipping",
        "DifferentialPrivacyServerSideAdaptiveClipping",
    }
)
"""Flower's own mods and strategies that clip, add noise or mask: each changes the update beside the plan."""

_NOT_OF_THE_APP = {".venv", "venv", "node_modules", "__pycache__", ".git"}


def app_package(folder: Path, plan: Plan | VerifiedPlan) -> str:
    """Returns the package of an app that can run under a plan, by the app's pyproject.toml.

    The text of the app is searched and parsed, and never imported: that is for Flower's processes to do.

    Raises:
        DataError: The folder holds no app, the app uses no mod or no strategy of Fulcrum, trains by a
            `client_fn`, or uses a mod or strategy of Flower for privacy.
        PlanError: The plan protects persons: the update of an app mixes persons before the clip.
    """
    if plan.unit.is_within_silo:
        raise PlanError("flower.app-by-person", unit=plan.unit.noun)
    try:
        settings = toml_of((folder / "pyproject.toml").read_text(encoding="utf-8"))
        entry = str(settings["tool"]["flwr"]["app"]["components"]["clientapp"])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError("flower.app-unreadable", folder=folder, reason=in_one_line(error)) from None
    except (KeyError, TypeError):
        reason = "pyproject.toml names no clientapp in [tool.flwr.app.components]"
        raise DataError("flower.app-unreadable", folder=folder, reason=reason) from None
    package = entry.partition(":")[0].partition(".")[0]
    if not package.isidentifier():
        raise DataError("flower.app-unreadable", folder=folder, reason=f"{entry[:60]!r} is no component")
    files = [path for path in folder.rglob("*.py") if not _NOT_OF_THE_APP & set(path.relative_to(folder).parts)]
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    for name, other, component, use, module in _PARTS:
        if name not in text and other not in text:
            place = f"fulcrum.engines.flower.{module}"
            raise DataError(
                "flower.app-without-fulcrum", folder=folder, name=name, component=component, use=use, module=place
            )
    for path in files:
        _check_use(folder, path)
    return package


def _check_use(folder: Path, file: Path) -> None:
    """Raises `DataError` if a file of an app makes a ClientApp of a `client_fn`, or uses privacy mods of Flower."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # Flower's processes tell of such a file
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "ClientApp":
            if node.args or any(keyword.arg == "client_fn" for keyword in node.keywords):
                raise DataError("flower.app-by-client", file=file.relative_to(folder), line=node.lineno)
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in _OWN_NOISE:
                raise DataError("flower.app-own-noise", name=name, file=file.relative_to(folder), line=node.lineno)
