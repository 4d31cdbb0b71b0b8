"""A wiring as a figure that is read in one column of a paper.

1. `wiring_layout` says where boxes and wires stand. Layers run upwards from the embeddings to the logits; the
   places in use are columns, named below; the places between them are folded.
2. A wire is as wide as its value in the circuit. Its colour and its dashes say which side of its reader it
   enters, and a letter at the box says it again. A wire of negative value is orange and ends in a bar.
3. The strongest path from an embedding to the logits lies on a red band, and its boxes are filled.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Polygon
from matplotlib.path import Path

from circuits.components import SIDES, Component
from circuits.errors import PromptError
from circuits.show.canvas import (
    EFFECT,
    INK,
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
    shade,
    width_of,
)
from circuits.show.legend import LINE_HEIGHT, Key, to_heading, to_legend, wrapped, write_lines
from circuits.show.wiring import headline, strongest_path
from circuits.show.wiring_layout import (
    THINNEST,
    Box,
    Course,
    Size,
    Strand,
    WiringLayout,
    lay_out,
)
from circuits.show.words import question_words, spell, verdict_words
from circuits.wires.record import LOGITS, Node

if TYPE_CHECKING:
    from circuits.wires.record import Wiring

ONE_COLUMN: Final = 3.3  # inches
SIDE_COLOURS: Final = {"query": "#155a9c", "key": "#7a2f8f", "value": "#0b7a6b"}
OTHER_COLOUR: Final = "#7e8895"  # wires into MLPs and the logits
AGAINST: Final = shade(-0.8, EFFECT)
_BAND: Final = "#f7c4c9"  # under the strongest path
_DASHES: Final = {"key": (4.0, 1.5), "value": (1.3, 1.1)}  # points on and off

_MARGIN: Final = 4.0
_AXIS: Final = 11.0  # room for the numbers of layers at the left
_NAME: Final = Font(6.5, bold=True)
_LETTER: Final = Font(SMALL, bold=True)
_LONGEST_TOKEN: Final = 12
_SAMPLE_LINE: Final = 1.2  # the width of a line in the legend
_NEW: Final = 5.0  # diameter of the mark of a new wire


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
        labels = _Labels(wiring, checked_names(wiring, names or {}))
        layout = lay_out(
            wiring,
            label_size=labels.size,
            footer_width=lambda place: max(map(_text_width, labels.footer(place)), default=0.0),
            width=inches * 72 - 2 * _MARGIN - _AXIS,
        )
        needed = layout.width + 2 * _MARGIN + _AXIS
        if width is not None and needed > width * 72 + 0.01:
            least = f"its boxes and wires need {needed / 72:.1f} inches"
            raise PromptError(f"{width} inches are too narrow for this circuit: {least}")
        return _draw(wiring, layout, labels, needed, figure)


def checked_names(wiring: Wiring, names: Mapping[str, str]) -> dict[Component, str]:
    """The names by component; a component that the circuit lacks is an error."""
    present = {node.component for node in wiring.nodes if node.component is not None}
    checked = {}
    for key, name in names.items():
        component = Component.parse(key)
        if component not in present:
            there = " ".join(sorted(map(str, present)))
            raise PromptError(f"names has {key}, which is not in this circuit; it has {there}")
        checked[component] = name
    return checked


# Words


@dataclass(frozen=True, slots=True)
class _Labels:
    """What is written in the boxes and below the columns."""

    wiring: Wiring
    names: Mapping[Component, str]

    def lines(self, node: Node) -> list[tuple[str, Font]]:
        """The lines in a box."""
        if node == LOGITS:
            if len(self.wiring.pairs) > 1:
                return [("logits", _NAME)]
            output = self.wiring.output
            token = spell(output.token, longest=_LONGEST_TOKEN)
            return [("logits", _NAME), (f"{token} {output.probability:.0%}", Font(SMALL))]
        assert node.component is not None
        lines = [(str(node.component), _NAME)]
        name = self.names.get(node.component)
        if name is not None:
            wrapped = textwrap.wrap(spell(name, longest=48), 12) or [""]
            lines += [(line, Font(SMALL)) for line in wrapped]
        return lines

    def size(self, node: Node) -> Size:
        """The room that the lines of a box take, with the letters of a head's sides."""
        lines = self.lines(node)
        is_head = node.component is not None and node.component.kind == "head"
        widest = max(width_of(text, font) for text, font in lines)
        aside = 12.0 if node.component is not None and node.component.kind == "mlp" else 6.0
        height = 7.0 * len(lines) + 3.5 + (5.5 if is_head else 0.0)
        return Size(widest + aside, height)

    def footer(self, place: int | None) -> list[tuple[str, Font]]:
        """The name of a place and, in the first prompt, its token."""
        if place is None:
            return []
        name = spell(self.wiring.places[place], longest=_LONGEST_TOKEN)
        lines = [(name, _NAME)]
        token = place_token(self.wiring, place)
        if token:
            lines.append((spell(token, longest=_LONGEST_TOKEN), Font(SMALL)))
        return lines


