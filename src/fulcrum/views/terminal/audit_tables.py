"""What a person sees of an audit, wherever it is drawn: rows, sentences, and a chart of measured epsilons.

>>> from fulcrum.audit.replays.canary_game import audit
>>> from fulcrum.planning.planner import plan
>>> found = audit(plan("isic-paper", rounds=2, epsilon=1.0), trials=2_000, seed=1)
>>> audit_rows(found)[0]["where"], audit_chart(found)["width"]
('region-1', 'container')
"""

import math
from typing import Any

from fulcrum.audit.evidence.findings import CONSISTENT, LOOSER, VIOLATED, Audit, Finding
from fulcrum.audit.replays.canary_game import observer_words
from fulcrum.audit.replays.played_observers import INSIDE
from fulcrum.planning.theory.leakage import shown_nats
from fulcrum.rounding import display_epsilon
from fulcrum.views.charts.chart_style import ChartRow, Spec, short_names, spread_axis, tooltip
from fulcrum.views.charts.drawings import Drawing
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import figure, shown_epsilon

VERDICT_WORDS = {
    VIOLATED: "the claim is broken. Release nothing under this plan until it is known why",
    LOOSER: "claims hold against these attacks, some of them with room to spare",
    CONSISTENT: "nothing that was measured speaks against what the plan claims",
}
"""What to do, by verdict."""

COLUMNS = (
    Column(key="who", heading="observer", figures=False),
    Column(key="stated", heading="ε\nstated", epsilon=True),
    Column(key="assumption_free", heading="ε ≥\nany"),
    Column(key="gaussian", heading="ε ≥\nGauss"),
    Column(key="noise", heading="noise\n%"),
    Column(key="says", heading="verdict", figures=False),
)
"""Lower bounds: whatever the mechanism, and on a Gaussian trade-off; noise as a share of the plan's width."""

PROPERTY_COLUMNS = (
    Column(key="node", heading="region", figures=False),
    Column(key="arm", heading="plan", figures=False),
    Column(key="blind", heading="error,\nblind"),
    Column(key="floor", heading="error,\nfloor"),
    Column(key="sums", heading="error,\nsums"),
    Column(key="all", heading="error,\nall"),
    Column(key="nats_at_least", heading="nats\n≥"),
    Column(key="nats_at_most", heading="nats\n≤"),
)

_PROPERTY_NOTE = (
    "floor: knows the silo's group and no update. sums: sees the region's sums. all: knows every other silo's records "
    "besides; its nats are proven (≥), and bounded (≤) by what the releases add together with the floor of the prior."
)

RECORD_COLUMNS = (
    Column(key="node", heading="region", figures=False),
    Column(key="epsilon", heading="ε\ninside", epsilon=True),
    Column(key="right", heading="told apart"),
    Column(key="allowed", heading="allowed"),
    Column(key="resemblance", heading="resem-\nblance"),
    Column(key="bare_resemblance", heading="without\nnoise"),
)

RECORD_NOTE = (
    "told apart: how often the record was told from another, one half being blind guessing; allowed: by the epsilon of "
    "the silo's whole dataset. resemblance: the cosine of the record reconstructed and the true one."
)

_NO_GUARANTEE = "none"
"""What stands where an epsilon would."""

_MOST_CHARTED = 40
"""Findings that one chart shows."""


def audit_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns what was found, one row an observer."""
    return [
        {
            "where": found.node,
            "tier": found.tier,
            "observer": observer_of(found),
            "silo": found.silo,
            "stated": found.stated,
            "exact": found.exact,
            "renyi": found.renyi,
            "assumption_free": found.assumption_free,
            "gaussian": found.gaussian,
            "reach": found.reach,
            "noise": None if found.noise_ratio is None else round(100 * found.noise_ratio, 2),
            "trials": found.trials,
            "verdict": found.verdict,
            "reasons": " ".join(found.reasons),
        }
        for found in audit.findings
    ]


def shown_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns the rows as a table shows them: who in one column, and verdicts in one word."""
    return [
        row
        | {
            "who": f"{row['where']}, {row['observer']}",
            "says": row["verdict"].split()[0],
            "stated": _NO_GUARANTEE if row["stated"] is None else row["stated"],
            "noise": None if row["noise"] is None else f"{row['noise']:.1f}",
        }
        | {
            bound: None if row[bound] is None else _rounded_down(row[bound])
            for bound in ("assumption_free", "gaussian")
        }
        for row in audit_rows(audit)
    ]


def _rounded_down(bound: float | None) -> str:
    """Returns a lower bound to three digits, never above it."""
    if bound is None or bound < 1e-3:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(bound)) - 2)
    return f"{math.floor(bound / unit) * unit:.3g}"


