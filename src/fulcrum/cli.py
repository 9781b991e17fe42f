"""The command line: arguments in, results out; no maths.

Results go to stdout, progress and errors to stderr. A mistake of the user's is one line and exit code 2; a plan that
does not verify is exit code 1.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from fulcrum.accounting import observer_power
from fulcrum.comparison import compare
from fulcrum.display import FORMATS, Column, Result, check_format, facts, figure, remarks, show, table, working
from fulcrum.errors import FulcrumError, ParameterError, listing
from fulcrum.exports import EXPORTS, exported
from fulcrum.exposure import exposure_of
from fulcrum.federation import SILO, Federation
from fulcrum.leakage import Coupling, cost_of_coupling, informativeness, lateral_floor, prior_entropy
from fulcrum.planfile import package_version, read_content, write_whole
from fulcrum.planning import Plan, plan, read_plan
from fulcrum.profiles import PROFILES
from fulcrum.readers import read_federation
from fulcrum.targets import Floor
from fulcrum.verification import changes, verify

app = App(
    name="fulcrum",
    help="Topology-aware differential privacy for hierarchical federated learning.",
    version=package_version,
    result_action="return_value",
)

FederationArgument = Annotated[
    str,
    Parameter(help=f"A file (.toml, .csv, .parquet, NVFLARE project.yml), or built in: {listing(PROFILES)}."),
]
PlanArgument = Annotated[Path, Parameter(help="A plan file, as `fulcrum plan -o` writes it.")]
FormatOption = Annotated[str, Parameter(name="--format", help=f"One of {listing(FORMATS)}.")]
OutputOption = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Write to this file.")]
ColludersOption = Annotated[int, Parameter(help="Silos of each region that may collude or drop out.")]


def _option(text: str, **settings: Any) -> Parameter:
    return Parameter(help=text, allow_leading_hyphen=True, **settings)


@Parameter(name="*")
@dataclass(kw_only=True)
class TargetOptions:
    """What a plan must meet."""

    rounds: Annotated[int, _option("Number of releases of each silo.")]
    epsilon: Annotated[str | None, _option("The target: a number for the innermost tier, or tier=number,...")] = None
    epsilon_inside: Annotated[float | None, _option("Target against whoever sees single updates.")] = None
    delta: Annotated[float, _option("The DP parameter.")] = 1e-5
    accountant: Annotated[str, _option("exact or renyi.")] = "exact"
    allocation: Annotated[str, _option("How noise is distributed; module:function for your own.")] = "optimal"
    information: Annotated[float | None, _option("Target bound on what is learned of a silo, in nats.")] = None
    floor: Annotated[str | None, _option("Lateral floor, nats: a number, region=number,..., or coupling=number.")] = (
        None
    )
    bound: Annotated[str, _option("paper or capacity.")] = "paper"
    budget: Annotated[float | None, _option("Spend this much noise variance instead of meeting a target.")] = None
    colluders: Annotated[int, _option("Silos of each region that may collude or drop out.")] = 0
    parameters: Annotated[int | None, _option("Number of trainable parameters.")] = None
    clip_norm: Annotated[float, _option("Clip norm of an update.")] = 1.0
    injection: Annotated[str, _option("Who draws noise: silo or aggregator.")] = "silo"
    seed: Annotated[int, _option("For the allocation `misallocated`.")] = 0

    def arguments(self, federation: Federation) -> dict[str, Any]:
        """Returns the keyword arguments of `fulcrum.plan`, the allocation left out."""
        if ":" in self.allocation and "" not in sys.path:
            sys.path.append("")  # the user's own function may stand in the current folder
        settings = {name: value for name, value in vars(self).items() if name not in ("allocation", "epsilon_inside")}
        epsilon = _by_name(self.epsilon, "--epsilon", federation.innermost.name)
        if self.epsilon_inside is not None:
            epsilon = {**(epsilon or {}), SILO: self.epsilon_inside}
        return settings | {"epsilon": epsilon, "floor": _floor(self.floor)}


@app.command
def exposure(federation: FederationArgument, *, colluders: ColludersOption = 0, style: FormatOption = "table") -> int:
    """Show how exposed each region is, and what a uniform multiplier wastes."""
    check_format(style)
    with working("Reading the federation"):
        found = read_federation(federation)
        profiles = [exposure_of(found, tier=tier.name, colluders=colluders) for tier in found.tiers]
    rows = [
        {
            "tier": profile.tier,
            "name": name,
            "silos": int(profile.silos[index]),
            "weight_mass": float(profile.weight_mass[index]),
            "peak_weight": float(profile.peak_weight[index]),
            "exposure": float(profile.exposure[index]),
            "effective_size": float(profile.effective_size[index]),
        }
        for profile in profiles
        for index, name in enumerate(profile.nodes)
    ]
    tiers = [
        {"tier": profile.tier, "dispersion": profile.dispersion, "noise_factor": profile.noise_factor}
        for profile in profiles
    ]
    columns = (
        Column(key="name", heading=found.innermost.name, figures=False),
        Column(key="silos", heading="silos"),
        Column(key="effective_size", heading="effective size"),
        Column(key="exposure", heading="exposure"),
    )
    against = f", {colluders} of each {found.innermost.name} colluding or gone" if colluders else ""
    picture = [
        table(
            f"{found.name}: {len(found):,} silos in {len(found.innermost.nodes):,} {found.innermost.name}s{against}",
            columns,
            [row for row in rows if row["tier"] == found.innermost.name],
        ),
        facts(
            [
                (
                    f"dispersion of {profile.tier}",
                    f"{profile.dispersion:.2%} of a uniform budget is waste, "
                    f"a factor {profile.noise_factor:.2f} in the noise multiplier",
                )
                for profile in profiles
            ]
        ),
    ]
    data = {"federation": found.name, "silos": len(found), "colluders": colluders, "tiers": tiers, "nodes": rows}
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


@app.command(name="plan")
def plan_command(
    federation: FederationArgument,
    *,
    target: TargetOptions,
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Compute how much noise each silo must add."""
    check_format(style)
    with working("Planning"):
        found = read_federation(federation)
        made = plan(found, allocation=target.allocation, **target.arguments(found))
    if output is not None:
        with working("Writing the plan"):
            made.save(output)
    if style == "csv":
        sys.stdout.write(exported(made, "csv"))
    elif style == "json":
        show(Result(data=msgspec.to_builtins(made.content()), rows=()), style)
    else:
        show(Result(data=None, rows=(), picture=_picture_of(made, output)), style)
    return 0


