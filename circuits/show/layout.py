"""Where everything of a scene stands on a scale of layers: tokens are columns, layers are rows.

1. Words stand side by side, as large as they fit; where they are too many they stand upright.
2. A row is a layer, the lowest first; it is as high as what stands in it needs. Of a deep model a run of
   three or more layers in which nothing happens folds into one thin row.
3. A mapping is an arrow from key to query in every layer in which heads carry it, with their names on it;
   what would touch gets a lane of its own.
4. Components (heads, MLPs, …) are nodes at their position and layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import networkx as nx

from circuits.components import Head
from circuits.show import Scene, canvas, gains, spell
from circuits.show.canvas import Font, width_of

AXIS: Final = 30.0  # the width of the axis of layers
LANE: Final = 10.5  # the height of a lane
RAISED: Final = 8.0  # how much higher than its arrow a text stands that is wider
_THIN: Final = 9.0  # the height of a row in which nothing stands
_NARROWEST: Final = 10.0  # a column
_WIDEST: Final = 56.0
_GAP: Final = 26.0  # between words, at most
_LEAST_GAP: Final = 5.0
_BUSY: Final = 6.0  # times the space of other columns
_OUTPUT: Final = 33.0
_SHALLOW: Final = 12  # layers of a model that is never folded
_LONGEST: Final = 14  # letters of a token
SHAPES: Final = {"head": "round,pad=0,rounding_size=4", "mlp": "square,pad=0", "embed": "square,pad=0"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The tokens that are shown (None for a gap) and where they stand; upright where they are too many."""

    positions: tuple[int | None, ...]
    words: tuple[str, ...]
    centres: tuple[float, ...]
    step: float  # the least distance between two
    size: float
    upright: bool

    def x_of(self, position: int) -> float | None:
        return self.centres[self.positions.index(position)] if position in self.positions else None

    @property
    def height(self) -> float:
        """Of the words and the numbers above them."""
        font = Font(self.size)
        return 12 + (max(width_of(word, font) for word in self.words) if self.upright else self.size + 1)


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """What stands in a layer between `left` and `right`: an arrow with its heads' names, or a component."""

    layer: int
    text: str
    start: float
    end: float  # of the arrow; of a component both are where it stands
    text_x: float  # the middle of the text
    left: float
    right: float
    effect: float
    front: bool
    name: str = ""  # of a component
    kind: str = ""
    raised: bool = False  # the text stands above the arrow, which is shorter


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything stands, measured from the upper left corner; y runs down."""

    columns: Columns
    rows: dict[tuple[int, int], tuple[float, float]]  # first and last layer: the row's top and bottom
    lanes: dict[PlacedItem, float]  # the height at which it stands
    width: float
    height: float
    mappings: frozenset[tuple[int, int]] = frozenset()  # key and query of those that are drawn

    def y_of(self, layer: int, *, top: bool) -> float:
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
        return [layers for layers in self.rows if layers[0] < layers[1]]


def lay_out(scene: Scene, width: float, *, only_front: bool = False, most: int = 40) -> Placement:
    """Everything of a scene (or, of its mappings, the one in front alone) in this width."""
    columns = fit_columns(scene, AXIS, width, most=most)
    items, mappings = _components(scene.graph, columns), set()
    for ends, data in scene.drawn.items():
        if only_front and data is not scene.front:
            continue
        start, end = map(columns.x_of, ends)
        if start is not None and end is not None and data["heads"]:
            items += _arrows(data, start, end, width, front=data is scene.front)
            mappings.add(ends)
    layers = range(scene.depth)
    lanes = {layer: in_lanes(item for item in items if item.layer == layer) for layer in layers}
    rows, placed, y = {}, {}, _OUTPUT + sum(_row_height(lanes, row) for row in _rows(scene, lanes))
    height = y + columns.height + 10.0 * len(in_lanes(groups_under(scene, columns, width)))
    for first, last in _rows(scene, lanes):
        rows[first, last] = (y - _row_height(lanes, (first, last)), y)
        foot = y - 2
        for lane in lanes[first] if first == last else ():
            placed |= dict.fromkeys(lane, foot - LANE / 2)
            foot -= _lane_height(lane)
        y = rows[first, last][0]
    return Placement(columns, rows, placed, width, height, frozenset(mappings))


def _row_height(lanes: dict[int, list[list[PlacedItem]]], row: tuple[int, int]) -> float:
    return _THIN + 2 if row[0] < row[1] else max(_THIN, sum(map(_lane_height, lanes[row[0]])) + 4)


def _lane_height(lane: list[PlacedItem]) -> float:
    return LANE + RAISED * any(item.raised for item in lane)


def _rows(scene: Scene, lanes: dict[int, list[list[PlacedItem]]]) -> list[tuple[int, int]]:
    """Layers from below; a run of three or more in which nothing happens is one row of a deep model."""
    busy = {layer for layer, stacked in lanes.items() if stacked}
    for _, node in scene.boxes:
        for first, last in [node["layers"], *node.get("ranges", ())] if node["layers"] else ():
            busy |= {first, last}
    rows: list[tuple[int, int]] = []
    for layer in range(scene.depth):
        quiet = scene.depth > _SHALLOW and layer not in busy
        if quiet and rows and rows[-1][1] == layer - 1 and not {*range(rows[-1][0], layer)} & busy:
            rows[-1] = (rows[-1][0], layer)
        else:
            rows.append((layer, layer))
    kept: list[tuple[int, int]] = []
    for first, last in rows:
        short = last - first < 2
        kept += [(layer, layer) for layer in range(first, last + 1)] if short else [(first, last)]
    return kept


def fit_columns(scene: Scene, left: float, right: float, *, most: int) -> Columns:
    """Words side by side, as large as they fit; else upright, in columns of equal width."""
    all_words, space = scene.words, right - left - 6
    for longest, size in ((_LONGEST, 8.0), (_LONGEST, 7.0), (10, 6.0)):
        positions = scene.shown(most=min(most, int(space / _NARROWEST)), bos=True)
        words = ["…" if each is None else spell(all_words[each], longest=longest) for each in positions]
        if positions[0] == 0 and scene.graph.graph["reads_bos"]:
            words[0] = spell(all_words[0], longest=7)
        widths = [max(width_of(word, Font(size)), 12.0) for word in words]
        gap = (space - sum(widths)) / len(widths)
        if gap >= _LEAST_GAP:
            gaps = _gaps(scene, positions, min(gap, _GAP))
            break
    else:
        gaps, widths = [0.0] * len(words), [min(space / len(words), 24.0)] * len(words)
    centres, x = [], left + 3 + (space - sum(widths) - sum(gaps)) / 2
    for width, gap in zip(widths, gaps, strict=True):
        centres.append(x + (width + gap) / 2)
        x += width + gap
    step = min((after - before for before, after in pairwise(centres)), default=_WIDEST)
    upright = sum(gaps) == 0
    return Columns(tuple(positions), tuple(words), tuple(centres), min(step, _WIDEST), size, upright)


def _gaps(scene: Scene, positions: Sequence[int | None], mean: float) -> list[float]:
    """The space around each word: more where components stand, whose wires need it."""
    nodes = [node for node in scene.graph.nodes.values() if node.get("kind") in SHAPES and node["layer"] >= 0]
    busy = {node["positions"][0] for node in nodes}
    shares = [_BUSY if position in busy else 1.0 for position in positions]
    spare = (mean - _LEAST_GAP) * len(shares) / sum(shares)
    return [_LEAST_GAP + spare * share for share in shares]


def _arrows(data: dict[str, Any], start: float, end: float, width: float, *, front: bool) -> list[PlacedItem]:
    """A mapping's arrows, one in each layer in which heads carry it, each with what its heads add."""
    layers: dict[int, dict[str, float]] = {}
    for name, gain in gains(data).items():
        layers.setdefault(Head.parse(name).layer, {})[name] = gain
    items = []
    for layer, heads in layers.items():
        text, middle, wide, raised = _named([*heads], start, end, width)
        left, right = min(start, middle - wide / 2) - 2, max(end, middle + wide / 2) + 2
        effect = sum(heads.values())
        items.append(PlacedItem(layer, text, start, end, middle, left, right, effect, front, raised=raised))
    return items


