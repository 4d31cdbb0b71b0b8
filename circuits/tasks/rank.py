"""`rank`: the heads or edges of a task in the order of their single effects, and how many of them explain it.

1. Each unit alone is swapped to the counterfactual in the clean run; its effect is averaged over the pairs. That is the order.
2. The keep curve: for k = 0, 1, 2, … the first k units are kept and all others swapped, in one run. Explained effect =
   (M(kept) − M(counterfactual)) / gap, averaged over pairs.
3. The control keeps units in random orders.
4. MLPs are `computed` from what reaches them, `held` at the clean run's writes, or `swapped` to the counterfactual's writes, at all
   positions. Embeddings are always clean. What that means at the two ends, where the last token is the same in both prompts:

   - computed: none kept explain exactly 0 (positions exchange information by attention alone, so the last one sees the counterfactual
     only); all kept explain exactly 1.
   - held: all kept explain exactly 1; none kept explain what the clean MLP writes at the last position say by themselves.
   - swapped: none kept explain exactly 0; all kept explain what heads carry from the embeddings with no MLP's help, often little.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from jaxtyping import Float

from circuits.engine import Row, prepare
from circuits.engine.loadings import loadings
from circuits.errors import PromptError
from circuits.links import Progress, silent
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.tasks.curves import Values, areas, band, geometric, narrowed, sizes_to_measure
from circuits.tasks.ranking import MLPS, SHARES, UNITS, Curve, Mlps, Protocol, Ranked, Ranking, Units
from circuits.tasks.records import Item, Task
from circuits.tasks.task import to_task
from circuits.tasks.units import Batch, EdgeUnits, HeadUnits, with_held_mlps

PAIRS: Final = {"heads": 64, "edges": 16}  # how many are measured unless asked otherwise
RANDOM_ORDERS: Final = 5
MOST_WORK: Final = 2.5e12  # multiplications and additions for the single effects of edges, two minutes of one core; beyond, estimates
_ROWS: Final = 512  # measured between two reports of progress


def rank(
    model: Any,
    task: Task | str | Path,
    *,
    units: Units = "heads",
    mlps: Mlps = "computed",
    count: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Ranking:
    """Which heads (or edges) a task takes, in order, and how many explain 80, 90 and 95% of it.

    `task` is a Task, a name of TASKS, or the path of a jsonl file. `count` pairs are measured: 64 for heads and 16 for edges.
    """
    if units not in UNITS or mlps not in MLPS:
        raise PromptError(
            f"units are {' or '.join(UNITS)} and mlps {', '.join(MLPS)}, not {units!r} and {mlps!r}"
        )
    known = as_model(model)
    wanted = PAIRS[units] if count is None else count
    asked = (
        task if isinstance(task, Task) else to_task(known, task, count=wanted, seed=seed, progress=progress)
    )
    items = asked.items if count is None and units == "heads" else asked.items[:wanted]
    if not items:
        raise PromptError(f"the task {asked.name} has no pairs to rank")
    measured = _Measured.of(known, items, units, mlps, progress)
    return _ranking(known, asked, measured, seed)


@dataclass(frozen=True)
class _Measured:
    """A task's pairs in batches, ready to be asked."""

    batches: tuple[Batch, ...]
    units: HeadUnits | EdgeUnits
    protocol: Protocol
    pairs: int
    progress: Progress

    @classmethod
    def of(
        cls, model: Model, items: Sequence[Item], units: Units, mlps: Mlps, progress: Progress
    ) -> _Measured:
        grouped: dict[object, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            grouped[(len(item.pair), item.pair.metric.kind, item.roles if units == "edges" else ())].append(
                place
            )
        batches = []
        for places in grouped.values():
            chosen = tuple(items[place] for place in places)
            runs = prepare(model, [item.pair for item in chosen])
            batches.append(
                Batch(with_held_mlps(runs) if mlps == "held" else runs, tuple(places), chosen, mlps)
            )
        if units == "heads":
            return cls(
                tuple(batches),
                HeadUnits(model.n_layers, model.n_heads),
                Protocol(units, mlps),
                len(items),
                progress,
            )
        by_role = len({(len(item.pair), item.roles) for item in items}) > 1
        edges = EdgeUnits.of(model.n_layers, model.n_heads, items, by_role=by_role)
        order: Literal["exact", "loading"] = "exact" if sum(map(_work, batches)) <= MOST_WORK else "loading"
        protocol = Protocol(units, mlps, "roles" if by_role else "absolute", order)
        return cls(tuple(batches), edges, protocol, len(items), progress)

    def alone(self) -> Float[np.ndarray, "unit pair"]:
        """The single effect of every unit on every pair; 0 where it does not stand in the pair's prompt."""
        effects = np.zeros((len(self.units.names), self.pairs))
        for number, batch in enumerate(self.batches):
            if self.protocol.order == "loading":
                assert isinstance(self.units, EdgeUnits)
                _estimate(batch, self.units, effects)
                self.progress("single effects", number + 1, len(self.batches))
                continue
            numbers, rows = zip(*self.units.alone(batch), strict=True)
            base = _measure(batch, [Row(batch.always)])
            values = np.concatenate(
                [self._part(batch, rows[at : at + _ROWS], at, len(rows)) for at in range(0, len(rows), _ROWS)]
            )
            effects[np.ix_(numbers, batch.places)] = (base - values) / batch.runs.gap.double().cpu().numpy()
        return effects

    def _part(self, batch: Batch, rows: Sequence[Row], start: int, total: int) -> Values:
        found = _measure(batch, rows)
        self.progress("single effects", start + len(rows), total)
        return found

    def explained(self, order: Sequence[int], sizes: Sequence[int]) -> Values:
        """The explained effect of keeping the first so many units of an order, on every pair."""
        found = np.zeros((len(sizes), self.pairs))
        rank_of = np.empty(len(order), dtype=np.int64)
        rank_of[list(order)] = np.arange(len(order))
        for number, batch in enumerate(self.batches):
            low = batch.runs.values(batch.runs.counterfactual).double().cpu().numpy()
            values = _measure(batch, [self.units.without(batch, rank_of < size) for size in sizes])
            found[:, list(batch.places)] = (values - low) / batch.runs.gap.double().cpu().numpy()
            self.progress("keep curve", number + 1, len(self.batches))
        return found


def _measure(batch: Batch, rows: Sequence[Row]) -> Values:
    with torch.inference_mode():
        return batch.runs.mean_over_draws(batch.runs.measure(rows)).T.double().cpu().numpy()


def _work(batch: Batch) -> float:
    """What the single effects of all edges of a batch cost; a row carries half of the late positions through half of the layers."""
    model, late = batch.runs.model, len(batch.late)
    rows = model.n_layers * model.n_heads * sum(query + 1 for query in batch.late)
    whole = 1 if batch.always else 4
    return rows * len(batch.places) * late * model.n_layers * 24 * model.d_model**2 / whole


def _estimate(batch: Batch, units: EdgeUnits, effects: Float[np.ndarray, "unit pair"]) -> None:
    """First-order estimates in place of measured effects, one backward a pair; whatever the protocol, through MLPs that compute."""
    numbers = units.units_at(batch)
    there = numbers >= 0
    for place, item in zip(batch.places, batch.items, strict=True):
        found = loadings(prepare(batch.runs.model, [item.pair]), of="change")
        effects[numbers[there], place] = found.detach().double().cpu().numpy()[there]


def _ranking(model: Model, task: Task, measured: _Measured, seed: int) -> Ranking:
    alone = measured.alone()
    means, total = alone.mean(1), len(alone)
    order = np.argsort(-means, kind="stable").tolist()
    sizes = sizes_to_measure(total)
    sizes, values = narrowed(
        lambda more: measured.explained(order, more), sizes, measured.explained(order, sizes), SHARES
    )
    keep = _curve(sizes, values, seed)
    cpr, cmd = areas(keep.sizes, keep.explained)
    return Ranking(
        task=task.name,
        model=model.name,
        fingerprint=model.fingerprint,
        gated=model.gated,
        protocol=measured.protocol,
        pairs=measured.pairs,
        left_out=task.left_out,
        units=total,
        ranked=_ranked(measured, alone, order, seed),
        keep=keep,
        random=_random(measured, total, seed),
        cpr=cpr,
        cmd=cmd,
        seed=seed,
        each=tuple(map(tuple, values.tolist())),
    )


def _ranked(
    measured: _Measured, alone: Float[np.ndarray, "unit pair"], order: Sequence[int], seed: int
) -> tuple[Ranked, ...]:
    listed = [unit for unit in order if measured.protocol.units == "heads" or alone[unit].any()]
    chosen = alone[listed]
    names = measured.units.names
    bands = zip(listed, chosen.mean(1).tolist(), *band(chosen, seed=seed), strict=True) if listed else ()
    return tuple(Ranked(names[unit], mean, low, high) for unit, mean, low, high in bands)


def _random(measured: _Measured, total: int, seed: int) -> Curve:
    """The control: the mean over several random orders, at a few sizes."""
    sizes, orders = (
        sorted({0, *(size for size in geometric(total, small=1, step=1.6) if size * 64 >= total)}),
        [],
    )
    for number in range(RANDOM_ORDERS):
        draw = random.Random(f"random order/{seed}/{number}")
        orders.append(measured.explained(draw.sample(range(total), total), sizes))
    return _curve(sizes, np.mean(orders, axis=0), seed)


def _curve(sizes: Sequence[int], values: Values, seed: int) -> Curve:
    low, high = band(values, seed=seed)
    return Curve(tuple(sizes), tuple(values.mean(1).tolist()), tuple(low), tuple(high))
