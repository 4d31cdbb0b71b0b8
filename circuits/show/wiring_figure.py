"""A wiring as a figure that is read in one column of a paper.

1. `wiring_layout` says where boxes and wires stand. Layers run upwards from the embeddings to the logits; the
   places in use are columns, named below; the places between them are folded.
2. `wiring_marks` draws the wires and the legend, `wiring_words` says what is written.
3. The strongest path from an embedding to the logits lies on a red band, and its boxes are filled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

from circuits.components import SIDES
from circuits.errors import PromptError
from circuits.show.canvas import (
    MUTED,
    NOTE,
    PAPER,
    RED,
    SMALL,
    WASH,
    Area,
    Font,
    Sheet,
    figure_around,
    looks,
    new_sheet,
)
from circuits.show.legend import LINE_HEIGHT, to_heading, to_legend, wrapped, write_lines
from circuits.show.wiring import headline, strongest_path
from circuits.show.wiring_grid import kind_of
from circuits.show.wiring_layout import Box, WiringLayout, lay_out
from circuits.show.wiring_marks import SIDE_COLOURS, draw_wire, legend_keys
from circuits.show.wiring_words import BoxLabels, caption, checked_names, subtitle, text_width
from circuits.wires.parts import Node

if TYPE_CHECKING:
    from circuits.components import Wire
    from circuits.wires.record import Wiring

ONE_COLUMN: Final = 3.3  # inches
_MARGIN: Final = 4.0  # points
_AXIS: Final = 11.0  # room for the numbers of layers at the left
_LETTER: Final = Font(SMALL, bold=True)


def wiring_figure(
    wiring: Wiring,
    *,
    width: float | None = None,
    names: Mapping[str, str] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """The circuit in one column of a paper, or as wide as it needs to be.

    `width` is in inches; a width that is too small is refused. `names` gives heads and MLPs names that are
    written into their boxes: `{"L5H1": "name mover"}`.
    """
    inches = ONE_COLUMN if width is None else width
    with looks():
        labels = BoxLabels(wiring, checked_names(wiring, names or {}))
        layout = lay_out(
            wiring,
            label_size=labels.size,
            footer_width=lambda place: max(map(text_width, labels.footer(place)), default=0.0),
            width=inches * 72 - 2 * _MARGIN - _AXIS,
        )
        needed = layout.width + 2 * _MARGIN + _AXIS
        if width is not None and needed > width * 72 + 0.01:
            least = f"its boxes and wires need {needed / 72:.1f} inches"
            raise PromptError(f"{width} inches are too narrow for this circuit: {least}")
        return _draw(wiring, layout, labels, needed, figure)


# The sheet


def _draw(
    wiring: Wiring,
    layout: WiringLayout,
    labels: BoxLabels,
    width: float,
    figure: Figure | None,
) -> Figure:
    """Title, subtitle, circuit, columns, legend and caption, from the top down."""
    inner = width - 2 * _MARGIN
    heading = to_heading(headline(wiring), subtitle(wiring), inner)
    path = strongest_path(wiring)
    legend = to_legend(legend_keys(wiring, has_path=bool(path)), inner)
    notes = wrapped(caption(wiring), NOTE, inner)
    footers = [labels.footer(place) for place in layout.grid.columns]
    top = _MARGIN + heading.height + 5
    bottom = top + layout.height + 3 + LINE_HEIGHT * max(map(len, footers)) + 6
    height = bottom + legend.height + LINE_HEIGHT * len(notes) + _MARGIN
    sheet = new_sheet(width, height, figure)
    heading.draw(sheet, _MARGIN, _MARGIN)
    circuit = sheet.moved(_MARGIN + _AXIS, top)
    _draw_layers(wiring, circuit, layout)
    _draw_circuit(circuit, layout, labels, path)
    _draw_footers(circuit, layout, footers)
    legend.draw(sheet, _MARGIN, bottom)
    write_lines(sheet, _MARGIN, bottom + legend.height, notes)
    return figure_around(sheet.axes)


def _draw_layers(wiring: Wiring, sheet: Sheet, layout: WiringLayout) -> None:
    """A band behind every other layer, and its number at the left; `⋮` where layers are folded."""
    depth = wiring.source.layers
    extents: dict[int, tuple[float, float]] = {}  # layer -> the top and the bottom of its boxes
    for node, box in layout.boxes.items():
        layer = depth if node.component is None else node.component.layer
        top, bottom = extents.get(layer, (box.top, box.bottom))
        extents[layer] = (min(top, box.top), max(bottom, box.bottom))
    sheet.write(-_AXIS, 4, "layer", NOTE, zorder=5)
    below = None  # the layer before
    for number, (layer, (top, bottom)) in enumerate(sorted(extents.items())):
        if 0 <= layer < depth:  # neither the embeddings nor the logits
            if number % 2:
                band = Area(-_AXIS, top - 3, layout.width + _AXIS, bottom - top + 6)
                sheet.box(band, WASH, WASH, depth=0, line=0, rounding=2)
            middle = (top + bottom) / 2
            sheet.write(-_AXIS + 1, middle, str(layer), NOTE, va="center_baseline", zorder=5)
        if below is not None and layer > below + 1:
            between = (extents[below][0] + bottom) / 2
            sheet.write(-_AXIS + 1.5, between, "⋮", NOTE, va="center", zorder=5)
        below = layer


def _draw_circuit(
    sheet: Sheet,
    layout: WiringLayout,
    labels: BoxLabels,
    path: Sequence[tuple[Node, Node, Wire]],
) -> None:
    """Wires below boxes; the more valuable wires above the others, the strongest path above all."""
    filled = {node for start, end, _ in path for node in (start, end)}
    courses = sorted(layout.courses, key=lambda course: course.strand.line)
    for number, course in enumerate(courses):
        strand = course.strand
        is_front = (strand.start, strand.end, strand.each.wire) in path
        depth = (2.0 if is_front else 1.0) + number / (len(courses) + 1)
        draw_wire(sheet, course, depth, on_band=is_front)
    for node, box in layout.boxes.items():
        _draw_box(sheet, node, box, labels.lines(node), filled=node in filled)


def _draw_footers(
    sheet: Sheet,
    layout: WiringLayout,
    footers: list[list[tuple[str, Font]]],
) -> None:
    """Names and tokens below the columns; dots stand for the places between them that are not used."""
    last = -1
    edge = -_AXIS
    for place, x, lines in zip(layout.grid.columns, layout.centres, footers, strict=True):
        if place is None:
            continue
        for number, (text, font) in enumerate(lines):
            y = layout.height + 1 + LINE_HEIGHT * (number + 1)
            sheet.write(x, y, text, font, ha="center")
        half = max(map(text_width, lines)) / 2
        if place > last + 1 and x - half - edge > 8:
            y = layout.height + 1 + LINE_HEIGHT
            sheet.write((edge + x - half) / 2, y, "…", NOTE, ha="center")
        last, edge = place, x + half


# Boxes


def _draw_box(
    sheet: Sheet, node: Node, box: Box, lines: list[tuple[str, Font]], *, filled: bool
) -> None:
    """The shape, its lines, and in a head the letters of the sides that wires enter."""
    edge, fill = (RED, RED) if filled else (MUTED, PAPER)
    _draw_shape(sheet, node, box, edge, fill)
    y = box.top + 1.5
    for text, font in lines:
        y += 7.0
        inside = Font(font.size, PAPER if filled else font.colour, font.bold)
        sheet.write(box.x, y - 1.2, text, inside, ha="center", zorder=6)
    for side, x in box.sides:
        if side in SIDES:
            colour = PAPER if filled else SIDE_COLOURS[side]
            letter = Font(_LETTER.size, colour, _LETTER.bold)
            sheet.write(x, box.bottom - 1.6, side[0], letter, ha="center", zorder=6)


def _draw_shape(sheet: Sheet, node: Node, box: Box, edge: str, fill: str) -> None:
    """A head is a rounded box, an MLP a hexagon, embeddings and logits are plain boxes."""
    kind = kind_of(node)
    area = Area(box.left, box.top, box.size.width, box.size.height)
    if kind == "mlp":
        tip = min(4.0, area.height / 2)
        middle = (area.top + area.bottom) / 2
        corners = [(area.left, middle), (area.left + tip, area.top)]
        corners += [(area.right - tip, area.top), (area.right, middle)]
        corners += [(area.right - tip, area.bottom), (area.left + tip, area.bottom)]
        shape = sheet.polygon(corners, fill, edge=edge, depth=5)
    else:
        rounding = 4.0 if kind == "head" else 0.01
        shape = sheet.box(area, edge, fill, depth=5, rounding=rounding)
    shape.set_gid(str(node))
