"""A circuit on a scale of layers; `layout` says where everything stands.

1. A span is a box in the columns of its positions, from its first to its last layer; the layers that build it
   are shaded. Positions that share a span are joined by a bracket under the sentence, with its name.
2. A mapping's arrow is as wide as the effect of its heads. Names of the mapping in front are filled.
3. Folded layers are one grey row, and the axis says which they are.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from circuits.show.canvas import (
    COLUMN,
    EFFECT,
    HEADING,
    HEADING_SMALL,
    INK,
    LINE,
    MUTED,
    NOTE,
    PAPER,
    RED,
    SMALL,
    WASH,
    WIDTH,
    Area,
    Font,
    Sheet,
    figure_around,
    looks,
    new_sheet,
    shade,
    width_of,
)
from circuits.show.layout import (
    PRINT,
    PlacedItem,
    Placement,
    lay_out,
)
from circuits.show.scene import OUTPUT, Scene, to_scene
from circuits.show.words import plural, spell

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

# Lengths are in points.
_PAD: Final = 9.0
_TITLE: Final = 22.0  # the height of a title
_STEP: Final = 9.0  # from one line of a caption to the next
_BOX: Final = 23.0  # the height of the output's box
_COLUMN: Final = 50.0  # of a token, where there is space
_LETTER: Final = 3.25  # the width of a letter of the caption, on average
_HOW: Final = (
    "A box: the layers that hold what a token says; shaded: those that build it. An arrow: heads that read "
    "the key and write to the query in that layer, as wide as what they add to the joint effect; filled: the "
    "mapping in front."
)
_DOT: Final = " A dot: heads by which a token reads itself."


def circuit_figure(
    circuit: Circuit | Scene,
    *,
    share: float | None = None,
    title: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Every mapping of a circuit where its heads stand, the spans of its tokens, and the output.

    >>> figure = show.circuit_figure(found)
    >>> figure.axes[0].texts[0].get_text()
    'mini'
    """
    scene = to_scene(circuit, share)
    return scene_figure(
        scene, scene.circuit.source.name if title is None else title, figure=figure
    )


