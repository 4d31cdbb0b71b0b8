"""Many heads at a glance: the grid of attention maps in order (figure A), and the map of effects.

1. `head_grid` draws titled panels of maps, by default nine in a row, with the query up and the key to the
   right. The name of a large map stands in its lower right corner, where no weight can be.
2. `comparison_grid` draws the heads that a task takes in two models, in ranked order, a panel for each model.
3. `effect_map` draws the effect of every head, layer by head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from circuits.components import Head
from circuits.errors import EdgeError, PromptError
from circuits.show.canvas import (
    EFFECT,
    INK,
    LINE,
    MUTED,
    NOTE,
    PAPER,
    RED,
    SMALL,
    WASH,
    WIDTH,
    Area,
    Font,
    Sheet,
    Tiles,
    colormap,
    draw_cross,
    draw_scale,
    draw_tiles,
    figure_around,
    looks,
    new_axes,
    new_sheet,
    width_of,
)
from circuits.show.curves import count_words
from circuits.show.words import spell, verdict_in_short

if TYPE_CHECKING:
    from circuits.tasks.compare import TaskComparison
    from circuits.tasks.patterns import PanelFigures
    from circuits.tasks.ranking import Ranking
    from circuits.tracing.records import Circuit

# Lengths are in points.
_SHEET: Final = WIDTH * 72  # the width of the sheet
_PAD: Final = 8.0
_TITLE: Final = 22.0  # the height of a panel's title
_LINE: Final = 8.5  # from one line of facts to the next
_LARGE: Final = 34.0  # the side of a map that has space for a name
SMALLEST_SCALE: Final = 0.05  # on a smaller scale, what does nothing would look strong
_LEGEND: Final = 26.0  # the height of the axis cross and the scale below all panels
_DOT: Final = " · "


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled group of heads in order, each with its attention map (query, key).

    >>> panel = show.to_panel(found, ["L5H1", "L4H0"], title="Two heads")
    >>> len(panel.maps), panel.maps[0].shape
    (2, (9, 9))
    """

    title: str
    heads: tuple[Head, ...]
    maps: tuple[np.ndarray, ...]
    note: str = ""  # at the panel's top right
    effects: tuple[float, ...] = ()  # of each head alone, if they are known
    needed: int | None = None  # how many of the heads, in order, are enough
    facts: str = ""  # what the maps of the panel show, in words

    def __post_init__(self) -> None:
        heads, maps = len(self.heads), len(self.maps)
        if heads != maps:
            raise EdgeError(
                f"panel {self.title!r} has {heads} heads but {maps} maps; give one map per head"
            )


def to_panel(
    circuit: Circuit,
    heads: Sequence[str | Head] | None = None,
    *,
    title: str | None = None,
    note: str = "",
) -> Panel:
    """A panel of a circuit's heads: those given, else the carriers of the mapping in front.

    >>> print(*show.to_panel(found).heads)
    L5H1 L4H0 L5H0 L5H3 L4H5 L3H11
    """
    if heads is None:
        carriers = circuit.front.carriers(circuit.share) if circuit.front else ()
        heads = [head for head in carriers if circuit.has_map(head)]
    chosen = tuple(Head.parse(head) for head in heads)
    # The effect of a head on the mapping on which it does most.
    strongest = dict.fromkeys(chosen, 0.0)
    for mapping in circuit.mappings:
        for each in mapping.heads:
            if each.head in strongest:
                strongest[each.head] = max(strongest[each.head], each.effect, key=abs)
    return Panel(
        title=circuit.source.name if title is None else title,
        heads=chosen,
        maps=tuple(circuit.pattern(head) for head in chosen),
        note=note,
        effects=tuple(strongest[head] for head in chosen),
    )


def ranking_panel(
    ranking: Ranking,
    heads: Sequence[Head],
    maps: Sequence[np.ndarray],
    *,
    title: str | None = None,
    figures: PanelFigures | None = None,
) -> Panel:
    """A panel of heads with their maps (query, key); its note says the task and how many heads it takes."""
    effect_of = {each.unit: each.effect for each in ranking.ranked}
    all_ranked = all(head in effect_of for head in heads)
    return Panel(
        title=ranking.model if title is None else title,
        heads=tuple(heads),
        maps=tuple(maps),
        note=f"{spell(ranking.task)}: {count_words(ranking)}{verdict_in_short(ranking)}",
        effects=tuple(effect_of[head] for head in heads) if all_ranked else (),
        needed=ranking.count()[0] if all_ranked else None,
        facts="" if figures is None else facts_of(figures),
    )


