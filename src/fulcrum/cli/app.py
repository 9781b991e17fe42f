"""The command line: arguments in, results out; no maths.

Results go to stdout, progress and errors to stderr. A mistake of the user's is one line and exit code 2; a plan that
does not verify is exit code 1.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from fulcrum.cli.engines import deploy_app, follow_app, up_app
from fulcrum.cli.options import (
    ColludersOption,
    DropoutsOption,
    FederationArgument,
    FormatOption,
    OutputOption,
    PlanArgument,
    RunOption,
    TargetOptions,
    TrainingOptions,
    number,
    option,
    whole_numbers,
)
from fulcrum.cli.page import serve_command
from fulcrum.cli.report import report_command
from fulcrum.cli.silos import keygen, ledger_app, policy, read_keys, replan_command, sign
from fulcrum.errors import DataError, FulcrumError, ParameterError, listing
from fulcrum.federation.reading import read_federation
from fulcrum.federation.structure import SILO
from fulcrum.planning.comparing import Comparison, compare
from fulcrum.planning.differences import Difference, differences
from fulcrum.planning.exporting import EXPORTS, exported
from fulcrum.planning.making import plan
from fulcrum.planning.plan_reading import read_content, read_plan
from fulcrum.planning.signing import check_signature
from fulcrum.planning.targets import group_by_silo
from fulcrum.planning.verifying import verify
from fulcrum.privacy.exposure import exposure_of
from fulcrum.privacy.leakage import cost_of_coupling, informativeness_of
from fulcrum.privacy.prior import Coupling, lateral_floor
from fulcrum.simulation.embedding import check_features_path, embed_images, embed_texts, save_features
from fulcrum.simulation.runs import notes_on, partition_of, run_folder, save_run, train
from fulcrum.simulation.tasks import load_task
from fulcrum.simulation.trials import SIZE_LAWS, compare_trained, save_comparison, sized
from fulcrum.storage.files import write_whole
from fulcrum.version import package_version
from fulcrum.views.numbers import printable
from fulcrum.views.plan_tables import comparison_columns, comparison_rows, show_checks, show_plan
from fulcrum.views.terminal import (
    Column,
    Result,
    check_format,
    counting,
    facts,
    progress,
    remarks,
    show,
    table,
    working,
)

app = App(
    name="fulcrum",
    help="Topology-aware differential privacy for hierarchical federated learning.",
    version=package_version,
    result_action="return_value",
)
app.command(report_command, name="report")
app.command(serve_command, name="serve")
app.command(keygen)
app.command(sign)
app.command(policy)
app.command(replan_command, name="replan")
app.command(ledger_app)
app.command(deploy_app)
app.command(up_app)
app.command(follow_app)


@app.command
def exposure(
    federation: FederationArgument,
    *,
    colluders: ColludersOption = 0,
    dropouts: DropoutsOption = 0,
    style: FormatOption = "table",
) -> int:
    """Show how exposed each region is, and what a uniform multiplier wastes."""
    check_format(style)
    with working("Reading the federation"):
        found = read_federation(federation)
        profiles = [exposure_of(found, tier=tier.name, colluders=colluders, dropouts=dropouts) for tier in found.tiers]
    inner = found.innermost.name
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
    columns = (
        Column(key="name", heading=inner, figures=False),
        Column(key="silos", heading="silos"),
        Column(key="effective_size", heading="effective size"),
        Column(key="exposure", heading="exposure"),
    )
    lost = [
        f"{count} of each {inner} {how}" for count, how in ((colluders, "colluding"), (dropouts, "missing")) if count
    ]
    against = "".join(f", {part}" for part in lost)
    waste = [
        (
            f"dispersion of {profile.tier}",
            f"{profile.dispersion:.2%} of a uniform budget is waste, "
            f"a factor {profile.noise_factor:.2f} in the noise multiplier",
        )
        for profile in profiles
    ]
    picture = [
        table(
            f"{found.name}: {len(found):,} silos in {len(found.innermost.nodes):,} {inner}s{against}",
            columns,
            [row for row in rows if row["tier"] == inner],
        ),
        facts(waste),
    ]
    tiers = [
        {"tier": profile.tier, "dispersion": profile.dispersion, "noise_factor": profile.noise_factor}
        for profile in profiles
    ]
    data = {
        "federation": found.name,
        "silos": len(found),
        "colluders": colluders,
        "dropouts": dropouts,
        "tiers": tiers,
        "nodes": rows,
    }
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


@app.command(name="plan")
def plan_command(
    federation: FederationArgument,
    *,
    target: TargetOptions,
    purpose: Annotated[str, option("research, or deployment, which needs --parameters.")] = "research",
    keys: Annotated[Path | None, Parameter(help="A TOML file of public keys by name, for the plan to carry.")] = None,
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Compute how much noise each silo must add."""
    check_format(style)
    with working("Planning"):
        found = read_federation(federation)
        carried = None if keys is None else read_keys(keys)
        made = plan(found, allocation=target.allocation, purpose=purpose, keys=carried, **target.arguments(found))
    if output is not None:
        with working("Writing the plan"):
            made.save(output)
    show_plan(made, output, style)
    return 0


