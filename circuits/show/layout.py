"""Where everything of a scene stands on a scale of layers: tokens are columns, layers are rows.

1. A span is a box in its columns. A picture shows the spans at the ends of its mappings, those that the user
   named, and the three strongest others.
2. A mapping is an arrow from key to query in every layer in which heads carry it, with their names: `arrows`
   places it.
3. A row is a layer, the lowest first. Arrows of a layer that would touch stand in lanes above each other, and
   the row is as high as its lanes. In a deep model a run of three or more layers in which no head carries and
   no box ends is one row.
4. `lay_out` places a scene in print. `page_layout` places a circuit on the page for every share by the same
   functions, with other `Sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from circuits.components import Head
from circuits.show import Scene, gains, spell
from circuits.show.arrows import PRINT, Interval, PlacedItem, Sizes, in_lanes, place_arrow
from circuits.show.canvas import NOTE, width_of
from circuits.show.columns import Columns, fit_columns
from circuits.show.graph import Attributes, Ends

_GROUP: Final = 10.0  # the height of a line of groups under a printed sentence
_NEVER_FOLDED: Final = 12  # layers of a model that is shown whole
_OTHER_SPANS: Final = 3  # spans that are shown although no mapping begins or ends there

Named = tuple[str, Attributes]  # a node of the graph: its name and its attributes
LayerRange = tuple[int, int]  # the first layer and the last
Rows = dict[LayerRange, Interval]  # the top and the bottom of every row
Lanes = dict[int, list[list[PlacedItem]]]  # of each layer, the lowest first


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything stands, measured from the upper left corner; y runs down."""

    columns: Columns
    rows: Rows
    lanes: dict[PlacedItem, float]  # each item's height y
    groups: list[list[PlacedItem]]  # names of groups under the sentence, in lanes
    boxes: list[Named]  # the spans that are drawn
    width: float
    height: float
    mappings: frozenset[Ends] = frozenset()  # that are drawn

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

    def taken(self, layer: int) -> list[Interval]:
        """What boxes take across a layer, from left to right."""
        return taken_by(self.boxes, layer, self.columns.x_of, lambda _: self.columns.half)

    @property
    def folded(self) -> list[LayerRange]:
        """The first and last layer of every row that stands for several."""
        return [layers for layers in self.rows if layers[0] < layers[1]]


def lay_out(
    scene: Scene,
    width: float,
    *,
    only_front: bool = False,
    most: int = 40,
    all_spans: bool = False,
) -> Placement:
    """Place a scene in this width, in print; of its mappings all, or with `only_front` the one in front.

    Where names have no space among the boxes, a margin for them is left at the right.
    """
    mappings = {}
    for ends, data in scene.drawn.items():
        if data["heads"] and (data is scene.front or not only_front):
            mappings[ends] = data
    boxes = shown_spans(scene, mappings, others=len(scene.boxes) if all_spans else _OTHER_SPANS)
    margin = 0.0
    while True:  # with a margin the columns are narrower, so longer names may need it
        placed = _lay_out(scene, width, mappings, boxes, most, margin=margin)
        led = [
            PRINT.names_width(item.names) + PRINT.beside for item in placed.lanes if item.led
        ]
        if max(led, default=0.0) <= margin:
            return placed
        margin = max(led)


def _lay_out(
    scene: Scene,
    width: float,
    mappings: dict[Ends, Attributes],
    boxes: list[Named],
    most: int,
    *,
    margin: float,
) -> Placement:
    columns = fit_columns(
        scene, PRINT.axis, width - margin, most=most, notes=span_notes(scene, boxes)
    )
    items = []
    drawn = set()
    for (key, query), data in mappings.items():
        start, end = columns.x_of(key), columns.x_of(query)
        if start is None or end is None:
            continue
        drawn.add((key, query))
        opening = set(scene.opening) if data is scene.front else set()
        for layer, heads in _by_layer(data).items():
            taken = taken_by(boxes, layer, columns.x_of, lambda _: columns.half)
            item = place_arrow(
                layer,
                [*heads],
                (start, end),
                sum(heads.values()),
                across=(PRINT.axis, width - margin),
                taken=taken,
                sizes=PRINT,
                front=data is scene.front,
                opening=opening.issuperset(heads),
            )
            items.append(item)
    lanes = {}
    for layer in range(scene.depth):
        lanes[layer] = in_lanes(item for item in items if item.layer == layer)
    rows, placed = stack_layers(scene.depth, lanes, boxes, PRINT)
    groups = in_lanes(groups_under(scene, boxes, columns.x_of, width))
    foot = max(bottom for _, bottom in rows.values())
    height = foot + columns.height + _GROUP * len(groups)
    return Placement(columns, rows, placed, groups, boxes, width, height, frozenset(drawn))


def _by_layer(data: Attributes) -> dict[int, dict[str, float]]:
    """The heads of a mapping by layer, each with what it adds to the joint effect."""
    layers: dict[int, dict[str, float]] = {}
    for name, gain in gains(data).items():
        layers.setdefault(Head.parse(name).layer, {})[name] = gain
    return layers


