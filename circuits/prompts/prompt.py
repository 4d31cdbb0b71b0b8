"""A text as the model reads it, what stands in for it (other words, or noise), and the metric at its end.

1. A position is named by index, by negative index or by token text.
2. The swap `large=hot` replaces every `large` that stands as a word of its own, never a part of another word.
   `9=Mary` replaces the token at position 9 (if no word of the prompt reads `9`). All replacements happen at
   once, so that `John=Mary, Mary=John` exchanges the two.
3. Noise is the counterfactual of those who give none.
4. The metric `logit_diff` is `logit(answer) − logit(foil)`, `logprob` the log-probability of the answer, `kl`
   the divergence from the clean prediction; or it is a function of the logits at the last position.
5. Of several answers (or foils) any one counts: their logits (or probabilities) are added up as
   probabilities are, by logsumexp.
6. An answer of several tokens is a sequence. Only `logprob` reads one: the answer follows the prompt, on both
   sides, and the log-probabilities of its tokens are added up, each given those before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

import torch
from jaxtyping import Float

from circuits.errors import PromptError

if TYPE_CHECKING:
    from circuits.models.model import Model

Swap = Mapping[str, str] | Mapping[int, str] | Mapping[str | int, str]
NOISE_SCALE: Final = 3.0  # standard deviations of the embedding
NOISE_DRAWS: Final = 8
_INDEX: Final = re.compile(r"-?\d{1,9}")
# A letter of words that spaces divide; Chinese and Japanese have none.
_LETTER: Final = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
_Replacement = tuple[int, int, str]  # from and to which character, and the new text there
MetricKind = Literal["logit_diff", "logprob", "kl", "custom"]
# Of the logits at the last position.
MetricFunction = Callable[[Float[torch.Tensor, "row vocab"]], Float[torch.Tensor, " row"]]
Answer = str | Sequence[str]  # one, or several of which any counts
Logits = Float[torch.Tensor, "row read vocab"]  # at the positions that the metric reads, in order
Predictions = Float[torch.Tensor, " vocab"]
METRICS: Final = ("logit_diff", "logprob", "kl")
_CLOSING: Final = frozenset(".,;:!?)]}’”%")  # a word that follows one of these follows a space


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
            several = f"{text!r} stands at several positions ({listed})"
            raise PromptError(f"{several}; name one by its index: {self}")
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
    replacements = _word_replacements(text, swap)
    replaced = {text[start:end] for start, end, _ in replacements}
    for old in swap:
        if old not in replaced and not _whole_word(old).search(text):
            raise PromptError(_not_there(old, text))
    return _replaced(text, replacements)


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
    replacements = _word_replacements(text, words)
    if positions:
        replacements += _token_replacements(model, to_prompt(model, text), positions)
    return _replaced(text, replacements)


def stands_in(old: str | int, text: str) -> bool:
    """Whether a swap applies to this text; the swap of a position applies to any."""
    return isinstance(old, int) or bool(_whole_word(old).search(text) or _INDEX.fullmatch(old))


def _whole_word(word: str) -> re.Pattern[str]:
    """Matches a word that is no part of a longer one."""
    return re.compile(_whole([word], *_edges(word)) if word else r"(?!)")


def _whole(words: list[str], letter_first: bool, letter_last: bool) -> str:
    """A pattern for words with no letter before them, if they begin with one, and none behind them."""
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


def _word_replacements(text: str, swap: Mapping[str, str]) -> list[_Replacement]:
    longest_first = sorted(filter(None, swap), key=len, reverse=True)
    if not longest_first:
        return []
    kinds = groupby(longest_first, key=_edges)  # words of a kind share one pattern: a thousand take no time
    either = re.compile("|".join(_whole(list(words), *kind) for kind, words in kinds))
    return [(*match.span(), swap[match[0]]) for match in either.finditer(text)]


def _token_replacements(model: Model, prompt: Prompt, swap: Mapping[int, str]) -> list[_Replacement]:
    """The characters of the tokens at these positions, without the space in front."""
    if not model.tokenizer.is_fast:
        raise PromptError(f"the tokenizer of {model.name} does not say where its tokens stand; swap a word")
    encoded = model.tokenizer(prompt.text, add_special_tokens=False, return_offsets_mapping=True)
    offsets, replacements = encoded["offset_mapping"], []
    for name, new in swap.items():
        position = prompt.position(name)
        number = position - (len(prompt) - len(offsets))  # BOS is no part of the text
        if number < 0:
            raise PromptError(f"position {position} is the beginning of the sequence, no part of the text")
        start, end = offsets[number]
        piece = prompt.text[start:end]
        replacements.append((end - len(piece.lstrip()), end, new.strip() if piece.strip() else new))
    return replacements


def _replaced(text: str, replacements: list[_Replacement]) -> str:
    parts, upto = [], 0
    for start, end, new in sorted(replacements):
        if start < upto:
            raise PromptError(f"two swaps meet at {text[start:end]!r}; give one of them")
        parts += [text[upto:start], new]
        upto = end
    return "".join([*parts, text[upto:]])


@dataclass(frozen=True, slots=True)
class Metric:
    """What is read at the end of a prompt."""

    kind: MetricKind
    answer: int  # of several the first
    answer_text: str
    foil: int | None = None
    foil_text: str | None = None
    function: MetricFunction | None = None
    answers: tuple[int, ...] = ()  # all of them, where there are several
    foils: tuple[int, ...] = ()
    sequence: tuple[int, ...] = ()  # the tokens of an answer that is more than one

    def __str__(self) -> str:
        if self.kind == "logit_diff":
            return f"logit({self.answer_text}) − logit({self.foil_text})"
        return f"logprob({self.answer_text})" if self.kind == "logprob" else self.kind

    @property
    def tail(self) -> int:
        """How many of the last positions it reads."""
        return max(1, len(self.sequence))

    @property
    def reads(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Answers and foils, if their logits are all it needs, or None for the whole vocabulary."""
        if self.kind != "logit_diff" or self.foil is None:
            return None
        return self.answers or (self.answer,), self.foils or (self.foil,)

    def read(self, logits: Logits, clean: Float[torch.Tensor, "read vocab"] | None = None) -> torch.Tensor:
        """Its value for each row; `kl` compares with the clean run's logits."""
        last = logits[:, -1]
        match self.kind:
            case "logit_diff":
                assert self.reads is not None
                answers, foils = (last[:, list(tokens)].logsumexp(-1) for tokens in self.reads)
                return answers - foils
            case "logprob":
                return self._log_probability(logits)
            case "kl":
                assert clean is not None
                expected = clean[-1].log_softmax(-1)
                return -(expected.exp() * (expected - last.log_softmax(-1))).sum(-1)
        assert self.function is not None
        values = self.function(last)
        if values.shape != last.shape[:1]:
            shape = tuple(values.shape)
            raise PromptError(f"a metric function takes logits (row, vocab) and returns (row), not {shape}")
        return values

    def _log_probability(self, logits: Logits) -> Float[torch.Tensor, " row"]:
        chances = logits.log_softmax(-1)
        if self.sequence:
            each = [chances[:, index, token] for index, token in enumerate(self.sequence)]
            return torch.stack(each).sum(0)
        return chances[:, -1, list(self.answers or (self.answer,))].logsumexp(-1)


