"""Where the nodes and wires of a wiring stand: boxes in rows and columns, and wires in lanes beside them.

1. Rows are layers, the heads of a layer below its MLP; layers without nodes have no row. Columns are the
   places in use; a wiring without places has one column. Barycentre sweeps order the boxes of a row.
2. A wire that passes rows runs straight up in a lane beside the boxes of a column. Within a column it passes
   on the side where it crosses fewer wires, longer wires outside of shorter ones. A wire to a later place
   runs left of the column that it goes to.
3. A wire changes its x only in the space between two rows, where no box is. So no wire touches a box other
   than those that it joins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Final

from circuits.components import SIDES
from circuits.wires.record import LOGITS, Node

if TYPE_CHECKING:
    from circuits.wires.record import WireValue, Wiring

# All lengths are in points.
THINNEST: Final = 0.5  # line of a wire without value
_WIDEST: Final = 3.0  # line of the most valuable wire
# Boxes of a column side by side; more heads of a layer take another row.
_MOST_IN_ROW: Final = 4
_SWEEPS: Final = 8
_BETWEEN_BOXES: Final = 7.0  # in a row
_BETWEEN_COLUMNS: Final = 12.0
_CLEARANCE: Final = 4.0  # between a box and the lane beside it
_LANE: Final = 1.8  # free space between two lanes
_FAR: Final = 40.0  # a wire rather crosses another than that it runs so much farther outside
_LOWEST_GAP: Final = 10.0  # between two rows
_HIGHEST_GAP: Final = 20.0
_RISE: Final = 0.09  # a gap is higher by this share of the longest way aside in it
_SPREADS: Final = (
    3.0,
    2.2,
    1.5,
    1.25,
    1.0,
    0.75,
    0.5,
    0.35,
)  # of the space between lanes, widest first


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
class Size:
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows, from the embeddings up, and the columns; of each node its row and column."""

    rows: tuple[tuple[Node, ...], ...]
    columns: tuple[int | None, ...]
    row: Mapping[Node, int]
    column: Mapping[Node, int]

    def passed(self, strand: Strand) -> range:
        """The rows between a wire's ends."""
        return range(self.row[strand.start] + 1, self.row[strand.end])


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a wire passes rows: at this distance left (−) or right (+) of the centre of a column."""

    column: int
    offset: float


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
    points: tuple[tuple[float, float], ...]


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
    strands = to_strands(wiring)
    grid = to_grid(wiring, strands)
    sizes = {node: _box_size(node, strands, label_size(node)) for node in grid.row}
    footers = [footer_width(place) for place in grid.columns]
    for spread in _SPREADS:
        lanes = _lanes(grid, strands, sizes, spread)
        centres, needed = _centres(grid, strands, sizes, lanes, footers, width)
        if needed <= width or spread == _SPREADS[-1]:
            return _placed(grid, strands, sizes, lanes, centres, max(width, needed))
    raise AssertionError("the last spread is always taken")


# Wires, rows and columns


def to_strands(wiring: Wiring) -> tuple[Strand, ...]:
    """Every wire with every node that it ends at."""
    largest = max((abs(each.value) for each in wiring.wires), default=1.0) or 1.0
    strands = []
    for each in wiring.wires:
        line = THINNEST + (_WIDEST - THINNEST) * abs(each.value) / largest
        for end in wiring.readers_of(each.wire):
            strands.append(Strand(each, Node.written(each.wire), end, line))
    return tuple(strands)


def to_grid(wiring: Wiring, strands: Sequence[Strand]) -> Grid:
    """The rows and columns of a wiring's nodes."""
    nodes = wiring.nodes or (LOGITS,)
    last = len(wiring.places) - 1 if wiring.places else None
    places = {node: last if node == LOGITS else node.place for node in nodes}
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
    return Grid(tuple(rows), columns, row, column)


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


def _box_size(node: Node, strands: Sequence[Strand], label: Size) -> Size:
    """Room for the label, for the arrowheads below and for the wires above."""
    entering = sum(_side_room(node, side, strands) for side in _sides_in_use(node, strands))
    leaving = sum(strand.line + 1.2 for strand in strands if strand.start == node)
    return Size(max(label.width, entering + 3, leaving + 5), label.height)


def _sides_in_use(node: Node, strands: Sequence[Strand]) -> list[str]:
    used = {strand.side for strand in strands if strand.end == node}
    return sorted(used)