def observer_of(found: Finding) -> str:
    """Returns who attacks: from where, or above with how many who collude or are missing."""
    inside = found.observer == INSIDE  # where sums are masked, that is somebody who colludes
    with_whom = [INSIDE] if inside else [f"{found.colluders} colluding"] if found.colluders else []
    with_whom += [f"{found.missing} missing"] if found.missing else []
    return ", ".join(with_whom) or found.observer


def confidence_words(audit: Audit) -> str:
    """Returns how sure an audit is, never rounded up to certainty."""
    return f"{100 * audit.confidence:.10g}% for all bounds and verdicts together"


def verdict_lines(audit: Audit) -> list[tuple[str, str]]:
    """Returns the verdict, and how sure it is."""
    rate = 1 - audit.confidence
    lines = [
        ("verdict", f"{audit.verdict}: {VERDICT_WORDS[audit.verdict]}"),
        (
            "confidence",
            f"{confidence_words(audit)}, corrected for {audit.tests} tests",
        ),
        (
            "replays",
            f"{audit.trials:,} of each game, {audit.rounds} rounds each, delta {audit.delta:g}, seed {audit.seed}",
        ),
    ]
    if audit.verdict == VIOLATED:
        by_chance = f"at most {100 * rate:.2g}% say so by chance"
        lines.append(("next", f"run it again with another seed: of audits of a sound mechanism {by_chance}"))
    return lines


def property_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns how well concentrations were estimated, a row for each region and noise, errors by observer."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for one in audit.properties:
        row = rows.setdefault(
            (one.node, one.arm), {"node": one.node, "arm": one.arm, "blind": f"{one.blind_error:.3f}"}
        )
        row[one.observer] = f"{one.error:.3f}"
        if one.observer == "all":
            most = one.nats_at_most
            row |= {
                "nats_at_least": f"{one.nats_at_least:.3f}",
                "nats_at_most": "" if most is None else shown_nats(most),
            }
    return list(rows.values())


def property_note(audit: Audit) -> str:
    """Returns what the table of concentrations means, and how its plans count silos and use their sums."""
    plans = {
        one.arm: f"{one.arm}: weights {one.weights}, server {one.server}." for one in audit.properties if one.noise
    }
    return " ".join([_PROPERTY_NOTE, *plans.values()])


def record_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns what was learned of single records."""
    return [
        {
            "node": one.node,
            "epsilon": _NO_GUARANTEE if one.epsilon is None else one.epsilon,
            "right": f"{one.right_at_least:.3f}–{one.right_at_most:.3f}",
            "allowed": "" if one.allowed is None else f"{one.allowed:.3f}",
            "resemblance": f"{one.resemblance:.2f}",
            "bare_resemblance": f"{one.bare_resemblance:.2f}",
        }
        for one in audit.records
    ]


def probe_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns the tests of what real parts drew."""
    return [
        {
            "of": probe.of,
            "node": probe.node,
            "values": probe.values,
            "noise": "" if probe.noise_ratio is None else f"{100 * probe.noise_ratio:.1f}",
            "verdict": probe.verdict,
            "reasons": " ".join(probe.reasons),
        }
        for probe in audit.probes
    ]


def reasons_of(audit: Audit) -> list[tuple[bool, str]]:
    """Returns why, the gravest first; where many say the same the first few do."""
    found = [
        (one.verdict == VIOLATED, f"{one.node}, {observer_of(one)}: {' '.join(one.reasons)}")
        for one in audit.findings
        if one.reasons
    ]
    found += [
        (one.verdict == VIOLATED, f"{one.of}, {one.node}: {' '.join(one.reasons)}")
        for one in audit.probes
        if one.reasons
    ]
    found += [
        (
            True,
            f"{one.node}, {one.arm}: {one.nats_at_least:.3f} nats at least were learned of silo {one.silo!r}, and "
            f"{shown_nats(one.nats_at_most or 0.0)} are allowed.",
        )
        for one in audit.properties
        if one.verdict == VIOLATED
    ]
    found += [
        (
            True,
            f"{one.node}: one record of silo {one.silo!r} was told from another in {one.right_at_least:.1%} of games "
            f"at least, and {one.allowed or 0.0:.1%} are allowed.",
        )
        for one in audit.records
        if one.verdict == VIOLATED
    ]
    found.sort(key=lambda line: not line[0])
    more = len(found) - 8
    return [*found[:8], *([(False, f"{more} more reasons are in --format json.")] if more > 0 else [])]


