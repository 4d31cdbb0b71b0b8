"""Where the nodes and wires of a wiring stand: boxes in rows and columns, and wires in lanes beside them.

1. `wiring_grid` puts nodes into rows and columns, `wiring_lanes` long wires into lanes beside the columns.
2. A wire changes its x only in the space between two rows, where no box is. So no wire touches a box other
   than those that it joins.
3. Where everything does not fit into the width, lanes stand closer together; then the figure becomes wider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Final

from circuits.show.canvas import Point
from circuits.show.wiring_grid import Grid, Strand, to_grid
from circuits.show.wiring_lanes import (
    BETWEEN_ARROWHEADS,
    BETWEEN_WIRES,
    Lane,
    Size,
    box_centres,
    box_size,
    row_width,
    side_room,
    to_lanes,
)
from circuits.wires.parts import Node

if TYPE_CHECKING:
    from circuits.wires.record import Wiring

# All lengths are in points.
_BETWEEN_COLUMNS: Final = 12.0
_LOWEST_GAP: Final = 10.0  # between two rows
_HIGHEST_GAP: Final = 20.0
_RISE: Final = 0.09  # a gap is higher by this share of the longest way aside in it
# Of the space between lanes, widest first.
_SPREADS: Final = (3.0, 2.2, 1.5, 1.25, 1.0, 0.75, 0.5, 0.35)


@dataclass(frozen=True, slots=True)
class Box:
    """A node: its centre, its size, and the middle of each of its sides in use."""

    x: float
    y: float
    size: Size
    sides: tuple[tuple[str, float], ...]

    @property
    def top(self) -> float:
        return self.y - self.size.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.size.height / 2

    @property
    def left(self) -> float:
        return self.x - self.size.width / 2


@dataclass(frozen=True, slots=True)
class Course:
    """The way of a wire: it leaves a box at the first point and enters another at the last. Each further pair
    of points is a vertical piece; curves join the pieces."""

    strand: Strand
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class WiringLayout:
    """All boxes and wires; y runs down from 0, the top of the logits' row."""

    grid: Grid
    boxes: Mapping[Node, Box]
    courses: tuple[Course, ...]
    centres: tuple[float, ...]  # of the columns
    width: float
    height: float


def lay_out(
    wiring: Wiring,
    *,
    label_size: Callable[[Node], Size],
    footer_width: Callable[[int | None], float],
    width: float,
) -> WiringLayout:
    """Place everything in `width` points, or in more where it does not fit.

    `label_size` says how much room the words in a box take, `footer_width` those below a column.
    """
    grid = to_grid(wiring)
    sizes = {node: box_size(grid, node, label_size(node)) for node in grid.row}
    footers = [footer_width(place) for place in grid.columns]
    for spread in _SPREADS:
        lanes = to_lanes(grid, sizes, spread)
        centres, needed = _centres(grid, sizes, lanes, footers, width)
        if needed <= width or spread == _SPREADS[-1]:
            return _placed(grid, sizes, lanes, centres, max(width, needed))
    raise AssertionError("the last spread is always taken")


# Columns


def _centres(
    grid: Grid,
    sizes: Mapping[Node, Size],
    lanes: Mapping[Strand, Lane],
    footers: Sequence[float],
    width: float,
) -> tuple[list[float], float]:
    """The centre of each column, and the width that all of them need. Space that is left over lies between
    columns and at both edges."""
    reach = []  # of a column: for each row how far it reaches to the left and to the right
    for column in range(len(grid.columns)):
        reach.append(_reach(grid, column, sizes, lanes, footers[column]))
    centres = [max(left for left, _ in reach[0])]
    for before, after in pairwise(reach):
        rows = zip(before, after, strict=True)
        apart = max(right + left for (_, right), (left, _) in rows)
        centres.append(centres[-1] + apart + _BETWEEN_COLUMNS)
    needed = centres[-1] + max(right for _, right in reach[-1])
    left_over = max(0.0, width - needed) / (len(centres) + 1)
    return [x + left_over * (number + 1) for number, x in enumerate(centres)], needed


def _reach(
    grid: Grid,
    column: int,
    sizes: Mapping[Node, Size],
    lanes: Mapping[Strand, Lane],
    footer: float,
) -> list[tuple[float, float]]:
    """How far a column with its lanes reaches to the left and right of its centre: in each row, then in its
    footer."""
    reach = []
    for row in range(len(grid.rows)):
        left = right = row_width(grid, row, column, sizes) / 2
        for strand, lane in lanes.items():
            if lane.column == column and row in grid.passed(strand):
                left = max(left, strand.line / 2 - lane.offset)
                right = max(right, strand.line / 2 + lane.offset)
        reach.append((left, right))
    return [*reach, (footer / 2, footer / 2)]


# Boxes and the ways of wires


