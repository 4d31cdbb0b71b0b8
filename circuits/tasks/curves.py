"""Curves over numbers kept: which sizes to measure, where a share is reached, bootstrap bands and areas.

1. Up to 200 units every size is measured. Beyond, small sizes and then a geometric grid; where the curve first reaches a share, the
   bracket is narrowed until neighbouring sizes stand on its two sides, so that the count is exact within that bracket.
2. Bands are percentiles of seeded bootstrap resamples of the pairs.
3. CPR is the area under the curve over the share of units kept, CMD the area between the curve and 1, by the trapezoid rule from none
   to all (the two integrated measures of the MIB benchmark, arXiv 2504.13151).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np
from jaxtyping import Float

RESAMPLES: Final = 1000
EVERY_SIZE: Final = 200  # with at most so many units every size is measured
ROUNDING: Final = 1e-6
_PROBES: Final = 7

Values = Float[np.ndarray, "size pair"]


def sizes_to_measure(total: int, *, small: int = 8, step: float = 1.5) -> list[int]:
    """0…total where there are few units; else 0…small, then each `step` times the one before, and total."""
    if total <= EVERY_SIZE:
        return list(range(total + 1))
    return geometric(total, small=small, step=step)


def geometric(total: int, *, small: int, step: float) -> list[int]:
    sizes = list(range(min(small, total) + 1))
    while sizes[-1] < total:
        sizes.append(min(total, math.ceil(sizes[-1] * step)))
    return sizes


def narrowed(
    measure: Callable[[list[int]], Values], sizes: list[int], values: Values, shares: Sequence[float]
) -> tuple[list[int], Values]:
    """The curve with the sizes added that make the count for each share exact within its bracket."""
    known = dict(zip(sizes, values, strict=True))
    for share in shares:
        while True:
            ordered = sorted(known)
            count = first_at_least(ordered, [float(known[size].mean()) for size in ordered], share)
            below = ordered[bisect_left(ordered, count) - 1] if count else None
            if count is None or below is None or count - below <= 1:
                break
            inner = sorted(
                {below + (count - below) * part // (_PROBES + 1) for part in range(1, _PROBES + 1)}
                - {below, count}
            )
            known |= dict(zip(inner, measure(inner), strict=True))
    ordered = sorted(known)
    return ordered, np.stack([known[size] for size in ordered])


def first_at_least(sizes: Sequence[int], explained: Sequence[float], share: float) -> int | None:
    """The first size whose explained effect reaches the share (up to rounding)."""
    return next(
        (size for size, value in zip(sizes, explained, strict=True) if value >= share - ROUNDING), None
    )


def resampled(values: Float[np.ndarray, "thing pair"], *, seed: int) -> Float[np.ndarray, "resample thing"]:
    """The mean of each thing over each bootstrap resample of the pairs."""
    return _weights(values.shape[1], seed) @ values.T


@cache
def _weights(pairs: int, seed: int) -> Float[np.ndarray, "resample pair"]:
    """How much each pair counts in each resample."""
    draw, weights = random.Random(f"bootstrap/{seed}"), np.zeros((RESAMPLES, pairs))
    for row in weights:
        np.add.at(row, draw.choices(range(pairs), k=pairs), 1 / pairs)
    return weights


def band(values: Float[np.ndarray, "thing pair"], *, seed: int) -> tuple[list[float], list[float]]:
    """The range that holds 95% of the resampled means of each thing."""
    low, high = np.quantile(resampled(values, seed=seed), (0.025, 0.975), axis=0)
    return low.tolist(), high.tolist()


def band_of_first(
    sizes: Sequence[int], each: Sequence[Sequence[float]], share: float, *, seed: int
) -> tuple[int | None, int | None]:
    """The range that holds 95% of the resampled counts; None where it is never reached."""
    reached = resampled(np.asarray(each), seed=seed) >= share - ROUNDING
    counts = np.sort(np.where(reached.any(1), np.asarray(sizes)[reached.argmax(1)], np.iinfo(np.int64).max))
    ends = (int(counts[int(0.025 * RESAMPLES)]), int(counts[int(0.975 * RESAMPLES) - 1]))
    low, high = (end if end <= sizes[-1] else None for end in ends)
    return low, high


def areas(sizes: Sequence[int], explained: Sequence[float]) -> tuple[float, float]:
    """CPR and CMD."""
    kept, values = np.asarray(sizes) / sizes[-1], np.asarray(explained)
    return float(np.trapezoid(values, kept)), float(np.trapezoid(np.abs(1 - values), kept))
