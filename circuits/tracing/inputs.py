"""The runs of one question or of several: what `patch` and `path` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from circuits.engine import SWAP, Ablation, Runs, prepare
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Pair, Question, QuestionSpec
from circuits.tracing.asked import to_family
from circuits.tracing.family import worth_a_mean

Position = int | str


def run_questions(
    model: Model, questions: Sequence[Pair | Question], *, ablation: Ablation = SWAP
) -> Runs:
    """The runs of one pair, or of several without those whose gap is too small to divide by."""
    if len(questions) == 1:
        return prepare(model, questions, ablation=ablation)
    return worth_a_mean(prepare(model, questions, ablation=ablation, smallest_gap=0.0))[0]


def to_questions(
    model: Model,
    asked: Any,
    spec: QuestionSpec,
    *,
    counterfactual: str | Sequence[str] | None = None,
    noise_at: Sequence[Position] | None = None,
) -> list[Pair | Question]:
    """What the user asked, in any form that `to_family` reads. A list of counterfactuals has one for each
    prompt of a list."""
    if counterfactual is not None and not isinstance(counterfactual, str):
        prompts = [asked] if isinstance(asked, str) else list(asked)
        if len(counterfactual) != len(prompts):
            raise PromptError(
                f"{len(prompts)} prompts need as many counterfactuals, not {len(counterfactual)}"
            )
        asked = list(zip(prompts, counterfactual, strict=True))
        counterfactual = None
    own = QuestionSpec(
        counterfactual,
        spec.swap,
        answer=spec.answer,
        foil=spec.foil,
        metric=spec.metric,
        seed=spec.seed,
    )
    family = to_family(model, asked, own, noise_at=noise_at, seed=spec.seed)
    return [each.question for each in family.asked]