@app.command(name="compare")
def compare_command(federation: FederationArgument, *, target: TargetOptions, style: FormatOption = "table") -> int:
    """Put every allocation side by side at the same target."""
    check_format(style)
    with working("Comparing"):
        found = read_federation(federation)
        compared = compare(found, allocation=target.allocation, **target.arguments(found))
    rows = [asdict(row) for row in compared]
    least = compared[0].noise_budget
    inner = found.innermost.name
    columns = (
        Column(key="allocation", heading="allocation", figures=False),
        Column(key="noise_budget", heading="noise budget"),
        Column(key="times_optimal", heading="× optimal"),
        Column(key="epsilon_above_worst", heading=f"ε above {inner}\nworst", epsilon=True),
        Column(key="epsilon_above_mean", heading="\nmean", epsilon=True),
        Column(key="epsilon_inside_worst", heading=f"ε inside {inner}\nworst", epsilon=True),
        Column(key="epsilon_inside_mean", heading="\nmean", epsilon=True),
    )
    drawn = table(
        f"{found.name}: {len(found):,} silos, {target.rounds} rounds, delta {target.delta:g}, {target.accountant}",
        columns,
        [row | {"times_optimal": f"{row['noise_budget'] / least:.3f}"} for row in rows],
        note="Noise budget: the variance entering the model, in C². Above: who sees sums. Inside: who sees one update."
        + (" Optimal keeps one multiplier a region, least-noise does not." if target.colluders else ""),
    )
    show(Result(data=rows, rows=rows, picture=[drawn]), style)
    return 0


