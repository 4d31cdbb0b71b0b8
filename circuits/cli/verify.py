"""The command `circuits verify`: a saved result, measured again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

import circuits.cli.options as options
from circuits.cli import Failure
from circuits.cli.options import progress, say, say_json

_SAVED: Final = "DIR|circuit.json|wiring.json|why.json"


@click.command("verify")
@click.argument("path", type=options.path, metavar=_SAVED)
@options.DEVICE
@options.JSON
def verify_command(path: Path, device: str, as_json: bool) -> None:
    """Measure a saved circuit again and say whether it holds."""
    from circuits.show.tables import Section, visible
    from circuits.tracing.verify import verify

    with progress() as note:
        found = verify(path, device=device, progress=note)
    if as_json:
        say_json({"holds": found.holds, **asdict(found)})
    else:
        say(Section(lines=tuple(visible(line, longest=200) for line in str(found).splitlines())))
    if not found.holds:
        raise Failure(f"{path} does not hold: {len(found.differences)} of {found.compared} facts differ")
