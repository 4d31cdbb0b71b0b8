"""Two-digit addition, digit by digit: `3 6 + 2 8 = 0 6 4`, the language of the model `addition`.

1. Every token is a digit, `+` or `=`; BOS stands first, so the tens of the first number are at position 1.
2. One sum in five, by the hash of its text, is never trained on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

import torch
from jaxtyping import Float

BOS: Final = "<s>"
WORDS: Final = (BOS, *"0123456789", "+", "=")
QUESTION: Final = 7  # tokens up to `=`, BOS included
LENGTH: Final = QUESTION + 3
UNITS: Final = (2, 5)  # the positions of both numbers' units
HUNDREDS_AT, TENS_AT, UNITS_AT = range(QUESTION - 1, QUESTION + 2)  # where each digit of the sum is predicted


def question(first: int, second: int) -> str:
    return f"{first // 10} {first % 10} + {second // 10} {second % 10} ="


def answer(first: int, second: int) -> str:
    return " ".join(f"{first + second:03}")


def is_held_out(first: int, second: int) -> bool:
    return zlib.crc32(question(first, second).encode()) % 5 == 0


def sums(*, held_out: bool) -> list[tuple[int, int]]:
    """All pairs of numbers below 100 of one side."""
    pairs = ((first, second) for first in range(100) for second in range(100))
    return [pair for pair in pairs if is_held_out(*pair) == held_out]


def carries(first: int, second: int) -> bool:
    """Whether the units add up to ten or more."""
    return first % 10 + second % 10 >= 10


def to_tokens(pairs: list[tuple[int, int]]) -> torch.Tensor:
    """Questions with their answers, one row each."""
    ids = {word: index for index, word in enumerate(WORDS)}
    texts = (f"{BOS} {question(*pair)} {answer(*pair)}" for pair in pairs)
    return torch.tensor([[ids[word] for word in text.split()] for text in texts])


def share_right(logits: Callable[[torch.Tensor], torch.Tensor], pairs: list[tuple[int, int]]) -> float:
    """The share of sums whose three digits are all predicted, each after the right ones before it."""
    rows = to_tokens(pairs)
    with torch.inference_mode():
        predicted = torch.cat([logits(part[:, :-1]).argmax(-1) for part in rows.split(512)])
    return (predicted[:, QUESTION - 1 :] == rows[:, QUESTION:]).all(1).double().mean().item()


def attention(model: Any, pairs: list[tuple[int, int]]) -> Float[torch.Tensor, "sum layer head query key"]:
    """Attention of all heads as it multiplies the values, over each question and its answer."""
    layers: list[torch.Tensor] = []
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.n_layers)]
    with model.hooked([(name, lambda each, hook: layers.append(each.clone())) for name in names]):
        model.logits(to_tokens(pairs)[:, :-1])
    return torch.stack(layers, 1)


def units_read(weights: torch.Tensor, query: int) -> Float[torch.Tensor, " sum"]:
    """How many open edges lead from the units of both numbers to a query, for each sum."""
    return (weights[:, :, :, query][..., list(UNITS)] > 0).flatten(1).sum(1).double()


def tokenizer() -> Any:
    """One token a word, words between spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=BOS))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token=BOS, eos_token=BOS)
