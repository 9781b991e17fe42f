"""Topology-aware differential privacy for hierarchical federated learning.

>>> import fulcrum
>>> plan = fulcrum.plan("consortium", rounds=10, epsilon=1.0)
>>> f"{plan.saving:.0%} less noise than one multiplier for all"
'88% less noise than one multiplier for all'
"""

from fulcrum.errors import (
    AllocationError,
    DataError,
    DivergedUpdateError,
    EngineError,
    ExchangeError,
    FederationError,
    FileInUseError,
    ForeignPlanError,
    FulcrumError,
    LedgerError,
    LedgerInUseError,
    MissingExtraError,
    OverlapError,
    ParameterError,
    PlanError,
    PolicyError,
    RefusedReleaseError,
    ReleaseError,
    SignatureError,
    StorageError,
    UnreachableTargetError,
)
from fulcrum.exchange.layout import Layout
from fulcrum.exchange.release import Release
from fulcrum.federation.profiles import PROFILES
from fulcrum.federation.reading import read_federation
from fulcrum.federation.structure import Federation, Tier
from fulcrum.ledger.entries import Allowance, Cost, Entry
from fulcrum.ledger.ledger import Ledger, LedgerCheck, Recorded, verify_ledger
from fulcrum.noise.sources import SecureNoise, SeededNoise
from fulcrum.planning.advice import Advice, Merge, best_merge, signal_to_noise
from fulcrum.planning.comparing import Comparison, compare
from fulcrum.planning.making import plan
from fulcrum.planning.plan import Plan, read_plan
from fulcrum.planning.plan_file import PlanFile, package_version
from fulcrum.planning.signing import check_signature, new_key, read_signed_plan, sign_plan
from fulcrum.planning.verifying import Change, Check, changes, verify
from fulcrum.privacy.accounting import (
    ACCOUNTANTS,
    ObserverPower,
    epsilon_of,
    noise_for,
    observer_power,
    observer_power_at,
)
from fulcrum.privacy.allocation import ALLOCATIONS, Requirement, allocate
from fulcrum.privacy.exposure import Exposure, dispersion, exposure_of
from fulcrum.privacy.leakage import (
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
from fulcrum.privacy.prior import Coupling, lateral_floor, prior_entropy
from fulcrum.roles.policy import Policy, read_policy
from fulcrum.roles.releasing import release
from fulcrum.roles.replanning import replan
from fulcrum.simulation.runs import TrainingRun, train
from fulcrum.simulation.tasks import Task, load_task
from fulcrum.simulation.trials import TrainedComparison, compare_trained
from fulcrum.views.report import report

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
    "Entry",
    "ExchangeError",
    "Exposure",
    "Federation",
    "FederationError",
    "FileInUseError",
    "ForeignPlanError",
    "FulcrumError",
    "Informativeness",
    "Layout",
    "Ledger",
    "LedgerCheck",
    "LedgerError",
    "LedgerInUseError",
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
    "Recorded",
    "RefusedReleaseError",
    "Release",
    "ReleaseError",
    "Requirement",
    "SecureNoise",
    "SeededNoise",
    "SignatureError",
    "StorageError",
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
    "verify_ledger",
]
