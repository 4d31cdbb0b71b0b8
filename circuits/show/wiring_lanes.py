"""Lanes of a wiring: where wires that pass rows run, beside the boxes of a column.

1. Boxes of a row stand side by side around the centre of their column, with room for their labels and for the
   wires that enter and leave.
2. A wire that passes rows runs straight up in a lane. Within a column it passes on the side where it crosses
   fewer wires, longer wires outside of shorter ones. A wire to a later place runs left of the column that it
   goes to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from circuits.components import SIDES
from circuits.show.wiring_grid import Grid, Strand
from circuits.wires.parts import Node

# All lengths are in points.
_BETWEEN_BOXES: Final = 7.0  # in a row
_CLEARANCE: Final = 4.0  # between a box and the lane beside it
_LANE: Final = 1.8  # free space between two lanes
_FAR: Final = 40.0  # a wire rather crosses another than that it runs so much farther outside


@dataclass(frozen=True, slots=True)
class Size:
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a wire passes rows: at this distance left (−) or right (+) of the centre of a column."""

    column: int
    offset: float


# Boxes in a row


def box_size(node: Node, strands: Sequence[Strand], label: Size) -> Size:
    """Room for the label, for the arrowheads below and for the wires above."""
    entering = sum(side_room(node, side, strands) for side in sides_in_use(node, strands))
    leaving = sum(strand.line + 1.2 for strand in strands if strand.start == node)
    return Size(max(label.width, entering + 3, leaving + 5), label.height)


def sides_in_use(node: Node, strands: Sequence[Strand]) -> list[str]:
    used = {strand.side for strand in strands if strand.end == node}
    return sorted(used)


def side_room(node: Node, side: str, strands: Iterable[Strand]) -> float:
    """The width that the arrowheads of a side take; a side of a head has its letter above them."""
    heads = [strand.head for strand in strands if strand.end == node and strand.side == side]
    least = 6.5 if side in SIDES else 0.0
    return max(least, sum(heads) + 0.3 * len(heads))


def row_width(grid: Grid, row: int, column: int, sizes: Mapping[Node, Size]) -> float:
    """How wide the boxes of a column are in a row, with the space between them."""
    widths = [sizes[node].width for node in grid.rows[row] if grid.column[node] == column]
    return sum(widths) + _BETWEEN_BOXES * max(0, len(widths) - 1)


def box_centres(
    grid: Grid, sizes: Mapping[Node, Size], centres: Sequence[float]
) -> dict[Node, float]:
    xs = {}
    for number, row in enumerate(grid.rows):
        for column, centre in enumerate(centres):
            x = centre - row_width(grid, number, column, sizes) / 2
            for node in row:
                if grid.column[node] == column:
                    xs[node] = x + sizes[node].width / 2
                    x += sizes[node].width + _BETWEEN_BOXES
    return xs


# Lanes


def to_lanes(
    grid: Grid, strands: Sequence[Strand], sizes: Mapping[Node, Size], spread: float
) -> dict[Strand, Lane]:
    """The lane of every wire that passes a row."""
    long = [strand for strand in strands if grid.passed(strand)]
    inside = [s for s in long if grid.column[s.start] == grid.column[s.end]]
    across = [s for s in long if grid.column[s.start] != grid.column[s.end]]
    inside.sort(key=lambda s: (len(grid.passed(s)), grid.row[s.start]))
    # So that a wire from a lower row, which is nearer to its goal, crosses none from a higher row.
    across.sort(key=lambda s: (grid.row[s.start], grid.row[s.end]))
    offsets = box_centres(grid, sizes, [0.0] * len(grid.columns))
    beside: dict[tuple[int, int], list[tuple[Strand, float]]] = defaultdict(list)
    for strand in inside:
        column = grid.column[strand.end]
        sides = []
        for sign in (1, -1):
            others = [other for other, _ in beside[column, sign]]
            crossed = _crossings(grid, strand, others, strands, sign)
            distance = _free_distance(grid, strand, beside[column, sign], sizes, spread)
            ends = (offsets[strand.start], offsets[strand.end])
            aside = fmean(abs(sign * distance - offset) for offset in ends)
            sides.append((crossed + aside / _FAR, distance, sign))
        _, distance, sign = min(sides, key=lambda side: side[0])
        beside[column, sign].append((strand, distance))
    for strand in across:
        placed = beside[grid.column[strand.end], -1]
        placed.append((strand, _free_distance(grid, strand, placed, sizes, spread)))
    lanes = {}
    for (column, sign), placed in beside.items():
        for strand, distance in placed:
            lanes[strand] = Lane(column, sign * distance)
    return lanes


def _crossings(
    grid: Grid,
    strand: Strand,
    others: Iterable[Strand],
    strands: Iterable[Strand],
    sign: int,
) -> int:
    """How many wires a wire within a column crosses on one side: those there whose rows overlap with its own
    in part, and those from and to other columns that begin or end between its ends."""
    first, last = grid.row[strand.start], grid.row[strand.end]
    count = 0
    for other in others:
        low, high = grid.row[other.start], grid.row[other.end]
        count += low < first < high < last or first < low < last < high
    column = grid.column[strand.end]
    for other in strands:
        if grid.column[other.start] == grid.column[other.end]:
            continue
        if sign > 0 and grid.column[other.start] == column:
            count += first < grid.row[other.start] < last
        if sign < 0 and grid.column[other.end] == column:
            count += first < grid.row[other.end] < last
    return count


def _free_distance(
    grid: Grid,
    strand: Strand,
    placed: Iterable[tuple[Strand, float]],
    sizes: Mapping[Node, Size],
    spread: float,
) -> float:
    """How far from the centre of its last column a wire has room: outside of the boxes that it passes and of
    all wires placed before that pass the same rows."""
    column = grid.column[strand.end]
    rows = grid.passed(strand)
    widest = max(row_width(grid, row, column, sizes) for row in rows)
    nearest = widest / 2 + _CLEARANCE + strand.line / 2 if widest else 1.0 + strand.line
    for other, distance in placed:
        both = set(rows) & set(grid.passed(other))
        if both:
            between = (other.line + strand.line) / 2 + _LANE * spread
            nearest = max(nearest, distance + between)
    return nearest
