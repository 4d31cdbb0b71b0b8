"""One mapping over a family of prompts: means over pairs, with bootstrap intervals.

1. Pairs of equal length are run together; key and query are the same positions in all of them. A pair that is
   given twice counts once.
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
from circuits.engine.selection import mapping_row
from circuits.errors import PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt, Question, QuestionSpec, to_prompt, to_question
from circuits.prompts.prompt import stands_in
from circuits.results import Pictured, Progress, Saved, require, silent
from circuits.tracing.judge import is_wrong_side, judge
from circuits.tracing.measure import measure_mapping, measured_model
from circuits.tracing.parts import SHARE, FamilyControl, Interval, Mapping, MeasuredModel
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
        self.mapping.check(min(len(pair) for pair in self.pairs))
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
    """Which heads carry the mapping on average over these pairs.

    >>> other = circuits.to_pair(model, TEXT.replace("large", "hot"), swap={"hot": "large"})
    >>> family = circuits.trace_family(model, [pair, other], key=5)
    >>> print(family.total)
    1.000 [0.999, 1.001]
    """
    model = as_model(model)
    if not pairs:
        raise PromptError("a family needs at least one prompt or pair")
    different = _each_once(pairs)
    ends = _common_ends([pair.clean for pair in different], key, query)
    every = prepare(model, different, ablation=ablation, smallest_gap=0.0)
    question = judge(every, ends=ends)
    runs, weak, wrong = worth_a_mean(every)
    mapping = measure_mapping(runs, *ends, share=share, seed=seed, progress=progress)
    mapping = replace(mapping, doubts=doubts_about(mapping, question, named=True))
    rows = [mapping_row(runs.heads, *ends), mapping_row(mapping.carriers(share), *ends)]
    rows += [mapping_row([head], *ends) for head in runs.heads]
    effects = runs.effects(rows).double().cpu().numpy()
    total, joint, *single = bootstrap(effects, seed=seed)
    ranked = sorted(
        zip(runs.heads, single, strict=True), key=lambda item: (-item[1].mean, item[0])
    )
    left_out = [
        (number, pair) for number, pair in enumerate(every.pairs) if pair not in runs.pairs
    ]
    return FamilyTrace(
        model=model.name,
        pairs=runs.pairs,
        mapping=mapping,
        total=total,
        joint=joint,
        heads=tuple(ranked),
        share=share,
        weak=weak,
        wrong=wrong,
        repeated=len(pairs) - len(different),
        question=question,
        notes=notes_on(every, question, ends=ends),
        source=measured_model(runs),
        seed=seed,
        left_out=tuple(left_out),
        ablation=ablation,
    )


def _each_once(pairs: Sequence[Pair | Question]) -> list[Pair | Question]:
    """The pairs in order, without repeats: the same pair twice says nothing about other prompts."""
    different: list[Pair | Question] = []
    for pair in pairs:
        if pair not in different:
            different.append(pair)
    return different


def worth_a_mean(runs: Runs) -> tuple[Runs, int, int]:
    """The runs of those pairs that a mean may hold, and how many are left out: pairs whose gap is too small
    to divide by, and pairs on the wrong side where others are not."""
    clean = runs.values(runs.clean).tolist()
    other = runs.values(runs.counterfactual).tolist()
    kept = [number for number, weak in enumerate(weak_pairs(clean, other)) if not weak]
    if not kept:
        small = f"no pair of these {len(clean)} has a gap worth dividing by"
        raise PromptError(
            f"{small}; swap words that matter more, or name another answer and foil"
        )
    right = []
    for number in kept:
        has_foil = runs.pairs[number].metric.foil is not None
        if not is_wrong_side(has_foil, clean[number], other[number]):
            right.append(number)
    chosen = right or kept
    return runs.only(chosen), len(clean) - len(kept), len(kept) - len(chosen)


def trace_texts(
    model: Model,
    texts: Sequence[str],
    counterfactuals: Sequence[str | None],
    spec: QuestionSpec,
    *,
    key: int | str,
    query: int | str = -1,
    **options: Any,
) -> FamilyTrace:
    """Trace a family of texts, each with its own counterfactual or with those words of the swap that it
    has."""
    if isinstance(counterfactuals, str) or len(counterfactuals) != len(texts):
        raise PromptError(
            f"{len(texts)} texts need as many counterfactuals, in a list; or a swap for all of them"
        )
    ends = _common_ends([to_prompt(model, text) for text in texts], key, query)
    swap = spec.swap or {}
    answers = _one_each(spec.answer, len(texts), "answer")
    foils = _one_each(spec.foil, len(texts), "foil")
    questions: list[Question] = []
    for text, other, answer, foil in zip(texts, counterfactuals, answers, foils, strict=True):
        own_swap = {old: new for old, new in swap.items() if stands_in(old, text)}
        if swap and not own_swap:
            raise PromptError(
                f"no word of the swap stands in {text!r}; it has {', '.join(map(str, swap))}"
            )
        own = replace(
            spec,
            counterfactual=other,
            swap=own_swap,
            answer=answer,
            foil=foil,
            noise_at=ends[:1],
        )
        questions.append(to_question(model, text, own))
    return trace_family(model, questions, key=ends[0], query=ends[1], **options)


def _one_each(given: Any, count: int, name: str) -> list[Any]:
    """The answer (or foil) of each of `count` prompts: one word for all of them, or a list with one each, in
    which a list of words means that any of them counts."""
    if given is None or isinstance(given, str):
        return [given] * count
    listed = list(given)
    if len(listed) != count:
        entries = f"{name}=[…] has {len(listed)} entries for {count} prompts"
        raise PromptError(f"{entries}; give one for each prompt, or one word for all of them")
    return listed


def _common_ends(
    prompts: Sequence[Prompt], key: int | str, query: int | str
) -> tuple[int, int]:
    """Key and query, which must stand at the same positions in all prompts."""
    ends = {prompt.ends(key, query) for prompt in prompts}
    if len(ends) > 1:
        differ = f"key and query stand at different positions in these prompts: {sorted(ends)}"
        raise PromptError(f"{differ}; trace each group by itself")
    return ends.pop()


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
