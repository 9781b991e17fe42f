"""Contents of plan files that were verified in this process, by digest: each content is verified once.

>>> from fulcrum.planning.making import plan
>>> content = plan("isic-paper", rounds=2, epsilon=1.0).content()
>>> check_verified(content) == content_digest(content)
True
>>> content.guarantee.statement = "Everybody is safe."
>>> check_verified(content)
Traceback (most recent call last):
fulcrum.errors.PlanError: the plan does not hold what it says: words, the statement is not what the figures say
"""

import os
import threading

from fulcrum.errors import FulcrumError, PlanError
from fulcrum.planning.plan_file import PlanFile, content_digest
from fulcrum.planning.verifying import verify

_VERIFIED: set[str] = set()
"""Digests of contents whose every check held. A digest names one content, so nothing else needs to be kept."""

_VERIFYING = threading.Lock()


def check_verified(content: PlanFile, error: type[FulcrumError] = PlanError, *, source: str = "the plan") -> str:
    """Raises `error` unless every check of `fulcrum verify` holds for a content; returns the digest of the content.

    Args:
        content: As it was read, or as a plan in memory states it.
        error: The exception to raise.
        source: The name of the plan in messages.
    """
    digest = content_digest(content)
    with _VERIFYING:
        if digest in _VERIFIED and content.digest in ("", digest):
            return digest
        try:
            checks = verify(content)
        except PlanError as malformed:  # a content in memory that no file can have
            raise error(str(malformed)) from None
        for check in checks:
            if not check.holds:
                raise error(f"{source} does not hold what it says: {check.name}, {check.detail}")
        _VERIFIED.add(digest)
    return digest


def _after_fork_in_child() -> None:
    """Frees the lock in a forked child: the thread that held it runs in the parent alone, and never frees it here."""
    if _VERIFYING.locked():
        _VERIFYING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
