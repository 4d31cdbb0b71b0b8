"""Where everything of a scene stands on a scale of layers: tokens are columns, layers are rows.

1. Words stand side by side in the largest font that fits; if none fits, they stand upright.
2. A mapping is an arrow from key to query in every layer in which heads carry it, with their names on it:
   an item.
3. A row is a layer, the lowest first. Items of a layer that would touch stand in lanes above each other, and
   the row is as high as its lanes. In a deep model a run of three or more layers without items is one row.

Lengths are points (1/72 inch). `web/layout.js` places the same things on the page, and says why it must.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from circuits.components import Head
from circuits.show import Scene, canvas, gains, spell
from circuits.show.canvas import Font, width_of

AXIS: Final = 30.0  # the width of the axis of layers
LANE: Final = 10.5  # the height of a lane
RAISED: Final = 8.0  # how far above its arrow a raised text stands
_THIN: Final = 9.0  # the height of a row without items
_FOLDED: Final = 11.0  # the height of a row that stands for several layers
_OUTPUT: Final = 33.0  # the height of the output's box above the last layer
_GROUP: Final = 10.0  # the height of a line of groups under the sentence
_NEVER_FOLDED: Final = 12  # layers of a model that is shown whole
_NARROWEST: Final = 10.0  # the least width of a column
_UPRIGHT: Final = 24.0  # the largest width of a column of upright words
_WIDEST_STEP: Final = 56.0
_LEAST_GAP: Final = 5.0  # between words
_MOST_GAP: Final = 26.0
# (letters of a word, font size), the best first
_WORD_SIZES: Final = ((14, 8.0), (14, 7.0), (10, 6.0))


@dataclass(frozen=True, slots=True)
class Columns:
    """The tokens that are shown (None for a gap) and where they stand; upright where they are too many."""

    positions: tuple[int | None, ...]
    words: tuple[str, ...]
    centres: tuple[float, ...]
    step: float  # the least distance between two centres
    size: float  # of the font
    upright: bool

    def x_of(self, position: int) -> float | None:
        """The centre of a position's column; None if the position is not shown."""
        if position not in self.positions:
            return None
        return self.centres[self.positions.index(position)]

    @property
    def height(self) -> float:
        """The height of the words with the numbers above them."""
        if not self.upright:
            return self.size + 13
        font = Font(self.size)
        return 12 + max(width_of(word, font) for word in self.words)


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """What stands in a layer between `left` and `right`: an arrow with its heads' names."""

    layer: int
    text: str
    start: float
    end: float  # of the arrow
    text_x: float  # the centre of the text
    left: float
    right: float
    effect: float
    front: bool
    raised: bool = False  # the text is wider than the arrow and stands above it


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything stands, measured from the upper left corner; y runs down."""

    columns: Columns
    rows: dict[tuple[int, int], tuple[float, float]]  # (first layer, last layer): (top, bottom)
    lanes: dict[PlacedItem, float]  # each item's height y
    width: float
    height: float
    # (key, query) of the mappings that are drawn
    mappings: frozenset[tuple[int, int]] = frozenset()

    def y_of(self, layer: int, *, top: bool) -> float:
        """The upper or lower end of the row in which a layer stands."""
        for (first, last), (upper, lower) in self.rows.items():
            if first <= layer <= last:
                return upper if top else lower
        return self.top  # the output stands above all layers

    @property
    def top(self) -> float:
        """The upper end of the last layer."""
        return min(upper for upper, _ in self.rows.values())

    @property
    def foot(self) -> float:
        """The lower end of the first layer."""
        return max(lower for _, lower in self.rows.values())

    @property
    def folded(self) -> list[tuple[int, int]]:
        """The first and last layer of every row that stands for several."""
        return [layers for layers in self.rows if layers[0] < layers[1]]


def lay_out(
    scene: Scene, width: float, *, only_front: bool = False, most: int = 40
) -> Placement:
    """Place a scene in this width; of its mappings all, or with `only_front` the one in front."""
    columns = fit_columns(scene, AXIS, width, most=most)
    items: list[PlacedItem] = []
    mappings = set()
    for (key, query), data in scene.drawn.items():
        front = data is scene.front
        start = columns.x_of(key)
        end = columns.x_of(query)
        if (only_front and not front) or start is None or end is None or not data["heads"]:
            continue
        items += _arrows(data, start, end, width, front=front)
        mappings.add((key, query))
    lanes = {}  # of each layer, the lowest first
    for layer in range(scene.depth):
        lanes[layer] = in_lanes(item for item in items if item.layer == layer)
    folded = _fold_layers(scene, lanes)
    heights = {row: _row_height(lanes[row[0]], is_folded=row[0] < row[1]) for row in folded}
    foot = _OUTPUT + sum(heights.values())
    rows = {}
    placed = {}
    bottom = foot
    for row, row_height in heights.items():
        rows[row] = (bottom - row_height, bottom)
        y = bottom - 2
        for lane in lanes[row[0]]:
            placed |= dict.fromkeys(lane, y - LANE / 2)
            y -= _lane_height(lane)
        bottom -= row_height
    groups = in_lanes(groups_under(scene, columns, width))
    height = foot + columns.height + _GROUP * len(groups)
    return Placement(columns, rows, placed, width, height, frozenset(mappings))


def _row_height(lanes: list[list[PlacedItem]], *, is_folded: bool) -> float:
    if is_folded:
        return _FOLDED
    return max(_THIN, sum(_lane_height(lane) for lane in lanes) + 4)


def _lane_height(lane: list[PlacedItem]) -> float:
    return LANE + RAISED if any(item.raised for item in lane) else LANE


def _fold_layers(
    scene: Scene, lanes: dict[int, list[list[PlacedItem]]]
) -> list[tuple[int, int]]:
    """The rows from below, each as (first layer, last layer)."""
    busy = {layer for layer, stacked in lanes.items() if stacked}
    for _, node in scene.boxes:
        if node["layers"]:
            busy.update(node["layers"])
            for built in node.get("ranges", ()):
                busy.update(built)
    rows = []
    first = 0
    while first < scene.depth:
        last = first
        while last not in busy and last + 1 < scene.depth and last + 1 not in busy:
            last += 1
        if scene.depth <= _NEVER_FOLDED or last - first < 2:
            last = first
        rows.append((first, last))
        first = last + 1
    return rows


def fit_columns(scene: Scene, left: float, right: float, *, most: int) -> Columns:
    """Words side by side in the largest font that fits; else upright, in columns of equal width."""
    space = right - left - 6
    positions = scene.shown(most=min(most, int(space / _NARROWEST)), bos=True)
    for longest, size in _WORD_SIZES:
        words = _words_of(scene, positions, longest)
        word_widths = [max(width_of(word, Font(size)), 12.0) for word in words]
        gap = (space - sum(word_widths)) / len(words)
        if gap >= _LEAST_GAP:
            widths = [width + min(gap, _MOST_GAP) for width in word_widths]
            return _columns(positions, words, widths, left + 3, space, size=size, upright=False)
    longest, size = _WORD_SIZES[-1]
    words = _words_of(scene, positions, longest)
    widths = [min(space / len(words), _UPRIGHT)] * len(words)
    return _columns(positions, words, widths, left + 3, space, size=size, upright=True)


def _columns(
    positions: Sequence[int | None],
    words: Sequence[str],
    widths: Sequence[float],
    left: float,
    space: float,
    *,
    size: float,
    upright: bool,
) -> Columns:
    """Columns of these widths in the middle of the space."""
    centres = []
    x = left + (space - sum(widths)) / 2
    for width in widths:
        centres.append(x + width / 2)
        x += width
    steps = [after - before for before, after in pairwise(centres)]
    step = min([*steps, _WIDEST_STEP])
    return Columns(tuple(positions), tuple(words), tuple(centres), step, size, upright)


def _words_of(scene: Scene, positions: Sequence[int | None], longest: int) -> list[str]:
    """The words at these positions, `…` for a gap; BOS is cut shorter, as it is never the point."""
    words = []
    for position in positions:
        is_bos = position == 0 and scene.graph.graph["reads_bos"]
        if position is None:
            words.append("…")
        else:
            words.append(spell(scene.words[position], longest=7 if is_bos else longest))
    return words


def _arrows(
    data: dict[str, Any], start: float, end: float, width: float, *, front: bool
) -> list[PlacedItem]:
    """A mapping's arrows, one in each layer in which heads carry it, each with what its heads add."""
    layers: dict[int, dict[str, float]] = {}
    for name, gain in gains(data).items():
        layers.setdefault(Head.parse(name).layer, {})[name] = gain
    items = []
    for layer, heads in layers.items():
        text, text_width = _names_on_arrow([*heads], width)
        text_x, raised = _place_names(text_width, start, end, width)
        item = PlacedItem(
            layer=layer,
            text=text,
            start=start,
            end=end,
            text_x=text_x,
            left=min(start, text_x - text_width / 2) - 2,
            right=max(end, text_x + text_width / 2) + 2,
            effect=sum(heads.values()),
            front=front,
            raised=raised,
        )
        items.append(item)
    return items


