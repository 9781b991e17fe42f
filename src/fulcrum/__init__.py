"""Topology-aware differential privacy for hierarchical federated learning.

>>> import fulcrum
>>> plan = fulcrum.plan("consortium", rounds=10, epsilon=1.0)
>>> f"{plan.saving:.0%} less noise than one multiplier for all"
'88% less noise than one multiplier for all'
"""

from fulcrum.accounting import ACCOUNTANTS, ObserverPower, epsilon_of, noise_for, observer_power, observer_power_at
from fulcrum.advice import Advice, Merge, best_merge, signal_to_noise
from fulcrum.allocation import ALLOCATIONS, Requirement, allocate
from fulcrum.comparison import Comparison, compare
from fulcrum.errors import (
    AllocationError,
    FederationError,
    ForeignPlanError,
    FulcrumError,
    MissingExtraError,
    OverlapError,
    ParameterError,
    PlanError,
    UnreachableTargetError,
)
from fulcrum.exposure import Exposure, dispersion, exposure_of
from fulcrum.federation import Federation, Tier
from fulcrum.leakage import (
    Coupling,
    Informativeness,
    cost_of_coupling,
    finest_resolution,
    information_bound,
    informativeness,
    lateral_floor,
    mechanism_information,
    multiplier_for_information,
    prior_entropy,
    quantised_entropy,
)
from fulcrum.planfile import package_version
from fulcrum.planning import Plan, plan, read_plan
from fulcrum.profiles import PROFILES
from fulcrum.readers import read_federation
from fulcrum.verification import Change, Check, changes, verify

__version__ = package_version()

__all__ = [
    "ACCOUNTANTS",
    "ALLOCATIONS",
    "PROFILES",
    "Advice",
    "AllocationError",
    "Change",
    "Check",
    "Comparison",
    "Coupling",
    "Exposure",
    "Federation",
    "FederationError",
    "ForeignPlanError",
    "FulcrumError",
    "Informativeness",
    "Merge",
    "MissingExtraError",
    "ObserverPower",
    "OverlapError",
    "ParameterError",
    "Plan",
    "PlanError",
    "Requirement",
    "Tier",
    "UnreachableTargetError",
    "allocate",
    "best_merge",
    "changes",
    "compare",
    "cost_of_coupling",
    "dispersion",
    "epsilon_of",
    "exposure_of",
    "finest_resolution",
    "information_bound",
    "informativeness",
    "lateral_floor",
    "mechanism_information",
    "multiplier_for_information",
    "noise_for",
    "observer_power",
    "observer_power_at",
    "plan",
    "prior_entropy",
    "quantised_entropy",
    "read_federation",
    "read_plan",
    "signal_to_noise",
    "verify",
]
