"""Advice to the reader of a plan: warnings first, then facts, then levers for less noise, by saving.

A piece of advice is a sentence with a number. No function changes a plan.

>>> from fulcrum.planning.planner import draft_plan
>>> [piece.kind for piece in advice_on(draft_plan("tcga-brca", rounds=10, epsilon=1.0))]
['curious-aggregator', 'dropout', 'least-noise', 'equal', 'rounds', 'merge', 'one-group', 'person']
"""

from dataclasses import replace

from fulcrum.core.topology import SILO
from fulcrum.planning.content.lever_words import LeverWords, inside_in_words, lever_words
from fulcrum.planning.content.plan_facts import Advice, facts_on, facts_on_schedule
from fulcrum.planning.content.plan_figures import PlanFigures
from fulcrum.planning.content.region_merges import Merge, best_merge, merge_pair
from fulcrum.rounding import display_epsilon


def advice_on(plan: PlanFigures, *, merges: bool = True, levers: bool = True) -> tuple[Advice, ...]:
    """Returns the advice on a plan, warnings first: warnings that undo the promise, then warnings that cost utility.

    After the warnings come facts, then levers for less noise at the same targets: by saving, the largest first, and a
    merge of regions last. Levers with another promise end the list. The whole advice is solved for once in the life of
    a plan: `fulcrum.plan` and `fulcrum.replan` do so, and later calls solve nothing.

    Args:
        plan: The plan.
        merges: True to look at merges of regions, which takes longest; `advice_on_merges` looks at merges alone.
        levers: True to look at the levers, every lever by a new plan; `advice_on_levers` looks at levers alone.
    """
    if not (merges and levers):
        return _solve_advice(plan, merges=merges, levers=levers)
    if plan.solved_advice is None:
        object.__setattr__(plan, "solved_advice", _solve_advice(plan, merges=True, levers=True))
    return tuple(plan.solved_advice or ())


def _solve_advice(plan: PlanFigures, *, merges: bool, levers: bool) -> tuple[Advice, ...]:
    if plan.federation.rosters is not None:
        return _advice_on_schedule(plan)
    same, other = _levers(plan) if levers else ([], [])
    pieces = [
        *facts_on(plan),
        *same,
        *(advice_on_merges(plan) if merges else []),
        *other,
    ]
    return tuple(sorted(pieces, key=lambda advice: not advice.warning))


def _advice_on_schedule(plan: PlanFigures) -> tuple[Advice, ...]:
    """Returns the advice on a plan whose membership changes; levers and merges compare plans of one roster."""
    facts = (replace(advice, text=advice.finding, remedy="", offers=()) for advice in facts_on_schedule(plan))
    return tuple(sorted(facts, key=lambda advice: not advice.warning))


def advice_on_levers(plan: PlanFigures, *, merges: bool = True) -> tuple[Advice, ...]:
    """Returns the levers for less noise, in the order of `advice_on`.

    Args:
        plan: The plan.
        merges: True to look at merges of regions too.
    """
    if plan.federation.rosters is not None:
        return ()
    same, other = _levers(plan)
    return (*same, *(advice_on_merges(plan) if merges else []), *other)


def _levers(plan: PlanFigures) -> tuple[list[Advice], list[Advice]]:
    """Returns advice on levers with the same promise, and advice on levers with another promise."""

    def advice_of(words: LeverWords) -> Advice:
        return Advice(
            kind=words.name,
            warning=False,
            text=words.text,
            remedy=words.remedy,
            offers=words.offers,
            saving=words.saving,
            changes_promise=words.changes_promise,
        )

    words = lever_words(plan)
    return (
        [advice_of(lever) for lever in words if not lever.changes_promise],
        [advice_of(lever) for lever in words if lever.changes_promise],
    )


def advice_on_merges(plan: PlanFigures) -> list[Advice]:
    """Returns the two regions to merge, if a merge saves noise."""
    merge = best_merge(plan) if plan.federation.rosters is None else None
    if merge is None:
        return []
    inner = plan.federation.innermost.name
    remedy = f"To merge them, give both the same {inner} in the federation's file."
    sees = "aggregator would then see the updates" if not plan.is_masked else "masked group would then hold the silos"
    text = (
        f"Of all pairs, merging {inner} {merge.regions[0]!r} with {merge.regions[1]!r} would save most: "
        f"{merge.saving:.1%} of the noise that enters the model in each round. One {sees} of both. "
        f"{_inside_after(plan, merge)}{remedy}"
    )
    offers = (("merge", merge.regions),)
    return [Advice(kind="merge", warning=False, text=text, remedy=remedy, offers=offers, saving=merge.saving)]


def _inside_after(plan: PlanFigures, merge: Merge) -> str:
    """Returns a sentence on the observer inside if a merge raises the epsilon: silos of a larger region draw less."""
    if plan.allocation != "optimal" or not plan.silos_draw_noise:
        return ""
    now, then = (display_epsilon(variant.worst_epsilon(SILO)) for variant in (plan, merge_pair(plan, [*merge.regions])))
    if not then > now:
        return ""
    rounds = "1 round" if plan.rounds == 1 else f"{plan.rounds:,} rounds"
    return f"Over {rounds} the worst epsilon against {inside_in_words(plan)} would be {then:g} in place of {now:g}. "
