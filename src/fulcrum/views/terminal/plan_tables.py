"""A plan, a comparison and the checks of a plan as tables in the terminal; no figure is computed here."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from fulcrum.checks import Check
from fulcrum.core.plan.plan_file import to_json
from fulcrum.core.topology import Topology
from fulcrum.planning.advice import advice_on, learnt_at, signal_to_noise
from fulcrum.planning.comparison import Comparison
from fulcrum.planning.engine_limits import refusals, refusals_on_flower
from fulcrum.planning.files.differences import NOISE_ON_SUM
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_document import guarantee_of
from fulcrum.planning.theory.exposure import exposure_of
from fulcrum.planning.theory.leakage import shown_nats
from fulcrum.planning.theory.weights import region_shares
from fulcrum.planning.variants import other_weights
from fulcrum.simulation.trials import TrainedComparison
from fulcrum.views.terminal.screen import ROWS_SHOWN, Result, facts, printable_json, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import figure, span, with_error
from fulcrum.words.recipe_words import proviso
from fulcrum.words.verdict import Verdict, verdict

_SAME_VOICE = 0.005  # of a share: less is lost in print
_SAME_SHARE = 1e-9  # of a budget: sums round


def comparison_columns(trained: bool) -> list[Column]:
    """Returns the columns of a comparison; training makes room for what was learnt."""
    found = [
        Column(key="allocation", heading="allocation", figures=False),
        Column(key="noise_budget", heading="noise\nbudget"),
    ]
    if trained:
        return [
            *found,
            Column(key="epsilon_above_worst", heading="worst ε\nabove", epsilon=True),
            Column(key="epsilon_inside_worst", heading="worst ε\ninside", epsilon=True),
            Column(key="accuracy_shown", heading="accuracy"),
            Column(key="gain_shown", heading="gain, points"),
        ]
    return [
        *found,
        Column(key="times_optimal", heading="×\noptimal"),
        Column(key="epsilon_above_worst", heading="ε above\nworst", epsilon=True),
        Column(key="epsilon_above_mean", heading="\nmean", epsilon=True),
        Column(key="epsilon_inside_worst", heading="ε inside\nworst", epsilon=True),
        Column(key="epsilon_inside_mean", heading="\nmean", epsilon=True),
    ]


def voice_columns(federation: Topology, trained: bool) -> list[Column]:
    """Returns the columns of who has less voice, and of what that costs those who have least."""
    inner = federation.innermost.name
    found = [
        Column(key="allocation", heading="allocation", figures=False),
        Column(key="influence_shown", heading=f"voice of the quietest {inner}"),
    ]
    return [*found, Column(key="worst_region_shown", heading=f"accuracy of the worst {inner}")] if trained else found


def comparison_rows(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Rows as a person wants them: times the optimum, accuracies and gains with their standard errors."""
    found = []
    for row in rows:
        shown = asdict(row) | {
            "times_optimal": f"{row.noise_budget / rows[0].noise_budget:.3f}",
            "influence_shown": f"{row.least_influence:.2f}",
        }
        if isinstance(row, TrainedComparison):
            shown["accuracy_shown"] = with_error(row.accuracy, row.accuracy_se)
            shown["worst_region_shown"] = with_error(row.worst_region, row.worst_region_se)
            shown["gain_shown"] = with_error(100 * row.gain, 100 * row.gain_se, "+.2f")
        found.append(shown)
    return found


def learned(rows: Sequence[TrainedComparison]) -> str:
    """Returns what training under every row comes to, in one sentence that a person can keep."""
    called = {
        "uniform": "one noise for all gets {} right",
        "optimal": "the paper's optimum {}",
        "joint": "noise, weights and server chosen together {}",
    }
    right = {row.allocation: f"{100 * row.accuracy:.0f}" for row in rows}
    told = [words.format(right[name]) for name, words in called.items() if name in right]
    told.append(f"training without privacy {100 * rows[0].reference:.0f}")
    return f"At the same target, of 100 test records {', '.join(told)}."


