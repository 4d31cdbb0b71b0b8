"""Where everything of a scene stands on a scale of layers: tokens are columns, layers are rows.

1. A mapping is an arrow from key to query in every layer in which heads carry it, with their names on it: an
   item.
2. A row is a layer, the lowest first. Items of a layer that would touch stand in lanes above each other, and
   the row is as high as its lanes. In a deep model a run of three or more layers without items is one row.
3. `lay_out` places a scene in print. `page_layout` places a circuit on the page for every share by the same
   functions, with other `Sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from circuits.components import Head
from circuits.show import Scene, gains, spell
from circuits.show.canvas import HEADING_SMALL, NOTE, width_of
from circuits.show.columns import Columns, fit_columns

_GROUP: Final = 10.0  # the height of a line of groups under a printed sentence
_NEVER_FOLDED: Final = 12  # layers of a model that is shown whole


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths of a picture: points (1/72 inch) in print, pixels on the page."""

    axis: float  # the width of the axis of layers
    top: float  # the height above the last layer, where the output stands
    lane: float  # the height of a lane
    raised: float  # how far above its arrow a raised text stands
    thin: float  # the height of a row without items
    folded: float  # the height of a row that stands for several layers
    margin: float  # of a row with lanes, half of it above them and half below
    visible: float  # of an arrow, beside the names on it
    beside: float  # from an arrow to the names after it
    most_names: int  # on one arrow
    names_width: Callable[[Sequence[str]], float]


PRINT: Final = Sizes(
    axis=30.0,
    top=33.0,
    lane=10.5,
    raised=8.0,
    thin=9.0,
    folded=11.0,
    margin=4.0,
    visible=12.0,
    beside=5.0,
    most_names=3,
    names_width=lambda names: width_of(" ".join(names), HEADING_SMALL) + 8,
)


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """What stands in a layer between `left` and `right`: an arrow with the names of its heads.

    The centre of the names is `offset` from the point that is `along` of the way from `start` to `end`.
    """

    layer: int
    names: tuple[str, ...]  # of heads, and how many more there are
    start: float
    end: float  # of the arrow
    along: float
    offset: float
    left: float
    right: float
    effect: float
    front: bool = False
    node: str = ""  # of a group: its name in the graph
    raised: bool = False  # the names are wider than the arrow and stand above it

    @property
    def text(self) -> str:
        return " ".join(self.names)

    @property
    def text_x(self) -> float:
        """The centre of the names."""
        return self.start + self.along * (self.end - self.start) + self.offset


Rows = dict[tuple[int, int], tuple[float, float]]  # (first layer, last layer): (top, bottom)
Lanes = dict[int, list[list[PlacedItem]]]  # of each layer, the lowest first


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything stands, measured from the upper left corner; y runs down."""

    columns: Columns
    rows: Rows
    lanes: dict[PlacedItem, float]  # each item's height y
    groups: list[list[PlacedItem]]  # names of groups under the sentence, in lanes
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
    """Place a scene in this width, in print; of its mappings all, or with `only_front` the one in front."""
    columns = fit_columns(scene, PRINT.axis, width, most=most)
    items = []
    mappings = set()
    for (key, query), data in scene.drawn.items():
        front = data is scene.front
        start = columns.x_of(key)
        end = columns.x_of(query)
        if (only_front and not front) or start is None or end is None or not data["heads"]:
            continue
        items += _arrows(data, start, end, width, front=front)
        mappings.add((key, query))
    lanes = {}
    for layer in range(scene.depth):
        lanes[layer] = in_lanes(item for item in items if item.layer == layer)
    rows, placed = stack_layers(scene, lanes, PRINT)
    groups = in_lanes(groups_under(scene, columns.x_of, width))
    foot = max(bottom for _, bottom in rows.values())
    height = foot + columns.height + _GROUP * len(groups)
    return Placement(columns, rows, placed, groups, width, height, frozenset(mappings))


# Rows


def stack_layers(
    scene: Scene, lanes: Lanes, sizes: Sizes
) -> tuple[Rows, dict[PlacedItem, float]]:
    """The rows of a picture, and the height y of every item in its lane."""
    heights = {}
    for first, last in _fold_layers(scene, lanes):
        height = sum(_lane_height(lane, sizes) for lane in lanes[first]) + sizes.margin
        heights[first, last] = sizes.folded if first < last else max(sizes.thin, height)
    rows = {}
    placed = {}
    bottom = sizes.top + sum(heights.values())
    for row, height in heights.items():
        rows[row] = (bottom - height, bottom)
        y = bottom - sizes.margin / 2
        for lane in lanes[row[0]]:
            placed |= dict.fromkeys(lane, y - sizes.lane / 2)
            y -= _lane_height(lane, sizes)
        bottom -= height
    return rows, placed


def _lane_height(lane: list[PlacedItem], sizes: Sizes) -> float:
    return sizes.lane + sizes.raised if any(item.raised for item in lane) else sizes.lane


def _fold_layers(scene: Scene, lanes: Lanes) -> list[tuple[int, int]]:
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


class Extended(Protocol):
    """What reaches from `left` to `right`."""

    @property
    def left(self) -> float: ...
    @property
    def right(self) -> float: ...


E = TypeVar("E", bound=Extended)


def in_lanes(items: Iterable[E]) -> list[list[E]]:
    """Items in as few lanes as keep them apart; each takes the first lane in which it touches nothing."""
    lanes: list[list[E]] = []
    for item in items:
        for lane in lanes:
            if all(item.right < other.left or other.right < item.left for other in lane):
                lane.append(item)
                break
        else:
            lanes.append([item])
    return lanes


# Arrows


def _arrows(
    data: dict[str, Any], start: float, end: float, width: float, *, front: bool
) -> list[PlacedItem]:
    """A mapping's arrows, one in each layer in which heads carry it, each with what its heads add."""
    layers: dict[int, dict[str, float]] = {}
    for name, gain in gains(data).items():
        layers.setdefault(Head.parse(name).layer, {})[name] = gain
    arrows = []
    for layer, heads in layers.items():
        effect = sum(heads.values())
        ends = (start, end)
        arrows.append(place_arrow(layer, [*heads], ends, effect, width, PRINT, front=front))
    return arrows


