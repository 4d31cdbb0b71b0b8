"""What is kept or swapped: all heads, or all attention edges of a task's prompts, and the changes that each means in a batch.

1. A batch holds pairs of one length (for edges: of one layout of roles), so that a unit is the same changes in all of them.
2. Positions before the first difference are the same in both runs; nothing is changed there.
3. Where no key of a head is kept at a query, its whole output there is swapped, and where no head is, all that attention writes
   there: the same as swapping each message, and cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from circuits.engine import Change, Row, Runs
from circuits.heads import Head
from circuits.tasks.ranking import Mlps, RoleEdge
from circuits.tasks.records import Item

Kept = Bool[np.ndarray, " unit"]


@dataclass(frozen=True)
class Batch:
    """Pairs that are run together, and where they stand in the task."""

    runs: Runs
    places: tuple[int, ...]
    items: tuple[Item, ...]
    mlps: Mlps

    @cached_property
    def first(self) -> int:
        """The first position at which any pair differs."""
        return min(at for item in self.items for at in item.pair.differs_at)

    @cached_property
    def always(self) -> tuple[Change, ...]:
        """What is changed whatever is kept: nothing, or the writes of all MLPs."""
        if self.mlps == "computed":
            return ()
        return tuple(
            Change(layer, at, "mlp") for layer in range(self.runs.model.n_layers) for at in self.late
        )

    @property
    def late(self) -> range:
        return range(self.first, self.runs.length)


def with_held_mlps(runs: Runs) -> Runs:
    """The same runs, with a counterfactual in which the MLPs write what they write in the clean run."""
    both = zip(runs.counterfactual.cache.layers, runs.clean.cache.layers, strict=True)
    layers = tuple(replace(other, mlp=clean.mlp) for other, clean in both)
    return replace(
        runs,
        counterfactual=replace(runs.counterfactual, cache=replace(runs.counterfactual.cache, layers=layers)),
    )


@dataclass(frozen=True)
class HeadUnits:
    """All heads of a model, each at all positions."""

    layers: int
    heads: int

    @cached_property
    def names(self) -> tuple[Head, ...]:
        return tuple(Head(layer, index) for layer in range(self.layers) for index in range(self.heads))

    def alone(self, batch: Batch) -> Iterator[tuple[int, Row]]:
        """Each unit, and the row in which it alone is swapped."""
        for unit, head in enumerate(self.names):
            yield unit, Row((*batch.always, *Row.of_heads([head], batch.late).changes))

    def without(self, batch: Batch, kept: Kept) -> Row:
        """The row in which all units but the kept are swapped."""
        stays = np.broadcast_to(
            kept.reshape(self.layers, self.heads, 1), (self.layers, self.heads, len(batch.late))
        )
        return Row((*batch.always, *_whole_outputs(stays, batch.first)))


@dataclass(frozen=True)
class EdgeUnits:
    """All attention edges of the prompts: unit number = place of (key, query) among `spots` × heads + head."""

    layers: int
    heads: int
    spots: tuple[tuple[str, str], ...]  # (key, query), named
    by_role: bool

    @classmethod
    def of(cls, layers: int, heads: int, items: Sequence[Item], *, by_role: bool) -> EdgeUnits:
        spots: dict[tuple[str, str], None] = {}
        for layout in {(len(item.pair), item.roles): item for item in items}.values():
            names = position_names(layout, by_role=by_role)
            spots |= dict.fromkeys(
                (names[key], names[query]) for query in range(len(names)) for key in range(query + 1)
            )
        return cls(layers, heads, tuple(spots), by_role)

    @cached_property
    def names(self) -> tuple[RoleEdge, ...]:
        heads = HeadUnits(self.layers, self.heads).names
        return tuple(RoleEdge(head, key, query) for key, query in self.spots for head in heads)

    @cached_property
    def _place(self) -> dict[tuple[str, str], int]:
        return {spot: place for place, spot in enumerate(self.spots)}

    @cached_property
    def _numbers(self) -> dict[object, Int[np.ndarray, "layer head query key"]]:
        return {}  # layout -> units, filled as batches come

    def units_at(self, batch: Batch) -> Int[np.ndarray, "layer head query key"]:
        """The number of the unit that each edge of the batch is; -1 in the future."""
        layout = (batch.runs.length, batch.items[0].roles)
        if layout not in self._numbers:
            names = position_names(batch.items[0], by_role=self.by_role)
            places = np.full((len(names), len(names)), -1)
            for query in range(len(names)):
                for key in range(query + 1):
                    places[query, key] = self._place[names[key], names[query]]
            heads = np.arange(self.layers * self.heads).reshape(self.layers, self.heads, 1, 1)
            self._numbers[layout] = np.where(places >= 0, places * self.layers * self.heads + heads, -1)
        return self._numbers[layout]

    def alone(self, batch: Batch) -> Iterator[tuple[int, Row]]:
        """Each unit that can have an effect here, and the row in which it alone is swapped; neighbours share their first position."""
        units = self.units_at(batch)
        for query in batch.late:
            for layer, head in np.ndindex(self.layers, self.heads):
                for key in range(query + 1):
                    yield (
                        int(units[layer, head, query, key]),
                        Row((*batch.always, Change(layer, query, "edge", head, key))),
                    )

    def without(self, batch: Batch, kept: Kept) -> Row:
        """The row in which all units but the kept are swapped."""
        units = self.units_at(batch)[:, :, batch.first :]
        stays = kept[units] & (units >= 0)  # (layer, head, query, key)
        some = np.asarray(stays.any(-1))
        single = some[..., None] & ~stays & (units >= 0)
        edges = [
            Change(layer, batch.first + at, "edge", head, key)
            for layer, head, at, key in np.argwhere(single).tolist()
        ]
        return Row((*batch.always, *_whole_outputs(some, batch.first), *edges))


def _whole_outputs(stays: Bool[np.ndarray, "layer head late"], first: int) -> list[Change]:
    """Swap the outputs of heads that do not stay, position by position: as one where none of a layer's heads stays."""
    some = np.asarray(stays.any(1))
    blocks = [Change(layer, first + at, "attention") for layer, at in np.argwhere(~some).tolist()]
    heads = [
        Change(layer, first + at, "head", head)
        for layer, head, at in np.argwhere(some[:, None] & ~stays).tolist()
    ]
    return blocks + heads


def position_names(item: Item, *, by_role: bool) -> tuple[str, ...]:
    """A name for every position of an item's prompt."""
    return tuple(item.name_of(at) if by_role else str(at) for at in range(len(item.pair)))