def _names_on_arrow(heads: Sequence[str], width: float) -> tuple[str, float]:
    """Three names, or as many as have space, and how many more there are; the text and its width."""
    for most in (3, 2, 1):
        more = f" +{len(heads) - most}" if len(heads) > most else ""
        text = " ".join(heads[:most]) + more
        text_width = width_of(text, canvas.HEADING_SMALL) + 8
        if text_width <= width - AXIS:
            break
    return text, text_width


def _place_names(
    text_width: float, start: float, end: float, width: float
) -> tuple[float, bool]:
    """The centre of the names, and whether they are raised: on the arrow, else after it, else above it.

    Beside a token that reads itself they may also stand before it.
    """
    half = text_width / 2
    middle = (start + end) / 2
    if end - start >= text_width + 12:
        return middle, False
    if end + 5 + text_width <= width:
        return end + 5 + half, False
    if start == end and start - 5 - text_width >= AXIS:
        return start - 5 - half, False
    return min(max(middle, AXIS + half), width - half), True


def in_lanes(items: Iterable[PlacedItem]) -> list[list[PlacedItem]]:
    """Items in as few lanes as keep them apart; each takes the first lane in which it touches nothing."""
    lanes: list[list[PlacedItem]] = []
    for item in items:
        for lane in lanes:
            if all(item.right < other.left or other.right < item.left for other in lane):
                lane.append(item)
                break
        else:
            lanes.append([item])
    return lanes


def is_named_by_its_token(scene: Scene, node: dict[str, Any]) -> bool:
    """Whether a span is one token and has its name, so that it needs no label of its own."""
    positions = node["positions"]
    return len(positions) == 1 and spell(scene.words[positions[0]]) == node["lines"][0]


def groups_under(scene: Scene, columns: Columns, width: float) -> list[PlacedItem]:
    """Spans whose name is not that of their token; their names stand under the sentence."""
    groups = []
    for _, node in scene.boxes:
        centres = [x for x in map(columns.x_of, node["positions"]) if x is not None]
        if not centres or node["kind"] != "span" or is_named_by_its_token(scene, node):
            continue
        text = spell(node["lines"][0], longest=24)
        half = width_of(text, canvas.NOTE) / 2 + 2
        start = min(centres)
        end = max(centres)
        middle = min(max((start + end) / 2, half), width - half)
        group = PlacedItem(
            layer=0,
            text=text,
            start=start,
            end=end,
            text_x=middle,
            left=min(start, middle - half),
            right=max(end, middle + half),
            effect=0.0,
            front=False,
        )
        groups.append(group)
    return groups
