"""Do a dense model and its twin compute a task the same way? What `same_circuit.py` measures and draws.

1. The heads and attention edges that explain 90% of the task in each: how many both have, beside how many two
   random choices of as many would share.
2. The twin's circuit in the dense model: there only what the twin takes is kept, and all other units are
   swapped in one run. Beside it stand as many of the dense model's own units, and as many random ones.
3. One mapping: who wrote what its first carrier reads, on each side, by `why` in both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from circuits.components import SIDES, Head, Side
from circuits.models.model import Model
from circuits.show.canvas import BLUE, COLUMN, LINE, MUTED, WIDTH, looks, shade
from circuits.show.plots import framed
from circuits.tasks.attention import AttentionMeasurement, measure_attention
from circuits.tasks.rank import rank
from circuits.tasks.ranking import COUNTED, EXPLAINED, Ranking, Unit, Units
from circuits.tasks.task import Task
from circuits.tracing.trace import trace
from circuits.tracing.why import why
from circuits.tracing.why_record import SideWriters

DRAWS = 10  # random circuits
WRITERS = 5  # of a side, the strongest
NOTICEABLE = 0.05  # a writer with less effect is not among them
BAR = 0.27  # the width of a bar; three stand together


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many two sets have in common, and how many things both are drawn from."""

    both: int
    sizes: tuple[int, int]
    of: int

    @classmethod
    def between(cls, first: Collection[Any], second: Collection[Any], *, of: int) -> Overlap:
        shared = set(first) & set(second)
        return cls(len(shared), (len(first), len(second)), of)

    @property
    def expected(self) -> float:
        """How many two random sets of these sizes share, on average."""
        return self.sizes[0] * self.sizes[1] / self.of

    @property
    def chance(self) -> float:
        """How likely two random sets of these sizes share at least as many."""
        first, second = self.sizes
        ways = 0
        for both in range(self.both, min(first, second) + 1):
            ways += math.comb(first, both) * math.comb(self.of - first, second - both)
        return ways / math.comb(self.of, second)

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
    first: tuple[str, str]  # the strongest writer in each model, or "none"
    shared: Overlap

    def __str__(self) -> str:
        effects = f"{self.effects[0]:.2f} and {self.effects[1]:.2f}"
        first = f"{self.first[0]} and {self.first[1]}"
        return (
            f"{self.head}, {self.side} side: {effects}; first writers {first}; "
            f"leading ones in both {self.shared}"
        )


def transplant(
    models: tuple[Model, Model], tasks: tuple[Task, Task], units: Units
) -> Transplant:
    """Keep in the dense model what the twin takes for 90% of the task."""
    dense = rank(models[0], tasks[0], units=units, count=len(tasks[0]))
    sparse = rank(models[1], tasks[1], units=units, count=len(tasks[1]))
    kept = needed(sparse)
    own = [each.unit for each in dense.ranked[: len(kept)]]
    measurement = measure_attention(models[0], tasks[0].items, units)
    at_random = []
    for number in range(DRAWS):
        draw = random.Random(f"transplant/{number}")
        at_random.append(explained(measurement, draw.sample(measurement.units, len(kept))))
    return Transplant(
        units=units,
        shared=Overlap.between(needed(dense), kept, of=dense.units),
        twins=explained(measurement, kept),
        own=explained(measurement, own),
        random=mean(at_random),
    )


def needed(ranking: Ranking) -> list[Unit]:
    """The units that explain 90%, without those that change nothing."""
    size = ranking.count(EXPLAINED)[0] or 0
    return [each.unit for each in ranking.ranked[:size] if each.effect]


def explained(measurement: AttentionMeasurement, kept: Sequence[Unit]) -> float:
    """The explained effect of keeping these units alone, on average over the pairs."""
    number_of = {unit: number for number, unit in enumerate(measurement.units)}
    first = [number_of[unit] for unit in kept]
    others = np.setdiff1d(np.arange(len(measurement.units)), first).tolist()
    return float(measurement.explained([*first, *others], [len(first)]).mean())


def same_writers(models: tuple[Model, Model], text: str, **question: Any) -> list[SameWriters]:
    """Who wrote what the twin's first carrier of a mapping reads, on the sides that carry anything."""
    dense = trace(models[0], text, **question)
    sparse = trace(models[1], text, **question)
    head = sparse.carriers()[0]
    in_dense = why(dense, head, model=models[0])
    in_sparse = why(sparse, head, model=models[1])
    sides = [_on_side(head, side, in_dense.side(side), in_sparse.side(side)) for side in SIDES]
    return [each for each in sides if max(map(abs, each.effects)) >= NOTICEABLE]


def _on_side(head: Head, side: Side, dense: SideWriters, sparse: SideWriters) -> SameWriters:
    in_dense = _leading(dense)
    in_sparse = _leading(sparse)
    of = max(len(dense.writers), len(sparse.writers))
    return SameWriters(
        head=head,
        side=side,
        effects=(dense.effect, sparse.effect),
        first=(in_dense[0] if in_dense else "none", in_sparse[0] if in_sparse else "none"),
        shared=Overlap.between(in_dense, in_sparse, of=of),
    )


def _leading(side: SideWriters) -> list[str]:
    """The names of the strongest writers."""
    return [str(each) for each in side.writers[:WRITERS] if abs(each.effect) >= NOTICEABLE]


def transplant_figure(transplants: Mapping[str, Sequence[Transplant]]) -> Figure:
    """One panel for each kind of unit; for each dense model, by name, three bars, where it was measured."""
    kinds = max(transplants.values(), key=len)
    last = COUNTED[kinds[-1].units]
    explained = []
    for name, each in transplants.items():
        if len(each) == len(kinds):
            explained.append(f"{each[-1].twins:.0%} in {name}")
    finding = f"Kept alone in the dense model, its twin's {last} explain {', '.join(explained)}"
    question = "kept: what the twin takes for 90% of a task, as many of the model's own, or as many random"
    with looks():
        width = COLUMN if len(kinds) == 1 else WIDTH
        figure = framed(None, (width, 2.6), finding, question)
        panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for index, axes in enumerate(panels):
            shown = {
                name: each[index] for name, each in transplants.items() if index < len(each)
            }
            left = np.arange(len(shown)) - BAR
            twins = [each.twins for each in shown.values()]
            own = [each.own for each in shown.values()]
            at_random = [each.random for each in shown.values()]
            axes.bar(left, twins, 0.9 * BAR, color=BLUE, label="the twin's")
            axes.bar(left + BAR, own, 0.9 * BAR, color=shade(0.5), label="as many of its own")
            axes.bar(left + 2 * BAR, at_random, 0.9 * BAR, color=LINE, label="as many random")
            labels = [f"{name}\n{each.shared.sizes[1]} kept" for name, each in shown.items()]
            axes.set_xticks(range(len(labels)), labels)
            axes.set_title(f"{COUNTED[kinds[index].units]} kept in the dense model")
            axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("explained effect (share of the gap)")
        figure.axes[0].legend()
    return figure
