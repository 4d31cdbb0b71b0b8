"""The wires of a wiring as they are drawn: line, arrowhead or bar, and the mark of a new one; and the legend that
explains them.

A wire is as wide as its value in the circuit. Its colour and its dashes say which side of its reader it enters. A
wire of negative value is orange and ends in a bar.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from circuits.components import SIDES
from circuits.show.canvas import EFFECT, INK, PAPER, Area, Point, Sheet, shade
from circuits.show.legend import Key
from circuits.show.wiring_grid import THINNEST, WIDEST, Strand
from circuits.show.wiring_layout import Course

if TYPE_CHECKING:
    from circuits.wires.record import Wiring

SIDE_COLOURS: Final = {"query": "#155a9c", "key": "#7a2f8f", "value": "#0b7a6b"}
OTHER_COLOUR: Final = "#7e8895"  # wires into MLPs and the logits
AGAINST: Final = shade(-0.8, EFFECT)
_BAND: Final = "#f7c4c9"  # under the strongest path
_DASHES: Final = {"key": (4.0, 1.5), "value": (1.3, 1.1)}  # points on and off
_SAMPLE_LINE: Final = 1.2  # the width of a line in the legend
_NEW: Final = 5.0  # diameter of the mark of a new wire
_BAR: Final = 1.4  # points: the height of the bar at the end of a wire of negative value


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


def draw_wire(sheet: Sheet, course: Course, depth: float, *, on_band: bool) -> None:
    """The line, the arrowhead or bar at its end, the band below it and the mark of a new wire."""
    strand = course.strand
    points = [sheet.at(*point) for point in course.points]
    # The line ends inside its arrowhead.
    x, y = points[-1]
    points[-1] = (x, y + _head_height(strand) - 0.5)
    points[-2] = (x, max(points[-2][1], points[-1][1]))
    line = _path(points)
    name = f"{strand.each.wire} {strand.end}"
    if on_band:
        _draw_line(sheet, line, _BAND, strand.line + 4.0, depth=0.9, name=f"band {name}")
    else:
        # A thin white rim, so that a wire is seen to pass over another.
        rim_depth = depth - 1e-3
        _draw_line(sheet, line, PAPER, strand.line + 1.2, depth=rim_depth, name=f"rim {name}")
    colour, style = wire_look(strand)
    _draw_line(sheet, line, colour, strand.line, depth=depth, name=name, style=style)
    _draw_end(sheet, *course.points[-1], strand, colour, depth + 1e-3)
    if strand.each.new:
        # In the middle of the first curve, where wires from the same box have parted.
        (left, low), (right, high) = points[1], points[2]
        middle = ((left + right) / 2 - sheet.left, (low + high) / 2 - sheet.top)
        _draw_new(sheet, *middle, depth + 1.5, name=f"new {name}")


def _draw_line(
    sheet: Sheet,
    line: Path,
    colour: str,
    width: float,
    *,
    depth: float,
    name: str,
    style: Any = "-",
) -> None:
    drawn = PathPatch(line, facecolor="none", edgecolor=colour, capstyle="butt", gid=name)
    drawn.set(linewidth=width, linestyle=style, zorder=depth)
    sheet.axes.add_patch(drawn)


def _path(points: list[Point]) -> Path:
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


def _head_height(strand: Strand) -> float:
    """From the tip of a wire's arrowhead to its base."""
    return 2.4 + 0.8 * strand.line


def _draw_end(
    sheet: Sheet, x: float, y: float, strand: Strand, colour: str, depth: float
) -> None:
    """An arrowhead whose tip is at (x, y); for a wire of negative value a bar, and the line up to it."""
    half = strand.head / 2
    base = y + _head_height(strand)
    if strand.each.value >= 0:
        tip = [(x, y), (x - half, base), (x + half, base)]
        sheet.polygon(tip, colour, depth=depth)
        return
    foot = y + _BAR
    left, right = x - strand.line / 2, x + strand.line / 2
    stem = [(left, foot), (right, foot), (right, base), (left, base)]
    sheet.polygon(stem, colour, depth=depth)
    bar = [(x - half, y), (x + half, y), (x + half, foot), (x - half, foot)]
    sheet.polygon(bar, colour, depth=depth)


def _draw_new(sheet: Sheet, x: float, y: float, depth: float, *, name: str = "") -> None:
    """A small ring with a plus."""
    area = Area(x - _NEW / 2, y - _NEW / 2, _NEW, _NEW)
    ring = sheet.box(area, INK, PAPER, line=0.6, depth=depth, rounding=_NEW / 2)
    ring.set_gid(name)
    arm = _NEW / 2 - 1
    sheet.line((x - arm, x + arm), (y, y), INK, width=0.7, depth=depth + 0.1)
    sheet.line((x, x), (y - arm, y + arm), INK, width=0.7, depth=depth + 0.1)


# The legend


def legend_keys(wiring: Wiring, *, has_path: bool) -> list[Key]:
    """Entries for what the figure has; `has_path` if a path from an embedding to the logits is in front."""
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
    if has_path:
        keys.append(Key("strongest path", _path_sample))
    if any(each.new for each in wiring.wires):
        keys.append(Key("new", _new_sample, sample=_NEW))
    return keys


def _side_sample(side: str, sheet: Sheet, width: float) -> None:
    colour = SIDE_COLOURS.get(side, OTHER_COLOUR)
    style = _dashes(side, _SAMPLE_LINE)
    sheet.line((0, width), (0, 0), colour, width=_SAMPLE_LINE, depth=1, style=style)


def _width_sample(sheet: Sheet, width: float) -> None:
    thin, thick = THINNEST / 2, WIDEST / 2
    sheet.polygon([(0, -thin), (width, -thick), (width, thick), (0, thin)], OTHER_COLOUR)


def _against_sample(sheet: Sheet, width: float) -> None:
    sheet.line((0, width), (0, 0), AGAINST, width=_SAMPLE_LINE, depth=1)
    sheet.line((width, width), (-2, 2), AGAINST, width=1.4, depth=1)


def _path_sample(sheet: Sheet, width: float) -> None:
    sheet.box(Area(0, -2.75, width, 5.5), _BAND, _BAND, line=0, rounding=0.01)
    sheet.line((0, width), (0, 0), OTHER_COLOUR, width=_SAMPLE_LINE, depth=1.1)


def _new_sample(sheet: Sheet, width: float) -> None:
    _draw_new(sheet, width / 2, 0, 1)
