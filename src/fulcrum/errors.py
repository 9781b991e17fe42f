"""The exceptions of Fulcrum, all of them meant to be read by a person.

    FulcrumError
    ├── ParameterError          an argument is out of its range            (also a ValueError)
    ├── FederationError         a federation's description is wrong        (also a ValueError)
    │   └── OverlapError        a silo stands in two regions
    ├── UnreachableTargetError  no amount of noise meets what was asked    (also a ValueError)
    ├── AllocationError         a user's allocation broke its contract     (also a ValueError)
    ├── PlanError               a plan file cannot be trusted or read      (also a ValueError)
    │   └── ForeignPlanError    a plan was made for another federation
    ├── ReleaseError            an update must not leave the silo          (also a ValueError)
    │   ├── DivergedUpdateError an update is not finite                    (also an ArithmeticError)
    │   └── PolicyError         the silo's own policy forbids the plan
    ├── StorageError            a file cannot be written, held or trusted  (also a RuntimeError)
    │   └── FileInUseError      somebody else holds a file
    ├── LedgerError             a ledger cannot be trusted, or refuses     (also a ValueError)
    │   ├── RefusedReleaseError the plan does not allow this release
    │   └── LedgerInUseError    somebody else holds the ledger             (also a FileInUseError)
    ├── SignatureError          a plan is not signed by whom it should be  (also a ValueError)
    ├── ExchangeError           a message between silo, region and server  (also a ValueError)
    │                           is refused, or a key is not the plan's
    ├── EngineError             an engine did not do what it was asked     (also a RuntimeError)
    ├── DataError               training data cannot be used               (also a ValueError)
    └── MissingExtraError       an optional package is not installed       (also an ImportError)

A message is one line: the rule, the value met, where it was met, and what to do.

>>> str(ParameterError("delta must be in (0, 1), got 0.0"))
'delta must be in (0, 1), got 0.0'
"""

import difflib
from collections.abc import Iterable


class FulcrumError(Exception):
    """Base of every error that Fulcrum raises on purpose."""


class ParameterError(FulcrumError, ValueError):
    """An argument is out of its range."""


class FederationError(FulcrumError, ValueError):
    """The description of a federation is wrong or cannot be read."""


class OverlapError(FederationError):
    """A silo stands in two regions; disjoint regions are an assumption of the theory."""


class UnreachableTargetError(FulcrumError, ValueError):
    """No amount of noise meets the target, for example an information bound below the lateral floor."""


class AllocationError(FulcrumError, ValueError):
    """An allocation returned something that is not noise for this federation."""


class PlanError(FulcrumError, ValueError):
    """A plan file cannot be read, was changed, or does not hold what it claims."""


class ForeignPlanError(PlanError):
    """A plan was made for another federation."""


class DataError(FulcrumError, ValueError):
    """Training data cannot be read, or does not fit the federation or the model."""


class ReleaseError(FulcrumError, ValueError):
    """An update must not leave the silo: it cannot be clipped, noised, accounted for or verified."""


class DivergedUpdateError(ReleaseError, ArithmeticError):
    """A silo's update is not finite, so no clip bounds it."""


class PolicyError(ReleaseError):
    """The silo's own policy forbids the plan it was handed."""


class StorageError(FulcrumError, RuntimeError):
    """A file cannot be written, held or trusted; a message says which, and what became of what stood there."""


class FileInUseError(StorageError):
    """Another process, or another part of this one, holds a file."""


class LedgerError(FulcrumError, ValueError):
    """A ledger cannot be read, written or trusted, or refuses what was asked."""


class RefusedReleaseError(LedgerError):
    """The plan does not allow this release; nothing was recorded and nothing may be sent."""


class LedgerInUseError(LedgerError, FileInUseError):
    """Another process, or another part of this one, holds the ledger."""


class SignatureError(FulcrumError, ValueError):
    """A plan, or its signature, is not from whom it should be."""


class ExchangeError(FulcrumError, ValueError):
    """What passes between silo, region and server is not what the plan says; nothing of it was used."""


class EngineError(FulcrumError, RuntimeError):
    """The engine beneath a federation did not do what it was asked."""


class MissingExtraError(FulcrumError, ImportError):
    """An optional package is needed and not installed."""


def in_one_line(words: object) -> str:
    """Returns what somebody else's code said as one line that can be printed.

    >>> in_one_line(OSError("no  space" + chr(10) + "left" + chr(27)))
    'no space left'
    """
    return "".join(filter(str.isprintable, " ".join(str(words).split())))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'south'?" for a misspelt word, or an empty string.

    >>> suggestion("sout", ["north", "south"])
    " Did you mean 'south'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def listing(words: Iterable[str], limit: int = 12) -> str:
    """Returns the words joined by commas, the first `limit` of them.

    >>> listing(["north", "south"])
    'north, south'
    """
    words = list(words)
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def check_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raises `ParameterError` for a name that is none of the known ones.

    >>> check_known("format", "jsn", ["table", "json"])
    Traceback (most recent call last):
        ...
    fulcrum.errors.ParameterError: unknown format 'jsn'. Known: table, json. Did you mean 'json'?
    """
    words = list(known)
    if name not in words:
        raise ParameterError(f"unknown {what} {name!r}. Known: {listing(words)}.{suggestion(name, words)}")
