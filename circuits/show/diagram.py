"""A circuit on a scale of layers, drawn as `layout` places it.

1. A span is a box in the columns of its positions, from its first to its last layer; the layers that build it
   are shaded. Positions that share a span are joined under the sentence, with its name.
2. A mapping's arrow is as wide as what its heads do. Names of the mapping in front are filled.
3. Wires run between components; how they are dashed says which side of the reader they enter: query, key or
   value. Folded layers are one grey row, and the axis says which.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch
from matplotlib.path import Path

from circuits.show import canvas
from circuits.show.canvas import Area, Font, draw_box, width_of, write
from circuits.show.layout import AXIS, RAISED, SHAPES, PlacedItem, Placement, groups_under, in_lanes, lay_out
from circuits.show.scene import OUTPUT, Scene, to_scene
from circuits.show.words import plural, spell

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

_PAD: Final = 9.0
_TITLE: Final = 22.0  # the height of a title
_STEP: Final = 9.0  # from one line of a caption to the next
_BOX: Final = 23.0  # the height of the output's box
_COLUMN: Final = 50.0  # of a token, where there is space
_HOW: Final = (
    "A box: the layers that hold what a token says; shaded: those that build it. An arrow: heads that read "
    "the key and write to the query in that layer, as wide as what they add to the joint effect; filled: the "
    "mapping in front."
)
_DOT: Final = " A dot: heads by which a token reads itself."
_SIDES: Final = {"query": "-", "key": (0, (4, 1.5)), "value": (0, (1, 1.2)), "": "-"}


def circuit_figure(
    circuit: Circuit, *, share: float | None = None, title: str | None = None, figure: Figure | None = None
) -> Figure:
    """Every mapping of a circuit where its heads stand, the spans of its tokens, and the output.

    >>> figure = show.circuit_figure(found)
    >>> figure.axes[0].texts[0].get_text()
    'mini'
    """
    scene = to_scene(circuit, share)
    return scene_figure(scene, circuit.source.name if title is None else title, figure=figure)


def scene_figure(
    scene: Scene, title: str, *, how: str = _HOW, caption: str | None = None, figure: Figure | None = None
) -> Figure:
    """A scene on a scale of layers, with its title and a caption that counts what is not drawn."""
    columns = min(len(scene.words), 40)
    width = min(max(AXIS + _COLUMN * columns + 24, canvas.COLUMN * 72), canvas.WIDTH * 72)
    layout = lay_out(scene, width - 2 * _PAD)
    words = (_caption(scene, layout) if caption is None else caption) + how
    words += _DOT if any(item.start == item.end and not item.name for item in layout.lanes) else ""
    lines = textwrap.wrap(words, int((width - 2 * _PAD) / 3.25))
    height = _TITLE + layout.height + 8 + _STEP * len(lines) + 6
    sheet = canvas.new_sheet(width, height, figure)
    with canvas.looks():
        name, note = spell(title, longest=36), _note(scene)
        write(sheet, _PAD, 14, name, canvas.TITLE)
        if width_of(name, canvas.TITLE) + width_of(note, canvas.HEADING_SMALL) + 3 * _PAD < width:
            write(sheet, width - _PAD, 14, note, Font(canvas.SMALL, canvas.RED, bold=True), ha="right")
        draw_layout(sheet, scene, layout, _PAD, _TITLE)
        for number, line in enumerate(lines):
            write(sheet, _PAD, _TITLE + layout.height + 12 + _STEP * number, line, canvas.NOTE)
    return canvas.figure_around(sheet)


def _note(scene: Scene) -> str:
    if scene.front is None or scene.cell is None:
        return ""
    (key, query), front = scene.cell, scene.front
    reached = f"{front['modulation']:.0%} by {plural(len(scene.carriers), 'head')}"
    reached = "modulation withheld" if front["doubts"] else reached
    return f"key {key} → query {query}: total {front['total']:z.2f}, {reached}"


def _caption(scene: Scene, layout: Placement) -> str:
    """The verdict, how many mappings are drawn and how many are not, and which layers are folded."""
    verdict = f"{scene.verdict}. " if scene.verdict else ""
    folded = ", ".join(f"{first}–{last}" for first, last in layout.folded)
    layers = f" Folded: layers {folded}, in which no head carries and no box or shade ends." if folded else ""
    return f"{verdict}{scene.counted(layout.mappings)}.{layers} "


# What stands on the sheet


def draw_layout(sheet: Axes, scene: Scene, layout: Placement, x: float, y: float) -> None:
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


def _draw_rows(sheet: Axes, scene: Scene, layout: Placement, x: float, y: float) -> None:
    """The axis, with a line between layers, and a mark where some are folded."""
    right = x + layout.width
    for (first, last), (top, bottom) in layout.rows.items():
        middle, text = y + (top + bottom) / 2, str(first)
        if first < last:
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


def _draw_spans(sheet: Axes, scene: Scene, layout: Placement, x: float, y: float) -> None:
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


def _draw_streams(sheet: Axes, layout: Placement, x: float, y: float) -> None:
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


def _draw_item(sheet: Axes, item: PlacedItem, x: float, y: float) -> None:
    """An arrow and the names on it, or a component; what belongs to the mapping in front is filled."""
    colour = canvas.RED if item.front else _strength(item.effect)
    wide = width_of(item.text, canvas.HEADING_SMALL) + 6
    if item.start < item.end:
        width = 0.6 + 2.6 * min(abs(item.effect), 1.2)
        look = {"color": colour, "linewidth": width, "zorder": 2 + item.front, "shrinkA": 0, "shrinkB": 0}
        ends = {"posA": (x + item.start, y), "posB": (x + item.end, y), "mutation_scale": 5 + 1.5 * width}
        sheet.add_patch(FancyArrowPatch(**ends, arrowstyle="-|>", **look))
    if item.kind == "" and item.start == item.end:  # a position that reads itself
        sheet.plot([x + item.start], [y], "o", color=colour, markersize=3, zorder=3)
    fill, ink = (colour, canvas.PAPER) if item.front else (canvas.PAPER, canvas.INK)
    look = {"edgecolor": colour, "facecolor": fill, "linewidth": 0.7, "zorder": 4}
    y -= RAISED * item.raised
    corner = (x + item.text_x - wide / 2, y - 4.1)
    shape = SHAPES.get(item.kind, SHAPES["head"])
    sheet.add_patch(FancyBboxPatch(corner, wide, 8.2, boxstyle=shape, **look))
    font = Font(canvas.SMALL, ink, bold=item.front)
    write(sheet, x + item.text_x, y + 2.1, item.text, font, ha="center", zorder=5)


def _strength(effect: float) -> str:
    """Blue for the answer, orange against it, the darker the stronger; the palest is still seen on paper."""
    strength = 0.55 + 0.45 * min(abs(effect), 1.0)
    return canvas.shade(strength) if effect >= 0 else canvas.shade(-strength, canvas.EFFECT)


def _draw_wires(sheet: Axes, graph: nx.MultiDiGraph, layout: Placement, x: float, y: float) -> None:
    """Components, and the wires between them: from the top of a writer to the bottom of its reader."""
    marks: dict[str, tuple[float, float]] = {}
    for item, lane in layout.lanes.items():
        if item.name:
            _draw_item(sheet, item, x, y + lane)
            marks[item.name] = x + item.text_x, y + lane
    for start, end, wire in graph.edges(data=True):
        if wire.get("kind") != "wire":
            continue
        first, last = (marks.get(name) or _anchor(layout, graph, name, x, y) for name in (start, end))
        if first is None or last is None:
            continue
        points = _curve(first, last, beside=start in marks, under=end not in marks)
        codes = [Path.MOVETO] + [Path.CURVE4] * 3
        colour, depth = (canvas.RED, 1.7) if wire.get("front") else (_strength(wire["effect"]), 1.5)
        look = {"edgecolor": colour, "linewidth": 0.5 + 2.0 * min(abs(wire["effect"]), 1.2), "zorder": depth}
        style = _SIDES.get(wire["side"], "-")
        sheet.add_patch(PathPatch(Path(points, codes), fill=False, linestyle=style, **look))


def _curve(
    start: tuple[float, float], end: tuple[float, float], *, beside: bool, under: bool
) -> list[tuple[float, float]]:
    """From the top of a writer to the bottom of a reader; in one column in a bow, the wider the longer, from
    the side of the writer (if it has a mark) to the side of the reader (or to the output, from below)."""
    (x0, y0), (x1, y1) = start, end
    if abs(x0 - x1) < 1 and beside:
        left, bow = x0 - 9.0, 10 + 0.3 * abs(y0 - y1)
        up = [(x1 - bow, y1 + 12), (x1, y1)] if under else [(left - bow, y1), (left, y1)]
        return [(left, y0), (left - bow, y0), *up]
    (y0, y1), middle = (y0 - 4, y1 if under else y1 + 4), (y0 + y1) / 2
    return [(x0, y0), (x0, middle), (x1, middle), (x1, y1)]


def _anchor(
    layout: Placement, graph: nx.MultiDiGraph, name: str, x: float, y: float
) -> tuple[float, float] | None:
    """Where a wire meets a node without a mark: at the output, or at the token (of an embedding)."""
    centre = layout.columns.x_of(graph.nodes[name]["positions"][0])
    return None if centre is None else (x + centre, y + (_BOX + 1 if name == OUTPUT else layout.foot + 2))


def _draw_output(sheet: Axes, scene: Scene, layout: Placement, x: float, y: float) -> None:
    """The output over the last token, and the residual stream between them."""
    lines = [spell(line, longest=24) for line in scene.graph.nodes[OUTPUT]["lines"]]
    title, note = lines[0], " · ".join(lines[1:])
    wide = max(width_of(title, canvas.HEADING), width_of(note, canvas.NOTE)) + 12
    last = layout.columns.x_of(len(scene.words) - 1) or layout.columns.centres[-1]
    centre = x + min(max(last, wide / 2), layout.width - wide / 2)
    look = {"color": canvas.LINE, "linewidth": 1.1, "zorder": 0.4}
    sheet.plot([x + last, x + last], [y + layout.foot, y + _BOX + 1], **look)
    draw_box(sheet, Area(centre - wide / 2, y + 1, wide, _BOX), canvas.INK, canvas.PAPER, line=1.2, depth=3)
    write(sheet, centre, y + 11, title, canvas.HEADING, ha="center", zorder=5)
    write(sheet, centre, y + 20, note, canvas.NOTE, ha="center", zorder=5)


def _draw_sentence(sheet: Axes, scene: Scene, layout: Placement, x: float, y: float) -> None:
    """The positions, the words under them, and the names of those that share a span."""
    columns, top = layout.columns, y + layout.foot
    for word, position, centre in zip(columns.words, columns.positions, columns.centres, strict=True):
        red = scene.is_key(position)
        number = "" if position is None else str(position)
        font = Font(canvas.SMALL, canvas.RED if red else canvas.MUTED)
        write(sheet, x + centre, top + 8, number, font, ha="center")
        font = Font(columns.size, canvas.RED if red else canvas.INK, bold=red)
        if columns.upright:
            write(sheet, x + centre, top + 11, word, font, ha="center", va="top", rotation=90)
        else:
            write(sheet, x + centre, top + 11 + columns.size, word, font, ha="center")
    for number, lane in enumerate(in_lanes(groups_under(scene, columns, layout.width))):
        for group in lane:
            _draw_group(sheet, group, x, top + columns.height + 3 + 10 * number)


def _draw_group(sheet: Axes, group: PlacedItem, x: float, y: float) -> None:
    """A bracket under the positions of a span, and its name."""
    left, right = x + group.start, x + group.end
    look = {"color": canvas.MUTED, "linewidth": 0.7, "zorder": 1}
    sheet.plot([left, left, right, right], [y - 2, y, y, y - 2], **look)
    write(sheet, x + group.text_x, y + 6.2, group.text, canvas.NOTE, ha="center", zorder=5)
