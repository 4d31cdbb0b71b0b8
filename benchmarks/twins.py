"""What a sparse twin keeps of its dense original: `python benchmarks/twins.py mini-sparse`, or `…
smollm2-sparse --text FILE`.

1. Open edges, loss, divergence and agreement on the next token: on held-out text of the original's own (the
   little language, or what the original writes, with a seed that no training used), and on each `--text`.
2. Open edges on prompts of several lengths, up to 256 tokens: longer rows that begin as those of the same
   text do.
3. What both say next after a few well-known prompts, or how many prompts of their own kind they get right.
4. How many prompts of each task both get right.
`--edges` prints the first two alone, `--rows` takes fewer rows of text.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from circuits.errors import CircuitsError
from circuits.files import to_markdown
from circuits.models.folder import Weights
from circuits.models.load import load
from circuits.models.model import Model
from circuits.sparsify import LITTLE_LANGUAGE
from circuits.sparsify.card import lengths_table
from circuits.sparsify.measure import Sparsity, first_rows, measure, original_of, weights_of
from circuits.sparsify.sampling import sample_rows
from circuits.sparsify.small_vocabulary import Tokens
from circuits.sparsify.text import (
    context_of,
    little_language,
    read_texts,
    speaks_little_language,
    to_rows,
)
from circuits.tasks import TASKS
from circuits.tasks.task import UNSURE, WRONG, to_task
from circuits.zoo import addition
from circuits.zoo.evaluate import Score, score_all, score_stories

CHECKS = (
    ("The capital of France is", " Paris"),
    ("When Mary and John went to the store, John gave a drink to", " Mary"),
    ('The opposite of "large" is "', "small"),
)
ROWS, SEED = 128, 1
LENGTHS = {"stories15m": 128, "addition": addition.LENGTH}  # tokens of a row
LENGTH = 64  # of all others
TASKS_OF = {"stories15m": ("indirect_object",), "addition": ()}  # of all others: every task


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("twin")
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of each text")
    parser.add_argument("--edges", action="store_true", help="open edges and divergence alone")
    asked = parser.parse_args()
    name = original_of(asked.twin)
    if name is None:
        raise SystemExit(f"{asked.twin} names no original in its circuits.json; it is no twin")
    texts_table(asked.twin, name, asked.text, asked.rows)
    if asked.edges:
        return
    sides = [load(each) for each in (name, asked.twin)]
    if speaks_little_language(weights_of(name)[1]):
        scores_table(sides, *(score_all(side.logits) for side in sides))
        return
    if name == "stories15m":
        scores_table(sides, *(score_stories(side.logits, side.tokenizer) for side in sides))
    elif name == "addition":
        scores_table(sides, *(sums_right(side) for side in sides))
    else:
        next_words(sides)
    if tasks := TASKS_OF.get(name, TASKS):
        tasks_table(sides, tasks)


def sums_right(side: Model) -> list[Score]:
    held_out = addition.sums(held_out=True)
    return [Score("sums", addition.share_right(side.logits, held_out), len(held_out))]


def scores_table(sides: list[Model], before: list[Score], after: list[Score]) -> None:
    print(
        f"\n| held-out prompts | {' | '.join(side.name for side in sides)} | over |\n|---|---:|---:|---:|"
    )
    for old, new in zip(before, after, strict=True):
        form = "{:.4f} nats" if old.name == "loss" else "{:.2%}"
        print(
            f"| {old.name} | {form.format(old.value)} | {form.format(new.value)} | {old.count} |"
        )


def texts_table(twin: str, name: str, files: list[Path], count: int) -> None:
    weights, original = weights_of(twin)[1], weights_of(name)[1]
    length = LENGTHS.get(name, LENGTH)
    label, rows = own_text(original, name, count)
    texts = {label: [rows[:, :length]]}
    for file in files:
        texts[file.name] = first_rows(to_rows(original, read_texts(file), length=length), count)
    columns = ["text", "tokens"]
    for side in (name, twin):
        columns += [f"open edges {side}", "a query and head"]
    columns += [f"loss {name}", twin, "divergence, nats", "next token the same"]
    lines = []
    for label, chosen in texts.items():
        found = measure(weights.model, original.model, chosen, name=twin, original=name)
        lines.append(_line(label, found))
    print(to_markdown(columns, lines))
    found = measure(weights.model, original.model, [rows], name=twin, original=name)
    print(f"\nPrompts of several lengths:\n\n{lengths_table(found)}")


def own_text(original: Weights, name: str, count: int) -> tuple[str, Tokens]:
    """A label, and held-out rows of the original's own, as long as it reads and at most 256 tokens."""
    if speaks_little_language(original):
        return "held-out sentences", little_language(LITTLE_LANGUAGE).held_out[:count]
    rows = sample_rows(original, count=count, length=context_of(original, 256), seed=SEED)
    return f"what {name} writes (seed {SEED})", rows


def _line(label: str, found: Sparsity) -> tuple[str, ...]:
    return (
        label,
        str(found.tokens),
        f"{found.dense.open_edges:.2%}",
        f"{found.dense.edges_per_query:.2f}",
        f"{found.open_edges:.3%}",
        f"{found.edges_per_query:.3f}",
        f"{found.dense_loss:.4f}",
        f"{found.loss:.4f}",
        f"{found.divergence:.4f}",
        f"{found.agreement:.2%}",
    )


def next_words(sides: list[Model]) -> None:
    print("\n| prompt | " + " | ".join(side.name for side in sides) + " |\n|---|---|---|")
    for text, wanted in CHECKS:
        told = []
        for side in sides:
            chance = side.logits(torch.tensor([side.tokenize(text)]))[0, -1].softmax(-1)
            said = side.spell(int(chance.argmax()))
            told.append(
                f"{'' if said == wanted else 'not '}{wanted.strip()}: {said.strip()} {chance.max():.2f}"
            )
        print(f"| `{text}` | {' | '.join(told)} |")


def tasks_table(sides: list[Model], tasks: Sequence[str]) -> None:
    print("\n| task | " + " | ".join(side.name for side in sides) + " |\n|---|---:|---:|")
    for name in tasks:
        print(f"| {name} | {' | '.join(_right(side, name) for side in sides)} |")


def _right(model: Model, name: str) -> str:
    """How many of the prompts that the tokenizer allows are answered right."""
    try:
        task = to_task(model, name, count=64)
    except CircuitsError as why:
        return str(why)
    wrong = sum(count for reason, count in task.left_out if reason in (WRONG, UNSURE))
    return f"{len(task.items) / (len(task.items) + wrong):.1%} of {len(task.items) + wrong}"


if __name__ == "__main__":
    main()
