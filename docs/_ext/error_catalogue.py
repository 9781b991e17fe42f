"""The page docs/errors.md, made from the tables of all error messages.

`python docs/_ext/error_catalogue.py` writes the page. A test compares the page with the tables, so the page is
also the snapshot of every message: the difference between two versions of the page is the review of the words.
"""

import sys
from pathlib import Path

from fulcrum.errors import error_messages

PAGE = Path(__file__).resolve().parents[1] / "errors.md"
HEAD = """# Errors

Every error of Fulcrum has a code, a message, details and a remedy. The command line prints message and remedy in one
line on stderr and ends with exit code 2; with `--format json` the line is a JSON object with all four parts. In Python
they are the attributes `code`, `details` and `remedy` of a `FulcrumError`; its text is message and remedy. A program
compares the code: messages may be improved, codes stay.

`python docs/_ext/error_catalogue.py` makes this page. Words in braces stand for values, the details of the error.
"""


def _cell(text: str) -> str:
    for character, escape in {
        "|": "\\|",
        "<": "&lt;",
        "*": "\\*",
        "_": "\\_",
        "`": "\\`",
        "$": "\\$",
        "[": "\\[",
    }.items():
        text = text.replace(character, escape)
    return text.replace("!r}", "}")


def page() -> str:
    """Returns the text of docs/errors.md."""
    lines, area = [HEAD], ""
    for code, (message, remedy) in sorted(error_messages().items()):
        if area != (area := code.partition(".")[0]):
            lines += ["", f"## {area}", "", "| code | message | remedy |", "|---|---|---|"]
        lines.append(f"| `{code}` | {_cell(message)} | {_cell(remedy)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"docs/{PAGE.name} has {len(error_messages())} codes\n")
