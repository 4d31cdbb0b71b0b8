"""The diagram of one mapping on a sheet of points: sentence, boxes, output, and the arrow that says by which heads it is modulated.

1. The sentence stands at the bottom, as large as it fits; of a long one the tokens that matter.
2. Boxes stand in a row above it, each over its tokens, pushed apart where they would touch; the key has a box even without a span.
3. The query's box, if it has one, stands above that row, and the output on top, both over their token. What ties the query to its
   token passes through the row in a lane of its own, which the boxes leave free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from circuits.show import scene, style
from circuits.show.canvas import draw_box, width_of, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from circuits.tracing.records import Circuit, Mapping

_LINE: Final = 9.0  # from one line of a box to the next
_APART: Final = 9.0  # between boxes
_TIE: Final = 24.0  # from the sentence up to the boxes
_RISE: Final = 58.0  # from the boxes up to what they point at: room for the carriers' names
_FITS: Final = (
    (24, 32),
    (24, 16),
    (18, 14),
    (14, 12),
    (10, 10),
    (8, 8),
    (6, 6),
)  # tokens shown, letters of each: the first that fits


@dataclass(frozen=True, slots=True)
class Area:
    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Box:
    """A box and the tokens it is tied to; (x, y) is the middle of its upper edge."""

    lines: tuple[str, ...]
    positions: tuple[int, ...]
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        if not self.lines:
            return 0.0
        title, *rest = self.lines
        return (
            max(width_of(title, style.BODY, bold=True), *(width_of(line, style.SMALL) for line in rest), 24.0)
            + 12
        )

    @property
    def height(self) -> float:
        return 7.0 + _LINE * len(self.lines)

    @property
    def foot(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Sentence:
    words: tuple[str, ...]
    positions: tuple[int | None, ...]
    size: float
    centres: tuple[float, ...]

    def x_of(self, position: int) -> float | None:
        return self.centres[self.positions.index(position)] if position in self.positions else None


def least_height(circuit: Circuit) -> float:
    """The room that the diagram needs."""
    front = scene.front(circuit)
    upper = 0.0 if _query_box(circuit, front) is None else 50.0
    return (
        24
        + _TIE
        + max((box.height for box in _row_boxes(circuit, front)), default=0.0)
        + _RISE
        + upper
        + Box(scene.output_lines(circuit), ()).height
    )


def draw_diagram(sheet: Axes, circuit: Circuit, share: float, area: Area) -> None:
    """Sentence, boxes, output and the arrow of the mapping in front, inside the area."""
    front = scene.front(circuit)
    sentence = _fit(circuit, area)
    last = sentence.x_of(len(circuit.prompt) - 1) or area.right
    output = Box(scene.output_lines(circuit), (len(circuit.prompt) - 1,))
    output = replace(output, x=_inside(last, output.width, area), y=area.top)
    query = _query_box(circuit, front)
    if query is not None:
        at = sentence.x_of(query.positions[-1]) or last
        query = replace(query, x=_inside(at, query.width, area), y=output.foot + 14)
    row, lane = _placed(
        _row_boxes(circuit, front), sentence, area, query=query, clear_of=None if query else last
    )
    _write_sentence(sheet, sentence, area, front)
    for box in row:
        _draw_ties(sheet, box, sentence, area, red=_holds_key(box, front))
    if query is not None:
        _draw_ties(
            sheet,
            query,
            sentence,
            area,
            red=_holds_key(query, front),
            through=(lane, min((box.y for box in row), default=query.foot)),
        )
    _draw_stream(sheet, output, query, last, area)
    key = next((box for box in row if _holds_key(box, front)), None)
    for box in [*row, *([query] if query else [])]:
        _draw_lines(sheet, box, red=_holds_key(box, front))
    _draw_lines(sheet, output, red=False, strong=True)
    if front is not None and key is not None and front.key != front.query:
        _draw_arrow(sheet, front, share, key, query or output, area, row)


# What there is to place


def _row_boxes(circuit: Circuit, front: Mapping | None) -> list[Box]:
    """The boxes of the row: the key's, then the spans that are held deepest, as many as are easy to read (the page has them all)."""
    ends = set() if front is None else {front.query} - {front.key}
    spans = sorted(
        (s for s in circuit.spans if not ends & set(s.positions)),
        key=lambda s: (
            -(s.layers or (0, -1))[1],
            -round(s.effect, 2),
            -s.positions[-1],
        ),  # equal up to rounding: the later token
    )
    boxes = [Box(scene.span_lines(span), span.positions) for span in spans]
    if front is None:
        return boxes[:4]
    held = [box for box in boxes if front.key in box.positions] or [_plain(circuit, front.key)]
    return [held[0], *(box for box in boxes if box is not held[0])][:4]