def place_arrow(
    layer: int,
    heads: Sequence[str],
    ends: tuple[float, float],
    effect: float,
    width: float,
    sizes: Sizes,
    *,
    front: bool = False,
) -> PlacedItem:
    """An arrow from the first to the second of `ends`, with the names of its heads.

    The names stand on the arrow, else after it, else above it; `width` is that of the picture. Beside a token
    that reads itself they may also stand before it.
    """
    names, names_width = _names_that_fit(heads, width - sizes.axis, sizes)
    start, end = ends
    half = names_width / 2
    middle = (start + end) / 2
    along, offset, raised = 0.5, 0.0, False
    if end - start >= names_width + sizes.visible:
        pass
    elif end + sizes.beside + names_width <= width:
        along, offset = 1.0, sizes.beside + half
    elif start == end and start - sizes.beside - names_width >= sizes.axis:
        along, offset = 0.0, -sizes.beside - half
    else:
        inside = min(max(middle, sizes.axis + half), width - half)
        offset, raised = inside - middle, True
    centre = start + along * (end - start) + offset
    return PlacedItem(
        layer=layer,
        names=tuple(names),
        start=start,
        end=end,
        along=along,
        offset=offset,
        left=min(start, centre - half) - 2,
        right=max(end, centre + half) + 2,
        effect=effect,
        front=front,
        raised=raised,
    )


def _names_that_fit(
    heads: Sequence[str], space: float, sizes: Sizes
) -> tuple[list[str], float]:
    """As many names as have space, but at least one, then how many more there are; with the width of all."""
    most = sizes.most_names
    names = _first_names(heads, most)
    while most > 1 and sizes.names_width(names) > space:
        most -= 1
        names = _first_names(heads, most)
    return names, sizes.names_width(names)


def _first_names(heads: Sequence[str], most: int) -> list[str]:
    """`L5H1 L4H0 +2`."""
    more = [f"+{len(heads) - most}"] if len(heads) > most else []
    return [*heads[:most], *more]


# Groups of positions


def is_named_by_its_token(scene: Scene, node: dict[str, Any]) -> bool:
    """Whether a span is one token and has its name, so that it needs no label of its own."""
    positions = node["positions"]
    return len(positions) == 1 and spell(scene.words[positions[0]]) == node["lines"][0]


def groups_under(
    scene: Scene,
    x_of: Callable[[int], float | None],
    width: float,
    measure: Callable[[str], float] = lambda text: width_of(text, NOTE),
) -> list[PlacedItem]:
    """Spans whose name is not that of their token; their names stand under the sentence."""
    groups = []
    for name, node in scene.boxes:
        centres = [x for x in map(x_of, node["positions"]) if x is not None]
        if not centres or node["kind"] != "span" or is_named_by_its_token(scene, node):
            continue
        text = spell(node["lines"][0], longest=24)
        half = measure(text) / 2 + 2
        start = min(centres)
        end = max(centres)
        middle = (start + end) / 2
        inside = min(max(middle, half), width - half)
        group = PlacedItem(
            layer=0,
            names=(text,),
            start=start,
            end=end,
            along=0.5,
            offset=inside - middle,
            left=min(start, inside - half),
            right=max(end, inside + half),
            effect=0.0,
            node=name,
        )
        groups.append(group)
    return groups
