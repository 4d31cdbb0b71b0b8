"""What `stories15m` can do, as prompts with their answers: indirect objects, repeated names, story openings.

1. Every pair of eight names, in frames that the training of its twin never began with.
2. A prompt counts as right if the model finds the answer's first token likeliest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any, Final

import torch

from circuits.zoo.evaluate import Logits, Score

NAMES: Final = ("Tom", "Ben", "Tim", "Sam", "Max", "Anna", "Jack", "Sue")
FRAMES: Final = {
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
OPENINGS: Final = (
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


def prompts(task: str) -> Iterator[tuple[str, str]]:
    """Each prompt of a task and its answer."""
    if task == "story openings":
        yield from OPENINGS
    for answer, other in permutations(NAMES, 2) if task in FRAMES else ():
        for frame in FRAMES[task]:
            yield frame.format(answer=answer, other=other), answer


def score(logits: Logits, tokenizer: Any) -> list[Score]:
    """How many prompts of each task a model gets right; all prompts begin with BOS."""
    scores = []
    for task in (*FRAMES, "story openings"):
        asked = list(prompts(task))
        with torch.inference_mode():
            right = [_is_right(logits, tokenizer, text, answer) for text, answer in asked]
        scores.append(Score(task, sum(right) / len(right), len(right)))
    return scores


def _is_right(logits: Logits, tokenizer: Any, text: str, answer: str) -> bool:
    tokens, wanted = (tokenizer(words, add_special_tokens=False)["input_ids"] for words in (text, answer))
    said = logits(torch.tensor([[tokenizer.bos_token_id, *tokens]]))
    return int(said[0, -1].argmax()) == wanted[0]
