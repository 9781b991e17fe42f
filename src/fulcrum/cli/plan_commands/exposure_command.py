"""The command that shows the exposure of regions."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fulcrum.cli.shared_options.federations import (
    ColumnOption,
    NameOption,
    ThousandsOption,
    federation_argument,
    note_on_coalitions,
    note_on_rounds,
)
from fulcrum.cli.shared_options.options import (
    ColludersOption,
    DropoutsOption,
    FederationArgument,
    FormatOption,
    LeastInfluenceOption,
    PersonsPerSiloOption,
    RecipeOption,
    ServerOption,
    UnitOption,
    WeightsOption,
    word_or_number,
)
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import Topology
from fulcrum.planning.theory.exposure import exposure_of
from fulcrum.views.terminal.screen import Result, facts, show, table, working
from fulcrum.views.terminal.table_columns import Column

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan


def exposure(
    federation: FederationArgument,
    *,
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    name: NameOption = None,
    colluders: ColludersOption = 0,
    dropouts: DropoutsOption = 0,
    recipe: RecipeOption = "paper",
    weights: WeightsOption = None,
    server: ServerOption = None,
    least_influence: LeastInfluenceOption = None,
    unit: UnitOption = "silo",
    persons_per_silo: PersonsPerSiloOption = None,
    style: FormatOption = "table",
) -> int:
    """Show the exposure of each region, and the noise that a uniform multiplier wastes."""
    reading = federation_argument(federation, column, thousands, name)
    with working("Computing exposures"):
        topology = reading.federation
        choices = {
            "recipe": recipe,
            "weights": word_or_number(weights),
            "server": server,
            "least_influence": least_influence,
            "unit": unit,
            "persons_per_silo": persons_per_silo,
        }
        chosen = any(value not in ("paper", None, 0.0, "silo") for value in choices.values())
        chosen = chosen or topology.declared_weights is not None
        plan = _plan_with_equal_targets(topology, choices, colluders, dropouts) if chosen else None
        topology = topology if plan is None else plan.federation
        profiles = [
            exposure_of(topology, tier=tier.name, colluders=colluders, dropouts=dropouts) for tier in topology.tiers
        ]
    notes = [
        *reading.notes,
        *note_on_rounds(topology),
        *note_on_coalitions(topology, colluders=colluders, dropouts=dropouts),
    ]
    influence = topology.weights if plan is None else plan.influence
    inner = topology.innermost.name
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
                sum_by(topology.membership(profile.tier), influence, len(profile.nodes)),
                strict=True,
            )
        )
    ]
    columns = [
        Column(key="name", heading=inner, figures=False),
        Column(key="silos", heading="silos"),
        Column(key="effective_size", heading="effective size"),
        Column(key="exposure", heading="exposure"),
        *([] if plan is None else [Column(key="influence_shown", heading="influence")]),
    ]
    lost = [
        f"{count} of each {inner} {how}" for count, how in ((colluders, "colluding"), (dropouts, "missing")) if count
    ]
    of_unit = "" if unit == "silo" else f", exposure of one {unit}"
    against = "".join(f", {part}" for part in lost)
    added_up = "" if plan is None or plan.server_rule.adds_up else " where sums are added up"
    summary = [
        (
            f"dispersion of {profile.tier}",
            f"{profile.dispersion:.2%} of a uniform budget is waste{added_up}, "
            f"a factor {profile.noise_factor:.2f} in the noise multiplier",
        )
        for profile in profiles
    ]
    if plan is not None:
        from fulcrum.views.terminal.plan_tables import weights_in_words

        summary.append(("weights", weights_in_words(plan)))
    picture = [
        table(
            f"{topology.name}: {len(topology):,} silos in {len(topology.innermost.nodes):,} {inner}s{of_unit}{against}",
            columns,
            [row | {"influence_shown": f"{row['influence']:.1%}"} for row in rows if row["tier"] == inner],
        ),
        facts(summary),
    ]
    tiers = [
        {"tier": profile.tier, "dispersion": profile.dispersion, "noise_factor": profile.noise_factor}
        for profile in profiles
    ]
    data = {
        "federation": topology.name,
        "silos": len(topology),
        "colluders": colluders,
        "dropouts": dropouts,
        "weights": "sizes" if plan is None else plan.weights_rule,
        "server": "sum" if plan is None else plan.server,
        "unit": unit,
        "tiers": tiers,
        "nodes": rows,
        "notes": notes,
    }
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


def _plan_with_equal_targets(federation: Topology, choices: dict[str, Any], colluders: int, dropouts: int) -> "Plan":
    """Returns a plan with the chosen weights and server, and the same target for every silo.

    Influence and exposure do not depend on the value of the target.
    """
    from fulcrum.planning.planner import draft_plan  # imported late: without such options the command needs no solver

    return draft_plan(
        replace(federation, preferences=None),
        rounds=1,
        epsilon=1.0,
        clip_norm=1.0,
        colluders=colluders,
        dropouts=dropouts,
        **choices,
    )
