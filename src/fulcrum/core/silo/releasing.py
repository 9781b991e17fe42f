"""The release of a silo in a round: the update, clipped, perturbed, weighted and charged to the ledger.

>>> import numpy as np
>>> from fulcrum.core.noise.noise_sources import SeededNoise
>>> from fulcrum.planning.planner import plan
>>> research_plan = plan("isic-paper", rounds=2, epsilon=1.0)
>>> sent = release({"head": np.ones((2, 3))}, research_plan, "region-1-1", 1, noise=SeededNoise(seed=0))
>>> sent.values.shape, sent.step
((6,), None)

A research release is floating point with seeded noise. A deployed release is integers on the region's lattice with
cryptographic noise, and the bytes are in the silo's ledger, charged, before `release` returns: the silo may send the
returned release, and may send the same release again.
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
"""The log of failures of training. Only the silo may read the log: a failure depends on the silo's records."""


def sound_alarm(text: str, *values: object, trace: bool = False) -> None:
    """Reports a failure to the silo's own log, and to no other party."""
    tell_log(alarm, logging.CRITICAL, text, *values, trace=trace)


def tell_log(log: logging.Logger, level: int, text: str, *values: object, trace: bool = False) -> None:
    """Writes to a silo's own log; a handler that fails or exits has no effect on the silo's answer."""
    try:
        log.log(level, text, *values, exc_info=trace)
    except KeyboardInterrupt:  # the operator wants the site to end
        raise
    except BaseException:  # noqa: S110 no log is left for the report
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
    """Returns the silo's release for one round.

    Neighbouring relation: two datasets that differ in the silo's whole dataset; the sensitivity of the clipped update
    is 2C. Guarantees in deployment:

    - the signal has norm at most weight times C before the noise, for every dtype, shape, rounding and clip share;
    - the noise is at least as wide as the plan says, and drawn for this release alone;
    - no release without a plan that verifies and a policy that allows the plan. Clip, noise and cost come from the
      verified plan, and a plan that was changed in memory is refused (`fulcrum.core.silo.release_parameters`);
    - bytes and cost are on disk before the return. A second call on the same basis returns the same bytes, free;
    - refused: a round past the plan's rounds, a cost past the allowance, and a second basis for a released round;
    - all steps are atomic for other threads with the same ledger, under any plans;
    - a refusal depends on types, names, dtypes and shapes of the update, and never on a value.

    Edge cases:

    - an update that is not finite is released as zero plus noise, and only the silo's log (`alarm`) reports the update.
      A refusal would tell the observer that the silo diverged, and no epsilon covers that leak;
    - an update with another layout than the model raises an error, as a mistake in the caller's code. If training may
      fail or return another layout because of the records, the caller must hide the failure and release zeros in the
      model's layout. `ReleasingSilo` does so.

    Args:
        update: The change of the model by local training: arrays of half, single or double precision. Integers are
            refused, since counts and buffers are no updates; see `fulcrum.core.messages.layout.flatten_arrays`.
        plan: The plan of the release. A research plan requires seeded noise, a deployment plan refuses seeded noise.
        silo: The silo of the update.
        round_number: The round, from 1.
        ledger: The silo's ledger; required in deployment, refused in research.
        noise: `SeededNoise` in research; in deployment `SecureNoise`, the default.
        policy: The silo's policy; refused in research. Limits and keys are checked before the first release under a
            plan, the number of all releases before every release.
        basis: The input of the update, such as the digest of the global model.
        masked: True if the release leaves the silo masked, as `MaskedSilo` sends releases. A plan for masked sums
            requires True, and any other plan requires False.
    """
    plan = verified_plan(plan, error=ReleaseError)
    index = plan.index_of(silo, ReleaseError)
    if masked and not plan.is_masked:
        raise ReleaseError("release.masked-unexpected", aggregation=plan.aggregation)
    if not masked and plan.is_masked:
        raise ReleaseError("release.masking-missing")
    round_number = checked_round(plan, round_number)
    if plan.is_research:
        if ledger is not None or policy is not None:
            raise ReleaseError("release.plan-for-research")
        return _research_release(update, plan, index, round_number, noise)
    if isinstance(noise, SeededNoise):  # anyone with the seed could draw the noise again and subtract it
        raise ReleaseError("release.noise-seeded")
    if noise is not None and type(noise) is not SecureNoise:  # a subclass could draw known or narrower noise
        raise ReleaseError("release.noise-type", type_name=type(noise).__name__)
    if not plan.silos_draw_noise:
        raise ReleaseError("release.noise-not-of-silos")
    ledger = _own_ledger(ledger, silo)
    layout, flat = flatten_arrays(update)
    parameters = release_parameters_of(plan, silo, policy=policy)
    if cached_release := _cached_release(parameters, layout, round_number, ledger, policy, basis):
        return cached_release
    new_release = _lattice_release(flat, layout, parameters, round_number)
    del flat  # the bytes of a large release need the memory of the update
    payload, cost = new_release.to_bytes(), parameters.cost
    with ledger.holding():
        # A second check: another thread may have released this round while this thread drew its noise. An observer of
        # two releases of an update could average their noise away.
        if cached_release := _cached_release(parameters, layout, round_number, ledger, policy, basis):
            return cached_release
        entry_basis = _entry_basis(layout, basis)
        ledger.record(parameters.allowance, round_number=round_number, basis=entry_basis, payload=payload, cost=cost)
    return new_release


