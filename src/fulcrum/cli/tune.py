"""`fulcrum tune`: rounds, learning rate and recipe tried on public data, and a new plan with the same promise."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fulcrum.cli.options import FormatOption, PlanArgument, check_output, number, option, whole_numbers
from fulcrum.cli.training_options import TrainingOptions, count_of_seeds
from fulcrum.errors import ParameterError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.plan import save_plan
from fulcrum.planning.plan_document import guarantee_of
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.tuning import LEARNING_RATES, Try, tune
from fulcrum.views.terminal.screen import Result, check_format, counting, facts, remarks, show, table
from fulcrum.views.terminal.table_columns import Column

_PUBLIC = (
    "Tried on {data} alone, which must be public or synthetic: no epsilon counts what is tuned on silos' own data."
)


def tune_command(
    plan_file: PlanArgument,
    *,
    data: Annotated[str, option("Public or synthetic data, never the silos' own; as of `fulcrum train`.")],
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Write the new plan to this file.")],
    rounds: Annotated[str | None, option("Rounds to try, comma separated; 1, 3 and the plan's by default.")] = None,
    learning_rates: Annotated[str | None, option("Learning rates to try, comma separated.")] = None,
    seeds: Annotated[int, number("How many seeds.")] = 5,
    data_dir: Annotated[Path | None, option("Folder of feature files; FULCRUM_DATA by default.")] = None,
    components: Annotated[int | None, number("Principal components to keep.")] = None,
    label: Annotated[str | None, option("Label column of a CSV or Parquet file; label by default.")] = None,
    style: FormatOption = "table",
) -> int:
    """Try rounds, learning rate and recipe on public data, and make a new plan with the same promise."""
    check_format(style)
    check_output(output)
    made = read_plan(plan_file)
    learning = TrainingOptions(data=data, data_dir=data_dir, components=components, label=label)
    task = load_task(data, **learning.data_options)
    rates = LEARNING_RATES if learning_rates is None else _rates(learning_rates)
    with counting("Tried on public data") as advance:
        found = tune(
            made,
            task,
            rounds=None if rounds is None else whole_numbers(rounds, "--rounds"),
            learning_rates=rates,
            seeds=seeds,
            training=learning.training,
            on_try=advance,
        )
    save_plan(found.plan, output)
    rows = [asdict(tried) for tried in found.tries]
    columns = (
        Column(key="recipe", heading="recipe", figures=False),
        Column(key="rounds", heading="rounds"),
        Column(key="learning_rate", heading="learning\nrate"),
        Column(key="noise_budget", heading="noise\nbudget"),
        Column(key="accuracy", heading="accuracy"),
        Column(key="behind_shown", heading="behind the\nbest, points"),
    )
    taken = f"recipe {found.best.recipe}, rounds {found.best.rounds}, learning rate {found.best.learning_rate:.3g}"
    kept = "as planned, since nothing is better by more than two standard errors"
    why = "the most accurate" if found.best.changes else kept
    told = [(False, _PUBLIC.format(data=task.name))]
    told += [(False, f"{name} was not tried: {why}") for name, why in found.left_out.items()]
    drawn = [row | {"behind_shown": _behind(tried)} for row, tried in zip(rows, found.tries, strict=True)]
    title = f"{made.federation.name} on {task.name}: {count_of_seeds(seeds)}, every try at the plan's promise"
    picture = [
        table(title, columns, drawn),
        facts(
            [
                ("taken", f"{taken}: {why}"),
                ("guarantee", guarantee_of(found.plan).statement),
                ("written to", f"{output}; sign it anew, and train with that learning rate"),
            ]
        ),
        remarks(told),
    ]
    data_out = {
        "public_data": task.name,
        "output": str(output),
        "plan_digest": found.plan.digest,
        "best": asdict(found.best),
        "tries": rows,
        "left_out": found.left_out,
    }
    show(Result(data=data_out, rows=rows, picture=picture), style)
    return 0


def _behind(tried: Try) -> str:
    return "" if not tried.behind else f"{100 * tried.behind:.2f} ± {100 * tried.behind_se:.2f}"


def _rates(text: str) -> Sequence[float]:
    """Reads "0.1,0.3"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError("cli.learning-rates-form", text=text) from None
