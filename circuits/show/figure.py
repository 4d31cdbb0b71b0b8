"""The mapping figure (figure B) of one model or two.

1. Above stands what was found and what was asked. Of two circuits, the left half has the carriers of the first
   as small maps. The right half has those of the second under a red caption, in one row where they fit, and
   below them the mapping on a scale of layers. Of one circuit only the right half is drawn.
2. In every map the cell of the mapping has a red frame; it has stripes where the head attends to the key in the
   counterfactual alone.
3. Words stand along the maps where a cell is as high as a letter, else the mapping's two positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

from circuits.show.canvas import (
    BLUE,
    COLUMN,
    HEADING_SMALL,
    LINE,
    NAME,
    NOTE,
    PAPER,
    RED,
    SMALL,
    WIDTH,
    Area,
    Font,
    Sheet,
    figure_around,
    looks,
    new_sheet,
    width_of,
)
from circuits.show.diagram import draw_layout, legend_keys
from circuits.show.layout import Placement, lay_out
from circuits.show.legend import Key, to_heading, to_legend, wrapped
from circuits.show.maps import Tiles, draw_cross, draw_ramp, draw_stripes, draw_tiles
from circuits.show.scene import Scene, to_scene
from circuits.show.words import question_words, spell

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

# Lengths are in points.
_FULL: Final = WIDTH * 72  # the width of two halves
_PAD: Final = 9.0
_TITLE: Final = 22.0  # the height of a title
_NO_TITLE: Final = 8.0  # the space where no title stands
_NAME: Final = 12.0  # the height of a head's name above its map, and the space above that
_GAP: Final = 6.0  # between maps
_STEP: Final = 9.0  # from one line of text to the next
_RED_BOLD: Final = Font(colour=RED, bold=True)
_KEY_LABEL: Final = Font(SMALL, RED, bold=True)  # along a map
_MOST_LEFT: Final = 80  # maps
_MOST_RIGHT: Final = 12
_LEFT_SHARE: Final = 0.43  # of the width, as published
_LEFT_SHARES: Final = (0.25, 0.3, 0.35, 0.4, 0.43, 0.46, 0.5)  # that are tried
_CELL: Final = 6.4  # the side of a cell that a word of the smallest letters fits beside
_LEAST_CELL: Final = 2.4  # the side of a cell in maps that have the space to grow
_LARGEST: Final = 96.0  # the side of a map
_SMALLEST_ROW: Final = 30.0  # the side of a map, below which maps stand in two rows
_CROSS: Final = 24.0  # the width of the axis cross


def mapping_figure(
    left: Circuit | Scene,
    right: Circuit | Scene | None = None,
    *,
    share: float | None = None,
    titles: Sequence[str] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Figure B of two circuits; of one, its carriers and its mapping on a scale of layers.

    `titles` are one for each, by default the models' names; `share` is by default that of each circuit.

        >>> figure = show.mapping_figure(found, titles=["My model"])
        >>> figure.axes[0].texts[0].get_text()
        '6 of 144 heads carry 80% of large(5) → "(8)'
    """
    scenes = [to_scene(circuit, share) for circuit in (left, right) if circuit is not None]
    names = titles or [scene.circuit.source.name for scene in scenes]
    if right is None:
        left_half = None
        start = 0.5
        right_half = _plan_right(scenes[0], COLUMN * 72 - 1, titled=False)
    else:
        left_half, right_half = _plan_halves(*scenes)
        start = left_half.width + 6.5
    finding, question = _words_above(scenes, names)
    full = start + right_half.width + 0.5
    heading = to_heading(finding, question, full - 2 * _PAD)
    top = heading.height + 8
    legend = to_legend(_legend_keys(scenes, right_half.layout), full - 2 * _PAD)
    below = top + right_half.height + 6
    sheet = new_sheet(full, below + legend.height + 3, figure)
    with looks():
        heading.draw(sheet, _PAD, 2)
        if left_half is not None:
            _draw_left(sheet.moved(0, top), scenes[0], names[0], left_half, right_half.height)
        _draw_right(sheet.moved(0, top), scenes[-1], names[-1], right_half, start)
        legend.draw(sheet, _PAD, below)
    return figure_around(sheet.axes)


