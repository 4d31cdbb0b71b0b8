"""The keep curve: how much of a task the first k units in an order explain, for k = 0, 1, 2, …

1. Up to 200 units, every size is measured. With more units, small sizes and a geometric grid are measured.
   Then sizes are added between the two neighbours on the grid where the curve first reaches a share, until
   the count for that share is exact.
2. Bands are percentiles of seeded bootstrap resamples of the pairs.
3. CPR is the area under the curve over the share of units kept, CMD the area between the curve and 1, by the
   trapezoid rule. They are the two integrated measures of the MIB benchmark (arXiv 2504.13151).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

from circuits.components import ROUNDING
from circuits.tracing.family import bootstrap

EVERY_SIZE: Final = 200  # up to so many units every size is measured
# Of all component edges.
MIB_SHARES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_PROBES: Final = 7  # sizes measured at once between two neighbours on the grid

Values = Float[np.ndarray, "size pair"]


@dataclass(frozen=True, slots=True)
class Curve:
    """Explained effect (mean over pairs) for each number of units kept, with its bootstrap band."""

    sizes: tuple[int, ...]
    explained: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], values: Values, *, seed: int) -> Curve:
        """The curve of the explained effects of each size on each pair."""
        bands = bootstrap(values, seed=seed)
        explained = tuple(band.mean for band in bands)
        low = tuple(band.low for band in bands)
        high = tuple(band.high for band in bands)
        return cls(tuple(sizes), explained, low, high)

    def fits(self, units: int) -> bool:
        """Whether it has one value for each size, and its sizes rise from 0 to at most `units`."""
        lengths = {len(self.sizes), len(self.explained), len(self.low), len(self.high)}
        if len(lengths) != 1 or self.sizes[:1] != (0,):
            return False
        is_rising = list(self.sizes) == sorted(set(self.sizes))
        return is_rising and self.sizes[-1] <= units


def first_at_least(
    sizes: Sequence[int], explained: Sequence[float], share: float
) -> int | None:
    """The first size whose explained effect reaches the share (up to rounding); None if none does."""
    for size, value in zip(sizes, explained, strict=True):
        if value >= share - ROUNDING:
            return size
    return None


def geometric(total: int, *, small: int, step: float) -> list[int]:
    """0…small, then each size `step` times the one before, and total."""
    sizes = list(range(min(small, total) + 1))
    while sizes[-1] < total:
        sizes.append(min(total, math.ceil(sizes[-1] * step)))
    return sizes


def measure_curve(
    measure: Callable[[list[int]], Values],
    total: int,
    *,
    shares: Sequence[float],
    also: Sequence[int] = (),
) -> tuple[list[int], Values]:
    """The sizes of a curve and what `measure` gives for each of them. The sizes include `also`, and those
    that make the counts for `shares` exact."""
    grid = range(total + 1) if total <= EVERY_SIZE else geometric(total, small=8, step=1.5)
    sizes = sorted({*grid, *also})
    values = dict(zip(sizes, measure(sizes), strict=True))
    for share in shares:
        between = _sizes_between(values, share)
        while between:
            values |= zip(between, measure(between), strict=True)
            between = _sizes_between(values, share)
    sizes = sorted(values)
    return sizes, np.stack([values[size] for size in sizes])


def _sizes_between(values: dict[int, np.ndarray], share: float) -> list[int]:
    """Sizes to measure between the first one that reaches the share and its neighbour below; none where
    those two differ by 1, or where no size reaches the share."""
    sizes = sorted(values)
    means = [float(values[size].mean()) for size in sizes]
    reached = first_at_least(sizes, means, share)
    if not reached:
        return []
    below = sizes[sizes.index(reached) - 1]
    parts = range(1, _PROBES + 1)
    probes = {below + (reached - below) * part // (_PROBES + 1) for part in parts}
    return sorted(probes - {below})


def areas(sizes: Sequence[float], explained: Sequence[float]) -> tuple[float, float]:
    """CPR and CMD."""
    kept = np.asarray(sizes) / sizes[-1]
    values = np.asarray(explained)
    cpr = np.trapezoid(values, kept)
    cmd = np.trapezoid(np.abs(1 - values), kept)
    return float(cpr), float(cmd)


def mib_sizes(total: int) -> list[int]:
    """How many edges MIB keeps at each of its shares."""
    return [int(share * total) for share in MIB_SHARES]
