"""The paper's experiments: the grid as data, and the runs behind every table and figure.

A script asks a `Study` for settings. Runs that the results file already holds are reused; missing ones are trained, all
seeds and arms of a setting together, and added to it.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from _conflict import swap_labels, worst_region_under_swap
from _figures import FIGURES
from _measured import Estimate, Measured
from _network import network
from _printed import Row, parser, report
from _results import Identity, Run, add_runs, engine_digest, file_digest, read_runs
from rich.console import RenderableType

import fulcrum
from fulcrum.arrays import FloatArray
from fulcrum.core.choices import HEADS, SPECTRUM
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.core.topology import ROOT
from fulcrum.errors import FulcrumError
from fulcrum.planning.comparisons.comparison import least_influence
from fulcrum.planning.content.learning_signal import signal_to_noise
from fulcrum.planning.planner import draft_plan
from fulcrum.readers.profiles import RECORDS, profile
from fulcrum.simulation.data.input_variances import spectrum_of_task
from fulcrum.simulation.data.partition import Partition, coupled_partition
from fulcrum.simulation.data.tasks import DATA_VARIABLE, Task, load_task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job, Variants
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.training_runs import LEARNING_RATE, worst_region_of

RESULTS = FIGURES / "results.csv"
TASKS = ("cifar10", "agnews")
PROFILES = ("balanced", "balanced-4", "mild", "severe")
SIZE_LAWS = ("equal", "lognormal")  # equal, or as the profile declares them
SEEDS = 10
ROUNDS = 10
EPSILON = 0.99
INFORMATION, FLOOR = 0.88, 0.85
LOG_DEVIATION = 0.6

# Now, of the code that was just imported.
_ENGINE, _NETWORK_ENGINE, _SWAP_ENGINE = engine_digest(), engine_digest("_network"), engine_digest("_conflict")

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"epsilon": EPSILON, "accountant": "renyi"},
    "exact": {"epsilon": EPSILON, "accountant": "exact"},
    "capacity": {"information": INFORMATION, "floor": FLOOR, "bound": "capacity", "accountant": "renyi"},
    "curious": {"epsilon": {"region": EPSILON, "aggregator": 8.0}, "accountant": "renyi"},
}
"""What plans promise, as arguments of `fulcrum.plan`."""


FROZEN, EVERY = "frozen embeddings", "every data"
"""Which data gives the server's prior the variances of its training split: frozen public embeddings alone, or all. No
epsilon counts these variances."""

PARTS: Mapping[str, Mapping[str, Any]] = {
    "sizes": {},
    "least noise": {"weights": "least-noise"},
    "equal": {"weights": "equal"},
    "pooled": {"weights": "equal", "server": "random-effects", "shrink": False},
    "clipped": {"recipe": "joint", "shrink": False, "least_influence": 0.0, "disputed_influence": 0.0},
    "joint": {"recipe": "joint", "shrink": HEADS, "least_influence": 0.0, "disputed_influence": 0.0},
    "joint by size": {"recipe": "joint", "shrink": HEADS, "least_influence": 1.0, "disputed_influence": 0.0},
    "as one": {"aggregation": "masked"},
    "masked joint": {"recipe": "joint", "shrink": HEADS, "aggregation": "masked", "least_influence": 0.0},
    "recipe": {"recipe": "joint", "public": FROZEN},
    "recipe, least 0": {"recipe": "joint", "public": FROZEN, "least_influence": 0.0},
    "recipe, least 1": {"recipe": "joint", "public": FROZEN, "least_influence": 1.0},
    "recipe, no prior": {"recipe": "joint"},
    "recipe, disputes unheard": {"recipe": "joint", "public": FROZEN, "disputed_influence": 0.0},
    "recipe, several scales": {
        "recipe": "joint",
        "public": FROZEN,
        "shrink": SPECTRUM,
        "disputed_influence": 0.0,
    },
    "recipe, prior": {"recipe": "joint", "public": EVERY},
    "masked recipe": {"recipe": "joint", "aggregation": "masked", "public": FROZEN},
    "masked recipe, no prior": {"recipe": "joint", "aggregation": "masked"},
}
"""What is chosen along with the noise, as arguments of `fulcrum.plan`: the paper's, other weights alone, then the parts
of the joint recipe one after the other, and the recipe with every region at its share by size or more. Then masked
sums: all silos as one group, whose target is on the federation's sum; and the joint recipe. "joint" is the recipe as it
began, at least influence 0, which heeds no dispute; "recipe" is its default today, at 0.5, heeding disputes, and with
the prior that the data takes; "recipe, several scales" has the earlier prior and heeds no dispute."""

ONE_REGION = ", one region"
"""What stands behind the name of a profile whose silos, with the same records, are all in one region."""

SWAPPED = "swapped"

SHARES: Mapping[str, Mapping[str, float]] = {"coupled": {}, "strong": {"coupling": 1.0, "reach": 0.45}, SWAPPED: {}}
"""How far class shares follow the region: as in the paper; or the region alone sets them, to 0.05 or 0.95; or as in the
paper, and the largest region has swapped the labels of the two classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of adding noise; "none" adds none and does not clip.

    Attributes:
        allocation: The rule.
        variant: One of `VARIANTS`.
        epsilon: In place of the variant's own, or None.
        parts: One of `PARTS`.
        clip_norm: In place of the recipe's own, or None.
    """

    allocation: str
    variant: str = "paper"
    epsilon: float | None = None
    parts: str = "sizes"
    clip_norm: float | None = None

    @property
    def label(self) -> str:
        """Returns the plan's settings in words, for the results file."""
        parts = [] if self.parts == "sizes" else [self.parts]
        clip = [] if self.clip_norm is None else [f"clip norm {self.clip_norm:g}"]
        return ", ".join([self.variant, *parts, *clip])


