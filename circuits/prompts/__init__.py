"""What is asked: a clean prompt beside its counterfactual, and the metric that reads the answer.

1. A counterfactual is given as text, as a swap of words, or left out: then the key token's embedding gets
   seeded noise.
2. A `Question` is what the user gave. What was not given (answer, foil) is read off the model's predictions;
   with them the question becomes a `Pair`. The engine has these predictions from the runs that it makes
   anyway; `to_pair` runs the model for them.
3. An answer of several tokens follows both prompts, all but its last token (see `Metric`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from circuits.errors import PromptError
from circuits.prompts.prompt import (
    METRICS,
    NOISE_DRAWS,
    NOISE_SCALE,
    Answer,
    Metric,
    MetricFunction,
    MetricKind,
    Noise,
    Predictions,
    Prompt,
    Swap,
    answer_sequence,
    answer_token,
    one_or_several,
    swap_words,
    swapped,
    to_prompt,
)

if TYPE_CHECKING:
    from circuits.models.model import Model

__all__ = [
    "METRICS",
    "NOISE_DRAWS",
    "NOISE_SCALE",
    "Answer",
    "Metric",
    "MetricFunction",
    "MetricKind",
    "Noise",
    "Pair",
    "Prompt",
    "Question",
    "Swap",
    "Wording",
    "answer_token",
    "swap_words",
    "to_pair",
    "to_prompt",
    "to_question",
]


@dataclass(frozen=True, slots=True)
class Pair:
    """A clean prompt, its counterfactual of the same length, and the metric.

    >>> pair.differs_at, str(pair.metric)
    ((5,), 'logit(small) − logit(cold)')
    """

    clean: Prompt
    counterfactual: Prompt | Noise
    metric: Metric

    def __post_init__(self) -> None:
        clean, other = self.clean, self.counterfactual
        if isinstance(other, Noise):
            return
        if len(clean) != len(other):
            counts = f"must have the same number of tokens, but have {len(clean)} and {len(other)}"
            raise PromptError(f"prompt and counterfactual {counts}: {clean} against {other}")
        if clean.tokens == other.tokens:
            same = "the counterfactual is the same as the prompt"
            raise PromptError(f"{same}: nothing to compare; swap a word of it")

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def differs_at(self) -> tuple[int, ...]:
        """The positions at which the two inputs differ."""
        if isinstance(self.counterfactual, Noise):
            return self.counterfactual.positions
        both = zip(self.clean.tokens, self.counterfactual.tokens, strict=True)
        return tuple(index for index, (clean, other) in enumerate(both) if clean != other)


@dataclass(frozen=True, slots=True)
class Question:
    """A clean prompt and its counterfactual, and what the user said about the metric. What is None is read
    off the predictions."""

    clean: Prompt
    counterfactual: Prompt | Noise
    answer: Answer | None = None
    foil: Answer | None = None
    metric: MetricKind | MetricFunction | None = None
    sequence: tuple[int, ...] = ()  # an answer of several tokens; both prompts end with all but the last

    def __post_init__(self) -> None:
        if isinstance(self.metric, str) and self.metric not in METRICS:
            allowed = f"there are {', '.join(METRICS)}, or a function of the last logits"
            raise PromptError(f"no metric {self.metric!r}; {allowed}")
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
        return Pair(self.clean, self.counterfactual, Metric("logprob", 0, "", sequence=self.sequence))

    def settle(self, model: Model, clean: Predictions, counterfactual: Predictions | None) -> Pair:
        """The pair, given the logits at the last position on either side (none on the side of noise)."""
        metric = self._settled_answer(model, clean)
        if self.kind == "logit_diff":
            metric = self._settled_foil(model, metric, clean, counterfactual)
        return Pair(self.clean, self.counterfactual, metric)

    def _settled_answer(self, model: Model, clean: Predictions) -> Metric:
        function = self.metric if callable(self.metric) else None
        if self.sequence:
            text = "".join(map(model.spell, self.sequence))
            return Metric(self.kind, self.sequence[0], text, sequence=self.sequence)
        tokens, text = _tokens(model, self.answer, clean) or ((int(clean.argmax()),), "")
        text = text or model.spell(tokens[0])
        return Metric(self.kind, tokens[0], text, function=function, answers=_if_several(tokens))

    def _settled_foil(
        self, model: Model, metric: Metric, clean: Predictions, counterfactual: Predictions | None
    ) -> Metric:
        answers = metric.answers or (metric.answer,)
        if named := _tokens(model, self.foil, clean):
            tokens, text = named
        else:
            assert counterfactual is not None
            tokens = (int(counterfactual.argmax()),)
            text = model.spell(tokens[0])
        if both := [token for token in tokens if token in answers]:
            same = f"answer and foil are both {model.spell(both[0])!r}"
            if not named:
                same += ": the counterfactual does not change the prediction"
            raise PromptError(f"{same}; name answer and foil, or use metric='logprob'")
        return replace(metric, foil=tokens[0], foil_text=text, foils=_if_several(tokens))


def _tokens(
    model: Model, answer: Answer | None, predictions: Predictions
) -> tuple[tuple[int, ...], str] | None:
    """The tokens of what was named, each once, and their text; None where nothing was."""
    named = one_or_several(answer)
    tokens = tuple(dict.fromkeys(answer_token(model, text, predictions) for text in named))
    return (tokens, " or ".join(map(model.spell, tokens))) if tokens else None


def _if_several(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tokens if len(tokens) > 1 else ()


# From what the user gave


@dataclass(frozen=True, slots=True)
class Wording:
    """How a user words a question; without counterfactual and swap, noise is put on `noise_at`."""

    counterfactual: str | None = None
    swap: Swap | None = None
    noise_at: tuple[int, ...] | None = None
    answer: Answer | None = None
    foil: Answer | None = None
    metric: MetricKind | MetricFunction | None = None
    seed: int = 0


def to_question(model: Model, text: str, wording: Wording) -> Question:
    """What the user gave, as this model reads it. The model is not run."""
    other, swap = wording.counterfactual, wording.swap
    if other is not None and swap:
        raise PromptError("give a counterfactual or a swap, not both")
    clean = to_prompt(model, text)
    other = swapped(model, text, swap) if swap else other
    if other is None and wording.noise_at is None:
        ways = "give its text, a swap such as large=hot, or a key for the noise"
        raise PromptError(f"no counterfactual: {ways}")
    noise = Noise(wording.noise_at or (), seed=wording.seed)
    read = noise if other is None else to_prompt(model, other)
    question = Question(clean, read, wording.answer, wording.foil, wording.metric)
    named = one_or_several(wording.answer)
    if question.kind != "logprob" or len(named) != 1:
        return question
    sequence = answer_sequence(model, named[0], text)
    return _followed(model, question, sequence) if sequence else question


def _followed(model: Model, question: Question, sequence: tuple[int, ...]) -> Question:
    """The question with its answer, all but the last token, behind both prompts."""
    clean, other = question.clean.followed_by(model, sequence[:-1]), question.counterfactual
    if isinstance(other, Prompt):
        other = other.followed_by(model, sequence[:-1])
    return replace(question, clean=clean, counterfactual=other, sequence=sequence)


def to_pair(
    model: Model,
    text: str,
    *,
    counterfactual: str | None = None,
    swap: Swap | None = None,
    noise_at: tuple[int, ...] | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | None = None,
    seed: int = 0,
) -> Pair:
    """A pair from what the user gave; what was not given is read off the model's predictions.

    >>> pair = circuits.to_pair(model, TEXT, swap={"large": "hot"}, answer="small", foil="cold")
    >>> pair.counterfactual.words[5]
    'hot'
    """
    wording = Wording(counterfactual, swap, noise_at, answer, foil, metric, seed)
    question = to_question(model, text, wording)
    sides = [side for side in (question.clean, question.counterfactual) if isinstance(side, Prompt)]
    predicted = model.logits(torch.tensor([side.tokens for side in sides], device=model.device))[:, -1]
    return question.settle(model, predicted[0], predicted[1] if len(sides) > 1 else None)
