"""The long jobs: `circuits sweep`, `circuits sparsify`, and `circuits sparsity`, which measures the result.

Of several processes the first says how far all of them are and how it went; the others are silent.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

import circuits.cli.options as options
from circuits.cli.options import COUNT, ModelOptions, progress, say, say_json, text
from circuits.errors import escaped, in_one_line
from circuits.files import read_text
from circuits.sparsify import default_in_words, settings_for
from circuits.sweeps import BATCH

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity
    from circuits.sweeps.results import Sweep

_MOST_ERRORS: Final = 5  # that are shown
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_GATES: Final = click.Choice(["sampled", "deterministic"])
_CONSTRAINTS: Final = click.Choice(["loss", "kl"])
_CONTROLS: Final = "Measure the controls of each line too, which takes as long as tracing one by one."


@click.command("sweep")
@argument("prompts", type=options.path, metavar="PROMPTS.jsonl")
@options.MODEL
@options.output("Where the results are, or go.", required=True)
@options.SHARED
@option("--batch", type=COUNT, default=BATCH, help="The most pairs that are run together.")
@option("--controls", is_flag=True, help=_CONTROLS)
@options.SEED
@options.JSON
def sweep_command(prompts: Path, model: ModelOptions, output: Path, as_json: bool, **settings: Any) -> None:
    """Trace every line of a jsonl file, or go on where that stopped."""
    from circuits.sweeps.lines import read_lines
    from circuits.sweeps.store import manifest_in

    manifest_in(output)
    read_lines(prompts)  # what is wrong with the file is said before a model is loaded
    from circuits.sweeps.sweep import Launch, sweep

    launch = Launch.from_environment()
    with progress(shown=launch.rank == 0) as note:
        loaded = model.load(note, number=launch.local_rank)
        result = sweep(loaded, prompts, output, progress=note, **settings)
    if launch.rank == 0:
        _say_sweep(result, as_json)


def _say_sweep(sweep: Sweep, as_json: bool) -> None:
    from circuits.show.tables import Section

    errors = sweep.errors.to_dict("records")
    measured, more = len(sweep) - len(errors), len(errors) - _MOST_ERRORS
    if as_json:
        counts = {"lines": sweep.manifest.lines, "measured": measured, "errors": len(errors)}
        wrong = [{name: row[name] for name in ("line", "id", "error")} for row in errors]
        return say_json({"folder": str(sweep.folder), "complete": sweep.complete, **counts, "wrong": wrong})
    lines = [in_one_line(str(sweep)), *(str(sweep.mean()).splitlines() if measured else ())]
    lines += [f"line {row['line']}: {in_one_line(row['error'])[:200]}" for row in errors[:_MOST_ERRORS]]
    if more > 0:
        lines.append(f"and {more} more: circuits.open_sweep(…).errors has them all")
    return say(Section(lines=tuple(lines)))


def _setting(*names: str, kind: Any, about: str) -> options.Decorator:
    """A setting of the training; where it is not given, the model's preset decides."""
    name = names[-1].removeprefix("--")
    return option(*names, type=kind, help=f"{about} [default: {default_in_words(name)}]")


