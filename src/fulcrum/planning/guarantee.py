"""What a plan guarantees, in words that a data protection officer can sign, made from its figures alone.

>>> import textwrap
>>> worst = {"region": 0.99, "silo": None}
>>> print(textwrap.fill(statement(rounds=10, delta=1e-5, innermost="region", worst=worst), 118))
Over 10 rounds, at delta 1e-05, every silo's whole dataset has epsilon 0.99 against anyone outside its region who sees
the sums of its region, and no guarantee against whoever sees its own updates, such as its region aggregator.
"""

from collections.abc import Mapping

from fulcrum.federation.structure import ROOT, SILO
from fulcrum.privacy.accounting import rounded_up

ADJACENCY = "replace one silo's whole dataset, its declared size kept"
"""Which federations are neighbours; a clipped update moves by at most 2C between them."""

_FILTERS = {"exact": "Smith and Thakurta 2022", "renyi": "Feldman and Zrnic 2021"}
"""Who proved that shifts add up even where later noise is chosen after earlier outputs were seen, by accountant."""


def statement(
    *,
    rounds: int,
    delta: float,
    innermost: str,
    worst: Mapping[str, float | None],
    colluders: int = 0,
    dropouts: int = 0,
    follows: bool = False,
) -> str:
    """Returns the guarantee in one sentence: both observers always, and every other tier that has a target.

    Args:
        rounds: T.
        delta: The DP parameter.
        innermost: The tier that silos report to.
        worst: By tier, the worst epsilon of any silo, rounded up; None where there is no guarantee.
        colluders: Silos of each region that may share their noise with the observer.
        dropouts: Silos of each region that may be missing from a sum.
        follows: Whether silos released before this plan, which the epsilons include.
    """
    over = "1 round" if rounds == 1 else f"{rounds} rounds"
    if follows:
        over = f"{'this' if rounds == 1 else 'these'} {over} and all released before"
    clauses = [
        f"{'no guarantee' if epsilon is None else f'epsilon {epsilon:g}'} against {_whom(tier, innermost, follows)}"
        for tier, epsilon in worst.items()
    ]
    said = ", ".join(clauses[:-1]) + f", and {clauses[-1]}"
    even = []
    if colluders:
        collude = "colludes" if colluders == 1 else "collude"
        even.append(f"{_coalition(innermost, colluders, follows)} {collude}")
    if dropouts:
        who = f"{dropouts} {'other' if dropouts == 1 else 'others'}" if colluders else _silos(dropouts)
        even.append(f"up to {who} of each {innermost} {'is' if dropouts == 1 else 'are'} missing from a sum")
    condition = f", even if {' and '.join(even)}" if even else ""
    return f"Over {over}, at delta {rounded_up(delta):g}, every silo's whole dataset has {said}{condition}."


def assumptions(
    *,
    innermost: str,
    injection: str,
    curious_aggregator: bool,
    purpose: str,
    accountant: str,
    colluders: int = 0,
    dropouts: int = 0,
    follows: bool = False,
) -> tuple[str, ...]:
    """Returns everything the guarantee rests on; who is trusted, and with what noise, stand last.

    Args:
        innermost: The tier that silos report to.
        injection: Who draws the noise, "silo" or "aggregator".
        curious_aggregator: Whether a target covers observers of single updates.
        purpose: "research" or "deployment".
        accountant: How noise becomes epsilon.
        colluders: Silos of each region that may share their noise with the observer.
        dropouts: Silos of each region that may be missing from a sum.
        follows: Whether silos released before this plan.
    """
    if purpose == "research":
        noise = "noise is continuous and drawn from a seed, for research: whoever knows the seed can subtract it"
    elif accountant == "renyi":
        noise = "noise is discrete Gaussian on a lattice from a cryptographic source; its distance is charged to delta"
    else:
        noise = "the exact accountant is proven for continuous noise and not for the lattice noise that is drawn"
    if injection == "aggregator":
        trust = f"{innermost} aggregators are trusted to see what they aggregate and to add the noise"
    elif curious_aggregator:
        trust = f"{innermost} aggregators may be curious: the target on the tier 'silo' is against them"
    else:
        trust = f"{innermost} aggregators are trusted to see what they aggregate; no one is trusted to add noise"
    return (
        f"each silo reports to one {innermost} and no other",
        "membership is fixed while this plan is in force",
        "the datasets of silos are disjoint, and their sizes are public",
        _on_presence(innermost, dropouts),
        "observers are passive: they follow the protocol and read what they see",
        _on_collusion(innermost, injection, colluders, follows),
        *(
            [
                "what was released before is counted in; a plan made after its outputs were seen rests on privacy "
                f"filters ({_FILTERS[accountant]})"
            ]
            if follows
            else []
        ),
        trust,
        noise,
    )


def _whom(tier: str, innermost: str, follows: bool) -> str:
    """Returns who the observer of a tier is, and what it sees; who was inside before, where silos moved, is none."""
    always = ", in this plan and all before," if follows else ""
    if tier == SILO:
        return f"whoever sees its own updates, such as its {innermost} aggregator"
    if tier == ROOT:
        return f"anyone outside the federation{always} who sees the global sum and no sum below it"
    only = "" if tier == innermost else " and no sum below them"
    return f"anyone outside its {tier}{always} who sees the sums of its {tier}{only}"


def _on_presence(innermost: str, dropouts: int) -> str:
    if not dropouts:
        return "every silo takes part in every round: no amplification by sampling is claimed"
    return (
        f"up to {_silos(dropouts)} of each {innermost} may miss a round, for reasons that do not depend on records; "
        "no amplification by sampling is claimed"
    )


def _on_collusion(innermost: str, injection: str, colluders: int, follows: bool) -> str:
    if injection == "aggregator":
        return "silos hold no noise, so none can collude it away"
    if not colluders:
        of = f"{innermost}, in any plan so far," if follows else innermost
        return f"no silo of a {of} helps an observer of its sums, or is one: it can subtract its own noise"
    helps = "helps an observer, or is one" if colluders == 1 else "help an observer, or are one"
    return f"{_coalition(innermost, colluders, follows)} {helps}"


def _coalition(innermost: str, colluders: int, follows: bool) -> str:
    """Returns who may collude: where silos released before, those of every plan so far are counted."""
    if follows:
        return f"no more than {_silos(colluders)}, the same throughout, of any {innermost} of any plan so far"
    return f"up to {_silos(colluders)} of each {innermost}"


def _silos(count: int) -> str:
    return f"{count} silo" if count == 1 else f"{count} silos"
