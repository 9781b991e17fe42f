"""Modules that moved, and the names in them: the old place answers for one version, with a warning.

`fulcrum/__init__.py` asks this module for a module of the package that no file holds. A process that names present
modules alone, such as a silo, never loads this module.

>>> import warnings
>>> with warnings.catch_warnings(record=True) as caught:
...     warnings.simplefilter("always")
...     from fulcrum.planning.plan_figures import PlanFigures
>>> PlanFigures.__module__, str(caught[0].message)[:51]
('fulcrum.planning.content.plan_figures', 'fulcrum.planning.plan_figures.PlanFigures goes with')
"""

import importlib
import warnings
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

UNTIL = "0.3"
"""The version that removes the old places."""

_CLIENT, _SERVER = "engines.flower.client_app", "engines.flower.server_app"
_JOB = "engines.nvflare.plan_job"
_SIGNAL = "planning.content.learning_signal"

NAMES = {
    "engines.flower.app": {
        "client_app": _CLIENT,
        "train": "engines.flower.virtual_app",
        "server_app": _SERVER,
        "run_plan": _SERVER,
    },
    "engines.nvflare.job_recipe": {
        "ADMIN": _JOB,
        "LoopbackEnv": _JOB,
        "PlanJob": _JOB,
        "PlanRecipe": f"{_JOB}:PlanSubmission",
    },
    "engines.nvflare.processes": {
        "SiteLauncher": "engines.nvflare.site_launcher",
        "KitJobs": "engines.nvflare.server_files",
        "KitStorage": "engines.nvflare.server_files",
    },
    "engines.nvflare.recipe": {"LoopbackEnv": _JOB, "PlanRecipe": f"{_JOB}:PlanSubmission"},
    "planning.advice": {
        **dict.fromkeys(("advice_on", "advice_on_levers", "advice_on_merges"), "planning.content.advice"),
        **dict.fromkeys(("LEVELS", "Advice", "information_ceiling"), "planning.content.plan_facts"),
        **dict.fromkeys(("Merge", "best_merge"), "planning.content.region_merges"),
        **dict.fromkeys(("STRONG_SIGNAL", "WEAK_SIGNAL", "learnt_at"), _SIGNAL),
        **dict.fromkeys(("most_parameters", "signal_to_noise"), _SIGNAL),
    },
}
"""By old module, and name in it: the new module. A new name follows after a colon."""

MODULES = {
    "engines.nvflare.failures": "engines.training_failures",
    "engines.flower.server": "engines.flower.strategy",
    "engines.flower.silo": "engines.flower.client_mod",
    "engines.nvflare.region": "engines.nvflare.flare_region",
    "engines.nvflare.server": "engines.nvflare.flare_server",
    "engines.nvflare.silo": "engines.nvflare.flare_silo",
}
"""By old module, with all its names: the new module."""

FOLDERS = {
    "engines.flower.kits": ("app_files", "certificates", "flower_kits", "flower_loopback", "flower_sites"),
    "engines.flower.server_side": ("bytes_in_flight", "node_identity", "run_recorder"),
    "engines.nvflare.kits": ("console", "nvflare_kits", "nvflare_loopback"),
    "engines.nvflare.site_jobs": ("admission", "job_endings", "job_messages"),
    "planning.comparisons": ("comparison", "variants", "weight_tradeoff"),
    "planning.content": ("plan_document", "plan_figures"),
    "planning.inputs": (
        "inside_observer",
        "recipes",
        "server_settings",
        "settings",
        "targets",
        "weighted_federation",
    ),
    "simulation.data.sources": (
        "data_records",
        "embedding",
        "feature_ranges",
        "images",
        "record_columns",
        "sentences",
        "texts",
    ),
}
"""By new folder: the modules that came from the folder above."""

for _folder, _modules in FOLDERS.items():
    MODULES |= {f"{_folder.rpartition('.')[0]}.{_module}": f"{_folder}.{_module}" for _module in _modules}


class _MovedModule(Loader):
    """Loads an old module as a module without content, in which a name is looked up at its first use."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.removeprefix("fulcrum.")

        def look_up(name: str) -> Any:
            place = MODULES.get(old) or NAMES[old].get(name)
            if name.startswith("__") or place is None:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            place, _, new_name = f"fulcrum.{place}".partition(":")
            new_module, new_name = importlib.import_module(place), new_name or name
            if not hasattr(new_module, new_name):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            message = f"{module.__name__}.{name} goes with version {UNTIL}. Use {place}.{new_name}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(new_module, new_name)

        module.__getattr__ = look_up  # type: ignore[method-assign]


def spec_of(name: str) -> ModuleSpec | None:
    """Returns the specification of a module at its old place, or None for a name that was never a module."""
    old = name.removeprefix("fulcrum.")
    return ModuleSpec(name, _MovedModule()) if old in MODULES or old in NAMES else None
