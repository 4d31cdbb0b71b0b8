"""The command line: one plain sentence per command; torch and the like are imported by the commands that need them.

1. What was measured goes to stdout, as tables or with `--json` as one JSON value and nothing else; progress and errors go to stderr.
2. Exit codes: 0 done, 1 a CircuitsError (one line), 2 a wrong call (one line), 130 interrupted.
3. Output folders are filled aside and moved into place, so that a command that fails leaves nothing behind.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from circuits import __version__
from circuits.cli.options import (
    ENDS,
    ENDS_IF_ANY,
    JSON,
    MODEL,
    PATH,
    PROMPT,
    PROMPT_IF_ANY,
    QUESTION,
    RESULT,
    SAVED,
    SHARE_OPTION,
    WORDS,
    Commands,
    options,
    to_folder,
    to_formats,
    to_groups,
    to_pairs,
)
from circuits.cli.sparsify import sparsify_command, sparsity_command
from circuits.cli.sweep import sweep_command
from circuits.cli.tasks import TASKS, about_tasks, compare_tasks, rank_command, to_names
from circuits.cli.terminal import progress, say, say_files, say_json
from circuits.errors import PromptError
from circuits.files import write_folder
from circuits.show import FORMATS

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="circuits")
def main() -> None:
    """Which attention heads carry the mapping from this key position to that query position?"""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that lacks → shows an escape instead of failing


@main.command()
@JSON
def models(as_json: bool) -> None:
    """List the models known by name and whether each is here now."""
    from circuits import zoo
    from circuits.show.tables import Section

    if as_json:
        fields = ("name", "size", "layers", "heads", "gated", "licence", "source", "here", "about")
        return say_json([{field: getattr(entry, field) for field in fields} for entry in zoo.available()])
    rows = []
    for entry in zoo.available():
        shape, gate = f"{entry.layers}×{entry.heads}", "gated" if entry.gated else "dense"
        rows.append(
            (entry.name, entry.size, shape, gate, entry.licence, entry.source, "yes" if entry.here else "no")
        )
    return say(
        Section(
            columns=("model", "size", "layers×heads", "gate", "licence", "source", "here"), rows=tuple(rows)
        )
    )


@main.command()
@click.argument("model", type=WORDS)
@PROMPT
@JSON
def tokens(model: str, prompt: str, as_json: bool) -> None:
    """Print the tokens of a prompt with their positions."""
    from circuits.models.load import load
    from circuits.prompts import to_prompt
    from circuits.show.tables import visible

    with progress():
        read = to_prompt(load(model), prompt)
    if as_json:
        both = enumerate(zip(read.tokens, read.words, strict=True))
        return say_json([{"position": at, "token": word, "id": token} for at, (token, word) in both])
    for at, word in enumerate(read.words):
        spaces = len(word) - len(word.lstrip(" ")) if word.strip(" ") else 0
        click.echo(f"{at:>{len(str(len(read)))}} = {'␣' * spaces}{visible(word)}")
    return None


@main.command()
@options(PROMPT, ENDS, MODEL, QUESTION, RESULT)
def trace(
    prompt: str,
    key: str,
    query: str | None,
    model: str,
    output: Path | None,
    open_page: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find the heads that carry one mapping from a key to a query."""

    from circuits.models.load import load
    from circuits.tracing.trace import trace as trace_mapping

    with progress() as note:
        found = trace_mapping(
            load(model), prompt, key=key, query=-1 if query is None else query, progress=note, **asked
        )
    _answer(found, output, share=asked["share"], open_page=open_page, as_json=as_json)


