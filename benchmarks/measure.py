"""Ratios measured side by side, and the table they are printed in.

1. All sides run in turn in one process (a b c a b c …), so that a busy moment of the machine hits each of
   them.
2. Each turn gives one ratio; the median, the least and the most of them are printed.
3. Peak memory is that of a fresh process: the most it held during the act, less what it held before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Act = Callable[[], object]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
HEADER = ("measured", "against", "ours", "the other", "ratio", "aim", "")


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one number."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        return f"**{self.median:.3g}×** ({min(self.values):.3g}–{max(self.values):.3g})"

    def of(self, other: Spread) -> Spread:
        """Turn by turn, this one as a multiple of the other."""
        return Spread(
            tuple(mine / its for mine, its in zip(self.values, other.values, strict=True))
        )

    def scaled(self, factor: float) -> Spread:
        return Spread(tuple(factor * value for value in self.values))

    def and_then(self, other: Spread) -> Spread:
        """Turn by turn, both together."""
        return Spread(
            tuple(mine + its for mine, its in zip(self.values, other.values, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Aim:
    """What a ratio should be at least, at most, or below."""

    relation: str
    bound: float

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}×"

    def verdict(self, ratio: float) -> str:
        met = {"≥": ratio >= self.bound, "≤": ratio <= self.bound, "<": ratio < self.bound}[
            self.relation
        ]
        return "met" if met else "**missed**"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    measured: str
    against: str
    ours: str
    other: str
    ratio: Spread
    aim: Aim | None = None

    def cells(self) -> tuple[str, ...]:
        judged = (
            ("", "")
            if self.aim is None
            else (str(self.aim), self.aim.verdict(self.ratio.median))
        )
        return self.measured, self.against, self.ours, self.other, str(self.ratio), *judged


def interleave(
    acts: Sequence[Act], *, repeats: int, clock: Clock = time.perf_counter
) -> list[Spread]:
    """The seconds each act took, in turns."""
    gc.collect()
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(repeats):
        for act, seconds in zip(acts, taken, strict=True):
            start = clock()
            act()
            seconds.append(clock() - start)
    return [Spread(tuple(seconds)) for seconds in taken]


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def megabytes(value: float) -> str:
    return f"{value / 2**20:.0f} MB"


def peak_of(act: Act) -> tuple[int, int]:
    """Resident bytes of this process before the act, and the most during it."""
    gc.collect()
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        ctypes.CDLL(None).malloc_trim(0)  # give back what loading left free
    before = _resident("VmRSS")
    if reset.exists():
        reset.write_text("5")  # forget the peak of loading the model
    act()
    return before, _resident("VmHWM")


def in_fresh_process(script: str, *arguments: str) -> dict[str, float]:
    """What a run of a script prints as JSON on its last line."""
    done = subprocess.run(
        [sys.executable, script, *arguments], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _resident(name: str) -> int:
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: only the peak of the whole process is known
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(
        int(line.split()[1]) * 1024
        for line in status.read_text().splitlines()
        if line.startswith(f"{name}:")
    )


def show(cells: Sequence[str]) -> None:
    """One line of a Markdown table, at once."""
    print(f"| {' | '.join(cells)} |", flush=True)


def show_header() -> None:
    show(HEADER)
    show(["---"] * len(HEADER))
