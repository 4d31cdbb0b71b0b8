"""One measurement at a time: jobs wait in a queue, one thread runs them, listeners hear their events.

1. Quick jobs (the next words, other words for a token) go before questions that have not begun.
2. A job keeps all its events, so that a listener who comes late hears every one.
3. Cancelling takes effect where the measurement next reports its progress; the model is then as it was.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from queue import PriorityQueue
from typing import Any, Final, Literal

from circuits.errors import CircuitsError, EdgeError, PromptError, in_one_line

MOST_WAITING: Final = 16
_REMEMBERED: Final = 50  # jobs whose events and answers are kept
_STOP, _QUICK, _SLOW = 0, 1, 2  # priorities: what is smaller comes first
State = Literal["waiting", "running", "done", "failed", "cancelled"]
_LAST_EVENTS: Final = ("done", "failed", "cancelled")  # named after the states


class Cancelled(Exception):
    """The job was cancelled while it ran."""


@dataclass(eq=False, slots=True)
class Job:
    """Something to measure, and its events so far."""

    work: Callable[[Job], Any]
    quick: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = "waiting"
    answer: Any = None
    events: list[tuple[str, Any]] = field(default_factory=list)  # (name, value)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """Whether its last event has been emitted. (Its state changes just before.)"""
        return bool(self.events) and self.events[-1][0] in _LAST_EVENTS

    def emit(self, name: str, value: Any) -> None:
        """Add an event and wake every listener."""
        self.events.append((name, value))
        for wake in list(self.listeners):
            wake()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report progress; a job that was cancelled ends here."""
        self.check()
        self.emit("progress", {"stage": stage, "done": done, "total": total})

    def check(self) -> None:
        """Raise `Cancelled` if the job was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled

    def finish(self, state: State, value: Any) -> None:
        """Emit the last event, which has the name of the state: done, failed or cancelled."""
        self.state = state
        self.emit(state, value)

    def run(self) -> None:
        """Do the work; whatever it raises becomes one line of the event `failed`."""
        since = time.monotonic()
        try:
            self.check()
            self.answer = self.work(self)
        except Cancelled:
            self.finish("cancelled", {})
        except CircuitsError as why:
            self.finish("failed", {"error": str(why)})
        except Exception as why:  # the thread must live for the next job
            line = in_one_line(f"{type(why).__name__}: {why}")
            self.finish(
                "failed", {"error": f"this question broke off ({line}); please report it"}
            )
        else:
            self.finish("done", {"seconds": round(time.monotonic() - since, 3)})


@contextmanager
def changes(job: Job) -> Iterator[asyncio.Event]:
    """Within this `with`, an event that is set whenever the job emits one of its own. The job runs in another
    thread than the loop that waits for the event."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(changed.set)

    job.listeners.append(wake)
    try:
        yield changed
    finally:
        job.listeners.remove(wake)


class JobQueue:
    """Runs jobs one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}  # by id, the oldest first
        self._queue: PriorityQueue[tuple[int, int, Job | None]] = PriorityQueue()
        self._number = count()  # jobs of one priority keep their order
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="measuring", daemon=True)
        self._thread.start()

    def add(self, job: Job) -> Job:
        """Put a job into the queue."""
        with self._lock:
            waiting = sum(each.state == "waiting" for each in self._jobs.values())
            if waiting >= MOST_WAITING:
                raise PromptError(
                    f"{MOST_WAITING} questions are waiting; wait for one, or cancel it"
                )
            job.emit("waiting", {"ahead": waiting})
            self._jobs[job.id] = job
            self._forget()
        self._queue.put((_QUICK if job.quick else _SLOW, next(self._number), job))
        return job

    def find(self, job_id: str) -> Job:
        with self._lock:
            if job_id not in self._jobs:
                last = f"the last {_REMEMBERED} are, ask it again"
                raise EdgeError(f"no question {job_id!r} is remembered here; {last}")
            return self._jobs[job_id]

    def cancel(self, job_id: str) -> None:
        """Cancel a job: at once if it has not begun, else where it next reports its progress."""
        job = self.find(job_id)
        with self._lock:
            self._cancel(job)

    def answered(self) -> list[Job]:
        """The questions that have an answer, oldest first."""
        with self._lock:
            return [job for job in self._jobs.values() if job.state == "done" and not job.quick]

    def stop(self, *, patience: float = 10.0) -> None:
        """Cancel every job and wait so many seconds for the thread."""
        with self._lock:
            for job in self._jobs.values():
                self._cancel(job)
        self._queue.put((_STOP, next(self._number), None))
        self._thread.join(patience)

    def _cancel(self, job: Job) -> None:
        job.cancelled.set()
        if job.state == "waiting":
            job.finish("cancelled", {})

    def _forget(self) -> None:
        """Drop the oldest jobs that are over, as many as are too many."""
        over = [job_id for job_id, job in self._jobs.items() if job.is_over]
        surplus = max(0, len(self._jobs) - _REMEMBERED)
        for job_id in over[:surplus]:
            del self._jobs[job_id]

    def _run(self) -> None:
        while True:
            *_, job = self._queue.get()
            if job is None:
                return
            with self._lock:
                begins = job.state == "waiting"  # else it was cancelled
                if begins:
                    job.state = "running"
            if begins:
                job.run()
