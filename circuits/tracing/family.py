"""One mapping over a family of prompts: means over pairs, with bootstrap intervals.

1. Pairs of equal length with key and query at the same positions are run together; prompts of other lengths
   are further batches. A pair that is given twice counts once.
2. Each pair is judged as `trace` judges it (`judge`). Pairs that a mean cannot hold are left out (`batches`).
3. Effects are measured on every pair that is left; carriers are chosen by greedy selection on the mean.
4. Intervals are percentiles of seeded bootstrap resamples of the pairs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import torch
from jaxtyping import Float

from circuits.components import Head
from circuits.engine import SWAP, Ablation
from circuits.engine.selection import Mapped, effects_over
from circuits.errors import PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Question
from circuits.results import OfHeads, Pictured, Progress, Saved, require, silent
from circuits.tracing.batches import RunBatch, judge_batches, run_family
from circuits.tracing.measure import effects_of_heads, measure_mapping, measured_model
from circuits.tracing.parts import (
    SHARE,
    Ends,
    FamilyControl,
    Interval,
    Mapping,
    MeasuredModel,
    Position,
)
from circuits.tracing.trust import doubts_about, notes_on

T = TypeVar("T")
RESAMPLES: Final = 1000
Each = Float[np.ndarray, "thing pair"]  # one number for each thing on each pair
_AT_ONCE: Final = 2**22  # numbers of resampling weights in memory at a time


@dataclass(frozen=True, slots=True, repr=False)
class FamilyTrace(OfHeads, Saved, Pictured):
    """A mapping averaged over pairs. `mapping` holds the means; the intervals stand beside it.

    >>> family = circuits.trace_family(model, [pair], key=5)
    >>> print(*family.carriers())
    L5H1 L4H0 L5H0 L5H3 L4H5 L3H11
    >>> circuits.FamilyTrace.load(family.save(folder / "family")) == family
    True
    """

    KIND: ClassVar = "family"
    NAME: ClassVar = "a trace of a family"

    model: str
    pairs: tuple[Pair, ...]
    mapping: Mapping
    total: Interval
    joint: Interval  # effect of the carriers at `share`, all together
    heads: tuple[tuple[Head, Interval], ...]  # strongest first
    share: float
    # Pairs that were left out: their gap is too small, compared with their own values or the others'.
    weak: int = 0
    wrong: int = 0  # pairs that were left out: they are on the wrong side
    repeated: int = 0  # pairs that were given more than once, and counted once
    # The verdict on all pairs, those that were left out included; None in files of version 0.2.
    question: FamilyControl | None = None
    notes: tuple[str, ...] = ()  # sentences that are printed above the numbers
    # What it takes to measure it again; None in files of 0.2.
    source: MeasuredModel | None = None
    seed: int | None = None
    # The pairs that were left out, each with its place among all.
    left_out: tuple[tuple[int, Pair], ...] = ()
    ablation: Ablation = SWAP
    # Key and query of each of `all_pairs`; empty where they are those of the mapping in all of them.
    all_ends: tuple[Ends, ...] = ()

    @property
    def all_pairs(self) -> tuple[Pair, ...]:
        """The pairs that were asked about, in their order, with those that were left out."""
        every = list(self.pairs)
        for number, pair in sorted(self.left_out, key=lambda each: each[0]):
            every.insert(number, pair)
        return tuple(every)

    @property
    def ends_of_each(self) -> tuple[Ends, ...]:
        """Key and query of each of `all_pairs`."""
        return self.all_ends or (self.mapping.ends,) * len(self.all_pairs)

    def carriers(self, share: float | None = None) -> tuple[Head, ...]:
        """The heads that carry `share` of the mean total."""
        return self.mapping.carriers(self.share if share is None else share)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each head: its mean effect with the interval over the pairs, and what else was measured."""
        interval_of = dict(self.heads)
        rows = []
        for row in self.mapping.to_rows():
            interval = interval_of[Head.parse(row["head"])]
            rows.append(row | {"low": interval.low, "high": interval.high})
        return rows

    def head_shape(self) -> tuple[int, int] | None:
        """How many layers, and heads a layer, the model has; None in files of 0.2."""
        return None if self.source is None else (self.source.layers, self.source.heads)

    def check(self) -> None:
        require(bool(self.pairs), "it has no pairs")
        require(0 < self.share <= 1, f"its share is {self.share}, not above 0 and at most 1")
        self.mapping.check(max(len(pair) for pair in self.pairs))
        one_each = not self.all_ends or len(self.all_ends) == len(self.all_pairs)
        require(one_each, "it does not have the key and query of every pair")
        heads = sorted(head for head, _ in self.heads)
        measured = sorted(effect.head for effect in self.mapping.heads)
        require(heads == measured, "its intervals are not those of its heads")

    def __str__(self) -> str:
        from circuits.show.tables import family_text

        return family_text(self)