OPTIMAL, UNIFORM = Arm(allocation="optimal"), Arm(allocation="uniform")
SIZE, INVERSE_SIZE = Arm(allocation="size"), Arm(allocation="inverse-size")
MISALLOCATED = Arm(allocation="misallocated")
NO_PRIVACY = Arm(allocation="none")
ARMS = (OPTIMAL, UNIFORM, SIZE, INVERSE_SIZE, MISALLOCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained together: all arms see the same records, batches and noise draws.

    Attributes:
        task: The data's name.
        profile: The federation.
        size_law: One of `SIZE_LAWS`.
        arms: The arms; `NO_PRIVACY` stands alone.
        components: Principal components; None for the task's own.
        whitened: Whether every component is scaled to the same variance.
        every_class: Whether all classes of the data are told apart, not two.
        shares: One of `SHARES`.
        hidden: Hidden units of a network trained from scratch; None for the linear head.
        learning_rate: Of the local steps; None for the study's.
        steps: Local steps a round.
        rounds: T.
    """

    task: str
    profile: str
    size_law: str = "equal"
    arms: tuple[Arm, ...] = ARMS
    components: int | None = None
    whitened: bool = False
    every_class: bool = False
    shares: str = "coupled"
    hidden: int | None = None
    learning_rate: float | None = None
    steps: int = 10
    rounds: int = ROUNDS

    @property
    def model(self) -> str:
        """What is trained, in words."""
        head = "head" if self.hidden is None else f"network of {self.hidden} in {self.steps} steps"
        head += " of every class" if self.every_class else ""
        return f"{head} on whitened components" if self.whitened else head


def grid(task: str, *, size_laws: Sequence[str] = SIZE_LAWS, components: int | None = None) -> list[Setting]:
    """Returns the settings of the main comparison on one task."""
    return [
        Setting(task=task, profile=name, size_law=law, components=components) for law in size_laws for name in PROFILES
    ]


@cache
def federation_of(name: str, size_law: str, seed: int) -> fulcrum.Federation:
    """Returns a profile, with silo sizes drawn where the law says so: whole records, 200 on average."""
    if name.endswith(ONE_REGION):
        whole = federation_of(name.removesuffix(ONE_REGION), size_law, seed)
        held = dict(zip(whole.silo_names.tolist(), whole.sizes.tolist(), strict=True))
        return fulcrum.Federation.from_sizes({"all": held}, name=name)
    federation = profile(name)
    if size_law == "equal":
        return federation if seed == 0 else federation_of(name, size_law, 0)
    drawn = np.random.default_rng(seed).lognormal(0, LOG_DEVIATION, len(federation))
    sizes = np.maximum(1, np.rint(RECORDS * math.exp(-(LOG_DEVIATION**2) / 2) * drawn))
    return replace(federation, name=f"{name}-lognormal-{seed}", sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The input variances that a server's prior reads, known by task, components and whether these are whitened."""

    key: tuple[str, int | None, bool]
    spectrum: Spectrum = field(compare=False)


@cache
def plan_of(
    name: str,
    size_law: str,
    arm: Arm,
    seed: int,
    parameters: int | None = None,
    rounds: int = ROUNDS,
    prior: Prior | None = None,
) -> fulcrum.Plan:
    """Returns the plan of an arm; `misallocated` deals by the seed, and what is chosen beside noise follows from d."""
    if size_law == "equal" and arm.allocation != "misallocated" and seed != 0:
        return plan_of(name, size_law, arm, 0, parameters, rounds, prior)
    promise = dict(VARIANTS[arm.variant]) | dict(PARTS[arm.parts])
    if "public" in promise:
        promise["public"] = None if prior is None else prior.spectrum
        if prior is None:  # without variances no prior can read any
            promise.pop("shrink", None)
    if arm.parts != "sizes":
        promise["parameters"] = parameters
    if arm.clip_norm is not None:
        promise["clip_norm"] = arm.clip_norm
    if arm.epsilon is not None:
        as_one = arm.parts == "as one" or arm.parts.startswith("masked recipe")
        promise["epsilon"] = {ROOT: arm.epsilon} if as_one else arm.epsilon
    return draft_plan(
        federation_of(name, size_law, seed), rounds=rounds, allocation=arm.allocation, seed=seed, **promise
    )


class Runs:
    """The runs of some settings, by setting and arm, in the order of the seeds."""

    def __init__(self, found: Mapping[tuple[Setting, Arm], Sequence[Run]]) -> None:
        self._found = found

    def of(self, setting: Setting, arm: Arm) -> Sequence[Run]:
        """Returns the runs of one arm."""
        return self._found[setting, arm]

    def accuracy(self, setting: Setting, arm: Arm) -> FloatArray:
        """Returns the accuracy of one arm by seed."""
        return self.figure(setting, arm, "accuracy")

    def figure(self, setting: Setting, arm: Arm, name: str) -> FloatArray:
        """Returns a figure of the runs of one arm by seed."""
        return np.array([getattr(run, name) for run in self.of(setting, arm)])

    def gain(self, setting: Setting, arm: Arm, over: Arm = UNIFORM, name: str = "accuracy") -> Estimate:
        """Returns the paired difference of two arms in points, of the accuracy or of the worst region's."""
        return Estimate.of(100 * (self.figure(setting, arm, name) - self.figure(setting, over, name)))

    def mean(self, setting: Setting, arm: Arm, name: str) -> float:
        """Returns the mean of a figure of the runs."""
        return float(self.figure(setting, arm, name).mean())


class Study:
    """The runs that a script asks for, from the results file or trained now."""

    def __init__(
        self,
        *,
        tasks: Sequence[str] = TASKS,
        seeds: int = SEEDS,
        data_dir: Path | None = None,
        results: Path = RESULTS,
        learning_rate: float = LEARNING_RATE,
        threads: int | None = None,
    ) -> None:
        self.tasks, self.seeds, self.data_dir, self.results = tuple(tasks), range(seeds), data_dir, results
        self.learning_rate, self.threads = learning_rate, threads
        self.trained = 0
        """How many runs were not in the file."""
        self._tasks: dict[tuple[str, int | None, bool, bool], Task] = {}
        self._priors: dict[tuple[str, int | None, bool], Prior] = {}

    def task(
        self, name: str, components: int | None = None, *, whitened: bool = False, every_class: bool = False
    ) -> Task:
        """Returns a task, loaded once."""
        key = (name, components, whitened, every_class)
        if key not in self._tasks and whitened:
            self._tasks[key] = _whitened(self.task(name, components, every_class=every_class))
        elif key not in self._tasks:
            self._tasks[key] = load_task(name, data_dir=self.data_dir, components=components, every_class=every_class)
        return self._tasks[key]

    def task_of(self, setting: Setting) -> Task:
        """Returns what a setting is trained on."""
        return self.task(setting.task, setting.components, whitened=setting.whitened, every_class=setting.every_class)

    def parameters_of(self, setting: Setting) -> int:
        """Returns d of what a setting trains."""
        task = self.task_of(setting)
        features, classes = int(task.features_train.shape[1]), len(task.classes)
        if setting.hidden is None:
            return (features + 1) * classes
        return (features + 1) * setting.hidden + (setting.hidden + 1) * classes

    def plan(self, setting: Setting, arm: Arm, seed: int) -> fulcrum.Plan:
        """Returns the plan of an arm under a seed."""
        prior = self.prior_of(setting) if PARTS[arm.parts].get("public") in self._priors_of(setting) else None
        return plan_of(setting.profile, setting.size_law, arm, seed, self.parameters_of(setting), setting.rounds, prior)

    def prior_of(self, setting: Setting) -> Prior:
        """Returns the variances of a setting's inputs over the training split; the classes of its task change none."""
        key = (setting.task, setting.components, setting.whitened)
        if key not in self._priors:
            spectrum = spectrum_of_task(self.task_of(setting))
            self._priors[key] = Prior(key=key, spectrum=spectrum)
        return self._priors[key]

    def _priors_of(self, setting: Setting) -> tuple[str, ...]:
        """Returns which of `FROZEN` and `EVERY` takes the setting's data."""
        return (FROZEN, EVERY) if self.task_of(setting).embedding else (EVERY,)

    def rate_of(self, setting: Setting) -> float:
        """Returns the learning rate of a setting."""
        return self.learning_rate if setting.learning_rate is None else setting.learning_rate

    def partition(self, setting: Setting, seed: int) -> Partition:
        """Returns who holds what under a seed."""
        federation = federation_of(setting.profile.removesuffix(ONE_REGION), setting.size_law, seed)
        return coupled_partition(self.task_of(setting), federation, seed=seed, **SHARES[setting.shares])

    def runs(self, settings: Iterable[Setting], *, seeds: Sequence[int] | None = None) -> Runs:
        """Returns the runs of all settings, training those that the results file does not hold.

        Args:
            settings: What to run.
            seeds: In place of the study's own, where a run takes long.
        """
        known = read_runs(self.results)
        seeds = self.seeds if seeds is None else seeds
        found: dict[tuple[Setting, Arm], Sequence[Run]] = {}
        for setting in settings:
            asked = {(arm, seed): self._identity(setting, arm, seed) for arm in setting.arms for seed in seeds}
            # A seed that misses one arm is trained with all of them: arms are compared within one batch.
            missing = sorted({seed for (_, seed), identity in asked.items() if identity not in known})
            if missing:
                fresh = self._train(setting, missing, asked)
                add_runs(self.results, fresh)
                known |= {run.identity: run for run in fresh}
            for arm in setting.arms:
                found[setting, arm] = [known[asked[arm, seed]] for seed in seeds]
        return Runs(found)

    def _identity(self, setting: Setting, arm: Arm, seed: int) -> Identity:
        federation = federation_of(setting.profile, setting.size_law, seed)
        plan = None if arm == NO_PRIVACY else self.plan(setting, arm, seed)
        return Identity(
            task=setting.task,
            profile=setting.profile,
            size_law=setting.size_law,
            shares=setting.shares,
            allocation=arm.allocation,
            variant="none" if plan is None else arm.label,
            model=setting.model,
            seed=seed,
            parameters=self.parameters_of(setting),
            rounds=setting.rounds,
            learning_rate=self.rate_of(setting),
            federation=_federation_digest(setting.profile, setting.size_law, federation.name),
            plan="" if plan is None else _plan_digest(plan)[:16],
            data=self._data_digest(setting.task),
            engine=_engine_of(setting),
            batch=sha256(repr(setting.arms).encode()).hexdigest()[:16],
        )

    def _data_digest(self, name: str) -> str:
        folder = self.data_dir or os.environ.get(DATA_VARIABLE)
        if name != "digits" and folder is not None:
            return file_digest(Path(folder) / f"{name}.npz")
        task = self.task(name)
        return sha256(task.labels_train.tobytes() + task.labels_test.tobytes()).hexdigest()[:16]

    def _train(self, setting: Setting, seeds: Sequence[int], asked: Mapping[tuple[Arm, int], Identity]) -> list[Run]:
        began = time.perf_counter()
        what = f"{setting.task}, {setting.profile}, {setting.size_law}, {setting.rounds} rounds"
        parameters = asked[setting.arms[0], seeds[0]].parameters
        size = f"{setting.model}, d = {parameters}, learning rate {self.rate_of(setting):g}"
        print(f"training {what}, {size}: {len(seeds)} seeds x {len(setting.arms)} arms", end=" ", file=sys.stderr)
        sys.stderr.flush()
        jobs = [self.job(setting, seed) for seed in seeds]
        runs = self.train_jobs(setting, jobs)
        print(f"{time.perf_counter() - began:.1f} s", file=sys.stderr)
        fresh = []
        for job, run in zip(jobs, runs, strict=True):
            worst_of = worst_region_under_swap if setting.shares == SWAPPED else worst_region_of
            worst = worst_of(job, run, self.task_of(setting))
            for place, arm in enumerate(setting.arms):
                identity = asked[arm, job.seed]
                plan = None if arm == NO_PRIVACY else self.plan(setting, arm, job.seed)
                federation = federation_of(setting.profile, setting.size_law, job.seed)
                fresh.append(
                    Run(
                        identity=identity,
                        records=float(job.partition.counts.mean()),
                        epsilon=math.inf if plan is None else float(plan.epsilon_above.max()),
                        epsilon_inside=math.inf if plan is None else float(plan.epsilon_inside.max()),
                        dispersion=fulcrum.dispersion(federation),
                        noise_budget=0.0 if plan is None else plan.model_noise,
                        saving=1.0 if plan is None else plan.saving,
                        signal_to_noise=math.inf if plan is None else signal_to_noise(plan, identity.parameters),
                        accuracy=float(run.accuracy[-1, place]),
                        worst_region=float(worst[place]),
                        least_influence=1.0 if plan is None else least_influence(plan),
                    )
                )
        self.trained += len(fresh)
        return fresh

    def job(self, setting: Setting, seed: int) -> Job:
        """Returns the job of a seed: who holds what, and the plans of all arms."""
        if setting.arms == (NO_PRIVACY,):
            arms = Variants.from_plans([self.plan(setting, UNIFORM, seed)]).without_privacy()
        else:
            arms = Variants.from_plans([self.plan(setting, arm, seed) for arm in setting.arms])
        return Job(seed=seed, partition=self.partition(setting, seed), variants=arms)

    def train_jobs(self, setting: Setting, jobs: Sequence[Job]) -> list[FederationRun]:
        """Returns what came of every job."""
        task = self.task_of(setting)
        training = LocalTraining(learning_rate=self.rate_of(setting), steps=setting.steps)
        if setting.hidden is None and setting.shares == SWAPPED:  # the labels of a record depend on who holds it
            swapped = [(job, swap_labels(task, job)) for job in jobs]
            return [
                train_jobs([job], its_task, training, every_round=False, threads=self.threads)[0]
                for job, its_task in swapped
            ]
        if setting.hidden is None:
            return train_jobs(jobs, task, training, every_round=False, threads=self.threads)
        model = network(
            features=task.features_train.shape[1],
            hidden=setting.hidden,
            classes=len(task.classes),
            learning_rate=self.rate_of(setting),
        )
        return [train_slowly(job, task, training, model) for job in jobs]


def _engine_of(setting: Setting) -> str:
    """Returns the digest of the code that trains a setting."""
    if setting.hidden is not None:
        return _NETWORK_ENGINE
    return _SWAP_ENGINE if setting.shares == SWAPPED else _ENGINE


def _whitened(task: Task) -> Task:
    spread = task.features_train.std(axis=0)
    spread[spread < 1e-6 * spread.max()] = 1.0  # what holds no more than rounding of single precision stays small
    return replace(task, features_train=task.features_train / spread, features_test=task.features_test / spread)


@cache
def _federation_digest(name: str, size_law: str, drawn: str) -> str:
    seed = 0 if size_law == "equal" else int(drawn.rpartition("-")[2])
    return federation_of(name, size_law, seed).digest[:16]


@cache
def _plan_digest(plan: fulcrum.Plan) -> str:
    return plan.digest


def worse_than(runs: Runs, settings: Iterable[Setting], arm: Arm, others: Iterable[Arm]) -> int:
    """Returns how often `arm` is worse on average than another one, over settings and others."""
    rivals = list(others)
    return sum(runs.gain(setting, arm, over=other).mean < 0 for setting in settings for other in rivals)


def furthest_saving(runs: Runs, settings: Iterable[Setting]) -> float:
    """Returns how far the budget saved is from the dispersion, at most."""
    return max(abs(run.saving - run.dispersion) for setting in settings for run in runs.of(setting, OPTIMAL))


def experiment_parser(doc: str | None, *, tasks: Sequence[str] = TASKS) -> argparse.ArgumentParser:
    """Returns the arguments that every experiment takes."""
    described = parser(doc)
    described.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0; at least 2")
    described.add_argument("--data", help=f"names, separated by commas: {','.join(tasks)} by default, or digits")
    described.add_argument("--data-dir", type=Path, help=f"the folder of feature files; {DATA_VARIABLE} by default")
    described.add_argument("--learning-rate", type=float, default=LEARNING_RATE, help="of the local steps")
    described.add_argument("--results", type=Path, default=RESULTS, help="the results file, read and added to")
    described.add_argument("--figures", type=Path, help="where figures go; beside the results file by default")
    described.set_defaults(tasks=tuple(tasks))
    return described


def lacks_features(tasks: Sequence[str]) -> bool:
    """Returns true if the folder that FULCRUM_DATA names lacks a feature file, or no folder is named."""
    folder = os.environ.get(DATA_VARIABLE)
    return not folder or not all((Path(folder) / f"{name}.npz").is_file() for name in tasks)


def skipped_words(program: str, tasks: Sequence[str], instead: str) -> str:
    """Returns the line of a script that is skipped for want of feature files, with options that need none."""
    files = " and ".join(f"{name}.npz" for name in tasks)
    return (
        f"{program}: skipped, it needs the folder of {files}. Give --data-dir or set {DATA_VARIABLE}; "
        f"paper/make_features.py makes such files from public files. To see it work on built-in data: {instead}"
    )


def run_experiment(
    doc: str | None,
    work: Callable[[Study, argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
    *,
    tasks: Sequence[str] = TASKS,
    described: argparse.ArgumentParser | None = None,
) -> int:
    """Runs a script's work on what its arguments ask for and returns its exit status.

    Without a data folder and without --data there is nothing to run on: it says so, and the status is 0, so that the
    scripts that need no data can follow.

    Args:
        doc: The script's docstring.
        work: What it does; returns the exit status.
        arguments: In place of the command line's.
        tasks: What it runs on by default.
        described: An `experiment_parser` to which the script has added arguments of its own.
    """
    described = described or experiment_parser(doc, tasks=tasks)
    chosen = described.parse_args(arguments)
    if chosen.seeds < 2:
        described.error(f"--seeds must be at least 2, got {chosen.seeds}: one seed has no standard error")
    if chosen.data is None and chosen.data_dir is None and lacks_features(tasks):
        print(skipped_words(described.prog, tasks, "--data digits"), file=sys.stderr)
        return 0
    names = tuple(tasks) if chosen.data is None else tuple(chosen.data.split(","))
    chosen.figures = chosen.figures or chosen.results.parent
    try:
        study = Study(
            tasks=names,
            seeds=chosen.seeds,
            data_dir=chosen.data_dir,
            results=chosen.results,
            learning_rate=chosen.learning_rate,
        )
        return work(study, chosen)
    except FulcrumError as error:
        print(f"{described.prog}: {error}", file=sys.stderr)
        return 2


def table_main(doc: str | None, rows: Callable[[Study], Sequence[Row]]) -> Callable[[Sequence[str] | None], int]:
    """Returns the main of a script that prints the rows of one table."""

    def work(study: Study, chosen: argparse.Namespace) -> int:
        return report(doc, rows(study), chosen.format)

    def main(arguments: Sequence[str] | None = None) -> int:
        return run_experiment(doc, work, arguments)

    return main


def measured_main(
    doc: str | None,
    rows: Callable[[Study], Sequence[Measured]],
    picture: Callable[[Sequence[Measured], Study], Sequence[RenderableType]],
    *,
    seeds: int,
) -> Callable[[Sequence[str] | None], int]:
    """Returns the main of a script that prints tables of its own above the checks.

    Args:
        doc: The script's docstring.
        rows: What is measured.
        picture: The tables of what was measured.
        seeds: How many seeds are reported by default.
    """

    def work(study: Study, chosen: argparse.Namespace) -> int:
        found = rows(study)
        if chosen.format != "table":
            return report(doc, found, chosen.format)
        checked = [row for row in found if row.theory is not None]
        return report(doc, checked, chosen.format, pictures=picture(found, study))

    def main(arguments: Sequence[str] | None = None) -> int:
        described = experiment_parser(doc)
        described.set_defaults(seeds=seeds)
        return run_experiment(doc, work, arguments, described=described)

    return main
