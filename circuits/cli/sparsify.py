"""The commands `circuits sparsify` and `circuits sparsity`; heavy imports inside, so that help is fast."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from circuits.sparsify.settings import default_in_words

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _default(name: str) -> str:
    return f"[default: {default_in_words(name)}]"


@click.command("sparsify")
@click.argument("model")
@click.option(
    "--text",
    type=_FILE,
    help="Text or jsonl to train on. [default: sentences of mini's language, or text that the model writes]",
)
@click.option("--own-words", is_flag=True, help="Take turns between --text and text that the model writes.")
@click.option(
    "-o",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of the twin.",
)
@click.option("--steps", type=click.IntRange(min=1), help=f"Training steps. {_default('steps')}")
@click.option("--batch", type=click.IntRange(min=1), help=f"Rows in a step. {_default('batch')}")
@click.option("--length", type=click.IntRange(min=2), help=f"Tokens in a row. {_default('length')}")
@click.option("--rate", "learning_rate", type=float, help=f"Peak learning rate. {_default('learning_rate')}")
@click.option(
    "--gates",
    type=click.Choice(["sampled", "deterministic"]),
    help=f"How gates open in training. {_default('gates')}",
)
@click.option(
    "--constraint",
    type=click.Choice(["loss", "kl"]),
    help=f"What must stay near the dense model. {_default('constraint')}",
)
@click.option("--gap", type=float, help=f"How near, in nats. {_default('gap')}")
@click.option(
    "--slack",
    type=click.FloatRange(min=1),
    help=f"--slack 3 starts with three times the gap and tightens it evenly to one. {_default('slack')}",
)
@click.option(
    "--healing",
    type=click.IntRange(min=0),
    help=f"Further steps with half the gap; fewer if --steps is below its default. {_default('healing')}",
)
@click.option(
    "--lora",
    type=click.IntRange(min=0),
    help=f"Rank of the adapter; 0 trains all weights. {_default('lora')}",
)
@click.option("--seed", type=int, help=f"Decides rows and noise. {_default('seed')}")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sparsify_command(
    model: str, text: Path | None, own_words: bool, folder: Path, as_json: bool, **asked: Any
) -> None:
    """Train a sparse twin of a model, or resume its training."""
    from circuits.sparsify.measure import weights_of
    from circuits.sparsify.processes import join, started_alone
    from circuits.sparsify.settings import settings_for
    from circuits.sparsify.text import speaks_little_language
    from circuits.sparsify.twin import sparsify

    processes = join()
    if started_alone():
        click.echo(
            "one process trains; for two on a CPU: accelerate launch --multi_gpu --num_processes 2, without --cpu",
            err=True,
        )
    with processes.main_first():
        little_language = speaks_little_language(weights_of(model)[1])
    measured = sparsify(
        model,
        folder,
        settings=settings_for(little_language=little_language, **asked),
        text=text,
        own_words=own_words,
    )
    if processes.is_main:
        _say(measured, as_json=as_json)
    processes.leave()


@click.command("sparsity")
@click.argument("model")
@click.option(
    "--text", type=_FILE, help="Held-out text or jsonl; models of the little language have their own."
)
@click.option(
    "--original",
    metavar="MODEL",
    help="The dense model to compare with, if the model's own files do not name it.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="The most rows of text to read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sparsity_command(model: str, text: Path | None, original: str | None, rows: int, as_json: bool) -> None:
    """Show how sparse a model is, beside its dense original."""
    from circuits.sparsify.measure import measure_sparsity
    from circuits.sparsify.text import read_texts

    _say(
        measure_sparsity(model, None if text is None else read_texts(text), original=original, rows=rows),
        as_json=as_json,
        heads=True,
    )


def _say(measured: Any, *, as_json: bool, heads: bool = False) -> None:
    from circuits.sparsify.measure import layers_table

    shown = {"open_edges": measured.open_edges, "gap": measured.gap, **asdict(measured)}
    click.echo(
        json.dumps(shown, indent=1)
        if as_json
        else str(measured) + (f"\n\n{layers_table(measured)}" if heads else "")
    )
