"""One measurement at a time: questions wait in a queue, one thread measures, listeners hear its events.

1. Quick work (the next words, other words for a token) goes before questions that have not begun.
2. A job keeps all its events, so that a listener who comes late hears every one.
3. Cancelling takes effect where the measurement next reports its progress; the model is then as it was.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from circuits.errors import CircuitsError, EdgeError, PromptError, in_one_line

MOST_WAITING: Final = 16
KEPT: Final = 50  # jobs that are remembered
Event = tuple[str, Any]
State = Literal["waiting", "running", "done", "failed", "cancelled"]


class Cancelled(Exception):
    """The question was withdrawn while it was measured."""


@dataclass(eq=False, slots=True)
class Job:
    """Something to measure, and its events so far."""

    title: str
    work: Callable[[Job], Any]
    quick: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = "waiting"
    answer: Any = None
    events: list[Event] = field(default_factory=list)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    withdrawn: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def say(self, name: str, value: Any) -> None:
        """Tell every listener."""
        self.events.append((name, value))
        for wake in list(self.listeners):
            wake()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report progress; work that was withdrawn ends here."""
        self.check()
        self.say("progress", {"stage": stage, "done": done, "total": total})

    def check(self) -> None:
        if self.withdrawn.is_set():
            raise Cancelled

    def close(self, state: State, value: Any) -> None:
        """The last word: `done`, `failed` or `cancelled`."""
        self.state = state
        self.say(state, value)


class Desk:
    """Takes jobs in, and does them one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._change = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="measuring", daemon=True)
        self._thread.start()

    def take(self, job: Job) -> Job:
        """Put a job into the queue."""
        with self._change:
            if len(self._waiting) >= MOST_WAITING:
                raise PromptError(f"{MOST_WAITING} questions are waiting; wait for one, or cancel it")
            self._jobs[job.id] = job
            self._forget()
            self._waiting.append(job)
            job.say("waiting", {"ahead": len(self._waiting) - 1})
            self._change.notify()
        return job

    def find(self, name: str) -> Job:
        """A job by its name."""
        with self._change:
            if name not in self._jobs:
                raise EdgeError(f"no question {name!r} is remembered here; the last {KEPT} are, ask it again")
            return self._jobs[name]

    def cancel(self, name: str) -> None:
        """Withdraw a job: at once if it has not begun, else where it next reports its progress."""
        job = self.find(name)
        with self._change:
            job.withdrawn.set()
            if job in self._waiting:
                self._waiting.remove(job)
                job.close("cancelled", {})

    def answered(self) -> list[Job]:
        """The jobs that have an answer, oldest first."""
        with self._change:
            return [job for job in self._jobs.values() if job.state == "done" and not job.quick]

    def stop(self, *, patience: float = 10.0) -> None:
        """Withdraw everything and wait for the thread."""
        with self._change:
            self._stopped = True
            waiting = list(self._waiting)
            self._waiting.clear()
            for job in self._jobs.values():
                job.withdrawn.set()
            for job in waiting:
                job.close("cancelled", {})
            self._change.notify()
        self._thread.join(patience)

    def _forget(self) -> None:
        over = [name for name, job in self._jobs.items() if job.over]
        for name in over[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[name]

    def _next(self) -> Job | None:
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._waiting)
            if self._stopped:
                return None
            job = next((job for job in self._waiting if job.quick), self._waiting[0])
            self._waiting.remove(job)
            job.state = "running"
            return job

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._do(job)

    def _do(self, job: Job) -> None:
        since = time.monotonic()
        try:
            job.check()
            job.answer = job.work(job)
        except Cancelled:
            job.close("cancelled", {})
        except CircuitsError as why:
            job.close("failed", {"error": str(why)})
        except Exception as why:  # the thread must live for the next question
            line = in_one_line(f"{type(why).__name__}: {why}")
            job.close("failed", {"error": f"this question broke off ({line}); please report it"})
        else:
            job.close("done", {"seconds": round(time.monotonic() - since, 3)})