def scene_figure(
    scene: Scene,
    title: str,
    *,
    how: str = _HOW,
    caption: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """A scene on a scale of layers, with its title and a caption that ends with `how` to read it.

    By default the caption begins with what is drawn and what is not.
    """
    wanted = PRINT.axis + _COLUMN * min(len(scene.words), 40) + 24
    width = min(max(wanted, COLUMN * 72), WIDTH * 72)
    layout = lay_out(scene, width - 2 * _PAD)
    if caption is None:
        caption = _caption(scene, layout)
    caption += how
    if any(_reads_itself(item) for item in layout.lanes):
        caption += _DOT
    lines = textwrap.wrap(caption, int((width - 2 * _PAD) / _LETTER))
    sheet = new_sheet(width, _TITLE + layout.height + 8 + _STEP * len(lines) + 6, figure)
    with looks():
        red = Font(SMALL, RED, bold=True)
        sheet.title(_PAD, width - _PAD, 14, spell(title, longest=36), _note(scene), red)
        draw_layout(sheet.moved(_PAD, _TITLE), scene, layout)
        for number, line in enumerate(lines):
            sheet.write(_PAD, _TITLE + layout.height + 12 + _STEP * number, line, NOTE)
    return figure_around(sheet.axes)


def _note(scene: Scene) -> str:
    """`key 5 → query 8: total 1.00, 80% by 5 heads`; empty where no mapping is in front."""
    if scene.front is None or scene.cell is None:
        return ""
    key, query = scene.cell
    carried = f"{scene.front['modulation']:.0%} by {plural(len(scene.carriers), 'head')}"
    if scene.front["doubts"]:
        carried = "modulation withheld"
    return f"key {key} → query {query}: total {scene.front['total']:z.2f}, {carried}"


def _caption(scene: Scene, layout: Placement) -> str:
    """The verdict, how many mappings are drawn and how many are not, and which layers are folded."""
    caption = f"{scene.counted(layout.mappings)}. "
    if scene.verdict:
        caption = f"{scene.verdict}. {caption}"
    if layout.folded:
        layers = ", ".join(f"{first}–{last}" for first, last in layout.folded)
        caption += (
            f"Folded: layers {layers}, in which no head carries and no box or shade ends. "
        )
    return caption


def _reads_itself(item: PlacedItem) -> bool:
    return item.start == item.end


# What stands on the sheet, measured from the upper left corner of the layout


def draw_layout(sheet: Sheet, scene: Scene, layout: Placement) -> None:
    """Draw a scene as it was laid out."""
    _draw_rows(sheet, scene, layout)
    _draw_spans(sheet, scene, layout)
    _draw_streams(sheet, layout)
    for item, y in layout.lanes.items():
        _draw_item(sheet, item, y)
    _draw_output(sheet, scene, layout)
    _draw_sentence(sheet, scene, layout)


def _draw_rows(sheet: Sheet, scene: Scene, layout: Placement) -> None:
    """The axis of layers, a line between rows, and a grey band where layers are folded."""
    ends = (PRINT.axis - 5, layout.width)
    for (first, last), (top, bottom) in layout.rows.items():
        text = str(first)
        if first < last:
            band = Area(0, top, layout.width, bottom - top)
            sheet.box(band, "none", WASH, line=0, depth=0.2, rounding=0.1)
            text = f"{first}–{last}"
        sheet.write(
            PRINT.axis - 9, (top + bottom) / 2, text, NOTE, ha="right", va="center_baseline"
        )
        sheet.line(ends, (bottom, bottom), LINE, width=0.35, depth=0.3)
    top = layout.top
    sheet.write(PRINT.axis - 9, top - 4, str(scene.depth), NOTE, ha="right")
    sheet.write(0, top - 14, "layer", NOTE)
    sheet.line(ends, (top, top), LINE, width=0.35, depth=0.3)


def _draw_spans(sheet: Sheet, scene: Scene, layout: Placement) -> None:
    """A box for each position of a span over the layers that hold it; the layers that build it are shaded.

    A shade may reach beyond its box, where a layer writes what is not held afterwards.
    """
    half = min(0.36 * layout.columns.step, 11.0)
    for name, node in scene.boxes:
        if not node["layers"] or node["kind"] != "span":
            continue
        is_key = scene.ends is not None and name == scene.ends[0]
        first, last = node["layers"]
        for position in node["positions"]:
            centre = layout.columns.x_of(position)
            if centre is None:
                continue
            for start, end in node["ranges"]:
                built = _layers_area(layout, centre, half, start, end)
                sheet.box(built, "none", shade(0.2), line=0, depth=0.6, rounding=2.0)
            held = _layers_area(layout, centre, half, first, last)
            edge, line = (RED, 1.3) if is_key else (MUTED, 0.7)
            box = sheet.box(held, edge, "none", line=line, depth=0.9, rounding=2.5)
            box.set_gid(f"span {position} layer {first}-{last}")


def _layers_area(layout: Placement, centre: float, half: float, first: int, last: int) -> Area:
    """From the bottom of one layer to the top of another, `half` to each side of a column."""
    top = layout.y_of(last, top=True) + 1
    bottom = layout.y_of(first, top=False) - 1
    return Area(centre - half, top, 2 * half, bottom - top)


def _draw_streams(sheet: Sheet, layout: Placement) -> None:
    """The residual stream of each token that a mapping reads or writes, up to the highest arrow there.

    That of the key in front is red and dotted.
    """
    tops: dict[float, float] = {}
    front_keys = set()
    for item, y in layout.lanes.items():
        for x in (item.start, item.end):
            tops[x] = min(y, tops.get(x, layout.foot))
        if item.front:
            front_keys.add(item.start)
    for x, top in tops.items():
        colour, style = (RED, (0, (1, 1.5))) if x in front_keys else (LINE, "-")
        sheet.line((x, x), (layout.foot, top), colour, width=0.8, depth=0.5, style=style)


def _draw_item(sheet: Sheet, item: PlacedItem, y: float) -> None:
    """An arrow and the names on it; the names of the mapping in front are filled."""
    colour = RED if item.front else _strength(item.effect)
    if item.start < item.end:
        width = 0.6 + 2.6 * min(abs(item.effect), 1.2)
        arrow = FancyArrowPatch(
            sheet.at(item.start, y),
            sheet.at(item.end, y),
            arrowstyle="-|>",
            mutation_scale=5 + 1.5 * width,
            color=colour,
            linewidth=width,
            zorder=2 + item.front,
            shrinkA=0,
            shrinkB=0,
        )
        sheet.axes.add_patch(arrow)
    if _reads_itself(item):
        sheet.axes.plot(*sheet.at(item.start, y), "o", color=colour, markersize=3, zorder=3)
    if item.raised:
        y -= PRINT.raised
    width = width_of(item.text, HEADING_SMALL) + 6
    box = FancyBboxPatch(
        sheet.at(item.text_x - width / 2, y - 4.1),
        width,
        8.2,
        boxstyle="round,pad=0,rounding_size=4",
        edgecolor=colour,
        facecolor=colour if item.front else PAPER,
        linewidth=0.7,
        zorder=4,
    )
    sheet.axes.add_patch(box)
    font = Font(SMALL, PAPER, bold=True) if item.front else Font(SMALL, INK)
    sheet.write(item.text_x, y + 2.1, item.text, font, ha="center", zorder=5)


def _strength(effect: float) -> str:
    """Blue for the answer, orange against it, the darker the stronger; the palest is still seen on paper."""
    strength = 0.55 + 0.45 * min(abs(effect), 1.0)
    return shade(strength) if effect >= 0 else shade(-strength, EFFECT)


def _draw_output(sheet: Sheet, scene: Scene, layout: Placement) -> None:
    """The output over the last token, and the residual stream between them."""
    title, *facts = [spell(line, longest=24) for line in scene.graph.nodes[OUTPUT]["lines"]]
    note = " · ".join(facts)
    width = max(width_of(title, HEADING), width_of(note, NOTE)) + 12
    last = layout.columns.x_of(len(scene.words) - 1) or layout.columns.centres[-1]
    centre = min(max(last, width / 2), layout.width - width / 2)
    sheet.line((last, last), (layout.foot, _BOX + 1), LINE, width=1.1, depth=0.4)
    sheet.box(Area(centre - width / 2, 1, width, _BOX), INK, PAPER, line=1.2, depth=3)
    sheet.write(centre, 11, title, HEADING, ha="center", zorder=5)
    sheet.write(centre, 20, note, NOTE, ha="center", zorder=5)


def _draw_sentence(sheet: Sheet, scene: Scene, layout: Placement) -> None:
    """The positions, the words under them, and brackets with the names of spans under those."""
    columns = layout.columns
    top = layout.foot
    for word, position, centre in zip(
        columns.words, columns.positions, columns.centres, strict=True
    ):
        red = scene.is_key(position)
        number = "" if position is None else str(position)
        sheet.write(centre, top + 8, number, Font(SMALL, RED if red else MUTED), ha="center")
        font = Font(columns.size, RED if red else INK, bold=red)
        if columns.upright:
            sheet.write(centre, top + 11, word, font, ha="center", va="top", rotation=90)
        else:
            sheet.write(centre, top + 11 + columns.size, word, font, ha="center")
    for number, lane in enumerate(layout.groups):
        y = top + columns.height + 3 + 10 * number
        for span in lane:
            bracket = (span.start, span.start, span.end, span.end)
            sheet.line(bracket, (y - 2, y, y, y - 2), MUTED, width=0.7, depth=1)
            sheet.write(span.text_x, y + 6.2, span.text, NOTE, ha="center", zorder=5)
