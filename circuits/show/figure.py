"""Figure B: left, one circuit's carriers as small maps; right, the other's, and its diagram.

Of one circuit alone the right half is drawn. Here, too, is what goes into a result folder: the circuit, its
figure, its page and its DOT text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.files import new_folder
from circuits.show import FORMATS, canvas
from circuits.show.canvas import Area, Tiles, draw_box, draw_tiles, save_figure, width_of, write
from circuits.show.diagram import draw_diagram, least_height
from circuits.show.dot import to_dot
from circuits.show.page import to_page
from circuits.show.scene import Scene, spell, to_scene

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

_PAD: Final = 9.0
_TITLE: Final = 22.0  # the height of a title
_NAMES: Final = 11.0  # the height of a row of names
_CROSS: Final = 26.0
_MOST_LEFT: Final = 80  # maps
_MOST_RIGHT: Final = 12
_LEFT_SHARE: Final = 0.43  # of the width


def mapping_figure(
    left: Circuit,
    right: Circuit | None = None,
    *,
    share: float | None = None,
    titles: Sequence[str] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Figure B of two circuits; of one, its carriers and its diagram.

    `titles` are one for each, by default the models' names; `share` is by default that of each circuit.
    """
    scenes = [to_scene(circuit, share) for circuit in (left, right) if circuit is not None]
    names = titles or [scene.circuit.source.name for scene in scenes]
    many, scene = scenes[0], scenes[-1]
    full = canvas.WIDTH * 72
    split = full * _LEFT_SHARE if many is not scene else 0.0
    start, width = split + (6.5 if split else 0.5), full * (1 - _LEFT_SHARE) - 7
    height = _height_with_diagram(scene, width)
    tiles = _balanced(many, split - 1, height) if split else None
    if tiles is not None:
        height = max(height, _TITLE + 12 + tiles.height(len(many.carriers[:_MOST_LEFT])))
    sheet = canvas.new_sheet(start + width + 0.5, height + 1, figure)
    with canvas.looks():
        if tiles is not None:
            area = Area(0.5, 0.5, split - 1, height)
            _draw_frame(sheet, many, names[0], area)
            _draw_maps(sheet, many, tiles, _MOST_LEFT)
            more = many.more(_MOST_LEFT)
            write(sheet, area.right - _PAD, area.bottom - 5, more, canvas.NOTE, ha="right")
        _draw_with_diagram(sheet, scene, names[-1], Area(start, 0.5, width, height))
    return sheet.get_figure(root=True)  # type: ignore[return-value]


