"""The diagram of one mapping: sentence, boxes, output, and the arrow that says which heads modulate it.

Boxes stand in a row above their tokens, pushed apart where they would touch: the key's and those held
deepest, as many as are easy to read. The query's box stands above that row, and the output on top, both
over their token. What ties the query to its token passes through the row in a lane of its own, which the
boxes leave free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, PathPatch
from matplotlib.path import Path

from circuits.show import canvas
from circuits.show.canvas import Area, Font, draw_box, width_of, write
from circuits.show.scene import OUTPUT, Scene, name_rows, spell

_STEP: Final = 9.0  # from one line of a box to the next
_APART: Final = 9.0  # between boxes
_WORDS: Final = 24.0  # the height of the sentence
_TIE: Final = 24.0  # from the sentence up to the boxes
_RISE: Final = 58.0  # from the boxes up to what they point at: space for the carriers' names
_MOST_BOXES: Final = 4
# Tokens shown and letters of each: the first that fits.
_LENGTHS: Final = ((24, 32), (24, 16), (18, 14), (14, 12), (10, 10), (8, 8), (6, 6))
_SIZES: Final = (9.0, 8.0, 7.0, 6.0)


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the graph and its place: (x, y) is the middle of its upper edge. A lane has no lines."""

    lines: tuple[str, ...]
    positions: tuple[int, ...]
    order: int  # among all boxes, from left to right
    colour: str  # of its title and its edge
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        if not self.lines:
            return 0.0
        title, *rest = self.lines
        widths = (width_of(line, canvas.NAME) for line in rest)
        return max(width_of(title, canvas.HEADING), *widths, 24.0) + 12

    @property
    def height(self) -> float:
        return 7.0 + _STEP * len(self.lines)

    @property
    def area(self) -> Area:
        return Area(self.x - self.width / 2, self.y, self.width, self.height)


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words that are shown, their positions (None for a gap), their size, and where they stand."""

    words: list[str]
    positions: list[int | None]
    size: float
    centres: list[float]

    def x_of(self, position: int) -> float | None:
        return self.centres[self.positions.index(position)] if position in self.positions else None


def least_height(scene: Scene) -> float:
    """The height that the diagram needs."""
    row, query, output = _boxes(scene)
    highest, upper = max((box.height for box in row), default=0.0), 0.0 if query is None else 50.0
    return _WORDS + _TIE + highest + _RISE + upper + output.height


def draw_diagram(sheet: Axes, scene: Scene, area: Area) -> None:
    """Sentence, boxes, output and the arrow of the mapping in front, inside the area."""
    row, query, output = _boxes(scene)
    sentence = _fit(scene, area)
    last = sentence.x_of(len(scene.circuit.prompt) - 1) or area.right
    output = _over(output, last, area.top, area)
    stream = [(last, area.bottom - _WORDS), (last, output.area.bottom)]
    if query is not None:
        query = _over(query, sentence.x_of(query.positions[-1]) or last, output.area.bottom + 14, area)
        if output.positions[0] in query.positions:
            stream = [(query.x, query.y), (output.x, output.area.bottom)]
    row, lane = _placed(row, query, sentence, area, last)
    _write_sentence(sheet, scene, sentence, area)
    sheet.plot(*zip(*stream, strict=True), color=canvas.LINE, linewidth=1.2, zorder=0.4)
    for box in row:
        _draw_ties(sheet, box, sentence, area)
    if query is not None:
        _draw_ties(sheet, query, sentence, area, lane=(lane, min(box.y for box in row)))
    for box in (*row, output, *([query] if query else [])):
        _draw_lines(sheet, box)
    if scene.front is not None and scene.front["arrow"] == 0:
        _draw_arrow(sheet, scene, row, query or output, area)


def _boxes(scene: Scene) -> tuple[list[Box], Box | None, Box]:
    """The boxes of the row, the query's box (None where the output stands for it), and the output's."""
    key, query = scene.ends or (None, None)
    upper, row = None, []
    for name, node in sorted(scene.boxes, key=lambda box: box[1]["rank"]):
        colour = canvas.RED if name == key else canvas.MUTED
        box = Box(tuple(node["lines"]), tuple(node["positions"]), node["order"], colour)
        if name == query != key:
            upper = box
        else:
            row.append(box)
    out = scene.graph.nodes[OUTPUT]
    return row[:_MOST_BOXES], upper, Box(tuple(out["lines"]), tuple(out["positions"]), 0, canvas.INK)


def _fit(scene: Scene, area: Area) -> Sentence:
    """The sentence at the largest size and length that the area holds; failing that, at the smallest."""
    all_words, sentence = scene.circuit.prompt.words, None
    for (most, longest), size in product(_LENGTHS, _SIZES):
        positions = scene.shown(most=most)
        words = ["…" if each is None else spell(all_words[each], longest=longest) for each in positions]
        numbers = ["" if each is None else str(each) for each in positions]
        texts = zip(words, numbers, strict=True)
        widths = [max(width_of(word, Font(size)), width_of(number, canvas.NAME)) for word, number in texts]
        free = area.width - sum(widths)
        gap = min(15.0, free / max(1, len(widths) - 1))
        start = area.left + (free - gap * (len(widths) - 1)) / 2
        ends = accumulate((width + gap for width in widths), initial=start)
        centres = [left + width / 2 for left, width in zip(ends, widths, strict=False)]
        sentence = Sentence(words, positions, size, centres)
        if free >= 4.0 * (len(words) - 1):
            break
    assert sentence is not None
    return sentence


def _over(box: Box, x: float, y: float, area: Area) -> Box:
    """The box at this height, over x as far as the area allows."""
    half = box.width / 2
    return replace(box, x=min(max(x, area.left + half), area.right - half), y=y)


def _placed(
    row: list[Box], query: Box | None, sentence: Sentence, area: Area, last: float
) -> tuple[list[Box], float]:
    """The boxes side by side, left of the last token's line where they fit, and the x of the query's lane."""
    lane = [] if query is None else [replace(query, lines=())]
    while len(row) > 1 and _total_width([*row, *lane]) > area.width:
        row = row[:-1]
    clear = last - 8
    right = area.right if query or _total_width(row) > clear - area.left else clear
    boxes, wished = sorted([*row, *lane], key=lambda box: box.order), []
    for box in boxes:
        centres = [x for x in map(sentence.x_of, box.positions) if x is not None] or [area.middle]
        wished.append(sum(centres) / len(centres))
    base = area.bottom - _WORDS - _TIE
    each = zip(boxes, _apart(wished, [box.width for box in boxes], area.left, right), strict=True)
    placed = [replace(box, x=x, y=base - box.height) for box, x in each]
    return [box for box in placed if box.lines], next((box.x for box in placed if not box.lines), right)


def _apart(wished: list[float], widths: list[float], left: float, right: float) -> list[float]:
    """Centres near those wished for where no boxes touch: neighbours yield by halves, then the edges hold."""
    x, numbers = list(wished), range(len(wished))
    for _, number in product(range(60), numbers[1:]):
        least = (widths[number - 1] + widths[number]) / 2 + _APART
        overlap = max(0.0, x[number - 1] + least - x[number])
        x[number - 1], x[number] = x[number - 1] - overlap / 2, x[number] + overlap / 2
    edge = left
    for number in numbers:
        x[number] = max(x[number], edge + widths[number] / 2)
        edge = x[number] + widths[number] / 2 + _APART
    edge = right
    for number in reversed(numbers):
        x[number] = min(x[number], edge - widths[number] / 2)
        edge = x[number] - widths[number] / 2 - _APART
    return x


def _total_width(boxes: list[Box]) -> float:
    return sum(box.width for box in boxes) + _APART * (len(boxes) - 1)


def _write_sentence(sheet: Axes, scene: Scene, sentence: Sentence, area: Area) -> None:
    for word, position, x in zip(sentence.words, sentence.positions, sentence.centres, strict=True):
        word_colour, colour = (canvas.RED,) * 2 if scene.is_key(position) else (canvas.INK, canvas.MUTED)
        write(sheet, x, area.bottom - 13, word, Font(sentence.size, word_colour), ha="center")
        number = "" if position is None else str(position)
        write(sheet, x, area.bottom - 3, number, Font(canvas.SMALL, colour), ha="center")


def _draw_lines(sheet: Axes, box: Box) -> None:
    fill, line = (canvas.PAPER, 1.2) if box.colour == canvas.INK else (canvas.WASH, 0.8)
    draw_box(sheet, box.area, box.colour, fill, line=line)
    title = Font(canvas.BODY, canvas.RED if box.colour == canvas.RED else canvas.INK, bold=True)
    for number, line in enumerate(box.lines):
        font = canvas.NOTE if number else title
        write(sheet, box.x, box.y + 10.5 + _STEP * number, line, font, ha="center")


def _draw_ties(
    sheet: Axes, box: Box, sentence: Sentence, area: Area, *, lane: tuple[float, float] | None = None
) -> None:
    """A line from each of its tokens up to the box, through a lane at this x that ends at this height."""
    bends = [] if lane is None else [(lane[0], area.bottom - _WORDS - _TIE), lane]
    look = {"edgecolor": box.colour, "linewidth": 0.6, "linestyle": (0, (3, 2)), "zorder": 0.5}
    for x in (x for x in map(sentence.x_of, box.positions) if x is not None):
        curve = [(x, area.bottom - 13 - sentence.size)]
        for x1, y1 in (*bends, (box.x, box.area.bottom)):  # it leaves and reaches every point upright
            x0, middle = curve[-1][0], (curve[-1][1] + y1) / 2
            curve += [(x0, middle), (x1, middle), (x1, y1)]
        codes = [Path.MOVETO] + [Path.CURVE4] * (len(curve) - 1)
        sheet.add_patch(PathPatch(Path(curve, codes), fill=False, **look))


def _draw_arrow(sheet: Axes, scene: Scene, row: list[Box], end: Box, area: Area) -> None:
    """From the key's box to its target, as wide as the total, with the carriers' names beside it."""
    assert scene.front is not None
    key = next(box for box in row if box.colour == canvas.RED)
    beside = abs(key.x - end.x) > end.width / 2 + 36
    side = 1 if key.x < end.x else -1
    if beside:
        x, y = end.x - (end.width / 2 + 1) * side, end.y + end.height / 2
        bend = (key.x + (x - key.x) * 0.3, y)
    else:
        x, y = end.x - 7 * side, end.area.bottom + 1
        bend = (x, (key.y + y) / 2)
    points = [(key.x, key.y - 0.5), (key.x, (key.y + y) / 2), bend, (x, y)]
    look = {"linewidth": 0.8 + 1.6 * min(abs(scene.front["total"]), 1.2), "color": canvas.RED, "zorder": 1.5}
    path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    sheet.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=9, **look))
    title, names = scene.front["label"], name_rows(scene.carriers, most=9, in_a_row=3)
    wide = max([width_of(title, canvas.HEADING), *(width_of(line, canvas.PLAIN) for line in names)])
    on_left = key.x - 8 - wide >= area.left
    x = key.x - 8 if on_left else (key.x if beside else max(key.x, end.x)) + 12
    left, right = (x - wide, x) if on_left else (x, x + wide)
    lowest = min(box.y for box in row if box is key or (box.area.left < right and left < box.area.right))
    y = lowest - 10 - 9.5 * len(names)
    for number, line in enumerate([title, *names]):
        font, ha = canvas.PLAIN if number else canvas.HEADING, "right" if on_left else "left"
        write(sheet, x, y + 9.5 * number, line, font, ha=ha).set_zorder(6)
