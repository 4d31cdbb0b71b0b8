"""What is asked: a clean prompt beside its counterfactual, and the metric that reads the answer.

1. A counterfactual is given as text, or as a swap of words. Where neither is given, seeded noise is added to
   the embedding of the key token.
2. A `Question` is what the user gave. An answer or a foil that was not given is the model's own prediction,
   so it takes a run of the model to turn a question into a `Pair`. The engine takes the predictions from the
   runs that it makes anyway; `to_pair` runs the model for them.
3. An answer of several tokens is appended to both prompts, all but its last token (see `Metric`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from circuits.errors import PromptError, as_listed, check_whole, shortened
from circuits.prompts.answer import (
    Answer,
    Predictions,
    answer_sequence,
    answer_token,
    given_answers,
)
from circuits.prompts.metric import (
    COMPARES_WITH_FOIL,
    METRICS,
    FunctionMetric,
    Metric,
    MetricFunction,
    MetricKind,
    Probe,
    ProbeMetric,
)
from circuits.prompts.prompt import Prompt, Swap, check_swap, swapped, to_prompt

if TYPE_CHECKING:
    from circuits.models.model import Model

NOISE_SCALE: Final = 3.0  # standard deviations of the embedding
NOISE_DRAWS: Final = 8
_MOST_QUOTED: Final = 8  # tokens of a difference that a message quotes
_MOST_DRAWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Noise:
    """A counterfactual without words: seeded Gaussian noise is added to the embeddings at `positions`.

    A metric is the mean over so many `draws` of the noise.
    """

    positions: tuple[int, ...]
    scale: float = NOISE_SCALE
    draws: int = NOISE_DRAWS
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("seed", self.seed)
        if not self.positions or not 1 <= self.draws <= _MOST_DRAWS or not self.scale > 0:
            rule = f"noise has positions, a scale above 0 and 1…{_MOST_DRAWS} draws"
            given = f"{len(self.positions)} positions, {self.scale:g} and {self.draws}"
            raise PromptError(f"{rule}, not {given}")

    def __str__(self) -> str:
        positions = ", ".join(map(str, self.positions))
        return f"noise at {positions} ({self.scale:g} σ, {self.draws} draws, seed {self.seed})"


@dataclass(frozen=True, slots=True, repr=False)
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
            if not all(0 <= position < len(clean) for position in other.positions):
                raise PromptError(f"{other} lies outside the prompt: {clean}")
            return
        if len(clean) != len(other):
            counts = f"but have {len(clean)} and {len(other)}"
            lengths = _lengths_where_they_differ(clean, other)
            raise PromptError(
                f"prompt and counterfactual must have the same number of tokens, {counts}{lengths}: "
                f"{clean} against {other}"
            )
        if clean.tokens == other.tokens:
            same = "the counterfactual is the same as the prompt"
            raise PromptError(f"{same}: nothing to compare; swap a word of it")

    def __len__(self) -> int:
        return len(self.clean)

    def __repr__(self) -> str:
        other = self.counterfactual
        against = other if isinstance(other, Noise) else shortened(other.text)
        metric = shortened(str(self.metric))[1:-1]  # without quotes
        return f"Pair({shortened(self.clean.text)} against {against}, {metric})"

    @property
    def differs_at(self) -> tuple[int, ...]:
        """The positions at which the two inputs differ."""
        if isinstance(self.counterfactual, Noise):
            return self.counterfactual.positions
        both = zip(self.clean.tokens, self.counterfactual.tokens, strict=True)
        return tuple(index for index, (clean, other) in enumerate(both) if clean != other)

    def without_function(self) -> Pair:
        """The same pair as a file holds it: a metric's function is not saved."""
        return replace(self, metric=replace(self.metric, function=None))


def _lengths_where_they_differ(clean: Prompt, other: Prompt) -> str:
    """`; 'Ben' is 1 token, 'Bartholomew' is 5`: what is left of both without their common ends."""
    own, others = list(clean.words), list(other.words)
    for end in (0, -1):
        while own and others and own[end] == others[end]:
            own.pop(end)
            others.pop(end)
    if not own or not others or max(len(own), len(others)) > _MOST_QUOTED:
        return ""
    own_text, other_text = _different_words(clean.text, other.text)
    tokens = "token" if len(own) == 1 else "tokens"
    return f"; {shortened(own_text)} is {len(own)} {tokens}, {shortened(other_text)} is {len(others)}"


