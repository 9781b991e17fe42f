"""The command that tries combinations of settings on public data, and makes a plan with the same promise."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fulcrum.cli.shared_options.model_options import DeviceOption, ModelOptions, prints_to_stderr
from fulcrum.cli.shared_options.options import (
    TRAINING,
    FormatOption,
    PlanArgument,
    check_output,
    number,
    numbers,
    option,
    output_option,
    whole_numbers,
)
from fulcrum.cli.shared_options.training_options import MetricOption, TrainingOptions, count_of_seeds
from fulcrum.errors import listing
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.plan import save_plan
from fulcrum.simulation.data.input_scaling import save_inputs
from fulcrum.simulation.tuning import CLIP_NORMS, LEARNING_RATES, LEAST_INFLUENCES, Tuned, public_task, tune
from fulcrum.simulation.tuning_search import INPUT_POWERS, Combination, Try
from fulcrum.views.terminal.screen import Result, facts, phases, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import with_error
from fulcrum.words.reproduction import reproducing_commands

TRIES_SHOWN = 12
"""The most combinations of the table; JSON and CSV have all of them."""

_PUBLIC = "Every try used {data} alone, which must be public or synthetic: no epsilon counts tuning on silos' own data."
_AGREE = (
    "Public data does not show how the regions of silos differ. Least influence below 1 takes influence from small "
    "regions: rehearse a conflict with fulcrum compare --train --conflict."
)
_STOPPED = "The search was stopped: the choice is the best so far, and no other seeds confirm it."


def tune_command(
    plan_file: PlanArgument,
    *,
    data: Annotated[
        str, option("Public or synthetic data, never the silos' own; named as for `fulcrum train`.", TRAINING)
    ],
    output: Annotated[
        Path,
        output_option(
            "File to write the new plan to. Variances and factors of the inputs, if chosen, go to a file beside it."
        ),
    ],
    rounds: Annotated[
        str | None, option("Numbers of rounds to try, separated by commas. Default: 1, 3 and the plan's.", TRAINING)
    ] = None,
    learning_rates: Annotated[
        str | None,
        option(
            f"Learning rates to try, separated by commas. Default: {listing(map(str, LEARNING_RATES))}, and 0.5, 2, 5 "
            "for the units person and record.",
            TRAINING,
        ),
    ] = None,
    clip_norms: Annotated[
        str | None,
        option(
            "Clip norms to try with the recipe paper, separated by commas; the recipe joint clips by the noise. "
            f"Default: {listing(f'{norm:g}' for norm in CLIP_NORMS)}.",
            TRAINING,
        ),
    ] = None,
    least_influences: Annotated[
        str | None,
        option(
            "Least influences to try with the recipe joint, separated by commas. Default: "
            f"{listing(f'{least:g}' for least in LEAST_INFLUENCES)}, and the plan's.",
            TRAINING,
        ),
    ] = None,
    input_powers: Annotated[
        str | None,
        option(
            "Powers of the public variances that scale the inputs, separated by commas; 0 scales none. Default: "
            f"{listing(f'{power:g}' for power in INPUT_POWERS)} for rows of numbers.",
            TRAINING,
        ),
    ] = None,
    seeds: Annotated[
        int, number("Number of seeds that confirm the choice; as many other seeds choose in the last stage.", TRAINING)
    ] = 5,
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
    classes: Annotated[
        str | None,
        option(
            "Names of all classes in order, as for `fulcrum train`. Default: the labels that occur.",
            TRAINING,
        ),
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
    own: ModelOptions | None = None,
    device: DeviceOption = None,
    style: FormatOption = "table",
) -> int:
    """Try recipe, clip, rate, rounds, prior and input scaling on public data, for a plan with the same promise."""
    check_output(output)
    inputs_file = output.with_name(f"{output.stem}-inputs.json")
    check_output(inputs_file)
    old_plan = read_plan(plan_file)
    learning = TrainingOptions(
        data=data,
        data_dir=data_dir,
        components=components,
        label=label,
        classes=classes,
        person_column=person_column,
        ranges=ranges,
    )
    task = public_task(data, **learning.data_options)
    lists: dict[str, Any] = {
        "rounds": rounds and whole_numbers(rounds, "--rounds"),
        "learning_rates": learning_rates and numbers(learning_rates, "--learning-rates"),
        "clip_norms": clip_norms and numbers(clip_norms, "--clip-norms"),
        "least_influences": least_influences and numbers(least_influences, "--least-influences"),
        "input_powers": input_powers and numbers(input_powers, "--input-powers"),
    }
    with phases() as tell, prints_to_stderr():
        tuning = tune(
            old_plan,
            task,
            seeds=seeds,
            training=learning.training_for(old_plan.unit),
            model=None if own is None else own.load(),
            device=device,
            metric=metric,
            inputs_name=inputs_file.name,
            on_try=lambda done, total: tell("Tried on public data", done, total),
            **{name: values for name, values in lists.items() if values is not None},
        )
    save_plan(tuning.plan, output)
    if tuning.inputs is not None:
        save_inputs(tuning.inputs, inputs_file)
    command = reproducing_commands(tuning.plan)[0].replace("PUBLIC_INPUTS", shlex.quote(inputs_file.name))
    scaled = tuning.best.input_power > 0
    training = f"--learning-rate {tuning.best.learning_rate:g}"
    training += f" --input-factors {shlex.quote(inputs_file.name)}" if scaled else ""
    lines = _facts(tuning, task.name)
    lines += [("guarantee", guarantee_of(tuning.plan).statement), ("plan again", command), ("train with", training)]
    if tuning.inputs is not None:
        lines.append(("inputs", f"{inputs_file}: variances and factors, from {task.name}"))
    lines.append(("written to", f"{output}; sign it anew, and train with these settings"))
    columns = (
        Column(key="settings", heading="settings", figures=False),
        Column(key="seeds", heading="seeds"),
        Column(key="accuracy_shown", heading=tuning.metric),
        Column(key="behind_shown", heading="behind the\nbest, points"),
    )
    rows = [asdict(tried) for tried in tuning.tries]
    table_rows = [
        {
            "settings": settings_in_words(tried),
            "seeds": tried.seeds,
            "behind_shown": _behind(tried),
            "accuracy_shown": with_error(tried.accuracy, tried.accuracy_se),
        }
        for tried in tuning.tries[:TRIES_SHOWN]
    ]
    title = f"{old_plan.federation.name} on {task.name}: {len(rows):,} combinations, every try at the plan's promise"
    picture = [table(title, columns, table_rows, total=len(rows)), facts(lines), remarks(_notes(tuning, task.name))]
    data_out = {
        "public_data": task.name,
        "output": str(output),
        "plan_digest": tuning.plan.digest,
        "metric": tuning.metric,
        "best": asdict(tuning.best),
        "settings": tuning.settings | ({"public": inputs_file.name} if tuning.plan.spectrum is not None else {}),
        "training": {"learning_rate": tuning.best.learning_rate}
        | ({"input_factors": inputs_file.name} if scaled else {}),
        "command": command,
        "inputs": None if tuning.inputs is None else str(inputs_file),
        "choosing_seeds": list(tuning.choosing_seeds),
        "confirmation": None if tuning.confirmation is None else asdict(tuning.confirmation),
        "stopped": tuning.stopped,
        "tries": rows,
        "left_out": tuning.left_out,
    }
    show(Result(data=data_out, rows=rows, picture=picture), style)
    return 0


def settings_in_words(combination: Combination) -> str:
    """Returns the settings of a combination in words."""
    words = [combination.recipe, f"{combination.rounds} round{'s' * (combination.rounds != 1)}"]
    words.append(f"rate {combination.learning_rate:g}")
    words.append("clip by noise" if isinstance(combination.clip_norm, str) else f"clip {combination.clip_norm:g}")
    if combination.recipe != "paper":
        words.append(f"least influence {combination.least_influence:g}")
    words += ["prior"] if combination.prior else []
    words += [f"inputs scaled, power {combination.input_power:g}"] if combination.input_power else []
    return ", ".join(words)


def _facts(tuning: Tuned, data: str) -> list[tuple[str, str]]:
    """Returns the choice, the seeds that chose, and the figures under other seeds."""
    unchanged = "as planned, since nothing is better by more than two standard errors"
    best = "the most accurate" if tuning.metric == "accuracy" else f"the best {tuning.metric}"
    lines = [
        ("taken", f"{settings_in_words(tuning.best)}: {best if tuning.best.changes else unchanged}"),
        ("chosen by", f"{data}, {seeds_in_words(tuning.choosing_seeds)}"),
    ]
    if (figures := tuning.confirmation) is not None:
        gain = with_error(100 * figures.gain, 100 * figures.gain_se, "+.2f")
        lines.append(
            (
                "other seeds",
                f"{tuning.metric} {with_error(figures.chosen, figures.chosen_se)}; as planned "
                f"{with_error(figures.planned, figures.planned_se)}; {gain} points "
                f"({seeds_in_words(figures.seeds)}, which chose nothing)",
            )
        )
    return lines


def seeds_in_words(seeds: tuple[int, ...]) -> str:
    """Returns seeds in words.

    >>> seeds_in_words((1000, 1001, 1002)), seeds_in_words((7,))
    ('3 seeds, 1000 to 1002', '1 seed, 7')
    """
    some = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    if seeds != tuple(range(seeds[0], seeds[-1] + 1)):
        some = listing(map(str, seeds))
    return f"{count_of_seeds(len(seeds))}, {some}"


def _notes(tuning: Tuned, data: str) -> list[tuple[bool, str]]:
    notes = [(True, _STOPPED)] if tuning.stopped else []
    notes.append((False, _PUBLIC.format(data=data)))
    if tuning.best.recipe != "paper" and tuning.best.least_influence < 1:
        notes.append((False, _AGREE))
    if tuning.best.input_power:
        notes.append(
            (
                False,
                "Scaled inputs: every silo multiplies each input by its public factor before training. The factors "
                f"follow from the variances of the inputs in {data}.",
            )
        )
    return notes + [(False, f"{name} was not tried: {reason}") for name, reason in tuning.left_out.items()]


def _behind(tried: Try) -> str:
    return "" if not tried.behind else f"{100 * tried.behind:.2f} ± {100 * tried.behind_se:.2f}"
