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
    DataError,
    DivergedUpdateError,
    EngineError,
    ExchangeError,
    FederationError,
    ForeignPlanError,
    FulcrumError,
    MissingExtraError,
    OverlapError,
    ParameterError,
    PlanError,
    PolicyError,
    ReleaseError,
    SignatureError,
    UnreachableTargetError,
)
from fulcrum.exposure import Exposure, dispersion, exposure_of
from fulcrum.federation import Federation, Tier
from fulcrum.leakage import (
    CouplingCost,
    Informativeness,
    cost_of_coupling,
    finest_resolution,
    information_bound,
    informativeness,
    mechanism_information,
    multiplier_for_information,
    quantised_entropy,
)
from fulcrum.ledger import Allowance, Cost, Ledger
from fulcrum.noise import SecureNoise, SeededNoise
from fulcrum.planfile import PlanFile, package_version
from fulcrum.planning import plan
from fulcrum.plans import Plan, read_plan
from fulcrum.policy import Policy, read_policy
from fulcrum.prior import Coupling, lateral_floor, prior_entropy
from fulcrum.profiles import PROFILES
from fulcrum.readers import read_federation
from fulcrum.releasing import Release, release
from fulcrum.replanning import replan
from fulcrum.reports import report
from fulcrum.signing import check_signature, new_key, read_signed_plan, sign_plan
from fulcrum.training.runs import TrainingRun, train
from fulcrum.training.tasks import Task, load_task
from fulcrum.training.trials import TrainedComparison, compare_trained
from fulcrum.verification import Change, Check, changes, verify

__version__ = package_version()

__all__ = [
    "ACCOUNTANTS",
    "ALLOCATIONS",
    "PROFILES",
    "Advice",
    "AllocationError",
    "Allowance",
    "Change",
    "Check",
    "Comparison",
    "Cost",
    "Coupling",
    "CouplingCost",
    "DataError",
    "DivergedUpdateError",
    "EngineError",
    "ExchangeError",
    "Exposure",
    "Federation",
    "FederationError",
    "ForeignPlanError",
    "FulcrumError",
    "Informativeness",
    "Ledger",
    "Merge",
    "MissingExtraError",
    "ObserverPower",
    "OverlapError",
    "ParameterError",
    "Plan",
    "PlanError",
    "PlanFile",
    "Policy",
    "PolicyError",
    "Release",
    "ReleaseError",
    "Requirement",
    "SecureNoise",
    "SeededNoise",
    "SignatureError",
    "Task",
    "Tier",
    "TrainedComparison",
    "TrainingRun",
    "UnreachableTargetError",
    "allocate",
    "best_merge",
    "changes",
    "check_signature",
    "compare",
    "compare_trained",
    "cost_of_coupling",
    "dispersion",
    "epsilon_of",
    "exposure_of",
    "finest_resolution",
    "information_bound",
    "informativeness",
    "lateral_floor",
    "load_task",
    "mechanism_information",
    "multiplier_for_information",
    "new_key",
    "noise_for",
    "observer_power",
    "observer_power_at",
    "plan",
    "prior_entropy",
    "quantised_entropy",
    "read_federation",
    "read_plan",
    "read_policy",
    "read_signed_plan",
    "release",
    "replan",
    "report",
    "sign_plan",
    "signal_to_noise",
    "train",
    "verify",
]
