"""Prompts and pairs: tokens with their positions, a clean prompt beside its counterfactual, and the metric
that reads the answer.

1. A position is named by index, by negative index or by token text; text that fits no token or several is an
   error that lists them.
2. A counterfactual is given as text, as a swap of words, or left out: then the key token's embedding gets
   seeded noise.
3. The metric reads the last position: `logit(answer) − logit(foil)`, the log-probability of the answer, the
   divergence from the clean prediction, or a function of the user's.
4. A `Question` is what the user gave. What was not given (answer, foil) is read off the model's predictions;
   with them the question becomes a `Pair`. The engine has these predictions from the runs that it makes
   anyway; `to_pair` runs the model for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch
from jaxtyping import Float

from circuits.errors import PromptError

if TYPE_CHECKING:
    from circuits.models.model import Model

MetricKind = Literal["logit_diff", "logprob", "kl", "custom"]
MetricFunction = Callable[[Float[torch.Tensor, "row vocab"]], Float[torch.Tensor, " row"]]  # of logits
Logits = Float[torch.Tensor, "row vocab"]  # at the last position
Predictions = Float[torch.Tensor, " vocab"]
METRICS: Final = ("logit_diff", "logprob", "kl")
NOISE_SCALE: Final = 3.0  # standard deviations of the embedding
NOISE_DRAWS: Final = 8
_INDEX: Final = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text as the model reads it: one word (token text) per position."""

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


@dataclass(frozen=True, slots=True)
class Metric:
    """What is read at the last position."""

    kind: MetricKind
    answer: int
    answer_text: str
    foil: int | None = None
    foil_text: str | None = None
    function: MetricFunction | None = None

    def __str__(self) -> str:
        if self.kind == "logit_diff":
            return f"logit({self.answer_text}) − logit({self.foil_text})"
        return f"logprob({self.answer_text})" if self.kind == "logprob" else self.kind

    @property
    def reads(self) -> tuple[int, ...] | None:
        """The tokens whose logits it needs, or None for the whole vocabulary."""
        return (self.answer, self.foil) if self.kind == "logit_diff" and self.foil is not None else None

    def read(self, logits: Logits, clean: Predictions | None = None) -> Float[torch.Tensor, " row"]:
        """Its value for each row of logits at the last position; `kl` compares with the clean run's."""
        match self.kind:
            case "logit_diff":
                return logits[:, self.answer] - logits[:, self.foil]
            case "logprob":
                return logits.log_softmax(-1)[:, self.answer]
            case "kl":
                assert clean is not None
                expected = clean.log_softmax(-1)
                return -(expected.exp() * (expected - logits.log_softmax(-1))).sum(-1)
        assert self.function is not None
        values = self.function(logits)
        if values.shape != logits.shape[:1]:
            shape = tuple(values.shape)
            raise PromptError(f"a metric function takes logits (row, vocab) and returns (row), not {shape}")
        return values


@dataclass(frozen=True, slots=True)
class Pair:
    """A clean prompt, its counterfactual of the same length, and the metric."""

    clean: Prompt
    counterfactual: Prompt | Noise
    metric: Metric

    def __post_init__(self) -> None:
        if isinstance(self.counterfactual, Prompt) and len(self.clean) != len(self.counterfactual):
            raise PromptError(_unequal(self.clean, self.counterfactual))
        if isinstance(self.counterfactual, Prompt) and self.clean.tokens == self.counterfactual.tokens:
            raise PromptError(
                "the counterfactual is the same as the prompt: nothing to compare; swap a word of it"
            )

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def differs_at(self) -> tuple[int, ...]:
        """The positions at which the two inputs differ."""
        if isinstance(self.counterfactual, Noise):
            return self.counterfactual.positions
        both = zip(self.clean.tokens, self.counterfactual.tokens, strict=True)
        return tuple(index for index, (clean, other) in enumerate(both) if clean != other)


def to_prompt(model: Model, text: str) -> Prompt:
    """The text as this model reads it."""
    _refuse_half_characters(text)
    tokens = model.tokenize(text)
    return Prompt(text, tokens, tuple(model.spell(token) for token in tokens))


