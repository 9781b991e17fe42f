"""Checks that the settings of a plan fit together and fit the federation, before any noise is solved for.

Plan files have separate checks in `fulcrum.core.plan.verification`, because a silo trusts no planner.
"""

from collections.abc import Mapping

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import AGGREGATIONS, DECLARED, LARGEST, PRIORS, SHRINKS
from fulcrum.core.masking.masking_thresholds import silos_of_one_key, tolerates
from fulcrum.core.plan.plan_file import key_bytes
from fulcrum.core.privacy_unit import SILO_UNIT
from fulcrum.core.rosters import MOST_LOST
from fulcrum.core.topology import ROOT, SILO, Topology, name_problem
from fulcrum.errors import ParameterError, UnreachableTargetError, check_known, listing
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.inside_observer import inside_observer
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.theory.allocation import Requirement
from fulcrum.planning.theory.scheduling import check_supported
from fulcrum.rules.rule_registry import rule_named

_MOST_PERSONS = 1e12


def check_settings(federation: Topology, target: Target, execution: Execution) -> None:
    """Raises unless the target, the server rule and the kind of sums fit together and fit the federation.

    Raises:
        ParameterError: Settings contradict each other.
        UnreachableTargetError: No amount of noise meets the target.
    """
    _check_target(federation, target, execution.injection)
    _check_server(federation, target, execution)
    _check_masking(federation, target, execution)


def check_schedule(federation: Topology, target: Target, execution: Execution) -> None:
    """Raises `ParameterError` if membership changes under settings without a proof for the noise of phases."""
    if federation.rosters is not None:
        check_supported(_usual_with_schedule(federation, target, execution))


def is_one_group(federation: Topology, target: Target) -> bool:
    """Returns True if a target masks all silos as one group: masked sums, and a target on the federation alone."""
    if target.aggregation != "masked" or target.budget is not None:
        return False
    return target.requirement(federation).group_tier(federation) == ROOT


def declared_persons(federation: Topology, target: Target) -> FloatArray | None:
    """Returns by silo the declared number of persons, a public figure; None if silos are protected.

    Raises:
        ParameterError: No number is declared, two numbers are declared, or a number is out of its range.
    """
    declared, most = target.persons_per_silo, target.silo_clip
    if not target.unit.is_within_silo:
        if declared is not None or most is not None or target.silo_epsilon is not None:
            raise ParameterError("unit.silo-alone", unit=target.unit.name)
        return None
    for name, value in (("persons_per_silo", declared), ("silo_clip", most)):
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if value is not None and not (number and 1 <= value <= _MOST_PERSONS):
            raise ParameterError("unit.persons-range", name=name, value=value, most=_MOST_PERSONS)
    if declared is not None:
        if federation.sizes_known:
            raise ParameterError("unit.persons-twice", unit=target.unit.noun)
        return np.full(len(federation), float(declared))
    if not federation.sizes_known:
        raise ParameterError("unit.persons-missing", unit=target.unit.noun)
    if federation.sizes.min() < 1:
        silo = federation.silo_name(int(np.argmin(federation.sizes)))
        raise ParameterError("unit.persons-below-one", silo=silo, persons=float(federation.sizes.min()))
    return federation.sizes


def _usual_with_schedule(federation: Topology, target: Target, execution: Execution) -> dict[str, bool]:
    """Returns by setting True if the value has a proof where membership changes, as plan files are read."""
    inner, weights = federation.innermost.name, execution.weights
    plain = weights in ("sizes", "equal", DECLARED) if isinstance(weights, str) else isinstance(weights, Mapping)
    return {
        "targets": set(target.epsilon) <= {SILO, inner} and target.silo_epsilon is None,
        "unit": target.unit == SILO_UNIT,
        "colluders": target.colluders + target.dropouts <= MOST_LOST,
        "injection": execution.injection == "silo",
        "information": target.information is None and target.floor is None,
        "budget": target.budget is None,
        "weights": plain and not execution.least_influence,
        "clip_norm": execution.clip_norm != "auto",
        "server": execution.server == "sum",
        "allocation": execution.allocation in ("optimal", "uniform"),
    }


def _check_target(federation: Topology, target: Target, injection: str) -> None:
    """Raises unless every silo has a target, and the targets fit each other and the injection."""
    if target.spent and (target.information is not None or target.budget is not None):
        raise ParameterError("plan.spent-without-epsilon")
    if injection == "aggregator" and SILO in target.epsilon:
        raise UnreachableTargetError("plan.updates-bare", observer=inside_observer(federation, target.aggregation))
    if target.unit.is_within_silo and (target.information is not None or target.floor is not None):
        raise ParameterError("plan.unit-unsupported", unit=target.unit.name)
    if target.unit.is_within_silo and injection == "aggregator":
        raise ParameterError("plan.unit-injection", unit=target.unit.name)
    if target.budget is not None and (target.epsilon or target.information is not None):
        raise ParameterError("plan.budget-with-target")
    if target.budget is None and not target.epsilon and target.information is None:
        bare = np.isnan(federation.preferences) if federation.preferences is not None else np.ones(1, dtype=bool)
        if bare.any():  # a silo without a target would send its updates without noise
            if federation.preferences is None:
                raise ParameterError("plan.target-missing")
            raise ParameterError("plan.silo-target-missing", silo=federation.silo_name(int(np.argmax(bare))))