def _balanced(scene: Scene, width: float, height: float) -> Tiles:
    """As many tiles to a row as bring the left half nearest to the right one's height; one or two stacked."""
    heads, space, top = scene.carriers[:_MOST_LEFT], width - 2 * _PAD, _TITLE + 2
    if 1 <= len(heads) <= 2:
        side = min(0.75 * space, (height - _TITLE - 12) / len(heads) - _NAMES)
        return Tiles(_PAD + (space - side) / 2, top, side, 1, below=_NAMES)
    longest = max((width_of(head, canvas.NAME) for head in heads), default=0.0)
    most = min(9, max(3, int((space + 5.0) // (longest + 4.0))))
    sides = {across: (space - 5.0 * (across - 1)) / across for across in range(2, most + 1)}
    choices = [Tiles(_PAD, top, side, across, below=_NAMES) for across, side in sides.items()]
    needed = {tiles: _TITLE + 12 + tiles.height(len(heads)) for tiles in choices}
    return min(choices, key=lambda tiles: (abs(needed[tiles] - height), tiles.across))


def _tiles_above(scene: Scene, area: Area) -> Tiles:
    """The maps above the diagram, in one row or two."""
    count = len(scene.carriers[:_MOST_RIGHT])
    across = count if count <= 6 else -(-count // 2)
    space = area.width - 2 * _PAD - _CROSS - 4
    side = min(46.0, (space - 6.0 * (across - 1)) / across) if across else 0.0
    indent = max(0.0, (space - across * (side + 6.0) + 6.0) / 2 - _CROSS / 2)
    left = area.left + _PAD + _CROSS + indent
    return Tiles(left, area.top + _TITLE + 18, side, max(across, 1), 6.0, _NAMES)


def _height_with_diagram(scene: Scene, width: float) -> float:
    tiles = _tiles_above(scene, Area(0, 0, width, 0))
    maps = tiles.height(len(scene.carriers[:_MOST_RIGHT])) + (9.0 if scene.more(_MOST_RIGHT) else 0.0)
    return tiles.y + maps + 14 + least_height(scene) + _PAD


def _draw_with_diagram(sheet: Axes, scene: Scene, title: str, area: Area) -> None:
    """The right half: title, caption, maps, and below them the diagram."""
    tiles = _tiles_above(scene, area)
    _draw_frame(sheet, scene, title, area)
    caption = canvas.Font(colour=canvas.RED, bold=True)
    write(sheet, area.middle, area.top + _TITLE + 9, scene.caption, caption, ha="center")
    if scene.carriers:
        canvas.draw_cross(sheet, tiles.x - _CROSS + 2, tiles.y + tiles.side / 2 + 8)
    _draw_maps(sheet, scene, tiles, _MOST_RIGHT)
    bottom, more = tiles.y + tiles.height(len(scene.carriers[:_MOST_RIGHT])), scene.more(_MOST_RIGHT)
    write(sheet, area.middle, bottom + 6, more, canvas.NOTE, ha="center")
    bottom += 9 if more else 0
    free = area.bottom - bottom - 14 - _PAD
    height = min(free, least_height(scene) + 30)
    top = bottom + 14 + (free - height) / 2
    draw_diagram(sheet, scene, Area(area.left + _PAD, top, area.width - 2 * _PAD, height))


def _draw_frame(sheet: Axes, scene: Scene, title: str, area: Area) -> None:
    draw_box(sheet, area, canvas.LINE, canvas.PAPER, depth=0)
    name, count, source = spell(title, longest=28), len(scene.carriers), scene.circuit.source
    write(sheet, area.left + _PAD, area.top + 15, name, canvas.TITLE)
    if scene.front is not None and count:
        verb = "carries" if count == 1 else "carry"
        note = f"{count} of {source.layers * source.heads} heads {verb} {scene.front['modulation']:.0%}"
        if width_of(name, canvas.TITLE) + width_of(note, canvas.NOTE) + 2 * _PAD + 8 < area.width:
            write(sheet, area.right - _PAD, area.top + 15, note, canvas.NOTE, ha="right")


def _draw_maps(sheet: Axes, scene: Scene, tiles: Tiles, most: int) -> None:
    heads = scene.carriers[:most]
    draw_tiles(sheet, tiles, [scene.circuit.pattern(head) for head in heads], cell=scene.cell)
    for number, head in enumerate(heads):
        x, y = tiles.corner(number)
        write(sheet, x + tiles.side / 2, y + tiles.side + 7.2, head, canvas.NAME, ha="center")


def put(path: Path, text: str) -> None:
    """Write a file in UTF-8, the same bytes on every system."""
    path.write_bytes(text.encode())


def draw_files(
    folder: Path, circuit: Circuit, share: float | None = None, formats: Sequence[str] = FORMATS
) -> None:
    """`figure.svg`, `figure.png`, `figure.pdf`, `page.html` and `circuit.dot`, those that are asked for."""
    pictures = [form for form in formats if form not in ("html", "dot")]
    if pictures:
        save_figure(mapping_figure(circuit, share=share), folder, pictures)
    if "html" in formats:
        put(folder / "page.html", to_page(circuit, share=share))
    if "dot" in formats:
        put(folder / "circuit.dot", to_dot(circuit, share=share))


def fill_with_one(folder: Path, circuit: Circuit, share: float | None = None) -> None:
    """The circuit itself and all that is drawn of it."""
    circuit.save(folder)
    draw_files(folder, circuit, share)


def fill_with_several(folder: Path, circuits: Sequence[Circuit], share: float | None = None) -> None:
    """A folder for each circuit, named after its model; beside them a page of all, and of two the figure."""
    for circuit in circuits:
        fill_with_one(new_folder(folder, circuit.source.name), circuit, share)
    if len(circuits) == 2:
        save_figure(mapping_figure(*circuits, share=share), folder)
    put(folder / "page.html", to_page(circuits, share=share))
