"""The exceptions of Fulcrum, with messages for people.

    FulcrumError
    ├── ParameterError          an argument is out of its range            (also a ValueError)
    ├── FederationError         a federation's description is wrong        (also a ValueError)
    │   └── OverlapError        a silo stands in two regions
    ├── UnreachableTargetError  no amount of noise meets the target        (also a ValueError)
    ├── AllocationError         a user's allocation broke its contract     (also a ValueError)
    ├── PlanError               a plan file cannot be trusted or read      (also a ValueError)
    │   └── ForeignPlanError    a plan was made for another federation
    ├── ReleaseError            an update must not leave the silo          (also a ValueError)
    │   ├── DivergedUpdateError an update is not finite                    (also an ArithmeticError)
    │   └── PolicyError         the silo's own policy forbids the plan
    ├── StorageError            a file cannot be written, held or trusted  (also a RuntimeError)
    │   └── FileInUseError      a process holds a file already
    ├── LedgerError             a ledger cannot be trusted, or refuses     (also a ValueError)
    │   ├── RefusedReleaseError the plan does not allow a release
    │   └── LedgerInUseError    a process holds the ledger already         (also a FileInUseError)
    ├── SignatureError          a plan lacks the expected signature        (also a ValueError)
    ├── ExchangeError           a message between silo, region and server  (also a ValueError)
    │                           is refused, or a key is not the plan's
    ├── EngineError             an engine failed at a request              (also a RuntimeError)
    ├── DataError               training data cannot be used               (also a ValueError)
    └── MissingExtraError       an optional package is not installed       (also an ImportError)

A message is one line: the rule, the value, the place of the value, and the remedy. The source names a stable code and
the values; the words are in the folder `error_messages`, in a table for every folder of the package, where all words
can be read and improved together. docs/errors.md lists every code.

>>> near = suggestion("jsn", ["table", "json"])
>>> error = ParameterError("errors.name-unknown", noun="format", name="jsn", known="table, json", suggestion=near)
>>> str(error)
"unknown format 'jsn'. Known: table, json. Did you mean 'json'?"
>>> error.code, error.details["name"], error.remedy
('errors.name-unknown', 'jsn', "Known: table, json. Did you mean 'json'?")
"""

import difflib
import re
import reprlib
import tomllib
from collections.abc import Iterable
from functools import cache
from typing import Self

_CODE = re.compile(r"[a-z0-9-]+\.[a-z0-9.-]+")
_GOT = re.compile(r"got \{(\w+)[^}]*\}")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


@cache
def error_messages() -> dict[str, tuple[str, str]]:
    """Returns message and remedy of every code, with the names of details in braces."""
    # importlib.resources imports tempfile, subprocess and more: a command that raises no error need not wait for them.
    from importlib.resources import files

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


class ShownValue(str):
    """A value of any type as text: a message shows the text as it is, and does not call the value a string."""


class FulcrumError(Exception):
    """Base of all errors that Fulcrum raises on purpose.

    Attributes:
        code: Stable name of the mistake, for example `plan.delta-range`. Programs compare the code, never the sentence.
        details: The values in the message, by name.
        remedy: Advice to the reader, the last part of the sentence. The remedy is empty if no advice helps.
    """

    def __init__(self, code: str, /, **details: object) -> None:
        """Makes the sentence of a code from details.

        Args:
            code: A code of `error_messages`. An extension outside of Fulcrum may give a sentence instead.
            details: The values for the names in the message.
        """
        self.code, self.details, self.remedy = code, details, ""
        message = code
        if _CODE.fullmatch(code):
            # Neither a damaged installation nor a detail without a text, such as a list in a thousand lists, may hide
            # the mistake: the code and the beginnings of the details are then the message.
            try:
                template, remedy = error_messages()[code]
                if code.endswith("range"):  # a string in place of a number looks like the number without quotes
                    template = _GOT.sub(
                        lambda got: f"got {{{got[1]}!r}}, a string" if type(details[got[1]]) is str else got[0],
                        template,
                    )
                message = template.format(**details)
                self.remedy = " ".join(remedy.format(**details).split())
            except Exception:
                message = " ".join([code, *(f"{name}={_SHORT.repr(value)}" for name, value in details.items())])
        else:
            self.code = "unlisted"
        # A sentence is one line: line breaks in a foreign detail could forge a line of a log.
        super().__init__(" ".join(filter(None, _sentence(message, self.remedy).splitlines())))

    @classmethod
    def at(cls, place: object, error: "FulcrumError") -> Self:
        """Returns an error of class `cls` with the code, details and remedy of `error`, and a place in front.

        An empty place changes the class alone: sentence and details stay as `error` has them.
        """
        located = cls(f"{place}: {error}" if place else str(error))
        details = {**error.details, "place": str(place)} if place else dict(error.details)
        located.code, located.details, located.remedy = error.code, details, error.remedy
        return located


