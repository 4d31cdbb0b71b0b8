"""One mapping over a family of prompts: means over pairs, with bootstrap intervals.

1. Pairs of equal length are run together; key and query are the same positions in all of them.
2. Effects are measured on every pair; carriers are chosen by greedy selection on the mean.
3. Intervals are percentiles of seeded bootstrap resamples of the pairs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from circuits.edges import Head
from circuits.engine import prepare
from circuits.errors import PromptError
from circuits.mapping import Progress, all_heads, mapping_row, measure_mapping, silent
from circuits.models import as_model
from circuits.prompts import Pair
from circuits.records import SHARE, Mapping

RESAMPLES: Final = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over pairs and the range that holds 95% of its bootstrap resamples."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class FamilyTrace:
    """A mapping averaged over pairs. `mapping` holds the means; the intervals stand beside it."""

    model: str
    pairs: tuple[Pair, ...]
    mapping: Mapping
    total: Interval
    carried: Interval  # joint effect of the carriers at `share`
    heads: tuple[tuple[Head, Interval], ...]  # strongest first
    share: float

    def carriers(self, share: float | None = None) -> tuple[Head, ...]:
        """The heads that carry `share` of the mean total."""
        return self.mapping.carriers(self.share if share is None else share)

    def __str__(self) -> str:
        carriers = " ".join(map(str, self.carriers())) or "none"
        lines = [f"{self.model}, {len(self.pairs)} pairs, {self.mapping.key}→{self.mapping.query}: total {self.total}"]
        lines.append(f"Modulated at {self.mapping.modulation(self.share):.0%} by {carriers}: joint {self.carried}")
        lines += [f"  {head!s:8}{interval}" for head, interval in self.heads[: max(5, len(self.carriers()))]]
        return "\n".join(lines)


def trace_family(
    model: Any,
    pairs: Sequence[Pair],
    *,
    key: int | str,
    query: int | str = -1,
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
) -> FamilyTrace:
    """Which heads carry the mapping on average over these pairs."""
    known = as_model(model)
    if not pairs:
        raise PromptError("a family needs at least one pair")
    places = {(pair.clean.position(key), pair.clean.position(query)) for pair in pairs}
    if len(places) > 1:
        raise PromptError(f"key and query stand at different positions in these pairs: {sorted(places)}; trace each group by itself")
    at_key, at_query = places.pop()
    runs = prepare(known, pairs)
    mapping = measure_mapping(runs, at_key, at_query, share=share, seed=seed, progress=progress)
    heads = all_heads(runs)
    rows = [mapping_row(heads, at_key, at_query), mapping_row(mapping.carriers(share) or heads[:0], at_key, at_query)]
    rows += [mapping_row([head], at_key, at_query) for head in heads]
    intervals = [bootstrap(effects, seed=seed) for effects in runs.effects(rows).tolist()]
    ranked = sorted(zip(heads, intervals[2:], strict=True), key=lambda item: (-item[1].mean, item[0]))
    return FamilyTrace(known.name, tuple(pairs), mapping, intervals[0], intervals[1], tuple(ranked), share)


def bootstrap(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Mean and 95% percentile interval over seeded resamples."""
    draw, count = random.Random(f"bootstrap/{seed}"), len(values)
    means = sorted(sum(draw.choices(values, k=count)) / count for _ in range(RESAMPLES))
    return Interval(sum(values) / count, means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1])
