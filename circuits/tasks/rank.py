"""`rank`: the heads, attention edges or component edges of a task in the order of their single effects, and
how many of them explain it.

1. Each unit alone is swapped to the counterfactual in the clean run; its mean effect over the pairs gives the
   order. Where that would cost too much, for edges, first-order estimates stand in.
2. The keep curve: for k = 0, 1, 2, … the first k units are kept and all others swapped, in one run. Explained
   effect = (M(kept) − M(counterfactual)) / gap, averaged over pairs. The control keeps random units.
3. Pairs of one length (for edges, of one layout of roles) run together: a unit means the same in each.
   Nothing is changed before the first difference, where both runs are the same.
4. MLPs are `computed` from what reaches them, `held` at the clean run's writes, or `swapped` to the
   counterfactual's. Embeddings are always clean. Where both prompts end with the same token, this means:

   - computed: none kept explain exactly 0 (positions exchange information by attention alone, so the last one
     sees only the counterfactual); all kept explain exactly 1.
   - held: all kept explain exactly 1; none kept explain what clean MLPs alone write at the last position.
   - swapped: none kept explain exactly 0; all kept explain what heads carry from embeddings, often little.

Component edges (`wires`) are measured in `tasks.wires`: there MLPs and the embedding are units, too.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from circuits.components import Head
from circuits.engine import Change, Row, Runs, prepare
from circuits.engine.search import loadings
from circuits.errors import PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.results import Progress, silent
from circuits.tasks import ranking
from circuits.tasks.ranking import MLPS, UNITS, Curve, Mlps, Protocol, Ranked, Ranking, RoleEdge, Units
from circuits.tasks.task import PAIRS, Item, Task, to_task
from circuits.tasks.wires import MOST_WIRES, EapGraph, WireMeasurement
from circuits.tracing import Interval
from circuits.tracing.family import bootstrap

PAIRS_OF: Final = {"heads": PAIRS, "edges": 16, "wires": 16}  # unless the user says how many
RANDOM_ORDERS: Final = 5
MOST_WORK: Final = 2.5e12  # multiply-adds for the single effects of edges: two minutes of one core
_BANDS: Final = 2000  # units whose bootstrap is in memory at a time
_ROWS: Final = 512  # measured between two reports of progress


def rank(
    model: Any,
    task: Task | str | Path,
    *,
    units: Units = "heads",
    mlps: Mlps = "computed",
    count: int | None = None,
    most: int | None = None,
    order: EapGraph | str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Ranking:
    """Which heads (or edges) a task takes, in order, and how many explain 80, 90 and 95% of it.

    `task` is a Task, a name of TASKS, or the path of a jsonl file; `count` pairs are measured, by default
    64 for heads and 16 for edges. `units` are "heads", "edges" (attention edges: one head, one key, one
    query) or "wires" (component edges: one writer, one reader, all positions together). Of component edges
    the `most` (4,000) that an estimate puts in front are measured exactly; `order` takes their order from a
    file of EAP-IG or MIB (`from_eap`), to evaluate somebody else's circuit.

        >>> ranking = circuits.rank(model, "opposites", count=4)
        >>> count, low, high = ranking.count(0.9)
        >>> low <= count <= high
        True
    """
    _check(units, mlps, most, order)
    model = as_model(model)
    wanted = PAIRS_OF[units] if count is None else count
    if not isinstance(task, Task):
        task = to_task(model, task, count=wanted, seed=seed, progress=progress)
    items = task.items if count is None and units == "heads" else task.items[:wanted]
    if not items:
        raise PromptError(f"the task {task.name} has no pairs to rank")
    if units == "wires":
        given = EapGraph.load(order) if isinstance(order, str | Path) else order
        measurement = WireMeasurement.of(model, items, most or MOST_WIRES, given, progress)
    else:
        measurement = to_measurement(model, items, Protocol(units, mlps), progress)
    effects = measurement.single_effects()
    numbers = measurement.order(effects)
    keep = partial(measurement.explained, numbers)
    sizes, values = ranking.measure_curve(keep, len(numbers), also=measurement.sizes)
    listed = [unit for unit in numbers if units == "heads" or effects[unit].any()]
    bands = zip(listed, _bands(effects[listed], seed), strict=True)
    cpr, cmd = measurement.areas(sizes, values)
    return Ranking(
        task=task.name,
        model=model.name,
        fingerprint=model.fingerprint,
        gated=model.gated,
        protocol=measurement.protocol,
        pairs=len(items),
        left_out=task.left_out,
        units=len(numbers),
        ranked=tuple(
            Ranked(measurement.units[unit], band.mean, band.low, band.high, measurement.is_exact(unit))
            for unit, band in bands
        ),
        keep=Curve.of(sizes, values, seed=seed),
        random=_random_curve(measurement, seed),
        cpr=cpr,
        cmd=cmd,
        seed=seed,
        each=tuple(map(tuple, values.tolist())),
        shape=measurement.shape,
    )


def _check(units: str, mlps: str, most: int | None, order: object) -> None:
    if units not in UNITS or mlps not in MLPS:
        allowed = f"units are {', '.join(UNITS)} and mlps {', '.join(MLPS)}"
        raise PromptError(f"{allowed}, not {units!r} and {mlps!r}")
    if units == "wires" and mlps != "computed":
        raise PromptError(f"among component edges MLPs are units themselves: leave mlps={mlps!r} out")
    if units != "wires" and (most is not None or order is not None):
        raise PromptError("most= and order= go with component edges: units='wires'")
    if most is not None and most < 1:
        raise PromptError(f"most= is how many component edges are measured exactly, at least 1, not {most}")


def _bands(effects: Float[np.ndarray, "unit pair"], seed: int) -> Iterator[Interval]:
    """The interval of each unit, some at a time: resamples of thirty thousand need room."""
    for start in range(0, len(effects), _BANDS):
        yield from bootstrap(effects[start : start + _BANDS], seed=seed)


def _random_curve(measurement: Measurement | WireMeasurement, seed: int) -> Curve:
    """The control: the mean over several random orders, at a few sizes."""
    total = len(measurement.units)
    every = ranking.geometric(total, small=1, step=measurement.random_step)
    sizes = [size for size in every if size == 0 or size * 64 >= total]
    draws = [random.Random(f"random order/{seed}/{number}") for number in range(RANDOM_ORDERS)]
    values = [measurement.explained(draw.sample(range(total), total), sizes) for draw in draws]
    return Curve.of(sizes, np.mean(values, axis=0), seed=seed)


@dataclass(frozen=True)
class PairBatch:
    """Pairs that run together."""

    runs: Runs
    indices: list[int]  # of the pairs in the task
    unit_at: Int[np.ndarray, "layer head query key"]  # the number of the unit that an edge belongs to
    late: range  # the positions from the first difference on
    always: tuple[Change, ...]  # what is changed whatever is kept: nothing, or the writes of all MLPs

    @classmethod
    def of(cls, runs: Runs, indices: list[int], unit_at: np.ndarray, mlps: Mlps) -> PairBatch:
        late = range(min(position for pair in runs.pairs for position in pair.differs_at), runs.length)
        layers = () if mlps == "computed" else range(runs.model.n_layers)
        always = tuple(Change(layer, position, "mlp") for layer in layers for position in late)
        return cls(_with_held_mlps(runs) if mlps == "held" else runs, indices, unit_at, late, always)

    def each_alone(self, units: Units) -> Iterator[tuple[int, Row]]:
        """The number of each unit that can have an effect here, and the row in which it alone is swapped."""
        heads = list(np.ndindex(self.unit_at.shape[:2]))
        if units == "heads":
            for layer, head in heads:
                changes = (Change(layer, position, "head", head) for position in self.late)
                yield int(self.unit_at[layer, head, 0, 0]), Row((*self.always, *changes))
            return
        for query, (layer, head) in product(self.late, heads):  # neighbours share their first position
            for key in range(query + 1):
                change = Change(layer, query, "edge", head, key)
                yield int(self.unit_at[layer, head, query, key]), Row((*self.always, change))

    def keeping(self, kept: Bool[np.ndarray, " unit"]) -> Row:
        """The row in which all units but the kept are swapped.

        Where no key of a head is kept at a query, its whole output there is swapped, and where no head is,
        all that attention writes there: the same as swapping each message, and cheaper.
        """
        first = self.late.start
        causal = np.tri(self.runs.length, dtype=bool)[first:]  # (query, key)
        stays = kept[self.unit_at[:, :, first:]] & causal  # (layer, head, query, key)
        head_stays = np.asarray(stays.any(3))
        layer_stays = np.asarray(head_stays.any(1))
        layers = np.argwhere(~layer_stays).tolist()
        heads = np.argwhere(layer_stays[:, None] & ~head_stays).tolist()
        edges = np.argwhere(head_stays[..., None] & ~stays & causal).tolist()
        changes = [Change(layer, first + query, "attention") for layer, query in layers]
        changes += [Change(layer, first + query, "head", head) for layer, head, query in heads]
        changes += [Change(layer, first + query, "edge", head, key) for layer, head, query, key in edges]
        return Row((*self.always, *changes))

    def measure(self, rows: Sequence[Row]) -> Float[np.ndarray, "row pair"]:
        with torch.inference_mode():
            return _numbers(self.runs.mean_over_draws(self.runs.measure(rows)).T)

    @property
    def work(self) -> float:
        """The cost of every edge alone: a row carries half of the late positions through half the layers."""
        model = self.runs.model
        rows = model.n_layers * model.n_heads * sum(query + 1 for query in self.late) * len(self.indices)
        one_row = len(self.late) * model.n_layers * 24 * model.d_model**2
        return rows * one_row / (1 if self.always else 4)


def _with_held_mlps(runs: Runs) -> Runs:
    """The same runs, with a counterfactual in which the MLPs write what they write in the clean run."""
    run, clean = runs.counterfactual, runs.clean.cache.layers
    layers = tuple(replace(layer, mlp=held.mlp) for layer, held in zip(run.cache.layers, clean, strict=True))
    return replace(runs, counterfactual=replace(run, cache=replace(run.cache, layers=layers)))


def _numbers(values: torch.Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


@dataclass(frozen=True)
class Measurement:
    """A task's pairs in batches, and the units that are kept or swapped."""

    units: tuple[Head | RoleEdge, ...]
    batches: list[PairBatch]
    pairs: int
    protocol: Protocol
    progress: Progress
    random_step: float = 1.6  # between two sizes of the control
    sizes: tuple[int, ...] = ()  # that the keep curve must have: none in particular
    shape: None = None  # of the model: only component edges depend on it

    def single_effects(self) -> Float[np.ndarray, "unit pair"]:
        """The effect of every unit alone on every pair; 0 where it does not stand in the pair's prompt."""
        effects = np.zeros((len(self.units), self.pairs))
        for number, batch in enumerate(self.batches):
            if self.protocol.order == "loading":  # one backward a pair, through MLPs that compute
                causal = np.tri(batch.runs.length, dtype=bool)
                for index, pair in zip(batch.indices, batch.runs.pairs, strict=True):
                    loading = _numbers(loadings(prepare(batch.runs.model, [pair]), of="change"))
                    effects[batch.unit_at[..., causal], index] = loading[..., causal]
                self.progress("single effects", number + 1, len(self.batches))
                continue
            numbers, rows = zip(*batch.each_alone(self.protocol.units), strict=True)
            base, values = batch.measure([Row(batch.always)]), []
            for start in range(0, len(rows), _ROWS):
                values.append(batch.measure(rows[start : start + _ROWS]))
                self.progress("single effects", min(start + _ROWS, len(rows)), len(rows))
            changes = (base - np.concatenate(values)) / _numbers(batch.runs.gap)
            effects[np.ix_(numbers, batch.indices)] = changes
        return effects

    def explained(self, order: Sequence[int], sizes: Sequence[int]) -> Float[np.ndarray, "size pair"]:
        """The explained effect of keeping the first so many units of an order, on every pair."""
        explained = np.zeros((len(sizes), self.pairs))
        rank_of = np.argsort(order)
        for number, batch in enumerate(self.batches):
            low = _numbers(batch.runs.values(batch.runs.counterfactual))
            values = batch.measure([batch.keeping(rank_of < size) for size in sizes])
            explained[:, batch.indices] = (values - low) / _numbers(batch.runs.gap)
            self.progress("keep curve", number + 1, len(self.batches))
        return explained

    def order(self, effects: Float[np.ndarray, "unit pair"]) -> list[int]:
        return np.argsort(-effects.mean(1), kind="stable").tolist()

    def is_exact(self, unit: int) -> bool:
        return self.protocol.order == "exact"

    def areas(self, sizes: Sequence[int], values: ranking.Values) -> tuple[float, float]:
        return ranking.areas(sizes, values.mean(1).tolist())