@app.command
def floor(
    federation: Annotated[str | None, Parameter(help="Take group sizes from this federation.")] = None,
    *,
    coupling: Annotated[float, _option("Within-group coupling kappa of the prior.")] = 20.0,
    sizes: Annotated[str, _option("Group sizes, comma separated.")] = "1,2,4,8,12,20,24,30,60",
    information: Annotated[float | None, _option("A bound K in nats to judge.")] = None,
    true_coupling: Annotated[float | None, _option("With --information: what if this is the true coupling?")] = None,
    levels: Annotated[str, _option("Resolutions R to judge at, comma separated.")] = "4,10,20,50",
    style: FormatOption = "table",
) -> int:
    """Show what a silo's group reveals of it with no update sent, and whether a bound says anything."""
    check_format(style)
    records = None
    if federation is None:
        groups = _whole_numbers(sizes, "--sizes")
    else:
        found = read_federation(federation)
        group_of = found.innermost.parent_of if found.group is None else found.group.parent_of
        groups = sorted(set(np.bincount(group_of).tolist()))
        records = int(found.sizes.min())
    strength = Coupling(coupling).strength
    floors = np.atleast_1d(lateral_floor(np.array(groups), coupling=strength))
    rows: list[dict[str, Any]] = [
        {"group_size": size, "floor": float(value)} for size, value in zip(groups, floors, strict=True)
    ]
    data: dict[str, Any] = {
        "coupling": strength,
        "saturation": float(lateral_floor(np.inf, coupling=strength)),
        "floors": rows,
    }
    picture = [
        table(
            f"Lateral floor at coupling {strength:g}",
            (Column(key="group_size", heading="group size"), Column(key="floor", heading="floor, nats")),
            rows,
            note=f"It saturates at {data['saturation']:.4f} nats. No noise lowers it.",
        )
    ]
    worst = float(floors.max())
    if information is not None and information <= worst:
        raise ParameterError(f"information={information:g} is not above the floor {worst:.4g}, which no noise lowers")
    judged = [
        asdict(
            informativeness(
                mechanism=0.0 if information is None else information - worst,
                floor=worst,
                levels=count,
                entropy=prior_entropy(strength, levels=count),
                records=records,
            )
        )
        for count in _whole_numbers(levels, "--levels")
    ]
    data["levels"] = judged
    columns = [Column(key="levels", heading="levels R"), Column(key="entropy", heading="entropy, nats")]
    columns += [Column(key="margin", heading="margin, nats")]
    if information is not None:
        columns += [
            Column(key="mechanism", heading="mechanism, nats"),
            Column(key="informative", heading="informative"),
        ]
    picture.append(table("What there is to learn under the prior", columns, judged))
    if true_coupling is not None:
        if information is None:
            raise ParameterError("--true-coupling needs --information, the bound that was planned for")
        cost = cost_of_coupling(groups, assumed=strength, true=true_coupling, information=information)
        for row, overshoot, ratio in zip(rows, cost.overshoot.tolist(), cost.noise_ratio.tolist(), strict=True):
            row |= {"overshoot": overshoot, "noise_ratio": ratio}
        data["worst_overshoot"] = cost.worst_overshoot
        columns = [
            Column(key="group_size", heading="group size"),
            Column(key="overshoot", heading="bound missed by, nats"),
            Column(key="noise_ratio", heading="noise, × what truth needs"),
        ]
        told = [row | {"noise_ratio": row["noise_ratio"] or "never enough"} for row in rows]
        picture.append(table(f"If the coupling is {true_coupling:g} and not {strength:g}", columns, told))
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


@app.command(name="verify")
def verify_command(
    plan_file: PlanArgument,
    *,
    federation: Annotated[str | None, Parameter(help="Also check that the plan is for this federation.")] = None,
    style: FormatOption = "table",
) -> int:
    """Recompute every number of a plan from its multipliers and roster, without the solver."""
    check_format(style)
    with working("Verifying"):
        content = read_content(plan_file)
        if federation is not None:
            read_plan(plan_file).check_federation(read_federation(federation), source=federation)
        checks = verify(content)
    rows = [asdict(check) for check in checks]
    failed = sum(not check.holds for check in checks)
    verdict = "Every check holds." if not failed else f"{failed} of {len(checks)} checks fail: do not use this plan."
    columns = (
        Column(key="name", heading="check", figures=False),
        Column(key="holds", heading="holds", figures=False),
        Column(key="detail", heading="", figures=False),
    )
    picture = [table(str(plan_file), columns, rows), remarks([(failed > 0, verdict)])]
    show(Result(data={"holds": not failed, "checks": rows}, rows=rows, picture=picture), style)
    return 1 if failed else 0


@app.command
def diff(before: PlanArgument, after: PlanArgument, *, style: FormatOption = "table") -> int:
    """Say what changed from one plan to another, and for whom."""
    check_format(style)
    found = changes(read_content(before), read_content(after))
    rows = [asdict(change) for change in found]
    silos = len({change.subject for change in found} - {"settings", "summary"})
    columns = (
        Column(key="subject", heading="who", figures=False),
        Column(key="what", heading="what", figures=False),
        Column(key="before", heading="before"),
        Column(key="after", heading="after"),
    )
    note = "The plans say the same." if not rows else f"{silos:,} silos are affected."
    picture = [table(f"{before} → {after}", columns, rows, note=note)] if rows else [remarks([(False, note)])]
    show(Result(data=rows, rows=rows, picture=picture), style)
    return 0


