"""The command `circuits wiring`: the circuit of components of one prompt."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

import circuits.cli.options as options
from circuits.cli.options import ResultOptions, WordingOptions, progress, say_result, together
from circuits.tracing import DRAWN, NODES

_LEAST: Final = "The smallest effect of a wire that is drawn, as a share of the gap."
_MOST: Final = "Components at positions whose writers are looked for, the strongest first."
_ROLE: Final = "A name for a position, in print; repeatable."
_FILES: Final = "Write wiring.json here."


@click.command("wiring")
@together(options.PROMPT, options.MODEL, options.WORDING)
@click.option("--least", type=click.FloatRange(0, 1, min_open=True), default=DRAWN, help=_LEAST)
@click.option("--most", type=options.COUNT, default=NODES, help=_MOST)
@click.option(
    "--role", type=options.text, multiple=True, callback=options.to_pairs, metavar="END=-1", help=_ROLE
)
@together(options.output(_FILES), options.JSON, result=ResultOptions)
def wiring_command(
    prompt: str,
    model: str,
    wording: WordingOptions,
    least: float,
    most: int,
    role: Any,
    result: ResultOptions,
) -> None:
    """Find the circuit of heads and MLPs, walked back from the answer."""
    from circuits.models.load import load
    from circuits.show.wiring import wiring_sections
    from circuits.tracing.wiring import wiring

    with progress() as note:
        limits = {"least": least, "most": most, "roles": role}
        found = wiring(load(model), prompt, progress=note, **limits, **asdict(wording))
    say_result(result, found.to_json, wiring_sections(found), found.save)
