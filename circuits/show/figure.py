"""Figures of circuits: the whole one on a scale of layers, and figure B, one mapping in two models.

1. `circuit_figure` draws every mapping that carries something; what is not drawn is counted in its caption.
2. `mapping_figure`: left, one circuit's carriers as small maps, the mapping's cell framed in red; right, the
   other's under a red caption, and below it the mapping on a scale of layers. Of one circuit the right half.
3. Here, too, is what goes into a result folder: the circuit, its figures, its page and its DOT text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.files import new_folder
from circuits.show import FORMATS, canvas
from circuits.show.canvas import Area, Font, Tiles, draw_box, draw_tiles, save_figure, width_of, write
from circuits.show.diagram import AXIS, Layout, draw_layout, lay_out
from circuits.show.dot import draw, to_dot
from circuits.show.page import to_page
from circuits.show.scene import Scene, name_rows, spell, to_scene
from circuits.tracing import CARRIES

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

_PAD: Final = 9.0
_TITLE: Final = 22.0  # the height of a title
_NAMES: Final = 11.0  # the height of a row of names
_CROSS: Final = 26.0
_STEP: Final = 9.0  # from one line of a caption to the next
_MOST_LEFT: Final = 80  # maps
_MOST_RIGHT: Final = 12
_LEFT_SHARE: Final = 0.43  # of the width
_COLUMN: Final = 50.0  # of a token, where there is space
_NARROW: Final = 3.4  # inches: one column of two
_HOW: Final = (
    "A box: the layers that hold what a token says; shaded: those that build it. An arrow: heads that read "
    "the key and write to the query in that layer, as wide as their effect; filled: the mapping in front."
)


# The whole circuit


def circuit_figure(
    circuit: Circuit, *, share: float | None = None, title: str | None = None, figure: Figure | None = None
) -> Figure:
    """Every mapping of a circuit where its heads stand, the spans of its tokens, and the output."""
    scene = to_scene(circuit, share)
    return scene_figure(scene, circuit.source.name if title is None else title, figure=figure)


def scene_figure(
    scene: Scene, title: str, *, how: str = _HOW, caption: str | None = None, figure: Figure | None = None
) -> Figure:
    """A scene on a scale of layers, with its title and a caption that counts what is not drawn."""
    columns = min(len(scene.words), 40)
    width = min(max(AXIS + _COLUMN * columns + 24, _NARROW * 72), canvas.WIDTH * 72)
    layout = lay_out(scene, width - 2 * _PAD)
    lines = textwrap.wrap(
        (_caption(scene, layout) if caption is None else caption) + how, int((width - 2 * _PAD) / 3.25)
    )
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
    return sheet.get_figure(root=True)  # type: ignore[return-value]


def _note(scene: Scene) -> str:
    if scene.front is None or scene.cell is None:
        return ""
    total, modulation = scene.front["total"], scene.front["modulation"]
    reached = f"{modulation:.0%} by {len(scene.carriers)} head{'' if len(scene.carriers) == 1 else 's'}"
    reached = "modulation withheld" if scene.front["doubts"] else reached
    return f"key {scene.cell[0]} → query {scene.cell[1]}: total {total:z.2f}, {reached}"


def _caption(scene: Scene, layout: Layout) -> str:
    """How many mappings are drawn, how many are not, and which layers are folded."""
    carrying = [mapping for mapping in scene.circuit.mappings if abs(mapping.total) >= CARRIES]
    drawn = len(scene.arrows) + len(scene.own_arrows) - layout.left_out
    every = {0: "No mapping", 1: "The only mapping", 2: "Both mappings"}.get(drawn, f"All {drawn} mappings")
    some = every if drawn >= len(carrying) else f"{drawn} of {len(carrying)} mappings"
    folded = ", ".join(f"{first}–{last}" for first, last in layout.folded)
    layers = f" Nothing happens in layers {folded}, which are folded." if folded else ""
    return f"{some} with a total of {CARRIES:g} or more.{layers} "


# Figure B


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
    """
    scenes = [to_scene(circuit, share) for circuit in (left, right) if circuit is not None]
    names = titles or [scene.circuit.source.name for scene in scenes]
    many, scene, full = scenes[0], scenes[-1], canvas.WIDTH * 72
    tiles, split = None, 0.0
    if many is not scene:
        tiles, split = _left_half(many, scene, full)
    start = split + (6.5 if split else 0.5)
    width = full - start - 0.5 if split else full * (1 - _LEFT_SHARE) - 7
    height = _height_with_diagram(scene, width)
    sheet = canvas.new_sheet(start + width + 0.5, height + 1, figure)
    with canvas.looks():
        if tiles is not None:
            area = Area(0.5, 0.5, split - 1, height)
            _draw_frame(sheet, many, names[0], area)
            _draw_maps(sheet, many, tiles, _MOST_LEFT)
            more = many.more(_MOST_LEFT)
            write(sheet, area.left + _PAD, area.bottom - 5, more, canvas.NOTE)
            canvas.draw_scale(sheet, area.right - _PAD, area.bottom - 8)
        _draw_with_diagram(sheet, scene, names[-1], Area(start, 0.5, width, height))
    return sheet.get_figure(root=True)  # type: ignore[return-value]