def facts_of(figures: PanelFigures) -> str:
    """What the maps of a panel show, in one line."""
    opened = figures.open_edges / (figures.edges or 1)
    facts = (
        f"dominant diagonals {figures.dominant_diagonal:.0%}",
        f"mean peak {figures.mean_peak:.2f}",
        f"mass on first token {figures.first_token:.0%}",
        f"on diagonal {figures.diagonal:.0%}",
        f"off-diagonal > 0.5 in {figures.peaked:.1f} heads",
        f"open edges {opened:.1%}",
    )
    return _DOT.join(facts)


# Figure A


def comparison_grid(
    comparison: TaskComparison,
    *,
    titles: Sequence[str] | None = None,
    per_row: int | None = None,
    all_heads: bool = False,
    figure: Figure | None = None,
) -> Figure:
    """Both models' heads for 90%, or all of them, the first above the second; `titles` are by default the
    models' names.

        >>> sparse = circuits.load("mini-sparse")
        >>> both = circuits.compare(model, sparse, task="greater_than", count=4, units=("heads",))
        >>> figure = show.comparison_grid(both)
    """
    names = comparison.models if titles is None else titles
    panels = []
    for number, ranking in enumerate(comparison.rankings[0]):
        shown = comparison.panels[number] if all_heads else comparison.needed[number]
        heads = comparison.order(number)
        if not all_heads:
            heads = heads[: len(shown.heads)]
        maps = comparison.maps[number][: len(heads)]
        panels.append(ranking_panel(ranking, heads, maps, title=names[number], figures=shown))
    return head_grid(panels, per_row=per_row, figure=figure)


def head_grid(
    panels: Panel | Sequence[Panel], *, per_row: int | None = None, figure: Figure | None = None
) -> Figure:
    """Figure A: the maps of each panel's heads in order, one image per panel however many heads there are.

    Nine stand in a row, or 17 where a panel has more than seven rows of them.

        >>> figure = show.head_grid(show.to_panel(found))
    """
    panels = [panels] if isinstance(panels, Panel) else panels
    if per_row is None:
        most = max((len(panel.heads) for panel in panels), default=0)
        per_row = 9 if most <= 63 else 17
    if not panels or per_row < 1:
        raise PromptError("a head grid needs at least one panel and one tile to a row")
    has_effects = any(panel.effects for panel in panels)
    gap = 5.0 if per_row <= 9 else 4.0
    side = (_SHEET - 2 * _PAD - gap * (per_row - 1)) / per_row
    below = gap + 7.0 if has_effects or side < _LARGE else gap
    tiles = Tiles(_PAD, 0.0, side, per_row, gap, below)
    heights = [_panel_height(panel, tiles) for panel in panels]
    sheet = new_sheet(_SHEET, sum(heights) + (_PAD + 1) * len(heights) - _PAD + _LEGEND, figure)
    y = 1.0
    with looks():
        for panel, height in zip(panels, heights, strict=True):
            _draw_panel(sheet.moved(0, y), panel, tiles, height)
            y += height + 1 + _PAD
        draw_cross(sheet, _PAD + 4, y + 12, arm=11.0)
        if has_effects:
            note = "below each map: its rank and" if side >= _LARGE else "in each map:"
            note += " the effect of the head alone"
            if any(panel.needed for panel in panels):
                note += "; framed: the last that 90% takes"
            sheet.write(_PAD + 34, y + 9, note, NOTE)
        draw_scale(sheet, _SHEET - _PAD, y + 6)
    return figure_around(sheet.axes)


def _fact_lines(facts: str) -> list[str]:
    """Facts in lines that fit the sheet, each fact whole."""
    width = 0.97 * (_SHEET - 2 * _PAD)  # letters on a screen are wider
    lines: list[str] = []
    for fact in facts.split(_DOT) if facts else ():
        if lines and width_of(f"{lines[-1]}{_DOT}{fact}", NOTE) <= width:
            lines[-1] += _DOT + fact
        else:
            lines.append(fact)
    return lines


