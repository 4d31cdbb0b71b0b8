"""A circuit on a scale of layers: tokens are columns, layers are rows, and what happens stands where it does.

1. A row is a layer, the lowest first; it is as high as what stands in it needs. Of a deep model a run of
   three or more layers in which nothing happens folds into one thin row, and the axis says which.
2. A span is a box in the columns of its positions, from its first to its last layer; the layers that build it
   are shaded. Positions that share a span are joined under the sentence, with its name.
3. A mapping is an arrow from key to query in every layer in which heads carry it, as wide as what they do,
   with their names on it; what would touch gets a lane of its own. Names of the mapping in front are filled.
4. Components (heads, MLPs, …) are nodes at their position and layer; wires run between them, and how they are
   dashed says which side of the reader they enter: query, key or value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch
from matplotlib.path import Path

from circuits.heads import Head
from circuits.show import canvas
from circuits.show.canvas import Area, Font, draw_box, width_of, write
from circuits.show.scene import OUTPUT, Scene, spell

AXIS: Final = 30.0  # the width of the axis of layers
LANE: Final = 10.5  # the height of a lane
_THIN: Final = 9.0  # the height of a row in which nothing stands
_NARROWEST: Final = 10.0  # a column
_WIDEST: Final = 56.0
_GAP: Final = 26.0  # between words, at most
_OUTPUT: Final = 33.0
_SHALLOW: Final = 12  # layers of a model that is never folded
_LONGEST: Final = 14  # letters of a token
_SIDES: Final = {"query": "-", "key": (0, (4, 1.5)), "value": (0, (1, 1.2)), "": "-"}
_SHAPES: Final = {"head": "round,pad=0,rounding_size=4", "mlp": "square,pad=0", "embed": "square,pad=0"}


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
class Item:
    """What stands in a layer between `left` and `right`: an arrow with its heads' names, or a component."""

    layer: int
    text: str
    start: float
    end: float  # of the arrow; a component has its place at both
    text_at: float  # the middle of the text
    left: float
    right: float
    effect: float
    front: bool
    name: str = ""  # of a component
    kind: str = ""


Places = dict[str, tuple[Item, float]]  # components by name, with the height at which they stand


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything stands, measured from the upper left corner; y runs down."""

    columns: Columns
    rows: dict[tuple[int, int], tuple[float, float]]  # first and last layer: the row's top and bottom
    lanes: dict[Item, float]  # the height at which it stands
    width: float
    height: float
    left_out: int = 0  # mappings of which an end is not shown

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


def lay_out(scene: Scene, width: float, *, only_front: bool = False, most: int = 40) -> Layout:
    """Everything of a scene (or, of its mappings, the one in front alone) in this width."""
    columns = fit_columns(scene, AXIS, width, most=most)
    mappings = [data for _, _, data in scene.arrows] + scene.own_arrows
    wanted = [data for data in mappings if not only_front or data is scene.front]
    items, left_out = _components(scene.graph, columns), 0
    for data in wanted:
        ends = columns.x_of(data["from_position"]), columns.x_of(data["to_position"])
        if ends[0] is None or ends[1] is None:
            left_out += 1
        else:
            drawn = _arrows(data, ends[0], ends[1], width, front=data is scene.front)
            items += drawn
            left_out += not drawn
    depth = scene.depth
    lanes = {layer: _in_lanes([item for item in items if item.layer == layer]) for layer in range(depth)}
    rows, placed, y = {}, {}, _OUTPUT + sum(row_height(lanes, row) for row in _rows(scene, lanes))
    height = y + columns.height + 10.0 * len(_in_lanes(_groups(scene, columns, width)))
    for first, last in _rows(scene, lanes):
        rows[first, last] = (y - row_height(lanes, (first, last)), y)
        for number, lane in enumerate(lanes[first] if first == last else ()):
            placed |= dict.fromkeys(lane, y - 2 - LANE * (number + 0.5))
        y = rows[first, last][0]
    return Layout(columns, rows, placed, width, height, left_out)


def row_height(lanes: dict[int, list[list[Item]]], row: tuple[int, int]) -> float:
    return _THIN + 2 if row[0] < row[1] else max(_THIN, LANE * len(lanes[row[0]]) + 4)


def _rows(scene: Scene, lanes: dict[int, list[list[Item]]]) -> list[tuple[int, int]]:
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
    kept = (
        ((first, last),) if last - first > 1 else [(n, n) for n in range(first, last + 1)]
        for first, last in rows
    )
    return [row for part in kept for row in part]


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
        if gap >= 5.0:
            gap = min(gap, _GAP)
            break
    upright = gap < 5.0
    if upright:
        gap, widths = 0.0, [min(space / len(words), 24.0)] * len(words)
    free = space - sum(widths) - gap * len(widths)
    centres, x = [], left + 3 + free / 2
    for width in widths:
        centres.append(x + (width + gap) / 2)
        x += width + gap
    step = min((after - before for before, after in pairwise(centres)), default=_WIDEST)
    return Columns(tuple(positions), tuple(words), tuple(centres), min(step, _WIDEST), size, upright)


def _arrows(data: dict[str, Any], start: float, end: float, width: float, *, front: bool) -> list[Item]:
    """A mapping's arrows, one in each layer in which heads carry it."""
    layers: dict[int, dict[str, float]] = {}
    for name, effect in data["heads"].items():
        layers.setdefault(Head.parse(name).layer, {})[name] = effect
    items = []
    for layer, heads in layers.items():
        more = f" +{len(heads) - 3}" if len(heads) > 3 else ""
        text = " ".join([*heads][:3]) + more
        wide = width_of(text, canvas.HEADING_SMALL) + 6
        if end - start >= wide + 16:
            middle = (start + end) / 2
        elif end + 5 + wide <= width:
            middle = end + 5 + wide / 2
        else:
            middle = start - 5 - wide / 2
        left, right = min(start, middle - wide / 2) - 2, max(end, middle + wide / 2) + 2
        effect = sum(heads.values())
        items.append(Item(layer, text, start, end, middle, left, right, effect, front))
    return items


