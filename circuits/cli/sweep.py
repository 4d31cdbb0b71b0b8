"""The command `circuits sweep`; heavy imports inside, so that help costs nothing.

With several processes the first says how far all of them are and how it went; the others are quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from circuits.sweeps import BATCH
from circuits.tracing.records import SHARE

if TYPE_CHECKING:
    from circuits.sweeps.results import Sweep

_EVERY: Final = 30.0  # seconds between lines where there is no terminal
_MOST_ERRORS: Final = 5  # that are shown


@click.command("sweep")
@click.argument("prompts", type=click.Path(path_type=Path), metavar="PROMPTS.jsonl")
@click.option(
    "--model", default="mini", show_default=True, help="A name of `circuits models`, a path or a hub id."
)
@click.option(
    "-o",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the results are, or go.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=SHARE,
    show_default=True,
    help="The share that carriers must reach.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=BATCH,
    show_default=True,
    help="The most pairs that are run together.",
)
@click.option(
    "--controls",
    is_flag=True,
    help="Measure the controls of each line too, which takes as long as tracing one by one.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For noise and random heads.")
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Where to run; auto takes the GPU of this process, if there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
def sweep_command(prompts: Path, model: str, folder: Path, device: str, as_json: bool, **asked: Any) -> None:
    """Trace every line of a jsonl file, or go on where that stopped."""
    from circuits.sweeps.lines import opened_lines
    from circuits.sweeps.store import check_place

    check_place(folder)
    with opened_lines(prompts):
        pass  # what is wrong with the file is said before a model is loaded
    from circuits.models.load import load
    from circuits.sweeps.sweep import Launch, sweep

    launch = Launch.from_environment()
    with _bar(shown=launch.rank == 0) as note:
        found = sweep(
            load(model, device=_device(device, launch.local_rank)), prompts, folder, progress=note, **asked
        )
    if launch.rank == 0:
        _say(found, as_json=as_json)


def _device(asked: str, local_rank: int) -> str:
    import torch

    from circuits.errors import ModelError

    if asked == "auto":
        return f"cuda:{local_rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=asked)
    except (RuntimeError, AssertionError) as why:
        raise ModelError(
            f"there is no device {asked!r} here; leave --device out, or give cpu, cuda, cuda:1 or auto"
        ) from why
    return asked


def _say(found: Sweep, *, as_json: bool) -> None:
    from circuits.cli.terminal import say, say_json
    from circuits.show.tables import Section, visible

    errors = found.errors
    if as_json:
        counts = {"lines": found.manifest.lines, "measured": len(found) - len(errors), "errors": len(errors)}
        listed = [{name: row[name] for name in ("line", "id", "error")} for row in errors.to_dict("records")]
        say_json({"folder": str(found.folder), "complete": found.complete, **counts, "wrong": listed})
        return
    lines = [visible(str(found), longest=4000)]
    if len(found) > len(errors):
        lines += str(found.mean()).splitlines()
    shown = [
        f"line {row['line']}: {visible(row['error'], longest=200)}"
        for row in errors.head(_MOST_ERRORS).to_dict("records")
    ]
    more = (
        [f"and {len(errors) - len(shown)} more: circuits.open_sweep(…).errors has them all"]
        if len(errors) > len(shown)
        else []
    )
    say(Section(lines=(*lines, *shown, *more)))


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """How many lines are done, how many a second, and how long the rest takes: a bar, or now and then a line in a log."""
    from rich.console import Console

    terminal, pace = Console(stderr=True), _Pace()
    if not shown:
        yield lambda stage, done, total: None
    elif not terminal.is_interactive:
        yield pace.log
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        with Progress(*columns, console=terminal, transient=True) as bar:
            task = bar.add_task("loading", total=None, pace="")
            yield lambda stage, done, total: bar.update(
                task, description=stage, completed=done, total=total, pace=pace.told(done, total)
            )


class _Pace:
    """Lines a second since the start of this run, and what that means for the rest."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None
        self._said = time.monotonic()

    def told(self, done: int, total: int) -> str:
        now = time.monotonic()
        self._start = self._start or (now, done)
        rate = (done - self._start[1]) / max(now - self._start[0], 1e-9)
        return (
            "" if done <= self._start[1] else f"{rate:.3g} lines/s, {_duration((total - done) / rate)} left"
        )

    def log(self, stage: str, done: int, total: int) -> None:
        told = self.told(done, total)
        if time.monotonic() - self._said >= _EVERY and told:
            self._said = time.monotonic()
            click.echo(f"{done} of {total} {stage}, {told}", err=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