class ParameterError(FulcrumError, ValueError):
    """An argument is out of its range."""


class FederationError(FulcrumError, ValueError):
    """The description of a federation is wrong or cannot be read."""


class OverlapError(FederationError):
    """A silo stands in two regions; disjoint regions are an assumption of the theory."""


class UnreachableTargetError(FulcrumError, ValueError):
    """No amount of noise meets the target, for example an information bound below the information floor."""


class AllocationError(FulcrumError, ValueError):
    """The result of an allocation is not noise for the federation."""


class PlanError(FulcrumError, ValueError):
    """A plan file cannot be read, was changed, or states figures that do not hold."""


class ForeignPlanError(PlanError):
    """A plan was made for a different federation."""


class DataError(FulcrumError, ValueError):
    """Training data cannot be read, or does not fit the federation or the model."""


class ReleaseError(FulcrumError, ValueError):
    """An update must not leave the silo, because clip, noise, accounting or verification failed."""


class DivergedUpdateError(ReleaseError, ArithmeticError):
    """A silo's update is not finite: no clip bounds the update."""


class PolicyError(ReleaseError):
    """The silo's own policy forbids the plan."""


class StorageError(FulcrumError, RuntimeError):
    """A file cannot be written, held or trusted; the message names the file and the state of its content."""


class FileInUseError(StorageError):
    """A process, or a further part of the same process, holds the file already."""


class LedgerError(FulcrumError, ValueError):
    """A ledger cannot be read, written or trusted, or refuses an entry."""


class RefusedReleaseError(LedgerError):
    """The plan does not allow the release: the ledger has no entry, and the silo must not send the release."""


class LedgerInUseError(LedgerError, FileInUseError):
    """A process, or a further part of the same process, holds the ledger already."""


class SignatureError(FulcrumError, ValueError):
    """A plan lacks a valid signature of the expected key."""


class ExchangeError(FulcrumError, ValueError):
    """A message between silo, region and server does not fit the plan; the message was not used."""


class EngineError(FulcrumError, RuntimeError):
    """The engine of a federation failed at a request."""


class MissingExtraError(FulcrumError, ImportError):
    """An optional package is necessary and not installed."""


def in_one_line(words: object) -> str:
    """Returns the message of foreign code as a single printable line.

    >>> in_one_line(OSError("no  space" + chr(10) + "left" + chr(27)))
    'no space left'
    """
    return "".join(filter(str.isprintable, " ".join(str(words).split())))


def suggestion(word: str, choices: Iterable[str]) -> str:
    """Returns " Did you mean 'south'?" for a misspelt word, or an empty string.

    >>> suggestion("sout", ["north", "south"])
    " Did you mean 'south'?"
    """
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def listing(words: Iterable[str], limit: int = 12) -> str:
    """Returns the first `limit` words joined by commas.

    >>> listing(["north", "south"])
    'north, south'
    """
    words = list(words)
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def check_known(noun: str, name: str, choices: Iterable[str]) -> None:
    """Raises `ParameterError` for a name outside of `choices`.

    >>> check_known("format", "jsn", ["table", "json"])
    Traceback (most recent call last):
        ...
    fulcrum.errors.ParameterError: unknown format 'jsn'. Known: table, json. Did you mean 'json'?
    """
    words = list(choices)
    if name not in words:
        near = suggestion(name, words)
        raise ParameterError("errors.name-unknown", noun=noun, name=name, known=listing(words), suggestion=near)
