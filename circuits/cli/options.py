"""What commands take: kinds of values, and the options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import option
from click.core import ParameterSource

from circuits.errors import FileError, PromptError
from circuits.files import check_folder
from circuits.results import FORMATS, Progress
from circuits.tracing import SHARE

if TYPE_CHECKING:
    from circuits.models.model import Model

Decorator = Callable[[Any], Any]


# Kinds of values: functions of what was typed


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
    """A prompt that is not empty; `-` reads it from the standard input."""
    words = _standard_input() if value == "-" else text(value)
    if not words.strip():
        raise PromptError("the prompt is empty; give at least one token of text")
    return words


def _standard_input() -> str:
    if sys.stdin is None:
        raise PromptError(
            "the standard input is closed; give the prompt as an argument, or pipe it in"
        )
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptError("the prompt on the standard input is not valid UTF-8") from error


def task(value: str) -> str:
    """The name of a task, or the path of a jsonl file that exists."""
    from circuits.tasks import check_task

    check_task(text(value))
    return value


def names(value: str) -> list[str]:
    """`mini,mini-sparse` as a list of names."""
    parts = [part.strip() for part in text(value).split(",")]
    return [part for part in parts if part]


def formats(value: str) -> tuple[str, ...]:
    """`svg,html` as the names of formats, each once."""
    chosen = names(value)
    if not chosen:
        raise FileError(f"name at least one format; there are {', '.join(FORMATS)}")
    for name in chosen:
        if name not in FORMATS:
            raise FileError(f"no format {name!r}; there are {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(chosen))


# Values of options that can be given several times


def to_pairs(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str] | None:
    """`--swap large=hot --swap John=Mary` as a dict, or None if nothing was given."""
    pairs: dict[str, str] = {}
    for value in values:
        name, _, other = value.partition("=")
        if not name or not other:
            raise PromptError(f"--{param.name} takes {param.metavar}, not {value!r}")
        if name in pairs:
            raise PromptError(f"--{param.name} has {name!r} twice; give it once")
        pairs[name] = other
    return pairs or None


def to_groups(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, list[str]]:
    """`--group brackets=4,6` as names with their positions."""
    pairs = to_pairs(ctx, param, values) or {}
    groups = {}
    for name, positions in pairs.items():
        groups[name] = [part.strip() for part in positions.split(",")]
    return groups


def to_words(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...] | None:
    """All values, or None if nothing was given."""
    return values or None


# Options that are passed on as one record


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """A model and how it is run."""

    model: str
    dtype: str | None
    device: str

    def load(self, note: Progress) -> Model:
        """The model."""
        from circuits.models.load import load

        loaded = load(self.model, dtype=self.dtype, device=self.device)
        note("loading", 1, 1)
        return loaded


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Where a result goes."""

    output: Path | None
    as_json: bool
    open_page: bool = False


def stacked(*decorators: Decorator) -> Decorator:
    """Several decorators as one; the help lists their options in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def gathered(record: type, name: str) -> Decorator:
    """Pass the options that are fields of `record` to the command as one argument, `name`."""

    def decorate(command: Any) -> Any:
        @wraps(command)
        def with_record(**values: Any) -> Any:
            given = {}
            for field in fields(record):
                if field.name in values:
                    given[field.name] = values.pop(field.name)
            values[name] = record(**given)
            return command(**values)

        return with_record

    return decorate


# Options that would be ignored

# What `question`, and `model` with `seed`, pass to a command.
QUESTION: Final = frozenset({"swap", "counterfactual", "answer", "foil", "metric"})
RUN: Final = frozenset({"model", "dtype", "device", "seed"})


def typed() -> set[str]:
    """The names of the parameters that stand on the command line."""
    context = click.get_current_context()
    names = set()
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            names.add(name)
    return names


def refuse(names: Collection[str], why: str) -> None:
    """Refuse the first of these parameters that was typed, which would be ignored: `--key goes with …`."""
    given = typed()
    for parameter in click.get_current_context().command.params:
        if parameter.name in names and parameter.name in given:
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else "PROMPT"
            raise click.UsageError(f"{shown} {why}")


# Options that commands share. What `question` adds are keyword arguments of `trace`, `circuit` and `why`.


COUNT: Final = click.IntRange(min=1)
MODEL: Final = "mini"  # unless the user names another
SHARE_RANGE: Final = click.FloatRange(0, 1, min_open=True)

prompt_argument = click.argument("prompt", type=prompt)
saved_argument = click.argument("path", type=path, metavar="DIR|FILE.json")

json_option = option(
    "--json", "as_json", is_flag=True, help="Print one JSON value and nothing else."
)
seed = option("--seed", type=int, default=0, help="For noise and random heads.")
share = option(
    "--share", type=SHARE_RANGE, default=SHARE, help="The share that the carriers must reach."
)
strict = option("--strict", is_flag=True, help="Exit with code 1 if the question is not clear.")
query = option("--query", type=text, help="The position that reads, by default the last.")


def key(*, required: bool) -> Decorator:
    about = "The position that is read: its index or its token."
    return option("--key", required=required, type=text, help=about)


def output(about: str, *, required: bool = False) -> Decorator:
    """The folder that a command writes to."""
    return option("-o", "output", type=folder, metavar="DIR", required=required, help=about)


def repeatable(name: str, to_value: Callable[..., Any], **how: Any) -> Decorator:
    """An option that can be given several times; `to_value` makes one value of all of them."""
    return option(name, type=text, multiple=True, callback=to_value, **how)


dtype = option(
    "--dtype",
    type=text,
    metavar="NAME",
    help="float32, float16, bfloat16 or float64; by default float32, whatever is stored.",
)
device = option(
    "--device",
    type=text,
    default="cpu",
    help="Where to run: cpu, or a GPU of this machine by its name; auto takes one, if there is one.",
)
model = stacked(
    option(
        "--model",
        default=MODEL,
        type=text,
        help="A name of `circuits models`, a path or a hub id.",
    ),
    dtype,
    device,
    gathered(ModelOptions, "model"),
)
question = stacked(
    repeatable(
        "--swap",
        to_pairs,
        metavar="OLD=NEW",
        help="Another word in its place, or 9=NEW for one position; repeatable.",
    ),
    option("--counterfactual", type=text, help="The whole counterfactual, instead of --swap."),
    repeatable(
        "--answer",
        to_words,
        help="The right next token, by default what the model says; repeatable, then any of them counts.",
    ),
    repeatable(
        "--foil",
        to_words,
        help="The wrong next token, by default what it says on the counterfactual; repeatable.",
    ),
    option(
        "--metric",
        type=click.Choice(["logit_diff", "logprob", "kl"]),
        metavar="NAME",
        help="logit_diff (answer against foil), logprob or kl.",
    ),
)
# As in `engine.rows`, which imports torch.
ABLATIONS: Final = ("swap", "restore", "zero", "mean", "knockout", "noise")
ablation = stacked(
    option(
        "--ablation",
        type=click.Choice(ABLATIONS),
        default="swap",
        help="What stands in the changed places: the counterfactual's values (swap), zeros, a mean, …",
    ),
    repeatable(
        "--reference",
        to_words,
        metavar="TEXT",
        help="A prompt that --ablation mean averages over; repeatable, by default the family.",
    ),
)
result = stacked(
    output("Write the circuit, its figures and its page here."),
    option("--open", "open_page", is_flag=True, help="Open the page in the browser."),
    json_option,
    gathered(ResultOptions, "result"),
)


def result_without_page(about: str) -> Decorator:
    """`-o` and `--json` of a command that writes no page."""
    return stacked(output(about), json_option, gathered(ResultOptions, "result"))