# Spans


def shown_spans(scene: Scene, mappings: Collection[Ends], *, others: int) -> list[Named]:
    """The spans at the ends of mappings, those that the user named, and the strongest `others`."""
    ends = {position for mapping in mappings for position in mapping}
    spans = [box for box in scene.boxes if box[1]["kind"] == "span" and box[1]["layers"]]
    wanted = set()
    rest = []
    for name, node in spans:
        if ends.intersection(node["positions"]) or not is_named_by_its_token(scene, node):
            wanted.add(name)
        else:
            rest.append((-node["effect"], name))
    wanted.update(name for _, name in sorted(rest)[:others])
    return [box for box in spans if box[0] in wanted]


def span_notes(scene: Scene, boxes: Sequence[Named]) -> dict[int, tuple[str, str]]:
    """Of each position that is a box of its own, the layers that hold it and those that build it."""
    notes = {}
    for _, node in boxes:
        if is_named_by_its_token(scene, node):
            notes[node["positions"][0]] = (
                layers_text([node["layers"]]),
                layers_text(node["ranges"]),
            )
    return notes


def layers_text(ranges: Iterable[Sequence[int]]) -> str:
    """`0, 20–21`."""
    return ", ".join("–".join(map(str, dict.fromkeys(layers))) for layers in ranges)


def taken_by(
    boxes: Iterable[Named],
    layer: int,
    x_of: Callable[[int], float | None],
    half_of: Callable[[int], float],
) -> list[Interval]:
    """What boxes take across a layer; `half_of` is half the width of the box at a position."""
    taken = []
    for _, node in boxes:
        first, last = node["layers"] or (0, -1)
        if not first <= layer <= last:
            continue
        for position in node["positions"]:
            centre = x_of(position)
            if centre is not None:
                half = half_of(position) + 1
                taken.append((centre - half, centre + half))
    return sorted(taken)


# Rows


def stack_layers(
    depth: int, lanes: Lanes, boxes: Iterable[Named], sizes: Sizes
) -> tuple[Rows, dict[PlacedItem, float]]:
    """The rows of a picture, and the height y of every item in its lane."""
    heights = {}
    for first, last in _fold_layers(depth, lanes, boxes):
        height = sizes.lane * len(lanes[first]) + sizes.margin
        heights[first, last] = sizes.folded if first < last else max(sizes.thin, height)
    rows = {}
    placed = {}
    bottom = sizes.top + sum(heights.values())
    for row, height in heights.items():
        rows[row] = (bottom - height, bottom)
        y = bottom - sizes.margin / 2
        for lane in lanes[row[0]]:
            placed |= dict.fromkeys(lane, y - sizes.lane / 2)
            y -= sizes.lane
        bottom -= height
    return rows, placed


def _fold_layers(depth: int, lanes: Lanes, boxes: Iterable[Named]) -> list[LayerRange]:
    """The rows from below, each as (first layer, last layer)."""
    busy = {layer for layer, stacked in lanes.items() if stacked}
    for _, node in boxes:
        busy.update(node["layers"])
    rows = []
    first = 0
    while first < depth:
        last = first
        while last not in busy and last + 1 < depth and last + 1 not in busy:
            last += 1
        if depth <= _NEVER_FOLDED or last - first < 2:
            last = first
        rows.append((first, last))
        first = last + 1
    return rows


# Groups of positions


def is_named_by_its_token(scene: Scene, node: Attributes) -> bool:
    """Whether a span is one token and has its name, so that it needs no label of its own."""
    positions = node["positions"]
    return len(positions) == 1 and spell(scene.words[positions[0]]) == node["lines"][0]


def groups_under(
    scene: Scene,
    boxes: Iterable[Named],
    x_of: Callable[[int], float | None],
    width: float,
    measure: Callable[[str], float] = lambda text: width_of(text, NOTE),
) -> list[PlacedItem]:
    """Spans whose name is not that of their token; their names stand under the sentence."""
    groups = []
    for name, node in boxes:
        centres = [x for x in map(x_of, node["positions"]) if x is not None]
        if not centres or is_named_by_its_token(scene, node):
            continue
        name_text = spell(node["lines"][0], longest=24)
        held = layers_text([node["layers"]])
        layers = f"layers {held}" if "–" in held else f"layer {held}"
        text = f"{name_text}: {layers}, built {layers_text(node['ranges']) or 'in none'}"
        if measure(text) > width:
            text = name_text
        half = measure(text) / 2 + 2
        start = min(centres)
        end = max(centres)
        middle = min(max((start + end) / 2, half), width - half)
        group = PlacedItem(
            layer=0,
            names=(text,),
            start=start,
            end=end,
            text_x=middle,
            left=min(start, middle - half),
            right=max(end, middle + half),
            node=name,
        )
        groups.append(group)
    return groups
