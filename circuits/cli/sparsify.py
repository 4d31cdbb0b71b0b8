"""The commands `circuits sparsify` and `circuits sparsity`; heavy imports inside, so that help costs nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("sparsify")
@click.argument("model")
@click.option("--text", type=_FILE, help="Text or jsonl to train on; by default the model's own words.")
@click.option(
    "--own-words", is_flag=True, help="Beside --text, train on text that the model wrote itself, in turn."
)
@click.option(
    "-o",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the twin goes.",
)
@click.option("--steps", type=click.IntRange(min=1), help="How long to train.")
@click.option("--batch", type=click.IntRange(min=1), help="Rows in a step.")
@click.option("--length", type=click.IntRange(min=2), help="Tokens in a row.")
@click.option("--rate", "learning_rate", type=float, help="Peak learning rate.")
@click.option(
    "--gates", type=click.Choice(["sampled", "deterministic"]), help="How gates are drawn in training."
)
@click.option("--constraint", type=click.Choice(["loss", "kl"]), help="What must stay near the dense model.")
@click.option("--gap", type=float, help="How near, in nats.")
@click.option("--slack", type=click.FloatRange(min=1), help="The budget starts at so many gaps.")
@click.option("--healing", type=click.IntRange(min=0), help="Further steps with half the budget.")
@click.option("--lora", type=click.IntRange(min=0), help="Rank of an adapter; 0 trains all weights.")
@click.option("--seed", type=int)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sparsify_command(
    model: str, text: Path | None, own_words: bool, folder: Path, as_json: bool, **asked: Any
) -> None:
    """Train a sparse twin of a model, or go on with it."""
    from circuits.sparsify.measure import weights_of
    from circuits.sparsify.processes import join, started_alone
    from circuits.sparsify.settings import settings_for
    from circuits.sparsify.sparsify import sparsify
    from circuits.sparsify.text import speaks_little_language

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
    "--text", type=_FILE, help="Held-out text or jsonl; speakers of the little language have their own."
)
@click.option(
    "--original", metavar="MODEL", help="The dense model to compare with, if its own files do not name it."
)
@click.option(
    "--rows", type=click.IntRange(min=1), default=128, show_default=True, help="At most so many rows of text."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sparsity_command(model: str, text: Path | None, original: str | None, rows: int, as_json: bool) -> None:
    """Say how sparse a model is, beside its dense original."""
    from circuits.sparsify.measure import measure_sparsity
    from circuits.sparsify.text import read_texts

    _say(
        measure_sparsity(model, None if text is None else read_texts(text), original=original, rows=rows),
        as_json=as_json,
        heads=True,
    )


def _say(measured: Any, *, as_json: bool, heads: bool = False) -> None:
    from circuits.sparsify.card import layers_table

    shown = {"open_edges": measured.open_edges, "gap": measured.gap, **asdict(measured)}
    click.echo(
        json.dumps(shown, indent=1)
        if as_json
        else str(measured) + (f"\n\n{layers_table(measured)}" if heads else "")
    )
