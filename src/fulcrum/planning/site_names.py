"""Technical names of sites: names that engines, certificates and folders accept, by transliteration.

>>> technical_name("Baden-Württemberg"), technical_name("St. Mary's"), technical_name("lille")
('Baden-Wurttemberg', 'St-Mary-s', 'lille')

Plans, ledgers, reports and messages keep the names of silos and regions. The column `site` of a federation's table sets
the technical name of a silo.
"""

import hashlib
import re
import unicodedata

from fulcrum.core.topology import Topology

_TECHNICAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LONGEST = 63
_WITHOUT_ACCENT = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ð": "d", "Ð": "D"}
    | {"ł": "l", "Ł": "L", "þ": "th", "Þ": "Th", "ı": "i"}
    | dict(zip("абвгдезийклмнопрстуфхыэґіΐ", "abvgdeziiklmnoprstufhyegii", strict=True))
    | {"ё": "e", "ж": "zh", "ц": "ts", "ч": "ch", "ш": "sh", "щ": "shch", "ъ": "", "ь": "", "ю": "yu", "я": "ya"}
    | {"є": "ye", "ї": "yi"}
    | dict(zip("αβγδεζηικλμνξοπρσςτυω", "avgdeziiklmnxoprsstyo", strict=True))
    | {"θ": "th", "φ": "f", "χ": "ch", "ψ": "ps"}
)
"""Latin letters that have no accent to remove, and the letters of Cyrillic and Greek."""


def technical_name(name: str) -> str:
    """Returns the technical name of a site: letters without accents, digits, - and _, at most 63.

    A technical name stays unchanged. If a script has no transliteration here, the name ends in a digest of the whole
    name, so that two names stay different.

    >>> technical_name("Київ"), technical_name("東京")
    ('Kiyiv', 'site-130016b2')
    """
    if is_technical(name):
        return name
    letters = "".join(map(_transliterate, unicodedata.normalize("NFC", name)))
    plain = re.sub(r"-{2,}", "-", letters.replace("?", "-")).strip("-_")[:_LONGEST].strip("-_")
    if "?" not in letters and is_technical(plain):
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[:40].rstrip('-_') or 'site'}-{digest}"


def is_technical(name: str) -> bool:
    """Returns True for a name that engines, certificates and folders accept."""
    return _TECHNICAL.fullmatch(name) is not None


def technical_names(federation: Topology) -> dict[str, str]:
    """Returns the technical name of every aggregator and silo, by the name in the plan.

    A silo's declared name, from the column `site`, comes first. The names may coincide: `engine_limits.refusals`
    refuses such a plan.
    """
    names = {name: technical_name(name) for tier in federation.tiers for name in tier.nodes}
    silos: list[str] = federation.silo_names.tolist()
    declared: list[str] = [""] * len(silos) if federation.declared_sites is None else federation.declared_sites.tolist()
    return names | {silo: site or technical_name(silo) for silo, site in zip(silos, declared, strict=True)}


def _transliterate(letter: str) -> str:
    """Returns a letter in ASCII, a sign as -, and ? for a letter without a transliteration."""
    if letter.isascii():
        return letter if letter.isalnum() or letter in "_-" else "-"
    for form in (letter, *unicodedata.normalize("NFKD", letter)[:1]):
        lower = str(form.lower().translate(_WITHOUT_ACCENT))
        if lower.isascii() and (not lower or lower.isalnum()):
            return lower.capitalize() if form.isupper() else lower
    return "?" if letter.isalpha() else "-"