def _panel_height(panel: Panel, tiles: Tiles) -> float:
    rows = -(-len(panel.heads) // tiles.across)
    maps = max(rows * (tiles.side + tiles.below), 20.0)
    return _TITLE + _LINE * len(_fact_lines(panel.facts)) + maps + 2


def _draw_panel(sheet: Sheet, panel: Panel, tiles: Tiles, height: float) -> None:
    """Frame, title, note and facts of a panel, then its maps, each with its name, effect and rank."""
    area = Area(0.5, 0.0, _SHEET - 1, height)
    sheet.box(area, LINE, PAPER, depth=0)
    sheet.title(_PAD, area.right - _PAD, 14.5, spell(panel.title), panel.note)
    top = _TITLE
    for line in _fact_lines(panel.facts):
        sheet.write(_PAD, top + 2, line, NOTE)
        top += _LINE
    sheet = sheet.moved(0, top)
    draw_tiles(sheet, tiles, panel.maps)
    for number in range(len(panel.heads)):
        _draw_head(sheet.moved(*tiles.corner(number)), panel, number, tiles.side)


def _draw_head(sheet: Sheet, panel: Panel, number: int, side: float) -> None:
    """A head's name and effect, one in the corner of its map and the other below; a frame if it is the last
    that is needed."""
    large = side >= _LARGE  # then the name is in the map, else the effect
    is_last = number + 1 == panel.needed
    inside = (side - 1.5, side - 2.5)
    below = (side, side + 6.5)
    needed = panel.needed is None or number < panel.needed
    font = Font(SMALL, INK if needed else MUTED)
    sheet.write(
        *(inside if large else below), str(panel.heads[number]), font, ha="right", zorder=5
    )
    if is_last:
        sheet.frame(Area(0, 0, side, side), RED, line=1.1, depth=4.6)
    if panel.effects:
        font = Font(SMALL, RED, bold=True) if is_last else NOTE
        effect = _short_number(panel.effects[number])
        sheet.write(*(below if large else inside), effect, font, ha="right", zorder=5)
        if large:
            rank = f"n90 = {number + 1}" if is_last else f"{number + 1}"
            sheet.write(0, side + 6.5, rank, font)


def _short_number(value: float) -> str:
    """`.32`, `-.05`, `1.02`: an effect in as few letters as say it."""
    text = f"{value:z.2f}"
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


# The map of effects


def effect_map(
    effects: Circuit | np.ndarray,
    *,
    share: float | None = None,
    carriers: Sequence[str | Head] = (),
    title: str = "",
    ax: Axes | None = None,
) -> Figure:
    """What every head does, (layer, head), on a scale centred at 0; of a circuit, on the mapping in front.

    Framed are the carriers: those given, else of a circuit the carriers of `share`, by default the circuit's.

        >>> axes = show.effect_map(found).axes[0]
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('head', 'layer')
    """
    framed = [Head.parse(head) for head in carriers]
    if isinstance(effects, np.ndarray):
        values = effects
    else:
        values = _effects_of(effects)
        front = effects.front
        if not title:
            title = spell(effects.source.name)
            title += f"\nkey {front.key} → query {front.query}" if front else ""
        if not framed and front:
            framed = list(front.carriers(effects.share if share is None else share))
    if values.ndim != 2:
        raise PromptError(
            f"a map of effects is layer by head, so it has 2 axes, not {values.ndim}"
        )
    with looks():
        if ax is None:
            layers, heads = values.shape
            side = min(0.2, 5.0 / max(layers, heads))  # inches, of a cell
            ax = new_axes(max(heads * side + 1.2, 2.2), layers * side + 1.0)
        _draw_effects(ax, values, framed)
        ax.set_title(title)
    return figure_around(ax)


def _effects_of(circuit: Circuit) -> np.ndarray:
    """The effects (layer, head) of all heads on the mapping in front; NaN where none was measured."""
    effects = np.full((circuit.source.layers, circuit.source.heads), np.nan)
    if circuit.front is not None:
        for each in circuit.front.heads:
            effects[each.head.layer, each.head.index] = each.effect
    return effects


def _draw_effects(ax: Axes, values: np.ndarray, framed: Sequence[Head]) -> None:
    layers, heads = values.shape
    strongest = float(np.nan_to_num(np.abs(values)).max(initial=SMALLEST_SCALE))
    scale = colormap(EFFECT).with_extremes(bad=WASH)
    image = ax.imshow(values, cmap=scale, vmin=-strongest, vmax=strongest, interpolation="none")
    frame: dict[str, Any] = {"edgecolor": RED, "linewidth": 1.2, "zorder": 3, "clip_on": False}
    for head in framed:
        ax.add_patch(Rectangle((head.index - 0.5, head.layer - 0.5), 1, 1, fill=False, **frame))
    ax.set(xlabel="head", xticks=range(0, heads, 1 if heads <= 16 else 4))
    ax.set(ylabel="layer", yticks=range(0, layers, 1 if layers <= 16 else 5))
    ax.set_xticks(np.arange(0.5, heads - 1), minor=True)
    ax.set_yticks(np.arange(0.5, layers - 1), minor=True)
    ax.grid(which="minor", color=LINE, linewidth=0.25)
    ax.tick_params(which="both", length=0, pad=2)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03, aspect=25)
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    bar.ax.tick_params(length=0, labelsize=SMALL)
    bar.set_label("effect (share of the gap)", fontsize=SMALL, labelpad=4)
