"""The noise in a masked sum: silos release, mask and unmask as on a real federation, on scratch files alone.

The server of this test follows the protocol and gets the sum of the group, like any server. The sum minus the silos'
clipped updates is noise, and must be all the noise of the plan.

Under aggregators above the regions the test is the carrier too, and reads what a carrier can read: an answer that is
not sealed to the region lets the carrier unmask the sum of the region.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.aggregation.answer_opening import AnswerOpener
from fulcrum.aggregation.masked_group import MaskedGroup, session_of
from fulcrum.aggregation.site_setup import init_site, site_toml
from fulcrum.arrays import FloatArray
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED, Probe
from fulcrum.audit.evidence.judging import Errors, probe
from fulcrum.audit.integration.canary_training import ARRAY, expected_signal, gradient_rows, start, train
from fulcrum.audit.integration.release_noise import MOST_MEMBERS, REGION_ROUNDS, VALUES_A_SILO
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.masking.masking_messages import member_reply_from_bytes
from fulcrum.core.messages.aggregation_tree import levels_of, tree_of
from fulcrum.core.messages.layout import Layout, in_units
from fulcrum.core.messages.membership import group_name_of, members_of, seals_answers, senders_of
from fulcrum.core.messages.model_message import model_digest
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.site import FORMAT, Site, SiteSettings
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import ExchangeError
from fulcrum.planning.content.plan_figures import changed_copy
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.planning.plan import Plan


def masked_probes(plan: Plan, errors: Errors, *, seed: int, silo: str | None = None) -> list[Probe]:
    """Returns the verdict on the masked sum of the smallest group: the noise of all its silos, and nothing else.

    Under a plan with outer aggregators a second verdict follows, on the seal of the silos' answers to their region. The
    result is empty for large groups, which cannot run here.

    Args:
        plan: A plan with masked sums.
        errors: Allowed error of every test.
        seed: Seed of the updates, and of the noise in research.
        silo: Run the group of this silo.
    """
    if not plan.is_masked:
        return []
    names = senders_of(plan) if silo is None else (group_name_of(plan, silo),)
    fitting = [name for name in names if 2 <= len(members_of(plan, name)) <= MOST_MEMBERS]
    if not fitting:
        return []
    name = min(fitting, key=lambda group: len(members_of(plan, group)))
    members = members_of(plan, name)
    rounds, parameters = min(plan.rounds, REGION_ROUNDS), plan.parameters or VALUES_A_SILO // REGION_ROUNDS
    with tempfile.TemporaryDirectory(prefix="fulcrum-audit-") as scratch:
        sums, carried = _masked_sums(plan, name, list(members), rounds, parameters, seed, Path(scratch))
    sent, expected = canaries_of(plan, sums, seed, logical=True)
    probes = [probe("a masked sum", name, sent - expected, errors, expected, parameters=parameters)]
    return [*probes, _seal_probe(name, carried)] if seals_answers(plan) else probes


def _seal_probe(region: str, carried: Sequence[bytes]) -> Probe:
    """Returns the verdict on the answers of silos as a carrier gets them: the carrier may read none."""
    readable, reasons = sum(map(_is_readable, carried)), []
    if readable:
        reasons.append(
            f"{readable:,} of {len(carried):,} answers of silos are not sealed to {region}: the server that carries "
            "them unmasks the sum of the region."
        )
    verdict = VIOLATED if readable else CONSISTENT
    return Probe(
        of="sealed answers", node=region, values=len(carried), noise_ratio=None, verdict=verdict, reasons=reasons
    )


def _is_readable(answer: bytes) -> bool:
    try:
        member_reply_from_bytes(answer)
    except ExchangeError:
        return False
    return True


def canaries_of(
    plan: Plan, sums: Sequence[RegionalSum], seed: int, *, logical: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Returns sums of canaries, (rounds, parameters), and their expected content, in widths of their noise.

    Args:
        plan: The plan of the releases.
        sums: Sums of the same group or aggregator, of all its silos, or of as many as the plan asks for.
        seed: Seed of the canaries' directions.
        logical: True for the sums of masked groups, False for sums of the nodes that report to a server.
    """
    sent = np.array([in_units(total.values, total.step) for total in sums])
    tree = tree_of(plan, logical=logical)
    expected = np.zeros_like(sent)
    widths = []
    for row, total in zip(expected, sums, strict=True):
        members = tree.silos(total.region)
        there = [members[silo] for silo in total.members]
        for silo in there:
            row += expected_signal(plan, silo, seed, total.round_number, len(row))
        widths.append(math.sqrt(float(plan.noise_variance[there].sum())) * plan.clip_norm)
    scale = np.array(widths)[:, None]
    return sent / scale, expected / scale


def _masked_sums(
    plan: Plan, name: str, members: list[str], rounds: int, parameters: int, seed: int, scratch: Path
) -> tuple[list[RegionalSum], list[bytes]]:
    """Returns the unmasked sums of the group `name`, one for each round from 1, whose silos send canaries.

    The second part is every answer of a silo as it leaves the silo.
    """
    folders = {silo: scratch / str(place) for place, silo in enumerate(members)}
    for folder in folders.values():
        (folder / "state").mkdir(parents=True)
    keys = {silo: new_key(folder / "site.key") for silo, folder in folders.items()}
    nodes = [node for tier in levels_of(plan) for node in tier.nodes] if seals_answers(plan) else []
    keys |= {node: new_key(scratch / f"node-{place}", "sealing") for place, node in enumerate(nodes)}
    keyed = verified_plan(changed_copy(plan, keys=keys))
    opener = AnswerOpener(keyed, name, scratch / f"node-{nodes.index(name)}") if nodes else None
    options = {"parameters": parameters, "directions": seed}
    training_module, model = TrainingModule(start=start, train=train, gradient_rows=gradient_rows), start(options)
    silos = {
        silo: MaskedSilo(_site(keyed, silo, folder, seed, options), training_module, sealed=bool(nodes))
        for silo, folder in folders.items()
    }
    group, layout = group_of(keyed, name), Layout(names=(ARRAY,), shapes=((parameters,),))
    sums: list[RegionalSum] = []
    carried: list[bytes] = []
    for number in range(1, rounds + 1):
        aggregation = MaskedGroup(group, session_of(group, number, model_digest(model)), layout)
        requests: Any = aggregation.requests()
        while isinstance(requests, dict):
            for silo, request in requests.items():
                member = silos[silo]
                update = member.asks_for_update(request)
                carried.append(member.masked_update(request, model) if update else member.answer(request))
                sealed = opener is not None and not _is_readable(carried[-1])
                aggregation.take(opener.open(carried[-1]) if opener is not None and sealed else carried[-1])
            requests = aggregation.proceed()
        if isinstance(requests, RegionalSum):
            sums.append(requests)
    return sums, carried


def _site(plan: VerifiedPlan, silo: str, folder: Path, seed: int, options: dict[str, Any]) -> Site:
    """Returns the site of a silo, made in a scratch folder.

    Under a deployment plan the site has a ledger and a record of masked rounds.
    """
    purpose: Any = plan.purpose
    settings = SiteSettings(
        format=FORMAT, role="silo", name=silo, issuer="", purpose=purpose, seed=seed, options=options
    )
    site = Site(folder=folder, settings=settings, plan=plan)
    (folder / "site.toml").write_text(site_toml(settings), encoding="utf-8")
    init_site(site)
    return site
