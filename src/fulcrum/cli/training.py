"""The commands that train in process, and what they learn from."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fulcrum.cli.options import FederationArgument, FormatOption, PlanArgument, RunOption, number, option
from fulcrum.cli.target_options import TargetOptions
from fulcrum.cli.training_options import TrainingOptions
from fulcrum.errors import DataError, ParameterError, listing
from fulcrum.federation.reading import read_federation
from fulcrum.planning.comparing import Comparison, compare
from fulcrum.planning.plan_reading import read_plan
from fulcrum.simulation.embedding import check_features_path, embed_images, embed_texts, save_features
from fulcrum.simulation.runs import notes_on, partition_of, run_folder, save_run, train
from fulcrum.simulation.tasks import load_task
from fulcrum.simulation.trials import SIZE_LAWS, compare_trained, save_comparison, sized
from fulcrum.views.numbers import printable
from fulcrum.views.plan_tables import comparison_columns, comparison_rows
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


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"
