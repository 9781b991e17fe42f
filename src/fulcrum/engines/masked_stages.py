"""The stages of a masked round in words, for the progress of a run on this machine.

>>> from fulcrum.core.masking.masking_messages import INPUT
>>> stage_in_words(INPUT)
'stage 3 of 5: silos train and release'
"""

from fulcrum.core.masking.masking_messages import ATTESTATION, INPUT, KEYS, SHARES, UNMASKING, Request

STAGE_WORDS = {
    KEYS: "silos make keys",
    SHARES: "silos share keys",
    INPUT: "silos train and release",
    ATTESTATION: "silos attest the members of the sum",
    UNMASKING: "silos unmask the sum",
}
"""The work of every stage, in the order of a round."""


def stage_of(request: Request) -> str:
    """Returns the stage of a request, which is the tag of the message."""
    return str(request.__struct_config__.tag)


def stage_in_words(stage: str) -> str:
    """Returns number and work of a stage."""
    return f"stage {list(STAGE_WORDS).index(stage) + 1} of {len(STAGE_WORDS)}: {STAGE_WORDS[stage]}"
