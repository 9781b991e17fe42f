"""What one silo releases in one round: its update clipped, perturbed, weighted and accounted for, and nothing else.

>>> import numpy as np
>>> from fulcrum.core.noise.noise_sources import SeededNoise
>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> sent = release({"head": np.ones((2, 3))}, made, "region-1-1", 1, noise=SeededNoise(seed=0))
>>> sent.values.shape, sent.step
((6,), None)

In research a release is floating point and its noise seeded. In deployment it is integers on the region's lattice,
its noise cryptographic, and its bytes are in the silo's ledger, charged, before they are returned: what is returned
may be sent, and sent again, as it is.
"""

import logging
import operator
from typing import Any

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.layout import Layout, Update, flatten_arrays, floats_by_name, layout_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.noise.mechanism import GaussianMechanism, apply_mechanism
from fulcrum.core.noise.noise_sources import SecureNoise, SeededNoise
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.release_parameters import ReleaseParameters, release_parameters_of
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import RefusedReleaseError, ReleaseError

alarm = logging.getLogger("fulcrum.alarm")
"""Where a silo is told, and nobody else, that its training diverged."""


def sound_alarm(text: str, *values: object, trace: bool = False) -> None:
    """Tells the silo alone that something went wrong."""
    tell_log(alarm, logging.CRITICAL, text, *values, trace=trace)


def tell_log(log: logging.Logger, level: int, text: str, *values: object, trace: bool = False) -> None:
    """Tells a silo's own log. A listener that fails, or exits, is not heard: what is answered must not depend on it."""
    try:
        log.log(level, text, *values, exc_info=trace)
    except KeyboardInterrupt:  # the operator's
        raise
    except BaseException:  # noqa: S110 nobody is left to tell
        pass


def release(
    update: Update,
    plan: SupportsContent,
    silo: str,
    round_number: int,
    *,
    ledger: Ledger | None = None,
    noise: SeededNoise | SecureNoise | None = None,
    policy: Policy | None = None,
    basis: str = "",
    masked: bool = False,
) -> Release:
    """Returns what a silo may send in a round.

    Guarantees in deployment, neighbours differing in the silo's whole dataset (sensitivity 2C):

    - the norm of what enters the noise is at most weight times C, whatever the dtype, shape, rounding or clip share;
    - noise is at least as wide as the plan says, drawn for this release alone;
    - the plan verifies and the policy passes it, or nothing is released; clip, noise and cost follow from what was
      verified, and a plan changed in memory is refused (`fulcrum.core.silo.release_parameters`);
    - bytes and cost are on disk before this returns; asked again on the same basis, the same bytes come back free;
    - past the plan's rounds or budget, or on another basis for a round already released: refused;
    - all of that is one step for other threads on the same ledger, under whichever plan they release;
    - whether it is refused depends on the update's types, names, dtypes and shapes, never on a value. An update that is
      not finite is released as zero plus noise, and the silo alone is told (`alarm`): refusing would tell the observer
      that this silo diverged, which no epsilon covers.

    So what is no update of the model's layout is a mistake in the caller's code, and raises. Where training may fail,
    or return something else, because of the records it meets, the caller must hide that: release zeros of the model's
    layout in its place. The stations of `fulcrum.engines` do.

    Args:
        update: What local training changed: arrays of half, single or double precision. Integers are refused, since
            counts and buffers are not updates; see `fulcrum.core.messages.layout.flatten_arrays` for what else is.
        plan: What to release under. A research plan takes seeded noise, a deployment plan refuses it.
        silo: Whose update it is.
        round_number: From 1.
        ledger: The silo's ledger; required in deployment, and refused in research, as a policy is.
        noise: `SeededNoise` in research; in deployment `SecureNoise`, the default.
        policy: What the silo itself insists on: its limits and keys before the first release under a plan, the count
            of all releases before every one.
        basis: What the update was computed from, such as the digest of the global model.
        masked: Whether it leaves the silo masked alone, as `MaskedSilo` sends it. A plan that counts on that takes
            nothing else, and one that does not takes nothing masked.
    """
    plan = verified_plan(plan, error=ReleaseError)
    index = plan.index_of(silo, ReleaseError)
    if masked and plan.aggregation != "masked":
        raise ReleaseError("release.masked-unexpected", aggregation=plan.aggregation)
    if not masked and plan.aggregation == "masked":
        raise ReleaseError("release.masking-missing")
    round_number = checked_round(plan, round_number)
    if plan.purpose == "research":
        if ledger is not None or policy is not None:
            raise ReleaseError("release.plan-for-research")
        return _research_release(update, plan, index, round_number, noise)
    if isinstance(noise, SeededNoise):
        raise ReleaseError("release.noise-seeded")
    if noise is not None and type(noise) is not SecureNoise:
        raise ReleaseError("release.noise-type", type_name=type(noise).__name__)
    if plan.injection != "silo":
        raise ReleaseError("release.noise-not-of-silos")
    ledger = _own_ledger(ledger, silo)
    layout, flat = flatten_arrays(update)
    terms = release_parameters_of(plan, silo, policy=policy)
    kept = _kept(terms, layout, round_number, ledger, policy, basis)
    if kept is not None:
        return kept
    made = _lattice_release(flat, layout, terms, round_number)
    del flat  # of a large update, memory that the bytes need
    payload, asked = made.to_bytes(), _asked(layout, basis)
    with ledger.holding():
        # Asked again: another thread may have released while this one drew its noise.
        kept = _kept(terms, layout, round_number, ledger, policy, basis)
        if kept is not None:
            return kept
        ledger.record(terms.allowance, round_number=round_number, basis=asked, payload=payload, cost=terms.cost)
    return made


