"""The command line: one plain sentence per command.

1. What was measured goes to stdout, as tables or with `--json` as one JSON value and nothing else; progress,
   warnings and errors go to stderr.
2. Exit codes: 0 done, 1 a CircuitsError, 2 a wrong call, 130 interrupted, 143 terminated; one line each.
3. Output folders are filled aside and moved into place, so that a command that fails leaves nothing behind.
4. Commands import torch and the like when they run. The modules `tasks`, `follow_up` and `jobs` are imported
   when one of their commands is called.
"""

from __future__ import annotations

import io
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

import circuits.cli.options as options
from circuits import __version__
from circuits.cli.options import (
    ModelOptions,
    PairOptions,
    ResultOptions,
    WordingOptions,
    progress,
    repeatable,
    say,
    say_files,
    say_json,
    say_result,
    together,
)
from circuits.errors import CircuitsError, PromptError, in_one_line
from circuits.files import write_folder
from circuits.results import open_result

if TYPE_CHECKING:
    from circuits.results import Progress
    from circuits.tracing.records import Circuit

_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}
_FORMATS: Final = "Which files to draw, by default all: svg, png, pdf, html, dot."
_WHY: Final = "Answers that `circuits why -o` wrote, for neuronpedia; repeatable."
_ON_PAGE: Final = "Answers of `circuits why -o` for the page, beside those in the folder; repeatable."
_SHARE: Final = "The share that the carriers must reach, by default the one that was measured."
_STABILITY: Final = "Measure it under so many other counterfactuals too: core and rim."
_GROUP: Final = "Positions that share a span; repeatable."
_OWN: Final = "A counterfactual for the span of one token or group, in place of noise; repeatable."
_STRICT: Final = option("--strict", is_flag=True, help="Exit with code 1 if the question is not clear.")


# The group


class Failure(click.ClickException):
    """One line on stderr, and the exit code of the command."""

    def __init__(self, message: object, exit_code: int = 1) -> None:
        super().__init__(in_one_line(str(message)))
        self.exit_code = exit_code  # type: ignore[misc]


class Terminated(KeyboardInterrupt):
    """The process was told to end (SIGTERM); it cleans up as after Ctrl-C."""


class Commands(click.Group):
    """Commands in the order in which one needs them; whatever goes wrong is one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with one_line_failures() if args else nullcontext():  # without arguments click shows the help
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_failures():
            return super().invoke(ctx)


class CommandElsewhere(click.Command):
    """A command of another module, which is imported when the command is called."""

    def __init__(self, name: str, module: str, sentence: str) -> None:
        super().__init__(name, help=sentence)
        self.module = f"circuits.cli.{module}"

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        command = getattr(import_module(self.module), f"{self.name}_command")
        return command.make_context(*args, **extra)


@contextmanager
def one_line_failures() -> Iterator[None]:
    """Turn whatever goes wrong into one line and an exit code."""
    try:
        yield
    except CircuitsError as error:
        raise Failure(error) from error
    except click.UsageError as error:
        command = "circuits" if error.ctx is None else error.ctx.command_path
        raise Failure(f"{error.format_message().rstrip('.')}; see {command} --help", 2) from error
    except Terminated as error:
        raise Failure("terminated", 143) from error
    except KeyboardInterrupt as error:
        raise Failure("interrupted", 130) from error
    except BrokenPipeError:
        raise  # whoever read the output has enough; click ends quietly
    except OSError as error:  # a full disk behind the standard output, a file that went away
        file = f": {error.filename}" if error.filename else ""
        raise Failure(f"{error.strerror or error}{file}") from error


@click.group(cls=Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="circuits")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Which attention heads carry the mapping from this key position to that query position?"""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks → shows an escape instead of failing
            stream.reconfigure(errors="backslashreplace")
    ctx.with_resource(warnings.catch_warnings())
    warnings.showwarning = _say_warning
    if current_thread() is main_thread():  # no other thread may handle signals
        before = signal.signal(signal.SIGTERM, _terminate)
        ctx.call_on_close(partial(signal.signal, signal.SIGTERM, before or signal.SIG_DFL))


def _say_warning(message: Warning | str, *_: object) -> None:
    click.echo(f"Warning: {in_one_line(str(message))}", err=True)


def _terminate(*_: object) -> None:
    raise Terminated


# Commands about one prompt


