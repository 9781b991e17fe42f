"""The command that compares every allocation at the same target, and trains with --train."""

from collections.abc import Container, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import RenderableType

from fulcrum.cli.plan_commands.compare_real import SPLITS, compare_real
from fulcrum.cli.plan_commands.compare_settings import (
    SettingsOptions,
    settings_table,
    train_under_settings,
    words_on_settings,
)
from fulcrum.cli.shared_options.federations import (
    ColumnOption,
    NameOption,
    ThousandsOption,
    federation_argument,
    note_on_coalitions,
)
from fulcrum.cli.shared_options.model_options import DeviceOption, ModelOptions, model_words, prints_to_stderr
from fulcrum.cli.shared_options.options import (
    TRAINING,
    FederationArgument,
    FormatOption,
    RunOption,
    number,
    option,
    words_of,
)
from fulcrum.cli.shared_options.target_options import ComparedTargetOptions
from fulcrum.cli.shared_options.training_options import TrainingOptions, count_of_seeds
from fulcrum.core.privacy_unit import SILO_UNIT
from fulcrum.errors import ParameterError, listing
from fulcrum.planning.comparisons.comparison import (
    EACH_SILO,
    HALF_THE_ROUNDS,
    ONE_GROUP,
    UNIT_PERSON,
    Comparison,
    compare_plans,
)
from fulcrum.readers.profiles import PROFILES
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.real_federations import REAL
from fulcrum.simulation.model_engines import metric_of
from fulcrum.simulation.training_runs import notes_on, partition_of, sized_by_data
from fulcrum.simulation.trials import (
    TrainedComparison,
    compare_trained,
    comparison_on_task,
    default_spectrum,
    draw_sizes,
    row_plan_on_task,
    save_comparison,
)
from fulcrum.views.terminal.plan_tables import (
    comparison_columns,
    comparison_rows,
    influence_columns,
    observers_in_words,
    other_influences,
    scaled_rows,
    training_sentence,
)
from fulcrum.views.terminal.screen import Result, progress, remarks, show, table, tell_at_once, working


