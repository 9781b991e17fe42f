"""The noise in real releases: `release` with a ledger, and a region's sum of sealed ones, on scratch files alone.

Every ledger, key and region file here is made in a folder of its own that is deleted afterwards. A silo's own ledger is
never opened, so an audit spends nothing of any budget.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.arrays import FloatArray
from fulcrum.audit.evidence.findings import Probe
from fulcrum.audit.evidence.judging import Errors, probe
from fulcrum.audit.integration.canary_training import ARRAY, OVERSIZE, direction
from fulcrum.audit.replays.audited_path import PARAMETERS
from fulcrum.core.messages.layout import Layout, in_units
from fulcrum.core.messages.membership import index_of, members_of
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.messages.release_message import Release
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.planning.plan import Plan

MOST_SILOS = 8
"""Silos whose releases are made in full."""

VALUES_A_SILO = 8_192
"""Coordinates that are enough to tell noise of 97 % from that of the plan."""

MOST_MEMBERS, REGION_ROUNDS = 8, 2
"""Silos of a region that releases in full, and its rounds."""

_MOST_ROUNDS, _MOST_LEDGERS = 4, 4  # in deployment every release waits for the disk


def release_probes(
    plan: Plan, errors: Errors, *, silos: Sequence[str], seed: int, policy: Policy | None = None
) -> list[Probe]:
    """Returns, by silo, whether what `release` returns holds the plan's noise and nothing beyond the clipped update.

    Args:
        plan: What is released under.
        errors: What each test may fail with.
        silos: Whose releases.
        seed: Of the updates, and of the noise in research.
        policy: What the silo itself insists on; its releases are refused here as they would be there.
    """
    parameters = plan.parameters or PARAMETERS
    rounds = min(plan.rounds, _MOST_ROUNDS)
    times = -(-VALUES_A_SILO // (rounds * parameters))
    if plan.purpose == "deployment":
        times = min(times, _MOST_LEDGERS)
    found = []
    with tempfile.TemporaryDirectory(prefix="fulcrum-audit-") as folder:
        for silo in silos:
            index = index_of(plan, silo)
            width = float(plan.noise_multiplier[index] * plan.federation.weights[index]) * plan.clip_norm
            if not width:
                continue
            made = [
                _released(plan, silo, rounds, parameters, seed + time, Path(folder) / f"{index}-{time}", policy)
                for time in range(times)
            ]
            sent = np.concatenate([[in_units(one.values, one.step) for one, _ in some] for some in made], axis=1)
            known = np.concatenate([[update for _, update in some] for some in made], axis=1)
            found.append(probe("release", silo, (sent - known) / width, errors, known / width, parameters=parameters))
    return found


def region_probes(plan: Plan, errors: Errors, *, seed: int) -> list[Probe]:
    """Returns whether the smallest region of several silos sends up their noise, all of it and nothing else.

    Its silos release through scratch ledgers, seal to a scratch key, and the region opens, checks and sums, as it does
    on a real federation. Plans of several tiers, those in which aggregators inject, and those whose sums are masked
    (`fulcrum.audit.integration.masked_noise`) have no such region.
    """
    federation = plan.federation
    sizes = np.bincount(federation.innermost.parent_of)
    fitting = [region for region in range(len(sizes)) if 2 <= sizes[region] <= MOST_MEMBERS]
    trusted = plan.injection == "silo" and plan.aggregation == "trusted"
    if len(federation.tiers) > 1 or not trusted or not fitting:
        return []
    name = federation.innermost.nodes[min(fitting, key=lambda region: int(sizes[region]))]
    parameters, rounds = plan.parameters or VALUES_A_SILO // REGION_ROUNDS, min(plan.rounds, REGION_ROUNDS)
    layout = Layout(names=(ARRAY,), shapes=((parameters,),))
    members = members_of(plan, name)
    width = float(np.sqrt(plan.noise_variance[list(members.values())].sum())) * plan.clip_norm
    known, sums = np.zeros((rounds, parameters)), np.zeros((rounds, parameters))
    with tempfile.TemporaryDirectory(prefix="fulcrum-audit-") as scratch:
        folder = Path(scratch)
        where = {one: folder / f"{place}.key" for place, one in enumerate([name, *members])}
        keys = {silo: new_key(where[silo]) for silo in members}
        keyed = verified(replace(plan, keys=keys | {name: new_key(where[name], "sealing")}))
        with Region.open(folder / "region", keyed, name, where[name]) as region:
            region.expect_layout(layout)
            for silo, index in members.items():
                sealer = Sealer(keyed, silo, where[silo])
                made = _released(keyed, silo, rounds, parameters, seed, folder / f"{index}.ledger", None)
                for number, (sent, update) in enumerate(made):
                    region.accept(sealer.seal(sent), number + 1)
                    known[number] += update
            for number in range(rounds):
                answer = region.close_round(number + 1)
                if isinstance(answer, RegionalSum):
                    sums[number] = in_units(answer.values, answer.step)
    return [probe("a region's sum", name, (sums - known) / width, errors, known / width, parameters=parameters)]


def probed_silos(plan: Plan) -> list[str]:
    """Returns the silos whose releases are made in full: the most exposed of each region, the worst off first."""
    region_of, inside = plan.federation.innermost.parent_of, plan.epsilon_inside
    order = np.argsort(-np.minimum(inside, 1e300), kind="stable")
    first: dict[int, int] = {}
    for silo in order.tolist():
        first.setdefault(int(region_of[silo]), silo)
    return [plan.federation.silo_name(silo) for silo in list(first.values())[:MOST_SILOS]]


def _released(
    plan: Plan | VerifiedPlan, silo: str, rounds: int, parameters: int, seed: int, path: Path, policy: Policy | None
) -> list[tuple[Release, FloatArray]]:
    """Releases canaries along a direction of their own, through a scratch ledger; returns what each should add."""
    index, masked = index_of(plan, silo), plan.aggregation == "masked"
    weight = float(plan.federation.weights[index])
    along = [direction(seed, index, number, parameters) for number in range(1, rounds + 1)]
    updates = [{ARRAY: OVERSIZE * plan.clip_norm * one} for one in along]
    if plan.purpose == "research":
        sent = [
            release(update, plan, silo, number, noise=SeededNoise(seed=seed), masked=masked)
            for number, update in enumerate(updates, 1)
        ]
    else:
        with Ledger.open(path, silo=silo) as ledger:
            sent = [
                release(update, plan, silo, number, ledger=ledger, policy=policy, masked=masked)
                for number, update in enumerate(updates, 1)
            ]
    return [(made, weight * plan.clip_norm * one) for made, one in zip(sent, along, strict=True)]
