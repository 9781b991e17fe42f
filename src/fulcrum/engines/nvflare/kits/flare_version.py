"""The versions of NVIDIA FLARE that Fulcrum runs on: tested versions, and no others.

Kits, restrictions of peers and the gatherer of a region rest on parts of NVIDIA FLARE that change between versions
without notice: an untested version could leave a restriction without effect.
"""

from importlib.metadata import PackageNotFoundError, version

from fulcrum.errors import EngineError

TESTED = ((2, 9),)
"""The tested versions, as major and minor number; every patch of a version is accepted."""

NEWEST = "2.9.0"
"""The version of the tests."""


def check_version() -> None:
    """Raises `EngineError` if an untested version of NVIDIA FLARE is installed; an absent package is refused later."""
    try:
        installed = version("nvflare")
    except PackageNotFoundError:
        return
    if tuple(installed.split(".")[:2]) not in {(str(major), str(minor)) for major, minor in TESTED}:
        versions = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
        raise EngineError("flare.version", versions=versions, installed=installed, newest=NEWEST)
