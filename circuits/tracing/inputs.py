"""The runs of one question or of several: what `patch` and `path` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from circuits.engine import SWAP, Ablation, Runs, prepare
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Pair, Question, QuestionSpec
from circuits.tracing.asked import (
    Asked,
    RoleNames,
    is_text_with_counterfactual,
    to_family,
)
from circuits.tracing.family import worth_a_mean

Position = int | str


def run_questions(
    model: Model, questions: Sequence[Pair | Question], *, ablation: Ablation = SWAP
) -> Runs:
    """The runs of one pair, or of several without those whose gap is too small to divide by."""
    if len(questions) == 1:
        return prepare(model, questions, ablation=ablation)
    runs = prepare(model, questions, ablation=ablation, smallest_gap=0.0)
    (chosen,), _, _ = worth_a_mean([runs])
    return runs.only(chosen)


def run_batches(
    model: Model, asked: Sequence[Asked], *, ablation: Ablation = SWAP
) -> list[tuple[Runs, Asked]]:
    """The runs of one question, or of several without those whose gap is too small to divide by: those of one
    length, with the same roles, together. Each batch has its first question beside it."""
    if len(asked) == 1:
        return [(prepare(model, [asked[0].question], ablation=ablation), asked[0])]
    groups: dict[object, list[Asked]] = {}
    for each in asked:
        groups.setdefault((len(each), each.roles), []).append(each)
    if len(groups) > 1:
        ablation = ablation.over([each.prompt for each in asked])
    batches = []
    for group in groups.values():
        questions = [each.question for each in group]
        batches.append(prepare(model, questions, ablation=ablation, smallest_gap=0.0))
    chosen, _, _ = worth_a_mean(batches)
    kept = []
    for runs, numbers, group in zip(batches, chosen, groups.values(), strict=True):
        if numbers:
            kept.append((runs.only(numbers), group[0]))
    return kept


def to_questions(
    model: Model,
    asked: Any,
    spec: QuestionSpec,
    *,
    counterfactual: str | Sequence[str] | None = None,
    noise_at: Sequence[Position] | None = None,
) -> list[Pair | Question]:
    """What the user asked, as `to_asked` reads it, without names of positions."""
    listed = to_asked(model, asked, spec, counterfactual=counterfactual, noise_at=noise_at)
    return [each.question for each in listed]


def to_asked(
    model: Model,
    asked: Any,
    spec: QuestionSpec,
    *,
    counterfactual: str | Sequence[str] | None = None,
    noise_at: Sequence[Position] | None = None,
    roles: RoleNames | None = None,
) -> tuple[Asked, ...]:
    """What the user asked, in any form that `to_family` reads. A list of counterfactuals has one for each
    prompt of a list."""
    if counterfactual is not None and not isinstance(counterfactual, str):
        asked = one_each(asked, counterfactual, spec)
        counterfactual = None
    own = QuestionSpec(
        counterfactual,
        spec.swap,
        answer=spec.answer,
        foil=spec.foil,
        metric=spec.metric,
        seed=spec.seed,
    )
    family = to_family(model, asked, own, roles=roles, noise_at=noise_at, seed=spec.seed)
    return family.asked


def one_each(asked: Any, counterfactual: str | Sequence[str] | None, spec: QuestionSpec) -> Any:
    """A list of prompts as lines that each have a counterfactual, an answer and a foil of their own, where the
    user gave lists of these; anything else as it is.

    An answer that is one word holds for all prompts. In a list with one answer for each, a list of words means
    that any of them counts.
    """
    if counterfactual is None and (
        isinstance(asked, str) or is_text_with_counterfactual(asked)
    ):
        return asked
    texts = [asked] if isinstance(asked, str) else asked
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return asked
    others = [counterfactual] * len(texts) if counterfactual is None else counterfactual
    if isinstance(others, str) or len(others) != len(texts):
        count = 1 if isinstance(others, str) else len(others)
        raise PromptError(
            f"{len(texts)} texts need as many counterfactuals, in a list, not {count}; or a swap for all"
        )
    answers = _for_each(spec.answer, len(texts), "answer")
    foils = _for_each(spec.foil, len(texts), "foil")
    lines = []
    for text, other, answer, foil in zip(texts, others, answers, foils, strict=True):
        line = {"prompt": text, "counterfactual": other, "answer": answer, "foil": foil}
        lines.append(line)
    return lines


def _for_each(given: Any, count: int, name: str) -> list[Any]:
    """The answer (or foil) of each of `count` prompts."""
    if given is None or isinstance(given, str):
        return [given] * count
    listed = list(given)
    if len(listed) != count:
        entries = f"{name}=[…] has {len(listed)} entries for {count} prompts"
        raise PromptError(f"{entries}; give one for each prompt, or one word for all of them")
    return listed