def place_token(wiring: Wiring, place: int) -> str:
    """The token of the first prompt at a place; empty where that prompt does not reach it."""
    words = wiring.prompt.words
    if len(words) == len(wiring.places):
        return words[place]
    role, _, steps = wiring.places[place].partition("+")
    position = dict(wiring.pairs[0].roles).get(role)
    if position is None or (steps and not steps.isdigit()):
        return ""
    position += int(steps or 0)
    return words[position] if position < len(words) else ""


def _text_width(line: tuple[str, Font]) -> float:
    return width_of(*line)


def subtitle(wiring: Wiring) -> str:
    """`Ben(9) → Tom; logit(Tom) − logit(Ben); stories15m`; of a task its name and how many pairs."""
    source = spell(wiring.source.name, longest=40)
    if wiring.task:
        return f"{spell(wiring.task)}, {len(wiring.pairs)} pairs; {source}"
    roles = {position: role for role, position in wiring.pairs[0].roles}
    more = len(wiring.pairs) - 1
    alike = f" and {more} pairs like it" if more else ""
    return question_words(wiring, source, roles=roles, more=alike)


def caption(wiring: Wiring) -> str:
    """What is kept, on held-out pairs too, and by random circuits."""
    parts = [f"Kept {wiring.kept:z.2f}"]
    if len(wiring.seen) > 1:
        worst = min(pair.kept for pair in wiring.seen)
        parts = [
            f"Kept: mean {wiring.kept:z.2f}, worst {worst:z.2f} of {len(wiring.seen)} pairs"
        ]
    if wiring.held_out:
        kept = [pair.kept for pair in wiring.held_out]
        mean = sum(kept) / len(kept)
        parts.append(f"held out: mean {mean:z.2f}, worst {min(kept):z.2f} of {len(kept)}")
    parts.append(f"as many random wires {wiring.random.mean:z.2f}")
    parts.append(f"all wires but these {wiring.complement:z.2f}")
    if wiring.without_heads:
        gone = " ".join(map(str, wiring.without_heads[:6]))
        parts.append(f"{gone} swapped away")
    verdict = verdict_words(wiring)
    start = f"{verdict[0].upper()}{verdict[1:]}. " if verdict else ""
    return f"{start}{'; '.join(parts)}."


# The sheet


def _draw(
    wiring: Wiring,
    layout: WiringLayout,
    labels: _Labels,
    width: float,
    figure: Figure | None,
) -> Figure:
    """Title, subtitle, circuit, columns, legend and caption, from the top down."""
    inner = width - 2 * _MARGIN
    heading = to_heading(headline(wiring), subtitle(wiring), inner)
    legend = to_legend(_legend_keys(wiring), inner)
    notes = wrapped(caption(wiring), NOTE, inner)
    footers = [labels.footer(place) for place in layout.grid.columns]
    top = _MARGIN + heading.height + 5
    bottom = top + layout.height + 3 + LINE_HEIGHT * max(map(len, footers)) + 6
    height = bottom + legend.height + LINE_HEIGHT * len(notes) + _MARGIN
    sheet = new_sheet(width, height, figure)
    heading.draw(sheet, _MARGIN, _MARGIN)
    circuit = sheet.moved(_MARGIN + _AXIS, top)
    _draw_layers(wiring, circuit, layout)
    _draw_circuit(wiring, circuit, layout, labels)
    _draw_footers(wiring, circuit, layout, footers)
    legend.draw(sheet, _MARGIN, bottom)
    write_lines(sheet, _MARGIN, bottom + legend.height, notes)
    return figure_around(sheet.axes)


def _draw_layers(wiring: Wiring, sheet: Sheet, layout: WiringLayout) -> None:
    """A band behind every other layer, and its number at the left; `⋮` where layers are folded."""
    bands: dict[int, list[float]] = {}
    for node, box in layout.boxes.items():
        layer = wiring.source.layers if node.component is None else node.component.layer
        bands.setdefault(layer, []).extend((box.top, box.bottom))
    layers = sorted(bands)
    sheet.write(-_AXIS, 4, "layer", NOTE, zorder=5)
    for number, layer in enumerate(layers):
        low, high = max(bands[layer]), min(bands[layer])
        if 0 <= layer < wiring.source.layers:
            if number % 2:
                area = Area(-_AXIS, high - 3, layout.width + _AXIS, low - high + 6)
                sheet.box(area, WASH, WASH, depth=0, line=0, rounding=2)
            middle = (low + high) / 2
            sheet.write(-_AXIS + 1, middle, str(layer), NOTE, va="center_baseline", zorder=5)
        if number and layer > layers[number - 1] + 1:
            between = (min(bands[layers[number - 1]]) + low) / 2
            sheet.write(-_AXIS + 1.5, between, "⋮", NOTE, va="center", zorder=5)