# What a user means by an answer


def one_or_several(answer: Answer | None) -> tuple[str, ...]:
    """An answer as a tuple, empty where none was given."""
    listed = (answer,) if isinstance(answer, str) else tuple(answer or ())
    for text in listed:
        if not isinstance(text, str) or not text.strip():
            raise PromptError("an answer must not be empty; give the word that the model should say next")
        refuse_half_characters(text)
    return listed


def answer_token(model: Model, text: str, predictions: Predictions) -> int:
    """The token a user means by an answer: as written or with a leading space, whichever is one token and
    likelier here. An answer that is several tokens either way is refused with its pieces."""
    spellings = _spellings(model, text)
    candidates = {tokens[0] for tokens in spellings if len(tokens) == 1 and tokens[0] < len(predictions)}
    if candidates:
        return max(candidates, key=lambda token: float(predictions[token]))
    pieces = [model.spell(token) for token in spellings[-1] if token < len(predictions)]
    if len(pieces) < 2:
        raise PromptError(f"{model.name} has no token for {text!r}, so it cannot be an answer or a foil")
    count = f"{text!r} is {len(pieces)} tokens of {model.name} ({', '.join(map(repr, pieces))})"
    advice = "measure it whole as the only answer with metric='logprob', or name its first piece"
    raise PromptError(f"{count}, and an answer or a foil is one token; {advice}")


def answer_sequence(model: Model, text: str, prompt: str) -> tuple[int, ...]:
    """The tokens of an answer that is more than one however it is spelled, else none.

    It is spelled as it would follow the prompt: with a space behind a word or a closing mark.
    """
    spellings = _spellings(model, text)
    if any(len(tokens) == 1 for tokens in spellings):
        return ()
    spaced = prompt[-1:].isalnum() or prompt[-1:] in _CLOSING
    return spellings[-1 if spaced else 0]


def _spellings(model: Model, text: str) -> list[tuple[int, ...]]:
    """The tokens of an answer as written, and with a leading space if it has none."""
    one_or_several(text)
    spellings = [text] if text[0].isspace() else [text, f" {text}"]
    tokenised = [model.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings]
    if all(model.tokenizer.unk_token_id in tokens for tokens in tokenised):
        raise PromptError(f"{model.name} does not know {text!r}, so it cannot be an answer or a foil")
    return [tuple(tokens) for tokens in tokenised]
