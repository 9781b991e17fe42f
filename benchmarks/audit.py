"""The audit beside its peer: planted faults found, false alarms, and time; and how near a bound comes to the truth.

The faults are those of the tests, planted in the real path. The peer is JAX Privacy's auditor: it is given the
canaries' scores of every observer above and inside, the plain projection summed over rounds, and finds a fault where
its lower bound on epsilon, corrected for the number of observers, is above the claim. It sees scores alone, as most
auditors do.

The ninth fault, masks of a 32-bit seed, is planted in what silos mask with; scores do not show it.

Promises: every fault in every audit, at most 2 minutes an audit; with 10^6 replays at least 95 % of the exact epsilon,
in 30 seconds. All times are of the processor, whatever else the machine does.

    python benchmarks/audit.py [--without-peers] [--audits 5]
    python benchmarks/audit.py --false-alarms 200
    python benchmarks/audit.py --collusion
    python benchmarks/audit.py --smallest 20
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.audit.audit_run import whole_audit
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED, Audit
from fulcrum.audit.replays.audited_path import AuditedPath
from fulcrum.audit.replays.canary_game import TRIALS as DEFAULT_TRIALS
from fulcrum.audit.replays.canary_game import audit
from fulcrum.audit.replays.played_observers import ABOVE, INSIDE, stages_of
from fulcrum.audit.replays.replaying import _play_chunk, pattern_of
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.views.terminal.screen import FORMATS, Result, facts, show, table
from fulcrum.views.terminal.table_columns import Column

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "audit"))
import faults  # type: ignore[import-not-found]
from peers.environments import HERE, installed

from fulcrum.planning.content.plan_figures import with_noise

TRIALS = 6_000
LONGEST_AUDIT, LONGEST_MILLION, LEAST_REACH = 120.0, 30.0, 0.95


def mechanisms() -> dict[str, AuditedPath]:
    """Returns the sound mechanism, and one for each fault."""
    plan = faults.made()
    lattices = faults.made("deployment", sizes={"heavy": [10_000] * 6, "light": [1] * 4}, epsilon={"federation": 1.0})
    return {
        "none: a sound mechanism": AuditedPath(plan=plan),
        "noise at 70 %": faults.narrow_noise(plan),
        "no clip": faults.no_clip(plan),
        "sensitivity C in place of 2C": faults.half_sensitivity(plan),
        "one silo's noise missing": faults.one_silo_silent(plan),
        "a weight not on the noise": faults.unweighted_noise(plan),
        "noise used again": faults.reused_noise(plan),
        "a region forwards releases": faults.forwarding(plan),
        "lattices of different steps": faults.lattices_of_their_own(lattices),
    }


def plain_scores(path: AuditedPath, seed: int) -> dict[str, Any]:
    """Returns what an auditor of scores is given: the plain projection, by observer and replay."""
    scores, positive, claims = [], [], []
    for number, stage in enumerate(stages_of(path.plan)):
        for place, view in enumerate(stage.views):
            if view.observer in (ABOVE, INSIDE):
                chunk = _play_chunk(path, stage, TRIALS, (seed << 20) + number, compare=0)
                scores.append(pattern_of(path.plan.rounds) @ (chunk.seen[place][0] * path.step))
                positive.append(chunk.positive)
                claims.append(view.claim.epsilon)
    return {"scores": np.array(scores), "positive": np.array(positive), "claims": claims, "delta": path.plan.delta}


def peer_found(path: AuditedPath, audits: int) -> tuple[int, float]:
    """Returns in how many audits the peer's bound is above a claim, and its seconds for one, replays left out."""
    with tempfile.TemporaryDirectory() as folder:
        given = [plain_scores(path, seed) for seed in range(audits)]
        files = [Path(folder) / f"{number}.npz" for number in range(audits)]
        for where, one in zip(files, given, strict=True):
            np.savez(where, scores=one["scores"], positive=one["positive"], delta=one["delta"])
        python = installed("jax_privacy")
        script = HERE / "jax_privacy" / "run.py"
        done = subprocess.run(
            [str(python), "-W", "ignore", str(script), *map(str, files)], stdout=subprocess.PIPE, text=True, check=True
        )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    above = [any(np.array(one["epsilon"]) > mine["claims"]) for one, mine in zip(told, given, strict=True)]
    return sum(above), float(np.median([one["seconds"] for one in told]))


def short_masks_row(audits: int) -> dict[str, Any]:
    """Returns how audits of a masked plan fare whose masks come from 32-bit seeds: as many masks as by default."""
    plan = faults.made(sizes={"north": [100] * 4}, rounds=4, aggregation="masked")
    began = time.process_time()
    with faults.masks_from_short_seeds():
        found = [whole_audit(plan, trials=DEFAULT_TRIALS, seed=seed) for seed in range(audits)]
    return {
        "fault": "masks of a 32-bit seed",
        "audits": audits,
        "found": sum(_masks_found(one) for one in found),
        "seconds": (time.process_time() - began) / audits,
    }


def _masks_found(found: Audit) -> bool:
    return any(probe.of == "masks" and probe.verdict == VIOLATED for probe in found.probes)


def false_alarms(audits: int) -> dict[str, Any]:
    """Returns in how many audits of sound plans a claim is said to be broken, at 95 % confidence each."""
    sizes = {"north": [120, 80, 100], "south": [300, 200], "west": [150, 90]}
    plans = {
        "trusted": faults.made(sizes=sizes, rounds=6),
        "masked": faults.made(sizes=sizes, rounds=6, aggregation="masked"),
    }
    return {
        name: sum(audit(plan, trials=2_000, seed=seed).verdict == VIOLATED for seed in range(audits))
        for name, plan in plans.items()
    }