def _different_words(one: str, other: str) -> tuple[str, str]:
    """What is left of two texts without their common ends, in whole words."""
    start = _common(one, other)
    while start and one[start - 1].isalnum():
        start -= 1
    end = _common(one[start:][::-1], other[start:][::-1])
    while end and one[-end].isalnum():
        end -= 1
    return one[start : len(one) - end], other[start : len(other) - end]


def _common(one: str, other: str) -> int:
    """With how many equal characters two texts begin."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Question:
    """A clean prompt, its counterfactual, and what the user said about the metric.

    An answer or a foil that is None becomes the model's own prediction. `sequence` are the tokens of an
    answer of several tokens; both prompts end with all of them but the last.
    """

    clean: Prompt
    counterfactual: Prompt | Noise
    answer: Answer | None = None
    foil: Answer | None = None
    metric: MetricKind | MetricFunction | ProbeMetric | None = None
    sequence: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        is_own = callable(self.metric) or isinstance(self.metric, ProbeMetric)
        if self.metric is not None and not is_own and self.metric not in METRICS:
            allowed = (
                f"there are {', '.join(METRICS)}, a function of the last logits, or a probe"
            )
            raise PromptError(f"no metric {shortened(self.metric)}; {allowed}")
        if self.foil is not None and self.kind not in COMPARES_WITH_FOIL:
            raise PromptError(
                f"metric {self.kind!r} has no foil: leave foil= out, or take metric='logit_diff'"
            )
        is_noise = isinstance(self.counterfactual, Noise)
        if self.kind in COMPARES_WITH_FOIL and self.foil is None and is_noise:
            raise PromptError(
                "noise has no prediction to be the foil; give foil=…, or use metric='logprob'"
            )
        _ = self.pair_without_answer  # a pair checks that its prompts have the same length

    @property
    def kind(self) -> MetricKind:
        """The kind of metric. Noise has no prediction that could be the foil, so its default is `logprob`."""
        if callable(self.metric):
            return "custom"
        if isinstance(self.metric, ProbeMetric):
            return "probe"
        if self.metric is not None:
            return self.metric
        is_noise = isinstance(self.counterfactual, Noise)
        return "logprob" if is_noise and self.foil is None else "logit_diff"

    @property
    def pair_without_answer(self) -> Pair:
        """The pair before its answer is known. It can be run; its metric is a placeholder."""
        metric = Metric("logprob", 0, "", sequence=self.sequence, sees=self._sees)
        return Pair(self.clean, self.counterfactual, metric)

    @property
    def _sees(self) -> int:
        """How many positions a metric function asks for, or a probe needs; 0 where a function takes the last
        without an axis."""
        if isinstance(self.metric, ProbeMetric):
            return len(self.clean) - self.clean.position(self.metric.position)
        if not isinstance(self.metric, FunctionMetric):
            return 0
        return self.metric.count_in(len(self.clean))

    def with_predictions(
        self, model: Model, clean: Predictions, counterfactual: Predictions | None
    ) -> Pair:
        """The pair, given the model's logits at the last position of both prompts (None for noise)."""
        metric = self._metric_with_answer(model, clean)
        if self.kind in COMPARES_WITH_FOIL:
            metric = self._with_foil(metric, model, clean, counterfactual)
        return Pair(self.clean, self.counterfactual, metric)

    def _metric_with_answer(self, model: Model, clean: Predictions) -> Metric:
        if self.sequence:
            text = "".join(map(model.spell, self.sequence))
            return Metric(self.kind, self.sequence[0], text, sequence=self.sequence)
        tokens = _named_tokens(model, self.answer, clean) or (int(clean.argmax()),)
        return Metric(
            self.kind,
            answer=tokens[0],
            answer_text=_spell_any(model, tokens),
            answers=tokens if len(tokens) > 1 else (),
            function=self.metric if callable(self.metric) else None,
            sees=self._sees,
            probe=self._probe(model),
        )

    def _probe(self, model: Model) -> Probe | None:
        if not isinstance(self.metric, ProbeMetric):
            return None
        at = self.clean.position(self.metric.position)
        return self.metric.placed(at, layers=model.n_layers, width=model.d_model)

    def _with_foil(
        self,
        metric: Metric,
        model: Model,
        clean: Predictions,
        counterfactual: Predictions | None,
    ) -> Metric:
        tokens = _named_tokens(model, self.foil, clean)
        hint = ""
        if not tokens:
            assert counterfactual is not None
            tokens = (int(counterfactual.argmax()),)
            hint = ": the counterfactual does not change the prediction"
        for token in tokens:
            if token in (metric.answer, *metric.answers):
                same = f"answer and foil are both {model.spell(token)!r}{hint}"
                raise PromptError(f"{same}; name answer and foil, or use metric='logprob'")
        return replace(
            metric,
            foil=tokens[0],
            foil_text=_spell_any(model, tokens),
            foils=tokens if len(tokens) > 1 else (),
        )


