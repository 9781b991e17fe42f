"""The convolutional network of cifar10_images.py under two units of privacy, over epsilon: a silo, and a record.

python examples/image_units.py images.npz [--device cuda] [--silos 1000] [--seeds 3] [-o curve.json]

`images.npz` comes from cifar10_images.py (`prepare package -o images.npz --images 10000 --test-images 2000`). Every
image is held by one silo of lognormal regions. The silo unit has the joint recipe and local steps; the record unit has
the optimum and one gradient of each image a round. Rounds and rate are chosen for every unit and epsilon on one further
seed; the table shows the mean and the standard error over the other seeds. Seeds change the images of silos and the
noise; test images and the start of the network stay the same.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cifar10_images import ANIMALS, Convolutional
from network_at_scale import Parser, add_study_options, at_least, errors_in_one_line, learnt, lognormal_regions

import fulcrum
from fulcrum.core.store.durable_files import check_writable

EPSILONS = (0.3, 1.0, 3.0, 8.0, 30.0)
UNITS = {"silo": "joint", "record": "optimal"}
SETTINGS = {
    "silo": [{"rounds": rounds, "learning_rate": 0.05} for rounds in (10, 30)],
    "record": [{"rounds": rounds, "learning_rate": rate} for rounds in (20, 60) for rate in (0.5, 2.0)],
}


def setting_rows(task: fulcrum.Task, unit: str, options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Yields by setting of a unit a row for each epsilon, with the accuracies by seed; the last seed is to choose."""
    for setting in SETTINGS[unit]:
        own = argparse.Namespace(**(vars(options) | {"unit": unit, "ways": [UNITS[unit]], "epsilon": options.curve}))
        own.rounds = min(setting["rounds"], options.most_rounds)
        own.learning_rate, own.seeds = setting["learning_rate"], options.seeds + 1
        yield [
            {"unit": unit, "rounds": own.rounds, "learning rate": own.learning_rate} | row
            for row in learnt(task, {"network": Convolutional}, options.silos, own)
        ]


def chosen_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns by unit and epsilon the row that is best on the last seed."""
    best: dict[tuple[str, float], dict[str, Any]] = {}
    for row in rows:
        key = row["unit"], row["epsilon"]
        if key not in best or row["network by seed"][-1] > best[key]["network by seed"][-1]:
            best[key] = row
    return list(best.values())


def other_convention(epsilon: float, row: dict[str, Any], options: argparse.Namespace) -> float:
    """Returns the epsilon of a record that is added or removed, of a plan for records that are replaced."""
    federation = lognormal_regions(options.silos, records=options.records)
    plan = fulcrum.plan(federation, rounds=row["rounds"], epsilon=epsilon, unit="record")
    return float(plan.person_epsilons["other_neighbours_above"])


def as_markdown(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Returns the table of both units: accuracy over epsilon, with the settings of each cell."""
    by_key = {(row["unit"], row["epsilon"]): row for row in chosen_rows(rows)}
    lines = ["| epsilon | silo | record | epsilon of a record, add-remove | settings: silo; record |", "|---" * 5 + "|"]
    for epsilon in options.curve:
        cells, settings = [], []
        for unit in UNITS:
            if (unit, epsilon) not in by_key:
                cells.append("not trained")
                continue
            row = by_key[unit, epsilon]
            seeds = row["network by seed"][:-1]
            error = statistics.stdev(seeds) / len(seeds) ** 0.5 if len(seeds) > 1 else float("nan")
            cells.append(f"{statistics.mean(seeds):.3f} ± {error:.3f}")
            settings.append(f"{row['rounds']} rounds, rate {row['learning rate']:g}")
        trained = by_key.get(("record", epsilon))
        added = f"{other_convention(epsilon, trained, options):.3g}" if trained else ""
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} | {added} | {'; '.join(settings)} |")
    for unit in dict.fromkeys(row["unit"] for row in rows):
        without = max(row["network without privacy"] for row in rows if row["unit"] == unit)
        lines.append(f"Without privacy, {unit}: {without:.3f} at most over the settings.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains both units, and prints the table."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the .npz of images")
    parser.add_argument("--silos", type=at_least(60), default=1_000)
    parser.add_argument("--records", type=float, default=10.0, help="of each silo")
    parser.add_argument("--curve", type=float, nargs="+", default=EPSILONS, help="the epsilons")
    parser.add_argument("--seeds", type=at_least(1), default=3, help="reported; one more is trained to choose by")
    parser.add_argument("--most-rounds", type=at_least(1), default=60, help="fewer for a trial")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file, written anew after each setting")
    parser.add_argument("--units", nargs="*", choices=UNITS, default=list(UNITS), help="to train")
    parser.add_argument("--earlier", type=Path, nargs="+", default=[], help="JSON files of earlier runs, to print too")
    defaults = argparse.ArgumentParser()
    add_study_options(defaults, ("network",))
    # The own options go first: a namespace with values would keep argparse from setting their defaults.
    options = argparse.Namespace(**(vars(defaults.parse_args([])) | vars(parser.parse_args())))
    with errors_in_one_line(parser):
        if options.output:
            check_writable(options.output)
        task, rows = replace(fulcrum.load_task(options.data), sensitive=ANIMALS), list[dict[str, Any]]()
        for file in options.earlier:
            rows += json.loads(file.read_text())
        for unit in options.units:
            for of_setting in setting_rows(task, unit, options):
                rows += of_setting
                if options.output:
                    options.output.write_text(json.dumps(rows, indent=1) + "\n")
        sys.stdout.write(as_markdown(rows, options))


if __name__ == "__main__":
    main()
