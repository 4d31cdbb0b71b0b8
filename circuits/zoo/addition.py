"""Two-digit addition, digit by digit: `3 6 + 2 8 = 0 6 4`, the language of the model `addition`.

1. Every token is a digit, `+` or `=`; BOS stands first, so the tens of the first number are at position 1.
2. One sum in five, by the hash of its text, is never trained on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import torch
from jaxtyping import Int

BOS: Final = "<s>"
WORDS: Final = (BOS, *"0123456789", "+", "=")
QUESTION: Final = 7  # tokens up to `=`, BOS included
LENGTH: Final = QUESTION + 3

Sum = tuple[int, int]


def question(first: int, second: int) -> str:
    return f"{first // 10} {first % 10} + {second // 10} {second % 10} ="


def answer(first: int, second: int) -> str:
    return " ".join(f"{first + second:03}")


def written(first: int, second: int) -> str:
    """A question with its answer."""
    return f"{question(first, second)} {answer(first, second)}"


def sums(*, held_out: bool) -> list[Sum]:
    """All pairs of numbers below 100 that are held out, or all that are trained on."""
    chosen = []
    for first in range(100):
        for second in range(100):
            is_held_out = zlib.crc32(question(first, second).encode()) % 5 == 0
            if is_held_out == held_out:
                chosen.append((first, second))
    return chosen


def to_tokens(pairs: list[Sum]) -> Int[torch.Tensor, "sum pos"]:
    """Questions with their answers, one row each."""
    rows = []
    for pair in pairs:
        words = [BOS, *written(*pair).split()]
        rows.append([WORDS.index(word) for word in words])
    return torch.tensor(rows)


@torch.inference_mode()
def share_right(logits: Callable[[torch.Tensor], torch.Tensor], pairs: list[Sum]) -> float:
    """The share of sums whose three digits are all predicted, each after the right ones before it."""
    right = 0
    for rows in to_tokens(pairs).split(512):
        predicted = logits(rows[:, :-1]).argmax(-1)
        is_right = predicted[:, QUESTION - 1 :] == rows[:, QUESTION:]
        right += int(is_right.all(1).sum())
    return right / len(pairs)
