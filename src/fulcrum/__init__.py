"""Topology-aware differential privacy for hierarchical federated learning.

>>> import fulcrum
>>> plan = fulcrum.plan("consortium", rounds=10, epsilon=1.0)
>>> f"{plan.saving:.0%} less noise than one multiplier for all"
'88% less noise than one multiplier for all'

A public name is imported when it is first asked for: `import fulcrum` alone loads nothing else.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see
    from fulcrum.checks import Check as Check
    from fulcrum.errors import AllocationError as AllocationError
    from fulcrum.errors import DataError as DataError
    from fulcrum.errors import DivergedUpdateError as DivergedUpdateError
    from fulcrum.errors import EngineError as EngineError
    from fulcrum.errors import ExchangeError as ExchangeError
    from fulcrum.errors import FederationError as FederationError
    from fulcrum.errors import FileInUseError as FileInUseError
    from fulcrum.errors import ForeignPlanError as ForeignPlanError
    from fulcrum.errors import FulcrumError as FulcrumError
    from fulcrum.errors import LedgerError as LedgerError
    from fulcrum.errors import LedgerInUseError as LedgerInUseError
    from fulcrum.errors import MissingExtraError as MissingExtraError
    from fulcrum.errors import OverlapError as OverlapError
    from fulcrum.errors import ParameterError as ParameterError
    from fulcrum.errors import PlanError as PlanError
    from fulcrum.errors import PolicyError as PolicyError
    from fulcrum.errors import RefusedReleaseError as RefusedReleaseError
    from fulcrum.errors import ReleaseError as ReleaseError
    from fulcrum.errors import SignatureError as SignatureError
    from fulcrum.errors import StorageError as StorageError
    from fulcrum.errors import UnreachableTargetError as UnreachableTargetError
    from fulcrum.estimation.server import ServerRule as ServerRule
    from fulcrum.exchange.answer import RegionalSum as RegionalSum
    from fulcrum.exchange.answer import Withheld as Withheld
    from fulcrum.exchange.layout import Layout as Layout
    from fulcrum.exchange.release import Release as Release
    from fulcrum.federation.profiles import PROFILES as PROFILES
    from fulcrum.federation.reading import FederationReading as FederationReading
    from fulcrum.federation.reading import read_federation as read_federation
    from fulcrum.federation.reading import reading_of as reading_of
    from fulcrum.federation.structure import Federation as Federation
    from fulcrum.federation.structure import Tier as Tier
    from fulcrum.ledger.entries import Allowance as Allowance
    from fulcrum.ledger.entries import Assumptions as Assumptions
    from fulcrum.ledger.entries import Cost as Cost
    from fulcrum.ledger.entries import Entry as Entry
    from fulcrum.ledger.ledger import Ledger as Ledger
    from fulcrum.ledger.ledger import Recorded as Recorded
    from fulcrum.ledger.ledger import verify_ledger as verify_ledger
    from fulcrum.noise.sources import SecureNoise as SecureNoise
    from fulcrum.noise.sources import SeededNoise as SeededNoise
    from fulcrum.planning.advice import Advice as Advice
    from fulcrum.planning.comparing import Comparison as Comparison
    from fulcrum.planning.comparing import compare as compare
    from fulcrum.planning.differences import Difference as Difference
    from fulcrum.planning.differences import differences as differences
    from fulcrum.planning.making import plan as plan
    from fulcrum.planning.plan import Plan as Plan
    from fulcrum.planning.plan_file import PlanFile as PlanFile
    from fulcrum.planning.plan_reading import read_plan as read_plan
    from fulcrum.planning.signing import check_signature as check_signature
    from fulcrum.planning.signing import new_key as new_key
    from fulcrum.planning.signing import read_signed_plan as read_signed_plan
    from fulcrum.planning.signing import sign_plan as sign_plan
    from fulcrum.planning.targets import Target as Target
    from fulcrum.planning.verifying import verify as verify
    from fulcrum.privacy.accounting import ACCOUNTANTS as ACCOUNTANTS
    from fulcrum.privacy.accounting import ObserverPower as ObserverPower
    from fulcrum.privacy.accounting import epsilon_of as epsilon_of
    from fulcrum.privacy.accounting import noise_for as noise_for
    from fulcrum.privacy.accounting import observer_power as observer_power
    from fulcrum.privacy.accounting import observer_power_at as observer_power_at
    from fulcrum.privacy.allocation import ALLOCATIONS as ALLOCATIONS
    from fulcrum.privacy.allocation import Requirement as Requirement
    from fulcrum.privacy.allocation import allocate as allocate
    from fulcrum.privacy.exposure import Exposure as Exposure
    from fulcrum.privacy.exposure import dispersion as dispersion
    from fulcrum.privacy.exposure import exposure_of as exposure_of
    from fulcrum.privacy.prior import Coupling as Coupling
    from fulcrum.roles.masked_round import MaskedRound as MaskedRound
    from fulcrum.roles.masked_silo import MaskedSilo as MaskedSilo
    from fulcrum.roles.policy import Policy as Policy
    from fulcrum.roles.policy import read_policy as read_policy
    from fulcrum.roles.releasing import release as release
    from fulcrum.roles.replanning import replan as replan
    from fulcrum.simulation.datasets import dataset_task as dataset_task
    from fulcrum.simulation.engine import LocalTraining as LocalTraining
    from fulcrum.simulation.models import Model as Model
    from fulcrum.simulation.runs import TrainingRun as TrainingRun
    from fulcrum.simulation.runs import train as train
    from fulcrum.simulation.tasks import Task as Task
    from fulcrum.simulation.tasks import load_task as load_task
    from fulcrum.simulation.torch_engine import TorchDevice as TorchDevice
    from fulcrum.simulation.torch_model import TorchModel as TorchModel
    from fulcrum.simulation.torch_model import torch_model as torch_model
    from fulcrum.simulation.trials import TrainedComparison as TrainedComparison
    from fulcrum.simulation.trials import compare_trained as compare_trained
    from fulcrum.simulation.tuning import Try as Try
    from fulcrum.simulation.tuning import Tuned as Tuned
    from fulcrum.simulation.tuning import tune as tune
    from fulcrum.views.report import report as report

    __version__: str

_MODULES = {
    "ACCOUNTANTS": "privacy.accounting",
    "ALLOCATIONS": "privacy.allocation",
    "PROFILES": "federation.profiles",
    "Advice": "planning.advice",
    "AllocationError": "errors",
    "Allowance": "ledger.entries",
    "Assumptions": "ledger.entries",
    "Check": "checks",
    "Comparison": "planning.comparing",
    "Cost": "ledger.entries",
    "Coupling": "privacy.prior",
    "DataError": "errors",
    "Difference": "planning.differences",
    "DivergedUpdateError": "errors",
    "EngineError": "errors",
    "Entry": "ledger.entries",
    "ExchangeError": "errors",
    "Exposure": "privacy.exposure",
    "Federation": "federation.structure",
    "FederationError": "errors",
    "FederationReading": "federation.reading",
    "FileInUseError": "errors",
    "ForeignPlanError": "errors",
    "FulcrumError": "errors",
    "Layout": "exchange.layout",
    "Ledger": "ledger.ledger",
    "LedgerError": "errors",
    "LedgerInUseError": "errors",
    "LocalTraining": "simulation.engine",
    "MaskedRound": "roles.masked_round",
    "MaskedSilo": "roles.masked_silo",
    "MissingExtraError": "errors",
    "Model": "simulation.models",
    "ObserverPower": "privacy.accounting",
    "OverlapError": "errors",
    "ParameterError": "errors",
    "Plan": "planning.plan",
    "PlanError": "errors",
    "PlanFile": "planning.plan_file",
    "Policy": "roles.policy",
    "PolicyError": "errors",
    "Recorded": "ledger.ledger",
    "RefusedReleaseError": "errors",
    "RegionalSum": "exchange.answer",
    "Release": "exchange.release",
    "ReleaseError": "errors",
    "Requirement": "privacy.allocation",
    "SecureNoise": "noise.sources",
    "SeededNoise": "noise.sources",
    "ServerRule": "estimation.server",
    "SignatureError": "errors",
    "StorageError": "errors",
    "Target": "planning.targets",
    "Task": "simulation.tasks",
    "Tier": "federation.structure",
    "TorchDevice": "simulation.torch_engine",
    "TorchModel": "simulation.torch_model",
    "TrainedComparison": "simulation.trials",
    "TrainingRun": "simulation.runs",
    "Try": "simulation.tuning",
    "Tuned": "simulation.tuning",
    "UnreachableTargetError": "errors",
    "Withheld": "exchange.answer",
    "allocate": "privacy.allocation",
    "check_signature": "planning.signing",
    "compare": "planning.comparing",
    "compare_trained": "simulation.trials",
    "dataset_task": "simulation.datasets",
    "differences": "planning.differences",
    "dispersion": "privacy.exposure",
    "epsilon_of": "privacy.accounting",
    "exposure_of": "privacy.exposure",
    "load_task": "simulation.tasks",
    "new_key": "planning.signing",
    "noise_for": "privacy.accounting",
    "observer_power": "privacy.accounting",
    "observer_power_at": "privacy.accounting",
    "plan": "planning.making",
    "read_federation": "federation.reading",
    "read_plan": "planning.plan_reading",
    "read_policy": "roles.policy",
    "read_signed_plan": "planning.signing",
    "reading_of": "federation.reading",
    "release": "roles.releasing",
    "replan": "roles.replanning",
    "report": "views.report",
    "sign_plan": "planning.signing",
    "torch_model": "simulation.torch_model",
    "train": "simulation.runs",
    "tune": "simulation.tuning",
    "verify": "planning.verifying",
    "verify_ledger": "ledger.ledger",
}
"""The public names, and the module that each is in."""

__all__ = list(_MODULES)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "__version__":
            return import_module("fulcrum.version").package_version()
        if name not in _MODULES:
            raise AttributeError(f"module 'fulcrum' has no attribute {name!r}")
        globals()[name] = getattr(import_module(f"fulcrum.{_MODULES[name]}"), name)  # asked for once
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})
