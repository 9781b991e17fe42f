"""Plans, comparisons, runs and audits as HTML for a notebook: a verdict, a table and a chart.

>>> from fulcrum.planning.planner import plan
>>> "An observer who saw all rounds" in html_of(plan("isic-paper", rounds=10, epsilon=1.0))
True

The template escapes every text. A chart is a picture inside the page, so a stored notebook shows the chart without
Fulcrum. Without vl-convert-python the display has no chart, and says so.
"""

import base64
from dataclasses import asdict, dataclass
from typing import Any

from fulcrum.audit.evidence.findings import VIOLATED, Audit
from fulcrum.errors import MissingExtraError
from fulcrum.planning.comparisons.comparison import Comparisons
from fulcrum.planning.plan import Plan
from fulcrum.simulation.training_runs import TrainingRun
from fulcrum.simulation.trials import TrainedComparison
from fulcrum.views.charts.chart_style import STILL_FONT, Spec, svg
from fulcrum.views.charts.plan_charts import accuracy_chart, budget_chart, learning_chart
from fulcrum.views.charts.region_charts import epsilon_chart, region_rows
from fulcrum.views.html import render
from fulcrum.views.terminal.audit_tables import audit_chart, audit_section, verdict_lines
from fulcrum.views.terminal.plan_tables import (
    comparison_columns,
    comparison_rows,
    metric_of_rows,
    purpose_in_words,
    training_sentence,
)
from fulcrum.words.numbers import epsilon_text, figure, percent, with_error
from fulcrum.words.verdict import verdict

MOST_ROUNDS = 12
"""The most rounds in the table of a run; the chart has all rounds."""

_WIDTH = 620


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """The display of a result.

    Attributes:
        title: The title.
        verdict: The verdict in sentences.
        is_warning: True for a verdict that warns.
        headings: The headings of the table.
        rows: The cells of the table, as texts.
        note: A sentence below the table.
        spec: The specification of the chart.
        caption: A sentence below the chart.
    """

    title: str
    verdict: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    spec: Spec
    is_warning: bool = False
    note: str = ""
    caption: str = ""


def html_of(result: Any) -> str:
    """Returns a plan, comparison, run or audit as HTML."""
    display = display_of(result)
    chart, missing = "", ""
    try:
        drawn = svg(display.spec, width=_WIDTH, font=STILL_FONT)
        chart = base64.b64encode(drawn.encode()).decode()
    except MissingExtraError as error:
        missing = str(error)
    return render("notebook.html", display=display, chart=chart, missing=missing)


def display_of(result: Any) -> Display:
    """Returns the display of a result: words, table and chart."""
    if isinstance(result, Plan):
        return _plan_display(result)
    if isinstance(result, Comparisons):
        return _comparison_display(result)
    if isinstance(result, TrainingRun):
        return _run_display(result)
    if isinstance(result, Audit):
        return _audit_display(result)
    raise TypeError(f"no display shows a {type(result).__name__}")


def _plan_display(plan: Plan) -> Display:
    regions, judgement = region_rows(plan), verdict(plan)
    injected = not plan.silos_draw_noise
    noise = "noise on the sum" if injected else "noise multiplier"
    return Display(
        title=f"{plan.federation.name}: {len(plan.federation):,} silos, {plan.rounds} rounds, delta {plan.delta:g}, "
        f"allocation {plan.allocation}",
        verdict=judgement.sentence,
        is_warning=judgement.level == "warning",
        headings=(regions[0]["tier"], "silos", noise, "influence", "ε above", "ε inside"),
        rows=[
            (
                row["name"],
                f"{row['silos']:,}",
                row["noise_shown"],
                percent(row["influence"]),
                epsilon_text(row["above"]),
                epsilon_text(row["inside"]),
            )
            for row in regions
        ],
        note=f"Noise budget {figure(plan.model_noise)} C², {percent(plan.model_saving)} less than uniform noise. "
        + purpose_in_words(plan),
        spec=epsilon_chart(regions, allocation=plan.allocation, injected=injected, one_group=plan.one_group),
        caption="" if plan.allocation == "uniform" else "Filled points: this plan. Open points: uniform noise.",
    )


def _comparison_display(rows: Comparisons[Any]) -> Display:
    trained = [row for row in rows if isinstance(row, TrainedComparison)]
    private = [row for row in rows if row.noise_budget > 0]
    least = min(private, key=lambda row: row.noise_budget)
    words = training_sentence(trained) if trained else rows.least_noise_sentence()
    metric = metric_of_rows(rows)
    columns = comparison_columns(bool(trained), metric)
    texts = comparison_rows(rows)
    spec = budget_chart([asdict(row) for row in private])
    if trained:
        spec = accuracy_chart([asdict(row) for row in trained], reference=trained[0].reference, metric=metric)
    return Display(
        title=f"{len(rows)} ways to keep one target",
        verdict=words,
        headings=tuple(
            "mean" if column.heading == "\nmean" else column.heading.replace("\n", " ") for column in columns
        ),
        rows=[
            tuple(
                epsilon_text(text[column.key])
                if column.epsilon
                else figure(text[column.key])
                if isinstance(text[column.key], float)
                else str(text[column.key])
                for column in columns
            )
            for text in texts
        ],
        note=f"With {least.allocation} the least represented region keeps {least.least_influence:.2f} of its influence "
        "by size.",
        spec=spec,
    )


def _run_display(run: TrainingRun) -> Display:
    rounds = run.by_round()
    shown = rounds[-MOST_ROUNDS:]
    last, seeds = rounds[-1], len(run.seeds)
    reached = with_error(last["accuracy"], last["accuracy_se"])
    left_out = len(rounds) - len(shown)
    return Display(
        title=f"{run.plan.federation.name} trained on {run.task.name}: {len(rounds)} rounds, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}",
        verdict=f"After {len(rounds)} rounds the {run.metric} is {reached}; without clip and noise "
        f"{run.reference.mean():.3f}. Seeded noise protects no silo: a run in process is for research.",
        headings=("round", run.metric),
        rows=[(f"{row['round']:g}", with_error(row["accuracy"], row["accuracy_se"])) for row in shown],
        note=" ".join(
            [
                *([f"The first {left_out} rounds are in the chart alone."] if left_out else []),
                *map(_sentence, run.notes),
            ]
        ),
        spec=learning_chart(rounds, reference=float(run.reference.mean()), metric=f"test {run.metric}"),
    )


def _audit_display(audit: Audit) -> Display:
    section = audit_section(audit)
    facts = dict(verdict_lines(audit))
    return Display(
        title=f"{audit.federation}: {len(audit.findings)} observers played by replay",
        verdict=_sentence(facts["verdict"]) + f" Confidence {facts['confidence']}.",
        is_warning=audit.verdict == VIOLATED,
        headings=section["headings"],
        rows=section["rows"],
        note=" ".join(map(_sentence, [*section["reasons"], *section["notes"]])),
        spec=audit_chart(audit),
    )


def _sentence(text: str) -> str:
    """Returns a text with a capital first letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}"
