"""`fulcrum compare`: every way of keeping a target side by side, trained where asked for."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from fulcrum.cli.options import FederationArgument, FormatOption, RunOption, number, option
from fulcrum.cli.target_options import TargetOptions
from fulcrum.cli.training_options import TrainingOptions, count_of_seeds
from fulcrum.errors import ParameterError, listing
from fulcrum.federation.reading import read_federation
from fulcrum.planning.comparing import Comparison, compared, summarised
from fulcrum.simulation.runs import notes_on, partition_of, run_folder
from fulcrum.simulation.tasks import load_task
from fulcrum.simulation.trials import SIZE_LAWS, compare_trained, compared_on, save_comparison, sized
from fulcrum.views.plan_tables import comparison_columns, comparison_rows, voice_columns
from fulcrum.views.terminal import Result, check_format, progress, remarks, show, table, working


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
        left_out = compared_on(task, found, target.allocation, arguments).left_out
        told += tuple(f"{name} is left out: {why}" for name, why in left_out.items())
        if output is not None:
            save_comparison(rows, output, federation=found, task=task.name, seeds=seeds, size_law=size_law, **arguments)
    else:
        with working("Comparing"):
            side_by_side = compared(found, target.allocation, arguments)
            rows = [summarised(made, name) for name, made in side_by_side.plans.items()]
            told = [f"{name} is left out: {why}" for name, why in side_by_side.left_out.items()]
    terms = f"{target.rounds} rounds, delta {target.delta:g}, {target.accountant or 'exact'}"
    heading = f"{found.name}: {len(found):,} silos, {terms}"
    if train:
        heading += f"; {learning.data}, {count_of_seeds(seeds)}"
    inner = found.innermost.name
    notes = [
        f"Noise budget: the variance entering the model, in C². Above: who sees the sums of a {inner}. "
        "Inside: who sees one update."
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
    picture = [*drawn, remarks([(False, note) for note in told])] if told else drawn
    show(Result(data=records, rows=records, picture=picture), style)
    return 0
