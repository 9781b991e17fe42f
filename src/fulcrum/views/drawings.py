"""The charts of a plan and of what training learned, each with its figures as a table; for the report and the page."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from fulcrum.federation.structure import SILO
from fulcrum.planning.advice import information_ceiling
from fulcrum.planning.comparing import observer_trade
from fulcrum.planning.plan import Plan
from fulcrum.simulation.results import Results
from fulcrum.views.chart_style import Spec
from fulcrum.views.charts import (
    accuracy_chart,
    information_chart,
    information_rows,
    learning_chart,
    price_chart,
    trade_chart,
)
from fulcrum.views.numbers import figure, shown_epsilon, with_error
from fulcrum.views.region_charts import epsilon_chart, region_rows, tree_chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart: its specification, and its figures as the rows of a table, made when they are asked for."""

    key: str
    spec: Spec
    headings: tuple[str, ...]
    rows: Iterable[tuple[str, ...]]
    width: int = 620


def plan_drawings(plan: Plan, *, points: int = 17) -> Iterable[Drawing]:
    """Yields the charts of a plan; `points` is the number of divisions that the trade between observers shows."""
    regions = region_rows(plan)
    injected = plan.injection == "aggregator"
    noise = "noise on the sum" if injected else "noise multiplier"
    yield Drawing(
        key="tree",
        spec=tree_chart(regions, name=plan.federation.name, injected=injected),
        headings=(regions[0]["tier"], "silos", noise),
        rows=((row["name"], f"{row['silos']:,}", row["noise_shown"]) for row in regions),
    )
    columns = ("above", "inside", "uniform_above", "uniform_inside")
    yield Drawing(
        key="epsilon",
        spec=epsilon_chart(regions, allocation=plan.allocation, injected=injected),
        headings=(regions[0]["tier"], "ε above", "ε inside", "ε above, uniform", "ε inside, uniform"),
        rows=((row["name"], *(shown_epsilon(row[column]) for column in columns)) for row in regions),
    )
    trades = observer_trade(plan, points=points)
    above, inside = plan.worst_epsilon(), plan.worst_epsilon(SILO)
    asked = plan.requirement.multiplier
    one_wish = set(asked) <= {plan.federation.innermost.name, SILO} and all(np.ndim(q) == 0 for q in asked.values())
    if trades and one_wish:  # else worst epsilons do not say whose promise is kept
        yield Drawing(
            key="trade",
            spec=trade_chart(trades, above=above, inside=inside),
            headings=("worst ε inside", "worst ε above"),
            rows=((shown_epsilon(trade.inside_at_budget), shown_epsilon(trade.above_at_budget)) for trade in trades),
            width=300,
        )
    if trades:
        yield Drawing(
            key="price",
            spec=price_chart(trades, inside=inside, budget=plan.noise_budget),
            headings=("worst ε inside", "noise budget, C²", "of uniform's"),
            rows=(
                (
                    shown_epsilon(trade.epsilon_inside),
                    figure(trade.noise_budget),
                    f"{trade.noise_budget / trades[-1].noise_budget:.1%}",
                )
                for trade in trades
            ),
            width=300,
        )
    learned = information_rows(plan)
    yield Drawing(
        key="information",
        spec=information_chart(learned, ceiling=information_ceiling(plan), target=plan.target.information),
        headings=("round", "observer", "nats at most"),
        rows=((str(row["round"]), row["observer"], f"{row['nats']:.4g}") for row in learned),
    )


def run_drawings(results: Results) -> Iterable[Drawing]:
    """Yields the charts of what training learned."""
    run, compared = results.run, results.comparison
    reference = None if run is None else run.reference
    if compared is not None:
        rows = [msgspec.structs.asdict(row) for row in compared.rows]
        yield Drawing(
            key="accuracy",
            spec=accuracy_chart(rows, reference=reference),
            headings=("allocation", "noise budget, C²", "accuracy", "gain over uniform, points"),
            rows=(
                (
                    row.allocation,
                    figure(row.noise_budget),
                    with_error(row.accuracy, row.accuracy_se, ".3f"),
                    with_error(100 * row.gain, None if row.gain_se is None else 100 * row.gain_se, "+.2f"),
                )
                for row in compared.rows
            ),
        )
    if run is not None:
        rounds = [msgspec.structs.asdict(row) for row in run.rounds]
        yield Drawing(
            key="learning",
            spec=learning_chart(rounds, reference=reference),
            headings=("round", "accuracy"),
            rows=((str(row.round), with_error(row.accuracy, row.accuracy_se, ".3f")) for row in run.rounds),
        )