@main.command()
@options.JSON
def models(as_json: bool) -> None:
    """List the models known by name and whether each is here now."""
    from circuits import models
    from circuits.show.tables import Section

    if as_json:
        fields = ("name", "size", "layers", "heads", "gated", "licence", "source", "here", "about")
        return say_json([{name: getattr(entry, name) for name in fields} for entry in models.available()])
    columns, rows = ("model", "size", "layers×heads", "gate", "licence", "source", "here"), []
    for entry in models.available():
        shape, gate = f"{entry.layers}×{entry.heads}", "gated" if entry.gated else "dense"
        here = "yes" if entry.here else "no"
        rows.append((entry.name, entry.size, shape, gate, entry.licence, entry.source, here))
    return say(Section(columns=columns, rows=tuple(rows)))


@main.command()
@argument("model", type=options.text)
@together(options.PROMPT, options.JSON)
def tokens(model: str, prompt: str, as_json: bool) -> None:
    """Print the tokens of a prompt with their positions."""
    from circuits.models.load import load_vocabulary
    from circuits.show.tables import Section, visible

    with progress():
        vocabulary = load_vocabulary(model)
    read = vocabulary.tokenize(prompt)
    words = [vocabulary.spell(token) for token in read]
    if as_json:
        rows = enumerate(zip(words, read, strict=True))
        return say_json([{"position": position, "token": word, "id": id} for position, (word, id) in rows])
    width, lines = len(str(len(read))), []
    for position, word in enumerate(words):
        spaces = len(word) - len(word.lstrip(" ")) if word.strip(" ") else 0
        lines.append(f"{position:>{width}} = {'␣' * spaces}{visible(word)}")
    return say(Section(lines=tuple(lines)))


@main.command()
@together(options.PROMPT, options.KEY, options.QUERY, options.MODEL, options.PAIR, options.RESULT)
@_STRICT
@option("--stability", type=click.IntRange(min=0), default=0, metavar="N", help=_STABILITY)
def trace(
    prompt: str,
    key: str,
    query: str | None,
    model: ModelOptions,
    pair: PairOptions,
    result: ResultOptions,
    strict: bool,
    stability: int,
) -> None:
    """Find the heads that carry one mapping from a key to a query."""
    with progress() as note:
        circuit = traced(model, prompt, (key, query), pair, note, stability=stability)
    _say_circuit(circuit, pair.share, result, strict=strict)


@main.command()
@together(options.PROMPT, options.MODEL, options.PAIR)
@repeatable("--group", options.to_groups, metavar="NAME=4,6", help=_GROUP)
@repeatable("--own", options.to_pairs, metavar="NAME=TEXT", help=_OWN)
@options.RESULT
@_STRICT
def circuit(
    prompt: str,
    model: ModelOptions,
    pair: PairOptions,
    group: Any,
    own: Any,
    result: ResultOptions,
    strict: bool,
) -> None:
    """Find every mapping of a prompt and where its tokens are held."""
    with progress() as note:
        check_question(model.model, prompt, pair, groups=group)
        loaded = model.load(note)
        from circuits.tracing.circuit import circuit

        measured = circuit(loaded, prompt, groups=group, counterfactuals=own, progress=note, **asdict(pair))
    _say_circuit(measured, pair.share, result, strict=strict)


_COMPARE: Final = "Set models side by side on one mapping or on whole tasks."
main.add_command(CommandElsewhere("compare", "tasks", _COMPARE))


@main.command()
@options.SAVED
@option("--format", "formats", type=options.formats, metavar="NAME,NAME", help=_FORMATS)
@option("--share", type=options.SHARE_RANGE, help=_SHARE)
@option("--why", "answers", type=options.path, multiple=True, metavar="FILE", help=_ON_PAGE)
@options.output("Where to, by default beside the result.")
@options.JSON
def render(
    path: Path, formats: Any, share: Any, answers: tuple[Path, ...], output: Path | None, as_json: bool
) -> None:
    """Draw a saved result as figures, a page and a Graphviz file."""
    from circuits.results import FORMATS
    from circuits.show.figure import draw_files
    from circuits.tracing.records import Circuit, Why

    beside = path if path.is_dir() else path.parent
    result = open_result(path / "circuit.json" if (path / "circuit.json").exists() else path)
    if isinstance(result, Circuit):
        why = [Why.load(answer) for answer in [*sorted(beside.glob("why*.json")), *answers]]
        how = {"by_graphviz": "dot" in (formats or ()), "why": why}
        draw = partial(draw_files, circuit=result, share=result.share if share is None else share, **how)
    elif share is not None or answers:
        raise PromptError(f"--share and --why go with a circuit; {path} is {result.NAME}")
    else:
        draw = partial(_draw_result, result=result)
    written = write_folder(output or beside, lambda aside: draw(aside, formats=formats or FORMATS))
    say_files(written, as_json=as_json)