def _named(heads: Sequence[str], start: float, end: float, width: float) -> tuple[str, float, float, bool]:
    """The names on an arrow (three, or as many as have space): their text, its middle and its width, and
    whether it stands above the arrow, because it fits neither on it nor beside it."""
    for most in (3, 2, 1):
        more = f" +{len(heads) - most}" if len(heads) > most else ""
        text = " ".join(heads[:most]) + more
        wide = width_of(text, canvas.HEADING_SMALL) + 8
        if wide <= width - AXIS:
            break
    if end - start >= wide + 12:
        return text, (start + end) / 2, wide, False
    if end + 5 + wide <= width:
        return text, end + 5 + wide / 2, wide, False
    if start == end and start - 5 - wide >= AXIS:
        return text, start - 5 - wide / 2, wide, False
    return text, min(max((start + end) / 2, AXIS + wide / 2), width - wide / 2), wide, True


def _components(graph: nx.MultiDiGraph, columns: Columns) -> list[PlacedItem]:
    """The components of a graph of wires, each at its position and layer."""
    items = []
    for name, node in graph.nodes.items():
        x = columns.x_of(node["positions"][0]) if node.get("kind") in SHAPES else None
        if x is not None and node["layer"] >= 0:
            wide = width_of(node["label"], canvas.HEADING_SMALL) + 8
            across = (x, x, x, x - wide / 2 - 1, x + wide / 2 + 1)
            front, kind = node.get("front", False), node["kind"]
            items.append(PlacedItem(node["layer"], node["label"], *across, node["effect"], front, name, kind))
    return sorted(items, key=lambda item: item.kind == "mlp")  # a layer's MLP stands above its heads


def in_lanes(items: Iterable[PlacedItem]) -> list[list[PlacedItem]]:
    """Items in as few lanes as keep them apart, in the order in which they come."""
    lanes: list[list[PlacedItem]] = []
    for item in items:
        for lane in lanes:
            if all(item.right < other.left or other.right < item.left for other in lane):
                lane.append(item)
                break
        else:
            lanes.append([item])
    return lanes


def groups_under(scene: Scene, columns: Columns, width: float) -> list[PlacedItem]:
    """Spans whose name is not that of their token, as what stands under the sentence."""
    groups = []
    for _, node in scene.boxes:
        centres = [x for x in map(columns.x_of, node["positions"]) if x is not None]
        alone = len(node["positions"]) == 1 and spell(scene.words[node["positions"][0]]) == node["lines"][0]
        if centres and not alone and node["kind"] == "span":
            text, (start, end) = spell(node["lines"][0], longest=24), (min(centres), max(centres))
            half = width_of(text, canvas.NOTE) / 2 + 2
            middle = min(max((start + end) / 2, half), width - half)
            ends = (min(start, middle - half), max(end, middle + half))
            groups.append(PlacedItem(0, text, start, end, middle, *ends, 0.0, False))
    return groups