def checked_round(plan: VerifiedPlan, round_number: Any) -> int:
    """Returns a round as an integer; raises `ReleaseError` for a round outside of the plan."""
    try:
        number = operator.index(round_number)
    except TypeError:
        raise ReleaseError("release.round-type", round_number=round_number) from None
    if not 1 <= number <= plan.rounds:
        raise ReleaseError("release.round-outside-plan", round_number=number, rounds=plan.rounds)
    return number


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
    """Returns the round's release if the ledger holds the release, or None if a new release is allowed.

    Called before training, so that no silo trains for a release that would be refused.

    Args:
        model: Arrays with the names and shapes of the update, such as the global model.
        plan: The deployment plan of the release.
        silo: The silo of the release.
        round_number: The round, from 1.
        ledger: The silo's ledger.
        policy: The silo's policy.
        basis: The input of the update, as in `release`.

    Raises:
        FulcrumError: `release` would refuse every update for this round.
    """
    round_number = checked_round(plan, round_number)
    ledger = _own_ledger(ledger, silo)
    layout = layout_of(floats_by_name(model, what="model"))
    parameters = release_parameters_of(plan, silo, policy=policy)
    return _cached_release(parameters, layout, round_number, ledger, policy, basis)


def _own_ledger(ledger: Ledger | None, silo: str) -> Ledger:
    """Returns the silo's ledger; the ledger of another silo would return the releases of the other silo."""
    if not isinstance(ledger, Ledger):
        raise ReleaseError("release.ledger-missing")
    if ledger.silo != silo:
        raise ReleaseError("release.ledger-of-other-silo", ledger_silo=ledger.silo, silo=silo)
    return ledger


def _cached_release(
    parameters: ReleaseParameters, layout: Layout, round_number: int, ledger: Ledger, policy: Policy | None, basis: str
) -> Release | None:
    """Returns the round's release from the ledger, or None if a new release is allowed; raises if not."""
    allowance = parameters.allowance
    with ledger.holding():
        _check_layout(parameters, layout, ledger)
        payload = ledger.stored_payload(allowance, round_number, _entry_basis(layout, basis))
        if payload is not None:
            return Release.from_bytes(payload)
        if policy is not None:
            policy.check_releases(parameters.silo, parameters.rounds, ledger.releases_besides(parameters.plan_digest))
        ledger.enter_plan(allowance)
        reason = ledger.would_exceed(allowance, parameters.cost, round_number)
    if reason is not None:
        raise RefusedReleaseError("release.refused-by-ledger", reason=reason)
    return None


def _entry_basis(layout: Layout, basis: str) -> str:
    """Returns the basis of a ledger entry: the digest of the layout, and the input of the update."""
    return f"{layout.digest} {basis}"


def _check_layout(parameters: ReleaseParameters, layout: Layout, ledger: Ledger) -> None:
    if layout.parameters != parameters.parameters:
        raise ReleaseError("release.parameters-differ", parameters=layout.parameters, expected=parameters.parameters)
    for entry in ledger.entries():
        if entry.plan_digest == parameters.plan_digest and entry.basis.split(" ")[0] != layout.digest:
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
    """Returns the mechanism of a silo's release in a round of a research plan.

    Args:
        plan: The research plan.
        index: The index of the silo in the plan.
        noise: The source of the noise.
        round_number: The round, from 1.
    """
    return GaussianMechanism(
        clip_norm=plan.clip_norm,
        clip_share=plan.clip_share,
        weight=float(plan.federation.weights[index]),
        noise_multiplier=float(plan.noise_multiplier[index]),
        draw=lambda shape: noise.standard_normal(round_number=round_number, block=index, shape=shape),
    )


def _lattice_release(flat: FloatArray, layout: Layout, parameters: ReleaseParameters, round_number: int) -> Release:
    """Returns the deployed release of an update: zero plus noise, and an alarm, for an update that is not finite."""
    text = "the update of round %d is not finite: zero plus noise is released in its place"
    return Release(
        plan_digest=parameters.plan_digest,
        silo=parameters.silo,
        region=parameters.region,
        round_number=round_number,
        layout=layout,
        values=apply_mechanism(parameters, flat, on_diverged=lambda: sound_alarm(text, round_number)),
        step=parameters.step,
    )