def _side_room(node: Node, side: str, strands: Iterable[Strand]) -> float:
    """The width that the arrowheads of a side take; a side of a head has its letter above them."""
    heads = [strand.head for strand in strands if strand.end == node and strand.side == side]
    least = 6.5 if side in SIDES else 0.0
    return max(least, sum(heads) + 0.3 * len(heads))


# Lanes


def _lanes(
    grid: Grid, strands: Sequence[Strand], sizes: Mapping[Node, Size], spread: float
) -> dict[Strand, Lane]:
    """The lane of every wire that passes a row."""
    long = [strand for strand in strands if grid.passed(strand)]
    inside = [s for s in long if grid.column[s.start] == grid.column[s.end]]
    across = [s for s in long if grid.column[s.start] != grid.column[s.end]]
    inside.sort(key=lambda s: (len(grid.passed(s)), grid.row[s.start]))
    # So that a wire from a lower row, which is nearer to its goal, crosses none from a higher row.
    across.sort(key=lambda s: (grid.row[s.start], grid.row[s.end]))
    offsets = _box_centres(grid, sizes, [0.0] * len(grid.columns))
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
    widest = max(_row_width(grid, row, column, sizes) for row in rows)
    nearest = widest / 2 + _CLEARANCE + strand.line / 2 if widest else 1.0 + strand.line
    for other, distance in placed:
        both = set(rows) & set(grid.passed(other))
        if both:
            between = (other.line + strand.line) / 2 + _LANE * spread
            nearest = max(nearest, distance + between)
    return nearest


def _row_width(grid: Grid, row: int, column: int, sizes: Mapping[Node, Size]) -> float:
    """How wide the boxes of a column are in a row, with the space between them."""
    widths = [sizes[node].width for node in grid.rows[row] if grid.column[node] == column]
    return sum(widths) + _BETWEEN_BOXES * max(0, len(widths) - 1)


# Columns


def _centres(
    grid: Grid,
    strands: Sequence[Strand],
    sizes: Mapping[Node, Size],
    lanes: Mapping[Strand, Lane],
    footers: Sequence[float],
    width: float,
) -> tuple[list[float], float]:
    """The centre of each column, and the width that all of them need. Space that is left over lies between
    columns and at both edges."""
    reach = []  # of a column: for each row how far it reaches to the left and to the right
    for column in range(len(grid.columns)):
        reach.append(_reach(grid, column, strands, sizes, lanes, footers[column]))
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
    strands: Sequence[Strand],
    sizes: Mapping[Node, Size],
    lanes: Mapping[Strand, Lane],
    footer: float,
) -> list[tuple[float, float]]:
    """How far a column with its lanes reaches to the left and right of its centre: in each row, then in its
    footer."""
    reach = []
    for row in range(len(grid.rows)):
        left = right = _row_width(grid, row, column, sizes) / 2
        for strand in strands:
            lane = lanes.get(strand)
            if lane is None or lane.column != column or row not in grid.passed(strand):
                continue
            left = max(left, strand.line / 2 - lane.offset)
            right = max(right, strand.line / 2 + lane.offset)
        reach.append((left, right))
    return [*reach, (footer / 2, footer / 2)]


# Boxes and the ways of wires


def _placed(
    grid: Grid,
    strands: Sequence[Strand],
    sizes: Mapping[Node, Size],
    lanes: Mapping[Strand, Lane],
    centres: Sequence[float],
    width: float,
) -> WiringLayout:
    """Coordinates of everything."""
    xs = _box_centres(grid, sizes, centres)
    lane_x = {strand: centres[lane.column] + lane.offset for strand, lane in lanes.items()}
    sides = {node: _sides(node, strands, xs, lane_x, sizes) for node in grid.row}
    leaving = _leaving(grid, strands, xs, lane_x)
    entering = _entering(grid, strands, xs, lane_x, sides)
    bands, height = _bands(grid, strands, sizes, leaving, entering, lane_x)
    boxes = {}
    for node, row in grid.row.items():
        top, bottom = bands[row]
        boxes[node] = Box(xs[node], (top + bottom) / 2, sizes[node], tuple(sides[node].items()))
    courses = []
    for strand in strands:
        points = [(leaving[strand], boxes[strand.start].top)]
        points.append((leaving[strand], bands[grid.row[strand.start]][0]))
        passed = grid.passed(strand)
        if passed:
            x = lane_x[strand]
            points += [(x, bands[passed[0]][1]), (x, bands[passed[-1]][0])]
        points.append((entering[strand], bands[grid.row[strand.end]][1]))
        points.append((entering[strand], boxes[strand.end].bottom))
        courses.append(Course(strand, tuple(points)))
    return WiringLayout(grid, boxes, tuple(courses), tuple(centres), width, height)