def to_measurement(
    model: Model, items: Sequence[Item], protocol: Protocol, progress: Progress = silent
) -> Measurement:
    """Put the pairs into batches and number the units: heads, or edges by the names of key and query."""
    by_edge = protocol.units == "edges"
    by_role = by_edge and len({(len(item.pair), item.roles) for item in items}) > 1
    groups: dict[object, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        groups[len(item.pair), item.pair.metric.kind, item.roles if by_edge else ()].append(index)
    shape = (model.n_layers, model.n_heads)
    heads = [Head(*index) for index in np.ndindex(shape)]
    number_of: dict[tuple[str, str], int] = {}  # (key, query), by name, in the order in which they are met
    batches = []
    for indices in groups.values():
        first, length = items[indices[0]], len(items[indices[0]].pair)
        numbers = np.zeros((length, length), dtype=np.int64)
        if by_edge:
            names = [first.name_of(position) if by_role else str(position) for position in range(length)]
            for query, key in np.argwhere(np.tri(length)):
                numbers[query, key] = number_of.setdefault((names[key], names[query]), len(number_of))
        unit_at = numbers * len(heads) + np.arange(len(heads)).reshape(*shape, 1, 1)
        runs = prepare(model, [items[index].pair for index in indices])
        batches.append(PairBatch.of(runs, indices, unit_at, protocol.mlps))
    if not by_edge:
        return Measurement(tuple(heads), batches, len(items), protocol, progress)
    order = "exact" if sum(batch.work for batch in batches) <= MOST_WORK else "loading"
    protocol = replace(protocol, positions="roles" if by_role else "absolute", order=order)
    edges = tuple(RoleEdge(head, key, query) for key, query in number_of for head in heads)
    return Measurement(edges, batches, len(items), protocol, progress)
