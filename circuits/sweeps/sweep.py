"""The verb `sweep`: every line of a file measured exactly once, whatever stops it, by one process or many.

1. Lines are cut into blocks. A process takes a block that no other process holds, measures its lines in
   batches, and writes each batch before the next begins. A process that dies leaves its block free and its
   shards whole: the same command does the rest. Which lines are run together depends on the file alone.
2. Processes may be started together (`accelerate launch`, `torchrun`, MPI) or not. The first of each launch
   waits until every line has its row, and takes over from those that died; the last one writes the summary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from circuits.errors import FileError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.results import Progress, silent
from circuits.sweeps import BATCH
from circuits.sweeps.lines import Lines, measure_lines, read_lines
from circuits.sweeps.results import Sweep, open_sweep
from circuits.sweeps.store import Manifest, Store, manifest_in
from circuits.tracing import SHARE, check_share

BLOCKS: Final = 16  # that a file is cut into, where their size allows
SMALLEST_BLOCK: Final = 16  # lines
LARGEST_BLOCK: Final = 256
PAUSE: Final = 0.2  # seconds
_RANK: Final = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
_SIZE: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_LOCAL: Final = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
_ADVICE: Final = "start it with accelerate launch or torchrun"


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that were started together, as the launcher says in the environment."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes on this machine

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch:
        rank, size = _number(environment, _RANK, 0), _number(environment, _SIZE, 1)
        local_rank = _number(environment, _LOCAL, 0)
        if size < 2:
            return cls(local_rank=local_rank)
        if not 0 <= rank < size:
            raise FileError(f"this process has rank {rank} of {size}; {_ADVICE}")
        return cls(rank, size, local_rank)


def _number(environment: Mapping[str, str], names: tuple[str, ...], missing: int) -> int:
    given = next((environment[name] for name in names if environment.get(name)), missing)
    try:
        return int(given)
    except ValueError as why:
        raise FileError(f"{given!r} is not the number of a process; {_ADVICE}") from why


def sweep(
    model: Any,
    prompts: str | Path,
    folder: str | Path,
    *,
    share: float = SHARE,
    seed: int = 0,
    controls: bool = False,
    batch: int = BATCH,
    progress: Progress = silent,
) -> Sweep:
    """Trace every line of a jsonl file into a folder, or go on with it; `batch`: most pairs run together.

    >>> lines = folder / "lines.jsonl"
    >>> _ = lines.write_text(json.dumps({"prompt": TEXT, "key": 5, "swap": {"large": "hot"}}))
    >>> swept = circuits.sweep(model, lines, folder / "swept")
    >>> swept.table["total"].round(2).tolist()
    [1.0]
    """
    check_share(share)
    if batch < 1:
        raise PromptError(f"a batch must hold at least 1 pair, not {batch}")
    folder, launch = Path(folder), Launch.from_environment()
    manifest_in(folder)
    lines, measured, store = read_lines(prompts), as_model(model), Store(folder)
    settings = (float(share), seed, controls, lines.name, lines.sha256, len(lines))
    identity = (measured.name, measured.fingerprint, measured.gated, measured.reads_bos)
    manifest = Manifest(*settings, *identity, measured.n_layers, measured.n_heads)
    store.begin(manifest)
    _Worker(measured, lines, manifest, store, batch, progress).work(waits=launch.rank == 0)
    store.end(manifest)
    return open_sweep(folder)


@dataclass(frozen=True, slots=True)
class _Worker:
    """One process at work on a sweep."""

    model: Model
    lines: Lines
    manifest: Manifest
    store: Store
    batch: int
    progress: Progress

    def work(self, *, waits: bool) -> None:
        """Measure every block that no other process holds; with `waits`, until every line has its row."""
        self._report()
        count = len(self.lines)
        size = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, count // BLOCKS))
        blocks = [range(start, min(count, start + size)) for start in range(0, count, size)]
        while blocks := self._unfinished(blocks):
            taken = [block for block in blocks if self._measure(block)]
            if taken:
                continue
            if not waits:
                return
            time.sleep(PAUSE)
            self._report()

    def _unfinished(self, blocks: Sequence[range]) -> list[range]:
        finished, numbers = self.store.finished(), self.lines.numbers
        return [block for block in blocks if any(numbers[index] not in finished for index in block)]

    def _measure(self, block: range) -> bool:
        """Measure what is left of a block; tells whether it was free."""
        with self.store.taken(block.start) as free:
            if free and self._unfinished([block]):  # asked again: another process may have just finished it
                lines, done = [self.lines.read(index) for index in block], self.store.finished()
                batches = measure_lines(self.model, lines, self.manifest, batch=self.batch, finished=done)
                for rows in batches:
                    self.store.put(rows, block.start)
                    self._report()
            return free

    def _report(self) -> None:
        self.progress("lines", self.store.count(), len(self.lines))