def _draw_result(folder: Path, result: Any, formats: Any) -> None:
    for form in formats:
        result.save(folder / f"{result.KIND}.{form}")


@main.command()
@options.SAVED
@option("--to", required=True, metavar="FORMAT", help="node-link, graphml, neuronpedia or eap.")
@option("-o", "output", type=options.path, metavar="FILE", help="Where to, by default the standard output.")
@option("--why", "answers", type=options.path, multiple=True, metavar="FILE", help=_WHY)
@options.JSON
def export(path: Path, to: str, output: Path | None, answers: tuple[Path, ...], as_json: bool) -> None:
    """Write a saved result in the format of another tool."""
    from circuits.show import export as exports
    from circuits.show.figure import put
    from circuits.tracing.records import Why

    why = [Why.load(answer) for answer in answers]
    result = exports.load_saved(path)
    text = exports.export(result, to, why=why)
    if output is None:
        return say_json({"format": to, "text": text}) if as_json else click.echo(text.encode(), nl=False)
    file = output / f"{result.KIND}{exports.EXPORTS[to][0]}" if output.is_dir() else output
    written = write_folder(file.parent, lambda aside: put(aside / file.name, text))
    return say_files(written, as_json=as_json)


for _name, _module, _sentence in (
    ("explore", "follow_up", "Open a page in which to ask a model, live."),
    ("heads", "tasks", "Show the attention maps of the heads that matter, in order."),
    ("rank", "tasks", "Rank the heads or edges of a task; say how many it takes."),
    ("why", "follow_up", "Say why a head looks where it looks, and who wrote what it moves."),
    ("wiring", "follow_up", "Find the circuit of heads and MLPs, walked back from the answer."),
    ("verify", "follow_up", "Measure a saved circuit again and say whether it holds."),
    ("sparsify", "jobs", "Train a sparse twin of a model, or resume its training."),
    ("sparsity", "jobs", "Show how sparse a model is, beside its dense original."),
    ("sweep", "jobs", "Trace every line of a jsonl file, or go on where that stopped."),
):
    main.add_command(CommandElsewhere(_name, _module, _sentence))


# What these commands share


def traced(
    model: ModelOptions,
    prompt: str,
    ends: tuple[str, str | None],
    pair: PairOptions,
    note: Progress,
    *,
    stability: int = 0,
) -> Circuit:
    """The circuit from key to query (None: the last position), asked of one model."""
    key, query = ends[0], -1 if ends[1] is None else ends[1]
    check_question(model.model, prompt, pair, ends=(key, query))
    loaded = model.load(note)
    from circuits.tracing.trace import trace

    return trace(loaded, prompt, key=key, query=query, progress=note, stability=stability, **asdict(pair))


def check_question(
    model: str, prompt: str, pair: WordingOptions, *, ends: tuple[Any, Any] | None = None, groups: Any = None
) -> None:
    """Refuse what the tokenizer alone can tell to be wrong, before any weights are read."""
    from circuits.models.load import read_vocabulary

    vocabulary: Any = read_vocabulary(model)
    if vocabulary is None:  # the weights are needed for it
        return
    from circuits.prompts import Wording, to_prompt, to_question

    read = to_prompt(vocabulary, prompt)
    noise_at = None if ends is None else (read.ends(*ends)[0],)
    for name in (name for names in (groups or {}).values() for name in names):
        read.position(name)
    given = {name: value for name, value in asdict(pair).items() if name != "share"}
    to_question(vocabulary, prompt, Wording(noise_at=noise_at, **given))


def _say_circuit(circuit: Circuit, share: float, result: ResultOptions, *, strict: bool) -> None:
    from circuits.show.figure import fill_with_one
    from circuits.show.tables import circuit_sections

    fill = partial(fill_with_one, circuit=circuit, share=share)
    say_result(result, circuit.to_json, circuit_sections(circuit, share=share), fill)
    question = circuit.question
    if strict and question is not None and question.verdict != "clear":
        raise Failure(f"the question is {question.verdict}: {question.reasons[0]}")
