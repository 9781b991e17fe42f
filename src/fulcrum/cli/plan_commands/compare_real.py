"""The table of `fulcrum compare NAME --train` for a real federation: both units, all ways, and each silo alone."""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.cli.shared_options.options import words_of
from fulcrum.cli.shared_options.target_options import TargetOptions
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import ParameterError
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.real_federations import REAL, read_real_federation
from fulcrum.simulation.site_comparison import ALONE, Measured, SiteComparison, SiteResult, compare_sites
from fulcrum.version import package_version
from fulcrum.views.terminal.screen import Result, counting, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import epsilon_text, with_error

SPLITS = 20
"""The default number of reported splits."""

_OPTIONS = ("rounds", "epsilon", "delta", "accountant", "neighbours", "silos_per_person")
_BOTH_UNITS = ("unit", "unit_name")


def compare_real(
    name: str,
    target: TargetOptions,
    *,
    folder: Path | None,
    splits: int,
    check_counts: bool,
    output: Path | None,
    style: str,
) -> int:
    """Trains and shows all rows of a real federation.

    Args:
        name: A name of `REAL`.
        target: The options of the target: those of `_OPTIONS`, and no other.
        folder: The folder of the source's files.
        splits: The number of reported splits.
        check_counts: True refuses tables without the published number of rows.
        output: The folder to write to, if any.
        style: A format of the result.
    """
    for declared in fields(target):
        if declared.name not in (*_OPTIONS, *_BOTH_UNITS) and getattr(target, declared.name) != declared.default:
            raise ParameterError("cli.real-option-unneeded", option=f"--{declared.name.replace('_', '-')}", name=name)
    try:
        epsilon = float(target.epsilon)
    except (TypeError, ValueError):
        raise ParameterError("cli.real-epsilon-form", name=name, epsilon=target.epsilon) from None
    if output is not None:
        run_folder(output)
    silos_per_person = target.silos_per_person
    if silos_per_person > 0:  # a plan refuses any other number
        silos_per_person = max(silos_per_person, REAL[name].silos_per_person)
    records = read_real_federation(name, folder, check_counts=check_counts)
    with counting("Trained splits") as advance:
        comparison = compare_sites(
            records,
            rounds=target.rounds,
            epsilon=epsilon,
            splits=splits,
            silos_per_person=silos_per_person,
            delta=target.delta,
            accountant=target.accountant,
            neighbours=target.neighbours,
            on_split=advance,
        )
    document = asdict(comparison) | {
        "version": package_version(),
        "rounds": target.rounds,
        "epsilon": epsilon,
        "delta": target.delta,
        "neighbours": target.neighbours,
        "command": f"fulcrum compare {name} {words_of(target)} --train --splits {splits} "
        f"{'' if check_counts else '--no-check-counts '}--data-dir FOLDER",
    }
    if output is not None:
        write_whole(output / "sites.json", msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    terms = f"{target.rounds} rounds, epsilon {epsilon:g}, delta {target.delta:g}"
    heading = f"{name}: {terms}; {comparison.metric}, {splits} split{'s' * (splits > 1)} by person"
    rows = [_texts(row, comparison) for row in comparison.rows]
    picture = [
        table(heading, _columns(comparison), rows, note=" ".join(notes_on(comparison, REAL[name].silo_noun))),
        table("Worst region and worst silo", _place_columns(comparison), rows, note=" ".join(_place_notes(comparison))),
    ]
    if comparison.left_out:
        picture.append(remarks([(False, f"{row} is left out: {why}") for row, why in comparison.left_out.items()]))
    show(Result(data=document, rows=[_flat(row) for row in comparison.rows], picture=picture), style)
    return 0


def _columns(comparison: SiteComparison) -> list[Column]:
    return [
        Column(key="unit", heading="unit", figures=False),
        Column(key="name", heading="row", figures=False),
        Column(key="above", heading="ε above"),
        Column(key="inside", heading="ε inside,\ntrusted"),
        Column(key="masked", heading="ε inside,\nmasked"),
        Column(key="overall", heading=comparison.metric),
        Column(key="gain", heading="gain over\nsilos alone"),
    ]


def _place_columns(comparison: SiteComparison) -> list[Column]:
    return [
        Column(key="unit", heading="unit", figures=False),
        Column(key="name", heading="row", figures=False),
        Column(key="region", heading=f"{comparison.metric} of the\nworst region"),
        Column(key="region_name", heading="region", figures=False),
        Column(key="silo", heading=f"{comparison.metric} of the\nworst silo"),
        Column(key="silo_name", heading="silo", figures=False),
    ]


def _texts(row: SiteResult, comparison: SiteComparison) -> dict[str, str]:
    """Returns the cells of a row as texts."""
    several = comparison.regions_compared > 1
    return {
        "unit": row.unit,
        "name": row.name,
        "above": _epsilon(row.epsilon_above),
        "inside": _epsilon(row.epsilon_inside),
        "masked": _epsilon(row.epsilon_masked),
        "overall": with_error(row.overall.mean, row.overall.error),
        "gain": "" if row.name == ALONE else with_error(row.gain.mean, row.gain.error, "+.3f"),
        "region": _place(row.worst_region) if several else "",
        "region_name": row.worst_region.name if several else "",
        "silo": _place(row.worst_silo),
        "silo_name": row.worst_silo.name,
    }


def _epsilon(epsilon: float | None) -> str:
    return "" if epsilon is None else epsilon_text(epsilon)


def _place(measured: Measured) -> str:
    return "" if math.isnan(measured.mean) else with_error(measured.mean, measured.error)


def notes_on(comparison: SiteComparison, silo_noun: str) -> Sequence[str]:
    """Returns sentences on the rows and the splits."""
    count = comparison.silos_per_person
    several = f"; plans for persons provide for persons in {count} {silo_noun}s" if count > 1 else ""
    return (
        "ε above: against an observer of regional sums, or of the one masked sum. ε inside: against an aggregator that "
        f"sees single releases, or where the same sums are masked, against the server with one {silo_noun}.",
        f"{ALONE.capitalize()}: a model for each {silo_noun} on its own records, without privacy and without a "
        f"federation. ± is one standard error over splits{several}.",
        "Settings of every row were chosen on other splits of the same persons; sizes are counted from the data. No "
        "epsilon counts either: the table is for research.",
    )


def _place_notes(comparison: SiteComparison) -> Sequence[str]:
    return (
        f"Lowest mean over splits, of {comparison.regions_compared} regions and of {comparison.silos_compared} silos "
        "with a value in at least half of the splits.",
        "Silos with few test records differ by chance, and the lowest of many is low for every row.",
    )


def _flat(row: SiteResult) -> dict[str, Any]:
    """Returns a row with a column for every figure, for CSV."""
    flat: dict[str, Any] = {"unit": row.unit, "row": row.name, "settings": row.settings}
    flat |= {key: getattr(row, key) for key in ("epsilon_above", "epsilon_inside", "epsilon_masked")}
    for key in ("overall", "gain", "worst_region", "worst_silo"):
        measured = getattr(row, key)
        flat |= {f"{key}_name": measured.name} if key.startswith("worst") else {}
        flat |= {key: measured.mean, f"{key}_se": measured.error}
    return flat