def plan_picture(made: Plan, output: Path | None) -> list[RenderableType]:
    """Returns the picture of a plan: its regions, its guarantee, its cost, its advice."""
    inner, multiplier, injected = made.federation.innermost, made.noise_multiplier, made.aggregator_noise_multiplier
    profile = exposure_of(made.federation, colluders=made.colluders, dropouts=made.dropouts)
    noise = np.sqrt(made.node_noise(inner.name))
    influence, by_size = made.node_influence(inner.name), made.weights_rule == "sizes" and made.server_rule.adds_up
    rows = []
    for index, name in enumerate(inner.nodes[:ROWS_SHOWN]):
        members = inner.parent_of == index
        rows.append(
            {
                "name": name,
                "silos": int(profile.silos[index]),
                "effective": float(profile.effective_size[index]),
                "noise": span(float(multiplier[members].min()), float(multiplier[members].max()))
                if injected is None
                else float(noise[index]),
                "influence": f"{influence[index]:.1%}",
                "above": float(made.epsilon_above[members].max()),
                "inside": float(made.epsilon_inside[members].max()),
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
    found = verdict(made)
    summary = [
        ("guarantee", guarantee_of(made).promise),
        ("verdict", found.sentence + (f" These are {found.basis}." if made.purpose == "deployment" else "")),
        ("noise budget", _on_noise(made)),
        ("saving", f"{made.model_saving:.2%} against uniform; {_attainable(made)}"),
    ]
    if not by_size:
        summary.append(("weights", weights_in_words(made)))
    if made.floor is not None:
        learned = float((made.mechanism_information + made.floor).max())
        said = f"at most {shown_nats(learned)} nats of a silo's class concentration ({made.target.bound})"
        if not made.floor_declared:
            said = f"the releases add up to {shown_nats(learned)} nats ({made.target.bound}); no floor was declared"
        summary.append(("information", said))
    if output is not None:
        summary.append(("written to", f"{output}; check it with: fulcrum verify {shlex.quote(str(output))}"))
    title = f"{made.federation.name}: {len(made.federation):,} silos, allocation {made.allocation}"
    picture = [
        table(title, columns, rows, total=len(inner.nodes), elsewhere="the plan file (-o) lists them all"),
        facts(summary),
    ]
    told = [*_refusals(made), *_warnings(made, found)]
    for advice in advice_on(made):
        measured = ""
        if advice.kind == "signal" and made.parameters is not None:
            measured = f" {learnt_at(signal_to_noise(made, made.parameters))}"
        told.append((advice.warning, advice.text + measured))
    if (others := other_weights(made)) is not None:
        told.append((False, others.sentence))
    picture.append(remarks([*told, (False, purpose_in_words(made, output))]))
    return picture


def purpose_in_words(made: Plan, output: Path | None = None) -> str:
    """Says what a plan is for, and which command comes next on the way to a plan that silos deploy."""
    file = "plan.json" if output is None else shlex.quote(str(output))
    if made.purpose == "deployment":
        return f"This is a plan for deployment. Sign it with: fulcrum sign {file} --key issuer.key"
    options = ["--purpose deployment"]
    options += ["--parameters N, the number of trained parameters"] if made.parameters is None else []
    options += ["--injection silo"] if made.injection != "silo" else []
    return (
        "This is a plan for research: it protects nobody, and no issuer signs it. For a plan to deploy, add "
        f"{' and '.join(options)}."
    )


def _refusals(made: Plan) -> list[tuple[bool, str]]:
    """Says what deploying would refuse, while the federation can still be changed."""
    if made.purpose != "deployment":
        return []
    masked = made.aggregation == "masked"
    engine, found = ("flower", refusals_on_flower(made)) if masked else ("nvflare", refusals(made))
    told = [(True, f"`fulcrum deploy {engine}` will refuse this plan: {reason}.") for reason in found]
    if masked and not told:
        return [(False, "Masked sums run on Flower: `fulcrum deploy flower`.")]
    return told


def _warnings(made: Plan, found: Verdict) -> list[tuple[bool, str]]:
    """Warns of observers that are nearly always right, unless advice warns of them with a remedy of its own."""
    told = any(advice.kind == "curious-aggregator" for advice in advice_on(made))
    options = {"above": "--epsilon", "inside": "--epsilon-inside"}
    warned = [
        observer.observer
        for observer in found.observers
        if observer.level == "warning" and not (told and observer is found.inside)
    ]
    if not warned:
        return []
    whom, remedy = (" and ".join(words) for words in (warned, (options[observer] for observer in warned)))
    return [
        (True, f"Hardly any protection is promised against observers {whom}. Ask for a smaller epsilon with {remedy}.")
    ]


def _on_noise(made: Plan) -> str:
    """Says how much noise enters the model, beside one multiplier for all."""
    noise = f"{figure(made.model_noise)} C²{proviso(made, 'region')}"
    return f"{noise}, uniform would need {figure(made.uniform_model_noise)}"


def _attainable(made: Plan) -> str:
    """Says what an allocation can save at this plan's targets; it has the dispersion's name where it is that."""
    if math.isclose(made.attainable_saving, made.dispersion, abs_tol=_SAME_SHARE):
        return f"dispersion {made.dispersion:.2%}"
    counted = "" if made.server_rule.adds_up else " in the sums"
    return f"no allocation saves more than {made.attainable_saving:.2%}{counted}"


def observers_in_words(inner: str, *, aggregation: str, colluders: int) -> str:
    """Says who stands above and inside the regions of plans that are set side by side."""
    if aggregation != "masked":
        return f"Above: who sees the sums of a {inner}. Inside: who sees one update."
    helpers = "1 silo" if colluders <= 1 else f"{colluders} silos"
    return (
        f"Above: who sees the sums of a {inner}. Inside: the server together with {helpers} of the {inner}. Of one "
        f"masked group there is the global sum alone: above is who sees it from outside the federation, inside the "
        f"server together with {helpers} of each {inner}."
    )


def scaled_rows(plans: Mapping[str, Plan]) -> str:
    """Says of which plans, by name of their row, the noise budget is a variance times a factor of the server's rule."""
    scaled = {name: made for name, made in plans.items() if made.server_rule.noise_factor() != 1}
    return "".join(f"; {name}: {proviso(made, 'region').strip()}" for name, made in scaled.items())


def weights_in_words(made: Plan) -> str:
    """Says what silos count for, and who has less voice than by size."""
    inner = made.federation.innermost
    voice = made.node_influence(inner.name) / region_shares(made.federation)
    least = int(np.argmin(np.round(voice, 9)))  # of equals, the first
    rule, server = made.server_rule, ""
    if not rule.adds_up:
        pooled = "" if rule.region_factors() is None else f": these are the shares{proviso(made, 'region')}"
        server = f", and the server {rule.clause}{pooled}"
    share = "share by size" if made.federation.sizes_known else "share by number of silos"
    whose = f"{inner.name} {inner.nodes[least]!r} has {voice[least]:.2g} times its {share}"
    if voice[least] > 1 - _SAME_VOICE:
        whose = f"every {inner.name} has its {share}"
    return f"{made.weights_rule}{server}; {whose}"


def show_plan(made: Plan, output: Path | None, style: str) -> None:
    """Prints a plan: its picture, its file, or its table by silo."""
    if style == "csv":
        sys.stdout.write(export_plan(made, "csv"))
    elif style == "json":
        sys.stdout.write(printable_json(to_json(made.content())))
    else:
        show(Result(data=None, rows=(), picture=plan_picture(made, output)), style)


def show_checks(
    title: str,
    checks: Sequence[Check],
    style: str,
    *,
    otherwise: str,
    remark: str = "",
    also: Mapping[str, Any] | None = None,
) -> int:
    """Prints what was recomputed, and returns the exit code: 1 if a check fails, `otherwise` saying what to do then.

    What else there is to say of it, `also`, stands in JSON alone, a `remark` below the table alone.
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
