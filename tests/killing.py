"""Sweeps that are killed (−9) at some moment and run again: the driver, an actor of Ray, a task of submitit.

1. Each case is `circuits sweep` in a process of its own, killed when a share of its shards is there; at the
   share 0, two seconds after its first worker began.
2. What a killed driver started ends with it. Tasks of submitit alone go on, as those of SLURM do.
3. The same command must then finish, with every line exactly once.

`benchmarks/kill.py` kills at all five moments, `test_executors.py` at one of them.
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
from dataclasses import dataclass
from pathlib import Path

import psutil

from circuits.sweeps.results import open_sweep

MOMENTS = (0.0, 0.25, 0.5, 0.75, 0.9)  # the share of shards that are there
PATIENCE = 900.0  # seconds
LINES = 400
SHARD, TASK_SHARD = 10, 50  # submitit starts a task for each shard, all at once
Command = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Case:
    """Who measures, and who is killed."""

    options: tuple[str, ...]
    worker: str  # words in the command line of a worker; none for the driver itself
    kills_worker: bool = False
    goes_on: bool = False  # whether the command survives it
    leaves_workers: bool = False  # whether workers go on without their driver

    def workers(self, command: Command) -> list[psutil.Process]:
        return below(command, self.worker) if self.worker else [psutil.Process(command.pid)]


RAY = ("--executor", "ray", "--workers", "2")
SLURM = ("--executor", "slurm", "--slurm-cluster", "local")
ACTOR, TASK, PROCESS = "ray::_Actor", "submitit.core._submit", "spawn_main"
CASES = {
    "driver": Case((), ""),
    "driver of two processes": Case(("--workers", "2"), PROCESS),
    "actor of Ray": Case(RAY, ACTOR, kills_worker=True, goes_on=True),
    "driver of Ray": Case(RAY, ACTOR),
    "task of submitit": Case(SLURM, TASK, kills_worker=True),
    "driver of submitit": Case(SLURM, TASK, leaves_workers=True),
}


def kill_and_go_on(name: str, moment: float, model: Path, room: Path) -> int:
    """Kill once, run again, and check every line; how many shards were there when it was killed."""
    case = CASES[name]
    shard = TASK_SHARD if TASK in case.worker else SHARD
    file, out = write_lines(room / "lines.jsonl"), room / "out"
    asked = [str(file), "-o", str(out), "--model", str(model), "--shard", str(shard)]
    with running([*asked, *case.options]) as first:
        wait(lambda: bool(case.workers(first)), first)
        if moment:
            wait(lambda: len(shards(out)) >= int(moment * LINES / shard), first)
        else:
            time.sleep(2)
        there = len(shards(out))
        started = below(first)
        victim = case.workers(first)[0] if case.kills_worker else psutil.Process(first.pid)
        victim.kill()
        ended_well = first.wait(PATIENCE) == 0
        if not case.leaves_workers:
            wait(lambda: not any(map(lives, started)))
    assert ended_well or not case.goes_on, "the command did not survive the death of a worker"
    with running([*asked, *case.options]) as again:
        assert again.stderr is not None
        told = again.stderr.read().decode()
        assert again.wait(PATIENCE) == 0, told
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
        start_new_session=True,  # a group of processes of its own, as in a terminal
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


def wait(until: Callable[[], bool], command: Command | None = None) -> None:
    """Wait for something to happen, while a command runs."""
    end = time.monotonic() + PATIENCE
    while not until():
        if command is not None and command.poll() is not None:
            assert command.stderr is not None
            raise AssertionError(f"it ended before it was killed: {command.stderr.read()!r}")
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.02)


def below(command: Command, words: str = "") -> list[psutil.Process]:
    """The living processes that a command started, with these words in their command lines."""
    found = []
    for each in psutil.Process(command.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if lives(each) and words in " ".join(each.cmdline()):
                found.append(each)
    return found


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
