"""The options of a comparison under several settings, its training, and its words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.cli.shared_options.options import TRAINING, number, numbers, option
from fulcrum.errors import ParameterError, listing
from fulcrum.simulation.halving import stage_seeds
from fulcrum.simulation.tuned_rows import (
    CHOOSING_SEEDS,
    CLIP_NORMS,
    TUNED,
    ComparedSettings,
    RowUnderSettings,
    compare_settings,
)
from fulcrum.simulation.tuning import FIRST_CHOOSING_SEED, LEARNING_RATES
from fulcrum.views.terminal.screen import phases, table, tell_at_once
from fulcrum.views.terminal.table_columns import Column


@Parameter(name="*")
@dataclass(kw_only=True)
class SettingsOptions:
    """The options of rows under several settings."""

    tuned: Annotated[
        bool,
        Parameter(
            help="With --train: also train every row with its best clip norm, learning rate and rounds, chosen on "
            "--choosing-data or under seeds that are not reported. For public data and research.",
            negative=(),
            group=TRAINING,
        ),
    ] = False
    clip_norms: Annotated[
        str | None,
        option(
            "Clip norms of a sweep with --train, separated by commas, or those that --tuned chooses from. Default: the "
            f"row's own; with --tuned also {listing(f'{norm:g}' for norm in CLIP_NORMS)}.",
            TRAINING,
        ),
    ] = None
    learning_rates: Annotated[
        str | None,
        option(
            "Learning rates of a sweep with --train, separated by commas, or those that --tuned chooses from. Default: "
            f"--learning-rate; with --tuned also {listing(map(str, LEARNING_RATES))}.",
            TRAINING,
        ),
    ] = None
    choosing_data: Annotated[
        str | None,
        option(
            "Public data that chooses the settings of --tuned, named as --data. Default: --data, under other seeds.",
            TRAINING,
        ),
    ] = None
    choosing_seeds: Annotated[
        int | None,
        number(
            f"Number of seeds that choose the settings of --tuned, from {FIRST_CHOOSING_SEED} on. Default: "
            f"{CHOOSING_SEEDS}.",
            TRAINING,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of `compare_settings`."""
        if not self.tuned and (self.choosing_data is not None or self.choosing_seeds is not None):
            raise ParameterError("cli.choosing-without-tuned")
        lists = {
            name: None if text is None else numbers(text, option_name)
            for name, text, option_name in (
                ("clip_norms", self.clip_norms, "--clip-norms"),
                ("learning_rates", self.learning_rates, "--learning-rates"),
            )
        }
        chosen = {"tuned": self.tuned, "choosing_data": self.choosing_data, **lists}
        return chosen | ({} if self.choosing_seeds is None else {"choosing_seeds": self.choosing_seeds})


def train_under_settings(*arguments: Any, **settings: Any) -> ComparedSettings:
    """Returns the result of `compare_settings`, with progress on stderr."""
    with phases() as tell:
        return compare_settings(
            *arguments,
            **settings,
            on_choice=lambda done, total: tell("Choosing settings", done, total),
            on_row=lambda done, total: tell("Training every row", done, total),
            on_note=tell_at_once,
        )


def settings_table(rows: Sequence[RowUnderSettings]) -> Any:
    """Returns the table of the settings of every row."""
    columns = [
        Column(key="allocation", heading="allocation", figures=False),
        Column(key="rounds", heading="rounds"),
        Column(key="learning_rate", heading="learning\nrate"),
        Column(key="clip", heading="clip norm"),
    ]
    texts = [
        {
            "allocation": row.allocation,
            "rounds": row.rounds,
            "learning_rate": f"{row.learning_rate:g}",
            "clip": "none" if row.noise_budget == 0 else "by noise" if row.clip_norm is None else f"{row.clip_norm:g}",
        }
        for row in rows
    ]
    return table("Settings of every row", columns, texts)


def words_on_settings(compared: ComparedSettings) -> list[str]:
    """Returns sentences on the choice of settings, or on a sweep without a choice."""
    if not compared.choosing_data:
        return [
            "Sweep: the best of these rows is chosen by the same seeds that report it, so its accuracy is too high an "
            "estimate. --tuned chooses by other seeds."
        ]
    seeds = compared.choosing_seeds
    count = len(seeds)
    stages = listing(map(str, stage_seeds(count)))
    words = (
        f"{TUNED.capitalize()} rows: clip norm, learning rate and rounds were chosen on {compared.choosing_data} under "
        f"seeds {seeds[0]} to {seeds[-1]}, which no row reports (successive halving, {stages} seeds)."
    )
    if compared.is_same_data:
        return [
            f"{words} The choice saw the records of this comparison, and no epsilon counts the choice: this is for "
            "research. Silos' settings come from public data: --choosing-data, or fulcrum tune."
        ]
    return [f"{words} {compared.choosing_data} must be public: no epsilon counts settings tuned on silos' own data."]
