"""Which modules of the package are searched for doctests: those that import Flower only where it is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/fulcrum/engines/flower/*.py"]
