"""Many heads at a glance: the grid of attention maps in order (figure A), and the map of effects.

1. `head_grid` draws titled panels of maps, nine to a row, query up and key to the right, on one scale; a name
   stands in the lower right corner of its tile, where no weight can be.
2. `comparison_grid` draws the heads that a task takes in two models, in ranked order, a panel for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from circuits.components import Head
from circuits.errors import EdgeError, PromptError
from circuits.show import canvas
from circuits.show.canvas import LINE, RED, SMALL, Area, Font, Tiles, draw_tiles, looks, width_of, write
from circuits.show.curves import count_words
from circuits.show.words import spell

if TYPE_CHECKING:
    from circuits.tasks.compare import TaskComparison
    from circuits.tasks.patterns import PanelFigures
    from circuits.tasks.ranking import Ranking
    from circuits.tracing.records import Circuit

_PAD: Final = 8.0
_TITLE: Final = 22.0  # the height of a panel's title
_DOT: Final = " · "
_LINE: Final = 8.5  # from one line of facts to the next
_LARGE: Final = 34.0  # the side of a map that has space for a name
_LEGEND: Final = 26.0  # the height of the axis cross and the scale below all panels


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
    effects: tuple[float, ...] = ()  # what each head does, if that is known
    needed: int | None = None  # how many of them, in order, are enough
    facts: str = ""  # what the maps of the panel show, in words

    def __post_init__(self) -> None:
        heads, maps = len(self.heads), len(self.maps)
        if heads != maps:
            raise EdgeError(f"panel {self.title!r} has {heads} heads but {maps} maps; give one map per head")


def to_panel(
    circuit: Circuit, heads: Sequence[str | Head] | None = None, *, title: str | None = None, note: str = ""
) -> Panel:
    """A panel of a circuit's heads: those given, else the carriers of the mapping in front.

    >>> print(*show.to_panel(found).heads)
    L5H1 L4H0 L5H0 L5H3 L4H5 L3H11
    """
    carriers = filter(circuit.has_map, circuit.front.carriers(circuit.share) if circuit.front else ())
    chosen = tuple(Head.parse(head) for head in (carriers if heads is None else heads))
    effects = dict.fromkeys(chosen, 0.0)
    for each in (effect for mapping in circuit.mappings for effect in mapping.heads):
        if each.head in effects:
            effects[each.head] = max(effects[each.head], each.effect, key=abs)
    maps = tuple(circuit.pattern(head) for head in chosen)
    name = circuit.source.name if title is None else title
    return Panel(name, chosen, maps, note, tuple(effects[head] for head in chosen))


def ranking_panel(
    ranking: Ranking,
    heads: Sequence[Head],
    maps: Sequence[np.ndarray],
    *,
    title: str | None = None,
    figures: PanelFigures | None = None,
) -> Panel:
    """A panel of heads with their maps (query, key); its note says the task and how many it takes."""
    note, name = f"{spell(ranking.task)}: {count_words(ranking)}", ranking.model if title is None else title
    effect_of = {each.unit: each.effect for each in ranking.ranked}
    facts = "" if figures is None else facts_of(figures)
    effects, needed = (), None
    if all(head in effect_of for head in heads):
        effects, needed = tuple(effect_of[head] for head in heads), ranking.count()[0]
    return Panel(name, tuple(heads), tuple(maps), note, effects, needed, facts)


def facts_of(figures: PanelFigures) -> str:
    """What the maps of a panel show, in one line."""
    facts = {
        "dominant diagonals": f"{figures.dominant_diagonal:.0%}",
        "mean peak": f"{figures.mean_peak:.2f}",
        "mass on first token": f"{figures.first_token:.0%}",
        "on diagonal": f"{figures.diagonal:.0%}",
        "off-diagonal > 0.5": f"in {figures.peaked:.1f} heads",
        "open edges": f"{figures.open_edges / (figures.edges or 1):.1%}",
    }
    return _DOT.join(f"{name} {value}" for name, value in facts.items())


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
    names, panels = comparison.models if titles is None else tuple(titles), []
    figures = comparison.panels if all_heads else comparison.needed
    for number, ranking in enumerate(comparison.rankings[0]):
        order = comparison.order(number)[: None if all_heads else len(comparison.needed[number].heads)]
        maps = comparison.maps[number][: len(order)]
        panels.append(ranking_panel(ranking, order, maps, title=names[number], figures=figures[number]))
    return head_grid(panels, per_row=per_row, figure=figure)


def head_grid(
    panels: Panel | Sequence[Panel], *, per_row: int | None = None, figure: Figure | None = None
) -> Figure:
    """Figure A: the maps of each panel's heads in order, one image per panel however many heads there are.

    Nine stand in a row, or 17 where a panel has more than seven rows of them.

        >>> figure = show.head_grid(show.to_panel(found))
    """
    panels = (panels,) if isinstance(panels, Panel) else tuple(panels)
    if per_row is None:
        per_row = 9 if max((len(panel.heads) for panel in panels), default=0) <= 63 else 17
    if not panels or per_row < 1:
        raise PromptError("a head grid needs at least one panel and one tile to a row")
    width, gap = canvas.WIDTH * 72, 5.0 if per_row <= 9 else 4.0
    side = (width - 2 * _PAD - gap * (per_row - 1)) / per_row
    below = gap + (7.0 if side < _LARGE or any(panel.effects for panel in panels) else 0.0)
    facts = [_lines(panel.facts, width - 2 * _PAD) for panel in panels]
    tops = [_TITLE + _LINE * len(lines) for lines in facts]
    rows = [-(-len(panel.heads) // per_row) for panel in panels]
    heights = [top + max(count * (side + below), 20.0) + 2 for top, count in zip(tops, rows, strict=True)]
    sheet = canvas.new_sheet(width, sum(heights) + (_PAD + 1) * len(heights) - _PAD + _LEGEND, figure)
    y = 1.0
    with looks():
        for panel, height, top, lines in zip(panels, heights, tops, facts, strict=True):
            tiles = Tiles(_PAD, y + top, side, per_row, gap, below)
            _draw_panel(sheet, panel, tiles, Area(0.5, y, width - 1, height), lines)
            y += height + 1 + _PAD
        canvas.draw_cross(sheet, _PAD + 4, y + 12, arm=11.0)
        if any(panel.effects for panel in panels):
            where = "below each map: its rank and" if side >= _LARGE else "in each map:"
            framed = "; framed: the last that 90% takes" if any(panel.needed for panel in panels) else ""
            note = f"{where} the effect of the head alone{framed}"
            write(sheet, _PAD + 34, y + 9, note, canvas.NOTE)
        canvas.draw_scale(sheet, width - _PAD, y + 6)
    return canvas.figure_around(sheet)


def _lines(facts: str, width: float) -> list[str]:
    """Facts in lines of at most this width, each of them whole."""
    lines: list[str] = []
    for fact in filter(None, facts.split(_DOT)):
        longer = f"{lines[-1]}{_DOT}{fact}" if lines else fact
        if lines and width_of(longer, canvas.NOTE) <= 0.97 * width:  # letters on a screen are wider
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines


def _draw_panel(sheet: Axes, panel: Panel, tiles: Tiles, area: Area, facts: Sequence[str]) -> None:
    canvas.draw_box(sheet, area, LINE, canvas.PAPER, depth=0)
    write(sheet, _PAD, area.top + 14.5, spell(panel.title), canvas.TITLE)
    write(sheet, area.right - _PAD, area.top + 14.5, panel.note, canvas.NOTE, ha="right")
    for number, line in enumerate(facts):
        write(sheet, _PAD, area.top + _TITLE + 2 + _LINE * number, line, canvas.NOTE)
    draw_tiles(sheet, tiles, panel.maps)
    large = tiles.side >= _LARGE  # then the name stands inside the map and the effect below, else vice versa
    for number, head in enumerate(panel.heads):
        (x, y), last = tiles.corner(number), number + 1 == panel.needed
        enough, foot = panel.needed is None or number < panel.needed, y + tiles.side
        font = Font(SMALL, canvas.INK if enough else canvas.MUTED)
        inside, below = (x + tiles.side - 1.5, foot - 2.5), (x + tiles.side, foot + 6.5)
        write(sheet, *(inside if large else below), str(head), font, ha="right", zorder=5)
        if last:
            frame = {"facecolor": "none", "edgecolor": RED, "linewidth": 1.1, "zorder": 4.6}
            sheet.add_patch(Rectangle((x, y), tiles.side, tiles.side, **frame))
        if panel.effects:
            font, effect = Font(SMALL, RED if last else canvas.MUTED, last), _effect(panel.effects[number])
            write(sheet, *(below if large else inside), effect, font, ha="right", zorder=5)
            if large:
                write(sheet, x, below[1], f"n90 = {number + 1}" if last else f"{number + 1}", font)


def _effect(value: float) -> str:
    """`.32`, `-.05`, `1.02`: an effect in as few letters as say it."""
    text = f"{value:z.2f}"
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


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
    framed = tuple(Head.parse(head) for head in carriers)
    if not isinstance(effects, np.ndarray):
        circuit, front = effects, effects.front
        effects = np.full((circuit.source.layers, circuit.source.heads), np.nan)
        for each in front.heads if front else ():
            effects[each.head.layer, each.head.index] = each.effect
        where = f"\nkey {front.key} → query {front.query}" if front else ""
        title = title or f"{spell(circuit.source.name)}{where}"
        framed = framed or (front.carriers(circuit.share if share is None else share) if front else ())
    if effects.ndim != 2:
        raise PromptError(f"a map of effects is layer by head, so it has 2 axes, not {effects.ndim}")
    with looks():
        if ax is None:
            side = min(0.2, 5.0 / max(effects.shape))
            ax = canvas.new_axes(max(effects.shape[1] * side + 1.2, 2.2), effects.shape[0] * side + 1.0)
        _draw_effects(ax, effects, framed)
        ax.set_title(title)
    return canvas.figure_around(ax)


def _draw_effects(ax: Axes, values: np.ndarray, framed: tuple[Head, ...]) -> None:
    (layers, heads), limit = values.shape, float(np.nan_to_num(np.abs(values)).max(initial=0.0)) or 1.0
    scale = canvas.colormap(canvas.EFFECT).with_extremes(bad=canvas.WASH)
    image = ax.imshow(values, cmap=scale, vmin=-limit, vmax=limit, interpolation="none")
    frame = {"fill": False, "edgecolor": RED, "linewidth": 1.2, "zorder": 3, "clip_on": False}
    for head in framed:
        ax.add_patch(Rectangle((head.index - 0.5, head.layer - 0.5), 1, 1, **frame))
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