def _components(graph: nx.MultiDiGraph, columns: Columns) -> list[Item]:
    """The components of a graph of wires, each at its position and layer."""
    items = []
    for name, node in graph.nodes.items():
        x = columns.x_of(node["positions"][0]) if node.get("kind") in _SHAPES else None
        if x is not None and node["layer"] >= 0:
            wide = width_of(node["label"], canvas.HEADING_SMALL) + 6
            place = (x, x, x, x - wide / 2 - 1, x + wide / 2 + 1)
            front, kind = node.get("front", False), node["kind"]
            items.append(Item(node["layer"], node["label"], *place, node["effect"], front, name, kind))
    return sorted(items, key=lambda item: item.kind == "mlp")  # a layer's MLP stands above its heads


def _in_lanes(items: Iterable[Item]) -> list[list[Item]]:
    """Items in as few lanes as keep them apart, in the order in which they come."""
    lanes: list[list[Item]] = []
    for item in items:
        for lane in lanes:
            if all(item.right < other.left or other.right < item.left for other in lane):
                lane.append(item)
                break
        else:
            lanes.append([item])
    return lanes


def _groups(scene: Scene, columns: Columns, width: float) -> list[Item]:
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
            groups.append(Item(0, text, start, end, middle, *ends, 0.0, False))
    return groups


# How it looks


def draw_layout(sheet: Axes, scene: Scene, layout: Layout, x: float, y: float) -> None:
    """Draw a scene as it was laid out, with the upper left corner at (x, y)."""
    _draw_rows(sheet, scene, layout, x, y)
    _draw_spans(sheet, scene, layout, x, y)
    _draw_streams(sheet, layout, x, y)
    for item, lane in layout.lanes.items():
        if not item.name:
            _draw_item(sheet, item, x, y + lane)
    _draw_wires(sheet, scene.graph, layout, x, y)
    _draw_output(sheet, scene, layout, x, y)
    _draw_sentence(sheet, scene, layout, x, y)


def _draw_rows(sheet: Axes, scene: Scene, layout: Layout, x: float, y: float) -> None:
    """The axis, with a line between layers, and a mark where some are folded."""
    right = x + layout.width
    for (first, last), (top, bottom) in layout.rows.items():
        middle = y + (top + bottom) / 2
        if first == last:
            write(sheet, x + AXIS - 9, middle, str(first), canvas.NOTE, ha="right", va="center_baseline")
        else:
            band = Area(x, y + top, layout.width, bottom - top)
            draw_box(sheet, band, "none", canvas.WASH, line=0, depth=0.2, rounding=0.1)
            text = f"{first}–{last}"
            write(sheet, x + AXIS - 9, middle, text, canvas.NOTE, ha="right", va="center_baseline")
        look = {"color": canvas.LINE, "linewidth": 0.35, "zorder": 0.3}
        sheet.plot([x + AXIS - 5, right], [y + bottom, y + bottom], **look)
    top = layout.top + y
    write(sheet, x + AXIS - 9, top - 4, f"{scene.depth}", canvas.NOTE, ha="right")
    write(sheet, x, top - 14, "layer", canvas.NOTE)
    sheet.plot([x + AXIS - 5, right], [top, top], color=canvas.LINE, linewidth=0.35, zorder=0.3)


