"""Checks on the code and the details of an error, in place of its words: of an exception, and of a command."""

import json

from fulcrum.errors import FulcrumError


class coded:  # a word of the test: `pytest.raises(PlanError, check=coded("plan.digest"))`
    """Accepts errors with one of the codes whose details have these values, and a message of one line."""

    def __init__(self, *codes, **details):
        self.codes, self.details = codes, details

    def __call__(self, error):
        return (
            isinstance(error, FulcrumError)
            and error.code in self.codes
            and "\n" not in str(error)
            and all(name in error.details and error.details[name] == value for name, value in self.details.items())
        )

    def __repr__(self):
        return f"coded{(*self.codes, self.details)!r}"


def error_shown(line):
    """Returns the parts of the error that a command with `--format json` wrote to stderr as one line."""
    assert line.count("\n") == 1
    return json.loads(line)["error"]
