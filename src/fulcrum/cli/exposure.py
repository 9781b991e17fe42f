"""The command that shows how exposed regions are."""

from fulcrum.cli.options import ColludersOption, DropoutsOption, FederationArgument, FormatOption
from fulcrum.federation.reading import read_federation
from fulcrum.privacy.exposure import exposure_of
from fulcrum.views.terminal import Column, Result, check_format, facts, show, table, working


def exposure(
    federation: FederationArgument,
    *,
    colluders: ColludersOption = 0,
    dropouts: DropoutsOption = 0,
    style: FormatOption = "table",
) -> int:
    """Show how exposed each region is, and what a uniform multiplier wastes."""
    check_format(style)
    with working("Reading the federation"):
        found = read_federation(federation)
        profiles = [exposure_of(found, tier=tier.name, colluders=colluders, dropouts=dropouts) for tier in found.tiers]
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
        }
        for profile in profiles
        for index, name in enumerate(profile.nodes)
    ]
    columns = (
        Column(key="name", heading=inner, figures=False),
        Column(key="silos", heading="silos"),
        Column(key="effective_size", heading="effective size"),
        Column(key="exposure", heading="exposure"),
    )
    lost = [
        f"{count} of each {inner} {how}" for count, how in ((colluders, "colluding"), (dropouts, "missing")) if count
    ]
    against = "".join(f", {part}" for part in lost)
    waste = [
        (
            f"dispersion of {profile.tier}",
            f"{profile.dispersion:.2%} of a uniform budget is waste, "
            f"a factor {profile.noise_factor:.2f} in the noise multiplier",
        )
        for profile in profiles
    ]
    picture = [
        table(
            f"{found.name}: {len(found):,} silos in {len(found.innermost.nodes):,} {inner}s{against}",
            columns,
            [row for row in rows if row["tier"] == inner],
        ),
        facts(waste),
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
        "tiers": tiers,
        "nodes": rows,
    }
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0
