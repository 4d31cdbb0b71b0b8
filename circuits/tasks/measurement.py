"""What `rank` asks of a task's pairs, whichever units are ranked.

`tasks.attention` measures heads and attention edges, `tasks.wires` component edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float

from circuits.components import ROUNDING
from circuits.results import Progress
from circuits.tasks import curve
from circuits.tasks.ranking import Protocol, Shape, Unit
from circuits.tasks.task import Item

Effects = Float[np.ndarray, "unit pair"]


@dataclass(frozen=True, kw_only=True)
class Measurement(ABC):
    """What `rank` asks of a task's pairs, whichever units are ranked."""

    units: tuple[Unit, ...]
    pairs: int
    protocol: Protocol
    progress: Progress
    random_step: float = 1.6  # each size of the control is so many times the one before
    shape: Shape | None = None  # of the model, where component edges are ranked

    @property
    def curve_sizes(self) -> Sequence[int]:
        """Sizes that the keep curve must have."""
        return ()

    @abstractmethod
    def single_effects(self) -> Effects:
        """The effect of every unit alone on every pair."""

    @abstractmethod
    def explained(
        self, order: Sequence[int], sizes: Sequence[int]
    ) -> Float[np.ndarray, "size pair"]:
        """The explained effect of keeping the first units of an order, for each size, on every pair."""

    def order(self, effects: Effects) -> list[int]:
        """The numbers of the units, the largest mean effect first.

        A measured mean below ROUNDING is a rounding error of the forward pass and counts as 0. Of units with
        equal means the lower number leads, so heads that do nothing stand layer by layer. Edges that change
        nothing on any pair come after the others with a mean of 0.
        """
        means = effects.mean(1)
        means[self.exact & (np.abs(means) < ROUNDING)] = 0.0
        return np.lexsort((~self.listed(effects), -means)).tolist()

    def listed(self, effects: Effects) -> Bool[np.ndarray, " unit"]:
        """Which units a ranking lists: all heads, and the edges that change something on some pair."""
        if self.protocol.units == "heads":
            return np.ones(len(effects), dtype=bool)
        return np.asarray(effects.any(1))

    @cached_property
    def exact(self) -> Bool[np.ndarray, " unit"]:
        """Whose effects are measured, not estimated."""
        return np.full(len(self.units), self.protocol.order == "exact")

    def areas(self, sizes: Sequence[int], values: curve.Values) -> tuple[float, float]:
        """CPR and CMD of the keep curve."""
        return curve.areas(sizes, values.mean(1).tolist())


def groups_that_run_together(
    items: Sequence[Item], *, by_roles: bool = False
) -> list[list[int]]:
    """The numbers of the items in groups of one length and kind of metric, if wanted also of equal roles."""
    groups: dict[object, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        metric = item.pair.metric
        roles = item.roles if by_roles else None
        groups[len(item.pair), metric.kind, metric.positions_read, roles].append(number)
    return list(groups.values())


def to_numpy(values: torch.Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
