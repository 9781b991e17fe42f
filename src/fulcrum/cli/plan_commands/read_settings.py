"""The command that tells the promise of settings of other tools, or of plain numbers."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fulcrum.cli.shared_options.federations import ColumnOption, federation_argument
from fulcrum.cli.shared_options.options import INPUT, TARGET, FormatOption, argument, number, option
from fulcrum.errors import ParameterError
from fulcrum.planning.promises.found_settings import find_settings, rounds_in, unread_files
from fulcrum.planning.promises.promise_reading import Circumstances, PromiseReading, read_numbers, read_promise
from fulcrum.rounding import display_epsilon
from fulcrum.views.terminal.screen import Result, facts, remarks, show


def read_settings(
    source: Annotated[
        Path | None,
        argument(
            "Flower app, job of NVIDIA FLARE or script with Opacus: a folder, a Python file or a JSON file, parsed and "
            "never run. Default: the numbers of --clip and --multiplier."
        ),
    ] = None,
    *,
    federation: Annotated[
        str | None, option("Federation whose observers are counted: a file or a built-in name. Default: none.", INPUT)
    ] = None,
    column: ColumnOption = (),
    clip: Annotated[float | None, option("Clip norm of a silo's update. Default: none.", TARGET)] = None,
    multiplier: Annotated[
        float | None, option("Noise over the clip norm, at each silo. Default: none.", TARGET)
    ] = None,
    rate: Annotated[
        float | None, option("Share of the records in a step, or of the silos in a round. Default: none.", TARGET)
    ] = None,
    steps: Annotated[int | None, number("Local steps in a round, for Opacus. Default: none.", TARGET)] = None,
    rounds: Annotated[int | None, number("Rounds. Default: as the source states.", TARGET)] = None,
    delta: Annotated[float, option("Delta of the epsilons.", TARGET)] = 1e-5,
    style: FormatOption = "table",
) -> int:
    """Tell the promise of present settings: unit, sensitivity, composition, and epsilon for each observer."""
    topology = None if federation is None else federation_argument(federation, column).federation
    if source is None:
        if clip is None or multiplier is None or rounds is None:
            raise ParameterError("promise.numbers-missing")
        readings = [
            read_numbers(
                clip=clip, multiplier=multiplier, rounds=rounds, delta=delta, rate=rate or 1.0, federation=topology
            )
        ]
    else:
        if clip is not None or multiplier is not None:
            raise ParameterError("promise.numbers-beside-source")
        rounds = rounds if rounds is not None else rounds_in(source)
        circumstances = Circumstances(rounds=rounds, delta=delta, federation=topology, rate=rate, steps=steps)
        readings = [read_promise(setting, circumstances) for setting in find_settings(source)]
    unread = [] if source is None else unread_files(source)
    data = {"readings": [asdict(reading) for reading in readings], "unread": unread}
    rows: list[dict[str, Any]] = [
        {"place": reading.place, "mechanism": reading.mechanism, "delta": reading.delta} | asdict(entry)
        for reading in readings
        for entry in reading.observers
    ]
    picture = [part for reading in readings for part in _picture(reading)]
    picture.append(remarks([(True, f"Not read, since JSON alone is read: {file}.") for file in unread]))
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


def _picture(reading: PromiseReading) -> list[Any]:
    """Returns a reading as facts, with the unknown parts as warnings."""
    lines = [
        ("read as", f"{reading.mechanism} ({reading.place})"),
        ("unit", reading.unit),
        ("sensitivity", reading.sensitivity),
        ("noise", reading.noise),
        ("composition", reading.composition),
    ]
    for entry in reading.observers:
        promise = "no guarantee"
        if entry.epsilon is not None:
            promise = f"epsilon {display_epsilon(entry.epsilon):g} at delta {reading.delta:g}"
        lines.append((f"against {entry.observer}", f"{promise}{f': {entry.reason}' if entry.reason else ''}"))
    notes = [(True, f"Unknown: {part}.") for part in reading.unknown]
    if reading.plan:
        notes.append((False, f"A plan with the same promise: fulcrum plan FEDERATION {reading.plan}"))
    return [facts(lines), remarks(notes)]
