"""What a command takes and what it says: kinds of values, shared options, progress, tables and files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import wraps
from pathlib import Path
from tempfile import gettempdir
from threading import Timer
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click
from click import option

from circuits.errors import FileError, PromptError, in_one_line
from circuits.files import check_folder, to_json, write_folder
from circuits.results import Progress
from circuits.tracing import SHARE

if TYPE_CHECKING:
    from circuits.models.model import Model
    from circuits.show.tables import Section

Decorator = Callable[[Any], Any]
PATIENCE: Final = 1.0  # seconds of work before a progress bar is shown
LOG_EVERY: Final = 30.0  # seconds between lines of progress where there is no terminal
LONG: Final = 10.0  # seconds of work that are announced


# Kinds of values, each a function of what was typed


def text(value: str) -> str:
    """Text that can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not valid UTF-8") from error
    return value


def path(value: str) -> Path:
    """A path that is not empty; an empty one would mean the current folder."""
    if not value.strip():
        raise click.BadParameter("a path must not be empty")
    return Path(value)


def folder(value: str) -> Path:
    """A folder that can be written to, which is checked before anything is measured."""
    checked = path(value)
    check_folder(checked)
    return checked


def prompt(value: str) -> str:
    """A prompt that is not empty; `-` stands for what is on the standard input."""
    words = _standard_input() if value == "-" else text(value)
    if not words.strip():
        raise PromptError("the prompt is empty; give at least one token of text")
    return words


def _standard_input() -> str:
    if sys.stdin is None:
        raise PromptError("the standard input is closed; give the prompt as an argument, or pipe it in")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptError("the prompt on the standard input is not valid UTF-8") from error


def task(value: str) -> str:
    """The name of a task, or the path of a jsonl file that is there."""
    from circuits.tasks import check_task

    check_task(text(value))
    return value


def names(value: str) -> list[str]:
    """`mini,mini-sparse` as a list of names; a path must not contain a comma."""
    return [part.strip() for part in text(value).split(",") if part.strip()]