def _draw_circuit(wiring: Wiring, sheet: Sheet, layout: WiringLayout, labels: _Labels) -> None:
    """Wires below boxes; the more valuable wires above the others, the strongest path above all."""
    path = strongest_path(wiring)
    front = {(start, end, wire) for start, end, wire in path}
    filled = {node for start, end, _ in path for node in (start, end)}
    courses = sorted(layout.courses, key=lambda course: course.strand.line)
    for number, course in enumerate(courses):
        strand = course.strand
        is_front = (strand.start, strand.end, strand.each.wire) in front
        depth = (2.0 if is_front else 1.0) + number / (len(courses) + 1)
        _draw_wire(sheet, course, depth, on_band=is_front)
    for node, box in layout.boxes.items():
        _draw_box(sheet, node, box, labels.lines(node), filled=node in filled)


def _draw_footers(
    wiring: Wiring,
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
        half = max(map(_text_width, lines)) / 2
        if place > last + 1 and x - half - edge > 8:
            y = layout.height + 1 + LINE_HEIGHT
            sheet.write((edge + x - half) / 2, y, "…", NOTE, ha="center")
        last, edge = place, x + half


# Wires


def wire_look(strand: Strand) -> tuple[str, Any]:
    """The colour and the dashes of a wire, in multiples of its width as matplotlib takes them."""
    colour = SIDE_COLOURS.get(strand.side, OTHER_COLOUR)
    if strand.each.value < 0:
        colour = AGAINST
    return colour, _dashes(strand.side, strand.line)


def _dashes(side: str, line: float) -> Any:
    pattern = _DASHES.get(side)
    if pattern is None:
        return "-"
    on, off = pattern
    wider = 0.45 * (line - THINNEST)  # so that thick wires have gaps that are seen
    return 0, ((on + wider) / line, (off + wider * 0.6) / line)


def _draw_wire(sheet: Sheet, course: Course, depth: float, *, on_band: bool) -> None:
    """The line, the arrowhead or bar at its end, the band below it and the mark of a new wire."""
    strand = course.strand
    head = 2.4 + 0.8 * strand.line
    points = [sheet.at(*point) for point in course.points]
    x, y = points[-1]
    points[-1] = (x, y + head - 0.5)
    points[-2] = (x, max(points[-2][1], points[-1][1]))
    colour, style = wire_look(strand)
    line = _path(points)
    name = f"{strand.each.wire} {strand.end}"
    axes = sheet.axes
    look: dict[str, Any] = {"facecolor": "none", "capstyle": "butt"}
    if on_band:
        band = look | {"edgecolor": _BAND, "linewidth": strand.line + 4.0, "zorder": 0.9}
        axes.add_patch(PathPatch(line, gid=f"band {name}", **band))
    else:
        # A thin white rim, so that a wire is seen to pass over another.
        rim = look | {
            "edgecolor": PAPER,
            "linewidth": strand.line + 1.2,
            "zorder": depth - 1e-3,
        }
        axes.add_patch(PathPatch(line, gid=f"rim {name}", **rim))
    look |= {"edgecolor": colour, "linewidth": strand.line, "linestyle": style}
    axes.add_patch(PathPatch(line, gid=name, zorder=depth, **look))
    _draw_end(sheet, x, y, strand, colour, depth + 1e-3)
    if strand.each.new:
        # In the middle of the first curve, where wires from the same box have parted.
        (left, low), (right, high) = points[1], points[2]
        middle = ((left + right) / 2 - sheet.left, (low + high) / 2 - sheet.top)
        _draw_new(sheet, *middle, depth + 1.5, name=f"new {name}")


def _path(points: list[tuple[float, float]]) -> Path:
    """Vertical pieces, joined by curves that leave and arrive vertically."""
    vertices = [points[0]]
    codes: list[int] = [int(Path.MOVETO)]
    for number in range(1, len(points), 2):
        vertices.append(points[number])
        codes.append(int(Path.LINETO))
        if number + 1 < len(points):
            (x, y), (next_x, next_y) = points[number], points[number + 1]
            middle = (y + next_y) / 2
            vertices += [(x, middle), (next_x, middle), (next_x, next_y)]
            codes += [int(Path.CURVE4)] * 3
    return Path(vertices, codes)


def _draw_end(
    sheet: Sheet, x: float, y: float, strand: Strand, colour: str, depth: float
) -> None:
    """An arrowhead whose tip is at (x, y) of the axes; a bar for a wire of negative value."""
    half, height = strand.head / 2, 2.4 + 0.8 * strand.line
    corners = [(x, y), (x - half, y + height), (x + half, y + height)]
    if strand.each.value < 0:
        corners = [(x - half, y), (x + half, y), (x + half, y + 1.4), (x - half, y + 1.4)]
        stem = [(x - strand.line / 2, y + 1.4), (x + strand.line / 2, y + 1.4)]
        stem += [(x + strand.line / 2, y + height), (x - strand.line / 2, y + height)]
        sheet.axes.add_patch(Polygon(stem, facecolor=colour, edgecolor="none", zorder=depth))
    sheet.axes.add_patch(Polygon(corners, facecolor=colour, edgecolor="none", zorder=depth))


def _draw_new(sheet: Sheet, x: float, y: float, depth: float, *, name: str = "") -> None:
    """A small ring with a plus."""
    area = Area(x - _NEW / 2, y - _NEW / 2, _NEW, _NEW)
    ring = sheet.box(area, INK, PAPER, line=0.6, depth=depth, rounding=_NEW / 2)
    ring.set_gid(name)
    arm = _NEW / 2 - 1
    sheet.line((x - arm, x + arm), (y, y), INK, width=0.7, depth=depth + 0.1)
    sheet.line((x, x), (y - arm, y + arm), INK, width=0.7, depth=depth + 0.1)


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
    kind = "logits" if node.component is None else node.component.kind
    area = Area(box.left, box.top, box.size.width, box.size.height)
    if kind == "mlp":
        tip = min(4.0, area.height / 2)
        middle = (area.top + area.bottom) / 2
        corners = [(area.left, middle), (area.left + tip, area.top)]
        corners += [(area.right - tip, area.top), (area.right, middle)]
        corners += [(area.right - tip, area.bottom), (area.left + tip, area.bottom)]
        outline = [sheet.at(*corner) for corner in corners]
        look: dict[str, Any] = {"edgecolor": edge, "facecolor": fill, "linewidth": 0.8}
        sheet.axes.add_patch(Polygon(outline, gid=str(node), zorder=5, **look))
        return
    rounding = 4.0 if kind == "head" else 0.01
    patch = sheet.box(area, edge, fill, depth=5, rounding=rounding)
    patch.set_gid(str(node))


# The legend


def _legend_keys(wiring: Wiring) -> list[Key]:
    """Entries for what the figure has."""
    kinds = {each.wire.reader.kind for each in wiring.wires}
    keys = [Key(side, partial(_side_sample, side)) for side in SIDES if side in kinds]
    if kinds & {"mlp", "logits"}:
        keys.append(Key("MLP, logits", partial(_side_sample, "mlp")))
    if keys:
        keys.insert(0, Key("wires into"))
    largest = max((abs(each.value) for each in wiring.wires), default=0.0)
    if largest:
        keys.append(Key(f"width: value, at most {largest:.2f}", _width_sample))
    if any(each.value < 0 for each in wiring.wires):
        keys.append(Key("negative value", _against_sample))
    if strongest_path(wiring):
        keys.append(Key("strongest path", _path_sample))
    if any(each.new for each in wiring.wires):
        keys.append(Key("new", _new_sample, sample=_NEW))
    return keys


def _side_sample(side: str, sheet: Sheet, ends: tuple[float, float], y: float) -> None:
    colour = SIDE_COLOURS.get(side, OTHER_COLOUR)
    style = _dashes(side, _SAMPLE_LINE)
    sheet.line(ends, (y, y), colour, width=_SAMPLE_LINE, depth=1, style=style)


def _width_sample(sheet: Sheet, ends: tuple[float, float], y: float) -> None:
    thick = 3.0
    top = [(ends[0], y - THINNEST / 2), (ends[1], y - thick / 2)]
    bottom = [(ends[1], y + thick / 2), (ends[0], y + THINNEST / 2)]
    wedge = [sheet.at(*corner) for corner in top + bottom]
    sheet.axes.add_patch(Polygon(wedge, facecolor=OTHER_COLOUR, edgecolor="none"))


def _against_sample(sheet: Sheet, ends: tuple[float, float], y: float) -> None:
    sheet.line(ends, (y, y), AGAINST, width=_SAMPLE_LINE, depth=1)
    sheet.line((ends[1], ends[1]), (y - 2, y + 2), AGAINST, width=1.4, depth=1)


def _path_sample(sheet: Sheet, ends: tuple[float, float], y: float) -> None:
    band = Area(ends[0], y - 2.75, ends[1] - ends[0], 5.5)
    sheet.box(band, _BAND, _BAND, line=0, rounding=0.01)
    sheet.line(ends, (y, y), OTHER_COLOUR, width=_SAMPLE_LINE, depth=1.1)


def _new_sample(sheet: Sheet, ends: tuple[float, float], y: float) -> None:
    _draw_new(sheet, (ends[0] + ends[1]) / 2, y, 1)
