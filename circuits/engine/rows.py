"""Rows: which changes one run of the model gets, and where the new values come from.

A row is a set of changes, each at a layer, a position and a site:

- `edge`   the message of one head from one key to one query (the only site that `knockout` knows)
- `head`   everything a head writes at a position (its `z`)
- `attention`, `mlp`   what a block's attention or MLP writes at a position
- `residual`   the residual stream at the input of a layer

`Cache` holds one run of a batch of inputs; it grows while the run climbs, and what is there may be read at
once. `NewValues` answers "what should stand there instead": another run's values, nothing at all, or the mean
over a family of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from jaxtyping import Float, Int

from circuits.components import Edge, Head
from circuits.engine.block import UnkeptPattern, Written
from circuits.errors import EdgeError

Direction = Literal["swap", "restore", "zero", "knockout", "mean"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("swap", "restore", "zero", "knockout", "mean")
Site = Literal["edge", "head", "attention", "mlp", "residual"]
Indices = Int[torch.Tensor, " change"]
Given = Mapping[Site, Float[torch.Tensor, "input value width"]]  # values handed over with rows


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One thing that is not as in the base run."""

    layer: int
    position: int  # where it is written: an edge's query
    site: Site
    head: int = -1  # edges and heads
    key: int = -1  # edges
    given: int = -1  # which of the values handed over with the rows to put there; -1: the direction's own


@dataclass(frozen=True, slots=True)
class Row:
    """All the changes of one run; no change at all is the base run itself.

    >>> edge = circuits.Edge.parse("L5H1:5→8")
    >>> circuits.Row.of_edges([edge]).first_layer
    5
    """

    changes: tuple[Change, ...]

    @classmethod
    def of_edges(cls, edges: Iterable[Edge]) -> Row:
        """All these messages together."""
        return cls(tuple(sorted(Change(e.head.layer, e.query, "edge", e.head.index, e.key) for e in edges)))

    @classmethod
    def of_heads(cls, heads: Iterable[Head], positions: Iterable[int]) -> Row:
        """Everything these heads write at these positions."""
        written = tuple(positions)
        return cls(
            tuple(sorted(Change(h.layer, position, "head", h.index) for h in heads for position in written))
        )

    @classmethod
    def of_writes(cls, layer: int, positions: Iterable[int]) -> Row:
        """What block `layer` writes at these positions, attention and MLP."""
        sites: tuple[Site, Site] = ("attention", "mlp")
        return cls(tuple(sorted(Change(layer, position, site) for position in positions for site in sites)))

    @classmethod
    def of_residual(cls, layer: int, positions: Iterable[int]) -> Row:
        """The residual stream at the input of `layer` (of the number of layers: above the last block)."""
        return cls(tuple(Change(layer, position, "residual") for position in sorted(positions)))

    def only(self, wanted: Callable[[Change], bool]) -> Row:
        """The row without the other changes."""
        return Row(tuple(filter(wanted, self.changes)))

    @property
    def first_layer(self) -> int:
        return min([change.layer for change in self.changes])

    @property
    def first_position(self) -> int:
        return min([change.position for change in self.changes])


def check_rows(rows: Iterable[Row], *, direction: str, layers: int, heads: int, length: int) -> None:
    """Refuse, before anything runs, a change that does not exist in this model and prompt."""
    if direction not in DIRECTIONS:
        raise EdgeError(f"no direction {direction!r}; there are {', '.join(DIRECTIONS)}")
    for change in (change for row in rows for change in row.changes):
        if not 0 <= change.position < length:
            raise EdgeError(f"position {change.position} lies outside the prompt, which has 0…{length - 1}")
        top = layers if change.site == "residual" else layers - 1
        if not 0 <= change.layer <= top:
            raise EdgeError(f"layer {change.layer} does not exist: this model has 0…{layers - 1}")
        if change.site in ("edge", "head") and not 0 <= change.head < heads:
            raise EdgeError(
                f"head L{change.layer}H{change.head} does not exist: this model has {heads} heads a layer"
            )
        if change.site == "edge" and not 0 <= change.key <= change.position:
            raise EdgeError(
                f"edge {change.key}→{change.position} runs backwards: attention reads at or before its query"
            )
        if direction == "knockout" and change.site != "edge":
            raise EdgeError(f"knockout shuts attention edges; it means nothing for {change.site}: use zero")


@dataclass(frozen=True, slots=True)
class ChangeTable:
    """Changes of one site in one layer as index tensors: which row, which position, which head, which key."""

    row: Indices
    position: Indices
    head: Indices
    key: Indices
    given: Indices

    @classmethod
    def of(cls, changes: Sequence[tuple[int, Change]], device: torch.device) -> ChangeTable:
        listed = [(row, c.position, c.head, c.key, c.given) for row, c in changes]
        return cls(*torch.tensor(listed, device=device).reshape(-1, 5).unbind(1))


# What a run leaves behind


@dataclass(slots=True)
class Layer:
    """One block of one run. Keys and values are spread over all heads, rotated where the model rotates.

    Of the last block the fast path computes `z`, `attention` and `mlp` only where the metric is read, at the
    last position or the last few; elsewhere, where nothing can read them, they are NaN. Of a long prompt it
    keeps neither patterns nor writes.
    """

    pre: Float[torch.Tensor, "input pos d_model"]
    pattern: Float[torch.Tensor, "input head query key"] | UnkeptPattern
    value: Float[torch.Tensor, "input head pos d_head"]
    z: Float[torch.Tensor, "input pos head d_head"]
    attention: Float[torch.Tensor, "input pos d_model"] | Written
    mlp: Float[torch.Tensor, "input pos d_model"] | Written
    query: Float[torch.Tensor, "input head pos d_head"] | None = (
        None  # the fast path reads these two, the plain one does not
    )
    key: Float[torch.Tensor, "input head pos d_head"] | None = None


@dataclass(slots=True)
class Cache:
    """One run: its blocks and what came out of the last (of the last block of all: where the metric is read,
    NaN elsewhere)."""

    layers: tuple[Layer, ...]
    final: Float[torch.Tensor, "input pos d_model"]

    def pre(self, layer: int) -> Float[torch.Tensor, "input pos d_model"]:
        """The residual stream at the input of a layer, or above the last so far."""
        return self.layers[layer].pre if layer < len(self.layers) else self.final


@dataclass(frozen=True, slots=True)
class NewValues:
    """The values of a run, as they are, averaged over its inputs (`mean`) or reduced to nothing (`zero`)."""

    run: Cache
    reduced: Literal["mean", "zero"] | None = None
    given: Given = field(default_factory=dict)

    def reduce(self, values: torch.Tensor) -> torch.Tensor:
        if self.reduced is None:
            return values
        return values.mean(0, keepdim=True) if self.reduced == "mean" else torch.zeros_like(values)

    def message(
        self, layer: int, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change d_head"]:
        stored = self.run.layers[layer]
        return self.reduce(stored.pattern[:, head, query, key, None] * stored.value[:, head, key])

    def values(self, layer: int, site: Site, table: ChangeTable) -> Float[torch.Tensor, "input change width"]:
        """What each change of a site puts there: the run's own value, or the one handed over for it."""
        if site == "head":
            own = self.run.layers[layer].z[:, table.position, table.head]
        elif site == "residual":
            own = self.run.pre(layer)[:, table.position]
        else:
            own = getattr(self.run.layers[layer], site)[:, table.position]
        if site not in self.given:
            return self.reduce(own)
        handed = self.given[site][:, table.given.clamp(min=0)]
        return torch.where((table.given >= 0)[:, None], handed, self.reduce(own))
