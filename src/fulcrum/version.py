"""Which version of Fulcrum this is."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Returns the version of Fulcrum that is installed."""
    try:
        return version("fulcrum-dp")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"
