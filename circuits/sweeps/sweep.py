"""The verb `sweep`: every line of a file measured exactly once, whatever stops it, by one process or many.

1. Lines are cut into blocks. A process takes a block that no other process holds, measures its lines in
   batches, and writes each batch before the next begins. A process that dies leaves its block free and its
   shards whole: the same command does the rest. Which lines are run together depends on the file alone.
2. Processes may be started together (`accelerate launch`, `torchrun`, MPI) or not. The first of each launch
   waits until every line has its row, and takes over from those that died; the last one writes the summary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accelerate.utils.environment import get_cpu_distributed_information

from circuits.errors import PromptError
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


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that were started together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes on this machine

    @classmethod
    def from_environment(cls) -> Launch:
        """What the launcher (`accelerate launch`, `torchrun`, MPI) says in the environment."""
        launched = get_cpu_distributed_information()
        return cls(launched.rank, launched.world_size, launched.local_rank)


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
    folder = Path(folder)
    manifest_in(folder)  # refuses a folder of something else before a model is loaded
    lines = read_lines(prompts)
    loaded = as_model(model)
    manifest = Manifest(
        share=float(share),
        seed=seed,
        controls=controls,
        input=lines.name,
        sha256=lines.sha256,
        lines=len(lines),
        model=loaded.name,
        fingerprint=loaded.fingerprint,
        gated=loaded.gated,
        reads_bos=loaded.reads_bos,
        layers=loaded.n_layers,
        heads=loaded.n_heads,
    )
    store = Store(folder)
    store.begin(manifest)
    is_first = Launch.from_environment().rank == 0
    _Worker(loaded, lines, manifest, store, batch, progress).work(waits=is_first)
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
        blocks = self._unfinished(blocks)
        while blocks:
            measured = [block for block in blocks if self._measure(block)]
            if not measured:
                if not waits:
                    return
                time.sleep(PAUSE)
                self._report()
            blocks = self._unfinished(blocks)

    def _unfinished(self, blocks: Sequence[range]) -> list[range]:
        """The blocks with a line that has no row yet."""
        finished, numbers = self.store.finished(), self.lines.numbers
        return [
            block for block in blocks if any(numbers[index] not in finished for index in block)
        ]

    def _measure(self, block: range) -> bool:
        """Measure what is left of a block, unless another process holds it; tells whether it was free."""
        with self.store.taken(block.start) as free:
            if free and self._unfinished(
                [block]
            ):  # asked again: another process may have just finished it
                lines = [self.lines.read(index) for index in block]
                finished = self.store.finished()
                for rows in measure_lines(
                    self.model, lines, self.manifest, batch=self.batch, finished=finished
                ):
                    self.store.put(rows, block.start)
                    self._report()
            return free

    def _report(self) -> None:
        self.progress("lines", self.store.count(), len(self.lines))