@dataclass(frozen=True, slots=True)
class Across:
    """Where boxes and lanes stand across the figure."""

    boxes: Mapping[Node, float]  # the centre of each box
    lanes: Mapping[Strand, float]  # of the wires that pass rows

    def goes_to(self, strand: Strand) -> float:
        """The x to which a wire runs above its writer."""
        return self.lanes.get(strand, self.boxes[strand.end])

    def comes_from(self, strand: Strand) -> float:
        """The x from which a wire comes below its reader."""
        return self.lanes.get(strand, self.boxes[strand.start])


def _placed(
    grid: Grid,
    sizes: Mapping[Node, Size],
    lanes: Mapping[Strand, Lane],
    centres: Sequence[float],
    width: float,
) -> WiringLayout:
    """Coordinates of everything."""
    lane_x = {strand: centres[lane.column] + lane.offset for strand, lane in lanes.items()}
    across = Across(box_centres(grid, sizes, centres), lane_x)
    sides = {node: _sides(grid, node, across, sizes) for node in grid.row}
    leaving = _leaving(grid, across)
    entering = _entering(grid, across, sides)
    bands, height = _bands(grid, sizes, leaving, entering, across)
    boxes = {}
    for node, row in grid.row.items():
        x, (top, bottom) = across.boxes[node], bands[row]
        boxes[node] = Box(x, (top + bottom) / 2, sizes[node], tuple(sides[node].items()))
    courses = []
    for strand in grid.strands:
        start, end = leaving[strand], entering[strand]
        points = [(start, boxes[strand.start].top), (start, bands[grid.row[strand.start]][0])]
        passed = grid.passed(strand)
        if passed:
            x = across.lanes[strand]
            points += [(x, bands[passed[0]][1]), (x, bands[passed[-1]][0])]
        points += [(end, bands[grid.row[strand.end]][1]), (end, boxes[strand.end].bottom)]
        courses.append(Course(strand, tuple(points)))
    return WiringLayout(grid, boxes, tuple(courses), tuple(centres), width, height)


def _sides(
    grid: Grid, node: Node, across: Across, sizes: Mapping[Node, Size]
) -> dict[str, float]:
    """The middle of each side of a box along its lower edge. Sides stand in the order in which their wires
    come from the left."""
    entering = grid.entering(node)
    # The mean x from which the wires of a side come.
    wires_from = {
        side: fmean(map(across.comes_from, wires)) for side, wires in entering.items()
    }
    order = sorted(wires_from, key=lambda side: wires_from[side])
    rooms = {side: side_room(side, entering[side]) for side in order}
    free = (sizes[node].width - sum(rooms.values())) / (len(rooms) + 1)
    x = across.boxes[node] - sizes[node].width / 2
    middles = {}
    for side in order:
        x += free
        middles[side] = x + rooms[side] / 2
        x += rooms[side]
    return middles


def _leaving(grid: Grid, across: Across) -> dict[Strand, float]:
    """Where each wire leaves the upper edge of its first box, in the order in which they part."""
    leaving = {}
    for node in grid.row:
        wires = sorted(grid.leaving(node), key=across.goes_to)
        rooms = [strand.line + BETWEEN_WIRES for strand in wires]
        leaving |= _side_by_side(wires, rooms, across.boxes[node])
    return leaving


def _entering(
    grid: Grid, across: Across, sides: Mapping[Node, Mapping[str, float]]
) -> dict[Strand, float]:
    """Where each wire enters the lower edge of its last box, in the order in which they come."""
    entering = {}
    for node in grid.row:
        for side, wires in grid.entering(node).items():
            wires.sort(key=across.comes_from)
            rooms = [strand.head + BETWEEN_ARROWHEADS for strand in wires]
            entering |= _side_by_side(wires, rooms, sides[node][side])
    return entering


def _side_by_side(
    wires: Sequence[Strand], rooms: Sequence[float], centre: float
) -> dict[Strand, float]:
    """Wires from left to right around a centre, each in the middle of its own room."""
    x = centre - sum(rooms) / 2
    placed = {}
    for wire, room in zip(wires, rooms, strict=True):
        placed[wire] = x + room / 2
        x += room
    return placed


def _bands(
    grid: Grid,
    sizes: Mapping[Node, Size],
    leaving: Mapping[Strand, float],
    entering: Mapping[Strand, float],
    across: Across,
) -> tuple[list[tuple[float, float]], float]:
    """The top and the bottom of each row, and the height of all. Between two rows there is more space where
    wires go far aside."""
    aside = [0.0] * len(grid.rows)  # the longest way aside above each row
    for strand in grid.strands:
        first, last = grid.row[strand.start], grid.row[strand.end]
        # A wire without a lane goes aside in one gap, all the way.
        lane = across.lanes.get(strand, entering[strand])
        aside[first] = max(aside[first], abs(leaving[strand] - lane))
        aside[last - 1] = max(aside[last - 1], abs(entering[strand] - lane))
    heights = [max(sizes[node].height for node in row) for row in grid.rows]
    bands: list[tuple[float, float]] = []
    y = 0.0
    for number in reversed(range(len(grid.rows))):
        if bands:
            y += min(_HIGHEST_GAP, _LOWEST_GAP + _RISE * aside[number])
        bands.append((y, y + heights[number]))
        y += heights[number]
    return bands[::-1], y