@app.command(name="compare")
def compare_command(
    federation: FederationArgument,
    *,
    target: TargetOptions,
    train: Annotated[bool, Parameter(help="Also train every allocation, all on the same batches and draws.")] = False,
    seeds: Annotated[int | None, number("With --train: how many seeds; 10 by default.")] = None,
    size_law: Annotated[str | None, option(f"With --train: silo sizes, one of {listing(SIZE_LAWS)}.")] = None,
    learning: TrainingOptions | None = None,
    output: RunOption = None,
    style: FormatOption = "table",
) -> int:
    """Put every allocation side by side at the same target, and train each with --train."""
    check_format(style)
    found = read_federation(federation)
    arguments = target.arguments(found)
    rows: Sequence[Comparison]
    told: Sequence[str] = ()
    if not train and not (learning is None and seeds is None and size_law is None and output is None):
        raise ParameterError("seeds, a size law, an output and how silos train need --train. Add it, or leave them out")
    learning, seeds, size_law = learning or TrainingOptions(), 10 if seeds is None else seeds, size_law or "declared"
    if train:
        task = load_task(learning.data, **learning.data_options)
        if output is not None:
            run_folder(output)
        with progress("Training every allocation", target.rounds) as advance:
            rows = compare_trained(
                found,
                task,
                seeds=seeds,
                training=learning.training,
                records=learning.records,
                size_law=size_law,
                allocation=target.allocation,
                on_round=advance,
                **arguments,
            )
        first = sized(found, size_law, 0)
        part = partition_of(task, first, seed=0, records=learning.records)
        told = notes_on(task, first, part, learning.training, records=learning.records)
        if output is not None:
            save_comparison(rows, output, federation=found, task=task.name, seeds=seeds, size_law=size_law, **arguments)
    else:
        with working("Comparing"):
            rows = compare(found, allocation=target.allocation, **arguments)
    terms = f"{target.rounds} rounds, delta {target.delta:g}, {target.accountant or 'exact'}"
    heading = f"{found.name}: {len(found):,} silos, {terms}"
    if train:
        heading += f"; {learning.data}, {_seeds(seeds)}"
    notes = ["Noise budget: the variance entering the model, in C². Above: who sees sums. Inside: who sees one update."]
    if target.colluders or target.dropouts:
        notes.append("Optimal keeps one multiplier a region, least-under-collusion does not.")
    if train:
        notes.append("Gain: points of accuracy above uniform, paired over seeds.")
    drawn = table(heading, comparison_columns(found, train), comparison_rows(rows), note=" ".join(notes))
    records = [asdict(row) for row in rows]
    picture = [drawn, remarks([(False, note) for note in told])] if told else [drawn]
    show(Result(data=records, rows=records, picture=picture), style)
    return 0