def collusion_rows() -> list[dict[str, Any]]:
    """Returns claimed beside measured epsilons where some of eight equal silos tell their noise, or are missing."""
    sizes, rows = {"north": [100] * 8}, []
    noise = faults.made(sizes=sizes, parameters=None).noise_multiplier
    for colluders in range(4):
        for dropouts in range(4):
            told = faults.made(sizes=sizes, parameters=None, colluders=colluders, dropouts=dropouts)
            found = audit(with_noise(told, "optimal", noise), trials=200_000, seed=1, confidence=0.999)
            [one] = [
                each
                for each in found.findings
                if each.tier == "region" and (each.colluders, each.missing) == (colluders, dropouts)
            ][:1]
            figures = {"claimed": one.exact, "assumption_free": one.assumption_free, "gaussian": one.gaussian}
            rows.append({"colluding": colluders, "missing": dropouts, **figures, "verdict": one.verdict})
    return rows


def smallest_rows(audits: int) -> list[dict[str, Any]]:
    """Returns in how many audits of the default size small faults are found, by the rounds of a plan at epsilon 1."""
    rows = []
    for rounds in (1, 10):
        plan = faults.made(rounds=rounds)
        worst, delta = plan.worst_shift(), plan.delta
        planted = {f"noise at {share:.1%}": faults.narrow_noise(plan, share) for share in (0.97, 0.98, 0.985, 0.99)}
        for times in (1.1, 1.15, 1.2, 1.25, 1.3):
            true = float(epsilon_of_shift(times * worst, delta=delta))
            planted[f"epsilon {true:.3g} for 1"] = faults.half_sensitivity(plan, times)
        for name, path in planted.items():
            verdicts = [audit(path.plan, seed=seed, mechanism=path).verdict for seed in range(audits)]
            rows.append({"fault": name, "rounds": rounds, "audits": audits, "found": verdicts.count(VIOLATED)})
    return rows


def row_of(name: str, path: AuditedPath, audits: int, *, peers: bool) -> dict[str, Any]:
    """Returns how one mechanism fares."""
    began = time.process_time()
    verdicts = [audit(path.plan, trials=TRIALS, seed=seed, mechanism=path).verdict for seed in range(audits)]
    row: dict[str, Any] = {
        "fault": name,
        "audits": audits,
        "found": sum(verdict != CONSISTENT for verdict in verdicts),
        "seconds": (time.process_time() - began) / audits,
    }
    if peers:
        row["peer_found"], row["peer_seconds"] = peer_found(path, audits)
    return row


def reach() -> tuple[float, float]:
    """Returns the least share of the exact epsilon that 10^6 replays prove, and the seconds that takes."""
    plan = faults.made(sizes={"north": [100] * 4})
    began = time.process_time()
    found = audit(plan, trials=1_000_000, seed=1)
    shares = [one.gaussian / one.exact for one in found.findings if one.gaussian is not None and one.exact]
    return min(shares), time.process_time() - began


def _show_less(given: argparse.Namespace) -> None:
    """Shows one of the smaller measurements."""
    if given.collusion:
        rows = collusion_rows()
        headings = ["colluding", "missing", "claimed", "assumption_free", "gaussian"]
        columns = [Column(key=name, heading=name.replace("_", " ")) for name in headings]
        show(
            Result(data={"collusion": rows}, rows=rows, picture=[table("Of eight silos", columns, rows)]), given.format
        )
        return
    if given.smallest:
        rows = smallest_rows(given.smallest)
        columns = [Column(key=name, heading=name, figures=name != "fault") for name in rows[0]]
        show(Result(data={"smallest": rows}, rows=rows, picture=[table("Small faults", columns, rows)]), given.format)
        return
    found = false_alarms(given.false_alarms)
    told = [(name, f"{alarms} false alarms in {given.false_alarms} audits") for name, alarms in found.items()]
    show(Result(data=found, rows=[found], picture=[facts(told)]), given.format)


def main() -> None:
    """Measures, prints, and fails if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--audits", type=int, default=5)
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--false-alarms", type=int, metavar="AUDITS", help="count those of sound plans, and no more")
    parser.add_argument("--smallest", type=int, metavar="AUDITS", help="how small a fault is found, and no more")
    parser.add_argument("--collusion", action="store_true", help="claimed beside measured epsilons, and no more")
    given = parser.parse_args()
    if given.collusion or given.false_alarms or given.smallest:
        _show_less(given)
        return
    rows = [row_of(name, path, given.audits, peers=not given.without_peers) for name, path in mechanisms().items()]
    rows.append(short_masks_row(given.audits))
    share, seconds = reach()
    columns = [
        Column(key="fault", heading="fault", figures=False),
        Column(key="audits", heading="audits"),
        Column(key="found", heading="found"),
        Column(key="seconds", heading="seconds"),
    ]
    if not given.without_peers:
        columns += [
            Column(key="peer_found", heading="JAX\nPrivacy"),
            Column(key="peer_seconds", heading="its\nseconds"),
        ]
    reached = [("10^6 replays", f"{share:.1%} of the exact epsilon proven, in {seconds:.1f} s")]
    picture = [table("Planted faults, and in how many audits they were found", columns, rows), facts(reached)]
    show(Result(data={"faults": rows, "reach": share, "seconds": seconds}, rows=rows, picture=picture), given.format)
    missed = [row["fault"] for row in rows[1:] if row["found"] < row["audits"] or row["seconds"] > LONGEST_AUDIT]
    if missed or share < LEAST_REACH or seconds > LONGEST_MILLION:
        raise SystemExit(f"a promise is not kept: {missed or f'{share:.1%} in {seconds:.1f} s'}")


if __name__ == "__main__":
    main()
