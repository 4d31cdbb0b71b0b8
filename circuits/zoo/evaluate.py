"""How well a model does what it was taught: the table of its model card.

1. Prompts in the little language come from the held-out side of `language`. Facts, indirect objects and
   sequences count right answers; greater-than sums the probability on the years that are possible.
2. `stories15m` completes indirect objects and repeated names, for every pair of eight names in frames that
   its twin was not trained on, and story openings. It is right if the answer's first token is the likeliest.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, Final

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
    scores = []
    with torch.inference_mode():
        for relation in language.RELATIONS:
            scores.append(
                score_task(logits, "relation", count=count, seed=seed, relation=relation)
            )
        for task in ("indirect_object", "greater_than", "induction"):
            scores.append(score_task(logits, task, count=count, seed=seed))
        scores.append(score_loss(logits, seed=seed))
    return scores


def score_task(
    logits: Logits, task: str, *, count: int, seed: int = 0, relation: str | None = None
) -> Score:
    """The share of held-out prompts that the model gets right (greater-than: its probability on them)."""
    vocabulary = language.vocabulary()
    prompts = list(language.held_out_prompts(task, count=count, seed=seed, relation=relation))
    right = 0.0
    answers = 0
    for start in range(0, count, 64):
        chunk = prompts[start : start + 64]
        rows = [torch.tensor([vocabulary[word] for word in words]) for words, _ in chunk]
        # Padding comes last, where no answer can read it.
        tokens = pad_sequence(rows, batch_first=True)
        probability = logits(tokens).softmax(-1)
        for row, (words, sentence) in enumerate(chunk):
            possible = [vocabulary[word] for word in sentence.possible]
            first = len(words) - len(sentence.words)
            for index in sentence.answers:
                position = first + index
                predicted = probability[row, position - 1]
                if possible:
                    right += predicted[possible].sum().item()
                else:
                    right += float(predicted.argmax() == tokens[row, position])
                answers += 1
    return Score(relation or task, right / answers, answers)


def score_loss(logits: Logits, *, count: int = 256, length: int = 64, seed: int = 0) -> Score:
    """Mean loss in nats over every word of documents made of held-out sentences."""
    vocabulary = language.vocabulary()
    rows = []
    for number in range(count):
        words, _ = language.document(
            random.Random(f"loss/{seed}/{number}"), length, held_out=True
        )
        rows.append([vocabulary[word] for word in words])
    total = 0.0
    for tokens in torch.tensor(rows).split(64):
        predicted = logits(tokens)[:, :-1].flatten(0, 1)
        following = tokens[:, 1:].flatten()
        total += torch.nn.functional.cross_entropy(predicted, following, reduction="sum").item()
    predictions = count * (length - 1)
    return Score("loss", total / predictions, predictions)


def to_table(scores: list[Score]) -> str:
    """The scores as a Markdown table."""
    rows = []
    for score in scores:
        counted = "words" if score.name == "loss" else "answers"
        rows.append((score.name, str(score), f"{score.count} {counted}"))
    return to_markdown(("held-out", "value", "over"), rows)


# Stories

STORY_NAMES: Final = ("Tom", "Ben", "Tim", "Sam", "Max", "Anna", "Jack", "Sue")
STORY_FRAMES: Final = {
    "indirect objects": (  # the other name is the answer
        "{answer} and {other} played in the garden. {other} showed a book to",
        "{other} and {answer} were at home. {other} threw the toy to",
        "{answer} met {other} at school. {other} gave a flower to",
    ),
    "repeated names": (
        '{answer} was a good friend. One day, {other} met {answer}. "Hello,',
        "There was a boy named {other}. He had a friend named {answer}. One day, {other} and",
        "{other} had a friend called {answer}. {other} loved to play with",
    ),
}
_OPENINGS: Final = (
    ("Once upon a", "time"),
    ("Once upon a time, there", "was"),
    ("Once upon a time, there was a little", "girl"),
    ("One day, a little boy named", "Tim"),
    ("They all laughed and had", "fun"),
    ("The moral of the", "story"),
    ("He said thank", "you"),
    ("They played together all", "day"),
    ("It was a sunny", "day"),
    ("They lived happily ever", "after"),
)


def score_stories(logits: Logits, tokenizer: Any) -> list[Score]:
    """The share of prompts of each task that a model gets right; all prompts begin with BOS."""
    tasks = {"story openings": list(_OPENINGS)}
    for task, frames in STORY_FRAMES.items():
        prompts = []
        for (answer, other), frame in product(permutations(STORY_NAMES, 2), frames):
            prompts.append((frame.format(answer=answer, other=other), answer))
        tasks[task] = prompts
    scores = []
    for task in (*STORY_FRAMES, "story openings"):
        with torch.inference_mode():
            right = [_is_right(logits, tokenizer, text, answer) for text, answer in tasks[task]]
        scores.append(Score(task, sum(right) / len(right), len(right)))
    return scores


def _is_right(logits: Logits, tokenizer: Any, text: str, answer: str) -> bool:
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = tokenizer(answer, add_special_tokens=False)["input_ids"]
    predicted = logits(torch.tensor([[tokenizer.bos_token_id, *tokens]]))[0, -1].argmax()
    return int(predicted) == expected[0]