@dataclass(frozen=True, slots=True)
class Question:
    """A clean prompt and its counterfactual, and what the user said about the metric. What is None is read
    off the predictions."""

    clean: Prompt
    counterfactual: Prompt | Noise
    answer: str | None = None
    foil: str | None = None
    metric: MetricKind | MetricFunction | None = None

    def __post_init__(self) -> None:
        if isinstance(self.metric, str) and self.metric not in METRICS:
            names = ", ".join(METRICS)
            raise PromptError(
                f"no metric {self.metric!r}; there are {names}, or a function of the last logits"
            )
        if self.kind == "logit_diff" and self.foil is None and isinstance(self.counterfactual, Noise):
            raise PromptError("noise has no prediction to be the foil; give foil=…, or use metric='logprob'")
        _ = self.unsettled  # prompts that do not fit together are refused before any model runs

    @property
    def kind(self) -> MetricKind:
        if callable(self.metric):
            return "custom"
        noisy = isinstance(self.counterfactual, Noise) and self.foil is None
        return self.metric or ("logprob" if noisy else "logit_diff")

    @property
    def unsettled(self) -> Pair:
        """The pair with a stand-in for its metric, fit to be run but not to be read."""
        return Pair(self.clean, self.counterfactual, Metric("logprob", 0, ""))

    def settle(self, model: Model, clean: Predictions, counterfactual: Predictions | None) -> Pair:
        """The pair, given the logits at the last position on either side (none on the side of noise)."""
        answer = int(clean.argmax()) if self.answer is None else answer_token(model, self.answer, clean)
        text = model.spell(answer)
        if self.kind != "logit_diff":
            function = self.metric if callable(self.metric) else None
            return Pair(self.clean, self.counterfactual, Metric(self.kind, answer, text, function=function))
        if self.foil is not None:
            foil = answer_token(model, self.foil, clean)
        else:
            assert counterfactual is not None
            foil = int(counterfactual.argmax())
        if foil == answer:
            same = f"answer and foil are both {text!r}: the counterfactual does not change the prediction"
            raise PromptError(f"{same}; name answer and foil, or use metric='logprob'")
        metric = Metric("logit_diff", answer, text, foil, model.spell(foil))
        return Pair(self.clean, self.counterfactual, metric)


@dataclass(frozen=True, slots=True)
class Wording:
    """How a user words a question; without counterfactual and swap, noise is put on `noise_at`."""

    counterfactual: str | None = None
    swap: dict[str, str] | None = None
    noise_at: tuple[int, ...] | None = None
    answer: str | None = None
    foil: str | None = None
    metric: MetricKind | MetricFunction | None = None
    seed: int = 0


def to_question(model: Model, text: str, wording: Wording) -> Question:
    """What the user gave, as this model reads it. The model is not run."""
    other, swap = wording.counterfactual, wording.swap
    if other is not None and swap:
        raise PromptError("give a counterfactual or a swap, not both")
    clean = to_prompt(model, text)
    other = swap_words(text, swap) if swap else other
    if other is None and wording.noise_at is None:
        raise PromptError(
            "no counterfactual: give its text, a swap such as large=hot, or a key for the noise"
        )
    noise = Noise(wording.noise_at or (), seed=wording.seed)
    read = noise if other is None else to_prompt(model, other)
    return Question(clean, read, wording.answer, wording.foil, wording.metric)


def to_pair(
    model: Model,
    text: str,
    *,
    counterfactual: str | None = None,
    swap: dict[str, str] | None = None,
    noise_at: tuple[int, ...] | None = None,
    answer: str | None = None,
    foil: str | None = None,
    metric: MetricKind | MetricFunction | None = None,
    seed: int = 0,
) -> Pair:
    """A pair from what the user gave; what was not given is read off the model's predictions."""
    wording = Wording(counterfactual, swap, noise_at, answer, foil, metric, seed)
    question = to_question(model, text, wording)
    sides = [side for side in (question.clean, question.counterfactual) if isinstance(side, Prompt)]
    predicted = model.logits(torch.tensor([side.tokens for side in sides], device=model.device))[:, -1]
    return question.settle(model, predicted[0], predicted[1] if len(sides) > 1 else None)


def swap_words(text: str, swap: dict[str, str]) -> str:
    """The text with each word replaced, all at once (so that `{"John": "Mary", "Mary": "John"}` exchanges
    them)."""
    for old in swap:
        if not old or old not in text:
            raise PromptError(f"cannot swap {old!r}: it does not stand in the prompt {text!r}")
    longest_first = "|".join(map(re.escape, sorted(swap, key=len, reverse=True)))
    return re.sub(longest_first, lambda match: swap[match[0]], text) if swap else text


def _refuse_half_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as why:
        half = text[why.start : why.end]
        raise PromptError(f"{half!a} is half a character; give text that can be written as UTF-8") from why


def answer_token(model: Model, text: str, predictions: Float[torch.Tensor, " vocab"]) -> int:
    """The token a user means by an answer: as written or with a leading space, whichever is one token and
    likelier here.

    An answer that is several tokens either way counts by its first; `Metric.answer_text` shows what was read.
    """
    if not text.strip():
        raise PromptError("an answer must not be empty; give the word that the model should say next")
    _refuse_half_characters(text)
    spellings = [text] if text[0].isspace() else [text, f" {text}"]
    tokenised = [model.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings]
    if all(model.tokenizer.unk_token_id in tokens for tokens in tokenised):
        raise PromptError(f"{model.name} does not know {text!r}, so it cannot be an answer or a foil")
    whole = [tokens[0] for tokens in tokenised if len(tokens) == 1]
    first = whole or [tokens[0] for tokens in tokenised[:1] if tokens]
    candidates = {token for token in first if token < len(predictions)}
    if not candidates:
        raise PromptError(f"{model.name} has no token for {text!r}, so it cannot be an answer or a foil")
    return max(candidates, key=lambda token: float(predictions[token]))


def _unequal(clean: Prompt, other: Prompt) -> str:
    counts = f"must have the same number of tokens, but have {len(clean)} and {len(other)}"
    return f"prompt and counterfactual {counts}: {clean} against {other}"
