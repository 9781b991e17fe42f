"""The unit of privacy in sentences: one patient's records, the guess of an observer, and the meaning for one patient.

>>> from fulcrum.planning.planner import plan
>>> patients = plan("severe", rounds=10, epsilon=1.0, unit="person", unit_name="patient")
>>> guess_words(patients.unit)
"which of two equally likely patients' records a silo holds"
>>> meaning_for_one(patients)[1].partition(",")[0]
'Above the regions'
"""

import math
from typing import TYPE_CHECKING

from fulcrum.core.plan.guarantee import NO_PROTECTION
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.topology import SILO
from fulcrum.rounding import rounded_up
from fulcrum.words.numbers import epsilon_text

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan


def data_of_one(unit: PrivacyUnit) -> str:
    """Returns the protected data of one unit, without the number of silos.

    >>> data_of_one(SILO_UNIT), data_of_one(PrivacyUnit(name="person", label="patient"))
    ("one silo's whole dataset", "one patient's records")
    """
    if not unit.is_within_silo:
        return "one silo's whole dataset"
    return f"one {unit.noun}" if _is_bare_record(unit) else f"one {unit.noun}'s records"


def size_word(unit: PrivacyUnit) -> str:
    """Returns the plural of the things that the sizes of silos count.

    >>> size_word(SILO_UNIT), size_word(PrivacyUnit(name="person", label="patient"))
    ('records', 'patients')
    """
    return f"{unit.noun}s" if unit.is_within_silo else "records"


def guess_words(unit: PrivacyUnit = SILO_UNIT, silo: str = "a silo") -> str:
    """Returns the guess of an observer in the game of the verdict, to follow "guesses".

    Args:
        unit: The unit of privacy; neighbours that are replaced, or that come or go, make different games.
        silo: The silo of the game.
    """
    if not unit.is_within_silo:
        return f"which of two equally likely datasets {silo} holds"
    holders = f"{silo} holds" if unit.silos_per_person == 1 else f"up to {unit.silos_per_person} silos hold"
    if unit.neighbours == "add-remove":
        return f"whether {holders} {data_of_one(unit)} (as likely as not)"
    many = f"{unit.noun}s" if _is_bare_record(unit) else f"{unit.noun}s' records"
    return f"which of two equally likely {many} {holders}"


def recognition_words(unit: PrivacyUnit) -> tuple[str, str]:
    """Returns the error of a test that is held at 1 %, and the recognised case, both as parts of a sentence.

    >>> recognition_words(PrivacyUnit(name="person", neighbours="add-remove", label="patient"))
    ('takes an absent patient for present', 'recognises a present patient')
    """
    noun = unit.noun if unit.is_within_silo else "dataset"
    if unit.neighbours == "add-remove":
        return f"takes an absent {noun} for present", f"recognises a present {noun}"
    return f"mistakes the first {noun} for the second", f"recognises the second {noun}"


def meaning_for_one(plan: "Plan") -> list[str]:
    """Returns the meaning of a plan for one person, sentence by sentence; empty if silos are protected.

    The sentences are those of the definition: P(outcome) is at most e^epsilon P'(outcome) + delta for neighbours.
    """
    unit, inner = plan.unit, plan.federation.innermost.name
    if not unit.is_within_silo:
        return []
    noun = unit.noun
    above, inside = f"above the {inner}s", f"inside a {inner}"
    if plan.one_group:
        above, inside = "outside the federation", "inside it"
    bare = _is_bare_record(unit)
    if unit.neighbours == "add-remove":
        instead = f"without this {noun}" if bare else "without these records"
    else:
        instead = f"with another {noun} in its place" if bare else f"with another {noun}'s in their place"
    return [
        _protected_sentence(unit),
        f"{above.capitalize()}, an observer of all rounds draws no conclusion that is more than "
        f"{_times(plan.worst_epsilon())} as likely with {data_of_one(unit)} as {instead}, up to a probability of "
        f"{rounded_up(plan.delta):g}; {inside}, {_times(plan.worst_epsilon(SILO))}.",
        conventions_words(plan),
        several_silos_words(plan),
        whole_silo_sentence(plan),
        f"The model may show facts about {noun}s in general. Such facts hardly depend on any single {noun}, and no "
        "epsilon hides them.",
    ]


