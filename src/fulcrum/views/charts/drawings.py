"""The charts of a plan and of training, with their figures as tables, for the report and the page."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from fulcrum.core.topology import SILO
from fulcrum.planning.comparisons.comparison import observer_trade
from fulcrum.planning.comparisons.weight_tradeoff import equal_weights, own_choice, weight_choices
from fulcrum.planning.content.plan_facts import information_ceiling
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.leakage import shown_nats
from fulcrum.server.run_results import Results
from fulcrum.views.charts.chart_style import Spec
from fulcrum.views.charts.plan_charts import (
    accuracy_chart,
    information_chart,
    information_heading,
    information_rows,
    learning_chart,
    price_chart,
    trade_chart,
)
from fulcrum.views.charts.region_charts import epsilon_chart, region_rows
from fulcrum.views.charts.tree_chart import stacked_tree_chart, tree_chart
from fulcrum.views.charts.weights_chart import CHOICE_HEADINGS, choice_rows, weights_chart
from fulcrum.words.numbers import epsilon_text, figure, percent, with_error
from fulcrum.words.recipe_words import share_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart: its specification, and its figures as the rows of a table, which are made on demand.

    Attributes:
        key: The name of the chart's place in a page.
        spec: The specification.
        headings: The headings of the table.
        rows: The figures, as texts.
        width: The width of the plot on paper, in pixels.
        narrow: The specification for a page that is too narrow for `spec`.
    """

    key: str
    spec: Spec
    headings: tuple[str, ...]
    rows: Iterable[tuple[str, ...]]
    width: int = 620
    narrow: Spec | None = None

    @property
    def specs(self) -> dict[str, Spec]:
        """Returns the chart's specifications by the keys under which the script of a page looks up charts."""
        return {self.key: self.spec} | ({} if self.narrow is None else {f"{self.key}-narrow": self.narrow})


def plan_drawings(plan: Plan, *, points: int = 17) -> Iterable[Drawing]:
    """Yields the charts of a plan; `points` is the number of divisions in the trade between observers."""
    regions = region_rows(plan)
    injected = not plan.silos_draw_noise
    noise = "noise on the sum" if injected else "noise multiplier"
    by = f"by {share_rule(plan)}"
    tree = tree_chart(regions, name=plan.federation.name, injected=injected)
    yield Drawing(
        key="tree",
        spec=tree,
        headings=(regions[0]["tier"], "silos", noise, "influence", f"share {by}"),
        rows=(
            (
                row["name"],
                f"{row['silos']:,}",
                row["noise_shown"],
                percent(row["influence"]),
                percent(row["by_size"]),
            )
            for row in regions
        ),
        width=max(660, tree["usermeta"]["least_width"]),
        narrow=stacked_tree_chart(regions, name=plan.federation.name, injected=injected),
    )
    columns = ("above", "inside", "uniform_above", "uniform_inside")
    yield Drawing(
        key="epsilon",
        spec=epsilon_chart(regions, allocation=plan.allocation, injected=injected, one_group=plan.one_group),
        headings=(regions[0]["tier"], "ε above", "ε inside", "ε above, uniform", "ε inside, uniform"),
        rows=((row["name"], *(epsilon_text(row[column]) for column in columns)) for row in regions),
    )
    trades = observer_trade(plan, points=points)
    above, inside = plan.worst_epsilon(), plan.worst_epsilon(SILO)
    needs = plan.requirement.multiplier
    same_target = set(needs) <= {plan.federation.innermost.name, SILO} and all(np.ndim(q) == 0 for q in needs.values())
    if trades and same_target:  # with several targets the worst epsilon does not show which target is met
        yield Drawing(
            key="trade",
            spec=trade_chart(trades, above=above, inside=inside),
            headings=("worst ε inside", "worst ε above"),
            rows=((epsilon_text(trade.inside_at_budget), epsilon_text(trade.above_at_budget)) for trade in trades),
            width=300,
        )
    if trades:
        yield Drawing(
            key="price",
            spec=price_chart(trades, inside=inside, budget=plan.noise_budget),
            headings=("worst ε inside", "noise budget, C²", "of uniform's"),
            rows=(
                (
                    epsilon_text(trade.epsilon_inside),
                    figure(trade.noise_budget),
                    f"{trade.noise_budget / trades[-1].noise_budget:.1%}",
                )
                for trade in trades
            ),
            width=300,
        )
    if plan.unit.is_within_silo:  # the information bound is on the class concentration of a silo
        return
    if plan.federation.rosters is not None:  # the chart adds the same information in every round
        return
    learned = information_rows(plan)
    yield Drawing(
        key="information",
        spec=information_chart(
            learned,
            ceiling=information_ceiling(plan),
            target=plan.target.information,
            floor_declared=plan.floor_declared,
            follows=plan.continues_previous_plan,
            above="outside the federation" if plan.one_group else f"above its {plan.federation.innermost.name}",
        ),
        headings=("round", "observer", information_heading(plan.floor_declared)),
        rows=((str(row["round"]), row["observer"], shown_nats(row["nats"])) for row in learned),
    )


def weights_drawing(plan: Plan, *, points: int = 13) -> Drawing | None:
    """Returns the chart of noise and influence at other weights; None without a choice of weights.

    Args:
        plan: The plan; all weights keep its promise.
        points: The number of weights from sizes to least noise in the chart.
    """
    choices = weight_choices(plan, points=points)
    if not choices:
        return None
    equal, own = equal_weights(plan), own_choice(plan)
    return Drawing(
        key="weights",
        spec=weights_chart(choices, own=own, equal=equal, tier=plan.federation.innermost.name),
        headings=CHOICE_HEADINGS,
        rows=choice_rows([*choices, equal], own=own),
    )


def run_drawings(results: Results) -> Iterable[Drawing]:
    """Yields the charts of accuracy and other metrics."""
    run, compared = results.run, results.comparison
    reference = None if run is None else run.reference
    if compared is not None:
        rows = [msgspec.structs.asdict(row) for row in compared.rows]
        compared_metric = compared.rows[0].metric
        yield Drawing(
            key="accuracy",
            spec=accuracy_chart(rows, reference=reference, metric=compared_metric),
            headings=("allocation", "noise budget, C²", compared_metric, "gain over uniform, points"),
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
    for metric, curve in ({} if run is None else run.curves()).items():
        is_first = run is not None and metric == run.metric  # the metric that runs of several seeds have an error of
        yield Drawing(
            key="learning" if is_first else f"learning {metric}",
            spec=learning_chart(
                [{"round": at.round, "accuracy": at.value, "accuracy_se": at.error} for at in curve],
                reference=reference if is_first else None,
                metric=f"test {metric}" if is_first else metric,
            ),
            headings=("round", metric),
            rows=[
                (str(at.round), with_error(at.value, at.error) if is_first or at.error else figure(at.value))
                for at in curve
            ],
        )
