"""What commands print: progress on stderr, tables or JSON on stdout, and where files went."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click

from circuits.cli.options import ResultOptions
from circuits.cli.pace import MEASURED, Pace
from circuits.errors import in_one_line
from circuits.files import to_json, write_folder
from circuits.results import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from circuits.show.sections import Section

LONG: Final = 10.0  # seconds; work that takes longer is announced


class Failure(click.ClickException):
    """One line on stderr, and the exit code of the command."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(in_one_line(message))
        self.exit_code = exit_code  # type: ignore[misc]


@contextmanager
def progress(
    *,
    shown: bool = True,
    patience: float = 1.0,
    log_every: float = 30.0,
    measured: float = MEASURED,
) -> Iterator[Progress]:
    """Report on stderr how far the work is: stage, percentage, and the time left of the stage if it is known.

    On a terminal that is a bar, shown when the work has taken `patience` seconds. Elsewhere it is a line
    every `log_every` seconds, whether or not there was a report meanwhile. A stage that will take ten seconds
    or more is announced as soon as its pace is known from `measured` seconds of it.
    """
    from rich.console import Console

    console = Console(stderr=True)
    is_drawn = shown and console.is_interactive
    bar = _to_bar(console, disable=not is_drawn)
    report = _Report(bar, Pace(measured), log_every, shown=shown, logs=shown and not is_drawn)
    timer = Timer(patience, bar.start)
    timer.daemon = True
    timer.start()
    if report.logs:
        Thread(target=report.log_in_silence, daemon=True).start()
    try:
        yield report.update
    finally:
        report.finished.set()
        timer.cancel()
        timer.join()
        bar.stop()


def _to_bar(console: Console, *, disable: bool) -> Bar:
    """A bar with one task. The field `ends` of the task is the moment when its stage is thought to end."""
    from rich.progress import (
        BarColumn,
        ProgressColumn,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bar
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(_time_left(task.fields["ends"]))

    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeLeft(),
        console=console,
        transient=True,
        disable=disable,
    )
    bar.add_task("loading", total=None, ends=None)
    return bar


class _Report:
    """How far the work is, on a bar, or where `logs` in lines; long stages are announced where `shown`."""

    def __init__(
        self, bar: Bar, pace: Pace, log_every: float, *, shown: bool, logs: bool
    ) -> None:
        self.bar = bar
        self.task = bar.tasks[0]
        self.pace = pace
        self.log_every = log_every
        self.shown = shown
        self.logs = logs
        self.began = time.monotonic()
        self.last_log = self.began
        self.announced = ""  # the stage whose duration was announced
        self.finished = Event()

    def update(self, stage: str, done: int, total: int) -> None:
        """Take a report of the work."""
        now = time.monotonic()
        left = self.pace.report(stage, done, total, now)
        ends = None if left is None else now + left
        self.bar.update(self.task.id, description=stage, completed=done, total=total, ends=ends)
        if not self.shown:
            return
        if left is not None and left >= LONG and self.announced != self.pace.stage:
            self.announced = self.pace.stage
            about = f"{stage}: about {_duration(left)}"
            self.bar.console.print(about, highlight=False, markup=False)
        if self.logs and now - self.last_log >= self.log_every:
            self.log()

    def log(self) -> None:
        """One line on how far the work is, and without an estimate on how long it has taken."""
        self.last_log = time.monotonic()
        so_far = f"{timedelta(seconds=round(self.last_log - self.began))} so far"
        task = self.task
        left = _time_left(task.fields["ends"]) or so_far
        if task.total is None:
            click.echo(f"{task.description}: {left}", err=True)
            return
        count = f"{task.completed:.0f} of {task.total:.0f}, {task.percentage:.0f}%"
        click.echo(f"{task.description}: {count}, {left}", err=True)

    def log_in_silence(self) -> None:
        """Log where no report came for so long, until the work is done."""
        while not self.finished.wait(max(1.0, self.log_every / 2)):
            if time.monotonic() - self.last_log >= self.log_every:
                self.log()


def _time_left(ends: float | None) -> str:
    """How long a stage takes until the moment when it is thought to end; empty where that is not known, or
    has gone by."""
    left = -1 if ends is None else round(ends - time.monotonic())
    return f"{timedelta(seconds=left)} left" if left >= 0 else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 120 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours"


def print_sections(*sections: Section) -> None:
    """Sections on stdout: as wide as the terminal, or 100 columns in a pipe."""
    from rich.console import Console

    from circuits.show.sections import plain, rich_text

    if sys.stdout is not None and sys.stdout.isatty():
        Console(highlight=False).print(rich_text(sections))
    else:
        click.echo(plain(sections))


def print_json(value: Any) -> None:
    """One JSON value on stdout, in UTF-8 whatever the terminal."""
    click.echo(to_json(value).encode())


def print_files(
    written: Sequence[Path], *, as_json: bool = False, to_stderr: bool = False
) -> None:
    """Where each file went."""
    if as_json:
        print_json({"files": [str(file) for file in written]})
        return
    for file in written:
        click.echo(f"wrote {in_one_line(str(file))}", err=to_stderr)


def fail_unless_clear(*results: Any) -> None:
    """With --strict: one line on stderr and exit code 1 for the first result whose question is not clear."""
    for result in results:
        question = result.question
        if question is None:
            raise Failure("the question was not judged, in a file of an earlier version")
        if question.verdict != "clear":
            raise Failure(f"the question is {question.verdict}: {question.reasons[0]}")


def print_result(
    result: ResultOptions,
    sections: Sequence[Section],
    *,
    to_text: Callable[[], str],
    fill: Callable[[Path], object],
) -> None:
    """Let `fill` write the files, print the sections or the JSON of `to_text`, and open the page, or the
    picture of a result that has no page.

    The files come first, so that a result is printed only if all of them could be written.
    """
    folder = result.output
    if folder is None and result.open_page:
        folder = Path(gettempdir()) / f"circuits-{uuid4().hex}"
    written = [] if folder is None else write_folder(folder, fill)
    if result.as_json:
        click.echo(to_text().rstrip("\n").encode())
    else:
        print_sections(*sections)
    print_files(written, to_stderr=result.as_json)
    if result.open_page:
        pages = [file for file in written if file.name == "page.html"]
        pictures = [file for file in written if file.suffix == ".svg"]
        outermost = min(pages or pictures, key=lambda file: len(file.parts))
        webbrowser.open(outermost.resolve().as_uri())
