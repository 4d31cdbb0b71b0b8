"""The command `circuits explore`: the live page, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

import circuits.cli.options as options
from circuits.cli.options import ModelOptions, progress

_PORT: Final = "The port on 127.0.0.1; 0 takes a free one."
_SILENT: Final = "Print the address and leave the browser alone."
_FOLDER: Final = "Where answers are saved that you keep."


@click.command("explore")
@options.MODEL
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help=_PORT)
@click.option("--no-browser", is_flag=True, help=_SILENT)
@click.option("-o", "output", type=options.path, default="explored", metavar="DIR", help=_FOLDER)
def explore_command(model: ModelOptions, port: int, no_browser: bool, output: Path) -> None:
    """Open a page in which to ask a model, live."""
    from circuits.live.explore import explore, needs_installing

    needs_installing()
    with progress() as note:
        loaded = model.load(note)
    with explore(loaded, port=port, folder=output, browser=not no_browser) as page:
        try:
            click.echo(f"exploring {loaded.name} at {page.address} (Ctrl-C stops it)")
            page.wait()
        except KeyboardInterrupt as stop:
            if type(stop) is not KeyboardInterrupt:  # SIGTERM is told by its own exit code
                raise
    click.echo("stopped", err=True)
