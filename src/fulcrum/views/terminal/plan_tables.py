"""A plan, a comparison and the checks of a plan as tables in the terminal; the module computes no figure of its own."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from fulcrum.checks import Check
from fulcrum.core.plan.plan_file import to_json
from fulcrum.core.topology import Topology
from fulcrum.planning.comparisons.comparison import EACH_SILO, NO_PRIVACY, ONE_GROUP, UNIT_PERSON, Comparison
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.content.learning_signal import learnt_at, signal_to_noise
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.content.plan_facts import Advice
from fulcrum.planning.engine_limits import refusals, refusals_on_flower
from fulcrum.planning.files.differences import NOISE_ON_SUM
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.exposure import exposure_of
from fulcrum.planning.theory.leakage import shown_nats
from fulcrum.planning.theory.scheduling import least_multiplier
from fulcrum.planning.theory.weights import region_shares
from fulcrum.simulation.trials import TrainedComparison
from fulcrum.views.terminal.screen import ROWS_SHOWN, Result, facts, listing_below, printable_json, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.noise_words import levers_by_promise, noise_unit_words, trained_words
from fulcrum.words.numbers import figure, span, with_error
from fulcrum.words.person_words import sensitivity_words
from fulcrum.words.recipe_words import proviso, share_rule
from fulcrum.words.schedule_words import phase_words
from fulcrum.words.verdict import Verdict, verdict

_SAME_INFLUENCE = 0.005  # of a share: a smaller difference does not show in print
_SAME_SHARE = 1e-9  # of a budget: the rounding of sums


def metric_of_rows(rows: Sequence[Comparison]) -> str:
    """Returns the name of the metric of trained rows; the accuracy for rows that were not trained."""
    return next((row.metric for row in rows if isinstance(row, TrainedComparison)), "accuracy")


def comparison_columns(trained: bool, metric: str = "accuracy") -> list[Column]:
    """Returns the columns of a comparison, with the metric for trained rows."""
    first = [
        Column(key="allocation", heading="allocation", figures=False),
        Column(key="noise_budget", heading="noise\nbudget"),
    ]
    if trained:
        return [
            *first,
            Column(key="epsilon_above_worst", heading="worst ε\nabove", epsilon=True),
            Column(key="epsilon_inside_worst", heading="worst ε\ninside", epsilon=True),
            Column(key="accuracy_shown", heading=metric),
            Column(key="gain_shown", heading="gain, points"),
        ]
    return [
        *first,
        Column(key="times_optimal", heading="×\noptimal"),
        Column(key="epsilon_above_worst", heading="ε above\nworst", epsilon=True),
        Column(key="epsilon_above_mean", heading="\nmean", epsilon=True),
        Column(key="epsilon_inside_worst", heading="ε inside\nworst", epsilon=True),
        Column(key="epsilon_inside_mean", heading="\nmean", epsilon=True),
    ]


def influence_columns(federation: Topology, trained: bool, metric: str = "accuracy") -> list[Column]:
    """Returns the columns of the least represented region, with the worst metric of any region for trained rows."""
    inner = federation.innermost.name
    columns = [
        Column(key="allocation", heading="allocation", figures=False),
        Column(key="influence_shown", heading=f"influence of the least represented {inner}"),
    ]
    worst = Column(key="worst_region_shown", heading=f"{metric} of the worst {inner}")
    return [*columns, worst] if trained else columns


def comparison_rows(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Returns the rows of a comparison as texts, accuracies and gains with their standard errors."""
    texts = []
    optimal = next((row for row in rows if row.allocation == "optimal"), rows[0])
    for row in rows:
        text = asdict(row) | {
            "times_optimal": "" if row.allocation == UNIT_PERSON else f"{row.noise_budget / optimal.noise_budget:.3f}",
            "influence_shown": f"{row.least_influence:.2f}",
        }
        if isinstance(row, TrainedComparison):
            text["accuracy_shown"] = with_error(row.accuracy, row.accuracy_se)
            text["worst_region_shown"] = with_error(row.worst_region, row.worst_region_se)
            text["gain_shown"] = with_error(100 * row.gain, 100 * row.gain_se, "+.2f")
        texts.append(text)
    return texts


