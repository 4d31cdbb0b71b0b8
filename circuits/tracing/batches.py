"""Pairs that are asked about together, run in batches of one length, and which of them a mean may hold.

Pairs whose gap is too small to divide by are left out of a mean and, where there are others, pairs on the
wrong side: the clean run prefers the foil, or the counterfactual the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float

from circuits.engine import SWAP, Ablation, Runs, prepare
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Pair, Question
from circuits.tracing.judge import is_wrong_side, judge_each, together
from circuits.tracing.parts import Ends, FamilyControl, QuestionControl
from circuits.tracing.trust import weak_pairs


@dataclass(frozen=True)
class RunBatch:
    """Pairs that ran together, and the number of each among all that were asked about."""

    runs: Runs
    numbers: tuple[int, ...]

    def only(self, kept: Sequence[int]) -> RunBatch:
        """Those of its pairs that are among these numbers."""
        own = [place for place, number in enumerate(self.numbers) if number in kept]
        return RunBatch(self.runs.only(own), tuple(self.numbers[place] for place in own))


@dataclass(frozen=True)
class FamilyRuns:
    """All pairs of a family that were run, and those that its mean holds."""

    every: tuple[RunBatch, ...]
    kept: tuple[RunBatch, ...]
    weak: int  # pairs left out because their gap is too small
    wrong: int  # pairs left out because they are on the wrong side

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs with their answers, in the user's order."""
        pairs: dict[int, Pair] = {}
        for batch in self.every:
            pairs |= zip(batch.numbers, batch.runs.pairs, strict=True)
        return tuple(pairs[number] for number in sorted(pairs))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The pairs that the mean holds, batch after batch."""
        return tuple(number for batch in self.kept for number in batch.numbers)


def judge_batches(
    batches: Sequence[RunBatch], ends_of: Callable[[RunBatch], Ends] | None = None
) -> FamilyControl:
    """The verdict on the pairs of all batches together; `ends_of` says which key and query a batch was asked
    about."""
    judged: dict[int, QuestionControl] = {}
    for batch in batches:
        ends = None if ends_of is None else ends_of(batch)
        judged |= zip(batch.numbers, judge_each(batch.runs, ends=ends), strict=True)
    return together([judged[number] for number in sorted(judged)])


def run_batches(
    model: Model,
    questions: Sequence[Pair | Question],
    alike: Sequence[Hashable],
    *,
    ablation: Ablation = SWAP,
    smallest_gap: float = 0.0,
) -> tuple[RunBatch, ...]:
    """Run all questions, those for which the same stands in `alike` together, in the order in which they
    come. A mean ablation is over the prompts of all batches. A pair with a smaller gap than `smallest_gap` is
    an error."""
    groups: dict[Hashable, list[int]] = {}
    for number, kind in enumerate(alike):
        groups.setdefault(kind, []).append(number)
    if len(groups) > 1:
        ablation = ablation.over([question.clean for question in questions])
    batches = []
    for numbers in groups.values():
        asked = [questions[number] for number in numbers]
        runs = prepare(model, asked, ablation=ablation, smallest_gap=smallest_gap)
        batches.append(RunBatch(runs, tuple(numbers)))
    return tuple(batches)


def run_family(
    model: Model,
    questions: Sequence[Pair | Question],
    alike: Sequence[Hashable],
    *,
    ablation: Ablation = SWAP,
) -> FamilyRuns:
    """Run all questions as `run_batches` does, and choose the pairs that a mean can hold; an error where there
    are none."""
    every = run_batches(model, questions, alike, ablation=ablation)
    clean: dict[int, float] = {}
    other: dict[int, float] = {}
    has_foil: dict[int, bool] = {}
    for batch in every:
        runs = batch.runs
        clean |= zip(batch.numbers, runs.values(runs.clean).tolist(), strict=True)
        other |= zip(batch.numbers, runs.values(runs.counterfactual).tolist(), strict=True)
        foils = [pair.metric.foil is not None for pair in runs.pairs]
        has_foil |= zip(batch.numbers, foils, strict=True)
    numbers = sorted(clean)
    weak = weak_pairs([clean[n] for n in numbers], [other[n] for n in numbers])
    strong = [number for number, is_weak in zip(numbers, weak, strict=True) if not is_weak]
    if not strong:
        small = f"no pair of these {len(clean)} has a gap worth dividing by"
        raise PromptError(
            f"{small}; swap words that matter more, or name another answer and foil"
        )
    right = [n for n in strong if not is_wrong_side(has_foil[n], clean[n], other[n])]
    return FamilyRuns(
        every=every,
        kept=only_of(every, right or strong),
        weak=len(numbers) - len(strong),
        wrong=len(strong) - len(right or strong),
    )


def only_of(batches: Sequence[RunBatch], numbers: Sequence[int]) -> tuple[RunBatch, ...]:
    """The pairs with these numbers, in batches; that of the first pair comes first."""
    kept = [batch.only(numbers) for batch in batches if set(batch.numbers) & set(numbers)]
    return tuple(sorted(kept, key=lambda batch: batch.numbers[0]))


# Means over batches


class Ran(Protocol):
    """Pairs that ran together: a `RunBatch`, or one with named positions."""

    @property
    def runs(self) -> Runs: ...


def mean_over(
    parts: Sequence[Ran], values: Sequence[Float[torch.Tensor, " thing"]]
) -> Float[torch.Tensor, " thing"]:
    """The mean over the pairs of all parts, given the mean of each part."""
    if len(parts) == 1:
        return values[0]
    counts = [len(part.runs.pairs) for part in parts]
    summed = torch.stack([count * value for count, value in zip(counts, values, strict=True)])
    return summed.sum(0) / sum(counts)