def formats(value: str) -> tuple[str, ...]:
    """`svg,html` as the names of formats."""
    from circuits.results import FORMATS

    for name in names(value):
        if name not in FORMATS:
            raise FileError(f"no format {name!r}; there are {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(names(value)))


def to_pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """`--swap large=hot --swap John=Mary` (or `--own`) as a dict, or None where nothing was given."""
    pairs: dict[str, str] = {}
    for value in values:
        name, sign, other = value.partition("=")
        if not sign or not name or not other:
            raise PromptError(f"--{param.name} takes {param.metavar}, not {value!r}")
        if name in pairs:
            raise PromptError(f"--{param.name} has {name!r} twice; give it once")
        pairs[name] = other
    return pairs or None


def if_any(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """What was given, or None where nothing was."""
    return values or None


def to_groups(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, list[str]]:
    """`--group brackets=4,6` as names with their positions."""
    pairs = to_pairs(ctx, param, values) or {}
    return {name: [part.strip() for part in positions.split(",")] for name, positions in pairs.items()}


# Options that commands share


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """A model and how it is run."""

    model: str
    dtype: str | None
    device: str

    def load(self, note: Progress, *, number: int = 0) -> Model:
        """The model; of several GPUs `auto` takes the one with this number."""
        from circuits.models.load import load, to_device

        loaded = load(self.model, dtype=self.dtype, device=to_device(self.device, number=number))
        note("loading", 1, 1)
        return loaded


@dataclass(frozen=True, slots=True)
class WordingOptions:
    """The keyword arguments of verbs on one prompt that say what is compared and how it is read."""

    swap: dict[str, str] | None
    counterfactual: str | None
    answer: tuple[str, ...] | None
    foil: tuple[str, ...] | None
    metric: Any
    seed: int


@dataclass(frozen=True, slots=True)
class PairOptions(WordingOptions):
    """The same with the share that carriers must reach, for `trace` and `circuit`."""

    share: float


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Where a result goes."""

    output: Path | None
    as_json: bool
    open_page: bool = False


def together(*parts: Decorator, **records: type) -> Decorator:
    """Several options as one decorator, shown in this order; a record gathers those that are its fields."""

    def decorated(command: Any) -> Any:
        @wraps(command)
        def gathered(**values: Any) -> Any:
            for name, record in records.items():
                own = [field.name for field in fields(record) if field.name in values]
                values[name] = record(**{field: values.pop(field) for field in own})
            return command(**values)

        for part in reversed(parts):
            gathered = part(gathered)
        return gathered

    return decorated


def repeatable(name: str, to_value: Callable[..., Any], **how: Any) -> Decorator:
    """An option that can be given several times; `to_value` makes one value of all of them."""
    return option(name, type=text, multiple=True, callback=to_value, **how)


def output(about: str, *, required: bool = False) -> Decorator:
    """The folder that a command writes to."""
    return option("-o", "output", type=folder, metavar="DIR", required=required, help=about)


COUNT: Final = click.IntRange(min=1)
SHARE_RANGE: Final = click.FloatRange(0, 1, min_open=True)
PROMPT: Final = click.argument("prompt", type=prompt)
SAVED: Final = click.argument("path", type=path, metavar="DIR|FILE.json")
JSON: Final = option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
_MODEL: Final = "A name of `circuits models`, a path or a hub id."
_DTYPE: Final = "float32, float16, bfloat16 or float64; by default float32, whatever is stored."
_DEVICE: Final = "Where to run: cpu, cuda, cuda:1; auto takes the GPU of this process, if there is one."
DEVICE: Final = option("--device", type=text, default="cpu", help=_DEVICE)
RUNNING: Final = together(option("--dtype", type=text, metavar="NAME", help=_DTYPE), DEVICE)
MODEL: Final = together(
    option("--model", default="mini", type=text, help=_MODEL), RUNNING, model=ModelOptions
)
_KEY: Final = "The position that is read: its index or its token."
KEY: Final = option("--key", required=True, type=text, help=_KEY)
OPTIONAL_KEY: Final = option("--key", type=text, help=_KEY)
QUERY: Final = option("--query", type=text, help="The position that reads, by default the last.")
_SHARE: Final = "The share that the carriers must reach."
SHARED: Final = option("--share", type=SHARE_RANGE, default=SHARE, help=_SHARE)
SEED: Final = option("--seed", type=int, default=0, help="For noise and random heads.")
_SWAP: Final = "Another word in its place, or 9=NEW for one position; repeatable."
_ANSWER: Final = "The right next token, by default what the model says; repeatable, then any of them counts."
_FOIL: Final = "The wrong next token, by default what it says on the counterfactual; repeatable."
_METRIC: Final = "logit_diff (answer against foil), logprob or kl."
_METRICS: Final = click.Choice(["logit_diff", "logprob", "kl"])
_WORDED: Final = (
    repeatable("--swap", to_pairs, metavar="OLD=NEW", help=_SWAP),
    option("--counterfactual", type=text, help="The whole counterfactual, instead of --swap."),
    repeatable("--answer", if_any, help=_ANSWER),
    repeatable("--foil", if_any, help=_FOIL),
    option("--metric", type=_METRICS, metavar="NAME", help=_METRIC),
)
PAIR: Final = together(*_WORDED, SHARED, SEED, pair=PairOptions)
WORDING: Final = together(*_WORDED, SEED, wording=WordingOptions)
RESULT: Final = together(
    output("Write the circuit, its figures and its page here."),
    option("--open", "open_page", is_flag=True, help="Open the page in the browser."),
    JSON,
    result=ResultOptions,
)


# What a command says


@contextmanager
def progress(*, shown: bool = True) -> Iterator[Progress]:
    """Say on stderr how far the work is, with stage, percentage and time left.

    On a terminal that is a bar, once the work has taken a second; elsewhere a line every 30 seconds. Work of
    ten seconds or more is announced once its first part is done, by the time which that took.
    """
    from rich import progress as rich
    from rich.console import Console

    terminal = Console(stderr=True)
    columns = (rich.SpinnerColumn(), rich.TextColumn("{task.description}", markup=False), rich.BarColumn())
    times = (rich.TaskProgressColumn(), rich.TimeRemainingColumn(), rich.TextColumn("left"))
    drawn = shown and terminal.is_interactive
    bar = rich.Progress(*columns, *times, console=terminal, transient=True, disable=not drawn)
    bar.speed_estimate_period = 3600.0  # seconds of work that the time left is estimated from
    bar.add_task("loading", total=None)
    (task,), logged, pace = bar.tasks, time.monotonic(), _Pace("loading", time.monotonic())

    def update(stage: str, done: int, total: int) -> None:
        nonlocal logged
        if stage.partition(":")[0] != task.description.partition(":")[0]:
            bar.reset(task.id, completed=done)
        bar.update(task.id, description=stage, completed=done, total=total)
        announced = pace.announcement(stage, done, total)
        if shown and announced:
            terminal.print(announced, highlight=False, markup=False)
        if shown and not drawn and time.monotonic() - logged >= LOG_EVERY:
            logged = time.monotonic()
            left = "" if task.time_remaining is None else f", {timedelta(seconds=task.time_remaining)} left"
            click.echo(f"{stage}: {done} of {total}, {task.percentage:.0f}%{left}", err=True)

    later = Timer(PATIENCE, bar.start)
    later.daemon = True
    later.start()
    try:
        yield update
    finally:
        later.cancel()
        later.join()
        bar.stop()


@dataclass(slots=True)
class _Pace:
    """How fast a stage of the work goes, by its last part."""

    stage: str
    since: float
    done: int = 0
    announced: bool = False

    def announcement(self, stage: str, done: int, total: int) -> str | None:
        """How long the rest will take, if it is long and was not announced before."""
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self.done, self.announced = stage, 0, False
        if done == 0:  # it begins here: what came before says nothing of it
            self.since = now
            return None
        left = (now - self.since) * (total - done) / max(1, done - self.done)
        self.since, self.done = now, done
        if self.announced or left < LONG:
            return None
        self.announced = True
        minutes = left / 60
        short = f"{left:.0f} seconds" if minutes < 2 else f"{minutes:.0f} minutes"
        return f"{stage}: about {short if minutes < 120 else f'{minutes / 60:.0f} hours'}"


def say(*sections: Section) -> None:
    """Blocks on stdout: as wide as the terminal, or 100 columns in a pipe."""
    from rich.console import Console

    from circuits.show.tables import plain, shown

    if sys.stdout is not None and sys.stdout.isatty():
        Console(highlight=False).print(shown(sections))
    else:
        click.echo(plain(sections))


def say_json(value: Any) -> None:
    """One JSON value on stdout, in UTF-8 whatever the terminal."""
    click.echo(to_json(value).encode())


def say_files(written: Sequence[Path], *, as_json: bool = False, to_stderr: bool = False) -> None:
    """Where each file went."""
    if as_json:
        return say_json({"files": list(map(str, written))})
    for file in written:
        click.echo(f"wrote {in_one_line(str(file))}", err=to_stderr)
    return None


def say_result(
    target: ResultOptions,
    to_text: Callable[[], str],
    sections: Sequence[Section],
    fill: Callable[[Path], object],
) -> None:
    """Write the files first, so that a result is printed only if all went well; then open the page."""
    folder, written = target.output, []
    if folder is None and target.open_page:  # a page needs a folder in any case
        folder = Path(gettempdir()) / f"circuits-{uuid4().hex}"
    if folder is not None:
        written = write_folder(folder, fill)
    if target.as_json:
        click.echo(to_text().rstrip("\n").encode())
    else:
        say(*sections)
    say_files(written, to_stderr=target.as_json)
    if target.open_page:
        import webbrowser

        pages = [file for file in written if file.name == "page.html"]
        webbrowser.open(min(pages, key=lambda page: len(page.parts)).resolve().as_uri())
