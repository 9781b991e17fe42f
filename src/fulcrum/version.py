"""Which version of Fulcrum this is."""


def package_version() -> str:
    """Returns the version of Fulcrum that is installed."""
    from importlib.metadata import PackageNotFoundError, version  # brings `email`, which help does without

    try:
        return version("fulcrum-dp")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"
