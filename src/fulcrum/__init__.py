"""Topology-aware differential privacy for hierarchical federated learning.

>>> import fulcrum
>>> plan = fulcrum.plan("consortium", rounds=10, epsilon=1.0)
>>> f"{plan.saving:.0%} less noise than one multiplier for all"
'88% less noise than one multiplier for all'

A public name is imported at its first use: `import fulcrum` alone loads no further module.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names for type checkers and editors, which do not run `__getattr__`
    from fulcrum.aggregation.masked_round import MaskedRound as MaskedRound
    from fulcrum.checks import Check as Check
    from fulcrum.core.choices import ACCOUNTANTS as ACCOUNTANTS
    from fulcrum.core.messages.layout import Layout as Layout
    from fulcrum.core.messages.regional_reply import RegionalSum as RegionalSum
    from fulcrum.core.messages.regional_reply import Withheld as Withheld
    from fulcrum.core.messages.release_message import Release as Release
    from fulcrum.core.noise.noise_sources import SecureNoise as SecureNoise
    from fulcrum.core.noise.noise_sources import SeededNoise as SeededNoise
    from fulcrum.core.plan.guarantee import Guarantee as Guarantee
    from fulcrum.core.plan.plan_data import PlanData as PlanData
    from fulcrum.core.plan.plan_file import PlanFile as PlanFile
    from fulcrum.core.plan.plan_file import Spectrum as Spectrum
    from fulcrum.core.plan.signatures import read_signed_plan as read_signed_plan
    from fulcrum.core.plan.verification import verify as verify
    from fulcrum.core.plan.verified_plan import VerifiedPlan as VerifiedPlan
    from fulcrum.core.plan.verified_plan import verified_plan as verified_plan
    from fulcrum.core.silo.masked_release import MaskedSilo as MaskedSilo
    from fulcrum.core.silo.policy import Policy as Policy
    from fulcrum.core.silo.policy import read_policy as read_policy
    from fulcrum.core.silo.releasing import release as release
    from fulcrum.core.store.ledger import Ledger as Ledger
    from fulcrum.core.store.ledger import Recorded as Recorded
    from fulcrum.core.store.ledger_checks import verify_ledger as verify_ledger
    from fulcrum.core.store.ledger_entries import Allowance as Allowance
    from fulcrum.core.store.ledger_entries import Assumptions as Assumptions
    from fulcrum.core.store.ledger_entries import Cost as Cost
    from fulcrum.core.store.ledger_entries import Entry as Entry
    from fulcrum.core.store.ledger_reading import read_ledger as read_ledger
    from fulcrum.core.topology import Tier as Tier
    from fulcrum.core.topology import Topology as Topology
    from fulcrum.core.training.torch_gradients import TorchGradients as TorchGradients
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
    from fulcrum.planning.comparisons.comparison import Comparison as Comparison
    from fulcrum.planning.comparisons.comparison import Comparisons as Comparisons
    from fulcrum.planning.comparisons.comparison import compare as compare
    from fulcrum.planning.content.advice import advice_on as advice_on
    from fulcrum.planning.content.plan_document import guarantee_of as guarantee_of
    from fulcrum.planning.content.plan_facts import Advice as Advice
    from fulcrum.planning.files.differences import Difference as Difference
    from fulcrum.planning.files.differences import differences as differences
    from fulcrum.planning.files.plan_from_file import read_plan as read_plan
    from fulcrum.planning.files.plan_issue import check_signature as check_signature
    from fulcrum.planning.files.plan_issue import new_key as new_key
    from fulcrum.planning.files.plan_issue import sign_plan as sign_plan
    from fulcrum.planning.inputs.settings import Settings as Settings
    from fulcrum.planning.inputs.targets import Target as Target
    from fulcrum.planning.plan import Plan as Plan
    from fulcrum.planning.plan import save_plan as save_plan
    from fulcrum.planning.planner import plan as plan
    from fulcrum.planning.regions.region_design import RegionDesign as RegionDesign
    from fulcrum.planning.regions.region_design import SiloMove as SiloMove
    from fulcrum.planning.regions.region_design import design as design
    from fulcrum.planning.replanning import replan as replan
    from fulcrum.planning.theory.allocation import ALLOCATIONS as ALLOCATIONS
    from fulcrum.planning.theory.allocation import Requirement as Requirement
    from fulcrum.planning.theory.allocation import allocate as allocate
    from fulcrum.planning.theory.calibration import epsilon_of as epsilon_of
    from fulcrum.planning.theory.calibration import noise_for as noise_for
    from fulcrum.planning.theory.exposure import Exposure as Exposure
    from fulcrum.planning.theory.exposure import dispersion as dispersion
    from fulcrum.planning.theory.exposure import exposure_of as exposure_of
    from fulcrum.planning.theory.observer_power import ObserverPower as ObserverPower
    from fulcrum.planning.theory.observer_power import observer_power as observer_power
    from fulcrum.planning.theory.observer_power import observer_power_at as observer_power_at
    from fulcrum.planning.theory.prior import Coupling as Coupling
    from fulcrum.planning.theory.schedule_program import Schedule as Schedule
    from fulcrum.planning.theory.schedule_program import ScheduleNoise as ScheduleNoise
    from fulcrum.planning.theory.schedule_program import certified_gap as certified_gap
    from fulcrum.planning.theory.schedule_program import least_noise_of_schedule as least_noise_of_schedule
    from fulcrum.readers.federation import Federation as Federation
    from fulcrum.readers.federation_reader import FederationReading as FederationReading
    from fulcrum.readers.federation_reader import read_federation as read_federation
    from fulcrum.readers.federation_reader import reading_of as reading_of
    from fulcrum.readers.profiles import PROFILES as PROFILES
    from fulcrum.readers.schedule_file import with_schedule as with_schedule
    from fulcrum.rules.rule_registry import register_server_rule as register_server_rule
    from fulcrum.rules.server_rule import PlanFacts as PlanFacts
    from fulcrum.rules.server_rule import RoundDiagnostics as RoundDiagnostics
    from fulcrum.rules.server_rule import RoundSums as RoundSums
    from fulcrum.rules.server_rule import ServerRule as ServerRule
    from fulcrum.rules.server_rule import ServerState as ServerState
    from fulcrum.simulation.data.datasets import dataset_task as dataset_task
    from fulcrum.simulation.data.eicu import read_eicu as read_eicu
    from fulcrum.simulation.data.federated_records import FederatedRecords as FederatedRecords
    from fulcrum.simulation.data.heart_disease import read_heart_disease as read_heart_disease
    from fulcrum.simulation.data.input_scaling import ScaledInputs as ScaledInputs
    from fulcrum.simulation.data.input_scaling import read_inputs as read_inputs
    from fulcrum.simulation.data.input_variances import public_spectrum as public_spectrum
    from fulcrum.simulation.data.input_variances import spectrum_of_task as spectrum_of_task
    from fulcrum.simulation.data.real_federations import read_real_federation as read_real_federation
    from fulcrum.simulation.data.tasks import Task as Task
    from fulcrum.simulation.data.tasks import load_task as load_task
    from fulcrum.simulation.data.tcga_brca import read_tcga_brca as read_tcga_brca
    from fulcrum.simulation.embedded.models import Model as Model
    from fulcrum.simulation.embedded.training_settings import GradientTraining as GradientTraining
    from fulcrum.simulation.embedded.training_settings import LocalTraining as LocalTraining
    from fulcrum.simulation.torch.torch_device import TorchDevice as TorchDevice
    from fulcrum.simulation.torch.torch_model import TorchModel as TorchModel
    from fulcrum.simulation.torch.torch_model import torch_model as torch_model
    from fulcrum.simulation.training_runs import TrainingRun as TrainingRun
    from fulcrum.simulation.training_runs import train as train
    from fulcrum.simulation.trials import TrainedComparison as TrainedComparison
    from fulcrum.simulation.trials import compare_trained as compare_trained
    from fulcrum.simulation.tuned_rows import ComparedSettings as ComparedSettings
    from fulcrum.simulation.tuned_rows import RowUnderSettings as RowUnderSettings
    from fulcrum.simulation.tuned_rows import compare_settings as compare_settings
    from fulcrum.simulation.tuning import Tuned as Tuned
    from fulcrum.simulation.tuning import tune as tune
    from fulcrum.simulation.tuning_search import Try as Try
    from fulcrum.views.report.html_report import report as report

    __version__: str

_MODULES = {
    "ACCOUNTANTS": "core.choices",
    "ALLOCATIONS": "planning.theory.allocation",
    "PROFILES": "readers.profiles",
    "Advice": "planning.content.plan_facts",
    "AllocationError": "errors",
    "Allowance": "core.store.ledger_entries",
    "Assumptions": "core.store.ledger_entries",
    "Check": "checks",
    "ComparedSettings": "simulation.tuned_rows",
    "Comparison": "planning.comparisons.comparison",
    "Comparisons": "planning.comparisons.comparison",
    "Cost": "core.store.ledger_entries",
    "Coupling": "planning.theory.prior",
    "DataError": "errors",
    "Difference": "planning.files.differences",
    "DivergedUpdateError": "errors",
    "EngineError": "errors",
    "Entry": "core.store.ledger_entries",
    "ExchangeError": "errors",
    "Exposure": "planning.theory.exposure",
    "FederatedRecords": "simulation.data.federated_records",
    "Federation": "readers.federation",
    "FederationError": "errors",
    "FederationReading": "readers.federation_reader",
    "FileInUseError": "errors",
    "ForeignPlanError": "errors",
    "FulcrumError": "errors",
    "GradientTraining": "simulation.embedded.training_settings",
    "Guarantee": "core.plan.guarantee",
    "Layout": "core.messages.layout",
    "Ledger": "core.store.ledger",
    "LedgerError": "errors",
    "LedgerInUseError": "errors",
    "LocalTraining": "simulation.embedded.training_settings",
    "MaskedRound": "aggregation.masked_round",
    "MaskedSilo": "core.silo.masked_release",
    "MissingExtraError": "errors",
    "Model": "simulation.embedded.models",
    "ObserverPower": "planning.theory.observer_power",
    "OverlapError": "errors",
    "ParameterError": "errors",
    "Plan": "planning.plan",
    "PlanData": "core.plan.plan_data",
    "PlanError": "errors",
    "PlanFacts": "rules.server_rule",
    "PlanFile": "core.plan.plan_file",
    "Policy": "core.silo.policy",
    "PolicyError": "errors",
    "Recorded": "core.store.ledger",
    "RefusedReleaseError": "errors",
    "RegionDesign": "planning.regions.region_design",
    "RegionalSum": "core.messages.regional_reply",
    "Release": "core.messages.release_message",
    "ReleaseError": "errors",
    "Requirement": "planning.theory.allocation",
    "RoundDiagnostics": "rules.server_rule",
    "RoundSums": "rules.server_rule",
    "RowUnderSettings": "simulation.tuned_rows",
    "ScaledInputs": "simulation.data.input_scaling",
    "Schedule": "planning.theory.schedule_program",
    "ScheduleNoise": "planning.theory.schedule_program",
    "SecureNoise": "core.noise.noise_sources",
    "SeededNoise": "core.noise.noise_sources",
    "ServerRule": "rules.server_rule",
    "ServerState": "rules.server_rule",
    "Settings": "planning.inputs.settings",
    "SignatureError": "errors",
    "SiloMove": "planning.regions.region_design",
    "Spectrum": "core.plan.plan_file",
    "StorageError": "errors",
    "Target": "planning.inputs.targets",
    "Task": "simulation.data.tasks",
    "Tier": "core.topology",
    "Topology": "core.topology",
    "TorchDevice": "simulation.torch.torch_device",
    "TorchGradients": "core.training.torch_gradients",
    "TorchModel": "simulation.torch.torch_model",
    "TrainedComparison": "simulation.trials",
    "TrainingRun": "simulation.training_runs",
    "Try": "simulation.tuning_search",
    "Tuned": "simulation.tuning",
    "UnreachableTargetError": "errors",
    "VerifiedPlan": "core.plan.verified_plan",
    "Withheld": "core.messages.regional_reply",
    "advice_on": "planning.content.advice",
    "allocate": "planning.theory.allocation",
    "certified_gap": "planning.theory.schedule_program",
    "check_signature": "planning.files.plan_issue",
    "compare": "planning.comparisons.comparison",
    "compare_settings": "simulation.tuned_rows",
    "compare_trained": "simulation.trials",
    "dataset_task": "simulation.data.datasets",
    "design": "planning.regions.region_design",
    "differences": "planning.files.differences",
    "dispersion": "planning.theory.exposure",
    "epsilon_of": "planning.theory.calibration",
    "exposure_of": "planning.theory.exposure",
    "guarantee_of": "planning.content.plan_document",
    "least_noise_of_schedule": "planning.theory.schedule_program",
    "load_task": "simulation.data.tasks",
    "new_key": "planning.files.plan_issue",
    "noise_for": "planning.theory.calibration",
    "observer_power": "planning.theory.observer_power",
    "observer_power_at": "planning.theory.observer_power",
    "plan": "planning.planner",
    "public_spectrum": "simulation.data.input_variances",
    "read_eicu": "simulation.data.eicu",
    "read_federation": "readers.federation_reader",
    "read_heart_disease": "simulation.data.heart_disease",
    "read_inputs": "simulation.data.input_scaling",
    "read_ledger": "core.store.ledger_reading",
    "read_plan": "planning.files.plan_from_file",
    "read_policy": "core.silo.policy",
    "read_real_federation": "simulation.data.real_federations",
    "read_signed_plan": "core.plan.signatures",
    "read_tcga_brca": "simulation.data.tcga_brca",
    "reading_of": "readers.federation_reader",
    "register_server_rule": "rules.rule_registry",
    "release": "core.silo.releasing",
    "replan": "planning.replanning",
    "report": "views.report.html_report",
    "save_plan": "planning.plan",
    "sign_plan": "planning.files.plan_issue",
    "spectrum_of_task": "simulation.data.input_variances",
    "torch_model": "simulation.torch.torch_model",
    "train": "simulation.training_runs",
    "tune": "simulation.tuning",
    "verified_plan": "core.plan.verified_plan",
    "verify": "core.plan.verification",
    "verify_ledger": "core.store.ledger_checks",
    "with_schedule": "readers.schedule_file",
}
"""The module of every public name."""

_RENAMED = {"verified": "verified_plan"}
"""By old public name, the name in use. The old names go with version 0.3."""

_WITH_EARLIER_MEMBERS = frozenset({"Allowance", "Cost", "Guarantee", "Ledger", "guarantee_of"})
"""The names that lead to a class with members under earlier names."""

__all__ = list(_MODULES)

if not TYPE_CHECKING:

    class _MovedModules:
        """Finds a module at its earlier place; Python asks here last, for a name that no file has."""

        @staticmethod
        def find_spec(name: str, *_: object) -> object:
            if not name.startswith("fulcrum."):
                return None
            from importlib import import_module

            return import_module("fulcrum.moved_names").spec_of(name)

    sys.meta_path.append(_MovedModules)

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "__version__":
            return import_module("fulcrum.version").package_version()
        if name in _RENAMED:
            import warnings

            message = f"fulcrum.{name} goes with version 0.3. Use fulcrum.{_RENAMED[name]}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return __getattr__(_RENAMED[name])
        if name not in _MODULES:
            raise AttributeError(f"module 'fulcrum' has no attribute {name!r}")
        if name in _WITH_EARLIER_MEMBERS:
            import fulcrum.core.silo.earlier_names  # noqa: F401 adds the members
        value = getattr(import_module(f"fulcrum.{_MODULES[name]}"), name)
        if name in ("Entry", "Ledger", "MaskedRound", "MaskedSilo", "release"):
            value = import_module("fulcrum.earlier_keywords").with_earlier_keywords(name, value)
        globals()[name] = value  # from now on a global: `__getattr__` runs once a name
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})