def training_sentence(rows: Sequence[TrainedComparison]) -> str:
    """Returns the accuracies of all trained rows in a sentence; another metric than the accuracy by its name."""
    metric = metric_of_rows(rows)
    wording = {
        EACH_SILO: "silos with noise of their own get {} right",
        "uniform": "one multiplier for all gets {} right",
        "uniform, tuned": "tuned {}",
        "optimal": "the paper's optimum {}",
        "optimal, tuned": "tuned {}",
        "joint": "noise, weights and server chosen together {}",
        "joint, tuned": "tuned {}",
        ONE_GROUP: "one masked sum {}",
    }
    if metric != "accuracy":
        values = [f"{row.allocation} {row.accuracy:.3f}" for row in rows if row.allocation != NO_PRIVACY]
        return (
            f"At the same target, the {metric}: {', '.join(values)}, training without privacy {rows[0].reference:.3f}."
        )
    right = {row.allocation: f"{100 * row.accuracy:.0f}" for row in rows}
    if EACH_SILO in right:
        wording["uniform"] = "one multiplier for all {}"
    parts = [words.format(right[name]) for name, words in wording.items() if name in right]
    parts.append(f"training without privacy {100 * rows[0].reference:.0f}")
    return f"At the same target, of 100 test records {', '.join(parts)}."


def plan_picture(plan: Plan, output: Path | None) -> list[RenderableType]:
    """Returns the picture of a plan: its regions, guarantee, cost and advice."""
    inner, multiplier, injected = plan.federation.innermost, plan.noise_multiplier, plan.aggregator_noise_multiplier
    profile = exposure_of(plan.federation, colluders=plan.colluders, dropouts=plan.dropouts)
    noise = np.sqrt(plan.node_noise(inner.name))
    by_phase = plan.phase_multiplier
    narrowest = multiplier if by_phase is None else least_multiplier(plan.federation, by_phase)
    influence, by_size = plan.node_influence(inner.name), plan.weights_rule == "sizes" and plan.server_rule.adds_up
    rows = []
    for index, name in enumerate(inner.nodes[:ROWS_SHOWN]):
        members = inner.parent_of == index
        rows.append(
            {
                "name": name,
                "silos": int(profile.silos[index]),
                "effective": float(profile.effective_size[index]),
                "noise": span(float(narrowest[members].min()), float(multiplier[members].max()))
                if injected is None
                else float(noise[index]),
                "influence": f"{influence[index]:.1%}",
                "above": float(plan.epsilon_above[members].max()),
                "inside": float(plan.epsilon_inside[members].max()),
            }
        )
    columns = (
        Column(key="name", heading=inner.name, figures=False),
        Column(key="silos", heading="silos"),
        Column(key="effective", heading="effective size"),
        Column(key="noise", heading="noise multiplier" if injected is None else NOISE_ON_SUM),
        *(() if by_size else (Column(key="influence", heading="influence"),)),
        Column(key="above", heading="ε above", epsilon=True),
        Column(key="inside", heading="ε inside", epsilon=True),
    )
    judgement = verdict(plan)
    summary = [
        ("guarantee", guarantee_of(plan).promise),
        ("verdict", judgement.sentence + (f" These are {judgement.basis}." if plan.is_deployment else "")),
        ("noise budget", _on_noise(plan)),
        ("saving", f"{plan.model_saving:z.2%} against uniform; {_attainable(plan)}"),
        ("C²", noise_unit_words(plan)),
        ("parameters", trained_words(plan)),
    ]
    if plan.federation.rosters is not None:
        summary.append(("phases", phase_words(plan)))
    if plan.unit.is_within_silo:
        clip = f"C = {plan.clip_norm:g}, of one {plan.unit.noun}'s gradient: {sensitivity_words(plan)}"
        summary.append(("clip norm", clip))
    if not by_size:
        summary.append(("weights", weights_in_words(plan)))
    if plan.floor is not None:
        learned = float((plan.mechanism_information + plan.floor).max())
        words = f"at most {shown_nats(learned)} nats about a silo's class concentration (bound {plan.target.bound})"
        if not plan.floor_declared:
            words = f"the releases add up to {shown_nats(learned)} nats (bound {plan.target.bound}); no floor declared"
        summary.append(("information", words))
    if output is not None:
        summary.append(("written to", f"{output}; check it with: fulcrum verify {shlex.quote(str(output))}"))
    unit = f", unit {plan.unit.noun}" if plan.unit.is_within_silo else ""
    title = f"{plan.federation.name}: {len(plan.federation):,} silos, allocation {plan.allocation}{unit}"
    picture = [
        table(title, columns, rows, total=len(inner.nodes), elsewhere="the plan file (-o) lists all of them"),
        facts(summary),
    ]
    advice_list = advice_on(plan)
    notes = [*_refusals(plan), *_warnings(judgement, advice_list)]
    for advice in advice_list:
        if advice.saving is not None or advice.changes_promise:
            continue
        measured = ""
        # The measured heads were trained on updates of silos, not on gradients of persons.
        if advice.kind == "signal" and plan.parameters is not None and not plan.unit.is_within_silo:
            measured = f" {learnt_at(signal_to_noise(plan, plan.parameters))}"
        notes.append((advice.warning, advice.text + measured))
    picture.extend([remarks(notes)] if notes else [])
    picture.extend(listing_below(heading, texts) for heading, texts in levers_by_promise(advice_list).items())
    return [*picture, remarks([(False, purpose_in_words(plan, output))])]


