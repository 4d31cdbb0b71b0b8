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
from circuits.engine.runs import every_head
from circuits.engine.search import mapping_row, mapping_rows
from circuits.errors import PromptError, escaped
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt, Question, Wording, to_prompt, to_question
from circuits.prompts.prompt import stands_in
from circuits.results import Faults, Pictured, Progress, Saved, silent
from circuits.tracing import SHARE, Interval, Mapping
from circuits.tracing.measure import measure_mapping
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
    CALLED: ClassVar = "a trace of a family"

    model: str
    pairs: tuple[Pair, ...]
    mapping: Mapping
    total: Interval
    joint: Interval  # effect of the carriers at `share`, all together
    heads: tuple[tuple[Head, Interval], ...]  # strongest first
    share: float
    weak: int = 0  # pairs that were left out: their gap is too small beside their own values or the others'

    def carriers(self, share: float | None = None) -> tuple[Head, ...]:
        """The heads that carry `share` of the mean total."""
        return self.mapping.carriers(self.share if share is None else share)

    def faults(self) -> Faults:
        yield not self.pairs, "it has no pairs"
        yield not 0 < self.share <= 1, f"its share is {self.share}, not above 0 and at most 1"
        yield from self.mapping.faults(min(map(len, self.pairs)))
        heads = [head for head, _ in self.heads]
        measured = {effect.head for effect in self.mapping.heads}
        yield len(heads) != len(measured) or {*heads} != measured, "its intervals are not those of its heads"

    def __str__(self) -> str:
        carriers = " ".join(map(str, self.carriers())) or "none"
        ends, modulation = f"{self.mapping.key}→{self.mapping.query}", self.mapping.modulation(self.share)
        weak = f" ({self.weak} more left out as weak)" if self.weak else ""
        lines = [f"{escaped(self.model)}, {len(self.pairs)} pairs{weak}, {ends}: total {self.total}"]
        said = f"Modulated at {modulation:.0%} by {carriers}"
        if self.mapping.doubts:
            said = f"Modulation withheld: {escaped(self.mapping.doubts[0])}; it would be {carriers}"
        lines.append(f"{said}: joint {self.joint}")
        lines += [f"  {head!s:8}{interval}" for head, interval in self.heads[: max(5, len(self.carriers()))]]
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
    measured = as_model(model)
    if not pairs:
        raise PromptError("a family needs at least one prompt or pair")
    ends = _common_ends([pair.clean for pair in pairs], key, query)
    runs = prepare(measured, pairs, rows=mapping_rows(every_head(measured), *ends), smallest_gap=0.0)
    runs = _without_weak(runs)
    mapping = measure_mapping(runs, *ends, share=share, seed=seed, progress=progress)
    mapping = replace(mapping, doubts=doubts_about(mapping, None, named=True))
    heads = runs.heads
    rows = [mapping_row(heads, *ends), mapping_row(mapping.carriers(share), *ends)]
    rows += [mapping_row([head], *ends) for head in heads]
    total, joint, *single = bootstrap(runs.effects(rows).double().cpu().numpy(), seed=seed)
    ranked = sorted(zip(heads, single, strict=True), key=lambda item: (-item[1].mean, item[0]))
    weak = len(pairs) - len(runs.pairs)
    return FamilyTrace(measured.name, runs.pairs, mapping, total, joint, tuple(ranked), share, weak)


def _without_weak(runs: Runs) -> Runs:
    """The pairs with a gap worth dividing by."""
    clean, other = (runs.values(side).tolist() for side in (runs.clean, runs.counterfactual))
    kept = [number for number, weak in enumerate(weak_pairs(clean, other)) if not weak]
    if not kept or not all(clean[number] != other[number] for number in kept):
        small = f"no pair of these {len(clean)} has a gap worth dividing by"
        raise PromptError(f"{small}; swap words that matter more, or name another answer and foil")
    return runs.only(kept)


def trace_texts(
    model: Model,
    texts: Sequence[str],
    counterfactuals: Sequence[str | None],
    wording: Wording,
    *,
    key: int | str,
    query: int | str = -1,
    **how: Any,
) -> FamilyTrace:
    """The same for texts, each with its own counterfactual or with those words of the swap that it has."""
    if isinstance(counterfactuals, str) or len(counterfactuals) != len(texts):
        raise PromptError(
            f"{len(texts)} texts need as many counterfactuals, in a list; or a swap for all of them"
        )
    ends = _common_ends([to_prompt(model, text) for text in texts], key, query)
    questions, swap = [], wording.swap or {}
    for text, other in zip(texts, counterfactuals, strict=True):
        own = {old: new for old, new in swap.items() if stands_in(old, text)}
        if swap and not own:
            raise PromptError(f"no word of the swap stands in {text!r}; it has {', '.join(map(str, swap))}")
        worded = replace(wording, counterfactual=other, swap=own, noise_at=ends[:1])
        questions.append(to_question(model, text, worded))
    return trace_family(model, questions, key=ends[0], query=ends[1], **how)


def _common_ends(prompts: Sequence[Prompt], key: int | str, query: int | str) -> tuple[int, int]:
    """Key and query, which must stand at the same positions in all prompts."""
    ends = {prompt.ends(key, query) for prompt in prompts}
    if len(ends) > 1:
        differ = f"key and query stand at different positions in these prompts: {sorted(ends)}"
        raise PromptError(f"{differ}; trace each group by itself")
    return ends.pop()


def bootstrap(values: Each, *, seed: int = 0) -> list[Interval]:
    """Mean and 95% percentile interval of each thing, over seeded resamples of the pairs that all share."""
    ends = np.quantile(resampled(values, seed=seed), (0.025, 0.975), axis=0)
    count = values.shape[1]
    each = zip(values.mean(1), *ends, strict=True)
    return [Interval(float(mean), float(low), float(high), count) for mean, low, high in each]


def resampled(values: Each, *, seed: int = 0) -> Float[np.ndarray, "resample thing"]:
    """The mean of each thing over each bootstrap resample of the pairs."""
    return np.concatenate([weights @ values.T for weights in _weights(values.shape[1], seed)])


def _weights(pairs: int, seed: int) -> Iterator[Float[np.ndarray, "resample pair"]]:
    """How much each pair counts in each resample, some resamples at a time."""
    _, state, _ = random.Random(f"bootstrap/{seed}").getstate()
    draw = np.random.RandomState()
    draw.set_state(("MT19937", np.array(state[:-1]), state[-1], 0, 0.0))
    step = max(1, _AT_ONCE // pairs)
    for start in range(0, RESAMPLES, step):
        chosen = (draw.random_sample((min(step, RESAMPLES - start), pairs)) * pairs).astype(np.int64)
        rows = np.arange(len(chosen))[:, None] * pairs
        yield np.bincount((rows + chosen).ravel(), minlength=chosen.size).reshape(chosen.shape) / pairs