def _box_centres(
    grid: Grid, sizes: Mapping[Node, Size], centres: Sequence[float]
) -> dict[Node, float]:
    xs = {}
    for number, row in enumerate(grid.rows):
        for column, centre in enumerate(centres):
            x = centre - _row_width(grid, number, column, sizes) / 2
            for node in row:
                if grid.column[node] == column:
                    xs[node] = x + sizes[node].width / 2
                    x += sizes[node].width + _BETWEEN_BOXES
    return xs


def _sides(
    node: Node,
    strands: Sequence[Strand],
    xs: Mapping[Node, float],
    lane_x: Mapping[Strand, float],
    sizes: Mapping[Node, Size],
) -> dict[str, float]:
    """The middle of each side of a box along its lower edge. Sides stand in the order in which their wires
    come from the left."""
    pulls = {}
    for side in _sides_in_use(node, strands):
        wires = [s for s in strands if s.end == node and s.side == side]
        pulls[side] = fmean(lane_x.get(strand, xs[strand.start]) for strand in wires)
    order = sorted(pulls, key=lambda side: pulls[side])
    rooms = {side: _side_room(node, side, strands) for side in order}
    free = (sizes[node].width - sum(rooms.values())) / (len(rooms) + 1)
    x = xs[node] - sizes[node].width / 2
    middles = {}
    for side in order:
        x += free
        middles[side] = x + rooms[side] / 2
        x += rooms[side]
    return middles


def _leaving(
    grid: Grid,
    strands: Sequence[Strand],
    xs: Mapping[Node, float],
    lane_x: Mapping[Strand, float],
) -> dict[Strand, float]:
    """Where each wire leaves the upper edge of its first box, in the order in which they part."""
    leaving = {}
    for node in grid.row:
        wires = [strand for strand in strands if strand.start == node]
        wires.sort(key=lambda strand: lane_x.get(strand, xs[strand.end]))
        room = sum(strand.line + 1.2 for strand in wires)
        x = xs[node] - room / 2
        for strand in wires:
            leaving[strand] = x + (strand.line + 1.2) / 2
            x += strand.line + 1.2
    return leaving


def _entering(
    grid: Grid,
    strands: Sequence[Strand],
    xs: Mapping[Node, float],
    lane_x: Mapping[Strand, float],
    sides: Mapping[Node, Mapping[str, float]],
) -> dict[Strand, float]:
    """Where each wire enters the lower edge of its last box, in the order in which they come."""
    entering = {}
    for node in grid.row:
        for side, middle in sides[node].items():
            wires = [s for s in strands if s.end == node and s.side == side]
            wires.sort(key=lambda strand: lane_x.get(strand, xs[strand.start]))
            x = middle - sum(strand.head + 0.3 for strand in wires) / 2
            for strand in wires:
                entering[strand] = x + (strand.head + 0.3) / 2
                x += strand.head + 0.3
    return entering


def _bands(
    grid: Grid,
    strands: Sequence[Strand],
    sizes: Mapping[Node, Size],
    leaving: Mapping[Strand, float],
    entering: Mapping[Strand, float],
    lane_x: Mapping[Strand, float],
) -> tuple[list[tuple[float, float]], float]:
    """The top and the bottom of each row, and the height of all. Between two rows there is more space where
    wires go far aside."""
    aside = [0.0] * len(grid.rows)  # the longest way aside above each row
    for strand in strands:
        first, last = grid.row[strand.start], grid.row[strand.end]
        x = lane_x.get(strand)
        if x is None:
            aside[first] = max(aside[first], abs(leaving[strand] - entering[strand]))
        else:
            aside[first] = max(aside[first], abs(leaving[strand] - x))
            aside[last - 1] = max(aside[last - 1], abs(entering[strand] - x))
    heights = [max(sizes[node].height for node in row) for row in grid.rows]
    bands: list[tuple[float, float]] = []
    y = 0.0
    for number in reversed(range(len(grid.rows))):
        if bands:
            y += min(_HIGHEST_GAP, _LOWEST_GAP + _RISE * aside[number])
        bands.append((y, y + heights[number]))
        y += heights[number]
    return bands[::-1], y
