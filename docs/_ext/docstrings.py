"""Mends what autodoc and napoleon make of signatures and docstrings that are written for readers of the code."""

import re
import sys

from sphinx.pycode import ModuleAnalyzer

_ANY = r"~?(?:typing\.)?Any"
_ARRAY = re.compile(rf"~?numpy\.ndarray\[(?:tuple\[{_ANY}, \.\.\.\]|{_ANY}), (?:~?numpy\.dtype\[([^]]*)\]|{_ANY})\]")
_COLON = "\ue000"  # of the private use area
_SYMBOL = re.compile(r"((?:^|:)\s*)([A-Za-z]\.)$")


def shorten(_app, _what, _name, _object, _options, signature, returned):
    """Writes array types as the code does, and a default that is made anew each time as `...`."""

    def short(found):
        return f"NDArray[{found[1]}]" if found[1] else "~numpy.ndarray"

    return tuple(text and _ARRAY.sub(short, text).replace("<factory>", "...") for text in (signature, returned))


def hide_colons(_app, what, _name, _object, _options, lines):
    """Keeps the words before a colon in a property's docstring from being read as its type."""
    if what in ("attribute", "property"):
        lines[:] = [line.replace(": ", _COLON) for line in lines]


def mend(_app, _what, _name, _object, _options, lines):
    """Puts the colons back, and keeps a lone "C." from being read as the third item of a list."""
    lines[:] = [_SYMBOL.sub(r"\1\\\2", line.replace(_COLON, ": ")) for line in lines]


def one_signature(_app):
    """Forgets overloads: they say the same as the signature, at greater length and past the hook above."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "fulcrum"]:
        analyzer = ModuleAnalyzer.for_module(name)
        analyzer.analyze()
        analyzer.overloads.clear()


def setup(app):
    """Registers the hooks, of those for docstrings one before napoleon's and one after."""
    app.connect("builder-inited", one_signature)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", hide_colons, priority=100)
    app.connect("autodoc-process-docstring", mend, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
