"""A text as the model reads it, and the counterfactual texts made from it by swapping words.

1. A position is named by index, by negative index or by the text of its token.
2. The swap `large=hot` replaces every `large` that stands as a word of its own, never a part of another word.
   `9=Mary` replaces the token at position 9, unless `9` is a word of the prompt. All replacements happen at
   once, so `John=Mary, Mary=John` exchanges the two.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import PromptError, escaped, shortened

if TYPE_CHECKING:
    from circuits.models.model import Model

Swap = Mapping[str, str] | Mapping[int, str] | Mapping[str | int, str]
_INDEX: Final = re.compile(r"-?\d{1,9}")
# Not of Chinese or Japanese, whose words have no spaces.
_LETTER: Final = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
# Matches unless there is a letter on either side.
_EDGE_OF_WORD: Final = f"(?:(?<!{_LETTER})|(?!{_LETTER}))"
_OUTPUT: Final = "output"  # names the output, which is read at the last position
_Replacement = tuple[int, int, str]  # first character, end, new text


@dataclass(frozen=True, slots=True, repr=False)
class Prompt:
    """A text as the model reads it: one word (the text of a token) per position.

    >>> found.prompt.position("large"), found.prompt.words[5]
    (5, 'large')
    """

    text: str
    tokens: tuple[int, ...]
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.words) or not self.tokens:
            counts = f"{len(self.words)} words for {len(self.tokens)} tokens"
            raise PromptError(
                f"a prompt has one word per token and at least one of them, not {counts}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def __str__(self) -> str:
        return " ".join(map(self.named, range(len(self))))

    def __repr__(self) -> str:
        return f"Prompt({shortened(self.text)}, {len(self)} tokens)"

    def named(self, position: int) -> str:
        """A position with the text of its token: `large(5)`."""
        word = self.words[position]
        return f"{escaped(word.strip()) or repr(word)}({position})"

    def position(self, name: int | str, roles: Mapping[str, int | str] | None = None) -> int:
        """The index that a name means: an index, a negative index, or the text of a token. `output` is the
        last position, where the output is read, unless a token has this text. `roles` are further names, which
        come first: a role's position is given in any of these ways."""
        if roles is not None:
            name = roles.get(str(name), name)
        if isinstance(name, str):
            return self._position_of_text(name)
        index = self._checked_index(name)
        if not -len(self) <= index < len(self):
            raise PromptError(
                f"position {index} lies outside the prompt, which has 0…{len(self) - 1}: {self}"
            )
        return index % len(self)

    def positions_of(self, text: str) -> tuple[int, ...]:
        """Where tokens of this text stand; a leading space need not be written."""
        matches = [index for index, word in enumerate(self.words) if word == text]
        bare = text.strip()
        if not matches and bare:
            matches = [index for index, word in enumerate(self.words) if word.strip() == bare]
        return tuple(matches)

    def ends(
        self, key: int | str, query: int | str, roles: Mapping[str, int | str] | None = None
    ) -> tuple[int, int]:
        """The positions of a key and of the query that reads it."""
        first = self.position(key, roles)
        last = self.position(query, roles)
        if first > last:
            rule = "a query reads keys at or before itself, so name the earlier one as key"
            raise PromptError(f"key {first} stands after query {last}: {rule}")
        return first, last

    def followed_by(self, model: Model, tokens: tuple[int, ...]) -> Prompt:
        """The prompt with further tokens appended; `text` stays what the user gave."""
        longer = (*self.tokens, *tokens)
        if len(longer) > model.n_ctx:
            limit = f"{model.name} reads at most {model.n_ctx}"
            raise PromptError(
                f"prompt and answer have {len(longer)} tokens and {limit}; shorten them"
            )
        return replace(self, tokens=longer, words=(*self.words, *map(model.spell, tokens)))

    def _checked_index(self, name: Any) -> int:
        """The index as an int. Numpy's integers are indices; True and 5.0 are not."""
        if not isinstance(name, bool):
            try:
                return operator.index(name)
            except TypeError:
                pass
        allowed = "an index (5), an index from the end (-1) or the text of a token"
        raise PromptError(f"{shortened(name)} is no position; give {allowed}: {self}")

    def _position_of_text(self, text: str) -> int:
        """The position of the only token with this text."""
        matches = self.positions_of(text)
        if len(matches) == 1:
            return matches[0]
        if matches:
            several = f"{text!r} stands at several positions ({', '.join(map(str, matches))})"
            raise PromptError(f"{several}; name one by its index: {self}")
        if _INDEX.fullmatch(text):
            return self.position(int(text))
        if text == _OUTPUT:
            return len(self) - 1
        raise PromptError(f"no token {text!r} in this prompt; it has {self}")


def to_prompt(model: Model, text: str) -> Prompt:
    """The text as this model reads it.

    >>> circuits.to_prompt(model, TEXT).words
    ('<|bos|>', 'The', 'opposite', 'of', '"', 'large', '"', 'is', '"')
    """
    check_text(text)
    refuse_half_characters(text)
    tokens = model.tokenize(text)
    return Prompt(text, tokens, tuple(model.spell(token) for token in tokens))


def check_text(text: Any) -> None:
    """Refuse a prompt that is not text, with what to do about it."""
    if isinstance(text, str):
        return
    remedy = "give one string"
    if type(text).__name__ in ("DataFrame", "Series"):
        remedy = "give its texts, such as table['prompt'].tolist()"
    elif type(text).__name__ in ("Tensor", "ndarray", "int", "list", "tuple"):
        remedy = "give one string; token ids become text by model.tokenizer.decode(ids)"
    raise PromptError(f"a prompt is text, not {shortened(text)}; {remedy}")


