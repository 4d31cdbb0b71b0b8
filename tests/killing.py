"""Sweeps that are killed (−9) at some moment and run again: the driver, an actor of Ray, a task of submitit.

Each case is `circuits sweep` in a process of its own, killed when a share of its shards is there. Tasks of
submitit run all at once, so that there the moment is one of time. The same command must then finish, with
every line exactly once. `benchmarks/kill.py` runs all five moments, `test_executors.py` one of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from circuits.sweeps.results import open_sweep

MOMENTS = (0.1, 0.3, 0.5, 0.7, 0.9)
PATIENCE = 600.0  # seconds
LINES, SHARD = 400, 10
TASK_SHARD = 100  # submitit starts a task for each shard, all at once
Command = subprocess.Popen[bytes]


def driver(command: Command) -> None:
    command.kill()


def actor(command: Command) -> None:
    below(command, "ray::_Actor")[0].kill()


def task(command: Command) -> None:
    below(command, "submitit")[0].kill()


RAY = ("--executor", "ray", "--workers", "2")
SLURM = ("--executor", "slurm", "--slurm-cluster", "local")
CASES: dict[str, tuple[tuple[str, ...], Callable[[Command], None], bool]] = {
    # the options, who is killed, and whether the command then goes on by itself
    "driver": ((), driver, False),
    "driver of two processes": (("--workers", "2"), driver, False),
    "actor of Ray": (RAY, actor, True),
    "driver of Ray": (RAY, driver, False),
    "task of submitit": (SLURM, task, False),
    "driver of submitit": (SLURM, driver, False),
}


def kill_and_go_on(case: str, moment: float, model: Path, room: Path) -> int:
    """Kill once, run again, and check every line; how many shards were there when it was killed."""
    options, kill, goes_on = CASES[case]
    by_tasks = "submitit" in case
    shard = TASK_SHARD if by_tasks else SHARD
    file, out = write_lines(room / "lines.jsonl"), room / "out"
    asked = [str(file), "-o", str(out), "--model", str(model), "--shard", str(shard), *options]
    with running(asked) as first:
        if by_tasks:
            wait(lambda: bool(below(first, "submitit")), first)
            time.sleep(10 * moment)
        else:
            wanted = max(1, round(moment * LINES / shard))
            wait(lambda: len(shards(out)) >= wanted, first)
        there = len(shards(out))
        with suppress(IndexError):  # a task may have ended a moment ago
            kill(first)
        ended_well = first.wait(PATIENCE) == 0
    if goes_on and not ended_well:
        raise AssertionError("the command did not survive the death of one of its workers")
    with running(asked) as again:
        if again.wait(PATIENCE) != 0:
            assert again.stderr is not None
            raise AssertionError(again.stderr.read().decode())
    check_whole(out)
    return there


def write_lines(file: Path) -> Path:
    """So many lines of two lengths that are quickly measured."""
    words = ("large", "hot", "rich", "old", "wet", "fast")
    lines = []
    for number in range(LINES):
        one, other = words[number % 6], words[(number + 1 + number // 6 % 5) % 6]
        prompt = f'{"The " * (number % 2)}The opposite of "{one}" is "'
        asked = {"prompt": prompt, "key": one, "swap": {one: other}}
        lines.append(json.dumps(asked | {"answer": "small", "foil": "cold"}) + "\n")
    file.write_text("".join(lines))
    return file


def check_whole(out: Path) -> None:
    """Every line is there once, and nothing half-written is left."""
    swept = open_sweep(out)
    assert swept.complete, f"{len(swept)} of {LINES} lines"
    assert swept.rows["line"].tolist() == list(range(1, LINES + 1))
    assert not list(out.rglob("*.unfinished"))


@contextmanager
def running(asked: list[str]) -> Iterator[Command]:
    """`circuits sweep`; it and what it started are gone at the end."""
    command = subprocess.Popen(
        [sys.executable, "-m", "circuits", "sweep", *asked],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield command
    finally:
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(command.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGKILL)
        command.kill()
        command.wait()


def shards(out: Path) -> list[Path]:
    return list((out / "shards").glob("*.parquet"))


def wait(until: Callable[[], bool], command: Command) -> None:
    """Wait for something to happen while a command runs."""
    end = time.monotonic() + PATIENCE
    while not until():
        if command.poll() is not None or time.monotonic() > end:
            raise AssertionError("the command ended before it could be killed, or hangs")
        time.sleep(0.02)


def below(command: Command, words: str) -> list[psutil.Process]:
    """The processes that a command started, with these words in their command lines."""
    found = []
    for each in psutil.Process(command.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if words in " ".join(each.cmdline()):
                found.append(each)
    return found
