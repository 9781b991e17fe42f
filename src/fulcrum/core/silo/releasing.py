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

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.layout import Layout, Update, as_floats, flatten_arrays, floats_by_name, layout_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.noise.mechanism import GaussianMechanism, Mechanism, Values, apply_mechanism, sum_by_person
from fulcrum.core.noise.noise_sources import SecureNoise, SeededNoise
from fulcrum.core.plan.figures import multiplier_of_round
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.release_parameters import ReleaseParameters, checked_round, release_parameters_of
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.training.worker_output import has_room_in_time
from fulcrum.errors import RefusedReleaseError, ReleaseError

alarm = logging.getLogger("fulcrum.alarm")
"""The log of failures of training. Only the silo may read the log: a failure depends on the silo's records."""


_writers = threading.BoundedSemaphore(4)
_LONGEST_WRITE = 1.0
_LONGEST_TEXT = 4_000
"""Bytes of an alarm, so that alarms fill neither the disk of the ledger nor a pipe that nobody reads."""


def sound_alarm(text: str, *values: object, trace: bool = False) -> None:
    """Reports a failure to the silo's own log, and to no other party."""
    tell_log(alarm, logging.CRITICAL, text, *values, trace=trace)


def tell_log(log: logging.Logger, level: int, text: str, *values: object, trace: bool = False) -> None:
    """Writes to a silo's own log; a handler that fails, exits or waits has no effect on the silo's answer.

    A thread writes, since a log may be a pipe that nobody reads. The caller waits for the thread for a second at most.
    A line is left out if all threads wait, or if a pipe at stdout or stderr is more than half full: a thread that
    waited for the reader would hold the lock of the log, and the silo would wait with its next line.
    """
    error = sys.exc_info() if trace else None

    def write() -> None:
        with contextlib.suppress(BaseException):  # no log is left for the report
            line = text % values if values else text
            if error is not None:
                line += "\n" + "".join(traceback.format_exception(*error))
            data = line.encode(errors="replace")
            if len(data) > _LONGEST_TEXT:  # the beginning names the round, and the end of a traceback the error
                begin, end = data[: _LONGEST_TEXT // 4], data[-3 * _LONGEST_TEXT // 4 :]
                line = f"{begin.decode(errors='ignore')}\n[...]\n{end.decode(errors='ignore')}"
            if all(_takes(file) for file in (1, 2)):
                log.log(level, "%s", line)
        _writers.release()

    if _writers.acquire(blocking=False):
        writer = threading.Thread(target=write, daemon=True)
        try:
            writer.start()
        except (RuntimeError, MemoryError):  # training has taken all threads
            _writers.release()
        else:
            writer.join(_LONGEST_WRITE)


def _takes(file: int) -> bool:
    """Returns True if a standard file of this process takes a line in time, or is closed."""
    try:
        return has_room_in_time(file, _LONGEST_WRITE, share=1 / 2)  # behind what training printed, a quarter
    except OSError:
        return True


class GradientSum:
    """The sum of a silo's gradients for one release, clipped by person, before the noise; never leaves the silo.

    `release` makes the sum of rows by itself. An engine that closes the ledger during training makes the sum first, and
    passes the sum to `release` in the place of the rows. A sum is made of rows alone, and every row is clipped here, in
    the trusted core.

    Neighbouring relation: the relation of the plan's unit. Guarantees: those of
    `fulcrum.core.noise.mechanism.apply_by_person`.

    Args:
        gradients: One row of coordinates for each person, as flat arrays or as matrices of several rows. Each row is
            the gradient of the loss of all records of the person, with the sign of the step that the server adds.
        layout: The names and shapes of the model's arrays.
        plan: A verified plan that protects persons or records.
        silo: The silo of the persons.
        round_number: The round, from 1.

    Raises:
        ReleaseError: The plan protects silos, or a row has another type or length, as a mistake in the caller's code.
    """

    def __init__(
        self, gradients: Iterable[Any], layout: Layout, plan: VerifiedPlan, silo: str, round_number: int
    ) -> None:
        if not plan.unit.is_within_silo:
            raise ReleaseError("release.gradients-unexpected")
        self.release_key = (plan.digest, silo, round_number, layout.digest)
        diverged = [0]

        def count() -> None:
            diverged[0] += 1

        if plan.purpose == "research":
            index = plan.index_of(silo, ReleaseError)
            mechanism: Mechanism = seeded_mechanism(plan, index, SeededNoise(seed=0), round_number)  # draws nothing
        else:
            mechanism = release_parameters_of(plan, silo, round_number)
        rows = _checked_rows(gradients, layout.parameters)
        self._total = sum_by_person(mechanism, rows, layout.parameters, on_diverged=count)
        if diverged[0]:  # one line for all: a line for each person would fill the log
            text = "round %d: the gradients of %d %ss are not finite or failed, and each of them counts as zero"
            sound_alarm(text, round_number, diverged[0], plan.unit.noun)

    def values(self, mechanism: Mechanism) -> Values:
        """Returns the sum as the sum may leave the silo: its norm limited, then weighted, with noise."""
        return mechanism.perturb_sum(self._total)


def release(
    update: Update | None,
    plan: SupportsContent,
    silo: str,
    round_number: int,
    *,
    gradients: Iterable[Any] | GradientSum | None = None,
    model: Update | None = None,
    ledger: Ledger | None = None,
    noise: SeededNoise | SecureNoise | None = None,
    policy: Policy | None = None,
    input_digest: str = "",
    masked: bool = False,
) -> Release:
    """Returns the silo's release for one round.

    Neighbouring relation: the relation of the plan's unit. If the plan protects silos, two datasets differ in the
    silo's whole dataset, and the sensitivity of the clipped update is 2C. If the plan protects persons, all records of
    one person are replaced, or come or go; `release` takes the gradients of all persons and clips each gradient.
    Guarantees in deployment:

    - the signal of one unit, its clipped and weighted update without noise, has norm at most weight times C, for every
      dtype, shape, rounding and clip share (the share of C at which an update is clipped before it is scaled up to C);
    - the noise is at least as wide as the plan says, and drawn for this release alone;
    - no release without a plan that verifies and a policy that allows the plan. Clip, noise and cost come from the
      verified plan, and a plan that was changed in memory is refused (`fulcrum.core.silo.release_parameters`);
    - bytes and cost are on disk before the return. A second call for the same inputs returns the same bytes, free;
    - refused: a round past the plan's rounds, a round without the silo, a cost past the plan's allowance (the largest
      total of the ledger's costs against each observer), and other inputs for a released round;
    - all steps are atomic for other threads with the same ledger, under any plans;
    - a refusal depends on types, names, dtypes and shapes of the update or of the rows, and never on a value;
    - a plan for persons refuses an update, since an update mixes persons before the clip, and a plan for silos refuses
      rows.

    Edge cases:

    - an update that is not finite is released as zero plus noise, and only the silo's log (`alarm`) reports the update.
      A refusal would tell the observer that the silo diverged, and no epsilon covers that leak;
    - a gradient that is not finite counts as zero for its person alone, and a silo without persons releases noise;
    - an update with another layout than the model raises an error, as a mistake in the caller's code. If training may
      fail or return another layout because of the records, the caller must hide the failure and release zeros in the
      model's layout. `ReleasingSilo` does so.

    Args:
        update: The change of the model by local training: arrays of half, single or double precision. Integers are
            refused, since counts and buffers are no updates; see `fulcrum.core.messages.layout.flatten_arrays`. None
            for a plan that protects persons.
        plan: The plan of the release. A research plan, for simulations, requires seeded noise; a deployment plan, for
            silos with real data, refuses seeded noise.
        silo: The silo of the update.
        round_number: The round, from 1.
        gradients: For a plan that protects persons: one row of d coordinates for each person, as flat arrays or as
            matrices of several rows, read once. A row is the step that the person's records alone would take: minus
            the gradient of the loss of all the person's records at the global model, neither clipped nor divided.
        model: With `gradients`: arrays with the names and shapes of the model; by default one array of d coordinates.
        ledger: The silo's ledger; required in deployment, refused in research.
        noise: `SeededNoise` in research; in deployment `SecureNoise`, the default.
        policy: The silo's policy; refused in research. Limits and keys are checked before the first release under a
            plan, the number of all releases before every release.
        input_digest: The digest of all inputs of the update from the server, such as the global model.
        masked: True if the release leaves the silo masked, as `MaskedSilo` sends releases. A plan for masked sums
            requires True, and any other plan requires False.
    """
    plan = verified_plan(plan, error=ReleaseError)
    index = plan.index_of(silo, ReleaseError)
    if masked and not plan.is_masked:
        raise ReleaseError("release.masked-unexpected", aggregation=plan.aggregation)
    if not masked and plan.is_masked:
        raise ReleaseError("release.masking-missing")
    round_number = checked_round(plan, round_number, silo)
    _check_unit(plan, update, gradients, model)
    if plan.is_research:
        if ledger is not None or policy is not None:
            raise ReleaseError("release.plan-for-research")
        return _research_release(update, gradients, model, plan, index, round_number, noise)
    if isinstance(noise, SeededNoise):  # anyone with the seed could draw the noise again and subtract it
        raise ReleaseError("release.noise-seeded")
    if noise is not None and type(noise) is not SecureNoise:  # a subclass could draw known or narrower noise
        raise ReleaseError("release.noise-type", type_name=type(noise).__name__)
    if not plan.silos_draw_noise:
        raise ReleaseError("release.noise-not-of-silos")
    ledger = _own_ledger(ledger, silo)
    parameters = release_parameters_of(plan, silo, round_number, policy=policy)
    signal: FloatArray | GradientSum
    if gradients is None:
        layout, signal = flatten_arrays(_present(update))
    else:
        layout = _layout_of_rows(plan, model)
    if cached_release := _cached_release(parameters, layout, round_number, ledger, policy, input_digest):
        return cached_release
    if gradients is not None:
        signal = _sum_of(gradients, layout, plan, silo, round_number)
    new_release = _lattice_release(signal, layout, parameters, round_number)
    del signal  # the bytes of a large release need the memory of the update
    payload, cost = new_release.to_bytes(), parameters.cost
    with ledger.holding():
        # A second check: another thread may have released this round while this thread drew its noise. An observer of
        # two releases of an update could average their noise away.
        if cached_release := _cached_release(parameters, layout, round_number, ledger, policy, input_digest):
            return cached_release
        digest = _entry_digest(layout, input_digest)
        ledger.record(parameters.allowance, round_number=round_number, input_digest=digest, payload=payload, cost=cost)
    return new_release


def prepared_release(
    model: Update,
    plan: VerifiedPlan,
    silo: str,
    round_number: int,
    *,
    ledger: Ledger,
    policy: Policy | None = None,
    input_digest: str = "",
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
        input_digest: The digest of the inputs of the update, as in `release`.

    Raises:
        FulcrumError: `release` would refuse every update for this round.
    """
    round_number = checked_round(plan, round_number, silo)
    ledger = _own_ledger(ledger, silo)
    layout = layout_of(floats_by_name(model, what="model"))
    parameters = release_parameters_of(plan, silo, round_number, policy=policy)
    return _cached_release(parameters, layout, round_number, ledger, policy, input_digest)


def _own_ledger(ledger: Ledger | None, silo: str) -> Ledger:
    """Returns the silo's ledger; the ledger of another silo would return the releases of the other silo."""
    if not isinstance(ledger, Ledger):
        raise ReleaseError("release.ledger-missing")
    if ledger.silo != silo:
        raise ReleaseError("ledger.other-silo", file=ledger.path, owner=ledger.silo, silo=silo)
    return ledger


def _cached_release(
    parameters: ReleaseParameters, layout: Layout, round_number: int, ledger: Ledger, policy: Policy | None, digest: str
) -> Release | None:
    """Returns the round's release from the ledger, or None if a new release is allowed; raises if not."""
    allowance = parameters.allowance
    with ledger.holding():
        _check_layout(parameters, layout, ledger)
        payload = ledger.stored_payload(allowance, round_number, _entry_digest(layout, digest))
        if payload is not None:
            return Release.from_bytes(payload)
        if policy is not None:
            policy.check_releases(parameters.silo, parameters.rounds, ledger.releases_besides(parameters.plan_digest))
        ledger.enter_plan(allowance, earlier_units=() if policy is None else policy.earlier_units)
        refusal = ledger.would_exceed(allowance, parameters.cost, round_number)
    if refusal is not None:
        raise RefusedReleaseError.at("", refusal)
    return None


def _entry_digest(layout: Layout, input_digest: str) -> str:
    """Returns the input digest of a ledger entry: the digest of the layout, and the digest of the update's inputs."""
    return f"{layout.digest} {input_digest}"


def _check_layout(parameters: ReleaseParameters, layout: Layout, ledger: Ledger) -> None:
    if layout.parameters != parameters.parameters:
        raise ReleaseError("release.parameters-differ", parameters=layout.parameters, expected=parameters.parameters)
    for entry in ledger.entries():
        if entry.plan_digest == parameters.plan_digest and entry.input_digest.split(" ")[0] != layout.digest:
            raise ReleaseError("release.layout-differs", round_number=entry.round_number)


def _check_unit(plan: VerifiedPlan, update: Update | None, gradients: object, model: Update | None) -> None:
    """Raises `ReleaseError` unless rows come for a plan that protects persons, and an update for any other plan."""
    if not plan.unit.is_within_silo:
        if gradients is not None or model is not None:
            raise ReleaseError("release.gradients-unexpected")
        return
    if update is not None or gradients is None:  # the clip of an update that mixes persons bounds no person
        raise ReleaseError("release.gradients-missing", unit=plan.unit.noun)


def _present(update: Update | None) -> Update:
    if update is None:
        raise ReleaseError("arrays.missing", noun="update")
    return update


def _layout_of_rows(plan: VerifiedPlan, model: Update | None) -> Layout:
    """Returns the layout of a model, or of one array of the plan's coordinates."""
    if model is not None:
        return layout_of(floats_by_name(model, what="model"))
    if plan.parameters is None:
        raise ReleaseError("release.model-missing")
    return layout_of({"update": np.broadcast_to(0.0, plan.parameters)})


def _sum_of(
    gradients: Iterable[Any] | GradientSum, layout: Layout, plan: VerifiedPlan, silo: str, round_number: int
) -> GradientSum:
    """Returns the clipped sum of rows; refuses a sum that was made for another release."""
    if not isinstance(gradients, GradientSum):
        return GradientSum(gradients, layout, plan, silo, round_number)
    if type(gradients) is not GradientSum:  # a subclass could hold a sum that nobody clipped
        raise ReleaseError("release.gradients-type", type_name=type(gradients).__name__)
    # A sum of another plan has another clip, weight and lattice.
    if gradients.release_key != (plan.digest, silo, round_number, layout.digest):
        raise ReleaseError("release.sum-of-other-release", silo=silo, round_number=round_number)
    return gradients


def _checked_rows(gradients: Iterable[Any], parameters: int) -> Iterator[FloatArray]:
    """Yields matrices of rows; types and shapes alone decide on a refusal, never a value."""
    if isinstance(gradients, np.ndarray):
        gradients = [gradients]
    if isinstance(gradients, Mapping | str | bytes) or not isinstance(gradients, Iterable):
        raise ReleaseError("release.gradients-type", type_name=type(gradients).__name__)
    for block in gradients:
        rows = np.atleast_2d(as_floats(block, "a row of the gradients", ReleaseError))
        if rows.ndim != 2 or rows.shape[1] != parameters:
            raise ReleaseError("release.row-shape", shape=np.shape(block), parameters=parameters)
        yield rows


def _research_release(
    update: Update | None,
    gradients: Iterable[Any] | GradientSum | None,
    model: Update | None,
    plan: VerifiedPlan,
    index: int,
    round_number: int,
    noise: SeededNoise | SecureNoise | None,
) -> Release:
    if not isinstance(noise, SeededNoise):
        raise ReleaseError("release.noise-not-seeded")
    mechanism, silo = seeded_mechanism(plan, index, noise, round_number), plan.federation.silo_name(index)
    if gradients is None:
        layout, flat = flatten_arrays(_present(update))
        values = apply_mechanism(mechanism, flat)
    else:
        layout = _layout_of_rows(plan, model)
        values = _sum_of(gradients, layout, plan, silo, round_number).values(mechanism)
    inner = plan.federation.innermost
    return Release(
        plan_digest=plan.digest,
        silo=silo,
        region=inner.nodes[inner.parent_of[index]],
        round_number=round_number,
        layout=layout,
        values=values,
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
        noise_multiplier=multiplier_of_round(plan, index, round_number),
        largest_sum=float(plan.largest_sums[index]),
        draw=lambda shape: noise.standard_normal(round_number=round_number, block=index, shape=shape),
    )


def _lattice_release(
    signal: FloatArray | GradientSum, layout: Layout, parameters: ReleaseParameters, round_number: int
) -> Release:
    """Returns the deployed release of an update, or of the clipped gradients of all persons.

    An update that is not finite is released as zero plus noise, with an alarm.
    """
    text = "the update of round %d is not finite: zero plus noise is released in its place"
    if isinstance(signal, GradientSum):
        values = signal.values(parameters)
    else:
        values = apply_mechanism(parameters, signal, on_diverged=lambda: sound_alarm(text, round_number))
    return Release(
        plan_digest=parameters.plan_digest,
        silo=parameters.silo,
        region=parameters.region,
        round_number=round_number,
        layout=layout,
        values=values,
        step=parameters.step,
    )