@app.command(name="train")
def train_command(
    plan_file: PlanArgument,
    *,
    learning: TrainingOptions | None = None,
    seeds: Annotated[int, number("How many seeds.")] = 1,
    output: RunOption = None,
    style: FormatOption = "table",
) -> int:
    """Train a plan in process, with seeded noise: for research, not for deployment."""
    check_format(style)
    learning = learning or TrainingOptions()
    made = read_plan(plan_file)
    task = load_task(learning.data, **learning.data_options)
    if output is not None:
        run_folder(output)
    with progress("Training", made.rounds) as advance:
        run = train(
            made,
            task,
            seeds=seeds,
            training=learning.training,
            records=learning.records,
            keep_regional_sums=output is not None,
            on_round=advance,
        )
    if output is not None:
        save_run(run, output)
    rows = run.by_round()
    columns = [Column(key="round", heading="round"), Column(key="accuracy", heading="accuracy")]
    if seeds > 1:
        columns.append(Column(key="accuracy_se", heading="standard error"))
    reached = [
        ("accuracy", f"{run.accuracy[:, -1].mean():.4f} after {made.rounds} rounds, over {_seeds(seeds)}"),
        ("reference", f"{run.reference.mean():.4f} without clip and noise"),
    ]
    if output is not None:
        reached.append(("written to", str(output)))
    title = f"{made.federation.name} on {task.name}: {len(made.federation):,} silos, allocation {made.allocation}"
    picture = [table(title, columns, rows), facts(reached), remarks([(False, note) for note in run.notes])]
    show(Result(data=run.summary(), rows=rows, picture=picture), style)
    return 0


@app.command
def embed(
    source: Annotated[
        Path, Parameter(help="A folder with one subfolder of images a class, or a .csv or .txt of texts.")
    ],
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The .npz file to write.")],
    model: Annotated[
        Path | None, Parameter(help="Images: the ONNX file of a ResNet-18 without its last layer.")
    ] = None,
    batch: Annotated[int, number("Images or texts at a time.")] = 64,
    style: FormatOption = "table",
) -> int:
    """Turn images or texts into features by a frozen public model, for `fulcrum train --data`."""
    check_format(style)
    check_features_path(output)
    if not source.exists():
        raise DataError(f"{source} does not exist. Give a folder of images, or a .csv or .txt of texts")
    with counting("Embedding") as advance:
        if source.is_dir():
            if model is None:
                raise ParameterError("embedding images needs a model. Give the ONNX file of a ResNet-18 with --model")
            made = embed_images(source, model=model, batch=batch, on_batch=advance)
        else:
            made = embed_texts(source, model=model, batch=batch, on_batch=advance)
    save_features(made, output)
    for line in made.skipped:
        sys.stderr.write(f"fulcrum: skipped {printable(line)}\n")
    told = {
        "output": str(output),
        "records": len(made.features),
        "features": made.features.shape[1],
        "classes": len(set(made.labels.tolist())),
        "skipped": len(made.skipped),
    }
    picture = [facts([(key, str(value)) for key, value in told.items()])]
    show(Result(data=told, rows=[told], picture=picture), style)
    return 0


