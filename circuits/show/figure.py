"""Figure B, one mapping in one model or two, and the files of a result folder.

1. Left, one circuit's carriers as small maps, the mapping's cell framed in red; right, the other's under a
   red caption, and below it the mapping on a scale of layers. Of one circuit the right half.
2. Words stand along the maps where a cell has the height of a letter; else the mapping's two positions.
3. What goes into a result folder: the circuit, its figures, its page and its DOT text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.errors import PromptError
from circuits.files import new_folder
from circuits.results import FORMATS
from circuits.show import canvas
from circuits.show.canvas import Area, Font, Tiles, draw_box, draw_tiles, save_figure, width_of, write
from circuits.show.diagram import circuit_figure, draw_layout
from circuits.show.dot import draw, to_dot
from circuits.show.layout import lay_out
from circuits.show.page import to_page
from circuits.show.scene import Scene, to_scene
from circuits.show.words import name_rows, spell

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit, Why

_PAD: Final = 9.0
_TITLE: Final = 22.0  # the height of a title
_NAME: Final = 9.0  # the height of a head's name above its map
_GAP: Final = 6.0  # between maps
_STEP: Final = 9.0  # from one line to the next
_MOST_LEFT: Final = 80  # maps
_MOST_RIGHT: Final = 12
_LEFT_SHARE: Final = 0.43  # of the width
_CELL: Final = 6.4  # the side of a cell that a word of the smallest letters fits beside
_LEAST_CELL: Final = 2.4  # the side of a cell in maps that have the space to grow
_LARGEST_OF_ALL: Final = 120.0  # the side of a map
_LARGEST: Final = 96.0  # the side of a map above the diagram


def mapping_figure(
    left: Circuit,
    right: Circuit | None = None,
    *,
    share: float | None = None,
    titles: Sequence[str] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Figure B of two circuits; of one, its carriers and its mapping on a scale of layers.

    `titles` are one for each, by default the models' names; `share` is by default that of each circuit.

        >>> figure = show.mapping_figure(found, titles=["My model"])
        >>> figure.axes[0].texts[0].get_text()
        'My model'
    """
    scenes = [to_scene(circuit, share) for circuit in (left, right) if circuit is not None]
    names = titles or [scene.circuit.source.name for scene in scenes]
    many, scene, full = scenes[0], scenes[-1], canvas.WIDTH * 72
    tiles, labels, split = (None, None, 0.0) if many is scene else _left_half(many, scene, full)
    start = split + (6.5 if split else 0.5)
    width = full - start - 0.5 if split else canvas.COLUMN * 72 - 1
    height = _height_with_diagram(scene, width)
    sheet = canvas.new_sheet(start + width + 0.5, height + 1, figure)
    with canvas.looks():
        if tiles is not None and labels is not None:
            area = Area(0.5, 0.5, split - 1, height)
            _draw_frame(sheet, many, names[0], area)
            _draw_maps(sheet, many, tiles, labels, _MOST_LEFT)
            write(sheet, area.left + _PAD, area.bottom - 5, many.more(_MOST_LEFT), canvas.NOTE)
        _draw_with_diagram(sheet, scene, names[-1], Area(start, 0.5, width, height))
    return canvas.figure_around(sheet)


def figure_of_circuit(circuit: Circuit, *, kind: str | None = None, **options: Any) -> Figure:
    """The figure of a `kind`: "mapping", or "circuit" by default where no mapping was asked for."""
    if kind is None:
        kind = "circuit" if circuit.focus is None else "mapping"
    if kind == "circuit":
        return circuit_figure(circuit, **options)
    if kind == "mapping":
        return mapping_figure(circuit, **options)
    raise PromptError(f"a circuit is drawn as kind='circuit' or 'mapping', not {kind!r}")


# Maps


@dataclass(frozen=True, slots=True)
class Labels:
    """What stands along the axes of maps, by position, and the space that it takes: left of the first map of
    a row the queries, below the last of a column the keys."""

    keys: dict[int, str]
    queries: dict[int, str]
    left: float
    below: float
    least: float = 0.0  # the side of a map that they fit
    upright: bool = False  # keys are words, one beside the other

    def tiles(self, x: float, y: float, side: float, across: int) -> Tiles:
        """With their names above them."""
        return Tiles(x + self.left, y + _NAME, side, across, _GAP, _NAME + 3)

    def height(self, side: float, rows: int) -> float:
        return rows * (side + _NAME + 3) + self.below

    def side(self, height: float, rows: int) -> float:
        return (height - self.below) / rows - _NAME - 3

    def width(self, side: float, across: int) -> float:
        return self.left + across * (side + _GAP) - _GAP


def _words(scene: Scene) -> Labels:
    """A word at every cell; where they are too many for any map, the two positions."""
    if _CELL * len(scene.words) > _LARGEST_OF_ALL:
        return _ends(scene)
    words = {position: spell(word, longest=9) for position, word in enumerate(scene.words)}
    longest = max(width_of(word, canvas.HEADING_SMALL) for word in words.values())
    return Labels(words, words, longest + 4, longest + 5, _CELL * len(words), upright=True)


