"""What a sweep will take, said before it starts: shards, memory, and time by a measured sample.

1. The sample is a shard of lines, drawn from the whole file. One line is measured before the clock starts.
2. Memory is that of a worker: its weights, the runs of one batch that are kept, and the streams on their way.
3. With so many workers, each as fast as this process, shards are measured in rounds. Every worker loads the
   model once; a task of SLURM is one shard, and loads it for that.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from circuits.engine.memory import BUDGET, MemoryPlan
from circuits.errors import check_whole
from circuits.executors.executor import ModelSource
from circuits.models.load import as_model
from circuits.results import Progress, Summarised, silent
from circuits.show.words import plural
from circuits.sweeps.batches import memory_of, to_batches
from circuits.sweeps.lines import Line, Lines, read_line, read_lines
from circuits.sweeps.rows import measure_lines
from circuits.sweeps.sweep import SweepSettings, manifest_of

SAMPLE: Final = 64  # lines, at most
IDLE: Final = 0.7  # a process that has a processor for less of its time is on a busy machine
CLUSTERS: Final = (1, 2, 4, 8, 16, 64, 256)  # numbers of workers for which the time is printed


@dataclass(frozen=True, slots=True, repr=False)
class SweepPlan(Summarised):
    """What a sweep will take.

    >>> lines = folder / "plan.jsonl"
    >>> _ = lines.write_text(json.dumps({"prompt": TEXT, "key": 5, "swap": {"large": "hot"}}))
    >>> plan = circuits.plan_sweep(model, lines)
    >>> plan.shards, plan.seconds(workers=8) == plan.seconds(workers=1)
    (1, True)
    """

    model: str
    device: str  # on which the sample was measured
    lines: int
    shard: int  # lines of a shard
    sample: int  # lines that were measured
    wrong: int  # lines of the sample that have an error
    seconds_a_line: float
    seconds_to_load: float
    weights: int  # bytes
    batch: MemoryPlan  # of the largest batch in the sample
    workers: int | None = None  # a number that is printed beside `CLUSTERS`
    computing: float = 1.0  # the share of the measured time in which it had a processor

    @property
    def shards(self) -> int:
        return math.ceil(self.lines / self.shard)

    @property
    def memory(self) -> int:
        """Bytes of a worker's tensors: weights, kept runs, streams."""
        return self.weights + self.batch.runs + max(BUDGET, self.batch.streams)

    def rounds(self, workers: int) -> int:
        """How many shards the busiest of so many workers measures."""
        return math.ceil(self.shards / workers)

    def seconds(self, workers: int) -> float:
        """How long so many workers take, each as fast as the sample was measured."""
        lines = min(self.lines, self.rounds(workers) * self.shard)
        return self.seconds_to_load + lines * self.seconds_a_line

    def __str__(self) -> str:
        wrong = f", {self.wrong} of them with errors" if self.wrong else ""
        to_load = _duration(self.shards * self.seconds_to_load)
        shards = f"{plural(self.shards, 'shard')} of {plural(self.shard, 'line')}"
        lines = [
            f"{plural(self.lines, 'line')} on {self.model}, cut into {shards}",
            f"a line takes {_short(self.seconds_a_line)} on this {self.device}, by a sample of "
            f"{plural(self.sample, 'line')}{wrong}; loading the model takes {_short(self.seconds_to_load)}",
            *self._busy_lines(),
            f"a worker's tensors take {self.memory / 1e9:.2f} GB: weights {self.weights / 1e9:.2f} GB, "
            f"{self.batch}; Python and its libraries come on top",
            "",
            f"{'workers':>8}  {'shards each':>11}  time",
        ]
        for workers in self.counts():
            time = _duration(self.seconds(workers))
            lines.append(f"{workers:>8}  {self.rounds(workers):>11}  {time}")
        lines += [
            "",
            f"A worker is a core or a GPU as fast as this {self.device}; more than {self.shards} "
            "are of no use.",
            f"SLURM's tasks load the model for each shard: {to_load} more, divided by the workers.",
        ]
        return "\n".join(lines)

    def _busy_lines(self) -> list[str]:
        """Nothing, unless the machine was too busy for the sample to say how long an idle one takes."""
        if self.computing >= IDLE:
            return []
        alone = _short(self.seconds_a_line * self.computing)
        return [
            f"this machine is busy: the sample had a processor {self.computing:.0%} of the time; alone, a "
            f"line would take about {alone}"
        ]

    def counts(self) -> list[int]:
        """The numbers of workers for which the time is printed, up to one for each shard."""
        numbers = {each for each in CLUSTERS if each < self.shards} | {self.shards}
        if self.workers is not None:
            numbers.add(self.workers)
        return sorted(numbers)


def plan_sweep(
    model: Any,
    prompts: str | Path,
    *,
    workers: int | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> SweepPlan:
    """What `sweep` would take with these settings, by a sample of the lines. `workers` is a number of cores
    or GPUs whose time is printed beside that of other numbers.

    >>> lines = folder / "planned.jsonl"
    >>> line = json.dumps({"prompt": TEXT, "key": 5, "swap": {"large": "hot"}})
    >>> _ = lines.write_text("\\n".join([line] * 100))
    >>> circuits.plan_sweep(model, lines).shards
    7
    """
    if workers is not None:
        check_whole("workers", workers, least=1)
    wanted = SweepSettings(**settings)
    lines = read_lines(prompts)
    began = time.perf_counter()
    loaded = model.load() if isinstance(model, ModelSource) else as_model(model)
    to_load = time.perf_counter() - began
    manifest = manifest_of(loaded, lines, wanted)
    sample = _sample(lines, min(SAMPLE, manifest.shard, len(lines)))
    stage = f"sample of {plural(len(sample), 'line')}"
    progress(stage, 0, 1)
    # The first measurement on a model also reads and verifies its layout.
    measure_lines(loaded, sample[:1], manifest, batch=1)
    began, computed = time.perf_counter(), time.process_time()
    rows = measure_lines(loaded, sample, manifest, batch=wanted.batch)
    seconds = time.perf_counter() - began
    computing = 1.0  # on a GPU the processor waits
    if loaded.device.type == "cpu":
        computing = (time.process_time() - computed) / seconds
    batches, _ = to_batches(loaded, sample, manifest, batch=wanted.batch)
    plans = [memory_of(loaded, each) for each in batches] or [MemoryPlan(0, 0, 0, 0)]
    parameters = loaded.bridge.state_dict().values()
    return SweepPlan(
        model=loaded.name,
        device=str(loaded.device),
        lines=len(lines),
        shard=manifest.shard,
        sample=len(rows),
        wrong=sum(row["error"] is not None for row in rows),
        seconds_a_line=seconds / len(rows),
        seconds_to_load=to_load,
        weights=sum(each.numel() * each.element_size() for each in parameters),
        batch=max(plans, key=lambda each: each.runs),
        workers=workers,
        computing=min(1.0, computing),
    )


def _sample(lines: Lines, count: int) -> list[Line]:
    """So many lines, drawn at random: every tenth line may be of one kind."""
    chosen = sorted(random.Random(0).sample(range(len(lines)), count))
    return [read_line(lines.numbers[at], lines.raw[at]) for at in chosen]


def _short(seconds: float) -> str:
    """A time of seconds or less."""
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