def checked_round(plan: VerifiedPlan, round_number: Any) -> int:
    """Returns a round as a number, or raises `ReleaseError` unless the plan has it."""
    try:
        found = operator.index(round_number)
    except TypeError:
        raise ReleaseError("release.round-type", round_number=round_number) from None
    if not 1 <= found <= plan.rounds:
        raise ReleaseError("release.round-outside-plan", round_number=found, rounds=plan.rounds)
    return found


def prepared_release(
    model: Update,
    plan: VerifiedPlan,
    silo: str,
    round_number: int,
    *,
    ledger: Ledger,
    policy: Policy | None = None,
    basis: str = "",
) -> Release | None:
    """Asks before anything is trained: returns a round's release if the ledger holds it, None if it may be made.

    Args:
        model: Arrays of the update's names and shapes, such as the global model.
        plan: What is released under, for deployment.
        silo: Whose release it is.
        round_number: From 1.
        ledger: The silo's ledger.
        policy: What the silo itself insists on.
        basis: What the update is computed from.

    Raises:
        FulcrumError: Whatever `release` would refuse it for, whichever update it were given.
    """
    round_number = checked_round(plan, round_number)
    ledger = _own_ledger(ledger, silo)
    layout = layout_of(floats_by_name(model, what="model"))
    return _kept(release_parameters_of(plan, silo, policy=policy), layout, round_number, ledger, policy, basis)


def _own_ledger(ledger: Ledger | None, silo: str) -> Ledger:
    """Returns the ledger if it is one, and the silo's: another's would answer with the releases of another."""
    if not isinstance(ledger, Ledger):
        raise ReleaseError("release.ledger-missing")
    if ledger.silo != silo:
        raise ReleaseError("release.ledger-of-other-silo", ledger_silo=ledger.silo, silo=silo)
    return ledger


def _kept(
    terms: ReleaseParameters, layout: Layout, round_number: int, ledger: Ledger, policy: Policy | None, basis: str
) -> Release | None:
    """Returns a round's release if the ledger holds it, None if it may be made; raises where it may not."""
    with ledger.holding():
        _check_layout(terms, layout, ledger)
        kept = ledger.stored_payload(terms.allowance, round_number, _asked(layout, basis))
        if kept is not None:
            return Release.from_bytes(kept)
        if policy is not None:
            policy.check_releases(terms.silo, terms.rounds, ledger.releases_besides(terms.plan_digest))
        ledger.enter_plan(terms.allowance)
        reason = ledger.would_exceed(terms.allowance, terms.cost, round_number)
    if reason is not None:
        raise RefusedReleaseError("release.refused-by-ledger", reason=reason)
    return None


def _asked(layout: Layout, basis: str) -> str:
    """What a ledger knows a round's release by: the layout, and what it was computed from."""
    return f"{layout.digest} {basis}"


def _check_layout(terms: ReleaseParameters, layout: Layout, ledger: Ledger) -> None:
    if layout.parameters != terms.parameters:
        raise ReleaseError("release.parameters-differ", parameters=layout.parameters, expected=terms.parameters)
    for entry in ledger.entries():
        if entry.plan_digest == terms.plan_digest and entry.basis.split(" ")[0] != layout.digest:
            raise ReleaseError("release.layout-differs", round_number=entry.round_number)


def _research_release(
    update: Update, plan: VerifiedPlan, index: int, round_number: int, noise: SeededNoise | SecureNoise | None
) -> Release:
    if not isinstance(noise, SeededNoise):
        raise ReleaseError("release.noise-not-seeded")
    layout, flat = flatten_arrays(update)
    inner = plan.federation.innermost
    return Release(
        plan_digest=plan.digest,
        silo=plan.federation.silo_name(index),
        region=inner.nodes[inner.parent_of[index]],
        round_number=round_number,
        layout=layout,
        values=apply_mechanism(seeded_mechanism(plan, index, noise, round_number), flat),
        step=None,
    )


def seeded_mechanism(plan: PlanData, index: int, noise: SeededNoise, round_number: int) -> GaussianMechanism:
    """Returns the mechanism of a silo's release in a round, as a research plan has it.

    Args:
        plan: Says how wide the noise is.
        index: Where the silo stands in the plan.
        noise: Where the noise comes from.
        round_number: From 1.
    """
    return GaussianMechanism(
        clip_norm=plan.clip_norm,
        clip_share=plan.clip_share,
        weight=float(plan.federation.weights[index]),
        noise_multiplier=float(plan.noise_multiplier[index]),
        draw=lambda shape: noise.standard_normal(round_number=round_number, block=index, shape=shape),
    )


def _lattice_release(flat: FloatArray, layout: Layout, terms: ReleaseParameters, round_number: int) -> Release:
    """Returns the release of an update; one that is not finite is zero plus noise, and the silo alone is told."""
    text = "the update of round %d is not finite: zero plus noise is released in its place"
    return Release(
        plan_digest=terms.plan_digest,
        silo=terms.silo,
        region=terms.region,
        round_number=round_number,
        layout=layout,
        values=apply_mechanism(terms, flat, on_diverged=lambda: sound_alarm(text, round_number)),
        step=terms.step,
    )
