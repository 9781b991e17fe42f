"""The command that shows how exposed regions are."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fulcrum.cli.federations import ColumnOption, given_federation, told_of_coalitions
from fulcrum.cli.options import (
    ColludersOption,
    DropoutsOption,
    FederationArgument,
    FormatOption,
    LeastInfluenceOption,
    RecipeOption,
    ServerOption,
    WeightsOption,
    word_or_number,
)
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import Topology
from fulcrum.planning.theory.exposure import exposure_of
from fulcrum.views.terminal.screen import Result, check_format, facts, show, table, working
from fulcrum.views.terminal.table_columns import Column

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan


def exposure(
    federation: FederationArgument,
    *,
    column: ColumnOption = (),
    colluders: ColludersOption = 0,
    dropouts: DropoutsOption = 0,
    recipe: RecipeOption = "paper",
    weights: WeightsOption = None,
    server: ServerOption = None,
    least_influence: LeastInfluenceOption = 0.0,
    style: FormatOption = "table",
) -> int:
    """Show how exposed each region is, and what a uniform multiplier wastes."""
    check_format(style)
    reading = given_federation(federation, column)
    with working("Computing exposures"):
        found = reading.federation
        asked = {
            "recipe": recipe,
            "weights": word_or_number(weights),
            "server": server,
            "least_influence": least_influence,
        }
        chosen = any(value not in ("paper", None, 0.0) for value in asked.values())
        chosen = chosen or found.declared_weights is not None
        made = _asked_alike(found, asked, colluders, dropouts) if chosen else None
        found = found if made is None else made.federation
        profiles = [exposure_of(found, tier=tier.name, colluders=colluders, dropouts=dropouts) for tier in found.tiers]
    notes = [*reading.notes, *told_of_coalitions(found, colluders=colluders, dropouts=dropouts)]
    influence = found.weights if made is None else made.influence
    inner = found.innermost.name
    rows = [
        {
            "tier": profile.tier,
            "name": name,
            "silos": int(profile.silos[index]),
            "weight_mass": float(profile.weight_mass[index]),
            "peak_weight": float(profile.peak_weight[index]),
            "exposure": float(profile.exposure[index]),
            "effective_size": float(profile.effective_size[index]),
            "influence": float(share),
        }
        for profile in profiles
        for index, (name, share) in enumerate(
            zip(
                profile.nodes,
                sum_by(found.membership(profile.tier), influence, len(profile.nodes)),
                strict=True,
            )
        )
    ]
    columns = [
        Column(key="name", heading=inner, figures=False),
        Column(key="silos", heading="silos"),
        Column(key="effective_size", heading="effective size"),
        Column(key="exposure", heading="exposure"),
        *([] if made is None else [Column(key="influence_shown", heading="influence")]),
    ]
    lost = [
        f"{count} of each {inner} {how}" for count, how in ((colluders, "colluding"), (dropouts, "missing")) if count
    ]
    against = "".join(f", {part}" for part in lost)
    added_up = "" if made is None or made.server_rule.adds_up else " where sums are added up"
    told = [
        (
            f"dispersion of {profile.tier}",
            f"{profile.dispersion:.2%} of a uniform budget is waste{added_up}, "
            f"a factor {profile.noise_factor:.2f} in the noise multiplier",
        )
        for profile in profiles
    ]
    if made is not None:
        from fulcrum.views.terminal.plan_tables import weights_in_words

        told.append(("weights", weights_in_words(made)))
    picture = [
        table(
            f"{found.name}: {len(found):,} silos in {len(found.innermost.nodes):,} {inner}s{against}",
            columns,
            [row | {"influence_shown": f"{row['influence']:.1%}"} for row in rows if row["tier"] == inner],
        ),
        facts(told),
    ]
    tiers = [
        {"tier": profile.tier, "dispersion": profile.dispersion, "noise_factor": profile.noise_factor}
        for profile in profiles
    ]
    data = {
        "federation": found.name,
        "silos": len(found),
        "colluders": colluders,
        "dropouts": dropouts,
        "weights": "sizes" if made is None else made.weights_rule,
        "server": "sum" if made is None else made.server,
        "tiers": tiers,
        "nodes": rows,
        "notes": notes,
    }
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


def _asked_alike(federation: Topology, asked: dict[str, Any], colluders: int, dropouts: int) -> "Plan":
    """Returns a plan with these weights and this server that asks the same of every silo.

    What silos count for and how exposed they are does not depend on how much that is.
    """
    from fulcrum.planning.planner import plan  # nobody waits for it who asks for neither

    return plan(
        replace(federation, preferences=None),
        rounds=1,
        epsilon=1.0,
        clip_norm=1.0,
        colluders=colluders,
        dropouts=dropouts,
        **asked,
    )
