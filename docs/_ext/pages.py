"""Takes the pages as they are read on a code host: the readme is the front page, and links out of docs/ hold.

A link to the readme leads to the front page, one to another file of the repository to a copy of it. Of a link to a
folder the words stay.
"""

import os
import re
from pathlib import Path

from pygments.lexers.special import TextLexer

_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_PICTURE = re.compile(r"<picture>(.*?)</picture>", re.DOTALL)
_SOURCE = re.compile(r'<source media="([^"]+)" srcset="([^"]+)">|<img alt="([^"]+)" src="([^"]+)">')
_LINK = re.compile(r"\[([^]\n]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def mended(text, *, folder, docs):
    """Returns the text of a page of `folder`, its links and pictures relative to `docs`, errors kept whole."""
    readme = docs.parent / "README.md"

    def mend(link):
        words, target, anchor = link[1], folder / link[2], link[3] or ""
        if not target.exists():
            return link[0]
        if target.is_dir():
            return words
        page = docs / "index.md" if target.samefile(readme) else target
        kind = "" if page.resolve().is_relative_to(docs.resolve()) else "path:"
        return f"[{words}]({kind}{Path(os.path.relpath(page, docs)).as_posix()}{'' if kind else anchor})"

    def show(picture):
        """Writes a picture as one image for each scheme and width, between which theme and style sheet choose."""
        sources = _SOURCE.findall(picture[1])
        alt = next(alt for _, _, alt, _ in sources if alt)
        return "\n\n".join(
            f":::{{image}} {Path(os.path.relpath(folder / (image or plain), docs)).as_posix()}\n:alt: {alt}\n"
            f":class: framed only-{'dark' if 'dark' in media else 'light'} "
            f"{'narrow' if 'max-width' in media else 'wide'}\n:::"
            for media, image, _, plain in sources
        )

    text = _PICTURE.sub(show, text)
    return _ROW.sub(lambda row: row[0].replace(" ± ", "\u00a0±\u00a0"), _LINK.sub(mend, text))


def read(app, docname, source):
    """Mends a page when it is read; puts the readme before the tables of contents of the front page."""
    docs = Path(app.srcdir)
    if docname == "index":
        readme = docs.parent / "README.md"
        app.env.note_dependency(str(readme), docname=docname)
        source[0] = mended(readme.read_text(encoding="utf-8"), folder=docs.parent, docs=docs) + "\n" + source[0]
    elif Path(app.env.doc2path(docname)).suffix == ".md":
        source[0] = mended(source[0], folder=Path(app.env.doc2path(docname)).parent, docs=docs)


def setup(app):
    """Registers the hook, and CSV as a language of code blocks."""
    app.connect("source-read", read)
    app.add_lexer("csv", TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
