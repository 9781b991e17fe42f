"""The shift of a person in several silos, by trying all coalitions, and the exact curve of the Gaussian mechanism."""

import itertools
import math

import mpmath
import numpy as np

from fulcrum.core.accounting import epsilon_of_shift

SLACK = 2e-6  # of the table of epsilons, which errs upward


def seen_sums(made, tier):
    """Returns the tier of the sums that an observer sees, and the number of colluders of every region."""
    masked, inner = made.aggregation == "masked", made.federation.innermost.name
    asked = set(made.epsilon_target) - {"silo"}
    inner_asked = inner in asked or made.federation.preferences is not None or made.silo_epsilon is not None
    one_group = masked and asked == {"federation"} and not inner_asked
    if tier == "silo":
        if not masked:
            return "silo", 0
        return ("federation" if one_group else inner), max(1, made.colluders)
    if one_group:
        return "federation", made.colluders
    order = made.federation.tier_names
    if made.server != "sum":
        tier = inner
    elif made.purpose == "deployment" and "federation" not in made.epsilon_target:  # rounds go on without regions
        outermost = max([inner, *asked], key=order.index)
        tier = min(tier, outermost, key=order.index)
    return tier, made.colluders


def worst_shift(made, tier, held, kappa):
    """Returns the largest mu of a person with records in the silos `held`, over all coalitions of other silos."""
    federation = made.federation
    seen, colluders = seen_sums(made, tier)
    noise = (federation.weights * made.noise_multiplier) ** 2
    node_of, region_of = federation.membership(seen), federation.innermost.parent_of
    if seen == "silo":
        squares = [federation.weights[silo] ** 2 / noise[silo] if noise[silo] else math.inf for silo in held]
        return kappa * math.sqrt(made.rounds * math.fsum(squares))
    excluded = colluders + made.dropouts
    squares = []
    for node in sorted({int(node_of[silo]) for silo in held}):
        members = np.flatnonzero(node_of == node).tolist()
        moved = math.fsum(federation.weights[silo] for silo in held if silo in members)
        least = 0.0
        for region in sorted({int(region_of[silo]) for silo in members}):
            silos = [silo for silo in members if region_of[silo] == region]
            others = [silo for silo in silos if silo not in held]
            coalitions = itertools.combinations(others, min(excluded, len(others)))
            least += min(math.fsum(noise[silo] for silo in silos if silo not in gone) for gone in coalitions)
        squares.append(moved**2 / least if least else math.inf)
    return kappa * math.sqrt(made.rounds * math.fsum(squares))


def delta_of(epsilon, shift):
    """Returns the exact delta of the Gaussian mechanism (Balle and Wang 2018) at 40 digits."""
    with mpmath.workdps(40):
        mu, eps = mpmath.mpf(shift), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


def is_epsilon_of(made, epsilon, shift, *, is_tight=True):
    """Checks that a stated epsilon covers a shift and, where tight, exceeds the true epsilon by no more than slack."""
    delta = made.delta - made.reserve
    if not math.isfinite(shift) or not math.isfinite(epsilon):
        return not math.isfinite(epsilon)
    if made.accountant == "renyi":
        true = float(epsilon_of_shift(shift, delta=delta, accountant="renyi"))
        return epsilon >= true * (1 - 1e-9) and (not is_tight or epsilon <= true * (1 + SLACK) + SLACK)
    covered = delta_of(epsilon * (1 + 1e-9) + 1e-12, shift) <= delta
    smaller = epsilon * (1 - SLACK) - SLACK
    return covered and (not is_tight or smaller <= 0 or delta_of(smaller, shift) >= delta * (1 - 1e-9))


def kappa_of(made, neighbours=None):
    kappa = {"replace": 2.0, "add-remove": 1.0}[neighbours or made.unit.neighbours]
    return kappa + (0.01 if made.purpose == "deployment" else 0.0)