def audit_section(audit: Audit) -> dict[str, Any]:
    """Returns what a report shows of an audit: verdict, tables and notes, in words."""
    return {
        "verdict": audit.verdict,
        "meaning": VERDICT_WORDS[audit.verdict],
        "lines": verdict_lines(audit),
        "headings": tuple(column.heading.replace("\n", " ") for column in COLUMNS),
        "rows": [tuple(_shown(row, column) for column in COLUMNS) for row in shown_rows(audit)],
        "probes": [
            (row["of"], row["node"], f"{row['values']:,}", row["noise"], row["verdict"]) for row in probe_rows(audit)
        ],
        "properties": [tuple(str(row[column.key]) for column in PROPERTY_COLUMNS) for row in property_rows(audit)],
        "property_headings": tuple(column.heading.replace("\n", " ") for column in PROPERTY_COLUMNS),
        "property_note": property_note(audit),
        "records": [tuple(_shown(row, column) for column in RECORD_COLUMNS) for row in record_rows(audit)],
        "record_headings": tuple(column.heading.replace("-\n", "").replace("\n", " ") for column in RECORD_COLUMNS),
        "record_note": RECORD_NOTE,
        "reasons": [text for _, text in reasons_of(audit)],
        "notes": list(audit.notes),
        "observers": {observer_of(found): observer_words(audit)[found.observer] for found in audit.findings},
    }


def _shown(row: dict[str, Any], column: Column) -> str:
    value = row[column.key]
    if value is None:
        return ""
    return figure(display_epsilon(value) if column.epsilon else value) if isinstance(value, float) else str(value)


def audit_drawing(audit: Audit) -> Drawing:
    """Returns the chart with its figures, for a page."""
    section = audit_section(audit)
    return Drawing(key="audit", spec=audit_chart(audit), headings=section["headings"], rows=section["rows"])


def audit_chart(audit: Audit) -> Spec:
    """Returns measured beside claimed epsilons, a line for each observer: what is proven, up to what is claimed."""
    charted = [found for found in audit.findings if found.exact is not None][:_MOST_CHARTED]
    names = short_names(f"{found.node}, {observer_of(found)}" for found in charted)
    bars: list[ChartRow] = []
    points: list[ChartRow] = []
    for number, (found, name) in enumerate(zip(charted, names, strict=True)):
        common = {"name": name, "number": number, "verdict": found.verdict, "silo": found.silo}
        measured = {
            "claimed": found.exact,
            "at least, Gaussian": found.gaussian,
            "at least, any mechanism": found.assumption_free,
        }
        points += [
            common
            | {
                "what": what,
                "epsilon": epsilon,
                "shown": shown_epsilon(epsilon) if what == "claimed" else _rounded_down(epsilon),
            }
            for what, epsilon in measured.items()
            if epsilon is not None and (epsilon > 0 or what == "claimed")
        ]
        bars.append(common | {"epsilon": found.lower_bound or 0.0, "to": found.exact})
    kinds = ["claimed", "at least, Gaussian", "at least, any mechanism"]
    x = {
        "field": "epsilon",
        "type": "quantitative",
        **spread_axis("epsilon", [point["epsilon"] for point in points]),
    }
    y = {"field": "name", "type": "nominal", "sort": None, "title": None}
    shape = {
        "field": "what",
        "type": "nominal",
        "title": None,
        "sort": None,
        "scale": {"domain": kinds, "range": ["M0,-1L0,1", "circle", "diamond"]},
    }
    colour = {
        "field": "what",
        "type": "nominal",
        "title": None,
        "scale": {"domain": kinds},
    }
    tips = tooltip(name="observer", silo="silo attacked", what="epsilon", shown="is", verdict="verdict")
    worst = max(charted, key=lambda found: (found.lower_bound or 0.0) / (found.exact or 1.0), default=None)
    told = ""
    if worst is not None:
        nearest = f"{worst.node}, {observer_of(worst)}"
        bound, claim = _rounded_down(worst.lower_bound), shown_epsilon(worst.exact)
        told = f" The nearest to its claim is {nearest}: {bound} of {claim}."
    layers: list[Spec] = [
        {
            "data": {"values": [bar for bar in bars if bar["epsilon"] > 0]},
            "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.35},
            "encoding": {"y": y, "x": x, "x2": {"field": "to"}},
        },
        {
            "data": {"values": points},
            "mark": {"type": "point", "size": 80, "opacity": 1, "filled": False, "strokeWidth": 2},
            "encoding": {"y": y, "x": x, "shape": shape, "color": colour, "tooltip": tips},
        },
    ]
    return {
        "description": f"Measured beside claimed epsilon by observer; the verdict is {audit.verdict}.{told}",
        "width": "container",
        "height": 22 * max(len(charted), 1),
        "layer": [layer for layer in layers if layer["data"]["values"]],
    }
