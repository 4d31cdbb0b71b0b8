"""A text as the model reads it, and noise: the counterfactual of those who give none."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from circuits.errors import PromptError

if TYPE_CHECKING:
    from circuits.models.model import Model

NOISE_SCALE: Final = 3.0  # standard deviations of the embedding
NOISE_DRAWS: Final = 8
_INDEX: Final = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text as the model reads it: one word (token text) per position.

    >>> found.prompt.position("large"), found.prompt.words[5]
    (5, 'large')
    """

    text: str
    tokens: tuple[int, ...]
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.words) or not self.tokens:
            counts = f"{len(self.words)} words for {len(self.tokens)} tokens"
            raise PromptError(f"a prompt has one word per token and at least one of them, not {counts}")

    def __len__(self) -> int:
        return len(self.tokens)

    def __str__(self) -> str:
        return " ".join(f"{word.strip() or repr(word)}({index})" for index, word in enumerate(self.words))

    def position(self, name: int | str) -> int:
        """The index that a name means: an index, a negative index, or the text of a token."""
        if isinstance(name, str):
            return self._position_of(name)
        if not -len(self) <= name < len(self):
            raise PromptError(f"position {name} lies outside the prompt, which has 0…{len(self) - 1}: {self}")
        return name % len(self)

    def ends(self, key: int | str, query: int | str) -> tuple[int, int]:
        """The positions of a key and of the query that reads it."""
        first, last = self.position(key), self.position(query)
        if first > last:
            rule = "a query reads keys at or before itself, so name the earlier one as key"
            raise PromptError(f"key {first} stands after query {last}: {rule}")
        return first, last

    def followed_by(self, model: Model, tokens: tuple[int, ...]) -> Prompt:
        """The prompt with further tokens behind it; `text` stays what the user gave."""
        longer = (*self.tokens, *tokens)
        if len(longer) > model.n_ctx:
            limit = f"{model.name} reads at most {model.n_ctx}"
            raise PromptError(f"prompt and answer have {len(longer)} tokens and {limit}; shorten them")
        return replace(self, tokens=longer, words=(*self.words, *map(model.spell, tokens)))

    def _position_of(self, text: str) -> int:
        exact = [index for index, word in enumerate(self.words) if word == text]
        bare = text.strip()
        matches = exact or [index for index, word in enumerate(self.words) if word.strip() == bare and bare]
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = ", ".join(map(str, matches))
            raise PromptError(
                f"{text!r} stands at several positions ({listed}); name one by its index: {self}"
            )
        if _INDEX.fullmatch(text):
            return self.position(int(text))
        raise PromptError(f"no token {text!r} in this prompt; it has {self}")


@dataclass(frozen=True, slots=True)
class Noise:
    """A counterfactual without words: `draws` seeded Gaussian draws added to the embeddings there."""

    positions: tuple[int, ...]
    scale: float = NOISE_SCALE
    draws: int = NOISE_DRAWS
    seed: int = 0

    def __str__(self) -> str:
        positions = ", ".join(map(str, self.positions))
        return f"noise at {positions} ({self.scale:g} σ, {self.draws} draws, seed {self.seed})"


def to_prompt(model: Model, text: str) -> Prompt:
    """The text as this model reads it.

    >>> circuits.to_prompt(model, TEXT).words
    ('<|bos|>', 'The', 'opposite', 'of', '"', 'large', '"', 'is', '"')
    """
    refuse_half_characters(text)
    tokens = model.tokenize(text)
    return Prompt(text, tokens, tuple(model.spell(token) for token in tokens))


def refuse_half_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as why:
        half = text[why.start : why.end]
        raise PromptError(f"{half!a} is half a character; give text that can be written as UTF-8") from why
