"""Registers the SuperNodes of silos at a SuperLink by Flower's own command, in one process for all silos.

A process for each silo takes most of its time for the imports of Flower's command line.

    python -m fulcrum.engines.flower.kits.node_registration fulcrum lille/node.key.pub nice/node.key.pub
"""

import sys
from collections.abc import Sequence


def register(superlink: str, keys: Sequence[str]) -> int:
    """Registers public keys, and returns the exit code: 1 if Flower refused a key; all other keys are registered.

    Args:
        superlink: The name of the SuperLink in Flower's configuration.
        keys: The files with the public keys.
    """
    from flwr.cli.app import app

    has_failed = False
    for key in keys:
        try:
            app(["supernode", "register", key, superlink])
        except SystemExit as end:  # Flower's command line ends in this way, also after success
            has_failed = has_failed or end.code not in (None, 0)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(register(sys.argv[1], sys.argv[2:]))
