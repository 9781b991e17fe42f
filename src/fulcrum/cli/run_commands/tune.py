"""The command that tries rounds, learning rates and recipes on public data, and makes a plan with the same promise."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fulcrum.cli.shared_options.options import (
    TRAINING,
    FormatOption,
    PlanArgument,
    check_output,
    number,
    option,
    output_option,
    whole_numbers,
)
from fulcrum.cli.shared_options.training_options import MetricOption, TrainingOptions, count_of_seeds
from fulcrum.errors import ParameterError, listing
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.plan import save_plan
from fulcrum.simulation.tuning import LEARNING_RATES, Try, public_task, tune
from fulcrum.views.terminal.screen import Result, counting, facts, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import with_error

_PUBLIC = "Every try used {data} alone, which must be public or synthetic: no epsilon counts tuning on silos' own data."


def tune_command(
    plan_file: PlanArgument,
    *,
    data: Annotated[
        str, option("Public or synthetic data, never the silos' own; named as for `fulcrum train`.", TRAINING)
    ],
    output: Annotated[Path, output_option("File to write the new plan to.")],
    rounds: Annotated[
        str | None, option("Numbers of rounds to try, separated by commas. Default: 1, 3 and the plan's.", TRAINING)
    ] = None,
    learning_rates: Annotated[
        str | None,
        option(f"Learning rates to try, separated by commas. Default: {listing(map(str, LEARNING_RATES))}.", TRAINING),
    ] = None,
    seeds: Annotated[int, number("Number of seeds of every try.", TRAINING)] = 5,
    data_dir: Annotated[Path | None, option("Folder of feature files. Default: FULCRUM_DATA.", TRAINING)] = None,
    components: Annotated[
        int | None,
        number(
            "Number of principal components to keep. Default: the task's, or all columns of your own data.", TRAINING
        ),
    ] = None,
    label: Annotated[
        str | None, option("Name of the label column in a CSV or Parquet file. Default: label.", TRAINING)
    ] = None,
    person_column: Annotated[
        str | None,
        option("Name of the column of persons in a CSV or Parquet file, for the unit person. Default: none.", TRAINING),
    ] = None,
    metric: MetricOption = None,
    ranges: Annotated[
        str | None,
        option("Public ranges of the features, as for `fulcrum train`. Default: none.", TRAINING),
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Try rounds, learning rate and recipe on public data, and make a new plan with the same promise."""
    check_output(output)
    old_plan = read_plan(plan_file)
    learning = TrainingOptions(
        data=data,
        data_dir=data_dir,
        components=components,
        label=label,
        person_column=person_column,
        ranges=ranges,
    )
    task = public_task(data, **learning.data_options)
    rates = LEARNING_RATES if learning_rates is None else _rates(learning_rates)
    with counting("Tried on public data") as advance:
        tuning = tune(
            old_plan,
            task,
            rounds=None if rounds is None else whole_numbers(rounds, "--rounds"),
            learning_rates=rates,
            seeds=seeds,
            training=learning.training_for(old_plan.unit),
            metric=metric,
            on_try=advance,
        )
    save_plan(tuning.plan, output)
    rows = [asdict(tried) for tried in tuning.tries]
    columns = (
        Column(key="recipe", heading="recipe", figures=False),
        Column(key="rounds", heading="rounds"),
        Column(key="learning_rate", heading="learning\nrate"),
        Column(key="noise_budget", heading="noise\nbudget"),
        Column(key="accuracy_shown", heading=tuning.metric),
        Column(key="behind_shown", heading="behind the\nbest, points"),
    )
    chosen = f"recipe {tuning.best.recipe}, rounds {tuning.best.rounds}, learning rate {tuning.best.learning_rate:.3g}"
    unchanged = "as planned, since nothing is better by more than two standard errors"
    best = "the most accurate" if tuning.metric == "accuracy" else f"the best {tuning.metric}"
    why = best if tuning.best.changes else unchanged
    notes = [(False, _PUBLIC.format(data=task.name))]
    notes += [(False, f"{name} was not tried: {why}") for name, why in tuning.left_out.items()]
    table_rows = [
        row | {"behind_shown": _behind(tried), "accuracy_shown": with_error(tried.accuracy, tried.accuracy_se)}
        for row, tried in zip(rows, tuning.tries, strict=True)
    ]
    title = f"{old_plan.federation.name} on {task.name}: {count_of_seeds(seeds)}, every try at the plan's promise"
    picture = [
        table(title, columns, table_rows),
        facts(
            [
                ("taken", f"{chosen}: {why}"),
                ("guarantee", guarantee_of(tuning.plan).statement),
                ("written to", f"{output}; sign it anew, and train with that learning rate"),
            ]
        ),
        remarks(notes),
    ]
    data_out = {
        "public_data": task.name,
        "output": str(output),
        "plan_digest": tuning.plan.digest,
        "metric": tuning.metric,
        "best": asdict(tuning.best),
        "tries": rows,
        "left_out": tuning.left_out,
    }
    show(Result(data=data_out, rows=rows, picture=picture), style)
    return 0


def _behind(tried: Try) -> str:
    return "" if not tried.behind else f"{100 * tried.behind:.2f} ± {100 * tried.behind_se:.2f}"


def _rates(text: str) -> Sequence[float]:
    """Returns the numbers of a text such as "0.1,0.3"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError("cli.learning-rates-form", text=text) from None