def _ends(scene: Scene) -> Labels:
    """The two positions of the mapping."""
    key, query = ({position: str(position)} for position in scene.cell or (0, 0))
    return Labels(key, query, 4 + max(width_of(number, canvas.NAME) for number in query.values()), 8.0)


def _left_half(many: Scene, scene: Scene, full: float) -> tuple[Tiles, Labels, float]:
    """The maps of the left half and its width: as many to a row as make it as high as the right half."""
    count, best = max(1, len(many.mapped(_MOST_LEFT))), None
    longest = max((width_of(head, canvas.NAME) for head in many.mapped(_MOST_LEFT)), default=20.0)
    for labels, across in product((_words(many), _ends(many)), range(1, 10)):
        rows, split, space, side = -(-count // across), full * _LEFT_SHARE, 1.0, 1.0
        for _ in range(3):  # the right half's height depends on the width that is left for it
            space = _height_with_diagram(scene, full - split - 7) - _TITLE - 14
            side = min(labels.side(space, rows), _LARGEST_OF_ALL)
            split = min(max(labels.width(side, across) + 2 * _PAD + 1, 120.0), full * 0.5)
        space = _height_with_diagram(scene, full - split - 7) - _TITLE - 14
        side = min(labels.side(space, rows), (split - 2 * _PAD - 1 - labels.width(0, across)) / across)
        if side < max(labels.least, longest * 0.9) and (labels.upright or across > 1):
            continue
        waste = abs(split - full * _LEFT_SHARE) / full + abs(space - labels.height(side, rows)) / space
        waste += 0.3 * (rows * across - count) / count + (0.0 if labels.upright else 0.2)
        if best is None or waste < best[0] - 1e-9:
            left = (split - labels.width(side, across)) / 2
            top = _TITLE + 2 + min(max(0.0, (space - labels.height(side, rows)) / 2), 24.0)
            best = (waste, labels.tiles(left, top, max(side, 1.0), across), labels, split)
    assert best is not None
    return best[1:]


def _maps_above(scene: Scene, area: Area) -> tuple[Tiles, Labels, float]:
    """The maps above the diagram and their height: in a row, or in two where words then fit beside them."""
    count = max(1, len(scene.mapped(_MOST_RIGHT)))
    half, words, ends = -(-count // 2), _words(scene), _ends(scene)
    longest = max((width_of(head, canvas.NAME) for head in scene.mapped(_MOST_RIGHT)), default=0.0)
    for labels, across in ((words, count), (words, half), (ends, count if count <= 6 else half)):
        most = min(max(64.0, labels.least, _LEAST_CELL * len(scene.words)), _LARGEST)
        side = min(most, (area.width - 2 * _PAD - labels.width(0, across)) / across)
        if side >= max(labels.least, longest - _GAP / 2):
            break
    tiles = labels.tiles(area.middle - labels.width(side, across) / 2, area.top, side, across)
    rows = -(-len(scene.mapped(_MOST_RIGHT)) // across)
    return tiles, labels, labels.height(side, rows) if rows else 0.0


def _draw_maps(sheet: Axes, scene: Scene, tiles: Tiles, labels: Labels, most: int) -> None:
    heads, step = scene.mapped(most), tiles.side / len(scene.words)
    key, query = scene.cell or (None, None)
    draw_tiles(sheet, tiles, [scene.circuit.pattern(head) for head in heads], cell=scene.cell)
    for number, head in enumerate(heads):
        x, y = tiles.corner(number)
        foot = y + tiles.side
        write(sheet, x + tiles.side / 2, y - 2.8, head, canvas.NAME, ha="center")
        for position, text in labels.keys.items() if number + tiles.across >= len(heads) else ():
            font = Font(canvas.SMALL, *_look(position, key, canvas.RED))
            across, turned = x + (position + 0.5) * step, 90 if labels.upright else 0
            write(sheet, across, foot + 2.5, text, font, ha="center", va="top", rotation=turned)
        for position, text in labels.queries.items() if number % tiles.across == 0 else ():
            font = Font(canvas.SMALL, *_look(position, query, canvas.INK))
            write(sheet, x - 2.5, foot - (position + 0.5) * step, text, font, ha="right", va="center")


def _look(position: int, end: int | None, colour: str) -> tuple[str, bool]:
    """The colour of a word along a map, and whether it is bold: the mapping's own end stands out."""
    return (colour, True) if position == end else (canvas.MUTED, False)


# The right half


def _named(scene: Scene) -> list[str]:
    """`Modulated at 80% by`, and the names of the carriers in rows."""
    if scene.front is None or not scene.carriers:
        return []
    return [scene.front["label"], *name_rows(scene.carriers, most=16)]


def _verdict(scene: Scene, width: float) -> list[str]:
    """What comes before all else where the question is not clear."""
    return textwrap.wrap(scene.verdict, int((width - 2 * _PAD) / 4.3), max_lines=3, placeholder=" …")


def _caption(scene: Scene, width: float) -> list[str]:
    """The red caption in lines; a reason for doubt makes it long."""
    return textwrap.wrap(scene.caption, int((width - 2 * _PAD) / 5.2), max_lines=4, placeholder=" …")


def _height_with_diagram(scene: Scene, width: float) -> float:
    maps = _maps_above(scene, Area(0, 0, width, 0))[2] + (_STEP if scene.more(_MOST_RIGHT) else 0.0)
    layout = lay_out(scene, width - 2 * _PAD, only_front=True, most=24)
    above = _TITLE + 12 + _STEP * (len(_verdict(scene, width)) + len(_caption(scene, width)) - 1)
    legend = max(_STEP * len(_named(scene)), 24.0 if scene.mapped(1) else 0.0)
    return above + maps + 12 + legend + 4 + layout.height + _PAD


def _draw_with_diagram(sheet: Axes, scene: Scene, title: str, area: Area) -> None:
    """The right half: title, caption, maps with their legend, and the mapping on a scale of layers."""
    _draw_frame(sheet, scene, title, area)
    y = area.top + _TITLE + 7
    for line in _verdict(scene, area.width):
        write(sheet, area.middle, y, line, canvas.HEADING_SMALL, ha="center")
        y += _STEP
    for line in _caption(scene, area.width):
        write(sheet, area.middle, y, line, Font(colour=canvas.RED, bold=True), ha="center")
        y += _STEP
    y -= _STEP
    tiles, labels, height = _maps_above(scene, Area(area.left, y + 5, area.width, 0))
    _draw_maps(sheet, scene, tiles, labels, _MOST_RIGHT)
    y, more = y + 5 + height, scene.more(_MOST_RIGHT)
    write(sheet, area.middle, y + 4, more, canvas.NOTE, ha="center")
    y += (_STEP if more else 0) + 12
    for number, line in enumerate(_named(scene)):
        write(sheet, area.left + _PAD, y + _STEP * number, line, canvas.PLAIN if number else canvas.HEADING)
    if scene.mapped(1):
        canvas.draw_cross(sheet, area.right - _PAD - 120, y + 12)
        canvas.draw_scale(sheet, area.right - _PAD, y + 4)
    layout = lay_out(scene, area.width - 2 * _PAD, only_front=True, most=24)
    draw_layout(sheet, scene, layout, area.left + _PAD, area.bottom - _PAD - layout.height)


def _draw_frame(sheet: Axes, scene: Scene, title: str, area: Area) -> None:
    draw_box(sheet, area, canvas.LINE, canvas.PAPER, depth=0)
    name, count, source = spell(title, longest=28), len(scene.carriers), scene.circuit.source
    write(sheet, area.left + _PAD, area.top + 15, name, canvas.TITLE)
    if scene.front is not None and count:
        verb = "carries" if count == 1 else "carry"
        note = f"{count} of {source.layers * source.heads} heads {verb} {scene.front['modulation']:.0%}"
        note = "modulation withheld" if scene.front["doubts"] else note
        if width_of(name, canvas.TITLE) + width_of(note, canvas.NOTE) + 2 * _PAD + 8 < area.width:
            write(sheet, area.right - _PAD, area.top + 15, note, canvas.NOTE, ha="right")


# Files


def put(path: Path, text: str) -> None:
    """Write a file in UTF-8, the same bytes on every system."""
    path.write_bytes(text.encode())


def draw_files(
    folder: Path,
    circuit: Circuit,
    share: float | None = None,
    formats: Sequence[str] = FORMATS,
    *,
    by_graphviz: bool = False,
    why: Sequence[Why] = (),
) -> None:
    """Those of `figure` and `circuit` (.svg, .png, .pdf), `page.html` and `circuit.dot` that `formats` names.

    With `by_graphviz` the diagram is also drawn by Graphviz, in the same formats; the page shows `why`.
    """
    pictures = [form for form in formats if form not in ("html", "dot")]
    if pictures:
        save_figure(mapping_figure(circuit, share=share), folder, pictures)
        save_figure(circuit_figure(circuit, share=share), folder, pictures, name="circuit")
    if "html" in formats:
        put(folder / "page.html", to_page(circuit, share=share, why=why))
    if "dot" in formats:
        diagram = to_dot(circuit, share=share)
        put(folder / "circuit.dot", diagram.source)
        for form in pictures if by_graphviz else ():
            draw(diagram, folder / f"graphviz.{form}")


def fill_with_one(folder: Path, circuit: Circuit, share: float | None = None) -> None:
    """Write the circuit and everything that is drawn of it."""
    circuit.save(folder)
    draw_files(folder, circuit, share)


def fill_with_several(folder: Path, circuits: Sequence[Circuit], share: float | None = None) -> None:
    """A folder for each circuit, named after its model; beside them a page of all, and of two the figure."""
    for circuit in circuits:
        fill_with_one(new_folder(folder, circuit.source.name), circuit, share)
    if len(circuits) == 2:
        save_figure(mapping_figure(*circuits, share=share), folder)
    put(folder / "page.html", to_page(circuits, share=share))
