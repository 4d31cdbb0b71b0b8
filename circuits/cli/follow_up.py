"""The commands that ask more of one question: `why` about one head, `wiring` back from the answer, `verify`
(a saved result, measured again), and `explore` (the live page, until Ctrl-C).
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

import circuits.cli.options as options
from circuits.cli import Failure, check_question
from circuits.cli.options import (
    ModelOptions,
    ResultOptions,
    WordingOptions,
    progress,
    repeatable,
    say,
    say_json,
    say_result,
    together,
)
from circuits.errors import PromptError
from circuits.results import Progress
from circuits.tracing import DRAWN, NODES

if TYPE_CHECKING:
    from circuits.engine import Runs

_EVERY: Final = "Take the key and value sides of all keys, not of one."

_LEAST: Final = "The smallest effect of a wire that is drawn, as a share of the gap."
_MOST: Final = "Components at positions whose writers are looked for, the strongest first."
_ROLE: Final = "A name for a position, in print; repeatable."
_FILES: Final = "Write wiring.json and its figure here."


_PORT: Final = "The port on 127.0.0.1; 0 takes a free one."
_SILENT: Final = "Print the address and leave the browser alone."
_FOLDER: Final = "Where answers are saved that you keep."


@click.command("why")
@argument("question", type=options.prompt, metavar="PROMPT|DIR|circuit.json")
@option("--head", required=True, type=options.text, help="The head, such as L5H1.")
@together(options.OPTIONAL_KEY, options.QUERY)
@option("--every-key", is_flag=True, help=_EVERY)
@together(options.MODEL, options.WORDING, options.RESULT)
def why_command(
    question: str,
    head: str,
    key: str | None,
    query: str | None,
    every_key: bool,
    model: ModelOptions,
    wording: WordingOptions,
    result: ResultOptions,
) -> None:
    """Say why a head looks where it looks, and who wrote what it moves."""
    from circuits.components import Head
    from circuits.show.wiring import fill_with_why, why_sections
    from circuits.tracing.records import Circuit
    from circuits.tracing.why import explain, why

    Head.parse(head)  # a name that is no head is refused before anything is loaded
    with progress() as note:
        if _is_saved(question):
            how = {"key": key, "query": query, "every_key": every_key, "progress": note}
            answer = why(Circuit.load(question), head, **how)
        else:
            runs, ends = _of_prompt(question, (key, query), model, wording, note)
            answer = explain(runs, head, *ends, every_key=every_key, seed=wording.seed, progress=note)
    say_result(result, answer.to_json, why_sections(answer), partial(fill_with_why, why=answer))


def _is_saved(question: str) -> bool:
    """Whether this is a circuit on disk and not a prompt."""
    try:
        path = Path(question)
        return path.suffix == ".json" or (path / "circuit.json").exists()
    except (OSError, ValueError):  # no file system takes such a name
        return False


def _of_prompt(
    text: str, ends: tuple[Any, Any], model: ModelOptions, wording: WordingOptions, note: Progress
) -> tuple[Runs, tuple[int, int]]:
    """The runs of the question, and the positions of key and query."""
    from circuits.engine import prepare
    from circuits.prompts import Wording, to_prompt, to_question

    key, query = ends[0], -1 if ends[1] is None else ends[1]
    if key is None:
        raise PromptError("name the key that the head reads: --key WORD; or give the folder of a circuit")
    check_question(model.model, text, wording, ends=(key, query))
    loaded = model.load(note)
    positions = to_prompt(loaded, text).ends(key, query)
    worded = Wording(noise_at=positions[:1], **asdict(wording))
    return prepare(loaded, [to_question(loaded, text, worded)]), positions


@click.command("wiring")
@together(options.PROMPT, options.MODEL, options.WORDING)
@option("--least", type=options.SHARE_RANGE, default=DRAWN, help=_LEAST)
@option("--most", type=options.COUNT, default=NODES, help=_MOST)
@repeatable("--role", options.to_pairs, metavar="END=-1", help=_ROLE)
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
        measured = wiring(loaded, prompt, progress=note, **limits, **asdict(wording))
    from circuits.show.wiring import wiring_sections

    def fill(folder: Path) -> None:
        measured.save(folder)
        for ending in ("svg", "png", "pdf", "dot"):
            measured.save(folder / f"wiring.{ending}")

    say_result(result, measured.to_json, wiring_sections(measured), fill)


@click.command("verify")
@argument("path", type=options.path, metavar="DIR|circuit.json|wiring.json|why.json")
@options.DEVICE
@options.JSON
def verify_command(path: Path, device: str, as_json: bool) -> None:
    """Measure a saved circuit again and say whether it holds."""
    from circuits.show.tables import Section, visible
    from circuits.tracing.verify import verify

    with progress() as note:
        result = verify(path, device=device, progress=note)
    if as_json:
        say_json({"holds": result.holds, **asdict(result)})
    else:
        say(Section(lines=tuple(visible(line, longest=200) for line in str(result).splitlines())))
    if not result.holds:
        raise Failure(f"{path} does not hold: {len(result.differences)} of {result.compared} facts differ")


@click.command("explore")
@options.MODEL
@option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help=_PORT)
@option("--no-browser", is_flag=True, help=_SILENT)
@option("-o", "output", type=options.path, default="explored", metavar="DIR", help=_FOLDER)
def explore_command(model: ModelOptions, port: int, no_browser: bool, output: Path) -> None:
    """Open a page in which to ask a model, live."""
    from circuits.live import check_installed, explore

    check_installed()
    with progress() as note:
        loaded = model.load(note)
    with explore(loaded, port=port, folder=output, browser=not no_browser) as page:
        try:
            click.echo(f"exploring {loaded.name} at {page.address} (Ctrl-C stops it)")
            page.wait()
        except KeyboardInterrupt as stop:
            if type(stop) is not KeyboardInterrupt:  # SIGTERM has an exit code of its own
                raise
    click.echo("stopped", err=True)
