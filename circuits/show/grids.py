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

from circuits.errors import EdgeError, PromptError
from circuits.heads import Head
from circuits.show import canvas
from circuits.show.canvas import LINE, RED, SMALL, Area, Font, Tiles, draw_tiles, looks, width_of, write
from circuits.show.curves import count_words
from circuits.show.scene import spell

if TYPE_CHECKING:
    from circuits.tasks.compare import TaskComparison
    from circuits.tasks.ranking import Ranking
    from circuits.tracing.records import Circuit

_PAD: Final = 8.0
_TITLE: Final = 22.0  # the height of a panel's title
_LEGEND: Final = 26.0  # the height of the axis cross and the scale below all panels


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled group of heads in order, each with its attention map (query, key)."""

    title: str
    heads: tuple[Head, ...]
    maps: tuple[np.ndarray, ...]
    note: str = ""  # at the panel's top right

    def __post_init__(self) -> None:
        heads, maps = len(self.heads), len(self.maps)
        if heads != maps:
            raise EdgeError(f"panel {self.title!r} has {heads} heads but {maps} maps; give one map per head")


def to_panel(
    circuit: Circuit, heads: Sequence[str | Head] | None = None, *, title: str | None = None, note: str = ""
) -> Panel:
    """A panel of a circuit's heads: those given, else the carriers of the mapping in front."""
    carriers = circuit.front.carriers(circuit.share) if circuit.front else ()
    chosen = tuple(Head.parse(head) for head in (carriers if heads is None else heads))
    maps = tuple(circuit.pattern(head) for head in chosen)
    return Panel(circuit.source.name if title is None else title, chosen, maps, note)


def ranking_panel(
    ranking: Ranking, heads: Sequence[Head], maps: Sequence[np.ndarray], *, title: str | None = None
) -> Panel:
    """A panel of heads with their maps (query, key); its note says the task and how many it takes."""
    note = f"{spell(ranking.task)}: {count_words(ranking)}"
    return Panel(ranking.model if title is None else title, tuple(heads), tuple(maps), note)


def comparison_grid(
    comparison: TaskComparison,
    *,
    titles: Sequence[str] | None = None,
    per_row: int = 9,
    figure: Figure | None = None,
) -> Figure:
    """Both models' heads for 90%, the first above the second; `titles` are by default the models' names."""
    names = comparison.models if titles is None else tuple(titles)
    each = zip(comparison.rankings[0], comparison.needed, comparison.maps, names, strict=True)
    panels = [ranking_panel(ranking, needed.heads, maps, title=name) for ranking, needed, maps, name in each]
    return head_grid(panels, per_row=per_row, figure=figure)


def head_grid(panels: Panel | Sequence[Panel], *, per_row: int = 9, figure: Figure | None = None) -> Figure:
    """Figure A: the maps of each panel's heads in order, one image per panel however many heads there are."""
    panels = (panels,) if isinstance(panels, Panel) else tuple(panels)
    if not panels or per_row < 1:
        raise PromptError("a head grid needs at least one panel and one tile to a row")
    width = canvas.WIDTH * 72
    side = (width - 2 * _PAD - 5.0 * (per_row - 1)) / per_row
    rows = [-(-len(panel.heads) // per_row) for panel in panels]
    heights = [_TITLE + max(count * (side + 5.0), 20.0) + 2 for count in rows]
    sheet = canvas.new_sheet(width, sum(heights) + (_PAD + 1) * len(heights) - _PAD + _LEGEND, figure)
    top = 1.0
    with looks():
        for panel, height in zip(panels, heights, strict=True):
            tiles = Tiles(_PAD, top + _TITLE, side, per_row)
            _draw_panel(sheet, panel, tiles, Area(0.5, top, width - 1, height))
            top += height + 1 + _PAD
        canvas.draw_cross(sheet, _PAD + 4, top + 12, arm=11.0)
        canvas.draw_scale(sheet, width - _PAD, top + 6)
    return sheet.get_figure(root=True)  # type: ignore[return-value]


def _draw_panel(sheet: Axes, panel: Panel, tiles: Tiles, area: Area) -> None:
    canvas.draw_box(sheet, area, LINE, canvas.PAPER, depth=0)
    write(sheet, _PAD, area.top + 14.5, spell(panel.title), canvas.TITLE)
    write(sheet, area.right - _PAD, area.top + 14.5, panel.note, canvas.NOTE, ha="right")
    draw_tiles(sheet, tiles, panel.maps)
    longest = max((width_of(str(head), canvas.NAME) for head in panel.heads), default=0.0)
    font = Font(SMALL if longest < tiles.side * 0.8 else SMALL * tiles.side * 0.8 / longest)
    for number, head in enumerate(panel.heads):
        x, y = tiles.corner(number)
        write(sheet, x + tiles.side - 1.5, y + tiles.side - 2.5, str(head), font, ha="right").set_zorder(5)


def effect_map(
    effects: Circuit | np.ndarray,
    *,
    share: float | None = None,
    carriers: Sequence[str | Head] = (),
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """What every head does, (layer, head), on a scale centred at 0; of a circuit, on the mapping in front.

    Framed are the carriers: those given, else of a circuit the carriers of `share`, by default the circuit's.
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
            size = (max(effects.shape[1] * side + 1.2, 2.2), effects.shape[0] * side + 1.0)
            ax = Figure(figsize=size, dpi=300, layout="constrained").add_subplot()
        _draw_effects(ax, effects, framed)
        ax.set_title(title)
    return ax


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