def _words_above(scenes: Sequence[Scene], names: Sequence[str]) -> tuple[str, str]:
    """What was found and what was asked: of one model, or of two that were asked the same."""
    last = scenes[-1]
    if len(scenes) == 1:
        return last.finding, last.question(names[0])
    if any(scene.front is None or not scene.carriers for scene in scenes):
        finding = "; ".join(
            f"{spell(name, longest=28)}: {scene.finding}"
            for name, scene in zip(names, scenes, strict=True)
        )
    else:
        found = [
            f"{scene.carried} in {spell(name, longest=28)}"
            for name, scene in zip(names, scenes, strict=True)
        ]
        finding = f"{last.ends_text}: {', '.join(found)}"
    totals = [f"{scene.front['total']:z.2f}" for scene in scenes if scene.front is not None]
    question = question_words(last.circuit, " and ".join(names))
    return finding, f"{question}; total {' and '.join(totals)} of the gap"


def _legend_keys(scenes: Sequence[Scene], layout: Placement) -> list[Key]:
    """Entries for what the maps and the mapping on a scale of layers have."""
    keys = [
        Key("attention, 0 to 1", draw_ramp, sample=30),
        Key("the mapping's cell", _cell_sample, sample=8),
    ]
    if any(scene.opening for scene in scenes):
        keys.append(Key("attends only in the counterfactual", _opening_sample, sample=8))
    return keys + legend_keys(scenes[-1], layout)


def _cell_sample(sheet: Sheet, _: float) -> None:
    sheet.box(Area(1, -3, 6, 6), RED, BLUE, line=1.1, rounding=0.1)


def _opening_sample(sheet: Sheet, _: float) -> None:
    sheet.box(Area(1, -3, 6, 6), RED, PAPER, line=1.1, rounding=0.1)
    corners = [(1, -3), (7, -3), (7, 3), (1, 3)]
    draw_stripes(sheet.axes, [sheet.at(*corner) for corner in corners])


# Maps with their labels


@dataclass(frozen=True, slots=True)
class Labels:
    """What stands along the axes of maps, by position, and the space that it takes."""

    keys: dict[int, str]  # below the last map of each column
    queries: dict[int, str]  # left of the first map of each row
    left: float  # the width of the queries
    below: float  # the height of the keys
    least: float = 0.0  # the least side of a map at which every label has space
    upright: bool = False  # the keys are words, turned by 90°


def _word_labels(scene: Scene) -> Labels:
    """A word at every cell; if there are too many words for any map, the two positions."""
    if _CELL * len(scene.words) > _LARGEST:
        return _position_labels(scene)
    words = {position: spell(word, longest=9) for position, word in enumerate(scene.words)}
    longest = max(width_of(word, HEADING_SMALL) for word in words.values())
    return Labels(
        words, words, longest + 4, longest + 5, least=_CELL * len(words), upright=True
    )


def _position_labels(scene: Scene) -> Labels:
    """The two positions of the mapping."""
    key, query = scene.cell or (0, 0)
    return Labels(
        {key: str(key)}, {query: str(query)}, left=4 + width_of(str(query), NAME), below=8.0
    )


@dataclass(frozen=True, slots=True)
class MapGrid:
    """Maps of one size in rows, each with its name above it, and the labels along them."""

    labels: Labels
    rows: int
    across: int  # maps in a row
    side: float  # of a map

    @property
    def width(self) -> float:
        return self.labels.left + self.across * (self.side + _GAP) - _GAP

    @property
    def height(self) -> float:
        return self.rows * (self.side + _NAME) + self.labels.below if self.rows else 0.0

    def tiles(self, x: float, y: float) -> Tiles:
        """The maps of a grid whose top left corner is at (x, y)."""
        return Tiles(x + self.labels.left, y + 9, max(self.side, 1.0), self.across, _GAP, _NAME)


def _side_in_width(labels: Labels, across: int, width: float) -> float:
    """The side of maps that fill this width."""
    return (width - labels.left - _GAP * (across - 1)) / across


