"""Rows: which changes one run of the model gets, and how its messages change.

A row is a set of changes, each at a layer, a position and a site:

- `edge`   the message of one head from one key to one query (the only site that `knockout` knows)
- `head`   everything a head writes at a position (its `z`)
- `attention`, `mlp`   what a block's attention or MLP writes at a position
- `residual`   the residual stream at the input of a layer
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from circuits.errors import EdgeError
from circuits.heads import Edge, Head

Direction = Literal["swap", "restore", "zero", "knockout", "mean"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("swap", "restore", "zero", "knockout", "mean")
Site = Literal["edge", "head", "attention", "mlp", "residual"]


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One thing that is not as in the base run."""

    layer: int
    position: int  # where it is written: an edge's query
    site: Site
    head: int = -1  # edges and heads
    key: int = -1  # edges


@dataclass(frozen=True, slots=True)
class Row:
    """All the changes of one run; no change at all is the base run itself."""

    changes: tuple[Change, ...]

    @classmethod
    def of_edges(cls, edges: Iterable[Edge]) -> Row:
        """All these messages together."""
        return cls(tuple(sorted(Change(e.head.layer, e.query, "edge", e.head.index, e.key) for e in edges)))

    @classmethod
    def of_heads(cls, heads: Iterable[Head], positions: Iterable[int]) -> Row:
        """Everything these heads write at these positions."""
        at = tuple(positions)
        return cls(
            tuple(
                sorted(Change(head.layer, position, "head", head.index) for head in heads for position in at)
            )
        )

    @classmethod
    def of_writes(cls, layer: int, positions: Iterable[int]) -> Row:
        """What block `layer` writes at these positions, attention and MLP."""
        return cls(
            tuple(sorted(Change(layer, at, site) for at in positions for site in ("attention", "mlp")))
        )

    @classmethod
    def of_residual(cls, layer: int, positions: Iterable[int]) -> Row:
        """The residual stream at the input of `layer` (for `layer` = number of layers: above the last block)."""
        return cls(tuple(Change(layer, at, "residual") for at in sorted(positions)))

    @property
    def first_layer(self) -> int:
        return min(change.layer for change in self.changes)

    @property
    def first_position(self) -> int:
        return min(change.position for change in self.changes)


def check_rows(rows: Iterable[Row], *, direction: str, layers: int, heads: int, length: int) -> None:
    """Refuse, before anything runs, a change that does not exist in this model and prompt."""
    if direction not in DIRECTIONS:
        raise EdgeError(f"no direction {direction!r}; there are {', '.join(DIRECTIONS)}")
    for change in {change for row in rows for change in row.changes}:
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
