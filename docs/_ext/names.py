"""Makes links of the public names that pages and docstrings write as code.

`Plan.saving`, `fulcrum.plan`, `accounting.epsilon_of` and `leakage.informativeness` become links to the reference.
A bare word in lower case, such as `plan`, does not: it is mostly an argument.
"""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

import fulcrum

_NAME = re.compile(r"(?:fulcrum\.)?((?:[a-z_]+\.)*[A-Za-z_]\w*(?:\.\w+)?)(?:\(\))?")


def documented(text, objects):
    """Returns the documented name that a piece of code names, or None."""
    found = _NAME.fullmatch(text)
    if not found or re.fullmatch(r"[a-z]+", text):
        return None
    return next((name for name in objects if f".{whole_name(name)}".endswith(f".{found[1]}")), None)


def whole_name(name):
    """Returns a documented name with the module that it is in, `privacy.accounting.epsilon_of`."""
    bare = name.removeprefix("fulcrum.")
    first = getattr(fulcrum, bare.partition(".")[0]) if bare.partition(".")[0] in fulcrum.__all__ else None
    module = getattr(first, "__module__", "fulcrum")
    return f"{module}.{bare}".removeprefix("fulcrum.")


class LinkNames(SphinxPostTransform):
    """Wraps code that names something documented in a link to it."""

    default_priority = 20

    def run(self):
        """Looks at every piece of inline code outside titles and links."""
        objects = self.env.domains["py"].objects
        for code in list(self.document.findall(nodes.literal)):
            name = documented(code.astext(), objects)
            if name and not any(isinstance(node, (nodes.title, nodes.reference)) for node in around(code)):
                entry = objects[name]
                code.replace_self(
                    make_refnode(
                        self.app.builder, self.env.docname, entry.docname, entry.node_id, code.deepcopy(), name
                    )
                )


def around(node):
    """Yields the nodes around a node, from the inside out."""
    while node := node.parent:
        yield node


def setup(app):
    """Registers the transform."""
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