def _draw_maps(
    sheet: Sheet, scene: Scene, tiles: Tiles, labels: Labels, heads: Sequence[str]
) -> None:
    """The maps with their names, and the labels along the first of each row and the last of each column."""
    maps = [scene.circuit.pattern(head) for head in heads]
    opening = scene.opening
    hatched = [number for number, head in enumerate(heads) if head in opening]
    draw_tiles(sheet, tiles, maps, cell=scene.cell, hatched=hatched)
    step = tiles.side / len(scene.words)
    for number, head in enumerate(heads):
        x, y = tiles.corner(number)
        foot = y + tiles.side
        sheet.write(x + tiles.side / 2, y - 2.8, head, NAME, ha="center")
        if number + tiles.across >= len(heads):
            _write_keys(sheet, scene, labels, x, foot, step)
        if number % tiles.across == 0:
            _write_queries(sheet, scene, labels, x, foot, step)


def _write_keys(
    sheet: Sheet, scene: Scene, labels: Labels, left: float, foot: float, step: float
) -> None:
    """The labels below a map whose lower left corner is (left, foot); `step` is the side of a cell."""
    turned = 90 if labels.upright else 0
    for position, text in labels.keys.items():
        font = _KEY_LABEL if scene.is_key(position) else NOTE
        middle = left + (position + 0.5) * step
        sheet.write(middle, foot + 2.5, text, font, ha="center", va="top", rotation=turned)


def _write_queries(
    sheet: Sheet, scene: Scene, labels: Labels, left: float, foot: float, step: float
) -> None:
    """The labels left of a map whose lower left corner is (left, foot)."""
    for position, text in labels.queries.items():
        font = HEADING_SMALL if scene.is_query(position) else NOTE
        middle = foot - (position + 0.5) * step
        sheet.write(left - 2.5, middle, text, font, ha="right", va="center")


def _draw_frame(sheet: Sheet, scene: Scene, title: str, area: Area) -> None:
    """The frame of a half, its title, and at the right how many heads carry how much, if that fits."""
    sheet.box(area, LINE, PAPER, depth=0)
    name = spell(title, longest=28)
    sheet.title(area.left + _PAD, area.right - _PAD, area.top + 15, name, scene.carried)


# The left half


@dataclass(frozen=True, slots=True)
class LeftHalf:
    """The maps of the left half, and how far it is from the wanted width, filled to the last map."""

    width: float
    grid: MapGrid
    waste: float


def _plan_halves(scene: Scene, beside: Scene) -> tuple[LeftHalf, RightHalf]:
    """Both halves, with the width, the labels and the maps in a row that waste the least space on the left."""
    plans = []  # never empty: one map in a row with positions is never refused
    for share in _LEFT_SHARES:
        width = _FULL * share
        right = _plan_right(beside, _FULL - width - 7)
        for labels in (_word_labels(scene), _position_labels(scene)):
            for across in range(1, 10):
                left = _plan_left(scene, right, labels, across, width)
                if left is not None:
                    plans.append((left, right))
    return min(plans, key=lambda plan: plan[0].waste)