def _draw_spans(sheet: Axes, scene: Scene, layout: Layout, x: float, y: float) -> None:
    half = min(0.36 * layout.columns.step, 11.0)
    key = scene.ends[0] if scene.ends else None
    for name, node in scene.boxes:
        if not node["layers"] or node["kind"] != "span":
            continue
        (first, last), red = node["layers"], name == key
        colour, line = (canvas.RED, 1.3) if red else (canvas.MUTED, 0.7)
        for position in node["positions"]:
            centre = layout.columns.x_of(position)
            if centre is None:
                continue
            top, bottom = y + layout.y_of(last, top=True) + 1, y + layout.y_of(first, top=False) - 1
            area = Area(x + centre - half, top, 2 * half, bottom - top)
            for start, end in node["ranges"]:
                upper, lower = y + layout.y_of(end, top=True) + 1, y + layout.y_of(start, top=False) - 1
                built = Area(area.left, upper, area.width, lower - upper)  # perhaps beyond what holds it
                draw_box(sheet, built, "none", canvas.shade(0.2), line=0, depth=0.6, rounding=2.0)
            box = draw_box(sheet, area, colour, "none", line=line, depth=0.9, rounding=2.5)
            box.set_gid(f"span {position} layer {first}-{last}")


def _draw_streams(sheet: Axes, layout: Layout, x: float, y: float) -> None:
    """The stream of every token that is read or written, up to the highest arrow at it."""
    foot, tops = layout.foot, dict[float, tuple[float, bool]]()
    for item, lane in layout.lanes.items():
        for end in (item.start, item.end) if not item.name else ():
            top, front = tops.get(end, (foot, False))
            tops[end] = (min(top, lane), front or (item.front and end == item.start))
    for centre, (top, front) in tops.items():
        colour, style = (canvas.RED, (0, (1, 1.5))) if front else (canvas.LINE, "-")
        look: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": 0.8, "zorder": 0.5}
        sheet.plot([x + centre, x + centre], [y + foot, y + top], **look)


def _draw_item(sheet: Axes, item: Item, x: float, y: float) -> None:
    """An arrow and the names on it, or a component; what belongs to the mapping in front is filled."""
    colour = _colour(item)
    wide = width_of(item.text, canvas.HEADING_SMALL) + 4
    if item.start < item.end:
        width = 0.6 + 2.6 * min(abs(item.effect), 1.2)
        look = {"color": colour, "linewidth": width, "zorder": 2 + item.front, "shrinkA": 0, "shrinkB": 0}
        ends = {"posA": (x + item.start, y), "posB": (x + item.end, y), "mutation_scale": 5 + 1.5 * width}
        sheet.add_patch(FancyArrowPatch(**ends, arrowstyle="-|>", **look))
    if item.kind == "" and item.start == item.end:  # a position that reads itself
        sheet.plot([x + item.start], [y], "o", color=colour, markersize=3, zorder=3)
    fill, ink = (colour, canvas.PAPER) if item.front else (canvas.PAPER, canvas.INK)
    look = {"edgecolor": colour, "facecolor": fill, "linewidth": 0.7, "zorder": 4}
    corner = (x + item.text_at - wide / 2, y - 4.1)
    shape = _SHAPES.get(item.kind, _SHAPES["head"])
    sheet.add_patch(FancyBboxPatch(corner, wide, 8.2, boxstyle=shape, **look))
    font = Font(canvas.SMALL, ink, bold=item.front)
    write(sheet, x + item.text_at, y + 2.1, item.text, font, ha="center").set_zorder(5)


def _colour(item: Item) -> str:
    if item.front:
        return canvas.RED
    strength = 0.45 + 0.5 * min(abs(item.effect), 1.0)
    return canvas.shade(strength) if item.effect >= 0 else canvas.shade(-strength, canvas.EFFECT)


