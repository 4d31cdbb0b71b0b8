"""One mapping over a family of prompts: means over pairs, with bootstrap intervals.

1. Pairs of equal length with key and query at the same positions are run together; prompts of other lengths
   are further batches (`placed_runs`). A pair that is given twice counts once.
2. Each pair is judged as `trace` judges it (`judge`). Pairs whose gap is too small to divide by are left out,
   and so are pairs on the wrong side (the clean run prefers the foil, or the counterfactual the answer) where
   there are others.
3. Effects are measured on every pair that is left; carriers are chosen by greedy selection on the mean.
4. Intervals are percentiles of seeded bootstrap resamples of the pairs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from jaxtyping import Float

from circuits.components import Head
from circuits.engine import SWAP, Ablation, Runs, prepare
from circuits.engine.selection import Mapped, effects_over
from circuits.errors import PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Question
from circuits.results import Pictured, Progress, Saved, require, silent
from circuits.tracing.judge import Ends, is_wrong_side, judge_each, together
from circuits.tracing.measure import measure_mapping_over, measured_model
from circuits.tracing.parts import (
    SHARE,
    FamilyControl,
    Interval,
    Mapping,
    MeasuredModel,
    QuestionControl,
)
from circuits.tracing.trust import doubts_about, notes_on, weak_pairs

RESAMPLES: Final = 1000
Each = Float[np.ndarray, "thing pair"]  # one number for each thing on each pair
_AT_ONCE: Final = 2**22  # numbers of resampling weights in memory at a time


@dataclass(frozen=True, slots=True, repr=False)
class FamilyTrace(Saved, Pictured):
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
    weak: int = 0  # pairs that were left out: their gap is too small beside their own values or the others'
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
    all_ends: tuple[tuple[int, int], ...] = ()

    @property
    def all_pairs(self) -> tuple[Pair, ...]:
        """The pairs that were asked about, in their order, with those that were left out."""
        every = list(self.pairs)
        for number, pair in sorted(self.left_out, key=lambda each: each[0]):
            every.insert(number, pair)
        return tuple(every)

    def carriers(self, share: float | None = None) -> tuple[Head, ...]:
        """The heads that carry `share` of the mean total."""
        return self.mapping.carriers(self.share if share is None else share)

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
    key: int | str,
    query: int | str = -1,
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
    """The same of pairs that each come with the positions of their key and query."""
    if not asked:
        raise PromptError("a family needs at least one prompt or pair")
    different = _each_once(asked)
    every = placed_runs(model, different, ablation=ablation)
    question = judge_placed(every)
    chosen, weak, wrong = worth_a_mean([part.runs for part in every])
    parts = [
        replace(part, runs=part.runs.only(own)) for part, own in zip(every, chosen, strict=True)
    ]
    numbers: list[int] = []  # of the pairs that are kept, among all
    for part, own in zip(every, chosen, strict=True):
        numbers += [part.numbers[number] for number in own]
    mapped = [part.mapped for part in parts if part.runs.pairs]
    mapping = measure_mapping_over(mapped, share=share, seed=seed, progress=progress)
    mapping = replace(mapping, doubts=doubts_about(mapping, question, named=True))
    heads = mapped[0].runs.heads
    sets = [heads, mapping.carriers(share), *([head] for head in heads)]
    effects = effects_over(mapped, sets).double().cpu().numpy()
    order = np.argsort(numbers)
    total, joint, *single = bootstrap(effects[:, order], seed=seed)
    ranked = sorted(zip(heads, single, strict=True), key=lambda item: (-item[1].mean, item[0]))
    settled = _in_order(every)
    ends = tuple(ends for _, ends in different)
    return FamilyTrace(
        model=model.name,
        pairs=tuple(settled[number] for number in sorted(numbers)),
        mapping=mapping,
        total=total,
        joint=joint,
        heads=tuple(ranked),
        share=share,
        weak=weak,
        wrong=wrong,
        repeated=len(asked) - len(different),
        question=question,
        notes=(
            *notes_on(every[0].runs, question, ends=every[0].ends),
            *_notes_on_lengths(every),
        ),
        source=measured_model(mapped[0].runs),
        seed=seed,
        left_out=tuple((n, pair) for n, pair in enumerate(settled) if n not in numbers),
        ablation=ablation,
        all_ends=() if len(every) == 1 else ends,
    )


def _each_once(
    asked: Sequence[tuple[Pair | Question, Ends]],
) -> list[tuple[Pair | Question, Ends]]:
    """The pairs in order, without repeats: the same pair twice says nothing about other prompts."""
    different: list[tuple[Pair | Question, Ends]] = []
    for each in asked:
        if each not in different:
            different.append(each)
    return different


# Pairs of several lengths


@dataclass(frozen=True)
class Placed:
    """Pairs of one length whose key and query stand at the same positions, run together."""

    runs: Runs
    ends: Ends
    numbers: list[int]  # of the pairs among all

    @property
    def mapped(self) -> Mapped:
        return Mapped(self.runs, *self.ends)


def placed_runs(
    model: Model, asked: Sequence[tuple[Pair | Question, Ends]], *, ablation: Ablation = SWAP
) -> list[Placed]:
    """Run all pairs, those of one length and with the same ends together, in the order in which they come."""
    groups: dict[object, list[int]] = {}
    for number, (question, ends) in enumerate(asked):
        groups.setdefault((len(question.clean), ends), []).append(number)
    prompts = [question.clean for question, _ in asked]
    averaged = ablation.over(prompts) if len(groups) > 1 else ablation
    placed = []
    for numbers in groups.values():
        questions = [asked[number][0] for number in numbers]
        runs = prepare(model, questions, ablation=averaged, smallest_gap=0.0)
        placed.append(Placed(runs, asked[numbers[0]][1], numbers))
    return placed


def judge_placed(placed: Sequence[Placed]) -> FamilyControl:
    """The verdict on the pairs of all lengths together."""
    judged: dict[int, QuestionControl] = {}
    for part in placed:
        judged |= zip(part.numbers, judge_each(part.runs, ends=part.ends), strict=True)
    return together([judged[number] for number in sorted(judged)])


def _in_order(placed: Sequence[Placed]) -> list[Pair]:
    """The pairs of all parts, with their answers, in the user's order."""
    pairs: dict[int, Pair] = {}
    for part in placed:
        pairs |= zip(part.numbers, part.runs.pairs, strict=True)
    return [pairs[number] for number in sorted(pairs)]


