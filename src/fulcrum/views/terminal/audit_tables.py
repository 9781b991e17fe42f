"""An audit for people, in terminal and report: rows, sentences, and a chart of measured epsilons.

>>> from fulcrum.audit.replays.canary_game import audit
>>> from fulcrum.planning.planner import plan
>>> result = audit(plan("isic-paper", rounds=2, epsilon=1.0), trials=2_000, seed=1)
>>> audit_rows(result)[0]["where"], audit_chart(result)["width"]
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
from fulcrum.words.numbers import epsilon_text, figure

VERDICT_WORDS = {
    VIOLATED: "the claim is broken. Release nothing under this plan until the reason is known",
    LOOSER: "all claims hold against these attacks, some claims with room to spare",
    CONSISTENT: "no measurement speaks against the claims of the plan",
}
"""The meaning of every verdict."""

COLUMNS = (
    Column(key="who", heading="observer", figures=False),
    Column(key="stated", heading="ε\nstated", epsilon=True),
    Column(key="assumption_free", heading="ε ≥\nany"),
    Column(key="gaussian", heading="ε ≥\nGauss"),
    Column(key="noise", heading="noise\n%"),
    Column(key="says", heading="verdict", figures=False),
)
"""Lower bounds for any mechanism, and for a Gaussian trade-off; noise as a share of the plan's width."""

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
    "Observers: floor knows the silo's group and no release; sums sees the sums of the region; all also knows the "
    "records of every other silo. The nats of all are proven (≥), and bounded (≤) by the information of the releases "
    "plus the information floor of the prior."
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
    "told apart: the rate at which the record was told from another record; blind guessing has one half. allowed: the "
    "largest rate that the epsilon of the silo's whole dataset allows. resemblance: the cosine between the "
    "reconstructed and the true record."
)

_NO_GUARANTEE = "none"
"""The text in place of an infinite epsilon."""

_MOST_CHARTED = 40
"""The most findings in a chart."""


def audit_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns the findings, a row for every observer."""
    return [
        {
            "where": finding.node,
            "tier": finding.tier,
            "observer": observer_of(finding),
            "silo": finding.silo,
            "stated": finding.stated,
            "exact": finding.exact,
            "renyi": finding.renyi,
            "assumption_free": finding.assumption_free,
            "gaussian": finding.gaussian,
            "reach": finding.reach,
            "noise": None if finding.noise_ratio is None else round(100 * finding.noise_ratio, 2),
            "trials": finding.trials,
            "verdict": finding.verdict,
            "reasons": " ".join(finding.reasons),
        }
        for finding in audit.findings
    ]


def table_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns the rows of the table: place and observer in a single column, and verdicts in a single word."""
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
    """Returns a lower bound rounded down to three digits."""
    if bound is None or bound < 1e-3:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(bound)) - 2)
    return f"{math.floor(bound / unit) * unit:.3g}"


def observer_of(finding: Finding) -> str:
    """Returns the attacker in words: its place, and the numbers of colluding and missing silos."""
    inside = finding.observer == INSIDE  # with masked sums the observer inside includes colluding silos
    with_whom = [INSIDE] if inside else [f"{finding.colluders} colluding"] if finding.colluders else []
    with_whom += [f"{finding.missing} missing"] if finding.missing else []
    return ", ".join(with_whom) or finding.observer


def confidence_words(audit: Audit) -> str:
    """Returns the confidence of an audit, never rounded up to certainty."""
    return f"{100 * audit.confidence:.10g}% for all bounds and verdicts together"


def verdict_lines(audit: Audit) -> list[tuple[str, str]]:
    """Returns the lines on verdict, confidence and replays."""
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
        by_chance = f"at most {100 * rate:.2g}% are violated by chance"
        lines.append(("next", f"repeat the audit with another seed: of all audits of a sound mechanism {by_chance}"))
    return lines


def property_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns the errors of estimated concentrations by observer, a row for every region and noise."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for estimate in audit.properties:
        row = rows.setdefault(
            (estimate.node, estimate.arm),
            {"node": estimate.node, "arm": estimate.arm, "blind": f"{estimate.blind_error:.3f}"},
        )
        row[estimate.observer] = f"{estimate.error:.3f}"
        if estimate.observer == "all":
            most = estimate.nats_at_most
            row |= {
                "nats_at_least": f"{estimate.nats_at_least:.3f}",
                "nats_at_most": "" if most is None else shown_nats(most),
            }
    return list(rows.values())


def property_note(audit: Audit) -> str:
    """Returns the meaning of the table of concentrations, and weights and server of its plans."""
    plans = {
        estimate.arm: f"{estimate.arm}: weights {estimate.weights}, server {estimate.server}."
        for estimate in audit.properties
        if estimate.noise
    }
    return " ".join([_PROPERTY_NOTE, *plans.values()])


