"""What a user gave, as questions, and the runs of one question or of several: what the verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from circuits.engine import SWAP, Ablation, Runs, prepare
from circuits.errors import PromptError, as_listed
from circuits.models.model import Model
from circuits.prompts import Pair, QuestionSpec
from circuits.tracing.asked import (
    Asked,
    is_text_with_counterfactual,
    to_family,
)
from circuits.tracing.batches import run_family
from circuits.tracing.parts import Position, RoleNames


def run_asked(
    model: Model, asked: Sequence[Asked], *, ablation: Ablation = SWAP
) -> list[tuple[Runs, Asked]]:
    """Run one question, or several. Of several, those that a mean cannot hold are left out, and those of one
    length with the same roles run together. Beside the runs of each batch stands its first question."""
    questions = [each.question for each in asked]
    if len(asked) == 1:
        return [(prepare(model, questions, ablation=ablation), asked[0])]
    alike = [(len(each), each.roles) for each in asked]
    kept = run_family(model, questions, alike, ablation=ablation).kept
    return [(batch.runs, asked[batch.numbers[0]]) for batch in kept]


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
    if noise_at is not None and (spec.swap or counterfactual is not None):
        raise PromptError(
            "noise_at= is for prompts without a counterfactual; leave one of both out"
        )
    if counterfactual is not None and not isinstance(counterfactual, str):
        asked = one_each(asked, counterfactual, spec)
        counterfactual = None
    own = replace(spec, counterfactual=counterfactual, noise_at=None)
    family = to_family(model, asked, own, roles=roles, noise_at=noise_at, seed=spec.seed)
    return family.asked


def is_family(text: Any) -> bool:
    """Whether a user gave several prompts, and not the text of one."""
    return not isinstance(text, str) or text.endswith(".jsonl")


def one_counterfactual(counterfactual: str | Sequence[str] | None) -> str | None:
    """The counterfactual of a single prompt. A list is refused: it has one for each prompt of a family."""
    if counterfactual is None or isinstance(counterfactual, str):
        return counterfactual
    raise PromptError("one prompt takes one counterfactual; give its text, not a list")


def to_family_asked(
    model: Model,
    given: Any,
    counterfactual: str | Sequence[str] | None,
    spec: QuestionSpec,
    *,
    key: Position | None,
    roles: RoleNames | None,
) -> tuple[Asked, ...]:
    """The questions of a family, in any of the forms that `to_family` reads."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    if all(isinstance(each, Pair) for each in listed):
        _refuse_beside_pairs(counterfactual, spec)
    entries = one_each(given, counterfactual, spec)
    noise_at = None if key is None else (key,)
    own = replace(spec, answer=None, foil=None) if entries is not given else spec
    return to_family(model, entries, own, roles=roles, noise_at=noise_at, lines=True).asked


def _refuse_beside_pairs(
    counterfactual: str | Sequence[str] | None, spec: QuestionSpec
) -> None:
    """Refuse what a pair already has."""
    given = {"counterfactual": counterfactual, "swap": spec.swap, "answer": spec.answer}
    given |= {"foil": spec.foil, "metric": spec.metric}
    for name, value in given.items():
        if value is not None:
            raise PromptError(
                f"{name}= does not go with a family of pairs, which have their own; leave it out"
            )


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
    others = [None] * len(texts) if counterfactual is None else as_listed(counterfactual)
    if isinstance(counterfactual, str) or len(others) != len(texts):
        needed = f"{len(texts)} texts need as many counterfactuals, in a list"
        raise PromptError(f"{needed}, not {len(others)}; or a swap for all")
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
