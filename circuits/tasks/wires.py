"""The component edges of a task: what `rank(units="wires")` measures.

1. Their order is one of `tasks.orders`, by default that of the search for small circuits. The first edges of
   an order are measured exactly, each by itself, to stand beside it; the effects of the others are estimated
   by edge attribution patching. In the order of effects, the edges with the largest mean estimate, of either
   sign, are measured and ranked by effect, the others by the estimate.
2. The keep curve swaps all other edges together in one run. Here the embedding and the MLPs are units like
   heads: keeping no edge explains exactly 0, keeping all explains exactly 1.
3. The order may come from a file of EAP-IG or MIB instead (`tasks.eap`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Bool, Float

from circuits.components import Wire
from circuits.engine import SWAP, Ablation, prepare
from circuits.engine.attribution import attribution, integrated_attribution
from circuits.engine.edges import EdgeTable
from circuits.engine.kept import KeptRuns
from circuits.engine.wires import wire_effects
from circuits.executors.executor import Executor, ModelSource
from circuits.models.model import Model
from circuits.results import Progress, silent
from circuits.tasks import curve
from circuits.tasks.eap import EapGraph, load_order, numbers_in_order
from circuits.tasks.measurement import Effects, Measurement, groups_that_run_together, to_numpy
from circuits.tasks.names import ORDERS, OrderName
from circuits.tasks.orders import EdgeOrder, by_size, explained, searched
from circuits.tasks.ranking import ComponentEdge, Protocol, Shape
from circuits.tasks.task import Item

PAIRS_A_PART: Final = 4  # pairs that a worker measures together
# Component edges that are measured exactly, unless the user says otherwise
MOST_WIRES: Final = 4000  # to be ranked by their effects
MOST_BESIDE: Final = 400  # to stand beside another order


@dataclass(frozen=True, kw_only=True)
class WireMeasurement(Measurement):
    """The component edges of a task, and its pairs in batches."""

    table: EdgeTable
    kept: KeptRuns
    exactly: Callable[[Sequence[Wire]], Effects]  # the exact effects of some edges
    most: int  # edges that are measured exactly
    file: list[int] | None  # the order of a file
    # Wider than for heads: a run that keeps ten thousand edges is not cheap.
    random_step: float = 2.5

    @cached_property
    def estimates(self) -> Effects:
        """The first-order estimate of every edge on every pair: EAP."""
        return attribution(self.kept).numpy()

    @cached_property
    def given(self) -> EdgeOrder | None:
        """The order that does not hang on exact effects; None where they make it."""
        if self.file is not None:
            return EdgeOrder(self.file)
        if self.protocol.order == "search":
            return searched(self.kept, progress=self.progress)
        if self.protocol.order == "eap":
            return by_size(self.estimates)
        if self.protocol.order == "eap-ig":
            return by_size(integrated_attribution(self.kept).numpy())
        return None

    @cached_property
    def exact(self) -> Bool[np.ndarray, " unit"]:
        """Which edges are measured: all, or the first of the order or of the estimates."""
        chosen = np.ones(len(self.table), dtype=bool)
        if self.most == len(chosen):
            return chosen
        order = self.given or by_size(self.estimates)
        chosen[order.numbers[self.most :]] = False
        return chosen

    def single_effects(self) -> Effects:
        """The effect of every edge alone on every pair; the estimate where it was not measured."""
        effects = np.zeros((len(self.table), self.pairs))
        if not self.exact.all():
            effects = self.estimates.copy()
        chosen = np.flatnonzero(self.exact)
        wires = [self.table.wires[number] for number in chosen]
        effects[chosen] = self.exactly(wires)
        return effects

    def order(self, effects: Effects) -> list[int]:
        return super().order(effects) if self.given is None else self.given.numbers

    def listed(self, effects: Effects) -> Bool[np.ndarray, " unit"]:
        """The edges that change something on some pair. Where the order comes from elsewhere, also those
        between them, so that the first k that are listed are the first k of the order."""
        changes = super().listed(effects)
        if self.given is None or not changes.any():
            return changes
        order = np.array(self.given.numbers)
        last = np.flatnonzero(changes[order])[-1]
        listed = np.zeros_like(changes)
        listed[order[: last + 1]] = True
        return listed

    def explained(
        self, order: Sequence[int], sizes: Sequence[int]
    ) -> Float[np.ndarray, "size pair"]:
        return explained(self.kept, order, sizes, self.progress)

    @property
    def curve_sizes(self) -> list[int]:
        """The sizes of MIB, and those of the circuits that a search passed."""
        passed = self.given.sizes if self.given is not None else ()
        return [*curve.mib_sizes(len(self.table)), *passed]

    def areas(self, sizes: Sequence[int], values: curve.Values) -> tuple[float, float]:
        """CPR and CMD as MIB has them: at its shares, of the means over pairs."""
        return mib_areas(self.kept, sizes, values)


def exact_effects(
    kept: KeptRuns, wires: Sequence[Wire], progress: Progress = silent
) -> Effects:
    """The effect of swapping each of these component edges alone, on every pair."""
    effects = np.zeros((len(wires), kept.pairs))
    report = partial(progress, "single effects")
    for batch in kept.batches:
        values, _ = wire_effects(batch.runs, wires, progress=report)
        effects[:, batch.pairs] = values.numpy()
    return effects


@dataclass(frozen=True, slots=True)
class MeasureWires:
    """The exact effects of some component edges on a few pairs: what every worker does."""

    wires: tuple[Wire, ...]
    ablation: Ablation = SWAP

    def __call__(self, model: Model, items: Sequence[Item]) -> Effects:
        return exact_effects(kept_runs_of(model, items, ablation=self.ablation), self.wires)


def effects_by_workers(
    model: Model | ModelSource,
    items: Sequence[Item],
    wires: Sequence[Wire],
    *,
    executor: Executor,
    ablation: Ablation = SWAP,
    progress: Progress = silent,
) -> Effects:
    """What `exact_effects` gives, measured by an executor: a few pairs of one length are a part."""
    parts: list[list[int]] = []
    for numbers in groups_that_run_together(items):
        for start in range(0, len(numbers), PAIRS_A_PART):
            parts.append(numbers[start : start + PAIRS_A_PART])
    given = [[items[number] for number in part] for part in parts]
    effects = np.zeros((len(wires), len(items)))
    measured = executor.map(model, MeasureWires(tuple(wires), ablation), given)
    for done, (part, values) in enumerate(measured, 1):
        effects[:, parts[part]] = values
        progress("single effects", done, len(parts))
    return effects


def mib_areas(
    kept: KeptRuns, sizes: Sequence[int], values: curve.Values
) -> tuple[float, float]:
    """CPR and CMD of a curve that has the sizes of MIB among its own."""
    gaps = np.zeros(kept.pairs)
    for batch in kept.batches:
        gaps[batch.pairs] = to_numpy(batch.runs.gap)
    faithful = values @ gaps / gaps.sum()
    value_at = dict(zip(sizes, faithful.tolist(), strict=True))
    wanted = curve.mib_sizes(len(kept.table))
    return curve.areas(curve.MIB_SHARES, [value_at[size] for size in wanted])


def kept_runs_of(model: Model, items: Sequence[Item], *, ablation: Ablation = SWAP) -> KeptRuns:
    """Run the pairs of a task; circuits on them are of component edges."""
    batches = []
    for indices in groups_that_run_together(items):
        runs = prepare(model, [items[index].pair for index in indices], ablation=ablation)
        batches.append((runs, indices))
    return KeptRuns.everywhere(batches)


def measure_wires(
    model: Model,
    items: Sequence[Item],
    *,
    most: int | None = None,
    order: OrderName | EapGraph | str | Path | None = None,
    executor: Executor | None = None,
    source: Model | ModelSource | None = None,
    ablation: Ablation = SWAP,
    progress: Progress = silent,
) -> WireMeasurement:
    """Run the pairs, with component edges as units; `order` is one of ORDERS (search) or that of a file. An
    executor, whose workers get the model from `source`, measures the exact effects."""
    kept = kept_runs_of(model, items, ablation=ablation)
    exactly = partial(exact_effects, kept, progress=progress)
    if executor is not None:
        exactly = partial(
            effects_by_workers,
            source or model,
            items,
            executor=executor,
            ablation=ablation,
            progress=progress,
        )
    table = kept.table.edges
    name = "search" if order is None else order
    file = None
    if not isinstance(name, str) or name not in ORDERS:
        graph = name if isinstance(name, EapGraph) else load_order(name)
        file = numbers_in_order(graph, table, model)
        name = "given"
    usual = MOST_WIRES if name == "effect" else MOST_BESIDE
    most = min(most or usual, len(table))
    if name != "effect":
        protocol = Protocol("wires", order=name, measured=most, source=ablation.kind)
    elif most < len(table):
        protocol = Protocol("wires", order="front", measured=most, source=ablation.kind)
    else:
        protocol = Protocol("wires", source=ablation.kind)
    return WireMeasurement(
        units=tuple(ComponentEdge.of(wire) for wire in table.wires),
        pairs=len(items),
        protocol=protocol,
        progress=progress,
        shape=Shape(model.n_layers, model.n_heads, model.d_model, table.parallel),
        table=table,
        kept=kept,
        exactly=exactly,
        most=most,
        file=file,
    )