def record_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns the results of attacks on single records."""
    return [
        {
            "node": record.node,
            "epsilon": _NO_GUARANTEE if record.epsilon is None else record.epsilon,
            "right": f"{record.right_at_least:.3f}–{record.right_at_most:.3f}",
            "allowed": "" if record.allowed is None else f"{record.allowed:.3f}",
            "resemblance": f"{record.resemblance:.2f}",
            "bare_resemblance": f"{record.bare_resemblance:.2f}",
        }
        for record in audit.records
    ]


def probe_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns the tests of noise that real parts drew."""
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
    """Returns the reasons of the verdict, at most eight, each with True for a violation; violations come first."""
    reasons = [
        (result.verdict == VIOLATED, f"{result.node}, {observer_of(result)}: {' '.join(result.reasons)}")
        for result in audit.findings
        if result.reasons
    ]
    reasons += [
        (result.verdict == VIOLATED, f"{result.of}, {result.node}: {' '.join(result.reasons)}")
        for result in audit.probes
        if result.reasons
    ]
    reasons += [
        (
            True,
            f"{result.node}, {result.arm}: {result.nats_at_least:.3f} nats at least were learned about silo "
            f"{result.silo!r}, and {shown_nats(result.nats_at_most or 0.0)} are allowed.",
        )
        for result in audit.properties
        if result.verdict == VIOLATED
    ]
    reasons += [
        (
            True,
            f"{result.node}: one record of silo {result.silo!r} was told from another in at least "
            f"{result.right_at_least:.1%} of games, and {result.allowed or 0.0:.1%} are allowed.",
        )
        for result in audit.records
        if result.verdict == VIOLATED
    ]
    reasons.sort(key=lambda line: not line[0])
    more = len(reasons) - 8
    return [*reasons[:8], *([(False, f"{more} more reasons are in --format json.")] if more > 0 else [])]


def audit_section(audit: Audit) -> dict[str, Any]:
    """Returns the section of a report on an audit: verdict, tables and notes, as texts."""
    return {
        "verdict": audit.verdict,
        "meaning": VERDICT_WORDS[audit.verdict],
        "lines": verdict_lines(audit),
        "headings": tuple(column.heading.replace("\n", " ") for column in COLUMNS),
        "rows": [tuple(_printable_cell(row, column) for column in COLUMNS) for row in table_rows(audit)],
        "probes": [
            (row["of"], row["node"], f"{row['values']:,}", row["noise"], row["verdict"]) for row in probe_rows(audit)
        ],
        "properties": [tuple(str(row[column.key]) for column in PROPERTY_COLUMNS) for row in property_rows(audit)],
        "property_headings": tuple(column.heading.replace("\n", " ") for column in PROPERTY_COLUMNS),
        "property_note": property_note(audit),
        "records": [tuple(_printable_cell(row, column) for column in RECORD_COLUMNS) for row in record_rows(audit)],
        "record_headings": tuple(column.heading.replace("-\n", "").replace("\n", " ") for column in RECORD_COLUMNS),
        "record_note": RECORD_NOTE,
        "reasons": [text for _, text in reasons_of(audit)],
        "notes": list(audit.notes),
        "observers": {observer_of(finding): observer_words(audit)[finding.observer] for finding in audit.findings},
    }


def _printable_cell(row: dict[str, Any], column: Column) -> str:
    value = row[column.key]
    if value is None:
        return ""
    return figure(display_epsilon(value) if column.epsilon else value) if isinstance(value, float) else str(value)


def audit_drawing(audit: Audit) -> Drawing:
    """Returns the chart of an audit with its figures, for a page."""
    section = audit_section(audit)
    return Drawing(key="audit", spec=audit_chart(audit), headings=section["headings"], rows=section["rows"])


def audit_chart(audit: Audit) -> Spec:
    """Returns the chart of measured and claimed epsilons, a line for every observer from proven to claimed."""
    charted = [finding for finding in audit.findings if finding.exact is not None][:_MOST_CHARTED]
    names = short_names(f"{finding.node}, {observer_of(finding)}" for finding in charted)
    bars: list[ChartRow] = []
    points: list[ChartRow] = []
    for number, (finding, name) in enumerate(zip(charted, names, strict=True)):
        common = {"name": name, "number": number, "verdict": finding.verdict, "silo": finding.silo}
        measured = {
            "claimed": finding.exact,
            "at least, Gaussian": finding.gaussian,
            "at least, any mechanism": finding.assumption_free,
        }
        points += [
            common
            | {
                "what": what,
                "epsilon": epsilon,
                "shown": epsilon_text(epsilon) if what == "claimed" else _rounded_down(epsilon),
            }
            for what, epsilon in measured.items()
            if epsilon is not None and (epsilon > 0 or what == "claimed")
        ]
        bars.append(common | {"epsilon": finding.lower_bound or 0.0, "to": finding.exact})
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
    worst = max(charted, key=lambda finding: (finding.lower_bound or 0.0) / (finding.exact or 1.0), default=None)
    closest = ""
    if worst is not None:
        nearest = f"{worst.node}, {observer_of(worst)}"
        measured_share = f"{_rounded_down(worst.lower_bound)} of {epsilon_text(worst.exact)}"
        closest = f" The nearest to its claim is {nearest}: {measured_share}."
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
        "description": f"Measured beside claimed epsilon by observer; the verdict is {audit.verdict}.{closest}",
        "width": "container",
        "height": 22 * max(len(charted), 1),
        "layer": [layer for layer in layers if layer["data"]["values"]],
    }
