"""A circuit on a scale of layers; `layout` says where everything stands.

1. A span is a box in the columns of its positions, from its first to its last layer; the layers that build it
   are shaded, and layers that write there while nothing is held are ticks. Positions that share a span are
   joined by a bracket under the sentence, with its name.
2. A mapping's arrow is as wide as the effect of its heads; one against the answer ends in a bar. Names of the
   mapping in front are filled.
3. Folded layers are one grey row, and the axis says which they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from circuits.show.arrows import PRINT, Interval, PlacedItem, free_spaces
from circuits.show.canvas import (
    COLUMN,
    EFFECT,
    HEADING,
    HEADING_SMALL,
    INK,
    LINE,
    MUTED,
    NAME,
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
from circuits.show.columns import NOTE_NAMES, NOTE_STEP, note_lines, upright_note
from circuits.show.graph import OUTPUT, Attributes
from circuits.show.layout import LayerRange, Placement, lay_out
from circuits.show.legend import (
    LINE_HEIGHT,
    Key,
    to_heading,
    to_legend,
    wrapped,
    write_lines,
)
from circuits.show.scene import Scene, to_scene
from circuits.show.words import plural, spell

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

# Lengths are in points.
_PAD: Final = 9.0
_BOX: Final = 23.0  # the height of the output's box
_COLUMN: Final = 50.0  # of a token, where there is space
_RED_BOLD: Final = Font(SMALL, RED, bold=True)
_FRONT_NAMES: Final = Font(SMALL, PAPER, bold=True)  # of the heads of the mapping in front
_TURNED: Final[Any] = {"ha": "center", "va": "top", "rotation": 90}  # text that hangs down
_DASHED: Final[Any] = (0, (2.2, 1.4))


def circuit_figure(
    circuit: Circuit | Scene,
    *,
    share: float | None = None,
    title: str | None = None,
    all_spans: bool = False,
    figure: Figure | None = None,
) -> Figure:
    """Every mapping of a circuit where its heads stand, the spans of its tokens, and the output.

    The finding stands above it, or `title`. Spans are shown where a mapping begins or ends, where the user named
    them, and of the others the three strongest, or with `all_spans` all.

        >>> figure = show.circuit_figure(found)
        >>> figure.axes[0].texts[0].get_text()
        '6 of 144 heads carry 80% of large(5) → "(8)'
    """
    scene = to_scene(circuit, share)
    wanted = PRINT.axis + _COLUMN * min(len(scene.words), 40) + 24
    width = min(max(wanted, COLUMN * 72), WIDTH * 72)
    inner = width - 2 * _PAD
    layout = lay_out(scene, inner, all_spans=all_spans)
    heading = to_heading(scene.finding if title is None else title, scene.question(), inner)
    legend = to_legend(legend_keys(scene, layout), inner)
    notes = wrapped(_caption(scene, layout), NOTE, inner)
    top = _PAD + heading.height + 4
    below = top + layout.height + 6
    sheet = new_sheet(width, below + legend.height + LINE_HEIGHT * len(notes) + 5, figure)
    with looks():
        heading.draw(sheet, _PAD, _PAD - 3)
        draw_layout(sheet.moved(_PAD, top), scene, layout)
        legend.draw(sheet, _PAD, below)
        write_lines(sheet, _PAD, below + legend.height, notes)
    return figure_around(sheet.axes)


def _caption(scene: Scene, layout: Placement) -> str:
    """The verdict, how many mappings and spans are drawn and how many are not, and which layers are folded."""
    caption = f"{scene.counted(layout.mappings)}."
    if scene.verdict:
        caption = f"{scene.verdict}. {caption}"
    spans = [node for _, node in scene.boxes if node["kind"] == "span" and node["layers"]]
    hidden = len(spans) - len(layout.boxes)
    if hidden:
        caption += f" {plural(hidden, 'weaker span')} not drawn."
    if layout.folded:
        layers = ", ".join(f"{first}–{last}" for first, last in layout.folded)
        caption += f" Folded: layers {layers}, in which no head carries and no box ends."
    return caption


# The legend


def legend_keys(scene: Scene, layout: Placement) -> list[Key]:
    """Entries for what a picture on a scale of layers has."""
    keys = []
    if layout.boxes:
        keys.append(Key("layers that hold a token", _held_sample, sample=8))
        keys.append(Key("that build it", _built_sample, sample=8))
    if any(ticks_of(node) for _, node in layout.boxes):
        keys.append(Key("writes where nothing is held", _tick_sample, sample=8))
    arrows = [item for item in layout.lanes if item.start < item.end]
    if arrows:
        keys.append(Key("width: what its heads add to the joint effect", _arrow_sample))
    if len(arrows) < len(layout.lanes):
        keys.append(Key("a token reads itself", _dot_sample, sample=5))
    in_front = [item for item in layout.lanes if item.front]
    if 0 < len(in_front) < len(layout.lanes):
        keys.append(Key("the mapping in front", _front_sample, sample=10))
    if any(item.effect < 0 for item in arrows):
        keys.append(Key("against the answer", _against_sample))
    return keys


def _held_sample(sheet: Sheet, width: float) -> None:
    sheet.box(_sample_area(width), MUTED, "none", line=0.7, rounding=2)


def _built_sample(sheet: Sheet, width: float) -> None:
    sheet.box(_sample_area(width), "none", shade(0.2), line=0, rounding=2)


def _front_sample(sheet: Sheet, width: float) -> None:
    sheet.box(_sample_area(width), RED, RED, rounding=3.5)


def _sample_area(width: float) -> Area:
    return Area(0, -3.5, width, 7)


def _tick_sample(sheet: Sheet, width: float) -> None:
    sheet.line((0, width), (0, 0), shade(0.5), width=1.2, depth=1)


def _arrow_sample(sheet: Sheet, width: float) -> None:
    _draw_arrow(sheet, (0, width), 0, 1.6, RED, depth=2)


def _against_sample(sheet: Sheet, width: float) -> None:
    _draw_arrow(sheet, (0, width), 0, 1.6, _strength(-0.6), depth=2, against=True)


def _dot_sample(sheet: Sheet, width: float) -> None:
    _draw_dot(sheet, width / 2, 0, _strength(0.6))


# What stands on the sheet, measured from the upper left corner of the layout


def draw_layout(sheet: Sheet, scene: Scene, layout: Placement, *, label: str = "") -> None:
    """Draw a scene as it was laid out; `label` stands beside the arrows of the mapping in front."""
    _draw_rows(sheet, scene, layout)
    _draw_spans(sheet, scene, layout)
    _draw_streams(sheet, layout)
    for item, y in layout.lanes.items():
        _draw_item(sheet, item, y)
    left_of_output = _draw_output(sheet, scene, layout)
    if label:
        _draw_label(sheet, layout, label, left_of_output)
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
    """A box for each position of a span over the layers that hold it; the layers that build it are shaded."""
    half = layout.columns.half
    for name, node in layout.boxes:
        is_key = scene.ends is not None and name == scene.ends[0]
        first, last = node["layers"]
        for position in node["positions"]:
            centre = layout.columns.x_of(position)
            if centre is None:
                continue
            for row, is_whole in _built_rows(layout, node):
                built = _layers_area(layout, centre, half, *row)
                fill = shade(0.2 if is_whole else 0.1)
                sheet.box(built, "none", fill, line=0, depth=0.6, rounding=0.5)
            for layer in ticks_of(node):
                y = (layout.y_of(layer, top=True) + layout.y_of(layer, top=False)) / 2
                ends = (centre - half, centre + half)
                sheet.line(ends, (y, y), shade(0.5), width=1.2, depth=0.7)
            held = _layers_area(layout, centre, half, first, last)
            edge, line = (RED, 1.3) if is_key else (MUTED, 0.7)
            box = sheet.box(held, edge, "none", line=line, depth=0.9, rounding=2.5)
            box.set_gid(f"span {position} layer {first}-{last}")


def ticks_of(node: Attributes) -> list[int]:
    """The layers that build a span although it is not held there."""
    first, last = node["layers"]
    return [layer for layer in _built_layers(node) if not first <= layer <= last]


def _built_layers(node: Attributes) -> list[int]:
    layers = []
    for first, last in node["ranges"]:
        layers += range(first, last + 1)
    return layers


def _built_rows(layout: Placement, node: Attributes) -> list[tuple[LayerRange, bool]]:
    """Runs of rows with layers that build a span and hold it, and whether all layers of these rows do."""
    first, last = node["layers"]
    built = {layer for layer in _built_layers(node) if first <= layer <= last}
    rows: list[tuple[LayerRange, bool]] = []
    for low, high in layout.rows:
        layers = set(range(low, high + 1))
        if not layers & built:
            continue
        is_whole = layers <= built
        if rows:
            (first_below, last_below), whole_below = rows[-1]
            if (
                last_below == low - 1 and whole_below == is_whole
            ):  # joined, so that no seam is seen
                rows.pop()
                low = first_below
        rows.append(((low, high), is_whole))
    return rows


def _layers_area(layout: Placement, centre: float, half: float, first: int, last: int) -> Area:
    """From the bottom of one layer to the top of another, `half` to each side of a column."""
    top = layout.y_of(last, top=True)
    bottom = layout.y_of(first, top=False)
    return Area(centre - half, top + 0.5, 2 * half, bottom - top - 1)


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
        ends = (item.start, item.end)
        against = item.effect < 0
        style = _DASHED if item.opening else "-"
        _draw_arrow(sheet, ends, y, width, colour, 2 + item.front, style, against=against)
    else:
        _draw_dot(sheet, item.start, y, colour, depth=3)
    width = width_of(item.text, HEADING_SMALL) + 6
    if item.led:
        ends = (item.end, item.text_x - width / 2)
        sheet.line(ends, (y, y), colour, width=0.5, depth=1.9, style=(0, (1, 1.5)))
    fill, font = (colour, _FRONT_NAMES) if item.front else (PAPER, NAME)
    pill = sheet.box(
        Area(item.text_x - width / 2, y - 4.1, width, 8.2),
        colour,
        fill,
        line=0.7,
        depth=4,
        rounding=4,
    )
    pill.set_gid(f"pill {item.text}")
    sheet.write(item.text_x, y + 2.1, item.text, font, ha="center", zorder=5)


def _draw_arrow(
    sheet: Sheet,
    ends: Interval,
    y: float,
    width: float,
    colour: str,
    depth: float,
    style: Any = "-",
    *,
    against: bool = False,
) -> None:
    """An arrow with a head, or `against` the answer with a bar, for readers who see no hue."""
    arrow = FancyArrowPatch(
        sheet.at(ends[0], y),
        sheet.at(ends[1], y),
        arrowstyle="-[,widthB=0.45,lengthB=0" if against else "-|>",
        mutation_scale=5 + 1.5 * width,
        color=colour,
        linewidth=width,
        linestyle=style,
        zorder=depth,
        shrinkA=0,
        shrinkB=0,
    )
    sheet.axes.add_patch(arrow)


def _draw_dot(sheet: Sheet, x: float, y: float, colour: str, *, depth: float = 2) -> None:
    """What a token reads of itself."""
    sheet.axes.plot(*sheet.at(x, y), "o", color=colour, markersize=3, zorder=depth)


def _strength(effect: float) -> str:
    """Blue for the answer, orange against it, the darker the stronger; the palest is still seen on paper."""
    strength = 0.55 + 0.45 * min(abs(effect), 1.0)
    return shade(strength) if effect >= 0 else shade(-strength, EFFECT)


def _draw_label(sheet: Sheet, layout: Placement, label: str, left_of_output: float) -> None:
    """Write the label before the highest arrow in front; where boxes are in the way above it, else beside the
    output."""
    in_front = [(y, item) for item, y in layout.lanes.items() if item.front]
    if not in_front:
        return
    y, item = min(in_front, key=lambda each: each[0])
    width = width_of(label, _RED_BOLD)
    right = _label_before(layout, item, width)
    if right is None and item.layer < max(last for _, last in layout.rows):
        above = item.layer + 1
        y = (layout.y_of(above, top=True) + layout.y_of(above, top=False)) / 2
        right = _label_above(layout, item, width)
    if right is not None:
        sheet.write(right, y + 2.1, label, _RED_BOLD, ha="right", zorder=5)
    elif left_of_output - PRINT.axis - 6 >= width:
        sheet.write(left_of_output - 6, 15, label, _RED_BOLD, ha="right", zorder=5)


def _label_before(layout: Placement, item: PlacedItem, width: float) -> float | None:
    """The right end of a label of this width before an arrow; None if it has no space there."""
    spaces = [space for space in _spaces_of_layer(layout, item.layer) if space[0] < item.start]
    if not spaces or item.text_x <= item.start:
        return None
    left, right = spaces[-1]
    right = min(right, item.start) - 3
    return right if right - left >= width else None


def _label_above(layout: Placement, item: PlacedItem, width: float) -> float | None:
    """The right end of a label of this width in the layer above an arrow, not farther right than the arrow."""
    for left, right in reversed(_spaces_of_layer(layout, item.layer + 1)):
        right = min(right, item.end) - 3
        if right - left - 3 >= width and right > item.start:
            return right
    return None


def _spaces_of_layer(layout: Placement, layer: int) -> list[Interval]:
    """What boxes and ticks leave of a layer, from left to right."""
    taken = list(layout.taken(layer))
    half = layout.columns.half
    for _, node in layout.boxes:
        for position in node["positions"] if layer in ticks_of(node) else ():
            centre = layout.columns.x_of(position)
            if centre is not None:
                taken.append((centre - half, centre + half))
    return free_spaces((PRINT.axis, layout.width), sorted(taken))


def _draw_output(sheet: Sheet, scene: Scene, layout: Placement) -> float:
    """The output over the last token, and the residual stream between them; the left end of its box."""
    title, *facts = [spell(line, longest=24) for line in scene.graph.nodes[OUTPUT]["lines"]]
    note = " · ".join(facts)
    width = max(width_of(title, HEADING), width_of(note, NOTE)) + 12
    last = layout.columns.x_of(len(scene.words) - 1) or layout.columns.centres[-1]
    centre = min(max(last, width / 2), layout.width - width / 2)
    sheet.line((last, last), (layout.foot, _BOX + 1), LINE, width=1.1, depth=0.4)
    sheet.box(Area(centre - width / 2, 1, width, _BOX), INK, PAPER, line=1.2, depth=3)
    sheet.write(centre, 11, title, HEADING, ha="center", zorder=5)
    sheet.write(centre, 20, note, NOTE, ha="center", zorder=5)
    return centre - width / 2


def _draw_sentence(sheet: Sheet, scene: Scene, layout: Placement) -> None:
    """The words with their positions, the layers of their boxes, and brackets with the names of spans."""
    columns = layout.columns
    top = layout.foot
    for word, position, centre, note in zip(
        columns.words, columns.positions, columns.centres, columns.notes, strict=True
    ):
        red = scene.is_key(position)
        number = "" if position is None else str(position)
        numbers = Font(SMALL, RED if red else MUTED)
        font = Font(columns.size, RED if red else INK, bold=red)
        under = top + columns.words_height
        if columns.upright:
            sheet.write(centre, top + 8, number, numbers, ha="center")
            sheet.write(centre, top + 11, word, font, **_TURNED)
            sheet.write(centre, under + 2, upright_note(note), NOTE, **_TURNED)
            continue
        sheet.write(centre, top + 2.5 + columns.size, word, font, ha="center")
        sheet.write(centre, under - 2, number, numbers, ha="center")
        for row, line in enumerate(note_lines(note)):
            sheet.write(centre, under + NOTE_STEP * (row + 1) - 2, line, NOTE, ha="center")
    _draw_note_names(sheet, layout)
    for number, lane in enumerate(layout.groups):
        y = top + columns.height + 3 + 10 * number
        for span in lane:
            bracket = (span.start, span.start, span.end, span.end)
            sheet.line(bracket, (y - 2, y, y, y - 2), MUTED, width=0.7, depth=1)
            sheet.write(span.text_x, y + 6.2, span.text, NOTE, ha="center", zorder=5)


def _draw_note_names(sheet: Sheet, layout: Placement) -> None:
    """What the rows under the words are: `held` and `built`."""
    columns = layout.columns
    if not any(map(any, columns.notes)):
        return
    under = layout.foot + columns.words_height
    if columns.upright:
        sheet.write(8, under + 2, NOTE_NAMES, NOTE, **_TURNED)
        return
    for row, name in enumerate(("held", "built")):
        sheet.write(0, under + NOTE_STEP * (row + 1) - 2, name, NOTE)