@app.command
def export(
    plan_file: PlanArgument,
    *,
    to: Annotated[str, Parameter(help=f"One of {listing(EXPORTS)}.")],
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Write a plan as a table, or as settings for Flower or NVIDIA FLARE."""
    check_format(style)
    text = exported(read_plan(plan_file), to)
    if output is not None:
        write_whole(output, text.encode())
    if style == "json":
        written = None if output is None else str(output)
        show(Result(data={"to": to, "output": written, "text": text}, rows=()), style)
    elif output is None:
        sys.stdout.write(text)
    return 0


def _picture_of(made: Plan, output: Path | None) -> list[Any]:
    content, inner = made.content(), made.federation.innermost
    multiplier = made.noise_multiplier
    rows = []
    injected = made.aggregator_noise_multiplier
    for index, node in enumerate(content.tiers[inner.name]):
        members = inner.parent_of == index
        low, high = float(multiplier[members].min()), float(multiplier[members].max())
        rows.append(
            {
                "name": node.name,
                "silos": node.silos,
                "effective": 1 / node.exposure,
                "noise": node.noise_multiplier if injected is not None else _span(low, high),
                "above": node.epsilon_worst if node.epsilon_worst is not None else float("inf"),
                "inside": float(made.epsilon_inside[members].max()),
            }
        )
        if len(rows) > 100:  # more than the table shows
            break
    columns = (
        Column(key="name", heading=inner.name, figures=False),
        Column(key="silos", heading="silos"),
        Column(key="effective", heading="effective size"),
        Column(key="noise", heading="noise multiplier" if injected is None else "noise on the sum"),
        Column(key="above", heading="ε above", epsilon=True),
        Column(key="inside", heading="ε inside", epsilon=True),
    )
    power = observer_power(float(made.effective_multiplier().min()), rounds=made.rounds)
    summary = [
        ("noise budget", f"{figure(made.noise_budget)} C², uniform would need {figure(made.uniform_noise_budget)}"),
        ("saving", f"{made.saving:.2%} against uniform; dispersion {made.dispersion:.2%}"),
        (
            "in words",
            f"an observer above tells two possible datasets of a silo apart {power.guessing_rate:.1%} of the time "
            f"at best, and accuses rightly {power.true_positive_rate:.1%} of the time at 1 % wrong accusations",
        ),
    ]
    if made.floor is not None:
        learned = float((made.mechanism_information + made.floor).max())
        summary.append(
            ("information", f"at most {learned:.4g} nats of a silo's class concentration ({made.target.bound})")
        )
    if output is not None:
        summary.append(("written to", f"{output}; check it with: fulcrum verify {output}"))
    picture = [
        table(f"{made.federation.name}: {len(made.federation):,} silos, allocation {made.allocation}", columns, rows),
        facts([("guarantee", made.statement), *summary]),
    ]
    if made.advice:
        picture.append(remarks([(advice.warning, advice.text) for advice in made.advice]))
    return picture


def _span(low: float, high: float) -> str:
    return figure(high) if high - low <= 1e-9 * high else f"{figure(low)} to {figure(high)}"


def _by_name(text: str | None, option: str, default: str) -> dict[str, float] | None:
    """Reads "1.0" or "region=1.0,country=2.0"."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        try:
            found[name.strip() if equals else default] = float(value)
        except ValueError:
            raise ParameterError(f"{option} must be a number or name=number,..., got {part.strip()!r}") from None
    return found


def _floor(text: str | None) -> Floor | None:
    if text is None:
        return None
    found = _by_name(text, "--floor", "") or {}
    if set(found) == {""}:
        return found[""]
    return Coupling(found["coupling"]) if set(found) == {"coupling"} else found


def _whole_numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{option} must be whole numbers separated by commas, got {text!r}") from None


def run(arguments: Sequence[str] | None = None, application: Callable[..., Any] = app) -> int:
    """Runs a command line and returns its exit code; a mistake of the user's is one line on stderr and 2."""
    try:
        code = application(arguments, exit_on_error=False, print_error=False)
    except (FulcrumError, CycloptsError) as error:
        message = " ".join(str(error).split())
        if isinstance(error, MissingArgumentError) and error.argument is not None:
            message = f"{' '.join(error.command_chain or ())} needs {error.argument.name}. See: fulcrum --help"
        sys.stderr.write(f"fulcrum: {message}\n")
        return 2
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    return code if isinstance(code, int) else 0


def main() -> None:
    """The entry point of the command `fulcrum`."""
    sys.exit(run())
