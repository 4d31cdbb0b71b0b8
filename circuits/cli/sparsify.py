"""`circuits sparsify` trains the sparse twin of a model, `circuits sparsity` measures one.

If several processes train, only the first one prints progress and results.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.options import COUNT
from circuits.cli.output import print_json, print_sections, progress
from circuits.errors import FileError, escaped
from circuits.files import read_text
from circuits.sparsify import default_in_words, settings_for

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity
    from circuits.sparsify.sampling import Sampling

ROWS: Final = 1024  # that a model writes itself, unless the user says otherwise
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
NOT_NEGATIVE: Final = click.IntRange(min=0)


def setting(*names: str, kind: Any, about: str) -> options.Decorator:
    """A setting of the training; if it is not given, the preset for the model decides."""
    name = names[-1].removeprefix("--")
    return option(*names, type=kind, help=f"{about} [default: {default_in_words(name)}]")


@click.command("sparsify")
@argument("model", type=options.text)
@option(
    "--text",
    type=FILE,
    help="Text or jsonl to train on; by default what the model itself writes.",
)
@option(
    "--own-words",
    is_flag=True,
    help="Take turns between --text and text that the model writes.",
)
@options.output("The folder of the twin.", required=True)
@setting("--steps", kind=COUNT, about="Training steps.")
@setting("--batch", kind=COUNT, about="Rows in a step.")
@setting("--length", kind=click.IntRange(min=2), about="Tokens in a row.")
@setting("--rate", "learning_rate", kind=float, about="Peak learning rate.")
@setting(
    "--gates",
    kind=click.Choice(["sampled", "deterministic"]),
    about="How gates open in training.",
)
@setting(
    "--constraint",
    kind=click.Choice(["loss", "kl"]),
    about="What must stay near the dense model.",
)
@setting("--gap", kind=float, about="How near, in nats.")
@setting(
    "--slack",
    kind=click.FloatRange(min=1),
    about="3 starts with three times the gap and tightens it to one.",
)
@setting(
    "--healing",
    kind=NOT_NEGATIVE,
    about="Further steps with half the gap; fewer with fewer --steps.",
)
@setting("--lora", kind=NOT_NEGATIVE, about="Rank of an adapter; 0 trains all weights.")
@setting(
    "--states", kind=click.FloatRange(min=0), about="Weight of the distance of hidden states."
)
@setting(
    "--short", kind=click.FloatRange(0, 1), about="Share of steps on rows of 8 to 24 tokens."
)
@setting(
    "--tokens",
    kind=NOT_NEGATIVE,
    about="Train an adapter on the likeliest tokens alone; 0: all.",
)
@option("--samples", type=COUNT, default=ROWS, help="Rows that the model writes itself.")
@option("--openings", type=FILE, help="What its rows begin with, one opening a line.")
@option(
    "--temperature",
    "temperatures",
    type=float,
    multiple=True,
    help="Of its own words; repeatable.",
)
@option(
    "--prompts", type=FILE, help="Prompts, one a line; the word after each counts five times."
)
@setting("--prompted", kind=click.FloatRange(0, 1), about="Share of steps on --prompts.")
@setting("--seed", kind=int, about="For rows and noise.")
@options.device
@options.json_option
def sparsify_command(
    model: str,
    output: Path,
    as_json: bool,
    text: Path | None,
    own_words: bool,
    samples: int,
    openings: Path | None,
    temperatures: tuple[float, ...],
    prompts: Path | None,
    device: str,
    **changes: Any,
) -> None:
    """Train a sparse twin of a model, or resume its training."""
    from circuits.sparsify.measure import weights_of
    from circuits.sparsify.processes import join, started_alone
    from circuits.sparsify.text import speaks_little_language
    from circuits.sparsify.twin import sparsify

    processes = join()
    if started_alone():
        several = "accelerate launch --multi_gpu --num_processes 2, without --cpu"
        click.echo(f"one process trains; for two on a CPU: {several}", err=True)
    with processes.main_first():
        _, weights = weights_of(model)
        little_language = speaks_little_language(weights)
    with progress(shown=processes.is_main) as note:
        measured = sparsify(
            model,
            output,
            settings=settings_for(little_language=little_language, **changes),
            text=text,
            own_words=own_words,
            sampling=_own_words(samples, openings, temperatures),
            prompts=_completions(prompts, temperatures),
            device=device,
            progress=note,
        )
    if processes.is_main:
        _print_sparsity(measured, as_json)
    processes.leave()


def _own_words(
    samples: int, openings: Path | None, temperatures: tuple[float, ...]
) -> Sampling | None:
    """How the model's own words are sampled; None if no option says how."""
    from circuits.sparsify.sampling import Sampling

    if samples == ROWS and openings is None and not temperatures:
        return None
    lines = ("",) if openings is None else _lines_of(openings, "opening")
    return Sampling(samples, lines, temperatures or (1.0,))


