"""What a command says while it works and when it is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from circuits.files import to_json

if TYPE_CHECKING:
    from circuits.links import Progress
    from circuits.show.tables import Section

PATIENCE: Final = 1.0  # seconds before a progress bar is shown


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar on stderr, if that is a terminal, once the work has taken a second."""
    from threading import Timer

    from rich.console import Console

    terminal = Console(stderr=True)
    if not terminal.is_interactive:
        yield lambda stage, done, total: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=terminal, transient=True)
    task = bar.add_task("loading", total=None)
    later = Timer(PATIENCE, bar.start)
    later.daemon = True
    later.start()
    try:
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)
    finally:
        later.cancel()
        later.join()
        bar.stop()


def say(*blocks: Section) -> None:
    """Blocks on stdout: as wide as the terminal, or 100 columns in a pipe."""
    from rich.console import Console

    from circuits.show.tables import plain, shown

    if sys.stdout is not None and sys.stdout.isatty():
        Console(highlight=False).print(shown(blocks))
    else:
        click.echo(plain(blocks))


def say_json(value: Any) -> None:
    """One JSON value on stdout, in UTF-8 whatever the terminal."""
    click.echo(to_json(value).encode())


def say_files(written: Sequence[Path], *, aside: bool = False, open_page: bool = False) -> None:
    """Say where each file went (on stderr where stdout holds JSON), and open the page."""
    from circuits.show.tables import visible

    for path in written:
        click.echo(f"wrote {visible(str(path), longest=4000)}", err=aside)
    if open_page:
        import webbrowser

        page = min((path for path in written if path.name == "page.html"), key=lambda path: len(path.parts))
        webbrowser.open(page.resolve().as_uri())
