"""The modules of the package that are searched for doctests: those of an engine only where the engine is installed."""

from importlib.util import find_spec

collect_ignore_glob = [
    f"src/fulcrum/engines/{folder}/*.py"
    for folder, package in (("flower", "flwr"), ("nvflare", "nvflare"))
    if find_spec(package) is None
]
