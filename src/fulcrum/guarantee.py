"""What a plan guarantees, in words that a data protection officer can sign, made from its figures alone.

>>> import textwrap
>>> worst = {"region": 0.99, "silo": None}
>>> print(textwrap.fill(statement(rounds=10, delta=1e-5, innermost="region", worst=worst, colluders=0), 118))
Over 10 rounds, at delta 1e-05, every silo's whole dataset has epsilon 0.99 against anyone who sees the sums of its
region, and no guarantee against whoever sees its own updates, such as its region aggregator.
"""

from collections.abc import Mapping

from fulcrum.federation import ROOT, SILO

ADJACENCY = "replace one silo's whole dataset, its declared size kept"
"""Which federations are neighbours; a clipped update moves by at most 2C between them."""


def statement(*, rounds: int, delta: float, innermost: str, worst: Mapping[str, float | None], colluders: int) -> str:
    """Returns the guarantee in one sentence: both observers always, and every other tier that has a target.

    Args:
        rounds: T.
        delta: The DP parameter.
        innermost: The tier that silos report to.
        worst: By tier, the worst epsilon of any silo, rounded up; None where there is no guarantee.
        colluders: Silos of each region that may collude or drop out.
    """
    whom = {
        innermost: f"anyone who sees the sums of its {innermost}",
        SILO: f"whoever sees its own updates, such as its {innermost} aggregator",
        ROOT: "anyone who sees the global sum alone",
    }
    clauses = [
        f"{'no guarantee' if epsilon is None else f'epsilon {epsilon:g}'} against "
        f"{whom.get(tier, f'anyone who sees the sums of its {tier}')}"
        for tier, epsilon in worst.items()
    ]
    said = ", ".join(clauses[:-1]) + f", and {clauses[-1]}"
    even = f", even if up to {colluders} silos of each {innermost} collude or drop out" if colluders else ""
    return f"Over {rounds} rounds, at delta {delta:g}, every silo's whole dataset has {said}{even}."


def assumptions(
    *, innermost: str, injection: str, curious_aggregator: bool, colluders: int, purpose: str, accountant: str
) -> tuple[str, ...]:
    """Returns everything the guarantee rests on.

    Args:
        innermost: The tier that silos report to.
        injection: Who draws the noise, "silo" or "aggregator".
        curious_aggregator: Whether a target covers observers of single updates.
        colluders: Silos of each region that may collude or drop out.
        purpose: "research" or "deployment".
        accountant: How noise becomes epsilon.
    """
    if purpose == "research":
        noise = "noise is continuous and drawn from a seed, for research: whoever knows the seed can subtract it"
    elif accountant == "renyi":
        noise = "noise is discrete Gaussian on a lattice from a cryptographic source; its distance is charged to delta"
    else:
        noise = "the exact accountant is proven for continuous noise; for the lattice noise that is drawn, renyi is"
    if injection == "aggregator":
        trust = f"{innermost} aggregators are trusted to see what they aggregate and to add the noise"
        others = "silos hold no noise, so none can collude it away"
    else:
        others = f"up to {colluders} silos of each {innermost} may collude or drop out"
        if curious_aggregator:
            trust = f"{innermost} aggregators may be curious: they meet the target on the tier 'silo'"
        else:
            trust = f"{innermost} aggregators are trusted to see what they aggregate; no one is trusted to add noise"
    return (
        f"{innermost}s are disjoint: each silo reports to one",
        "membership is fixed for the whole training",
        "the datasets of silos are disjoint, and their sizes are public",
        "every silo takes part in every round: no amplification by sampling is claimed",
        "observers are passive: they follow the protocol and read what they see",
        others,
        trust,
        noise,
    )