def _named_tokens(
    model: Model, answer: Answer | None, predictions: Predictions
) -> tuple[int, ...]:
    """The tokens of the answers or foils that the user named, each once; empty where none was named."""
    tokens = [answer_token(model, text, predictions) for text in given_answers(answer)]
    return tuple(dict.fromkeys(tokens))


def _spell_any(model: Model, tokens: tuple[int, ...]) -> str:
    return " or ".join(model.spell(token) for token in tokens)


# From what the user gave


@dataclass(frozen=True, slots=True)
class QuestionSpec:
    """What a user says about a pair, beside the prompt. Without counterfactual and swap, noise is added at
    the positions `noise_at`."""

    counterfactual: str | None = None
    swap: Swap | None = None
    noise_at: tuple[int, ...] | None = None
    answer: Answer | None = None
    foil: Answer | None = None
    metric: MetricKind | MetricFunction | ProbeMetric | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("seed", self.seed)
        check_swap(self.swap)
        _check_answers(self.answer)
        _check_answers(self.foil)


def _check_answers(given: Any) -> None:
    """Refuse what is no text. Of a family each prompt may have a list of its own."""
    each_prompt = given if isinstance(given, list | tuple) else (given,)
    for answer in each_prompt:
        given_answers(answer)


def to_question(model: Model, text: str, spec: QuestionSpec) -> Question:
    """The prompt and what the user says about it, as this model reads them. The model is not run."""
    clean = to_prompt(model, text)
    other = _to_counterfactual(model, text, spec)
    question = Question(clean, other, spec.answer, spec.foil, spec.metric)
    named = given_answers(spec.answer)
    if question.kind != "logprob" or len(named) != 1:
        return question
    sequence = answer_sequence(model, named[0], text)
    if not sequence:
        return question
    clean = clean.followed_by(model, sequence[:-1])
    if isinstance(other, Prompt):
        other = other.followed_by(model, sequence[:-1])
    return replace(question, clean=clean, counterfactual=other, sequence=sequence)


def _to_counterfactual(model: Model, text: str, spec: QuestionSpec) -> Prompt | Noise:
    if spec.counterfactual is not None and spec.swap:
        raise PromptError("give a counterfactual or a swap, not both")
    if spec.swap:
        return to_prompt(model, swapped(model, text, spec.swap))
    if spec.counterfactual is not None:
        return to_prompt(model, spec.counterfactual)
    if spec.noise_at is None:
        raise PromptError(
            "no counterfactual: give its text, or a swap such as large=hot; trace and circuit add "
            "noise at a key"
        )
    clean = to_prompt(model, text)
    positions = tuple(clean.position(place) for place in as_listed(spec.noise_at))
    return Noise(positions, seed=spec.seed)


def to_pair(
    model: Model,
    text: str,
    *,
    counterfactual: str | None = None,
    swap: Swap | None = None,
    noise_at: tuple[int, ...] | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    seed: int = 0,
) -> Pair:
    """A pair from what the user gave; an answer or a foil that was not given is the model's own prediction.

    >>> pair = circuits.to_pair(model, TEXT, swap={"large": "hot"}, answer="small", foil="cold")
    >>> pair.counterfactual.words[5]
    'hot'
    """
    spec = QuestionSpec(counterfactual, swap, noise_at, answer, foil, metric, seed)
    question = to_question(model, text, spec)
    if isinstance(question.counterfactual, Noise):
        return question.with_predictions(model, _predictions(model, question.clean)[0], None)
    clean, other = _predictions(model, question.clean, question.counterfactual)
    return question.with_predictions(model, clean, other)


def _predictions(model: Model, *prompts: Prompt) -> torch.Tensor:
    """The logits (prompt, vocab) at the last position of prompts of the same length."""
    tokens = torch.tensor([prompt.tokens for prompt in prompts], device=model.device)
    return model.logits(tokens)[:, -1]
