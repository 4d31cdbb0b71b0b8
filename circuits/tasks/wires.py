"""The component edges of a task: what `rank(units="wires")` measures, and circuits of EAP-IG and MIB.

1. An estimate of all of them, one backward a pair (`component_edges.estimates`), says which are worth a run:
   those with the largest mean estimate, of either sign. Their effects are measured exactly, each by itself,
   and the order goes by effect where it was measured and by the estimate elsewhere.
2. The keep curve swaps all others together in one run. Here the embedding and the MLPs are units like heads:
   none kept explain exactly 0, all kept exactly 1.
3. A file's order may stand in for ours. Then its first edges are measured, to stand beside it. Such a file is

       {"cfg": {"n_layers": 12, "n_heads": 12, …},
        "edges": {"a9.h9->a10.h0<q>": {"score": 0.1, "in_graph": true}, …}}

   Their tools put edges in the order of the size of their scores; so does `EapGraph.order`. Where no edge has
   a score, those that are in the graph come first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float

from circuits.components import Wire
from circuits.engine import Runs, prepare
from circuits.engine.component_edges import EdgeTable, estimates, kept_edges
from circuits.engine.wires import wire_effects
from circuits.errors import EdgeError, FileError
from circuits.files import read_object
from circuits.models.model import Model
from circuits.results import Progress
from circuits.tasks import ranking
from circuits.tasks.ranking import ComponentEdge, Protocol, Shape
from circuits.tasks.task import Item

MOST_WIRES: Final = 4000  # component edges that are measured exactly, unless the user says otherwise
Each = Float[np.ndarray, "unit pair"]


@dataclass(frozen=True, slots=True)
class EapEdge:
    """One component edge of a file."""

    wire: Wire
    score: float | None
    in_graph: bool


@dataclass(frozen=True, slots=True)
class EapGraph:
    """What a file says.

    >>> file = folder / "eap.json"
    >>> _ = file.write_text(export(found, "eap"))
    >>> graph = circuits.EapGraph.load(file)
    >>> graph.layers, graph.heads
    (12, 12)
    """

    layers: int
    heads: int
    edges: tuple[EapEdge, ...]

    @property
    def wires(self) -> tuple[Wire, ...]:
        """The edges that are in the graph."""
        return tuple(edge.wire for edge in self.edges if edge.in_graph)

    def order(self) -> tuple[Wire, ...]:
        """All edges of the file, the one that it takes for most important first."""

        def key(edge: EapEdge) -> tuple[float, bool]:
            return -abs(edge.score or 0.0), not edge.in_graph

        return tuple(edge.wire for edge in sorted(self.edges, key=key))

    @classmethod
    def load(cls, path: str | Path) -> EapGraph:
        """Read a file of EAP-IG, of MIB, or one that `circuits export --to eap` wrote."""
        file = Path(path)
        stored = read_object(file)
        config, edges = stored.get("cfg"), stored.get("edges")
        if not isinstance(config, Mapping) or not isinstance(edges, Mapping) or not edges:
            raise FileError(f"{file} is not a circuit of EAP-IG or MIB: it needs `cfg` and `edges`")
        layers, heads = (_whole(file, config, name) for name in ("n_layers", "n_heads"))
        return cls(layers, heads, tuple(_edge(file, name, value, layers) for name, value in edges.items()))


def from_eap(path: str | Path) -> EapGraph:
    """The component edges of a circuit that EAP-IG or MIB wrote as JSON, with their scores.

    >>> file = folder / "eap.json"
    >>> _ = file.write_text(export(found, "eap"))
    >>> len(circuits.from_eap(file).edges) > 0
    True
    """
    return EapGraph.load(path)


def _whole(file: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10_000:
        raise FileError(f"{file} is not a circuit of EAP-IG or MIB: its cfg has no {name}")
    return value


def _edge(file: Path, name: str, value: Any, layers: int) -> EapEdge:
    try:
        wire = Wire.parse(name, layers=layers)
    except EdgeError as why:
        raise FileError(f"{file}: {why}") from why
    if wire.position is not None or wire.query is not None or wire.writer.kind == "all":
        raise FileError(f"{file}: {name!r} names a position; an edge of EAP holds at all of them")
    stored = value if isinstance(value, Mapping) else {}
    score, inside = stored.get("score"), stored.get("in_graph", False)
    is_number = isinstance(score, int | float) and math.isfinite(score)
    if not (score is None or is_number) or not isinstance(inside, bool):
        raise FileError(f"{file}: {name!r} needs a `score` that is a number and `in_graph`, true or false")
    return EapEdge(wire, None if score is None else float(score), inside)


@dataclass(frozen=True)
class WireMeasurement:
    """A task's pairs in batches of one length, and the component edges that are kept or swapped."""

    table: EdgeTable
    batches: list[tuple[Runs, list[int]]]  # runs, and which pairs of the task they hold
    pairs: int
    most: int
    given: tuple[int, ...] | None  # an order from a file
    progress: Progress
    random_step: float = 2.5  # between two sizes of the control: a run of ten thousand wires is not cheap

    @classmethod
    def of(
        cls, model: Model, items: Sequence[Item], most: int, order: EapGraph | None, progress: Progress
    ) -> WireMeasurement:
        groups: dict[object, list[int]] = defaultdict(list)
        for index, item in enumerate(items):
            groups[len(item.pair), item.pair.metric.kind, item.pair.metric.tail].append(index)
        batches = [
            (prepare(model, [items[index].pair for index in indices]), indices) for indices in groups.values()
        ]
        table = EdgeTable.of(batches[0][0])
        given = None if order is None else _numbers(order, table, model)
        return cls(table, batches, len(items), min(most, len(table)), given, progress)

    @cached_property
    def units(self) -> tuple[ComponentEdge, ...]:
        return tuple(map(ComponentEdge.of, self.table.wires))

    @property
    def protocol(self) -> Protocol:
        whole = self.most == len(self.table)
        order = "given" if self.given is not None else ("exact" if whole else "front")
        return Protocol("wires", order=order, measured=0 if order == "exact" else self.most)

    # Single effects

    @cached_property
    def estimate(self) -> Each:
        """Of every edge on every pair."""
        values = np.zeros((len(self.table), self.pairs))
        for number, (runs, indices) in enumerate(self.batches):
            values[:, indices] = estimates(runs).numpy()
            self.progress("estimates", number + 1, len(self.batches))
        return values

    @cached_property
    def measured(self) -> Bool[np.ndarray, " unit"]:
        """Which edges are measured exactly: all, or those in front."""
        chosen = np.ones(len(self.table), dtype=bool)
        if self.most < len(chosen):
            by_estimate = np.argsort(-np.abs(self.estimate.mean(1)), kind="stable").tolist()
            front = by_estimate if self.given is None else self.given
            chosen[:] = False
            chosen[np.array(front[: self.most])] = True
        return chosen

    def is_exact(self, unit: int) -> bool:
        return bool(self.measured[unit])

    def single_effects(self) -> Each:
        """The effect of every edge alone on every pair; the estimate where it was not measured."""
        front = np.flatnonzero(self.measured)
        effects = np.zeros((len(self.table), self.pairs)) if self.measured.all() else self.estimate.copy()
        wires = [self.table.wires[number] for number in front]
        for runs, indices in self.batches:
            values, _ = wire_effects(
                runs, wires, progress=lambda done, total: self.progress("single effects", done, total)
            )
            effects[np.ix_(front, np.array(indices))] = values.numpy()
        return effects

    def order(self, effects: Each) -> list[int]:
        if self.given is not None:
            return list(self.given)
        return np.argsort(-effects.mean(1), kind="stable").tolist()

    # Keeping some

    def explained(self, order: Sequence[int], sizes: Sequence[int]) -> Float[np.ndarray, "size pair"]:
        """The explained effect of keeping the first so many edges of an order, on every pair."""
        rank_of = torch.from_numpy(np.argsort(order))
        sets = torch.stack([rank_of < size for size in sizes])
        explained = np.zeros((len(sizes), self.pairs))
        for number, (runs, indices) in enumerate(self.batches):
            explained[:, indices] = kept_edges(runs, sets).numpy()
            self.progress("keep curve", number + 1, len(self.batches))
        return explained

    @property
    def shape(self) -> Shape:
        """What the component edges of this model depend on."""
        model = self.batches[0][0].model
        return Shape(model.n_layers, model.n_heads, model.d_model, self.table.parallel)

    @property
    def sizes(self) -> list[int]:
        """The sizes of MIB."""
        return ranking.mib_sizes(len(self.table))

    def areas(self, sizes: Sequence[int], values: ranking.Values) -> tuple[float, float]:
        """CPR and CMD as MIB has them: at its shares, of the means over pairs."""
        gaps = np.zeros(self.pairs)
        for runs, indices in self.batches:
            gaps[indices] = runs.gap.double().cpu().numpy()
        faithful = values @ gaps / gaps.sum()
        value_of = dict(zip(sizes, faithful.tolist(), strict=True))
        return ranking.areas(ranking.MIB_SHARES, [value_of[size] for size in self.sizes])


def _numbers(graph: EapGraph, table: EdgeTable, model: Model) -> tuple[int, ...]:
    """The order of a file by number; edges that it does not name come last."""
    if (graph.layers, graph.heads) != (table.layers, table.heads):
        theirs = f"the file is of a model of {graph.layers} layers of {graph.heads} heads"
        raise FileError(f"{theirs}; {model.name} has {table.layers} of {table.heads}")
    number = {wire: index for index, wire in enumerate(table.wires)}
    order = graph.order()
    if missing := [wire for wire in order if wire not in number]:
        raise FileError(f"the file has {len(missing)} edges that {model.name} has not, such as {missing[0]}")
    named = dict.fromkeys(number[wire] for wire in order)
    return (*named, *(index for index in range(len(table)) if index not in named))
