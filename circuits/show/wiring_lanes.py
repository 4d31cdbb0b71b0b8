"""Lanes of a wiring: where wires that pass rows run, beside the boxes of a column.

1. Boxes of a row stand side by side around the centre of their column, with room for their labels and for the
   wires that enter and leave.
2. A wire that passes rows runs straight up in a lane. Within a column it passes on the side where it crosses
   fewer wires, longer wires outside of shorter ones. A wire to a later place runs left of the column that it
   goes to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
BETWEEN_WIRES: Final = 1.2  # that leave a box
BETWEEN_ARROWHEADS: Final = 0.3  # that enter a box
_LETTER: Final = 6.5  # the width of the letter of a side

# Wires in the lanes on one side of a column, each with its distance from the column's centre.
Placed = list[tuple[Strand, float]]


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


def box_size(grid: Grid, node: Node, label: Size) -> Size:
    """Room for the label, for the arrowheads below and for the wires above."""
    entering = sum(side_room(side, wires) for side, wires in grid.entering(node).items())
    leaving = sum(strand.line + BETWEEN_WIRES for strand in grid.leaving(node))
    return Size(max(label.width, entering + 3, leaving + 5), label.height)


def side_room(side: str, wires: Sequence[Strand]) -> float:
    """The width that the arrowheads of a side take; a side of a head has its letter above them."""
    least = _LETTER if side in SIDES else 0.0
    return max(least, sum(wire.head for wire in wires) + BETWEEN_ARROWHEADS * len(wires))


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


def to_lanes(grid: Grid, sizes: Mapping[Node, Size], spread: float) -> dict[Strand, Lane]:
    """The lane of every wire that passes a row."""
    long = [strand for strand in grid.strands if grid.passed(strand)]
    within = [strand for strand in long if not grid.changes_column(strand)]
    across = [strand for strand in long if grid.changes_column(strand)]
    within.sort(key=lambda strand: (len(grid.passed(strand)), grid.row[strand.start]))
    # So that a wire from a lower row, which is nearer to its goal, crosses none from a higher row.
    across.sort(key=lambda strand: (grid.row[strand.start], grid.row[strand.end]))
    from_centre = box_centres(grid, sizes, [0.0] * len(grid.columns))
    placed: dict[tuple[int, int], Placed] = defaultdict(
        list
    )  # by column and side (1 right, −1 left)
    for strand in within:
        column = grid.column[strand.end]
        costs = {}
        distances = {}
        for side in (1, -1):
            others = placed[column, side]
            distance = _free_distance(grid, strand, others, sizes, spread)
            ends = (from_centre[strand.start], from_centre[strand.end])
            aside = fmean(abs(side * distance - x) for x in ends)
            costs[side] = _crossings(grid, strand, others, side) + aside / _FAR
            distances[side] = distance
        side = min(costs, key=lambda side: costs[side])
        placed[column, side].append((strand, distances[side]))
    for strand in across:
        others = placed[grid.column[strand.end], -1]
        others.append((strand, _free_distance(grid, strand, others, sizes, spread)))
    lanes = {}
    for (column, side), wires in placed.items():
        for strand, distance in wires:
            lanes[strand] = Lane(column, side * distance)
    return lanes


def _crossings(
    grid: Grid,
    strand: Strand,
    others: Placed,
    side: int,
) -> int:
    """How many wires a wire within a column crosses on one side: those there whose rows overlap with its own
    in part, and those from and to other columns that begin or end between its ends."""
    first, last = grid.row[strand.start], grid.row[strand.end]
    count = 0
    for other, _ in others:
        low, high = grid.row[other.start], grid.row[other.end]
        count += low < first < high < last or first < low < last < high
    column = grid.column[strand.end]
    for other in grid.strands:
        if not grid.changes_column(other):
            continue
        end = other.start if side > 0 else other.end  # wires leave to the right
        if grid.column[end] == column:
            count += first < grid.row[end] < last
    return count


def _free_distance(
    grid: Grid,
    strand: Strand,
    placed: Placed,
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
