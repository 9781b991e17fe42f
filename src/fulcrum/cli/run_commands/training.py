"""The commands that train in process, and turn images or texts into features."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.cli.shared_options.model_options import DeviceOption, ModelOptions, model_words, prints_to_stderr
from fulcrum.cli.shared_options.options import (
    TRAINING,
    FormatOption,
    PlanArgument,
    RunOption,
    argument,
    number,
    option,
    output_option,
    words_of,
)
from fulcrum.cli.shared_options.training_options import TrackingOptions, TrainingOptions, count_of_seeds
from fulcrum.errors import DataError, ParameterError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.server.run_results import RoundResult, run_folder
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.sources.embedding import check_features_path, embed_images, embed_texts, save_features
from fulcrum.simulation.model_engines import metric_of
from fulcrum.simulation.training_runs import save_run, standard_error, train
from fulcrum.views.terminal.screen import (
    Result,
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
    seeds: Annotated[int, number("Number of seeds.", TRAINING)] = 1,
    output: RunOption = None,
    style: FormatOption = "table",
) -> int:
    """Train a plan in process, with seeded noise: for research, not for deployment."""
    learning = learning or TrainingOptions()
    learning = replace(learning, data=learning.source)
    plan = read_plan(plan_file)
    model = None if own is None else own.load()
    task = read_data(learning.source, plan.federation, **learning.data_options)
    metric = metric_of(model, task)
    if output is not None:
        run_folder(output)
    with (
        (tracked or TrackingOptions()).open(plan, engine="embedded") as tell,
        progress("Training", plan.rounds, listed=style == "table", metric=metric) as advance,
        prints_to_stderr(),
    ):

        def on_round(number: int, accuracies: list[FloatArray]) -> None:
            advance(number, accuracies)
            by_seed = np.array([accuracy[0] for accuracy in accuracies])
            error = {f"{metric}_se": standard_error(by_seed)} if len(by_seed) > 1 else {}
            tell(RoundResult(round=number, metrics={metric: float(by_seed.mean())} | error))

        run = train(
            plan,
            task,
            seeds=seeds,
            training=learning.training_for(plan.unit),
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
        (run.metric, f"{run.accuracy[:, -1].mean():.4f} after {plan.rounds} rounds, over {count_of_seeds(seeds)}"),
        ("reference", f"{run.reference.mean():.4f} without clip and noise"),
    ]
    if output is not None:
        reached.append(("written to", str(output)))
    title = f"{plan.federation.name} on {task.name}: {len(plan.federation):,} silos, allocation {plan.allocation}"
    picture = [table(title, columns, rows), facts(reached), remarks([(False, note) for note in run.notes])]
    show(Result(data=run.summary(), rows=rows, picture=picture), style)
    return 0


def embed(
    source: Annotated[
        Path, argument("Folder with a subfolder of images for every class, or a .csv or .txt file of texts.")
    ],
    *,
    output: Annotated[Path, output_option(".npz file to write.")],
    model: Annotated[
        Path | None,
        option("ONNX file of a ResNet-18 without its last layer, for images. Default: none.", TRAINING),
    ] = None,
    batch: Annotated[int, number("Number of images or texts in a batch.", TRAINING)] = 64,
    style: FormatOption = "table",
) -> int:
    """Turn images or texts into features by a frozen public model, for `fulcrum train --data`."""
    check_features_path(output)
    if not source.exists():
        raise DataError("cli.source-missing", source=source)
    with counting("Embedding") as advance:
        if source.is_dir():
            if model is None:
                raise ParameterError("cli.embedding-model-missing")
            features = embed_images(source, model=model, batch=batch, on_batch=advance)
        else:
            features = embed_texts(source, model=model, batch=batch, on_batch=advance)
    save_features(features, output)
    for line in features.skipped:
        sys.stderr.write(f"fulcrum: skipped {printable(line)}\n")
    summary = {
        "output": str(output),
        "records": len(features.features),
        "features": features.features.shape[1],
        "classes": len(set(features.labels.tolist())),
        "skipped": len(features.skipped),
    }
    picture = [facts([(key, str(value)) for key, value in summary.items()])]
    show(Result(data=summary, rows=[summary], picture=picture), style)
    return 0