def _check_server(federation: Topology, target: Target, execution: Execution) -> None:
    """Raises unless the server rule costs no privacy."""
    rule = rule_named(execution.server)
    names = [name for name in SHRINKS if isinstance(name, str)]
    if not isinstance(execution.shrink, bool) and execution.shrink not in names:
        raise ParameterError("plan.shrink-invalid", names=listing(map(repr, names)), shrink=execution.shrink)
    if execution.shrink in PRIORS:
        _check_prior(execution, target.parameters)
    if rule.adds_up:
        return
    if execution.injection != "silo":
        raise ParameterError("plan.injection-unsupported", server=execution.server)
    outside = [tier for tier in target.epsilon if tier not in (SILO, federation.innermost.name)]
    # With one masked group the global sum stands for the sums of regions, which a rule of one's own may count on.
    reads_one_sum = execution.server == "random-effects" or not rule.reads_regions
    if outside and not (reads_one_sum and is_one_group(federation, target)):
        raise UnreachableTargetError(
            "plan.server-reveals-sums",
            server=execution.server,
            verb="reads" if rule.reads_regions else "counts as a rule that reads",
            region=federation.innermost.name,
            tier=outside[0],
        )


def _check_prior(execution: Execution, parameters: int | None) -> None:
    """Raises unless the spectrum prior has public variances of the inputs of a head, and a server that reads them."""
    spectrum = execution.spectrum
    if spectrum is None:
        raise ParameterError("plan.spectrum-missing")
    if not rule_named(execution.server).takes_shrink:
        raise ParameterError("plan.spectrum-server", server=execution.server)
    if execution.purpose == "deployment" and spectrum.origin != "public":
        raise ParameterError("plan.spectrum-origin", source=spectrum.source)
    if not all(0 < variance <= LARGEST for variance in spectrum.variances) or not spectrum.variances:
        raise ParameterError("plan.spectrum-range", most=LARGEST)
    if rule := name_problem(spectrum.source):
        raise ParameterError("plan.name-invalid", rule=rule, name=spectrum.source)
    inputs = len(spectrum.variances)
    if parameters is not None and parameters % (inputs + 1) and parameters % inputs:
        raise ParameterError("plan.spectrum-length", inputs=inputs, source=spectrum.source, parameters=parameters)


def _check_masking(federation: Topology, target: Target, execution: Execution) -> None:
    """Raises `ParameterError` if sums of a group cannot be masked while the allowed number of silos is missing."""
    check_known("aggregation", target.aggregation, AGGREGATIONS)
    if target.aggregation == "trusted":
        return
    silos = federation.silo_names.tolist()
    keys = {silo: key_bytes(execution.keys[silo]) for silo in silos if silo in execution.keys}
    if garbled := next((silo for silo, key in keys.items() if key is None), None):
        raise ParameterError("plan.mask-key-invalid", silo=garbled)
    if pair := silos_of_one_key(silos, keys):
        raise ParameterError("plan.mask-key-shared", silo=pair[0], other_silo=pair[1])
    if execution.injection != "silo":
        raise ParameterError("plan.masked-injection")
    inner = federation.innermost
    if target.budget is None:
        _check_met_by_the_server(federation, target.requirement(federation))
    whole, rosters = is_one_group(federation, target), federation.rosters
    present = np.ones((1, len(federation)), dtype=bool) if rosters is None else rosters.present
    sizes = np.array([np.bincount(inner.parent_of[there], minlength=len(inner.nodes)) for there in present])
    named = [(ROOT, sizes[0])] if whole else []
    for region, name in enumerate(() if whole else inner.nodes):
        named += [(name, np.array([size])) for size in np.unique(sizes[:, region]).tolist()]  # of any round
    for name, parts in named:
        members = int(parts.sum())
        colluders = int(np.minimum(max(1, target.colluders), parts).sum())  # as many as the observer inside has
        dropouts = int(np.minimum(target.dropouts, parts).sum())
        if not tolerates(members, colluders=min(colluders, members - 1), dropouts=min(dropouts, members - 1)):
            raise UnreachableTargetError(
                "plan.group-too-small",
                group=name,
                silos=members,
                dropouts=dropouts,
                colluders=colluders,
                tier=inner.name,
            )


def _check_met_by_the_server(federation: Topology, requirement: Requirement) -> None:
    """Raises unless every silo has a target against the server, which gets the sum of the silo's masked group.

    A declared epsilon is a target on the innermost tier. Beside a target on the federation alone, a declared epsilon
    would have every region masked by itself, and a silo without a declared epsilon would have no required noise in the
    sum of its region.
    """
    tier = requirement.group_tier(federation)
    required = np.maximum(requirement.multiplier.get(tier, 0.0), requirement.multiplier.get(SILO, 0.0))
    bare = ~(np.broadcast_to(required, len(federation)) > 0)
    if bare.any():
        name = federation.silo_name(int(np.argmax(bare)))
        raise UnreachableTargetError("plan.masked-target-missing", silo=name, tier=tier, root=ROOT)
