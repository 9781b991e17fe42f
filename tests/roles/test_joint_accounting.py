"""What silos have against every observer where weights, clip and server are chosen, worked out anew by brute force."""

import itertools
import math

import numpy as np
import pytest
from error_codes import coded
from scipy import optimize, stats

import fulcrum
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import PlanError
from fulcrum.planning.replanning import replan

REGIONS = {"n": {"a": 5, "b": 3, "c": 9}, "s": {"d": 4, "e": 7, "h": 50}, "t": {"f": 6}, "u": {"k": 2, "l": 2}}
COUNTRIES = {"country": {"x": ["n", "s"], "y": ["t", "u"]}}
BY_SILO = {silo: 1 + 3 * place for place, silo in enumerate("abcdehfkl")}


def exact(shift, delta):
    """Balle and Wang: the epsilon at which a Gaussian of this squared shift has delta."""
    mu = math.sqrt(shift)

    def lost(epsilon):
        return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))

    return 0.0 if lost(0.0) <= delta else optimize.brentq(lambda e: lost(e) - delta, 0, 1e3, xtol=1e-12)


def renyi(shift, delta):
    """The paper's Theorem 1, by search over alpha."""

    def at(log_excess):
        alpha = 1 + math.exp(log_excess)
        return shift / 2 * alpha + math.log((alpha - 1) / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)

    return max(optimize.minimize_scalar(at, bounds=(-20, 20), method="bounded", options={"xatol": 1e-11}).fun, 0.0)


def shift_of(plan, silo, tier):
    """The squared shift of one round against an observer of a tier: the worst silos of every region left out in turn."""
    variance, region = (plan.weights * plan.noise_multiplier) ** 2, plan.federation.membership("region")
    if tier == "silo":
        return 4 / plan.noise_multiplier[silo] ** 2
    node = plan.federation.membership("region" if plan.server != "sum" else tier)
    noise = 0.0
    for one in set(region[node == node[silo]].tolist()):
        others = [j for j in np.flatnonzero(region == one).tolist() if j != silo]
        gone = min(plan.colluders + plan.dropouts, len(others))
        noise += min(variance[list(set(others) - set(out))].sum() for out in itertools.combinations(others, gone))
        noise += variance[silo] if region[silo] == one else 0.0
    return 4 * plan.weights[silo] ** 2 / noise


@pytest.mark.parametrize("excluded_silos", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=lambda pair: "{}+{}".format(*pair))
@pytest.mark.parametrize("weights", ["sizes", "equal", "least-noise", 0.4, BY_SILO], ids=str)
@pytest.mark.parametrize(
    ("server", "purpose", "accountant", "least_influence"),
    [("random-effects", "deployment", "renyi", 0.0), ("sum", "research", "exact", 0.8)],
)
def test_epsilon_is_what_brute_force_gives_at_every_tier(
    server, purpose, accountant, least_influence, weights, excluded_silos
):
    """Where the server pools, an observer further out sees a function of all regional sums, and has their epsilon."""
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(REGIONS, outer=COUNTRIES),
        rounds=7,
        epsilon={"region": 1.0, "aggregator": 4.0},
        recipe="joint",
        server=server,
        purpose=purpose,
        accountant=accountant,
        least_influence=least_influence,
        weights=weights,
        parameters=20,
        colluders=excluded_silos[0],
        dropouts=excluded_silos[1],
    )
    epsilon_of = {"exact": exact, "renyi": renyi}[accountant]
    for tier in plan.federation.tier_names:
        stated = plan.epsilon(tier)
        for silo in range(len(plan.federation)):
            true = epsilon_of(7 * shift_of(plan, silo, tier), plan.target.accounted_delta)
            assert stated[silo] == pytest.approx(true, rel=1e-6, abs=1e-8)
            assert true <= {"region": 1.0, "silo": 4.0}.get(tier, 1.0) * (1 + 1e-9)
    if server != "sum":
        assert (plan.epsilon("federation") == plan.epsilon("region")).all()


SILOS = list("abcdef")
BEFORE = {"n": {"a": 5, "b": 3, "c": 9}, "s": {"d": 4, "e": 7}, "t": {"f": 6}}
AFTER = {"n": {"a": 5, "b": 3}, "s": {"d": 4, "e": 7, "c": 9}, "t": {"f": 6, "g": 2}}
OPTIONS = {"rounds": 6, "recipe": "joint", "parameters": 10, "purpose": "deployment"}


def released(plan, folder, rounds):
    for name in plan.federation.silo_names.tolist():
        with Ledger.open(folder / f"{name}.ledger", silo=name) as ledger:
            for number in range(1, rounds + 1):
                release(np.ones(10), plan, name, number, ledger=ledger, input_digest=f"model {number}")


@pytest.mark.parametrize("weights", [None, "least-noise"])
def test_what_a_silo_spent_before_it_moved_and_weights_changed_is_added_up_for_every_observer(tmp_path, weights):
    outer = {"country": {"x": ["n", "s"], "y": ["t"]}}
    targets = {"epsilon": {"region": 2.0, "aggregator": 8.0}, "colluders": 1, "dropouts": 1}
    old = fulcrum.plan(fulcrum.Federation.from_sizes(BEFORE, outer=outer), **OPTIONS, **targets)
    released(old, tmp_path, 2)
    new = replan(old, fulcrum.Federation.from_sizes(AFTER, outer=outer), tmp_path, weights=weights)
    assert (new.moved, new.server, new.rounds) == ({"c": "n"}, "random-effects", 4)
    assert all(check.holds for check in fulcrum.verify(new))
    before = {name: place for place, name in enumerate(old.federation.silo_names.tolist())}
    for tier in new.federation.tier_names:
        for silo, name in enumerate(new.federation.silo_names.tolist()):
            spent = 2 * shift_of(old, before[name], tier) if name in before else 0.0
            true = renyi(spent + 4 * shift_of(new, silo, tier), new.target.accounted_delta)
            assert new.epsilon(tier)[silo] == pytest.approx(true, rel=1e-6)
            assert true <= (8.0 if tier == "silo" else 2.0) * (1 + 1e-9)
    released(new, tmp_path, 4)
    for name in new.federation.silo_names.tolist():
        with read_ledger(tmp_path / f"{name}.ledger") as ledger:
            assert renyi(ledger.total_cost.shifts["region"], new.target.accounted_delta) <= 2.0 * (1 + 1e-9)
            assert renyi(ledger.total_cost.shifts["silo"], new.target.accounted_delta) <= 8.0 * (1 + 1e-9)


def test_sizes_that_an_earlier_plan_made_public_are_not_said_to_stay_secret(tmp_path):
    """The new plan speaks of all that was released before, which weights by size went into."""
    public = fulcrum.Federation.from_sizes(BEFORE)
    secret = fulcrum.Federation.from_columns(silo=SILOS, records=None, tiers={"region": list("nnnsst")})
    targets = {"epsilon": {"region": 2.0, "aggregator": 8.0}}
    for folder in (tmp_path / "public", tmp_path / "secret"):
        folder.mkdir()
    old = fulcrum.plan(public, **OPTIONS, **targets)
    released(old, tmp_path / "public", 1)
    with pytest.raises(PlanError, check=coded("replan.sizes-public")):
        replan(old, secret, tmp_path / "public")
    kept = fulcrum.plan(secret, **OPTIONS, **targets)
    released(kept, tmp_path / "secret", 1)
    assert "of whatever size" in fulcrum.guarantee_of(replan(kept, secret, tmp_path / "secret")).adjacency
    assert "its declared size kept" in fulcrum.guarantee_of(replan(kept, public, tmp_path / "secret")).adjacency
