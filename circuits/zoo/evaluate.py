"""How well a model speaks the little language: `python -m circuits.zoo.evaluate mini` prints the table of its model card.

1. Prompts come from the held-out side of `language`: neither the asked sentence nor the fillers in front were ever trained on.
2. Facts, indirect objects and sequences count right answers; greater-than sums the probability on the years that are possible.
3. The loss is the mean over all words of held-out documents.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from circuits.zoo import language

Logits = Callable[[Int[torch.Tensor, "batch pos"]], Float[torch.Tensor, "batch pos vocab"]]


@dataclass(frozen=True, slots=True)
class Score:
    """One line of the table: a share between 0 and 1 (or a loss in nats), over `count` prompts."""

    name: str
    value: float
    count: int


def pad(rows: list[list[int]]) -> Int[torch.Tensor, "batch pos"]:
    """Rows of token numbers to one tensor; what is added at the right lies in every row's future and cannot change it."""
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def score_task(logits: Logits, task: str, *, count: int, seed: int = 0, relation: str | None = None) -> Score:
    """The share of held-out prompts of one task that the model gets right (greater-than: its probability on possible years)."""
    vocabulary = language.vocabulary()
    right, asked = 0.0, 0
    prompts = list(language.held_out_prompts(task, count=count, seed=seed, relation=relation))
    for start in range(0, count, 64):
        chunk = prompts[start : start + 64]
        tokens = pad([[vocabulary[word] for word in words] for words, _ in chunk])
        probability = logits(tokens).softmax(-1)
        for row, (words, sentence) in enumerate(chunk):
            offset = len(words) - len(sentence.words)
            positions = [offset + at for at in sentence.answers]
            if task == "greater_than":
                possible = [
                    vocabulary[f"{year:02d}"]
                    for year in range(int(words[_start_year(words, offset)]) + 1, 100)
                ]
                right += probability[row, positions[0] - 1, possible].sum().item()
                asked += 1
                continue
            right += sum(int(probability[row, at - 1].argmax() == tokens[row, at]) for at in positions)
            asked += len(positions)
    return Score(relation or task, right / asked, asked)


def _start_year(words: list[str], offset: int) -> int:
    """Where the second half of the first year stands."""
    return next(at for at in range(offset, len(words)) if words[at].isdigit()) + 1


def score_loss(logits: Logits, *, count: int = 256, length: int = 64, seed: int = 0) -> Score:
    """Mean loss in nats over every word of documents made of held-out sentences."""
    vocabulary = language.vocabulary()
    total, tokens_seen = 0.0, 0
    rows = [
        [
            vocabulary[word]
            for word in language.document(random.Random(f"loss/{seed}/{n}"), length, held_out=True)[0]
        ]
        for n in range(count)
    ]
    for start in range(0, count, 64):
        tokens = torch.tensor(rows[start : start + 64])
        predicted = logits(tokens)[:, :-1].flatten(0, 1)
        total += torch.nn.functional.cross_entropy(predicted, tokens[:, 1:].flatten(), reduction="sum").item()
        tokens_seen += tokens[:, 1:].numel()
    return Score("loss", total / tokens_seen, tokens_seen)


def score_all(logits: Logits, *, count: int = 512, seed: int = 0) -> list[Score]:
    """Every line of the table."""
    with torch.inference_mode():
        relations = [
            score_task(logits, "relation", count=count, seed=seed, relation=name)
            for name in language.RELATIONS
        ]
        others = [
            score_task(logits, task, count=count, seed=seed)
            for task in ("indirect_object", "greater_than", "induction")
        ]
        return [*relations, *others, score_loss(logits, seed=seed)]


def to_table(scores: list[Score]) -> str:
    """The scores as a Markdown table."""
    lines = ["| held-out | value | over |", "|---|---:|---:|"]
    for score in scores:
        value = f"{score.value:.4f} nats" if score.name == "loss" else f"{score.value:.2%}"
        lines.append(
            f"| {score.name} | {value} | {score.count} {'words' if score.name == 'loss' else 'answers'} |"
        )
    return "\n".join(lines)


def main(name: str) -> None:
    from circuits.models.load import load  # heavy, and above this room only for the command

    model = load(name)
    sys.stdout.write(to_table(score_all(model.logits)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