def refuse_half_characters(text: str) -> None:
    """Refuse text with a lone surrogate, which tokenizers cannot read."""
    try:
        text.encode()
    except UnicodeEncodeError as why:
        half = text[why.start : why.end]
        raise PromptError(
            f"{half!a} is half a character; give text that can be written as UTF-8"
        ) from why


def check_roles(roles: Any) -> None:
    """Refuse names of positions that are no mapping of names."""
    is_mapping = isinstance(roles, Mapping) and all(isinstance(name, str) for name in roles)
    if roles is not None and not is_mapping:
        example = 'such as {"END": -1}'
        raise PromptError(f"roles map names to positions, {example}, not {shortened(roles)}")


# Swaps


def check_swap(swap: Any) -> None:
    """Refuse a swap that does not map words or positions to words."""
    if swap is None:
        return
    example = 'write it as {"large": "hot"}, or {5: "hot"} for one position'
    if not isinstance(swap, Mapping) or not swap:
        if isinstance(swap, str) and "=" in swap:
            old, _, new = swap.partition("=")
            example = f"write it as {{{old!r}: {new!r}}}"
        raise PromptError(f"a swap maps words to words, not {shortened(swap)}; {example}")
    for old, new in swap.items():
        is_place = isinstance(old, str | int) and not isinstance(old, bool)
        if not is_place or not isinstance(new, str):
            wrong = f"{shortened(old)}: {shortened(new)}"
            raise PromptError(
                f"a swap maps a word or a position to a word, not {wrong}; {example}"
            )


def swap_words(text: str, swap: Mapping[str, str]) -> str:
    """The text with each whole word replaced, wherever it stands."""
    replacements = _word_replacements(text, swap)
    replaced = {text[start:end] for start, end, _ in replacements}
    for old in swap:
        # A word may stand only inside what a longer swap replaces: `York` beside `New York`.
        if old not in replaced and not _is_word_of(text, old):
            raise PromptError(_why_not(old, text))
    return _replaced(text, replacements)


def swapped(model: Model, text: str, swap: Swap) -> str:
    """The text with words, and tokens at positions, replaced."""
    words: dict[str, str] = {}
    positions: dict[int, str] = {}
    for old, new in swap.items():
        if isinstance(old, int):
            positions[old] = new
        elif _is_word_of(text, old):
            words[old] = new
        elif _INDEX.fullmatch(old):
            positions[int(old)] = new
        else:
            raise PromptError(_why_not(old, text))
    replacements = _word_replacements(text, words)
    if positions:
        replacements += _token_replacements(model, to_prompt(model, text), positions)
    return _replaced(text, replacements)


def stands_in(old: str | int, text: str) -> bool:
    """Whether a swap of `old` applies to this text; the swap of a position applies to any text."""
    return isinstance(old, int) or _is_word_of(text, old) or bool(_INDEX.fullmatch(old))


def _is_word_of(text: str, word: str) -> bool:
    """Whether the word stands in the text, not only as a part of longer words."""
    return bool(word) and _whole_words([word]).search(text) is not None


def _whole_words(words: Iterable[str]) -> re.Pattern[str]:
    """Matches any of these words where it is no part of a longer one; of two at one place the longer."""
    longest_first = sorted(words, key=len, reverse=True)
    either = "|".join(re.escape(word) for word in longest_first)
    return re.compile(f"{_EDGE_OF_WORD}(?:{either}){_EDGE_OF_WORD}")


def _why_not(old: str, text: str) -> str:
    if old.strip() and old in text:
        inside = f"it stands only inside other words of the prompt {text!r}"
        return f"cannot swap {old!r}: {inside}; name the whole word, or swap one position, such as 5=hot"
    return f"cannot swap {old!r}: it does not stand in the prompt {text!r}"


def _word_replacements(text: str, swap: Mapping[str, str]) -> list[_Replacement]:
    words = [word for word in swap if word]
    if not words:
        return []
    matches = _whole_words(words).finditer(text)
    return [(match.start(), match.end(), swap[match[0]]) for match in matches]


def _token_replacements(
    model: Model, prompt: Prompt, swap: Mapping[int, str]
) -> list[_Replacement]:
    """Replace the characters of the tokens at these positions, but not the space before a token."""
    if not model.tokenizer.is_fast:
        raise PromptError(
            f"the tokenizer of {model.name} does not say where its tokens stand; swap a word"
        )
    encoded = model.tokenizer(
        prompt.text, add_special_tokens=False, return_offsets_mapping=True
    )
    offsets = encoded["offset_mapping"]
    # 1 if the model reads BOS, which is no part of the text.
    added_tokens = len(prompt) - len(offsets)
    replacements = []
    for name, new in swap.items():
        position = prompt.position(name)
        if position < added_tokens:
            raise PromptError(
                f"position {position} is the beginning of the sequence, no part of the text"
            )
        start, end = offsets[position - added_tokens]
        piece = prompt.text[start:end]
        if piece.strip():
            new = new.strip()
        word_start = end - len(piece.lstrip())
        replacements.append((word_start, end, new))
    return replacements


def _replaced(text: str, replacements: list[_Replacement]) -> str:
    parts = []
    done = 0  # characters of the text that are in `parts`, as they were or replaced
    for start, end, new in sorted(replacements):
        if start < done:
            raise PromptError(f"two swaps meet at {text[start:end]!r}; give one of them")
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])