def trace_family(
    model: Any,
    pairs: Sequence[Pair] | Sequence[Question],
    *,
    key: Position,
    query: Position = -1,
    share: float = SHARE,
    ablation: Ablation = SWAP,
    seed: int = 0,
    progress: Progress = silent,
) -> FamilyTrace:
    """Which heads carry the mapping on average over these pairs. Each may have a length of its own: key and
    query are found in each prompt.

    >>> other = circuits.to_pair(model, TEXT.replace("large", "hot"), swap={"hot": "large"})
    >>> family = circuits.trace_family(model, [pair, other], key=5)
    >>> print(family.total)
    1.000 [0.999, 1.001]
    """
    asked = [(pair, pair.clean.ends(key, query)) for pair in pairs]
    return trace_asked(
        as_model(model), asked, share=share, ablation=ablation, seed=seed, progress=progress
    )


def trace_asked(
    model: Model,
    asked: Sequence[tuple[Pair | Question, Ends]],
    *,
    share: float = SHARE,
    ablation: Ablation = SWAP,
    seed: int = 0,
    progress: Progress = silent,
) -> FamilyTrace:
    """As `trace_family`, for pairs that each come with the positions of their key and query."""
    if not asked:
        raise PromptError("a family needs at least one prompt or pair")
    different = each_once(asked)
    questions = [question for question, _ in different]
    all_ends = tuple(ends for _, ends in different)
    alike = [(len(question.clean), ends) for question, ends in different]
    family = run_family(model, questions, alike, ablation=ablation)

    def ends_of(batch: RunBatch) -> Ends:
        return all_ends[batch.numbers[0]]

    question = judge_batches(family.every, ends_of)
    parts = [Mapped(batch.runs, *ends_of(batch)) for batch in family.kept]
    effects = effects_of_heads(parts)  # (head, pair), and last of all heads together
    mapping = measure_mapping(parts, share=share, effects=effects, seed=seed, progress=progress)
    mapping = replace(mapping, doubts=doubts_about(mapping, question, named=True))
    joint_effects = effects_over(parts, [mapping.carriers(share)])
    order = np.argsort(family.numbers)  # the pairs of all parts in the user's order
    on_pairs = torch.cat((effects, joint_effects)).double().cpu().numpy()[:, order]
    *single, total, joint = bootstrap(on_pairs, seed=seed)
    heads = parts[0].runs.heads
    ranked = sorted(zip(heads, single, strict=True), key=lambda item: (-item[1].mean, item[0]))
    pairs = family.pairs
    first = family.every[0]
    return FamilyTrace(
        model=model.name,
        pairs=tuple(pairs[number] for number in sorted(family.numbers)),
        mapping=mapping,
        total=total,
        joint=joint,
        heads=tuple(ranked),
        share=share,
        weak=family.weak,
        wrong=family.wrong,
        repeated=len(asked) - len(different),
        question=question,
        notes=(
            *notes_on(first.runs, question, ends=ends_of(first)),
            *_notes_on_places(len(family.every)),
        ),
        source=measured_model(parts[0].runs),
        seed=seed,
        left_out=tuple((n, pair) for n, pair in enumerate(pairs) if n not in family.numbers),
        ablation=ablation,
        all_ends=() if len(family.every) == 1 else all_ends,
    )


def each_once(asked: Sequence[T]) -> list[T]:
    """What was asked, in order, without repeats: the same pair twice says nothing about other prompts."""
    different: list[T] = []
    for each in asked:
        if each not in different:
            different.append(each)
    return different


def _notes_on_places(count: int) -> tuple[str, ...]:
    if count == 1:
        return ()
    places = f"key and query stand at {count} different places in these prompts"
    return (f"{places}; other keys were tried in those like the first",)


# Bootstrap


def bootstrap(values: Each, *, seed: int = 0) -> list[Interval]:
    """Mean and 95% percentile interval of each thing, over seeded resamples of the pairs that all share."""
    lows, highs = np.quantile(resampled(values, seed=seed), (0.025, 0.975), axis=0)
    means = values.mean(1)
    pairs = values.shape[1]
    intervals = []
    for mean, low, high in zip(means, lows, highs, strict=True):
        intervals.append(Interval(float(mean), float(low), float(high), pairs))
    return intervals


def resampled(values: Each, *, seed: int = 0) -> Float[np.ndarray, "resample thing"]:
    """The mean of each thing over each bootstrap resample of the pairs."""
    return np.concatenate(
        [weights @ values.T for weights in _resampling_weights(values.shape[1], seed)]
    )


def _resampling_weights(pairs: int, seed: int) -> Iterator[Float[np.ndarray, "resample pair"]]:
    """How much each pair counts in each resample, some resamples at a time."""
    # Python seeds the Mersenne Twister from text, numpy draws many numbers at once: copy the state of one to
    # the other, so that intervals are those of earlier versions.
    _, state, _ = random.Random(f"bootstrap/{seed}").getstate()
    draw = np.random.RandomState()
    draw.set_state(("MT19937", np.array(state[:-1]), state[-1], 0, 0.0))
    step = max(1, _AT_ONCE // pairs)
    for start in range(0, RESAMPLES, step):
        count = min(step, RESAMPLES - start)
        # (resample, pair)
        chosen = (draw.random_sample((count, pairs)) * pairs).astype(np.int64)
        times = np.zeros((count, pairs))  # how often each pair was drawn
        np.add.at(times, (np.arange(count)[:, None], chosen), 1)
        yield times / pairs
