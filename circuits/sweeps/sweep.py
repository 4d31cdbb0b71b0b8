"""The verb `sweep`: every line of a file measured once, whatever stops it, by one process or many.

1. What is asked must be what the folder holds, if it holds anything; otherwise the manifest is written.
2. Lines are cut into blocks. A process takes a block that nobody else has, measures its lines in batches, and writes each batch
   before the next begins; batches that have their rows are left out. Then it takes the next block, until none is left.
3. A process that dies leaves its block free and its shards whole: the same command, with any number of processes, does the rest.
   Which lines are run together depends on the file alone, so neither interruptions nor the number of processes change a number.
4. The first process waits for the others, and takes over what one that died has left. Whoever sees that every line has its row
   writes the summary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from circuits.errors import PromptError
from circuits.links import Progress, silent
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.sweeps import BATCH
from circuits.sweeps.batches import SweepSettings, measure_lines
from circuits.sweeps.lines import Lines, opened_lines
from circuits.sweeps.lock import Launch, Lock, opened_lock
from circuits.sweeps.results import Sweep, open_sweep
from circuits.sweeps.store import Manifest, Store, check_place
from circuits.tracing.records import SHARE

BLOCKS: Final = (16, 256)  # lines in a block: at least, at most
PAUSE: Final = 0.2  # seconds
PARTS: Final = 16  # blocks that a file is cut into, where their size allows


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
    """Trace every line of a jsonl file into a folder, or go on with it; `batch` is the most pairs that are run together."""
    if not 0 < share <= 1:
        raise PromptError(f"a share lies above 0 and at most at 1, not at {share}")
    if batch < 1:
        raise PromptError(f"a batch holds at least 1 pair, not {batch}")
    place, launch = Path(folder), Launch.from_environment()
    check_place(place)
    with opened_lines(prompts) as lines:
        known = as_model(model)
        settings = SweepSettings(share, seed, controls)
        manifest = _manifest(known, lines, settings)
        store = Store(place)
        with opened_lock(place) as lock:
            with lock.looking_around():
                alone = lock.enter(launch)
                check_place(place)
                store.begin(manifest)
                if alone:
                    store.remove_unfinished()
            _work(known, lines, settings, store, lock, batch=batch, waits=launch.rank == 0, progress=progress)
            store.end(manifest)
    return open_sweep(place)


def _manifest(model: Model, lines: Lines, settings: SweepSettings) -> Manifest:
    return Manifest(
        share=float(settings.share),
        seed=settings.seed,
        controls=settings.controls,
        input=lines.path.name,
        sha256=lines.sha256,
        lines=len(lines),
        model=model.name,
        fingerprint=model.fingerprint,
        gated=model.gated,
        reads_bos=model.reads_bos,
        layers=model.n_layers,
        heads=model.n_heads,
    )


def _work(
    model: Model,
    lines: Lines,
    settings: SweepSettings,
    store: Store,
    lock: Lock,
    *,
    batch: int,
    waits: bool,
    progress: Progress,
) -> None:
    """Measure what nobody else measures."""

    def note() -> None:
        progress("lines", store.count(), len(lines))

    note()
    for block in _taken(lines, store, lock, wait=note if waits else None):
        listed = [lines.read(place) for place in block]
        for rows in measure_lines(model, listed, settings, batch=batch, finished=store.finished()):
            store.put(rows)
            note()


def _taken(lines: Lines, store: Store, lock: Lock, *, wait: Callable[[], None] | None) -> Iterator[range]:
    """The blocks that have unmeasured lines and that nobody else holds, one at a time, ours until the next is asked for.

    Blocks that others held are looked at again after the last: a process that died meanwhile has let go of its own. With `wait`,
    which is called now and then, that goes on until all are measured or ours.
    """

    def unmeasured(block: range) -> bool:
        finished = store.finished()
        return any(lines.numbers[place] not in finished for place in block)

    left = list(enumerate(_blocks(len(lines))))
    while left:
        held, worked = [], False
        for number, block in left:
            if not lock.take_block(number):
                held.append((number, block))
                continue
            if unmeasured(block):
                yield block
                worked = True
            lock.leave_block(number)
        if held and not worked:
            if wait is None:
                return
            time.sleep(PAUSE)
            wait()
        left = [(number, block) for number, block in held if unmeasured(block)]


def _blocks(count: int) -> list[range]:
    least, most = BLOCKS
    size = min(most, max(least, count // PARTS))
    return [range(start, min(count, start + size)) for start in range(0, count, size)]