@app.command
def floor(
    federation: Annotated[str | None, Parameter(help="Take group sizes from this federation.")] = None,
    *,
    coupling: Annotated[float, option("Within-group coupling kappa of the prior.")] = 20.0,
    sizes: Annotated[str | None, option("Group sizes, comma separated.")] = None,
    information: Annotated[float | None, option("A bound K in nats to judge.")] = None,
    true_coupling: Annotated[float | None, option("With --information: what if this is the true coupling?")] = None,
    levels: Annotated[str, option("Resolutions R to judge at, comma separated.")] = "4,10,20,50",
    style: FormatOption = "table",
) -> int:
    """Show what a silo's group reveals of it with no update sent, and whether a bound says anything."""
    check_format(style)
    groups, records = _group_sizes(federation, sizes)
    strength = Coupling(coupling).strength
    floors = np.atleast_1d(lateral_floor(np.array(groups), coupling=strength)).tolist()
    rows: list[dict[str, Any]] = [
        {"group_size": size, "floor": value} for size, value in zip(groups, floors, strict=True)
    ]
    saturation = float(lateral_floor(np.inf, coupling=strength))
    judged = [
        asdict(informativeness_of(information, floor=max(floors), coupling=strength, levels=count, records=records))
        for count in whole_numbers(levels, "--levels")
    ]
    data: dict[str, Any] = {"coupling": strength, "saturation": saturation, "floors": rows, "levels": judged}
    picture = [
        table(
            f"Lateral floor at coupling {strength:g}",
            (Column(key="group_size", heading="group size"), Column(key="floor", heading="floor, nats")),
            rows,
            note=f"It saturates at {saturation:.4f} nats. No noise lowers it.",
        )
    ]
    columns = [
        Column(key="levels", heading="levels R"),
        Column(key="entropy", heading="entropy, nats"),
        Column(key="margin", heading="margin, nats"),
    ]
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
    issuer: Annotated[str | None, Parameter(help="Also check the signature by this public key, or .pub file.")] = None,
    style: FormatOption = "table",
) -> int:
    """Recompute every number of a plan from its multipliers and roster, without the solver."""
    check_format(style)
    with working("Verifying"):
        content = read_content(plan_file)
        if federation is not None:
            read_plan(plan_file).check_federation(read_federation(federation), source=federation)
        if issuer is not None:
            check_signature(plan_file, issuer)
        checks = verify(content)
    return show_checks(str(plan_file), checks, style, otherwise="do not use this plan")


@app.command
def diff(before: PlanArgument, after: PlanArgument, *, style: FormatOption = "table") -> int:
    """Say what changed from one plan to another, and for whom."""
    check_format(style)
    found = differences(before, after)
    rows = [asdict(difference) for difference in found]
    silos = len({difference.subject for difference in found if difference.kind == SILO})
    columns = (
        Column(key="subject", heading="who", figures=False),
        Column(key="what", heading="what", figures=False),
        Column(key="before", heading="before"),
        Column(key="after", heading="after"),
    )
    note = "The plans say the same." if not rows else f"{silos:,} silos are affected."
    told = [
        row | {"subject": f"{row['kind']} {row['subject']}".strip()} for row in rows if row["subject"] != "guarantee"
    ]  # its sentences follow from the figures and do not fit into a cell
    picture = [table(f"{before} → {after}", columns, told, note=note)] if rows else [remarks([(False, note)])]
    show(Result(data=rows, rows=rows, fields=list(Difference.__dataclass_fields__), picture=picture), style)
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


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _group_sizes(federation: str | None, sizes: str | None) -> tuple[list[int], int | None]:
    """Returns the distinct group sizes to look at, and the records of the smallest silo where there are silos."""
    if federation is None:
        return whole_numbers(sizes or "1,2,4,8,12,20,24,30,60", "--sizes"), None
    if sizes is not None:
        raise ParameterError("--sizes and a federation both give group sizes. Give one of them")
    found = read_federation(federation)
    return sorted(set(np.bincount(group_by_silo(found)).tolist())), int(found.sizes.min())


def run(arguments: Sequence[str] | None = None, application: Callable[..., Any] = app) -> int:
    """Runs a command line and returns its exit code; a mistake of the user's is one line on stderr and 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show ε shows ? instead of a traceback
            stream.reconfigure(errors="replace")
    try:
        code = application(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (FulcrumError, CycloptsError) as error:
        message = " ".join(str(error).split())
        if isinstance(error, MissingArgumentError) and error.argument is not None:
            message = f"{' '.join(error.command_chain or ())} needs {error.argument.name}. See: fulcrum --help"
        sys.stderr.write(f"fulcrum: {printable(message)}\n")
        return 2
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        where = f"{str(error.filename)[:80]!r} cannot be used" if error.filename else "the output cannot be written"
        sys.stderr.write(f"fulcrum: {where}: {error.strerror or error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return code if isinstance(code, int) else 0


def main() -> None:
    """The entry point of the command `fulcrum`."""
    sys.exit(run())
