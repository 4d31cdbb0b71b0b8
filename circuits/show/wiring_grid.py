"""Rows and columns of a wiring: where each node stands in the order of layers and places, before anything is
measured in points.

Rows are layers, the heads of a layer below its MLP; layers without nodes have no row. Columns are the places in
use; a wiring without places has one column. Barycentre sweeps order the boxes of a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from circuits.wires.parts import LOGITS, Node

if TYPE_CHECKING:
    from circuits.wires.parts import WireValue
    from circuits.wires.record import Wiring

THINNEST: Final = 0.5  # points: the line of a wire without value
WIDEST: Final = 3.0  # the line of the most valuable wire
# Boxes of a column side by side; more heads of a layer take another row.
_MOST_IN_ROW: Final = 4
_SWEEPS: Final = 8


@dataclass(frozen=True, slots=True)
class Strand:
    """A wire on its way to one of its readers."""

    each: WireValue
    start: Node
    end: Node
    line: float  # its width

    @property
    def side(self) -> str:
        return self.each.wire.reader.kind

    @property
    def head(self) -> float:
        """The width of its arrowhead."""
        return 2.2 + self.line


@dataclass(frozen=True, slots=True)
class Grid:
    """The wires; the rows, from the embeddings up, and the columns; of each node its row and column."""

    strands: tuple[Strand, ...]
    rows: tuple[tuple[Node, ...], ...]
    columns: tuple[int | None, ...]
    row: Mapping[Node, int]
    column: Mapping[Node, int]

    def passed(self, strand: Strand) -> range:
        """The rows between a wire's ends."""
        return range(self.row[strand.start] + 1, self.row[strand.end])

    def leaving(self, node: Node) -> list[Strand]:
        """The wires that a node writes."""
        return [strand for strand in self.strands if strand.start == node]

    def entering(self, node: Node) -> dict[str, list[Strand]]:
        """The wires that a node reads, by the side that they enter."""
        by_side: dict[str, list[Strand]] = defaultdict(list)
        for strand in self.strands:
            if strand.end == node:
                by_side[strand.side].append(strand)
        return dict(sorted(by_side.items()))

    def changes_column(self, strand: Strand) -> bool:
        return self.column[strand.start] != self.column[strand.end]


def kind_of(node: Node) -> str:
    """`head`, `mlp`, or what other component a node is; `logits`, which are none."""
    return "logits" if node.component is None else node.component.kind


def _to_strands(wiring: Wiring) -> tuple[Strand, ...]:
    """Every wire with every node that it ends at."""
    largest = max((abs(each.value) for each in wiring.wires), default=1.0) or 1.0
    strands = []
    for each in wiring.wires:
        line = THINNEST + (WIDEST - THINNEST) * abs(each.value) / largest
        for end in wiring.readers_of(each.wire):
            strands.append(Strand(each, Node.written(each.wire), end, line))
    return tuple(strands)


def to_grid(wiring: Wiring) -> Grid:
    """The rows and columns of a wiring's nodes."""
    strands = _to_strands(wiring)
    nodes = wiring.nodes or (LOGITS,)
    places = {}
    for node in nodes:
        places[node] = wiring.output_place if node == LOGITS else node.place
    columns = tuple(sorted(set(places.values()), key=lambda place: place or 0))
    column = {node: columns.index(place) for node, place in places.items()}
    levels: dict[tuple[int, bool], list[Node]] = defaultdict(list)
    for node in nodes:
        if node.component is None:
            levels[wiring.source.layers, False].append(node)
        else:
            levels[node.component.layer, node.component.kind == "mlp"].append(node)
    ordered = _ordered([levels[level] for level in sorted(levels)], column, strands)
    rows: list[tuple[Node, ...]] = []
    for level in ordered:
        rows += _folded(level, column)
    row = {node: number for number, nodes in enumerate(rows) for node in nodes}
    return Grid(strands, tuple(rows), columns, row, column)


def _ordered(
    levels: list[list[Node]], column: Mapping[Node, int], strands: Sequence[Strand]
) -> list[list[Node]]:
    """Order the nodes of each level by the mean place of their neighbours below, then above, and so on."""
    neighbours: dict[Node, list[Node]] = defaultdict(list)
    for strand in strands:
        neighbours[strand.start].append(strand.end)
        neighbours[strand.end].append(strand.start)
    place = {}
    for level in levels:
        place |= _spread(level, column)
    for sweep in range(_SWEEPS):
        numbers = range(len(levels)) if sweep % 2 == 0 else reversed(range(len(levels)))
        for number in numbers:
            pulls = {}
            for node in levels[number]:
                pulls[node] = fmean([place[other] for other in neighbours[node]] or [0.0])
            levels[number] = sorted(
                levels[number], key=lambda node: (column[node], pulls[node])
            )
            place |= _spread(levels[number], column)
    return levels


def _spread(level: Sequence[Node], column: Mapping[Node, int]) -> dict[Node, float]:
    """Places of a level's nodes for the sweeps: those of a column stand around its number."""
    place = {}
    for number in {column[node] for node in level}:
        group = [node for node in level if column[node] == number]
        for index, node in enumerate(group):
            place[node] = 10.0 * number + index - (len(group) - 1) / 2
    return place


def _folded(level: Sequence[Node], column: Mapping[Node, int]) -> list[tuple[Node, ...]]:
    """A level as one row, or as several where a column has too many boxes for one."""
    groups: dict[int, list[Node]] = defaultdict(list)
    for node in level:
        groups[column[node]].append(node)
    count = max(-(-len(group) // _MOST_IN_ROW) for group in groups.values())
    rows: list[list[Node]] = [[] for _ in range(count)]
    for group in groups.values():
        share = -(-len(group) // count)
        for number in range(count):
            rows[number] += group[number * share : (number + 1) * share]
    return [tuple(row) for row in rows if row]
