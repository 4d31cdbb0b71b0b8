"""Rows, which say what one run of the model has changed.

A `Row` is a set of changes, each at a layer, a position and a site: `edge` (the message of one head from one
key to one query), `head` (all that a head writes at a position: its `z`), `attention` and `mlp` (what they
write at a position), `residual` (the stream at the input of a layer). What stands in the changed places is a
`cache.Replacement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float, Int

from circuits.components import Edge, Head
from circuits.errors import EdgeError

# The kinds of ablation (`engine.ablation` says what each is).
Direction = Literal["swap", "restore", "zero", "mean", "knockout", "noise"]
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
# Those that put in values of another run of the same pair. Where both prompts are the same, they change nothing.
OF_PAIR: Final[tuple[Direction, ...]] = ("swap", "restore", "noise")
Site = Literal["edge", "head", "attention", "mlp", "residual"]
Indices = Int[torch.Tensor, " change"]
Given = Mapping[Site, Float[torch.Tensor, "input value width"]]


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One thing that is not as in the base run."""

    layer: int
    position: int  # where it is written: of an edge, its query
    site: Site
    head: int = -1  # of edges and heads
    key: int = -1  # of edges
    given: int = -1  # which of the caller's values to put there; -1: the direction's own


@dataclass(frozen=True, slots=True, repr=False)
class Row:
    """All the changes of one run. A row without changes is the base run itself.

    >>> edge = circuits.Edge.parse("L5H1:5→8")
    >>> circuits.Row.of_edges([edge]).first_layer
    5
    """

    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        if len(self.changes) <= 1:
            return f"Row({', '.join(map(str, self.changes))})"
        return f"Row({len(self.changes)} changes, the first {self.changes[0]})"

    @classmethod
    def of_edges(cls, edges: Iterable[Edge]) -> Row:
        """The messages of all these edges."""
        changes = [
            Change(edge.head.layer, edge.query, "edge", edge.head.index, edge.key)
            for edge in edges
        ]
        return cls(tuple(sorted(changes)))

    @classmethod
    def of_heads(cls, heads: Iterable[Head], positions: Iterable[int]) -> Row:
        """Everything that these heads write at these positions."""
        positions = tuple(positions)
        changes = []
        for head in heads:
            changes += [
                Change(head.layer, position, "head", head.index) for position in positions
            ]
        return cls(tuple(sorted(changes)))

    @classmethod
    def of_writes(cls, layer: int, positions: Iterable[int]) -> Row:
        """What the attention and the MLP of block `layer` write at these positions."""
        changes = []
        for position in positions:
            changes.append(Change(layer, position, "attention"))
            changes.append(Change(layer, position, "mlp"))
        return cls(tuple(sorted(changes)))

    @classmethod
    def of_residual(cls, layer: int, positions: Iterable[int]) -> Row:
        """The residual stream at the input of `layer`. The number of layers means: above the last block."""
        return cls(tuple(Change(layer, position, "residual") for position in sorted(positions)))

    @classmethod
    def of_given(
        cls, layer: int, positions: Sequence[int], site: Site, *, first: int, head: int = -1
    ) -> Row:
        """Values of the caller at these positions, the first of them number `first`."""
        changes = []
        for number, position in enumerate(positions, first):
            changes.append(Change(layer, position, site, head, given=number))
        return cls(tuple(changes))

    def only(self, wanted: Callable[[Change], bool]) -> Row:
        """The row without the other changes."""
        return Row(tuple(filter(wanted, self.changes)))

    @property
    def first_layer(self) -> int:
        return min([change.layer for change in self.changes])

    @property
    def first_position(self) -> int:
        return min([change.position for change in self.changes])


def check_rows(
    rows: Iterable[Row], *, direction: str, layers: int, heads: int, length: int
) -> None:
    """Refuse, before anything runs, a change that does not exist in this model and prompt."""
    if direction not in DIRECTIONS:
        raise EdgeError(f"no ablation {direction!r}; there are {', '.join(DIRECTIONS)}")
    for row in rows:
        for change in row.changes:
            _check_change(change, direction, layers, heads, length)


def _check_change(change: Change, direction: str, layers: int, heads: int, length: int) -> None:
    if not 0 <= change.position < length:
        raise EdgeError(
            f"position {change.position} lies outside the prompt, which has 0…{length - 1}"
        )
    highest = layers if change.site == "residual" else layers - 1
    if not 0 <= change.layer <= highest:
        raise EdgeError(f"layer {change.layer} does not exist: this model has 0…{layers - 1}")
    if change.site in ("edge", "head") and not 0 <= change.head < heads:
        name = f"L{change.layer}H{change.head}"
        raise EdgeError(f"head {name} does not exist: this model has {heads} heads a layer")
    if change.site == "edge" and not 0 <= change.key <= change.position:
        edge = f"{change.key}→{change.position}"
        raise EdgeError(f"edge {edge} runs backwards: attention reads at or before its query")
    if direction == "knockout" and change.site != "edge":
        raise EdgeError(
            f"knockout shuts attention edges; it means nothing for {change.site}: use zero"
        )


@dataclass(frozen=True, slots=True)
class ChangeTable:
    """Changes of one site in one layer as index tensors."""

    row: Indices
    position: Indices
    head: Indices
    key: Indices
    given: Indices

    @classmethod
    def of(cls, changes: Sequence[tuple[int, Change]], device: torch.device) -> ChangeTable:
        """From pairs of a row's number and its change."""
        listed = []
        for row, change in changes:
            listed.append((row, change.position, change.head, change.key, change.given))
        columns = torch.tensor(listed, device=device).unbind(1)
        return cls(*columns)


def changes_by_site(rows: Sequence[Row]) -> dict[tuple[int, Site], list[tuple[int, Change]]]:
    """All changes of some rows by layer and site, each with its row's number."""
    found: dict[tuple[int, Site], list[tuple[int, Change]]] = {}
    for number, row in enumerate(rows):
        for change in row.changes:
            found.setdefault((change.layer, change.site), []).append((number, change))
    return found