def conventions_words(plan: "Plan") -> str:
    """Returns the worst epsilons of a plan for persons in both conventions of neighbours, the plan's own first."""
    unit, inner = plan.unit, plan.federation.innermost.name
    noun, place = unit.noun, "outside the federation" if plan.one_group else f"above the {inner}s"
    own, other = (
        f"epsilon {epsilon_text(above)} {place} and {epsilon_text(inside)} inside"
        for above, inside in (
            (plan.worst_epsilon(), plan.worst_epsilon(SILO)),
            tuple(plan.person_epsilons[f"other_neighbours_{where}"] for where in ("above", "inside")),
        )
    )
    who = "that" if unit.name == "record" else "who"
    opacus = "the accountants of Opacus and of most other tools count this way"
    if unit.neighbours == "add-remove":
        added, replaced = f"{own}; {opacus}", other
        return f"A {noun} {who} is added or removed has {added}. A {noun} {who} is replaced by another has {replaced}."
    added, replaced = f"{other}; {opacus}", own
    return f"A {noun} {who} is replaced by another has {replaced}. A {noun} {who} is added or removed has {added}."


def whole_silo_sentence(plan: "Plan") -> str:
    """Returns a sentence on the protection of a silo as a whole in a plan for persons; empty if silos are protected."""
    if not plan.unit.is_within_silo:
        return ""
    epsilon, many = plan.person_epsilons["whole_silo_above"], size_word(plan.unit)
    place = "outside the federation" if plan.one_group else f"above the {plan.federation.innermost.name}s"
    if epsilon <= NO_PROTECTION:
        return f"A silo as a whole has epsilon {epsilon_text(epsilon)} {place}, all its data replaced."
    worth = "no guarantee" if math.isinf(epsilon) else f"epsilon {epsilon_text(epsilon)}"
    return (
        f"A silo as a whole is not protected: {worth} {place}. Releases may show facts about all {many} of a silo "
        "together."
    )


def sensitivity_words(plan: "Plan") -> str:
    """Returns the largest change of a silo's sum by one person, in clip norms, with the part of the lattice."""
    unit = plan.unit
    cut = ", of which 0.01C for the second cut to the lattice" if unit.is_cut else ""
    change = (
        f"another {unit.noun} in the place of one" if unit.neighbours == "replace" else f"one {unit.noun} more or less"
    )
    return f"{change} moves a silo's sum, before its weight, by at most {clip_norms(unit.sensitivity)}{cut}"


def clip_norms(number: float) -> str:
    """Returns a number of clip norms.

    >>> clip_norms(1.0), clip_norms(2.01)
    ('C', '2.01C')
    """
    return "C" if number == 1 else f"{number:g}C"


def _protected_sentence(unit: PrivacyUnit) -> str:
    if unit.name == "record":
        return (
            f"Protected is every {unit.noun} for itself. A person with several {unit.noun}s in the silos has a larger "
            "epsilon."
        )
    where = "one silo" if unit.silos_per_person == 1 else f"up to {unit.silos_per_person} silos"
    return f"Protected are all records of one {unit.noun} in {where}, taken together and over all rounds."


def several_silos_words(plan: "Plan") -> str:
    """Returns a sentence on a person with records in several silos of a plan for persons."""
    noun, most = plan.unit.noun, plan.unit.silos_per_person
    if most > 1:
        return f"The figures hold for a {noun} in up to {most} silos. For a {noun} in more silos epsilon is larger."
    if "two_silos_above" not in plan.person_epsilons:
        return f"The federation has a single silo, so no {noun} is in two silos of this plan."
    held = "that two silos hold" if _is_bare_record(plan.unit) else "with records in two silos"
    pair = epsilon_text(plan.person_epsilons["two_silos_above"])
    place = "outside the federation" if plan.one_group else f"above the {plan.federation.innermost.name}s"
    return (
        f"A {noun} {held} has epsilon {pair} {place}: the plan provides for one silo. If silos share {noun}s, plan "
        "with --silos-per-person 2 or more."
    )


def _times(epsilon: float) -> str:
    """Returns e^epsilon as a number of times, rounded up to three digits."""
    if not math.isfinite(epsilon) or epsilon > 20:
        return "any number of times" if not math.isfinite(epsilon) else f"e^{epsilon_text(epsilon)} times"
    return f"{rounded_up(math.exp(epsilon), digits=3):,g} times"


def _is_bare_record(unit: PrivacyUnit) -> bool:
    return unit.name == "record"