def _query_box(circuit: Circuit, front: Mapping | None) -> Box | None:
    """The box of the query; none where the query is the last token and has no span, for there the output stands."""
    if front is None or front.key == front.query:
        return None
    span = scene.span_at(circuit, front.query)
    if span is not None and front.key not in span.positions:
        return Box(scene.span_lines(span), span.positions)
    return None if front.query == len(circuit.prompt) - 1 else _plain(circuit, front.query)


def _plain(circuit: Circuit, position: int) -> Box:
    return Box((scene.spell(circuit.prompt.words[position], longest=18), f"pos {position}"), (position,))


def _holds_key(box: Box, front: Mapping | None) -> bool:
    return front is not None and front.key in box.positions


# Where it goes


def _fit(circuit: Circuit, area: Area) -> Sentence:
    """The sentence at the largest size and length that the area holds; failing that, at the smallest."""
    choices = ((most, longest, size) for most, longest in _FITS for size in (9.0, 8.0, 7.0, 6.0))
    sentence, fits = _set(circuit, *next(choices), area)
    while not fits and (choice := next(choices, None)):
        sentence, fits = _set(circuit, *choice, area)
    return sentence


def _set(circuit: Circuit, most: int, longest: int, size: float, area: Area) -> tuple[Sentence, bool]:
    """The sentence with that many tokens and letters at this size, and whether the area holds it."""
    positions = scene.shown_positions(circuit, most=most)
    words = tuple(
        "…" if at is None else scene.spell(circuit.prompt.words[at], longest=longest) for at in positions
    )
    numbers = tuple("" if at is None else str(at) for at in positions)
    widths = [
        max(width_of(word, size), width_of(number, style.SMALL))
        for word, number in zip(words, numbers, strict=True)
    ]
    return Sentence(words, positions, size, _centres(widths, area)), sum(widths) + 4.0 * (
        len(words) - 1
    ) <= area.width


def _centres(widths: list[float], area: Area) -> tuple[float, ...]:
    gap = min(15.0, (area.width - sum(widths)) / max(1, len(widths) - 1))
    x = area.left + (area.width - sum(widths) - gap * (len(widths) - 1)) / 2
    centres = []
    for width in widths:
        centres.append(x + width / 2)
        x += width + gap
    return tuple(centres)


def _placed(
    boxes: list[Box], sentence: Sentence, area: Area, *, query: Box | None, clear_of: float | None
) -> tuple[list[Box], float]:
    """The boxes side by side over their tokens, left of the output's line where there is room, and where the query's lane is."""
    lane = [] if query is None else [Box((), query.positions)]
    while len(boxes) > 1 and _total_width([*boxes, *lane]) > area.width:
        boxes = boxes[:-1]
    right = area.right if clear_of is None or _total_width(boxes) > clear_of - 8 - area.left else clear_of - 8
    base = area.bottom - 24 - _TIE
    ordered = sorted([*boxes, *lane], key=lambda box: (_middle(box, sentence, area), box.positions))
    centres = _apart(
        [_middle(box, sentence, area) for box in ordered], [box.width for box in ordered], area.left, right
    )
    placed = [replace(box, x=x, y=base - box.height) for box, x in zip(ordered, centres, strict=True)]
    return [box for box in placed if box.lines], next((box.x for box in placed if not box.lines), right)


def _apart(wished: list[float], widths: list[float], left: float, right: float) -> list[float]:
    """Centres near those wished for at which boxes of these widths do not touch: neighbours yield by halves, then the edges hold."""
    x = list(wished)
    for _ in range(60):
        for at in range(1, len(x)):
            overlap = x[at - 1] + (widths[at - 1] + widths[at]) / 2 + _APART - x[at]
            if overlap > 0:
                x[at - 1], x[at] = x[at - 1] - overlap / 2, x[at] + overlap / 2
    edge = left
    for at, width in enumerate(widths):
        x[at] = max(x[at], edge + width / 2)
        edge = x[at] + width / 2 + _APART
    edge = right
    for at in range(len(x) - 1, -1, -1):
        x[at] = min(x[at], edge - widths[at] / 2)
        edge = x[at] - widths[at] / 2 - _APART
    return x


def _total_width(boxes: list[Box]) -> float:
    return sum(box.width for box in boxes) + _APART * (len(boxes) - 1)


def _middle(box: Box, sentence: Sentence, area: Area) -> float:
    known = [x for x in map(sentence.x_of, box.positions) if x is not None]
    return sum(known) / len(known) if known else area.left + area.width / 2


def _inside(x: float, width: float, area: Area) -> float:
    return min(max(x, area.left + width / 2), area.right - width / 2)


# How it looks


