"""The inside of the process that trains: the process runs the training module, and holds no ledger, key or seal.

`fulcrum.core.training.training_worker` starts the process. The silo asks for a row, and the process answers with a
line: `[token, "rows", number]`, `[token, "end"]` or `[token, "failed", reason, report]`, where the token is that of the
question. The process ends with the silo: a thread reads the silo's questions while training runs, and kills the process
and its children as soon as the silo's end of the socket is closed.
"""

import contextlib
import dataclasses
import json
import logging
import mmap
import os
import pickle
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.core.plan.verified_plan import verified_of_issuer
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_module import TrainingModule, load_training_module
from fulcrum.core.training.training_result import error_in_words, forked_children_end, report_of
from fulcrum.errors import DataError

_LONGEST_REASON, _LONGEST_REPORT = 500, 8_000
"""Characters. A character is at most six bytes of JSON, so an answer is shorter than the silo's longest line."""


def serve(channel_file: int, shared_file: int, start_file: int) -> None:
    """Answers the silo's questions until the silo ends.

    Args:
        channel_file: The descriptor of the socket of the questions.
        shared_file: The descriptor of the file with the model and the row.
        start_file: The descriptor of the file with the name of the training module and the assignment.
    """
    for file in (channel_file, shared_file, start_file):
        os.set_inheritable(file, False)  # a program that training starts holds no descriptor of the silo
    with open(start_file, "rb") as start:
        module, plan, silo, seed, options, arrays, memory = pickle.load(start)  # noqa: S301 written by the silo itself
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    _limit(memory)
    content, issuer = plan
    verified_plan = verified_of_issuer(msgspec.json.decode(content, type=PlanFile), issuer)
    assignment = Assignment(silo=silo, round_number=0, plan=verified_plan, seed=seed, options=options)
    channel, shared = socket.socket(fileno=channel_file), mmap.mmap(shared_file, 0)
    questions: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, questions), daemon=True).start()
    modules: list[TrainingModule] = []  # imported in the first round, so that a failed import is an answer
    rounds: Iterator[list[str]] = iter(())
    while True:
        number, token = questions.get()
        answer = next(rounds, None)
        if answer is None:
            of_round = dataclasses.replace(assignment, round_number=number)
            rounds = _answers(module, modules, of_round, arrays, shared)
            answer = next(rounds)
        channel.sendall(json.dumps([token, *answer], ensure_ascii=False).encode() + b"\n")


def _answers(
    module: str, modules: list[TrainingModule], assignment: Assignment, arrays: Any, shared: mmap.mmap
) -> Iterator[list[str]]:
    """Yields the answers of a round; every exception of training is an answer, an interrupt or an exit too."""
    try:
        with forked_children_end():
            if not modules:
                modules.append(load_training_module(module))
        model = _model(arrays, shared)
        parameters = sum(array.size for array in model.values())
        place = np.frombuffer(shared, dtype=np.float64, offset=sum(array.nbytes for array in model.values()))
        place = place.reshape(-1, parameters) if parameters else np.zeros((1, 0))
        rows, filled = _single_rows(modules[0].rows(model, assignment), parameters), 0
        while True:
            with forked_children_end():
                row = next(rows, None)
            if row is not None:
                place[filled] = row
                filled += 1
            if filled and (row is None or filled == len(place)):
                yield ["rows", str(filled)]
                filled = 0
            if row is None:
                break
        answer = ["end"]
    except BaseException as error:
        answer = ["failed", error_in_words(error)[:_LONGEST_REASON], report_of(error)[-_LONGEST_REPORT:]]
    yield [text.encode(errors="replace").decode() for text in answer]


def _single_rows(blocks: Iterator[FloatArray], parameters: int) -> Iterator[FloatArray]:
    """Yields the rows of blocks, one by one; NumPy would repeat a row of a single number in every coordinate."""
    for block in blocks:
        if block.ndim not in (1, 2) or block.shape[-1] != parameters:
            raise DataError("training.rows-shape", shape=block.shape, parameters=parameters)
        yield from np.atleast_2d(block)


def _model(arrays: Any, shared: mmap.mmap) -> dict[str, FloatArray]:
    """Returns the model's arrays in shared memory; `ModelForm.to_module` copies the arrays for the user's code."""
    model, at = {}, 0
    for name, dtype, shape in arrays:
        count = int(np.prod(shape, dtype=np.int64))
        model[name] = np.frombuffer(shared, dtype=dtype, count=count, offset=at).reshape(shape)
        at += model[name].nbytes
    return model


def _listen(channel: socket.socket, questions: "queue.SimpleQueue[tuple[int, str]]") -> None:
    """Passes on the silo's questions; kills this process and its children when the silo is gone."""
    with contextlib.suppress(OSError, ValueError), channel.makefile("rb") as lines:
        for line in lines:
            number, token = line.decode().split()
            questions.put((int(number), token))
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _limit(memory: int) -> None:
    """Bounds the address space, and makes this process the first that the operating system kills for memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
