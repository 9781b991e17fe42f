"""The version of Fulcrum."""


def package_version() -> str:
    """Returns the installed version of Fulcrum, or "unknown"."""
    from importlib.metadata import PackageNotFoundError, version  # loads `email`: too slow for --help

    try:
        return version("fulcrum-dp")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"