def _write_sentence(sheet: Axes, sentence: Sentence, area: Area, front: Mapping | None) -> None:
    for word, at, x in zip(sentence.words, sentence.positions, sentence.centres, strict=True):
        key = front is not None and at == front.key
        write(
            sheet,
            x,
            area.bottom - 13,
            word,
            size=sentence.size,
            colour=style.RED if key else style.INK,
            ha="center",
        )
        if at is not None:
            write(
                sheet,
                x,
                area.bottom - 3,
                str(at),
                size=style.SMALL,
                colour=style.RED if key else style.MUTED,
                ha="center",
            )


def _draw_lines(sheet: Axes, box: Box, *, red: bool, strong: bool = False) -> None:
    edge = style.RED if red else style.INK if strong else style.MUTED
    draw_box(
        sheet,
        box.x - box.width / 2,
        box.y,
        box.width,
        box.height,
        edge=edge,
        fill=style.PAPER if strong else style.WASH,
        line=1.2 if strong else 0.8,
    )
    for number, line in enumerate(box.lines):
        top = number == 0
        colour = (style.RED if red else style.INK) if top else style.MUTED
        write(
            sheet,
            box.x,
            box.y + 10.5 + _LINE * number,
            line,
            size=style.BODY if top else style.SMALL,
            colour=colour,
            bold=top,
            ha="center",
        )


def _draw_ties(
    sheet: Axes,
    box: Box,
    sentence: Sentence,
    area: Area,
    *,
    red: bool,
    through: tuple[float, float] | None = None,
) -> None:
    """A line from each of its tokens up to the box; `through` a lane at this x, which ends at this height."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    top = area.bottom - 13 - sentence.size
    colour = style.RED if red else style.MUTED
    for position in box.positions:
        x = sentence.x_of(position)
        if x is None:
            continue
        places = [(x, top), (box.x, box.foot)]
        if through is not None:
            lane, high = through
            places[1:1] = [(lane, area.bottom - 24 - _TIE), (lane, high)]
        points, codes = places[:1], [Path.MOVETO]
        for (x0, y0), (x1, y1) in pairwise(places):
            points += [(x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2), (x1, y1)]
            codes += [Path.CURVE4] * 3
        line = Path(points, codes)
        sheet.add_patch(
            PathPatch(line, fill=False, edgecolor=colour, linewidth=0.6, linestyle=(0, (3, 2)), zorder=0.5)
        )


def _draw_stream(sheet: Axes, output: Box, query: Box | None, last: float, area: Area) -> None:
    """The last token's stream, from which the output is read."""
    if query is not None and output.positions[0] in query.positions:
        sheet.plot([query.x, output.x], [query.y, output.foot], color=style.LINE, linewidth=1.2, zorder=0.4)
    else:
        sheet.plot([last, last], [area.bottom - 24, output.foot], color=style.LINE, linewidth=1.2, zorder=0.4)


def _draw_arrow(
    sheet: Axes, front: Mapping, share: float, key: Box, end: Box, area: Area, row: list[Box]
) -> None:
    """From the key's box to its target, as wide as the total, with the carriers' names on the side where there is room."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    beside = abs(key.x - end.x) > end.width / 2 + 36
    side = 1 if key.x < end.x else -1
    x, y = (
        (end.x - (end.width / 2 + 1) * side, end.y + end.height / 2)
        if beside
        else (end.x - 7 * side, end.foot + 1)
    )
    high = (key.y + y) / 2
    bends = [(key.x, high), (key.x + (x - key.x) * 0.3, y)] if beside else [(key.x, high), (x, high)]
    curve = Path([(key.x, key.y - 0.5), *bends, (x, y)], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    width = 0.8 + 1.6 * min(abs(front.total), 1.2)
    sheet.add_patch(
        FancyArrowPatch(
            path=curve, arrowstyle="-|>", mutation_scale=9, linewidth=width, color=style.RED, zorder=1.5
        )
    )
    title = scene.modulated(front, share)
    rows = [row.replace("H", "-H") for row in scene.name_rows(front.carriers(share), most=9, in_a_row=3)]
    wide = max([width_of(title, style.BODY, bold=True), *(width_of(row, style.BODY) for row in rows)])
    left_side = key.x - 8 - wide >= area.left
    x = key.x - 8 if left_side else (key.x if beside else max(key.x, end.x)) + 12
    ends = (x - wide, x) if left_side else (x, x + wide)
    below = min(
        box.y
        for box in row
        if box is key or (box.x - box.width / 2 < ends[1] and ends[0] < box.x + box.width / 2)
    )
    y = below - 10 - 9.5 * len(rows)
    for number, line in enumerate([title, *rows]):
        write(
            sheet, x, y + 9.5 * number, line, bold=number == 0, ha="right" if left_side else "left"
        ).set_zorder(6)
