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

A message is one line: the rule, the value, the place of the value, and the remedy. The source names a stable code and
the values; the words are in the tables of the folder `error_messages`, one for each folder of the package, so that all
words can be read and improved in one place. docs/errors.md lists every code.

>>> near = suggestion("jsn", ["table", "json"])
>>> error = ParameterError("errors.name-unknown", noun="format", name="jsn", known="table, json", suggestion=near)
>>> str(error)
"unknown format 'jsn'. Known: table, json. Did you mean 'json'?"
>>> error.code, error.details["name"], error.remedy
('errors.name-unknown', 'jsn', "Known: table, json. Did you mean 'json'?")
"""

import difflib
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Self

_CODE = re.compile(r"[a-z0-9-]+\.[a-z0-9.-]+")


@cache
def error_messages() -> dict[str, tuple[str, str]]:
    """Returns message and remedy of every code, with a name in braces for each detail."""
    tables = (file for file in files("fulcrum").joinpath("error_messages").iterdir() if file.name.endswith(".toml"))
    return {
        f"{area}.{name}": (words, "") if isinstance(words, str) else tuple(words)
        for table in tables
        for area, messages in tomllib.loads(table.read_text("utf-8")).items()
        for name, words in messages.items()
    }


def _sentence(message: str, remedy: str) -> str:
    """Joins message and remedy.

    >>> _sentence("got 0", ""), _sentence("no plan", "Make one"), _sentence("which?", "Name it")
    ('got 0', 'no plan. Make one', 'which? Name it')
    """
    stop = "" if message.endswith((".", "?", "!", ":", ";", ",")) else "."
    return f"{message}{stop} {remedy}" if message and remedy else message or remedy


class FulcrumError(Exception):
    """Base of every error that Fulcrum raises on purpose.

    Attributes:
        code: Stable name of the mistake, for example `plan.delta-range`. Programs compare the code, never the sentence.
        details: Values that the message was made from, by name.
        remedy: Advice to the reader, the last part of the sentence. The remedy is empty where no advice helps.
    """

    def __init__(self, code: str, /, **details: object) -> None:
        """Makes the sentence of a code from its details.

        Args:
            code: A code of `error_messages`. An extension outside of Fulcrum may give a sentence of its own instead.
            details: The values that the message names.
        """
        self.code, self.details, self.remedy = code, details, ""
        message = code
        if _CODE.fullmatch(code):
            # A damaged installation must not hide the mistake: the code and the details are then the message.
            try:
                template, remedy = error_messages()[code]
                message = template.format(**details)
                self.remedy = " ".join(remedy.format(**details).split())
            except (LookupError, TypeError, ValueError, OSError):
                message = " ".join([code, *(f"{name}={value!r}" for name, value in details.items())])
        else:
            self.code = "unlisted"
        super().__init__(_sentence(message, self.remedy))

    @classmethod
    def at(cls, place: object, error: "FulcrumError") -> Self:
        """Returns an error of this class with the code, details and remedy of `error`, and a place in front."""
        located = cls(f"{place}: {error}")
        located.code, located.details, located.remedy = error.code, {**error.details, "place": str(place)}, error.remedy
        return located


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
        near = suggestion(name, words)
        raise ParameterError("errors.name-unknown", noun=what, name=name, known=listing(words), suggestion=near)
