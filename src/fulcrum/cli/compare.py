"""`fulcrum compare`: every way of keeping a target side by side, trained where asked for."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from fulcrum.cli.federations import ColumnOption, given_federation, told_of_coalitions
from fulcrum.cli.model_options import DeviceOption, ModelOptions, model_words, prints_to_stderr
from fulcrum.cli.options import FederationArgument, FormatOption, RunOption, number, option, words_of
from fulcrum.cli.target_options import TargetOptions
from fulcrum.cli.training_options import TrainingOptions, count_of_seeds
from fulcrum.errors import ParameterError, listing
from fulcrum.planning.comparison import Comparison, compare_plans, comparison_row
from fulcrum.readers.profiles import PROFILES
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.model_engines import metric_of
from fulcrum.simulation.training_runs import notes_on, partition_of
from fulcrum.simulation.trials import SIZE_LAWS, compare_trained, comparison_on_task, draw_sizes, save_comparison
from fulcrum.views.terminal.plan_tables import (
    comparison_columns,
    comparison_rows,
    learned,
    observers_in_words,
    scaled_rows,
    voice_columns,
)
from fulcrum.views.terminal.screen import Result, check_format, progress, remarks, show, table, tell_at_once, working


def compare_command(
    federation: FederationArgument,
    *,
    column: ColumnOption = (),
    target: TargetOptions,
    train: Annotated[bool, Parameter(help="Also train every allocation, all on the same batches and draws.")] = False,
    seeds: Annotated[int | None, number("With --train: how many seeds; 10 by default.")] = None,
    size_law: Annotated[str | None, option(f"With --train: silo sizes, one of {listing(SIZE_LAWS)}.")] = None,
    learning: TrainingOptions | None = None,
    own: ModelOptions | None = None,
    device: DeviceOption = None,
    output: RunOption = None,
    style: FormatOption = "table",
) -> int:
    """Put every allocation side by side at the same target, and train each with --train."""
    check_format(style)
    found = given_federation(federation, column).federation
    arguments = target.arguments(found)
    rows: Sequence[Comparison]
    result: list[tuple[bool, str]] = []
    told: Sequence[str] = ()
    if not train and not all(given is None for given in (learning, own, device, seeds, size_law, output)):
        raise ParameterError("cli.compare-needs-train")
    learning, seeds, size_law = learning or TrainingOptions(), 10 if seeds is None else seeds, size_law or "declared"
    if train:
        task = load_task(learning.data, **learning.data_options)
        model = None if own is None else own.loaded()
        if output is not None:
            run_folder(output)
        metric = metric_of(model, task)
        with progress("Training every allocation", target.rounds, metric=metric) as advance, prints_to_stderr():
            rows = trained = compare_trained(
                found,
                task,
                seeds=seeds,
                training=learning.training,
                model=model,
                device=device,
                records=learning.records,
                size_law=size_law,
                allocation=target.allocation,
                on_round=advance,
                on_part=advance.within,
                on_note=tell_at_once,
                **arguments,
            )
        result = [(False, learned(trained))]
        first = draw_sizes(found, size_law, 0)
        part = partition_of(task, first, seed=0, records=learning.records)
        told = notes_on(task, first, part, learning.training, records=learning.records)
        side_by_side = comparison_on_task(task, found, target.allocation, arguments, model)
        told += () if model is None else model.notes
        told += () if metric == "accuracy" else (f"What is called accuracy is the {metric}, as the data asks for.",)
        if output is not None:
            who = federation if federation in PROFILES else "FEDERATION"
            law = "" if size_law == "declared" else f"--size-law {size_law} "
            how = f"{words_of(learning, 'data')} {model_words(own, device)}--seeds {seeds}"
            command = f"fulcrum compare {who} {words_of(target)} --train {law}{how} -o run"
            save_comparison(
                rows,
                output,
                federation=found,
                task=task.name,
                seeds=seeds,
                size_law=size_law,
                command=command,
                **arguments,
            )
    else:
        with working("Comparing"):
            side_by_side = compare_plans(found, target.allocation, arguments)
            rows = [comparison_row(made, name) for name, made in side_by_side.plans.items()]
    told = [*told, *(f"{name} is left out: {why}" for name, why in side_by_side.left_out.items())]
    if target.injection == "silo":  # noise that no silo holds is neither colluded away nor missing
        told_of_coalitions(found, colluders=target.colluders, dropouts=target.dropouts)
    terms = f"{target.rounds} rounds, delta {target.delta:g}, {target.accountant or 'exact'}"
    heading = f"{found.name}: {len(found):,} silos, {terms}"
    if train:
        heading += f"; {learning.data}, {count_of_seeds(seeds)}"
    inner = found.innermost.name
    notes = [
        f"Noise budget: the variance entering the model, in C²{scaled_rows(side_by_side.plans)}. "
        + observers_in_words(inner, aggregation=target.aggregation, colluders=target.colluders)
    ]
    if target.colluders or target.dropouts:
        notes.append("Optimal keeps one multiplier a region, least-under-collusion does not.")
    voice = [f"Voice: the {inner}'s share of the model over its share by size."]
    if train:
        notes.append("Gain: points of accuracy above uniform, paired over seeds.")
        voice.append(f"Worst {inner}: the least accuracy on test records whose classes are mixed as a {inner}'s are.")
    shown = comparison_rows(rows)
    drawn = [
        table(heading, comparison_columns(train), shown, note=" ".join(notes)),
        table("Who counts for less", voice_columns(found, train), shown, note=" ".join(voice)),
    ]
    records = [asdict(row) for row in rows]
    remarked = [*((False, note) for note in told), *result]
    picture = [*drawn, remarks(remarked)] if remarked else drawn
    show(Result(data=records, rows=records, picture=picture), style)
    return 0