@click.command("sparsify")
@argument("model", type=text)
@option("--text", type=_FILE, help="Text or jsonl to train on; by default what the model itself writes.")
@option("--own-words", is_flag=True, help="Take turns between --text and text that the model writes.")
@options.output("The folder of the twin.", required=True)
@_setting("--steps", kind=COUNT, about="Training steps.")
@_setting("--batch", kind=COUNT, about="Rows in a step.")
@_setting("--length", kind=click.IntRange(min=2), about="Tokens in a row.")
@_setting("--rate", "learning_rate", kind=float, about="Peak learning rate.")
@_setting("--gates", kind=_GATES, about="How gates open in training.")
@_setting("--constraint", kind=_CONSTRAINTS, about="What must stay near the dense model.")
@_setting("--gap", kind=float, about="How near, in nats.")
@_setting(
    "--slack", kind=click.FloatRange(min=1), about="3 starts with three times the gap and tightens it to one."
)
@_setting(
    "--healing",
    kind=click.IntRange(min=0),
    about="Further steps with half the gap; fewer with fewer --steps.",
)
@_setting("--lora", kind=click.IntRange(min=0), about="Rank of an adapter; 0 trains all weights.")
@_setting("--states", kind=click.FloatRange(min=0), about="Weight of the distance of hidden states.")
@_setting("--short", kind=click.FloatRange(0, 1), about="Share of steps on rows of 8 to 24 tokens.")
@_setting(
    "--tokens", kind=click.IntRange(min=0), about="Train an adapter on the likeliest tokens alone; 0: all."
)
@option("--samples", type=COUNT, default=1024, help="Rows that the model writes itself.")
@option("--openings", type=_FILE, help="What its rows begin with, one opening a line.")
@option("--temperature", "heat", type=float, multiple=True, help="Of its own words; repeatable.")
@option("--prompts", type=_FILE, help="Prompts, one a line; the word after each counts five times.")
@_setting("--prompted", kind=click.FloatRange(0, 1), about="Share of steps on --prompts.")
@_setting("--seed", kind=int, about="For rows and noise.")
@options.DEVICE
@options.JSON
def sparsify_command(
    model: str,
    output: Path,
    as_json: bool,
    text: Path | None,
    own_words: bool,
    samples: int,
    openings: Path | None,
    heat: tuple[float, ...],
    device: str,
    prompts: Path | None,
    **changes: Any,
) -> None:
    """Train a sparse twin of a model, or resume its training."""
    from circuits.sparsify.measure import weights_of
    from circuits.sparsify.processes import join, started_alone
    from circuits.sparsify.sampling import Sampling
    from circuits.sparsify.text import speaks_little_language
    from circuits.sparsify.twin import sparsify

    processes = join()
    if started_alone():
        several = "accelerate launch --multi_gpu --num_processes 2, without --cpu"
        click.echo(f"one process trains; for two on a CPU: {several}", err=True)
    with processes.main_first():
        little_language = speaks_little_language(weights_of(model)[1])
    settings = settings_for(little_language=little_language, **changes)
    given: dict[str, Any] = {"settings": settings, "text": text, "own_words": own_words}
    if (samples, openings, heat) != (1024, None, ()):
        lines = ("",) if openings is None else tuple(read_text(openings).splitlines())
        given["sampling"] = Sampling(samples, lines, heat or (1.0,))
    if prompts is not None:
        lines = tuple(read_text(prompts).splitlines())
        given["prompts"] = Sampling(len(lines), lines, heat or (1.0,), answers=5.0)
    with progress(shown=processes.is_main) as note:
        measured = sparsify(model, output, device=device, progress=note, **given)
    if processes.is_main:
        _say_sparsity(measured, as_json)
    processes.leave()


@click.command("sparsity")
@argument("model", type=text)
@option("--text", type=_FILE, help="Held-out text or jsonl; speakers of the little language have their own.")
@option("--original", type=text, metavar="MODEL", help="The dense model, if the twin's files do not name it.")
@option("--rows", type=COUNT, default=128, help="At most so many rows of text.")
@options.RUNNING
@options.JSON
def sparsity_command(model: str, text: Path | None, as_json: bool, **settings: Any) -> None:
    """Show how sparse a model is, beside its dense original."""
    from circuits.sparsify.measure import measure_sparsity
    from circuits.sparsify.text import read_texts

    with progress():
        texts = None if text is None else read_texts(text)
        measured = measure_sparsity(model, texts, **settings)
    _say_sparsity(measured, as_json, layers=True)


def _say_sparsity(measured: Sparsity, as_json: bool, *, layers: bool = False) -> None:
    from circuits.show.tables import Section

    if as_json:
        return say_json({"open_edges": measured.open_edges, "gap": measured.gap, **asdict(measured)})
    columns, gated = ("", escaped(measured.original), escaped(measured.name)), measured.gated
    sections = [Section(f"Over {measured.tokens} held-out tokens", columns=columns, rows=measured.facts)]
    if layers:
        facts = []
        for layer, (mean, heads) in enumerate(zip(gated.per_layer, gated.per_head, strict=True)):
            shares = " ".join(f"H{head}={share:.2%}" for head, share in enumerate(heads))
            facts.append((f"L{layer}", f"{mean:.2%}: {shares}"))
        sections.append(Section("Open edges of each layer and its heads", rows=tuple(facts)))
    return say(*sections)
