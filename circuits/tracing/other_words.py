"""Words of the vocabulary that are written like another one: random ones, and the nearest in the embedding."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final

from circuits.models.model import Model

OTHER_WORDS: Final = 16
_TRIES: Final = 200  # for each word


def words_like(
    model: Model, token: int, draw: random.Random, count: int = OTHER_WORDS
) -> list[int]:
    """Random tokens that are spelled as this one is: a word or not, with a space in front or without."""
    kind = spelling(model.spell(token))
    special = set(model.tokenizer.all_special_ids)
    size = min(model.vocab_size, len(model.tokenizer))
    words: list[int] = []
    for _ in range(_TRIES * count):
        other = draw.randrange(size)
        if other != token and other not in special and spelling(model.spell(other)) == kind:
            words.append(other)
            if len(words) == count:
                return words
    return []


def spelling(text: str) -> tuple[bool, bool]:
    """Whether it begins with a space, and whether it is a word: letters, more than one."""
    word = text.strip()
    return text[:1].isspace(), word.isalpha() and len(word) > 1


def nearest_words(
    model: Model, token: int, count: int, *, besides: Collection[int] = ()
) -> list[int]:
    """The tokens that are spelled like this one, nearest to it in the embedding first."""
    embedding = model.bridge.W_E.detach().float()  # (vocab, d_model)
    norms = embedding.norm(dim=-1).clamp(min=1e-8)  # a row of zeros is near to nothing
    similarity = embedding @ embedding[token] / norms
    kind = spelling(model.spell(token))
    size = min(model.vocab_size, len(model.tokenizer))
    refused = {token, *besides, *model.tokenizer.all_special_ids}
    words: list[int] = []
    for other in similarity.argsort(descending=True).tolist():
        if len(words) == count:
            break
        if other < size and other not in refused:
            word = model.spell(other)
            if word.strip() and spelling(word) == kind:
                words.append(other)
    return words