def _completions(prompts: Path | None, temperatures: tuple[float, ...]) -> Sampling | None:
    """One row for each prompt; the word after the prompt counts five times."""
    from circuits.sparsify.sampling import Sampling

    if prompts is None:
        return None
    lines = _lines_of(prompts, "prompt")
    return Sampling(len(lines), lines, temperatures or (1.0,), answers=5.0)


def _lines_of(file: Path, what: str) -> tuple[str, ...]:
    """The lines of a file that holds one opening or prompt on each."""
    lines = tuple(read_text(file).splitlines())
    if not lines:
        raise FileError(f"{file} is empty; write one {what} on each line")
    return lines


@click.command("sparsity")
@argument("model", type=options.text)
@option(
    "--text",
    type=FILE,
    help="Held-out text or jsonl; speakers of the little language have their own.",
)
@option(
    "--original",
    type=options.text,
    metavar="MODEL",
    help="The dense model, if the twin's files do not name it.",
)
@option("--rows", type=COUNT, default=128, help="At most so many rows of text.")
@option(
    "--length",
    type=COUNT,
    default=128,
    help="Tokens of a row of text, at most; open edges are told by length up to it.",
)
@options.dtype
@options.device
@options.json_option
def sparsity_command(model: str, text: Path | None, as_json: bool, **settings: Any) -> None:
    """Show how sparse a model is, beside its dense original."""
    from circuits.sparsify.measure import measure_sparsity
    from circuits.sparsify.text import read_texts

    with progress():
        texts = None if text is None else read_texts(text)
        measured = measure_sparsity(model, texts, **settings)
    _print_sparsity(measured, as_json, layers=True)


def _print_sparsity(measured: Sparsity, as_json: bool, *, layers: bool = False) -> None:
    """The twin beside its original, by length too; with `layers` also open edges of each layer and head."""
    from circuits.show.sections import Column, Section
    from circuits.sparsify.measure import length_rows

    if as_json:
        derived = {
            "open_edges": measured.open_edges,
            "edges_per_query": measured.edges_per_query,
            "by_length": [asdict(each) for each in measured.by_length],
            "gap": measured.gap,
        }
        print_json(derived | asdict(measured))
        return
    columns = (
        Column(),
        Column(escaped(measured.original), ">"),
        Column(escaped(measured.name), ">"),
    )
    sections = [Section(f"Over {measured.tokens} held-out tokens", (), columns, measured.facts)]
    lengths = [Column("tokens", ">")]
    for name in (measured.original, measured.name):
        lengths += [Column(escaped(name), ">"), Column("a query", ">")]
    lengths.append(Column("last query", ">"))
    title = "Open edges by length of the prompt: of all edges, and of a query and head"
    sections.append(Section(title, (), lengths, length_rows(measured)))
    if layers:
        rows = []
        per_layer = zip(measured.gated.per_layer, measured.gated.per_head, strict=True)
        for layer, (mean, heads) in enumerate(per_layer):
            shares = [f"H{head}={share:.2%}" for head, share in enumerate(heads)]
            rows.append((f"L{layer}", f"{mean:.2%}: {' '.join(shares)}"))
        sections.append(Section("Open edges of each layer and its heads", rows=rows))
    print_sections(*sections)
