"""How well a model speaks the little language: the table of its model card.

Prompts come from the held-out side of `language`. Facts, indirect objects and sequences count right answers;
greater-than sums the probability on the years that are possible.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch.nn.utils.rnn import pad_sequence

from circuits.files import to_markdown
from circuits.zoo import language

Logits = Callable[[Int[torch.Tensor, "batch pos"]], Float[torch.Tensor, "batch pos vocab"]]


@dataclass(frozen=True, slots=True)
class Score:
    """One line of the table: a share between 0 and 1 (or a loss in nats), over `count` answers (or words)."""

    name: str
    value: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.4f} nats" if self.name == "loss" else f"{self.value:.2%}"


def score_all(logits: Logits, *, count: int = 512, seed: int = 0) -> list[Score]:
    """Every line of the table."""
    tasks: list[tuple[str, str | None]] = [("relation", name) for name in language.RELATIONS]
    tasks += [("indirect_object", None), ("greater_than", None), ("induction", None)]
    with torch.inference_mode():
        scores = [score_task(logits, task, count=count, seed=seed, relation=name) for task, name in tasks]
        return [*scores, score_loss(logits, seed=seed)]


def score_task(logits: Logits, task: str, *, count: int, seed: int = 0, relation: str | None = None) -> Score:
    """The share of held-out prompts that the model gets right (greater-than: its probability on them)."""
    vocabulary = language.vocabulary()
    prompts = list(language.held_out_prompts(task, count=count, seed=seed, relation=relation))
    right, answers = 0.0, 0
    for start in range(0, count, 64):
        chunk = prompts[start : start + 64]
        rows = [torch.tensor([vocabulary[word] for word in words]) for words, _ in chunk]
        tokens = pad_sequence(rows, batch_first=True)  # what is added lies in each row's future, unread
        probability = logits(tokens).softmax(-1)
        for row, (words, sentence) in enumerate(chunk):
            possible = [vocabulary[word] for word in sentence.possible]
            first = len(words) - len(sentence.words)
            for position in (first + index for index in sentence.answers):
                predicted = probability[row, position - 1]
                is_right = predicted.argmax() == tokens[row, position]
                right += predicted[possible].sum().item() if possible else float(is_right)
                answers += 1
    return Score(relation or task, right / answers, answers)


def score_loss(logits: Logits, *, count: int = 256, length: int = 64, seed: int = 0) -> Score:
    """Mean loss in nats over every word of documents made of held-out sentences."""
    vocabulary = language.vocabulary()
    draws = [random.Random(f"loss/{seed}/{number}") for number in range(count)]
    documents = [language.document(draw, length, held_out=True)[0] for draw in draws]
    rows = torch.tensor([[vocabulary[word] for word in words] for words in documents])
    total = 0.0
    for tokens in rows.split(64):
        predicted = logits(tokens)[:, :-1].flatten(0, 1)
        total += torch.nn.functional.cross_entropy(predicted, tokens[:, 1:].flatten(), reduction="sum").item()
    return Score("loss", total / rows[:, 1:].numel(), rows[:, 1:].numel())


def to_table(scores: list[Score]) -> str:
    """The scores as a Markdown table."""
    counts = [f"{score.count} {'words' if score.name == 'loss' else 'answers'}" for score in scores]
    rows = [(score.name, str(score), count) for score, count in zip(scores, counts, strict=True)]
    return to_markdown(("held-out", "value", "over"), rows)
