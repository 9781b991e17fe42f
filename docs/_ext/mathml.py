"""Renders maths as MathML when the site is built, so that no page needs a script or a font from elsewhere.

The converter is that of docutils; what it spaces or nests in another way than TeX is put right after it. A command that
it does not know is a warning, which `make docs` makes an error.
"""

import html
import re
from xml.etree import ElementTree

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

_DOTS = re.compile(r"\\dots\b")  # the converter knows \ldots alone
_ENTITY = re.compile(r"&(?!lt;|gt;|amp;)\w+;")
_NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'  # HTML knows it
_APPLY_FUNCTION = "\u2061"
_OPENING, _CLOSING = set("([{⟨⌊⌈"), set(")]}⟩⌋⌉")
_THIN = "0.1667em"
logger = logging.getLogger(__name__)


def mathml(tex, *, block):
    """Returns the MathML of a formula; raises MathError where a command is unknown."""
    text = tex2mathml(_DOTS.sub(r"\\ldots", tex), as_block=block).replace(_NAMESPACE, "")
    tree = ElementTree.fromstring(_ENTITY.sub(lambda found: html.unescape(found[0]), text))  # noqa: S314, made here
    for parent in tree.iter():
        children = list(parent)
        for index, child in enumerate(children):
            if child.tag == "munderover" and child[0].tag == "mi":  # a subscript of an accented letter
                parent[index] = accented(*child)
            else:
                space(child, parent, index)
    return ElementTree.tostring(tree, encoding="unicode")


def space(node, parent, index):
    """Spaces an operator of a row as TeX does, and lets no lone bracket grow."""
    core = node[0] if node.tag in ("munder", "msub") else node
    if core.tag != "mo" or not core.text:
        return
    before = parent[index - 1] if index else None
    to_bracket = index + 1 < len(parent) and parent[index + 1].text in _OPENING
    if core.text == _APPLY_FUNCTION:
        core.attrib |= {"lspace": "0", "rspace": "0" if to_bracket else _THIN}
    elif core.text in ("/", "|"):
        core.attrib |= {"lspace": "0", "rspace": "0"}
    elif core.text.isalpha():  # max, min, inf
        first = before is None or before.tag == "mo"
        core.attrib |= {"lspace": "0" if first else _THIN, "rspace": "0" if to_bracket else _THIN}
    elif core.text in _OPENING | _CLOSING and "minsize" not in core.attrib:
        paired = parent.tag == "mrow" and parent[0].text in _OPENING and parent[-1].text in _CLOSING  # \left, \right
        if not paired:
            core.set("stretchy", "false")


def accented(letter, subscript, accent):
    """Returns a letter with an accent and a subscript, which is not to stand below it."""
    whole = ElementTree.Element("msub")
    over = ElementTree.SubElement(whole, "mover", {"accent": "true"})
    over.extend([letter, accent])
    whole.append(subscript)
    return whole


def written(node, *, block):
    """Returns the MathML of a node, or its source where that is not understood."""
    try:
        return mathml(node.astext(), block=block)
    except MathError as error:
        logger.warning("maths: %s", error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def visit_inline(translator, node):
    """Writes inline maths."""
    translator.body.append(written(node, block=False))
    raise nodes.SkipNode


def visit_block(translator, node):
    """Writes displayed maths, in a box that scrolls where the page is narrow."""
    translator.body.append(f'<div class="math">{written(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    """Registers the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
