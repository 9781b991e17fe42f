"""The noise in real releases: `release` with a ledger, and a region's sum of sealed releases, on scratch files alone.

All ledgers, keys and region files are in a temporary folder, deleted afterwards. A silo's own ledger is never opened,
so an audit spends no budget.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.arrays import FloatArray
from fulcrum.audit.evidence.findings import Probe
from fulcrum.audit.evidence.judging import Errors, probe
from fulcrum.audit.integration.canary_training import ARRAY, OVERSIZE, direction, expected_signal, person_rows
from fulcrum.audit.replays.audited_path import PARAMETERS
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.layout import Layout, in_units
from fulcrum.core.messages.membership import index_of, members_of
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.messages.release_message import Release
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import ExchangeError
from fulcrum.planning.content.plan_figures import changed_copy
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.planning.plan import Plan

MOST_SILOS = 8
"""The most silos whose releases are made in full."""

VALUES_A_SILO = 8_192
"""Coordinates that suffice to tell 97 % of the plan's noise from all of it."""

MOST_MEMBERS, REGION_ROUNDS = 8, 2
"""The most silos of a region that releases in full, and the rounds of the test."""

_MOST_ROUNDS, _MOST_LEDGERS = 4, 4  # in deployment every release waits for the disk


def release_probes(
    plan: Plan, errors: Errors, *, silos: Sequence[str], seed: int, policy: Policy | None = None
) -> list[Probe]:
    """Returns, by silo, the verdict on the results of `release`: the plan's noise, and no more than the clipped update.

    Args:
        plan: The plan of the releases.
        errors: Allowed error of every test.
        silos: The silos whose releases are tested.
        seed: Seed of the updates, and of the noise in research.
        policy: The silo's own policy; the policy refuses releases here as at the silo.
    """
    parameters = plan.parameters or PARAMETERS
    rounds = min(plan.rounds, _MOST_ROUNDS)
    times = -(-VALUES_A_SILO // (rounds * parameters))
    if plan.is_deployment:
        times = min(times, _MOST_LEDGERS)
    probes = []
    with tempfile.TemporaryDirectory(prefix="fulcrum-audit-") as folder:
        for silo in silos:
            index = index_of(plan, silo)
            width = float(plan.noise_multiplier[index] * plan.federation.weights[index]) * plan.clip_norm
            if not width:
                continue
            runs = [
                _release_canaries(plan, silo, rounds, parameters, seed + time, Path(folder) / f"{index}-{time}", policy)
                for time in range(times)
            ]
            sent = np.concatenate(
                [[in_units(released.values, released.step) for released, _ in run] for run in runs],
                axis=1,
            )
            expected = np.concatenate([[update for _, update in run] for run in runs], axis=1)
            probes.append(
                probe("release", silo, (sent - expected) / width, errors, expected / width, parameters=parameters)
            )
    return probes


def region_probes(plan: Plan, errors: Errors, *, seed: int) -> list[Probe]:
    """Returns the verdict on the sum of the smallest region of several silos: their noise, and nothing else.

    Silos release through scratch ledgers and seal to a scratch key, and the region opens, checks and sums, as on a real
    federation. The result is empty for noise of aggregators, for masked sums
    (`fulcrum.audit.integration.masked_noise`), and for a plan that no aggregator runs, such as a plan with two nodes of
    one name.
    """
    federation = plan.federation
    sizes = np.bincount(federation.innermost.parent_of)
    fitting = [region for region in range(len(sizes)) if 2 <= sizes[region] <= MOST_MEMBERS]
    trusted = plan.silos_draw_noise and not plan.is_masked
    if not trusted or not fitting:
        return []
    try:
        tree_of(plan)
    except ExchangeError:  # no engine runs the plan, and the replays do without aggregators
        return []
    name = federation.innermost.nodes[min(fitting, key=lambda region: int(sizes[region]))]
    parameters, rounds = plan.parameters or VALUES_A_SILO // REGION_ROUNDS, min(plan.rounds, REGION_ROUNDS)
    layout = Layout(names=(ARRAY,), shapes=((parameters,),))
    members = members_of(plan, name)
    width = float(np.sqrt(plan.noise_variance[list(members.values())].sum())) * plan.clip_norm
    expected, sums = np.zeros((rounds, parameters)), np.zeros((rounds, parameters))
    with tempfile.TemporaryDirectory(prefix="fulcrum-audit-") as scratch:
        folder = Path(scratch)
        where = {site: folder / f"{place}.key" for place, site in enumerate([name, *members])}
        keys = {silo: new_key(where[silo]) for silo in members}
        keyed = verified_plan(changed_copy(plan, keys=keys | {name: new_key(where[name], "sealing")}))
        with Region.open(folder / "region", keyed, name, where[name]) as region:
            region.expect_layout(layout)
            for silo, index in members.items():
                sealer = Sealer(keyed, silo, where[silo])
                releases = _release_canaries(keyed, silo, rounds, parameters, seed, folder / f"{index}.ledger", None)
                for number, (sent, update) in enumerate(releases):
                    region.accept(sealer.seal(sent), number + 1)
                    expected[number] += update
            for number in range(rounds):
                answer = region.close_round(number + 1)
                if isinstance(answer, RegionalSum):
                    sums[number] = in_units(answer.values, answer.step)
    return [probe("a region's sum", name, (sums - expected) / width, errors, expected / width, parameters=parameters)]


def probed_silos(plan: Plan) -> list[str]:
    """Returns the silos whose releases are made in full: the most exposed of every region, in order of exposure."""
    region_of, inside = plan.federation.innermost.parent_of, plan.epsilon_inside
    order = np.argsort(-np.minimum(inside, 1e300), kind="stable")
    first: dict[int, int] = {}
    for silo in order.tolist():
        first.setdefault(int(region_of[silo]), silo)
    return [plan.federation.silo_name(silo) for silo in list(first.values())[:MOST_SILOS]]


def _release_canaries(
    plan: Plan | VerifiedPlan, silo: str, rounds: int, parameters: int, seed: int, path: Path, policy: Policy | None
) -> list[tuple[Release, FloatArray]]:
    """Releases canaries through a scratch ledger; returns every release with its expected update."""
    index, masked = index_of(plan, silo), plan.is_masked
    numbers = range(1, rounds + 1)

    def canary_release(number: int, **options: Any) -> Release:
        if plan.unit.is_within_silo:
            rows = person_rows(plan, index, seed, number, parameters)
            model = {ARRAY: np.zeros(parameters)}
            return release(None, plan, silo, number, gradients=rows, model=model, masked=masked, **options)
        update = {ARRAY: OVERSIZE * plan.clip_norm * direction(seed, index, number, parameters)}
        return release(update, plan, silo, number, masked=masked, **options)

    if plan.is_research:
        sent = [canary_release(number, noise=SeededNoise(seed=seed)) for number in numbers]
    else:
        with Ledger.open(path, silo=silo) as ledger:
            sent = [canary_release(number, ledger=ledger, policy=policy) for number in numbers]
    return [
        (released, expected_signal(plan, index, seed, number, parameters))
        for number, released in zip(numbers, sent, strict=True)
    ]
