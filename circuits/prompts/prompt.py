"""A text as the model reads it, and what stands in for it: other words in their places, or noise.

1. A position is named by index, by negative index or by token text.
2. The swap `large=hot` replaces every `large` that stands as a word of its own, never a part of another word.
   `9=Mary` replaces the token at position 9 (if no word of the prompt reads `9`). All replacements happen at
   once, so that `John=Mary, Mary=John` exchanges the two.
3. Noise is the counterfactual of those who give none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from circuits.errors import PromptError

if TYPE_CHECKING:
    from circuits.models.model import Model


Swap = Mapping[str, str] | Mapping[int, str] | Mapping[str | int, str]
NOISE_SCALE: Final = 3.0  # standard deviations of the embedding
NOISE_DRAWS: Final = 8
_INDEX: Final = re.compile(r"-?\d{1,9}")
_LETTER: Final = (
    r"[^\W\u3040-\u30ff\u3400-\u9fff]"  # of words that spaces divide; Chinese and Japanese have none
)
_Place = tuple[int, int, str]  # from and to which character, and what to put there


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


def swap_words(text: str, swap: Mapping[str, str]) -> str:
    """The text with each whole word replaced, wherever it stands."""
    places = _word_places(text, swap)
    found = {text[start:end] for start, end, _ in places}
    for old in swap:
        if old not in found and not _whole_word(old).search(text):
            raise PromptError(_not_there(old, text))
    return _replaced(text, places)


def swapped(model: Model, text: str, swap: Swap) -> str:
    """The text with words and positions replaced."""
    words: dict[str, str] = {}
    positions: dict[int, str] = {}
    for old, new in swap.items():
        if isinstance(old, str) and _whole_word(old).search(text):
            words[old] = new
        elif isinstance(old, int) or _INDEX.fullmatch(old):
            positions[int(old)] = new
        else:
            raise PromptError(_not_there(old, text))
    places = _word_places(text, words)
    places += _token_places(model, to_prompt(model, text), positions) if positions else []
    return _replaced(text, places)


def stands_in(old: str | int, text: str) -> bool:
    """Whether a swap finds a place in this text; a position is a place in any."""
    return isinstance(old, int) or bool(_whole_word(old).search(text) or _INDEX.fullmatch(old))


def _whole_word(word: str) -> re.Pattern[str]:
    """Where it stands as a word: no letter before it, if it begins with one, and none behind it."""
    return re.compile(_whole([word], *_edges(word)) if word else r"(?!)")


def _whole(words: list[str], letter_first: bool, letter_last: bool) -> str:
    before, behind = f"(?<!{_LETTER})" * letter_first, f"(?!{_LETTER})" * letter_last
    return f"{before}(?:{'|'.join(map(re.escape, words))}){behind}"


def _edges(word: str) -> tuple[bool, bool]:
    """Whether it begins and ends with a letter."""
    return bool(re.match(_LETTER, word)), bool(re.match(_LETTER, word[-1:]))


def _not_there(old: str, text: str) -> str:
    if old.strip() and old in text:
        inside = f"cannot swap {old!r}: it stands only inside other words of the prompt {text!r}"
        return f"{inside}; name the whole word, or swap one position, such as 5=hot"
    return f"cannot swap {old!r}: it does not stand in the prompt {text!r}"


def _word_places(text: str, swap: Mapping[str, str]) -> list[_Place]:
    longest_first = sorted(filter(None, swap), key=len, reverse=True)
    if not longest_first:
        return []
    kinds = groupby(longest_first, key=_edges)  # words alike share their look around: a thousand take no time
    either = re.compile("|".join(_whole(list(words), *kind) for kind, words in kinds))
    return [(*match.span(), swap[match[0]]) for match in either.finditer(text)]


def _token_places(model: Model, prompt: Prompt, swap: Mapping[int, str]) -> list[_Place]:
    """The characters of the tokens at these positions, without the space in front."""
    if not model.tokenizer.is_fast:
        raise PromptError(f"the tokenizer of {model.name} does not say where its tokens stand; swap a word")
    encoded = model.tokenizer(prompt.text, add_special_tokens=False, return_offsets_mapping=True)
    offsets, places = encoded["offset_mapping"], []
    for name, new in swap.items():
        position = prompt.position(name)
        number = position - (len(prompt) - len(offsets))  # BOS is no part of the text
        if number < 0:
            raise PromptError(f"position {position} is the beginning of the sequence, no part of the text")
        start, end = offsets[number]
        piece = prompt.text[start:end]
        places.append((end - len(piece.lstrip()), end, new.strip() if piece.strip() else new))
    return places


def _replaced(text: str, places: list[_Place]) -> str:
    parts, upto = [], 0
    for start, end, new in sorted(places):
        if start < upto:
            raise PromptError(f"two swaps meet at {text[start:end]!r}; give one of them")
        parts += [text[upto:start], new]
        upto = end
    return "".join([*parts, text[upto:]])