def _draw_wires(sheet: Axes, graph: nx.MultiDiGraph, layout: Layout, x: float, y: float) -> None:
    """Components, and the wires between them: from the top of a writer to the bottom of its reader."""
    places = {item.name: (item, lane) for item, lane in layout.lanes.items() if item.name}
    for item, lane in places.values():
        _draw_item(sheet, item, x, y + lane)
    for start, end, wire in graph.edges(data=True):
        if wire.get("kind") != "wire":
            continue
        first, last = (_anchor(layout, graph, places, name, x, y) for name in (start, end))
        if first is None or last is None:
            continue
        points = _curve(first, last, straight=start not in places)
        codes = [Path.MOVETO] + [Path.CURVE4] * 3
        colour = canvas.RED if wire.get("front") else canvas.shade(0.45 + 0.5 * min(abs(wire["effect"]), 1.0))
        look = {"edgecolor": colour, "linewidth": 0.5 + 2.0 * min(abs(wire["effect"]), 1.2), "zorder": 1.5}
        style = _SIDES.get(wire.get("side", ""), "-")
        sheet.add_patch(PathPatch(Path(points, codes), fill=False, linestyle=style, **look))


def _curve(
    start: tuple[float, float], end: tuple[float, float], *, straight: bool
) -> list[tuple[float, float]]:
    """From the top of a writer to the bottom of a reader; in one column in a bow, the wider the longer."""
    (x0, y0), (x1, y1) = start, end
    if abs(x0 - x1) < 1 and not straight:
        side, bow = 9.0, 10 + 0.3 * abs(y0 - y1)
        return [(x0 - side, y0), (x0 - side - bow, y0), (x1 - side - bow, y1), (x1 - side, y1)]
    (y0, y1), middle = (y0 - 4, y1 + 4), (y0 + y1) / 2
    return [(x0, y0), (x0, middle), (x1, middle), (x1, y1)]


def _anchor(
    layout: Layout,
    graph: nx.MultiDiGraph,
    places: dict[str, tuple[Item, float]],
    name: str,
    x: float,
    y: float,
) -> tuple[float, float] | None:
    """Where a wire meets a node: at its mark, at the token (what embeds it), or at the output."""
    if name in places:
        item, lane = places[name]
        return x + item.text_at, y + lane
    node = graph.nodes[name]
    centre = layout.columns.x_of(node["positions"][0])
    if centre is None:
        return None
    above = name == OUTPUT or node.get("kind") == "logits"
    return x + centre, y + (layout.top - 4 if above else layout.foot + 2)


def _draw_output(sheet: Axes, scene: Scene, layout: Layout, x: float, y: float) -> None:
    """The output over the last token, and the residual stream between them."""
    lines = [spell(line, longest=24) for line in scene.graph.nodes[OUTPUT]["lines"]]
    title, note = lines[0], " · ".join(lines[1:])
    wide = max(width_of(title, canvas.HEADING), width_of(note, canvas.NOTE)) + 12
    last = layout.columns.x_of(len(scene.words) - 1) or layout.columns.centres[-1]
    centre = x + min(max(last, wide / 2), layout.width - wide / 2)
    look = {"color": canvas.LINE, "linewidth": 1.1, "zorder": 0.4}
    sheet.plot([x + last, x + last], [y + layout.foot, y + layout.top - 4], **look)
    draw_box(sheet, Area(centre - wide / 2, y + 1, wide, 23), canvas.INK, canvas.PAPER, line=1.2, depth=3)
    write(sheet, centre, y + 11, title, canvas.HEADING, ha="center").set_zorder(5)
    write(sheet, centre, y + 20, note, canvas.NOTE, ha="center").set_zorder(5)


def _draw_sentence(sheet: Axes, scene: Scene, layout: Layout, x: float, y: float) -> None:
    """The positions, the words under them, and the names of those that share a span."""
    columns, top = layout.columns, y + layout.foot
    for word, position, centre in zip(columns.words, columns.positions, columns.centres, strict=True):
        red = scene.is_key(position)
        number = "" if position is None else str(position)
        write(
            sheet,
            x + centre,
            top + 8,
            number,
            Font(canvas.SMALL, canvas.RED if red else canvas.MUTED),
            ha="center",
        )
        font = Font(columns.size, canvas.RED if red else canvas.INK, bold=red)
        if columns.upright:
            write(sheet, x + centre, top + 11, word, font, ha="center", va="top", rotation=90)
        else:
            write(sheet, x + centre, top + 11 + columns.size, word, font, ha="center")
    for number, lane in enumerate(_in_lanes(_groups(scene, columns, layout.width))):
        for group in lane:
            _draw_group(sheet, group, x, top + columns.height + 3 + 10 * number)


def _draw_group(sheet: Axes, group: Item, x: float, y: float) -> None:
    look = {"color": canvas.MUTED, "linewidth": 0.7, "zorder": 1}
    sheet.plot([x + group.start, x + group.start, x + group.end, x + group.end], [y - 2, y, y, y - 2], **look)
    text = write(sheet, x + group.text_at, y + 6.2, group.text, canvas.NOTE, ha="center")
    text.set_zorder(5)
