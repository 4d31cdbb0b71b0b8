"""The command `circuits wiring`: the circuit of components of one prompt."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

import circuits.cli.options as options
from circuits.cli import check_question
from circuits.cli.options import ModelOptions, ResultOptions, WordingOptions, progress, say_result, together
from circuits.tracing import DRAWN, NODES

_LEAST: Final = "The smallest effect of a wire that is drawn, as a share of the gap."
_MOST: Final = "Components at positions whose writers are looked for, the strongest first."
_ROLE: Final = "A name for a position, in print; repeatable."
_FILES: Final = "Write wiring.json and its figure here."
_NAMED: Final[dict[str, Any]] = {"type": options.text, "multiple": True, "callback": options.to_pairs}


@click.command("wiring")
@together(options.PROMPT, options.MODEL, options.WORDING)
@click.option("--least", type=options.SHARE_RANGE, default=DRAWN, help=_LEAST)
@click.option("--most", type=options.COUNT, default=NODES, help=_MOST)
@click.option("--role", metavar="END=-1", help=_ROLE, **_NAMED)
@together(options.output(_FILES), options.JSON, result=ResultOptions)
def wiring_command(
    prompt: str,
    model: ModelOptions,
    wording: WordingOptions,
    least: float,
    most: int,
    role: dict[str, str] | None,
    result: ResultOptions,
) -> None:
    """Find the circuit of heads and MLPs, walked back from the answer."""
    with progress() as note:
        check_question(model.model, prompt, wording, groups={"roles": [*(role or {}).values()]})
        loaded = model.load(note)
        from circuits.tracing.wiring import wiring

        limits: dict[str, Any] = {"least": least, "most": most, "roles": role}
        found = wiring(loaded, prompt, progress=note, **limits, **asdict(wording))
    from circuits.show.wiring import wiring_sections

    def fill(folder: Path) -> None:
        found.save(folder)
        for ending in ("svg", "png", "pdf", "dot"):
            found.save(folder / f"wiring.{ending}")

    say_result(result, found.to_json, wiring_sections(found), fill)
