"""What may be typed: the group that turns failures into one line, the kinds of values, and the options that commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from circuits.errors import CircuitsError, FileError, PromptError
from circuits.files import check_folder
from circuits.show import FORMATS
from circuits.tracing.records import SHARE


def one_line(text: object) -> str:
    """Text on one line, without anything that a terminal would obey."""
    from circuits.show.tables import visible

    return visible(" ".join(str(text).split()), longest=4000)


class Failure(click.ClickException):
    """One line on stderr, and the exit code of the command."""

    def __init__(self, why: object) -> None:
        super().__init__(one_line(why))


class WrongCall(Failure):
    exit_code = 2


class Interrupted(Failure):
    exit_code = 130


class Commands(click.Group):
    """Commands in the order in which one needs them; whatever goes wrong in one becomes one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CircuitsError as why:
            raise Failure(why) from why
        except click.UsageError as why:
            path = (why.ctx or ctx).command_path
            raise WrongCall(f"{why.format_message().rstrip('.')}; see {path} --help") from why
        except KeyboardInterrupt as why:
            raise Interrupted("interrupted") from why
        except OSError as why:  # a full disk behind the standard output, a file that went away
            if isinstance(why, BrokenPipeError):
                raise  # whoever read the output has enough; click ends quietly
            raise Failure(f"{why.strerror or why}{f': {why.filename}' if why.filename else ''}") from why


class Words(click.ParamType):
    """Text that can be written as UTF-8."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("it is not valid UTF-8", param, ctx)
        return value


def _read_prompt(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value != "-":
        return value
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as why:
        raise PromptError("the prompt on the standard input is not valid UTF-8") from why


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


def to_groups(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """`--group brackets=4,6` as names with their positions."""
    given = to_pairs(ctx, param, values) or {}
    return {name: tuple(at.strip() for at in positions.split(",")) for name, positions in given.items()}


def to_folder(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a folder that cannot be written before anything is measured."""
    if value is not None:
        check_folder(value)
    return value


def to_formats(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """`svg,html` as names, all of them known."""
    wanted = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    for form in wanted:
        if form not in FORMATS:
            raise FileError(f"no format {form!r}; there are {', '.join(FORMATS)}")
    return wanted


def options(*parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, shown in this order."""

    def decorated(command: Any) -> Any:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorated


WORDS: Final = Words()
PATH: Final = click.Path(path_type=Path)
PROMPT: Final = click.argument("prompt", type=WORDS, callback=_read_prompt)
PROMPT_IF_ANY: Final = click.argument("prompt", type=WORDS, callback=_read_prompt, required=False)
SAVED: Final = click.argument("path", type=PATH, metavar="DIR|circuit.json")
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
MODEL: Final = click.option(
    "--model",
    default="mini",
    show_default=True,
    type=WORDS,
    help="A name of `circuits models`, a path or a hub id.",
)
_KEY: Final = {"type": WORDS, "help": "The position that is read: its index or its token."}
_QUERY: Final = click.option("--query", type=WORDS, help="The position that reads, by default the last.")
ENDS: Final = options(click.option("--key", required=True, **_KEY), _QUERY)
ENDS_IF_ANY: Final = options(click.option("--key", **_KEY), _QUERY)
SHARE_OPTION: Final = click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=SHARE,
    show_default=True,
    help="The share that the carriers must reach.",
)
QUESTION: Final = options(
    click.option(
        "--swap",
        type=WORDS,
        multiple=True,
        callback=to_pairs,
        metavar="OLD=NEW",
        help="Another word in its place; repeatable.",
    ),
    click.option("--counterfactual", type=WORDS, help="The whole counterfactual, instead of --swap."),
    click.option("--answer", type=WORDS, help="The right next token, by default what the model says."),
    click.option(
        "--foil", type=WORDS, help="The wrong next token, by default what it says on the counterfactual."
    ),
    click.option("--metric", type=WORDS, help="logit_diff (answer against foil), logprob or kl."),
    SHARE_OPTION,
    click.option("--seed", type=int, default=0, show_default=True, help="For noise and random heads."),
)
RESULT: Final = options(
    click.option(
        "-o",
        "output",
        type=PATH,
        callback=to_folder,
        metavar="DIR",
        help="Write the circuit, its figures and its page here.",
    ),
    click.option("--open", "open_page", is_flag=True, help="Open the page in the browser."),
    JSON,
)