def purpose_in_words(plan: Plan, output: Path | None = None) -> str:
    """Returns a sentence on the purpose of a plan and on the next command towards deployment."""
    file = "plan.json" if output is None else shlex.quote(str(output))
    if plan.is_deployment:
        return f"This is a plan for deployment. Sign it with: fulcrum sign {file} --key issuer.key"
    options = ["--purpose deployment"]
    options += ["--parameters N, the number of trained parameters"] if plan.parameters is None else []
    options += ["--injection silo"] if not plan.silos_draw_noise else []
    return (
        "This is a plan for research: it protects nobody, and no issuer signs it. For a plan to deploy, add "
        f"{' and '.join(options)}."
    )


def _refusals(plan: Plan) -> list[tuple[bool, str]]:
    """Returns warnings of engines that refuse to deploy the plan, while the federation can still be changed."""
    if not plan.is_deployment:
        return []
    reasons = {"nvflare": refusals(plan)} | ({"flower": refusals_on_flower(plan)} if plan.is_masked else {})
    warnings = [
        (True, f"`fulcrum deploy {engine}` will refuse this plan: {reason}.")
        for engine, of_engine in reasons.items()
        for reason in of_engine
    ]
    runs = [f"`fulcrum deploy {engine}`" for engine, of_engine in reasons.items() if not of_engine]
    if plan.is_masked and runs:
        return [*warnings, (False, f"Masked sums run with {' or '.join(runs)}.")]
    return warnings


def _warnings(judgement: Verdict, advice_list: Sequence[Advice]) -> list[tuple[bool, str]]:
    """Returns a warning of observers that are nearly always right, unless advice warns of them with a remedy."""
    has_advice = any(advice.kind == "curious-aggregator" for advice in advice_list)
    options = {"above": "--epsilon", "inside": "--epsilon-inside"}
    observers = [
        observer.observer
        for observer in judgement.observers
        if observer.level == "warning" and not (has_advice and observer is judgement.inside)
    ]
    if not observers:
        return []
    whom, remedy = (" and ".join(words) for words in (observers, (options[observer] for observer in observers)))
    return [
        (True, f"Hardly any protection is promised against observers {whom}. Ask for a smaller epsilon with {remedy}.")
    ]


def _on_noise(plan: Plan) -> str:
    """Returns a sentence on the noise in the model, beside the noise of a single multiplier for all."""
    noise = f"{figure(plan.model_noise)} C²{proviso(plan, 'region')}"
    return f"{noise}, uniform would need {figure(plan.uniform_model_noise)}"


def _attainable(plan: Plan) -> str:
    """Returns words on the largest saving of any allocation, called dispersion if equal to the dispersion."""
    if math.isclose(plan.attainable_saving, plan.dispersion, abs_tol=_SAME_SHARE):
        return f"dispersion {plan.dispersion:z.2%}"
    counted = "" if plan.server_rule.adds_up else " in the sums"
    return f"no allocation saves more than {plan.attainable_saving:.2%}{counted}"


