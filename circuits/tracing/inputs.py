"""One pair or several, from what a user gave, and their runs: what `patch`, `path` and the readings share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from circuits.engine import Direction, Runs, prepare
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Pair, Question, QuestionSpec, to_prompt, to_question
from circuits.prompts.prompt import stands_in
from circuits.tracing.family import worth_a_mean

# A text, a pair, a text with its counterfactual, or several of them.
OnePrompt = str | Pair | tuple[str, str]
Prompts = OnePrompt | list[str] | list[Pair] | list[tuple[str, str]] | tuple[Pair, ...]
Position = int | str


def run_questions(
    model: Model, questions: Sequence[Pair | Question], *, direction: Direction = "swap"
) -> Runs:
    """The runs of one pair, or of several without those whose gap is too small to divide by."""
    if len(questions) == 1:
        if direction == "mean":
            raise PromptError("direction 'mean' averages over several pairs; this is one")
        return prepare(model, questions)
    family = None
    if direction == "mean":
        family = [_pair_of(each) for each in questions]
    return worth_a_mean(prepare(model, questions, family=family, smallest_gap=0.0))[0]


def _pair_of(question: Pair | Question) -> Pair:
    return question if isinstance(question, Pair) else question.pair_without_answer


def to_questions(
    model: Model,
    asked: Prompts,
    spec: QuestionSpec,
    *,
    counterfactual: str | Sequence[str] | None = None,
    noise_at: Sequence[Position] | None = None,
) -> list[Pair | Question]:
    """Each prompt with its counterfactual: its own, the one at its place in the list, or by the swap."""
    prompts = _listed(asked)
    others: Sequence[str | None]
    if counterfactual is None or isinstance(counterfactual, str):
        others = [counterfactual] * len(prompts)
    else:
        others = counterfactual
    if len(others) != len(prompts):
        raise PromptError(
            f"{len(prompts)} prompts need as many counterfactuals, not {len(others)}"
        )
    questions = []
    for prompt, other in zip(prompts, others, strict=True):
        questions.append(_to_question(model, prompt, other, spec, noise_at))
    return questions


def _listed(asked: Prompts) -> list[OnePrompt]:
    """What was asked as a list. Two texts in a tuple are a prompt and its counterfactual."""
    if isinstance(asked, str | Pair):
        return [asked]
    if isinstance(asked, tuple) and len(asked) == 2 and all(isinstance(x, str) for x in asked):
        return [(str(asked[0]), str(asked[1]))]
    prompts: list[OnePrompt] = list(asked)
    if not prompts:
        raise PromptError("there is no prompt; give a text, a pair, or a list of them")
    return prompts


def _to_question(
    model: Model,
    prompt: OnePrompt,
    other: str | None,
    spec: QuestionSpec,
    noise_at: Sequence[Position] | None,
) -> Pair | Question:
    if isinstance(prompt, Pair):
        return prompt
    if isinstance(prompt, tuple):
        prompt, other = prompt
    if not isinstance(prompt, str):
        kind = type(prompt).__name__
        raise PromptError(f"a prompt is a text, a pair or (text, counterfactual), not a {kind}")
    swap = {old: new for old, new in (spec.swap or {}).items() if stands_in(old, prompt)}
    if spec.swap and not swap:
        words = ", ".join(map(str, spec.swap))
        raise PromptError(f"no word of the swap stands in {prompt!r}; it has {words}")
    noisy = None
    if noise_at is not None and other is None and not swap:
        read = to_prompt(model, prompt)
        noisy = tuple(read.position(name) for name in noise_at)
    own = replace(spec, counterfactual=other, swap=swap or None, noise_at=noisy)
    return to_question(model, prompt, own)