@main.command()
@options(PROMPT, MODEL, QUESTION)
@click.option(
    "--group",
    "groups",
    type=WORDS,
    multiple=True,
    callback=to_groups,
    metavar="NAME=4,6",
    help="Positions that share a span; repeatable.",
)
@click.option(
    "--own",
    type=WORDS,
    multiple=True,
    callback=to_pairs,
    metavar="NAME=TEXT",
    help="A counterfactual for the span of one token or group, in place of noise; repeatable.",
)
@RESULT
def circuit(
    prompt: str,
    model: str,
    groups: dict[str, tuple[str, ...]],
    own: dict[str, str] | None,
    output: Path | None,
    open_page: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find every mapping of a prompt and where its tokens are held."""

    from circuits.models.load import load
    from circuits.tracing.circuit import circuit as find_circuit

    with progress() as note:
        found = find_circuit(load(model), prompt, groups=groups, counterfactuals=own, progress=note, **asked)
    _answer(found, output, share=asked["share"], open_page=open_page, as_json=as_json)


@main.command()
@options(PROMPT_IF_ANY, ENDS_IF_ANY)
@click.option(
    "--models",
    "names",
    required=True,
    type=WORDS,
    metavar="NAME,NAME",
    help="Two models or more, such as mini,planted-sparse.",
)
@options(TASKS, QUESTION, RESULT)
def compare(
    prompt: str,
    key: str,
    query: str | None,
    names: str,
    tasks: tuple[str, ...],
    count: int | None,
    units: str,
    mlps: str,
    output: Path | None,
    open_page: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Set models side by side on one mapping or on whole tasks."""
    from circuits.models.load import load
    from circuits.show.figure import fill_with_several
    from circuits.show.tables import comparison_section
    from circuits.tracing.trace import trace as trace_mapping

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if len(wanted) < 2:
        raise PromptError(f"--models takes two names or more, separated by commas, not {names!r}")
    if about_tasks():
        told = {
            "count": count,
            "units": units,
            "mlps": mlps,
            "seed": asked["seed"],
            "output": output,
            "as_json": as_json,
        }
        return compare_tasks(to_names(tasks), wanted, **told)
    with progress() as note:
        at = -1 if query is None else query
        found = [
            trace_mapping(load(name), prompt, key=key, query=at, progress=note, **asked) for name in wanted
        ]
    share = asked["share"]
    written = _written(output, open_page, lambda room: fill_with_several(room, found, share))
    if as_json:
        say_json([_compared(found[0], each, share) for each in found])
    else:
        say(comparison_section(found, share=share))
    return say_files(written, aside=as_json, open_page=open_page)


@main.command()
@SAVED
@click.option(
    "--format",
    "formats",
    default=",".join(FORMATS),
    show_default=True,
    callback=to_formats,
    help="Which files to draw.",
)
@SHARE_OPTION
@click.option(
    "-o",
    "output",
    type=PATH,
    callback=to_folder,
    metavar="DIR",
    help="Where to, by default beside the circuit.",
)
@JSON
def render(path: Path, formats: tuple[str, ...], share: float, output: Path | None, as_json: bool) -> None:
    """Draw a saved circuit as figures, a page and a Graphviz file."""
    from circuits.show.figure import draw_files
    from circuits.tracing.records import Circuit

    known = Circuit.load(path)
    written = write_folder(
        output or (path if path.is_dir() else path.parent),
        lambda room: draw_files(room, known, share, formats),
    )
    return say_json({"files": list(map(str, written))}) if as_json else say_files(written)


@main.command()
@SAVED
@click.option("--to", required=True, metavar="FORMAT", help="node-link, graphml, neuronpedia or eap.")
@click.option("-o", "output", type=PATH, metavar="FILE", help="Where to, by default the standard output.")
@JSON
def export(path: Path, to: str, output: Path | None, as_json: bool) -> None:
    """Write a saved circuit in the format of another tool."""
    from circuits.show.export import EXPORTS
    from circuits.show.export import export as exported
    from circuits.show.figure import put
    from circuits.tracing.records import Circuit

    text = exported(Circuit.load(path), to)
    if output is None:
        return say_json({"format": to, "text": text}) if as_json else click.echo(text.encode(), nl=False)
    folder, name = (
        (output, f"circuit{EXPORTS[to][0]}") if output.is_dir() else (output.parent, output.name)
    )
    written = write_folder(folder, lambda room: put(room / name, text))
    return say_json({"files": list(map(str, written))}) if as_json else say_files(written)


# What the commands share


main.add_command(rank_command)
main.add_command(sparsify_command)
main.add_command(sparsity_command)
main.add_command(sweep_command)


def _answer(found: Circuit, output: Path | None, *, share: float, open_page: bool, as_json: bool) -> None:
    """Write the files first, so that a circuit is printed only if all went well."""
    from circuits.show.figure import fill_with_one
    from circuits.show.tables import circuit_sections

    written = _written(output, open_page, lambda room: fill_with_one(room, found, share))
    if as_json:
        click.echo(found.to_json().encode(), nl=False)
    else:
        say(*circuit_sections(found, share=share))
    say_files(written, aside=as_json, open_page=open_page)


def _written(output: Path | None, open_page: bool, fill: Callable[[Path], None]) -> list[Path]:
    """The files in the folder that was asked for; a page to be opened needs one in any case."""
    if output is None and not open_page:
        return []
    from tempfile import mkdtemp

    return write_folder(output or Path(mkdtemp(prefix="circuits-")), fill)


def _compared(first: Circuit, each: Circuit, share: float) -> dict[str, Any]:
    from circuits.show.tables import shared_carriers

    mapping = each.mapping()
    carriers = [str(head) for head in mapping.carriers(share)]
    return {
        "model": each.source.name,
        "key": mapping.key,
        "query": mapping.query,
        "total": mapping.total,
        "restore": mapping.restore,
        "share": share,
        "modulation": mapping.modulation(share),
        "heads": len(carriers),
        "carriers": carriers,
        "overlap": shared_carriers(first, each, share=share),
        "open_edges": each.source.open_edges,
        "edges": each.source.edges,
    }