def compare_command(
    federation: FederationArgument,
    *,
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    name: NameOption = None,
    target: ComparedTargetOptions,
    train: Annotated[
        bool,
        Parameter(help="Train every allocation too, all on the same batches and noise draws.", group=TRAINING),
    ] = False,
    seeds: Annotated[int | None, number("Number of seeds with --train. Default: 10.", TRAINING)] = None,
    splits: Annotated[
        int | None,
        number(
            "Number of splits by person with --train, for a real federation (eicu, tcga-brca or heart). Default: 20.",
            TRAINING,
        ),
    ] = None,
    check_counts: Annotated[
        bool,
        Parameter(
            help="With --train, for a real federation: refuse tables without the published number of rows.",
            group=TRAINING,
        ),
    ] = True,
    size_law: Annotated[
        Literal["declared", "lognormal"] | None,
        option(
            "Silo sizes with --train: as the federation declares, or drawn anew for every seed. Default: declared.",
            TRAINING,
        ),
    ] = None,
    conflict: Annotated[
        bool,
        Parameter(
            help="With --train: permute the labels of the largest region, to see the risk if regions disagree about "
            "labels. Accuracy is then the mean over regions, each by its own labels.",
            negative=(),
            group=TRAINING,
        ),
    ] = False,
    sweep: SettingsOptions | None = None,
    learning: TrainingOptions | None = None,
    own: ModelOptions | None = None,
    device: DeviceOption = None,
    output: RunOption = None,
    style: FormatOption = "table",
) -> int:
    """Compare every allocation at the same target, and train all of them with --train."""
    counts = target.counts()
    is_sweep = sweep is not None or len(counts) > 1
    if train and federation in REAL and (learning is None or learning.data in (None, federation)):
        others = (learning and replace(learning, data=None, data_dir=None)) or TrainingOptions()
        if others != TrainingOptions() or is_sweep or not all(c is None for c in (own, device, seeds, size_law)):
            raise ParameterError("cli.real-training-unneeded", name=federation)
        for word, chosen in {"conflict": conflict, "column": column, "thousands": thousands, "name": name}.items():
            if chosen:
                raise ParameterError("cli.real-option-unneeded", option=f"--{word}", name=federation)
        folder = None if learning is None else learning.data_dir
        single: Any = replace(target)  # of the base class, whose rounds are a number
        single.rounds = counts[0]
        return compare_real(
            federation,
            single,
            folder=folder,
            splits=SPLITS if splits is None else splits,
            check_counts=check_counts,
            output=output,
            style=style,
        )
    if splits is not None or not check_counts:
        option_given = "--no-check-counts" if splits is None else "--splits"
        raise ParameterError("cli.splits-unneeded", option=option_given, known=listing(REAL))
    topology = federation_argument(federation, column, thousands, name).federation
    arguments = target.arguments(topology)
    rows: Sequence[Comparison]
    trained: Sequence[TrainedComparison]
    result: list[tuple[bool, str]] = []
    remarks_on_data: Sequence[str] = ()
    if not train and (
        conflict or is_sweep or not all(choice is None for choice in (learning, own, device, seeds, size_law, output))
    ):
        raise ParameterError("cli.compare-needs-train")
    learning, seeds, size_law = learning or TrainingOptions(), 10 if seeds is None else seeds, size_law or "declared"
    unit, metric = SILO_UNIT, "accuracy"
    settings_words: list[str] = []
    settings_tables: list[RenderableType] = []
    if train:
        learning = replace(learning, data=learning.source)
        task = read_data(learning.source, topology, **learning.data_options)
        model = None if own is None else own.load()
        side_by_side = comparison_on_task(task, topology, target.allocation, arguments, model)
        unit = side_by_side.unit
        training = learning.training_for(unit)
        if output is not None:
            run_folder(output)
        metric = metric_of(model, task)
        how: dict[str, Any] = {
            "seeds": seeds,
            "training": training,
            "model": model,
            "device": device,
            "records": learning.records,
            "size_law": size_law,
            "allocation": target.allocation,
            "conflict": conflict,
        }
        if is_sweep:
            chosen = (sweep or SettingsOptions()).arguments()
            with prints_to_stderr():
                compared = train_under_settings(
                    topology,
                    task,
                    **chosen | how | arguments | {"rounds": counts, "data_options": learning.data_options},
                )
            rows = trained = compared.rows
            settings_words, settings_tables = words_on_settings(compared), [settings_table(compared.rows)]
        else:
            with progress("Training every allocation", counts[0], metric=metric) as advance, prints_to_stderr():
                rows = trained = compare_trained(
                    topology,
                    task,
                    on_round=advance,
                    on_part=advance.within,
                    on_note=tell_at_once,
                    **how,
                    **arguments,
                )
        result = [(False, training_sentence(trained))]
        first = sized_by_data(draw_sizes(topology, size_law, 0), task, unit, records=learning.records)
        if unit.is_within_silo:
            persons = next(iter(side_by_side.plans.values())).federation.persons
            first = replace(first, persons=persons if task.silo is not None else first.sizes)
        part = partition_of(task, first, seed=0, records=learning.records)
        remarks_on_data = notes_on(task, first, part, training, records=learning.records, unit=unit)
        remarks_on_data += () if model is None else model.notes
        if arguments.get("public") is None and default_spectrum(task, model) is not None:
            remarks_on_data += (
                f"joint: the server's prior reads the variances of the inputs over the training split of {task.name}, "
                "outside every epsilon. A deployment takes the variances from public data: --public FILE.",
            )
        if output is not None:
            who = federation if federation in PROFILES else "FEDERATION"
            law = "" if size_law == "declared" else f"--size-law {size_law} "
            law += "--conflict " if conflict else ""
            law += "" if sweep is None or not words_of(sweep) else f"{words_of(sweep)} "
            local = f"{words_of(learning, 'data')} {model_words(own, device)}--seeds {seeds}"
            command = f"fulcrum compare {who} {words_of(target)} --train {law}{local} -o run"
            save_comparison(
                rows,
                output,
                federation=topology,
                task=task.name,
                seeds=seeds,
                size_law=size_law,
                conflict=conflict,
                command=command,
                **arguments,
            )
    else:
        with working("Comparing"):
            side_by_side = compare_plans(topology, target.allocation, arguments, levers=True)
            rows, unit = side_by_side.comparisons(), side_by_side.unit
    joint = side_by_side.plans.get("joint")
    if train and "joint" in side_by_side.rows:
        joint = row_plan_on_task(first, task, "joint", side_by_side.rows["joint"], arguments, model)
    remarks_on_data = [*remarks_on_data, *(f"{name} is left out: {why}" for name, why in side_by_side.left_out.items())]
    if target.injection == "silo":  # an aggregator's noise is known to no silo, so no coalition takes it away
        note_on_coalitions(topology, colluders=target.colluders, dropouts=target.dropouts)
    rounds_words = f"{' or '.join(map(str, counts))} rounds"
    terms = f"{rounds_words}, delta {target.delta:g}, {target.accountant or 'exact'}"
    heading = f"{topology.name}: {len(topology):,} silos, {terms}"
    if unit.is_within_silo:
        heading += f"; {unit.relation}"
    if train:
        heading += f"; {learning.source}, {count_of_seeds(seeds)}"
    inner = topology.innermost.name
    notes = [
        f"Noise budget: the noise variance that enters the model in one round, in C²{scaled_rows(side_by_side.plans)}. "
        + observers_in_words(inner, aggregation=target.aggregation, colluders=target.colluders)
    ]
    if unit.is_within_silo:
        notes.append(
            f"{EACH_SILO.capitalize()}: each silo draws noise for its own {unit.noun}s, so the target holds inside. "
            f"{ONE_GROUP.capitalize()}: all silos are masked together, and nobody sees a sum of a {inner}."
        )
    elif target.colluders or target.dropouts:
        notes.append(
            "The allocation optimal has one multiplier in each region; least-under-collusion may have several."
        )
    if not unit.is_within_silo:
        notes.extend(_words_on_levers(side_by_side.plans, inner, target.aggregation))
    influence = [f"Influence: the {inner}'s share of the model divided by its share by size."]
    if joint is not None and (words := other_influences(joint)):
        influence.append(f"Joint, {words.removeprefix('; ')}.")
    if train:
        notes.append(f"Gain: points of {metric} above {side_by_side.baseline}, paired over seeds.")
        if conflict:
            notes.append(
                f"Conflict: the {inner} with the most records has the labels of the next class, the last class the "
                f"labels of the first. Accuracy is the mean over {inner}s, each by its own labels and counted once."
            )
        influence.append(
            f"Worst {inner}: the lowest {metric} of any {inner}, on "
            + (
                f"test records with the class mixture of the {inner}."
                if task.silo_test is None
                else "the test records of its silos."
            )
        )
    table_rows = comparison_rows(rows)
    tables = [
        table(heading, comparison_columns(train, metric), table_rows, note=" ".join(notes)),
        table(
            "Regions that lose influence",
            influence_columns(topology, train, metric),
            table_rows,
            note=" ".join(influence),
        ),
    ]
    records = [asdict(row) for row in rows]
    tables += settings_tables
    lines = [*((False, note) for note in (*remarks_on_data, *settings_words)), *result]
    picture = [*tables, remarks(lines)] if lines else tables
    show(Result(data=records, rows=records, picture=picture), style)
    return 0


def _words_on_levers(rows: Container[str], inner: str, aggregation: str) -> list[str]:
    """Returns sentences on the rows beyond the paper that a reader could not place by their names."""
    words = [f"Equal: equal weights within a {inner}, and every {inner} has its share."] if "equal" in rows else []
    if HALF_THE_ROUNDS in rows:
        words.append(f"{HALF_THE_ROUNDS.capitalize()}: the same epsilon over fewer rounds.")
    others = [name for name in (ONE_GROUP, UNIT_PERSON) if name in rows]
    if others:
        words.append(f"Another promise: {' and '.join(others)}.")
    if ONE_GROUP in rows and aggregation != "masked":
        words.append(
            f"{ONE_GROUP.capitalize()}: nobody sees the sum of a {inner}; above is an observer outside the federation "
            f"who sees the sum of all silos, and inside the server together with a silo of each {inner}."
        )
    if UNIT_PERSON in rows:
        words.append(
            f"{UNIT_PERSON.capitalize()}: epsilon is for all records of one person, and C limits the gradient of one "
            "person, so the noise cannot be compared."
        )
    return words
