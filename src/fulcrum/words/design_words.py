"""Proposed regions in words: the saving, and the proof that no other regions need less noise.

>>> from fulcrum.planning.regions.region_design import design
>>> design_sentence(design("consortium", rounds=10, epsilon=1.0, most=30)).partition(" No ")[0]
'The proposed regions need 66.7% less noise.'
"""

from fulcrum.planning.regions.region_design import RegionDesign
from fulcrum.words.numbers import percent

_PROOFS = {
    "sorting": "sorting is optimal here",
    "integer program": "the integer program proves the optimum",
    "local search": "a lower bound proves the optimum",
    "today": "a lower bound proves the optimum",
}


def design_sentence(design: RegionDesign) -> str:
    """Returns a sentence on saving and proof."""
    inner = design.federation.innermost.name
    if not design.moves:
        less = f"No better {inner}s were reached"
    elif design.saving >= 0:
        less = f"The proposed {inner}s need {percent(design.saving)} less noise"
    else:
        less = f"The proposed {inner}s need {percent(-design.saving)} more noise"
    if not design.gap:
        return f"{less}. No {inner}s within the limits need less noise: {_PROOFS[design.method]}."
    return (
        f"{less} ({design.method}). The gap is {percent(design.gap)}: no {inner}s within the limits need less than "
        f"{percent(1 - design.gap)} of the noise of the proposal."
    )