def _plan_left(
    scene: Scene, beside: RightHalf, labels: Labels, across: int, width: float
) -> LeftHalf | None:
    """The left half of this width, as high as the right one; None if its maps would be too small."""
    heads = scene.mapped(_MOST_LEFT)
    count = max(1, len(heads))
    rows = -(-count // across)
    inside = width - 2 * _PAD - 1
    space = beside.height - _TITLE - 14
    no_larger = max(beside.grid.side, _SMALLEST_ROW)  # than the maps beside them
    side = min(
        (space - labels.below) / rows - _NAME,
        _side_in_width(labels, across, inside),
        no_larger,
    )
    longest_name = max((width_of(head, NAME) for head in heads), default=20.0)
    if side < max(labels.least, longest_name * 0.9) and (labels.upright or across > 1):
        return None
    grid = MapGrid(labels, rows, across, side)
    # Empty space weighs most, then maps smaller than those beside them, then gaps in the last row.
    waste = abs(width / _FULL - _LEFT_SHARE)
    waste += abs(space - grid.height) / space
    waste += (inside - grid.width) / inside
    waste += 0.3 * (rows * across - count) / count
    waste += 0.6 * (1 - side / no_larger)
    if beside.grid.rows > 1:
        waste += 0.3
    return LeftHalf(width, grid, waste)


def _draw_left(sheet: Sheet, scene: Scene, title: str, half: LeftHalf, height: float) -> None:
    area = Area(0.5, 0.5, half.width - 1, height)
    _draw_frame(sheet, scene, title, area)
    x = (half.width - half.grid.width) / 2
    y = _TITLE + 2
    _draw_maps(sheet, scene, half.grid.tiles(x, y), half.grid.labels, scene.mapped(_MOST_LEFT))
    sheet.write(area.left + _PAD, area.bottom - 5, scene.more(_MOST_LEFT), NOTE)


# The right half


@dataclass(frozen=True, slots=True)
class RightHalf:
    """Everything in the right half, from top to bottom, for one width."""

    width: float
    titled: bool  # by its model; a figure of one model has no title there
    verdict: list[str]  # what comes first where the question is not clear
    caption: list[str]  # in red
    grid: MapGrid
    more: str  # how many carriers have no map here
    layout: Placement  # of the mapping on a scale of layers

    @property
    def top(self) -> float:
        """The height of what stands above the verdict."""
        return _TITLE if self.titled else _NO_TITLE

    @property
    def height(self) -> float:
        lines = len(self.verdict) + len(self.caption)
        if self.more:
            lines += 1
        return self.top + 5 + _STEP * lines + self.grid.height + 6 + self.layout.height + _PAD


def _plan_right(scene: Scene, width: float, *, titled: bool = True) -> RightHalf:
    inside = width - 2 * _PAD
    return RightHalf(
        width,
        titled=titled,
        verdict=wrapped(scene.verdict, HEADING_SMALL, inside - 2 * _CROSS)[:3],
        caption=wrapped(scene.caption, _RED_BOLD, inside - 2 * _CROSS),
        grid=_grid_above(scene, inside),
        more=scene.more(_MOST_RIGHT),
        layout=lay_out(scene, inside, only_front=True, most=24),
    )


def _grid_above(scene: Scene, width: float) -> MapGrid:
    """The maps above the diagram in one row, with words if they fit; in two rows if they would be too small."""
    heads = scene.mapped(_MOST_RIGHT)
    one_row = max(1, len(heads))
    two_rows = -(-one_row // 2)
    words = _word_labels(scene)
    positions = _position_labels(scene)
    longest_name = max((width_of(head, NAME) for head in heads), default=0.0)
    for labels, across in (
        (words, one_row),
        (positions, one_row),
        (words, two_rows),
        (positions, two_rows),
    ):
        most = min(max(64.0, labels.least, _LEAST_CELL * len(scene.words)), _LARGEST)
        side = min(most, _side_in_width(labels, across, width))
        if side >= max(labels.least, longest_name - _GAP / 2, _SMALLEST_ROW):
            break
    return MapGrid(labels, -(-len(heads) // across), across, side)


def _draw_right(sheet: Sheet, scene: Scene, title: str, half: RightHalf, left: float) -> None:
    """Title, verdict, caption, maps with their axis cross, and the mapping on a scale of layers."""
    area = Area(left, 0.5, half.width, half.height)
    if half.titled:
        _draw_frame(sheet, scene, title, area)
    else:
        sheet.box(area, LINE, PAPER, depth=0)
    y = area.top + half.top + 7
    for line in half.verdict:
        sheet.write(area.middle, y, line, HEADING_SMALL, ha="center")
        y += _STEP
    for line in half.caption:
        sheet.write(area.middle, y, line, _RED_BOLD, ha="center")
        y += _STEP
    y += 5 - _STEP
    heads = scene.mapped(_MOST_RIGHT)
    grid_left = max(area.middle - half.grid.width / 2, area.left + _PAD)
    if heads:
        draw_cross(sheet, area.left + _PAD + 2, y - 3, arm=6.0)  # above the names of heads
    _draw_maps(sheet, scene, half.grid.tiles(grid_left, y), half.grid.labels, heads)
    y += half.grid.height + 8
    if half.more:
        sheet.write(area.middle, y, half.more, NOTE, ha="center")
    label = scene.front["label"] if scene.front is not None and scene.carriers else ""
    draw_layout(
        sheet.moved(area.left + _PAD, area.bottom - _PAD - half.layout.height),
        scene,
        half.layout,
        label=label,
    )
