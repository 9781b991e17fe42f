"""The versions of Flower that Fulcrum runs on: tested versions, and no others.

Gate and kits rest on parts of Flower that change between versions without notice: paths and headers of requests, tables
of the SuperLink's database, options of commands.
"""

from importlib.metadata import PackageNotFoundError, version

from fulcrum.errors import EngineError, MissingExtraError

TESTED = ("1.41",)
"""The tested versions, as major and minor number; every patch of a version is accepted."""

NEWEST = "1.41.0"


def check_version() -> None:
    """Raises `EngineError` unless a tested version of Flower is installed."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise MissingExtraError("engine.not-installed", package="Flower", extra="flower") from None
    if ".".join(installed.split(".")[:2]) not in TESTED:
        raise EngineError("flower.version", versions=", ".join(TESTED), installed=installed, newest=NEWEST)
