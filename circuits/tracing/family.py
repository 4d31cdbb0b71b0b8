"""One mapping over a family of prompts: means over pairs, with bootstrap intervals.

1. Pairs of equal length are run together; key and query are the same positions in all of them.
2. Effects are measured on every pair; carriers are chosen by greedy selection on the mean.
3. Intervals are percentiles of seeded bootstrap resamples of the pairs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from jaxtyping import Float

from circuits.components import Head
from circuits.engine import Runs, prepare
from circuits.engine.selection import mapping_row
from circuits.errors import PromptError, escaped
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt, Question, QuestionSpec, to_prompt, to_question
from circuits.prompts.prompt import stands_in
from circuits.results import Pictured, Progress, Saved, require, silent
from circuits.tracing.measure import measure_mapping, measured_model
from circuits.tracing.parts import SHARE, Interval, Mapping, MeasuredModel
from circuits.tracing.trust import doubts_about, weak_pairs

RESAMPLES: Final = 1000
Each = Float[np.ndarray, "thing pair"]  # one number for each thing on each pair
_AT_ONCE: Final = 2**22  # numbers of resampling weights in memory at a time


@dataclass(frozen=True, slots=True)
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
    # What it takes to measure it again; None in files of 0.2.
    source: MeasuredModel | None = None
    seed: int | None = None

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
        carriers = self.carriers()
        names = " ".join(map(str, carriers)) or "none"
        ends = f"{self.mapping.key}→{self.mapping.query}"
        weak = f" ({self.weak} more left out as weak)" if self.weak else ""
        modulated = f"Modulated at {self.mapping.modulation(self.share):.0%} by {names}"
        if self.mapping.doubts:
            modulated = (
                f"Modulation withheld: {escaped(self.mapping.doubts[0])}; it would be {names}"
            )
        lines = [
            f"{escaped(self.model)}, {len(self.pairs)} pairs{weak}, {ends}: total {self.total}",
            f"{modulated}: joint {self.joint}",
        ]
        lines += [
            f"  {head!s:8}{interval}" for head, interval in self.heads[: max(5, len(carriers))]
        ]
        return "\n".join(lines)


def trace_family(
    model: Any,
    pairs: Sequence[Pair] | Sequence[Question],
    *,
    key: int | str,
    query: int | str = -1,
    share: float = SHARE,
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
    ends = _common_ends([pair.clean for pair in pairs], key, query)
    runs = prepare(model, pairs, smallest_gap=0.0)
    runs = _without_weak_pairs(runs)
    mapping = measure_mapping(runs, *ends, share=share, seed=seed, progress=progress)
    mapping = replace(mapping, doubts=doubts_about(mapping, None, named=True))
    rows = [mapping_row(runs.heads, *ends), mapping_row(mapping.carriers(share), *ends)]
    rows += [mapping_row([head], *ends) for head in runs.heads]
    effects = runs.effects(rows).double().cpu().numpy()
    total, joint, *single = bootstrap(effects, seed=seed)
    ranked = sorted(
        zip(runs.heads, single, strict=True), key=lambda item: (-item[1].mean, item[0])
    )
    return FamilyTrace(
        model=model.name,
        pairs=runs.pairs,
        mapping=mapping,
        total=total,
        joint=joint,
        heads=tuple(ranked),
        share=share,
        weak=len(pairs) - len(runs.pairs),
        source=measured_model(runs),
        seed=seed,
    )


def _without_weak_pairs(runs: Runs) -> Runs:
    """The runs of those pairs whose gap is large enough to divide by."""
    clean = runs.values(runs.clean).tolist()
    other = runs.values(runs.counterfactual).tolist()
    kept = [number for number, weak in enumerate(weak_pairs(clean, other)) if not weak]
    if not kept or any(clean[number] == other[number] for number in kept):
        small = f"no pair of these {len(clean)} has a gap worth dividing by"
        raise PromptError(
            f"{small}; swap words that matter more, or name another answer and foil"
        )
    return runs.only(kept)


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
    questions: list[Question] = []
    for text, other in zip(texts, counterfactuals, strict=True):
        own_swap = {old: new for old, new in swap.items() if stands_in(old, text)}
        if swap and not own_swap:
            raise PromptError(
                f"no word of the swap stands in {text!r}; it has {', '.join(map(str, swap))}"
            )
        own = replace(spec, counterfactual=other, swap=own_swap, noise_at=ends[:1])
        questions.append(to_question(model, text, own))
    return trace_family(model, questions, key=ends[0], query=ends[1], **options)


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
