"""Do a dense model and its twin compute the same way? The same task, asked of both.

1. The heads and attention edges that explain 90% of it in each: how many both have, beside how many two
   random choices of as many would share.
2. The twin's circuit in the dense model: only what the twin takes is kept there, all others are swapped
   in one run. Beside it stand as many of the dense model's own, and as many random ones.
3. One mapping: who wrote what its first carrier reads, on each side, by `why` in both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

import numpy as np

from circuits.components import SIDES, Head, Side
from circuits.models.model import Model
from circuits.tasks.rank import rank, to_measurement
from circuits.tasks.ranking import COUNTED, EXPLAINED, Protocol, Ranking, Unit, Units
from circuits.tasks.task import Task
from circuits.tracing.records import SideWriters
from circuits.tracing.trace import trace
from circuits.tracing.why import why

DRAWS: Final = 10  # random circuits
WRITERS: Final = 5  # of a side, the strongest
NOTICEABLE: Final = 0.05  # a writer with less effect is not among them


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many two sets have in common, and what they are drawn from."""

    both: int
    sizes: tuple[int, int]
    of: int

    @classmethod
    def between(cls, first: Collection[Any], second: Collection[Any], *, of: int) -> Overlap:
        return cls(len({*first} & {*second}), (len(first), len(second)), of)

    @property
    def expected(self) -> float:
        """How many two random sets of these sizes share, on average."""
        return self.sizes[0] * self.sizes[1] / self.of

    @property
    def chance(self) -> float:
        """How likely two random sets of these sizes share at least as many."""
        first, second = self.sizes
        ways = (
            math.comb(first, both) * math.comb(self.of - first, second - both)
            for both in range(self.both, min(first, second) + 1)
        )
        return sum(ways) / math.comb(self.of, second)

    def __str__(self) -> str:
        first, second = self.sizes
        return f"{self.both} of {first} and {second} (random: {self.expected:.2g}, p {self.chance:.1g})"


@dataclass(frozen=True, slots=True)
class Transplant:
    """What is explained in the dense model by the twin's units, by as many of its own, and by random ones."""

    units: Units
    shared: Overlap
    twins: float
    own: float
    random: float

    def __str__(self) -> str:
        kept = f"the twin's {self.twins:.2f}, its own {self.own:.2f}, random {self.random:.2f}"
        return f"{COUNTED[self.units]} for 90%: in both {self.shared}; kept in the dense model: {kept}"


@dataclass(frozen=True, slots=True)
class SameWriters:
    """The strongest writers that a head has on one side, in both models."""

    head: Head
    side: Side
    effects: tuple[float, float]  # of the whole side
    first: tuple[str, str]  # the strongest of all, or none
    shared: Overlap

    def __str__(self) -> str:
        effects, first = " and ".join(f"{effect:.2f}" for effect in self.effects), " and ".join(self.first)
        side = f"{self.head}, {self.side} side: {effects}"
        return f"{side}; first writers {first}; leading ones in both {self.shared}"


def transplant(models: tuple[Model, Model], tasks: tuple[Task, Task], units: Units) -> Transplant:
    """Keep in the dense model what the twin takes for 90% of the task."""
    sides = zip(models, tasks, strict=True)
    dense, sparse = (rank(model, task, units=units, count=len(task)) for model, task in sides)
    kept = needed(sparse)
    shared = Overlap.between(needed(dense), kept, of=dense.units)
    own = [each.unit for each in dense.ranked[: len(kept)]]
    measurement = to_measurement(models[0], tasks[0].items, Protocol(units))
    draws = [random.Random(f"transplant/{number}") for number in range(DRAWS)]
    chosen = [kept, own, *(draw.sample(measurement.units, len(kept)) for draw in draws)]
    twins, best, *chance = (explained(measurement, each) for each in chosen)
    return Transplant(units, shared, twins, best, mean(chance))


def needed(ranking: Ranking) -> list[Unit]:
    """The units that explain 90%, without those that change nothing."""
    size = ranking.count(EXPLAINED)[0] or 0
    return [each.unit for each in ranking.ranked[:size] if each.effect]


def explained(measurement: Any, kept: Sequence[Unit]) -> float:
    """The explained effect of keeping these units alone, on average over the pairs."""
    number_of = {unit: number for number, unit in enumerate(measurement.units)}
    first = [number_of[unit] for unit in kept]
    others = np.setdiff1d(np.arange(len(measurement.units)), first).tolist()
    return float(measurement.explained([*first, *others], [len(first)]).mean())


def same_writers(models: tuple[Model, Model], text: str, **options: Any) -> list[SameWriters]:
    """Who wrote what the twin's first carrier of a mapping reads, on the sides that carry anything."""
    circuits = [trace(model, text, **options) for model in models]
    head = circuits[1].carriers()[0]
    answers = [why(each, head, model=model) for each, model in zip(circuits, models, strict=True)]
    sides = [_on_side(head, side, [answer.side(side) for answer in answers]) for side in SIDES]
    return [side for side in sides if max(map(abs, side.effects)) >= NOTICEABLE]


def _on_side(head: Head, side: Side, sides: Sequence[SideWriters]) -> SameWriters:
    strong = [[each for each in one.writers[:WRITERS] if abs(each.effect) >= NOTICEABLE] for one in sides]
    names = [[str(each) for each in leading] for leading in strong]
    first = tuple(leading[0] if leading else "none" for leading in names)
    shared = Overlap.between(*names, of=max(len(one.writers) for one in sides))
    return SameWriters(head, side, (sides[0].effect, sides[1].effect), (first[0], first[1]), shared)