def _left_half(many: Scene, scene: Scene, full: float) -> tuple[Tiles, float]:
    """The maps of the left half and its width: as many to a row as make it as high as the right half."""
    count, best = max(1, len(many.mapped(_MOST_LEFT))), None
    longest = max((width_of(head, canvas.NAME) for head in many.mapped(_MOST_LEFT)), default=20.0)
    for across in range(1, 10):
        rows, split, space, side = -(-count // across), full * _LEFT_SHARE, 1.0, 1.0
        for _ in range(3):  # the right half's height depends on the width that is left for it
            space = _height_with_diagram(scene, full - split - 7) - _TITLE - 20
            side = min(space / rows - _NAMES, 120.0)
            split = min(max(across * (side + 6) - 6 + 2 * _PAD + 1, 120.0), full * 0.5)
        side = min(side, (split - 2 * _PAD - 1 + 6) / across - 6)
        if side < longest * 0.9 and across > 1 and best is not None:
            continue
        waste = abs(split - full * _LEFT_SHARE) / full + abs(space - rows * (side + _NAMES)) / space
        waste += 0.3 * (rows * across - count) / count
        if best is None or waste < best[0] - 1e-9:
            left = (split - across * (side + 6) + 6) / 2
            top = _TITLE + 2 + max(0.0, (space - rows * (side + _NAMES)) / 2)
            best = (waste, Tiles(left, top, side, across, 6.0, _NAMES), split)
    assert best is not None
    return best[1], best[2]


def _tiles_above(scene: Scene, area: Area) -> Tiles:
    """The maps above the diagram, in one row or two."""
    count = len(scene.mapped(_MOST_RIGHT))
    across = count if count <= 6 else -(-count // 2)
    space = area.width - 2 * _PAD - _CROSS - 4
    side = min(64.0, (space - 6.0 * (across - 1)) / across) if across else 0.0
    indent = max(0.0, (space - across * (side + 6.0) + 6.0) / 2 - _CROSS / 2)
    left = area.left + _PAD + _CROSS + indent
    return Tiles(left, area.top + _TITLE + 18, side, max(across, 1), 6.0, _NAMES)


def _named(scene: Scene) -> list[str]:
    """`Modulated at 80% by`, and the names of the carriers in rows."""
    if scene.front is None or not scene.carriers:
        return []
    return [scene.front["label"], *name_rows(scene.carriers, most=15, in_a_row=5)]


def _height_with_diagram(scene: Scene, width: float) -> float:
    tiles = _tiles_above(scene, Area(0, 0, width, 0))
    maps = tiles.height(len(scene.mapped(_MOST_RIGHT))) + (9.0 if scene.more(_MOST_RIGHT) else 0.0)
    layout = lay_out(scene, width - 2 * _PAD, only_front=True, most=24)
    return tiles.y + maps + 12 + _STEP * len(_named(scene)) + 8 + layout.height + _PAD


def _draw_with_diagram(sheet: Axes, scene: Scene, title: str, area: Area) -> None:
    """The right half: title, caption, maps, and below them the mapping on a scale of layers."""
    tiles = _tiles_above(scene, area)
    _draw_frame(sheet, scene, title, area)
    caption = canvas.Font(colour=canvas.RED, bold=True)
    letters = int((area.width - 2 * _PAD) / 5.2)
    write(
        sheet, area.middle, area.top + _TITLE + 9, spell(scene.caption, longest=letters), caption, ha="center"
    )
    if scene.carriers:
        canvas.draw_cross(sheet, tiles.x - _CROSS + 2, tiles.y + tiles.side / 2 + 8)
    _draw_maps(sheet, scene, tiles, _MOST_RIGHT)
    bottom, more = tiles.y + tiles.height(len(scene.mapped(_MOST_RIGHT))), scene.more(_MOST_RIGHT)
    write(sheet, area.middle, bottom + 6, more, canvas.NOTE, ha="center")
    bottom += (9 if more else 0) + 14
    for number, line in enumerate(_named(scene)):
        font = canvas.PLAIN if number else canvas.HEADING
        write(sheet, area.left + _PAD, bottom + _STEP * number, line, font)
    layout = lay_out(scene, area.width - 2 * _PAD, only_front=True, most=24)
    draw_layout(sheet, scene, layout, area.left + _PAD, area.bottom - _PAD - layout.height)


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
    heads = scene.mapped(most)
    draw_tiles(sheet, tiles, [scene.circuit.pattern(head) for head in heads], cell=scene.cell)
    for number, head in enumerate(heads):
        x, y = tiles.corner(number)
        write(sheet, x + tiles.side / 2, y + tiles.side + 7.2, head, canvas.NAME, ha="center")


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
) -> None:
    """`figure` and `circuit` as .svg, .png, .pdf, `page.html` and `circuit.dot`, those that are asked for.

    With `by_graphviz` the diagram is also drawn by Graphviz, in the same formats.
    """
    pictures = [form for form in formats if form not in ("html", "dot")]
    if pictures:
        save_figure(mapping_figure(circuit, share=share), folder, pictures)
        save_figure(circuit_figure(circuit, share=share), folder, pictures, name="circuit")
    if "html" in formats:
        put(folder / "page.html", to_page(circuit, share=share))
    if "dot" in formats:
        diagram = to_dot(circuit, share=share)
        put(folder / "circuit.dot", diagram.source)
        for form in pictures if by_graphviz else ():
            draw(diagram, folder / f"graphviz.{form}")


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