def _notes_on_lengths(placed: Sequence[Placed]) -> tuple[str, ...]:
    if len(placed) == 1:
        return ()
    places = f"key and query stand at {len(placed)} different places in these prompts"
    return (f"{places}; other keys were tried in those like the first",)


def worth_a_mean(batches: Sequence[Runs]) -> tuple[list[list[int]], int, int]:
    """Of each batch the numbers of those pairs that a mean may hold, and how many are left out: pairs whose
    gap is too small to divide by, and pairs on the wrong side where others are not."""
    clean: list[float] = []
    other: list[float] = []
    pairs: list[tuple[int, int, Pair]] = []  # batch, number there, pair
    for batch, runs in enumerate(batches):
        clean += runs.values(runs.clean).tolist()
        other += runs.values(runs.counterfactual).tolist()
        pairs += [(batch, number, pair) for number, pair in enumerate(runs.pairs)]
    kept = [number for number, weak in enumerate(weak_pairs(clean, other)) if not weak]
    if not kept:
        small = f"no pair of these {len(clean)} has a gap worth dividing by"
        raise PromptError(
            f"{small}; swap words that matter more, or name another answer and foil"
        )
    right = []
    for number in kept:
        has_foil = pairs[number][2].metric.foil is not None
        if not is_wrong_side(has_foil, clean[number], other[number]):
            right.append(number)
    chosen: list[list[int]] = [[] for _ in batches]
    for number in right or kept:
        batch, own, _ = pairs[number]
        chosen[batch].append(own)
    return chosen, len(clean) - len(kept), len(kept) - len(right or kept)


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
