"""What the tests of training do in processes of their own: be killed, and train together.

Processes are forked from a server that imports the libraries once and computes nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors.torch import save_file

from circuits import files
from circuits.errors import CircuitsError
from circuits.models.load import find
from circuits.sparsify import Settings, settings_for, training
from circuits.sparsify.processes import join
from circuits.sparsify.sampling import CHUNK_ROWS, Sampling
from circuits.sparsify.text import little_language
from circuits.sparsify.twin import sparsify, to_student

TINY = settings_for(
    little_language=True, gates="sampled", healing=0, steps=6, batch=2, length=12, warmup=2
)
ADAPTER = Settings(steps=4, batch=2, length=10, warmup=1, lora=2)
FEWER_TOKENS = replace(ADAPTER, short=0.5, tokens=300)
TWO_CHUNKS = Sampling(
    rows=CHUNK_ROWS + 40, openings=("", "The opposite"), temperatures=(0.5, 1.0)
)
ASKED = Sampling(rows=40, openings=("The opposite of", "large"), answers=5.0)
PROMPTED = replace(FEWER_TOKENS, short=0.25, prompted=0.5)
TRAINER = (str(Path(training.__file__).parent), files.__file__)


def start(work: Any, *given: Any) -> BaseProcess:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["circuits.sparsify.twin", "accelerate", "peft"])
    process = server.Process(target=work, args=given)
    process.start()
    return process


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_lines(lines: int, model: Path, folder: Path) -> None:
    """Train, with a checkpoint after each step, and die after so many lines of the trainer's steps."""
    left, begun = lines, False

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal left, begun
        if not frame.f_code.co_filename.startswith(TRAINER):
            return None
        begun = begun or frame.f_code.co_name == "_step"
        left -= begun
        if left < 0:
            die()
        return trace

    sys.settrace(trace)
    sparsify(model, folder, settings=TINY, save_every=0.0)


def die_at_file(name: str, model: Path, folder: Path) -> None:
    """Train on the model's own words, and die when the file of this name is half on the disk."""
    sync = os.fsync

    def fsync(file: int) -> None:
        if unfinished := list((folder / "training").rglob(f"{name}*.unfinished")):
            os.truncate(unfinished[0], unfinished[0].stat().st_size // 2)
            die()
        sync(file)

    os.fsync = fsync
    sparsify(
        model, folder, settings=PROMPTED, sampling=TWO_CHUNKS, prompts=ASKED, save_every=0.0
    )


def die_while_writing(writes: int, share: float, model: Path, folder: Path) -> None:
    """Train, with a checkpoint after each step, and die when part of one more checkpoint is on the disk."""
    left, sync, unfinished = writes, os.fsync, folder / "training" / "checkpoint.unfinished"

    def fsync(file: int) -> None:
        nonlocal left
        left -= unfinished.exists()  # a folder is synced when nothing is unfinished
        if left < 0:
            os.truncate(unfinished, int(share * unfinished.stat().st_size))
            die()
        sync(file)

    os.fsync = fsync
    sparsify(model, folder, settings=TINY, save_every=0.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train_together(index: int, port: int, model: Path, foreign: Path, folder: Path) -> None:
    """One of two processes: all weights with sampled gates, an adapter on the model's words, failures."""
    started = {
        "RANK": index,
        "LOCAL_RANK": index,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in started.items()})
    _train_all(index, model, folder / "all")
    measured = sparsify(model, folder / "published", settings=TINY)
    (folder / f"measured{index}").write_text(str(measured))
    _say_error(folder / f"odd{index}", model, folder / "odd", replace(TINY, steps=2, batch=3))
    try:
        join().check_same(index)
    except CircuitsError as error:
        (folder / f"apart{index}").write_text(str(error))
    sparsify(foreign, folder / "adapter", settings=ADAPTER)
    if index == 1:
        _die_at_step(4)
    _say_error(folder / f"lost{index}", model, folder / "lost", TINY)


def _train_all(index: int, model: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    student = to_student(find(str(model)), TINY)
    training.train(training.TrainingRun(student, little_language(TINY), TINY, join()), folder)
    values = {
        name: parameter.detach().contiguous() for name, parameter in student.parameters.items()
    }
    save_file(values, folder / f"weights{index}.safetensors")


def _say_error(file: Path, model: Path, folder: Path, settings: Settings) -> None:
    try:
        sparsify(model, folder, settings=settings, save_every=0.0)
    except CircuitsError as error:
        file.write_text(str(error))


def _die_at_step(step: int) -> None:
    """Die when the trainer begins this step, counted from here."""
    left = step

    def trace(frame: FrameType, event: str, value: Any) -> None:
        nonlocal left
        if frame.f_code is training._step.__code__:
            left -= 1
            if left < 0:
                die()

    sys.settrace(trace)
