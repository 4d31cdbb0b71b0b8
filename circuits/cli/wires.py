"""The command about wires: `why`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.options import ModelOptions, PairOptions, ResultOptions, progress, together
from circuits.errors import PromptError

if TYPE_CHECKING:
    pass

_ASKED: Final = "PROMPT|DIR|circuit.json"
_HEAD: Final = "The head, such as L5H1."
_EVERY: Final = "Take the key and value sides of all keys, not of one."


@click.command()
@argument("asked", type=options.prompt, metavar=_ASKED)
@option("--head", required=True, type=options.text, help=_HEAD)
@together(options.OPTIONAL_KEY, options.QUERY)
@option("--every-key", is_flag=True, help=_EVERY)
@together(options.MODEL, options.PAIR, options.RESULT)
def why_command(
    asked: str,
    head: str,
    key: str | None,
    query: Any,
    every_key: bool,
    model: ModelOptions,
    pair: PairOptions,
    result: ResultOptions,
) -> None:
    """Say why a head looks where it looks, and who wrote what it moves."""
    from circuits.heads import Head
    from circuits.show.why import fill_with_why, why_sections
    from circuits.tracing.records import Circuit
    from circuits.tracing.why import why

    Head.parse(head)  # a name that is no head is told before anything is loaded
    saved = Path(asked) if _is_saved(asked) else None
    with progress() as note:
        if saved is None:
            answer = _of_prompt(asked, head, key, query, every_key, model, pair, note)
        else:
            how = {"key": key, "query": query, "every_key": every_key, "progress": note}
            answer = why(Circuit.load(saved), head, **how)
    fill = partial(fill_with_why, why=answer)
    options.say_result(result, answer.to_json, why_sections(answer), fill)


def _is_saved(asked: str) -> bool:
    """Whether this is a circuit on disk and not a prompt."""
    try:
        path = Path(asked)
        return path.suffix == ".json" or (path / "circuit.json").exists()
    except (OSError, ValueError):  # no file system takes such a name
        return False


def _of_prompt(
    text: str,
    head: str,
    key: str | None,
    query: Any,
    every_key: bool,
    model: ModelOptions,
    pair: PairOptions,
    note: Any,
) -> Any:
    from circuits.engine import prepare
    from circuits.prompts import Wording, to_prompt, to_question
    from circuits.tracing.why import checked_head, explain

    if key is None:
        raise PromptError("name the key that the head reads: --key WORD; or give the folder of a circuit")
    loaded = model.load(note)
    ends = to_prompt(loaded, text).ends(key, -1 if query is None else query)
    told = (pair.counterfactual, pair.swap, ends[:1], pair.answer, pair.foil, pair.metric, pair.seed)
    asked = checked_head(loaded, head)
    runs = prepare(loaded, [to_question(loaded, text, Wording(*told))])
    return explain(runs, asked, *ends, every_key=every_key, seed=pair.seed, progress=note)
