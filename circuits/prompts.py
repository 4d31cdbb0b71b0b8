"""Prompts and pairs: tokens with their positions, a clean prompt beside its counterfactual, and the metric that reads the answer.

1. A position is named by index, by negative index or by token text; text that fits no token or several is an error that lists them.
2. A counterfactual is given as text, as a swap of words, or left out: then the key token's embedding gets seeded noise.
3. The metric reads the last position: `logit(answer) − logit(foil)`, the log-probability of the answer, the divergence from the
   clean prediction, or a function of the user's.
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
    from circuits.models import Model

MetricKind = Literal["logit_diff", "logprob", "kl", "custom"]
MetricFunction = Callable[[Float[torch.Tensor, "row vocab"]], Float[torch.Tensor, " row"]]
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
            raise PromptError(f"a prompt has one word per token and at least one of them, not {len(self.words)} for {len(self.tokens)}")

    def __len__(self) -> int:
        return len(self.tokens)

    def __str__(self) -> str:
        return " ".join(f"{word.strip() or repr(word)}({at})" for at, word in enumerate(self.words))

    def position(self, at: int | str) -> int:
        """The index that `at` means: an index, a negative index, or the text of a token."""
        if isinstance(at, str):
            return self._position_of(at)
        if not -len(self) <= at < len(self):
            raise PromptError(f"position {at} lies outside the prompt, which has 0…{len(self) - 1}: {self}")
        return at % len(self)

    def _position_of(self, text: str) -> int:
        exact = [at for at, word in enumerate(self.words) if word == text]
        found = exact or [at for at, word in enumerate(self.words) if word.strip() == text.strip() and text.strip()]
        if len(found) == 1:
            return found[0]
        if found:
            raise PromptError(f"{text!r} stands at several positions ({', '.join(map(str, found))}); name one by its index: {self}")
        if _INDEX.fullmatch(text):
            return self.position(int(text))
        raise PromptError(f"no token {text!r} in this prompt; it has {self}")


@dataclass(frozen=True, slots=True)
class Noise:
    """A counterfactual without words: `draws` seeded Gaussian draws added to the embeddings at `positions`."""

    positions: tuple[int, ...]
    scale: float = NOISE_SCALE
    draws: int = NOISE_DRAWS
    seed: int = 0

    def __str__(self) -> str:
        return f"noise at {', '.join(map(str, self.positions))} ({self.scale:g} σ, {self.draws} draws, seed {self.seed})"


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
        named = {"logit_diff": f"logit({self.answer_text}) − logit({self.foil_text})", "logprob": f"logprob({self.answer_text})"}
        return named.get(self.kind, self.kind)

    @property
    def reads(self) -> tuple[int, ...] | None:
        """The tokens whose logits it needs, or None for the whole vocabulary."""
        return (self.answer, self.foil) if self.kind == "logit_diff" and self.foil is not None else None


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
            raise PromptError("the counterfactual is the same as the prompt, so there is nothing to compare; swap a word of it")

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def differs_at(self) -> tuple[int, ...]:
        """The positions at which the two inputs differ."""
        if isinstance(self.counterfactual, Noise):
            return self.counterfactual.positions
        both = zip(self.clean.tokens, self.counterfactual.tokens, strict=True)
        return tuple(at for at, (clean, other) in enumerate(both) if clean != other)


def to_prompt(model: Model, text: str) -> Prompt:
    """The text as this model reads it."""
    _refuse_half_characters(text)
    tokens = model.tokenize(text)
    return Prompt(text, tokens, tuple(model.spell(token) for token in tokens))


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
    """A pair from what the user gave; what was not given is read off the model's own predictions."""
    if counterfactual is not None and swap:
        raise PromptError("give a counterfactual or a swap, not both")
    clean = to_prompt(model, text)
    if counterfactual is None and not swap:
        if noise_at is None:
            raise PromptError("no counterfactual: give its text, a swap such as large=hot, or the key whose embedding gets noise")
        other: Prompt | Noise = Noise(noise_at, seed=seed)
    else:
        other = to_prompt(model, counterfactual if counterfactual is not None else swap_words(text, swap or {}))
        Pair(clean, other, Metric("logprob", 0, ""))  # refuses what does not fit before the model is asked for its predictions
    return Pair(clean, other, _to_metric(model, clean, other, answer=answer, foil=foil, metric=metric))


def swap_words(text: str, swap: dict[str, str]) -> str:
    """The text with each word replaced, all at once (so that `{"John": "Mary", "Mary": "John"}` exchanges them)."""
    for old in swap:
        if not old or old not in text:
            raise PromptError(f"cannot swap {old!r}: it does not stand in the prompt {text!r}")
    longest_first = sorted(swap, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: swap[found[0]], text) if swap else text


def _refuse_half_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as why:
        raise PromptError(f"{text[why.start : why.end]!a} is half a character; give text that can be written as UTF-8") from why


def answer_token(model: Model, text: str, predictions: Float[torch.Tensor, " vocab"]) -> int:
    """The token a user means by an answer: as written or with a leading space, whichever is one token and likelier here.

    An answer that is several tokens either way counts by its first; `Metric.answer_text` shows what was read.
    """
    if not text.strip():
        raise PromptError("an answer must not be empty; give the word that the model should say next")
    _refuse_half_characters(text)
    spellings = [text] if text[0].isspace() else [text, f" {text}"]
    tokenised = [model.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings]
    if all(model.tokenizer.unk_token_id in tokens for tokens in tokenised):
        raise PromptError(f"{model.name} does not know the word {text!r}, so it cannot be an answer or a foil")
    whole = {tokens[0] for tokens in tokenised if len(tokens) == 1} or {tokens[0] for tokens in tokenised[:1] if tokens}
    known = {token for token in whole if token < len(predictions)}
    if not known:
        raise PromptError(f"{model.name} has no token for {text!r}, so it cannot be an answer or a foil")
    return max(known, key=lambda token: float(predictions[token]))


def _to_metric(
    model: Model,
    clean: Prompt,
    other: Prompt | Noise,
    *,
    answer: str | None,
    foil: str | None,
    metric: MetricKind | MetricFunction | None,
) -> Metric:
    predictions = model.logits(torch.tensor([clean.tokens], device=model.device))[0, -1]
    said = int(predictions.argmax()) if answer is None else answer_token(model, answer, predictions)
    named = {"answer": said, "answer_text": model.spell(said)}
    if callable(metric):
        return Metric("custom", **named, function=metric)
    kind = metric or ("logprob" if isinstance(other, Noise) and foil is None else "logit_diff")
    if kind not in METRICS:
        raise PromptError(f"no metric {kind!r}; there are {', '.join(METRICS)}, or a function of the logits at the last position")
    if kind != "logit_diff":
        return Metric(kind, **named)
    if foil is None and isinstance(other, Noise):
        raise PromptError("noise has no prediction to be the foil; name one with foil=…, or use metric='logprob'")
    if foil is not None:
        against = answer_token(model, foil, predictions)
    else:
        assert isinstance(other, Prompt)
        against = int(model.logits(torch.tensor([other.tokens], device=model.device))[0, -1].argmax())
    if against == said:
        raise PromptError(
            f"answer and foil are both {model.spell(said)!r}: the counterfactual does not change the prediction; "
            "name answer and foil, or use metric='logprob'"
        )
    return Metric("logit_diff", **named, foil=against, foil_text=model.spell(against))


def _unequal(clean: Prompt, other: Prompt) -> str:
    return f"prompt and counterfactual must have the same number of tokens, but have {len(clean)} and {len(other)}: {clean} against {other}"