def observers_in_words(inner: str, *, aggregation: str, colluders: int) -> str:
    """Returns the sentences below a comparison of plans: who is the observer above, and who is the observer inside."""
    if aggregation != "masked":
        return f"Above: an observer of the sums of a {inner}. Inside: an observer of single updates."
    helpers = "1 silo" if colluders <= 1 else f"{colluders} silos"
    return (
        f"Above: an observer of the sums of a {inner}. Inside: the server together with {helpers} of the {inner}. A "
        f"plan with a single masked group has the global sum alone: above is then an observer of that sum outside the "
        f"federation, and inside the server together with {helpers} of each {inner}."
    )


def scaled_rows(plans: Mapping[str, Plan]) -> str:
    """Returns a note on plans with a noise budget that is a variance times a factor of the server rule."""
    scaled = {name: plan for name, plan in plans.items() if plan.server_rule.noise_factor() != 1}
    return "".join(f"; {name}: {proviso(plan, 'region').strip()}" for name, plan in scaled.items())


def weights_in_words(plan: Plan) -> str:
    """Returns words on the weights, and on the region with the least of its influence by size."""
    inner = plan.federation.innermost
    relative = plan.node_influence(inner.name) / region_shares(plan.federation)
    least = int(np.argmin(np.round(relative, 9)))  # of equals, the first
    rule, server = plan.server_rule, ""
    if not rule.adds_up:
        pooled = "" if plan.region_factors is None else f": these are the shares{proviso(plan, 'region')}"
        server = f", and the server {rule.clause}{pooled}"
    share = f"share by {share_rule(plan)}"
    whose = f"{inner.name} {inner.nodes[least]!r} has {relative[least]:.2g} times its {share}"
    if relative[least] > 1 - _SAME_INFLUENCE:
        whose = f"every {inner.name} has its {share}"
    return f"{plan.weights_rule}{server}; {whose}{other_influences(plan)}"


def other_influences(plan: Plan) -> str:
    """Returns words on least influence 0 and 1 in place of the plan's, for a server that pools; empty for any other.

    The server alone keeps the least influence, after the noise: no silo's noise changes, and nothing is solved.
    """
    if plan.region_factors is None:
        return ""
    inner, shares = plan.federation.innermost.name, region_shares(plan.federation)
    without, whole = (replace(plan, least_influence=least) for least in (0.0, 1.0))
    lowest = float((without.node_influence(inner) / shares).min())
    return (
        f"; least influence {plan.least_influence:g}: 0 would leave the least represented {inner} {lowest:.2g} times "
        f"its share at a noise of {without.model_noise:.4g} C², 1 its whole share at {whole.model_noise:.4g} C²"
    )


def show_plan(plan: Plan, output: Path | None, style: str) -> None:
    """Prints a plan: as a picture, as its file, or as its table by silo."""
    if style == "csv":
        sys.stdout.write(export_plan(plan, "csv"))
    elif style == "json":
        sys.stdout.write(printable_json(to_json(plan.content())))
    else:
        show(Result(data=None, rows=(), picture=plan_picture(plan, output)), style)


def show_checks(
    title: str,
    checks: Sequence[Check],
    style: str,
    *,
    otherwise: str,
    remark: str = "",
    also: Mapping[str, Any] | None = None,
) -> int:
    """Prints checks, and returns the exit code: 1 if a check fails.

    Args:
        title: The title of the table.
        checks: The checks.
        style: The format.
        otherwise: The advice after a failed check.
        remark: A line below the table alone.
        also: Further fields in JSON alone.
    """
    rows = [asdict(check) for check in checks]
    failed = sum(not check.holds for check in checks)
    verdict = "Every check holds." if not failed else f"{failed} of {len(checks)} checks fail: {otherwise}."
    columns = (
        Column(key="name", heading="check", figures=False),
        Column(key="holds", heading="holds", figures=False),
        Column(key="detail", heading="", figures=False),
    )
    picture = [table(title, columns, rows), remarks([(failed > 0, verdict), *([(False, remark)] if remark else [])])]
    data = {"holds": not failed, "checks": rows, **(also or {})}
    show(Result(data=data, rows=rows, picture=picture), style)
    return 1 if failed else 0
