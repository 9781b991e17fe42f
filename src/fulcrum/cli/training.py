"""The commands that train in process, and what they learn from."""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from fulcrum.arrays import FloatArray
from fulcrum.cli.model_options import DeviceOption, ModelOptions, model_words, prints_to_stderr
from fulcrum.cli.options import FormatOption, PlanArgument, RunOption, number, words_of
from fulcrum.cli.training_options import TrackingOptions, TrainingOptions, count_of_seeds
from fulcrum.errors import DataError, ParameterError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.server.run_results import RoundResult, run_folder
from fulcrum.simulation.data.embedding import check_features_path, embed_images, embed_texts, save_features
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.model_engines import metric_of
from fulcrum.simulation.training_runs import save_run, standard_error, train
from fulcrum.views.terminal.screen import (
    Result,
    check_format,
    counting,
    facts,
    progress,
    remarks,
    show,
    table,
    tell_at_once,
)
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import printable


def train_command(
    plan_file: PlanArgument,
    *,
    learning: TrainingOptions | None = None,
    tracked: TrackingOptions | None = None,
    own: ModelOptions | None = None,
    device: DeviceOption = None,
    seeds: Annotated[int, number("How many seeds.")] = 1,
    output: RunOption = None,
    style: FormatOption = "table",
) -> int:
    """Train a plan in process, with seeded noise: for research, not for deployment."""
    check_format(style)
    learning = learning or TrainingOptions()
    made = read_plan(plan_file)
    model = None if own is None else own.loaded()
    task = load_task(learning.data, **learning.data_options)
    if output is not None:
        run_folder(output)
    with (
        (tracked or TrackingOptions()).open(made, engine="embedded") as tell,
        progress("Training", made.rounds, listed=style == "table", metric=metric_of(model, task)) as advance,
        prints_to_stderr(),
    ):

        def on_round(number: int, found: list[FloatArray]) -> None:
            advance(number, found)
            by_seed = np.array([accuracy[0] for accuracy in found])
            error = standard_error(by_seed) if len(by_seed) > 1 else None
            tell(RoundResult(round=number, accuracy=float(by_seed.mean()), accuracy_se=error))

        run = train(
            made,
            task,
            seeds=seeds,
            training=learning.training,
            model=model,
            device=device,
            records=learning.records,
            keep_regional_sums=output is not None,
            on_round=on_round,
            on_part=advance.within,
            on_note=tell_at_once,
        )
    if output is not None:
        how = f"{words_of(learning, 'data')} {model_words(own, device)}--seeds {seeds}"
        command = f"fulcrum train plan.json {how} -o run"
        save_run(run, output, command=command)
    rows = run.by_round()
    columns = [Column(key="round", heading="round"), Column(key="accuracy", heading=run.metric)]
    if seeds > 1:
        columns.append(Column(key="accuracy_se", heading="standard error"))
    reached = [
        (run.metric, f"{run.accuracy[:, -1].mean():.4f} after {made.rounds} rounds, over {count_of_seeds(seeds)}"),
        ("reference", f"{run.reference.mean():.4f} without clip and noise"),
    ]
    if output is not None:
        reached.append(("written to", str(output)))
    title = f"{made.federation.name} on {task.name}: {len(made.federation):,} silos, allocation {made.allocation}"
    picture = [table(title, columns, rows), facts(reached), remarks([(False, note) for note in run.notes])]
    show(Result(data=run.summary(), rows=rows, picture=picture), style)
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
        raise DataError("cli.source-missing", source=source)
    with counting("Embedding") as advance:
        if source.is_dir():
            if model is None:
                raise ParameterError("cli.embedding-model-missing")
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
