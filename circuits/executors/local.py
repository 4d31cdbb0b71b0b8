"""Parts measured on this machine: in this process, or by several processes that hold a model each.

Ctrl-C is for the process that started the others. It ends them in the middle of their parts: what they had
not finished is measured again by the next call.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any

from circuits.errors import ExecutorError
from circuits.executors.executor import ModelSource, Work, Worker, source_of

if TYPE_CHECKING:
    from circuits.models.model import Model

_worker: Worker | None = None  # of this process, if `Local` started it


@dataclass(frozen=True, slots=True)
class Local:
    """This process, or with `workers` > 1 so many processes that share the cores between them.

    >>> lines = folder / "by_two.jsonl"
    >>> _ = lines.write_text(json.dumps({"prompt": TEXT, "key": 5, "swap": {"large": "hot"}}))
    >>> circuits.sweep(model, lines, folder / "by_two", executor=circuits.Local(workers=2)).complete
    True
    """

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ExecutorError(f"at least 1 worker is needed, not {self.workers}")

    def map(
        self, model: Model | ModelSource, work: Work, parts: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """The number of each part with its result, as soon as it is there."""
        if not parts:
            return
        if self.workers > 1:
            yield from self._in_processes(source_of(model), work, parts)
            return
        here = model.load() if isinstance(model, ModelSource) else model
        for number, part in enumerate(parts):
            yield number, work(here, part)

    def _in_processes(
        self, source: ModelSource, work: Work, parts: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        count = min(self.workers, len(parts))
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads
        numbers = context.SimpleQueue()
        for number in range(count):
            numbers.put(number)
        threads = max(1, (os.cpu_count() or 1) // count)
        pool = ProcessPoolExecutor(
            count, context, initializer=_begin, initargs=(source, work, numbers, threads)
        )
        others = set(multiprocessing.active_children())
        workers = set()
        try:
            with _interrupts_put_off():  # the pool starts its processes when it gets parts
                number_of = {pool.submit(_measure, part): at for at, part in enumerate(parts)}
                workers = set(multiprocessing.active_children()) - others
            for done in as_completed(number_of):
                yield number_of[done], done.result()
            pool.shutdown()
        except BrokenProcessPool as why:
            raise ExecutorError(
                "a worker died, perhaps for want of memory; what is finished is kept: run the same "
                "again, with fewer workers if memory is short"
            ) from why
        finally:
            # After Ctrl-C, or an error in one part, nobody waits for the parts that are half measured.
            for worker in workers:
                worker.kill()
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Ctrl-C is heard at the end of this `with`, and never by the processes that are started in it."""
    if os.name != "posix":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(source: ModelSource, work: Work, numbers: Any, threads: int) -> None:
    """What a worker does before its first part."""
    global _worker
    import torch

    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    _worker = Worker(source, work, numbers.get())


def _end_with_parent() -> None:
    """End this worker when the process that started it has ended, also if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _measure(part: Any) -> Any:
    assert _worker is not None
    return _worker.measure(part)
