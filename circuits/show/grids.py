"""Many heads at a glance: the grid of attention maps in order, and the map of effects by layer and head.

1. `head_grid` draws titled panels of maps, nine to a row, query down and key across, the name at each tile's top right, on one scale.
2. `effect_map` draws what every head does on a mapping, layer by head, on a scale centred at 0, with the carriers framed in red.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from circuits.errors import EdgeError, PromptError
from circuits.heads import Head
from circuits.show import scene, style
from circuits.show.canvas import Tiles, draw_box, draw_scale, draw_tiles, looks, new_sheet, width_of, write
from circuits.tracing.records import SHARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from circuits.tracing.records import Circuit

_PAD: Final = 8.0
_TITLE_ROOM: Final = 22.0
_LEGEND_ROOM: Final = 16.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled group of heads in order, each with its attention map (query, key)."""

    title: str
    heads: tuple[Head, ...]
    maps: tuple[np.ndarray, ...]
    note: str = ""  # said at the panel's top right

    def __post_init__(self) -> None:
        if len(self.heads) != len(self.maps):
            raise EdgeError(
                f"panel {self.title!r} has {len(self.heads)} heads but {len(self.maps)} maps; give one map per head"
            )


def to_panel(
    circuit: Circuit, heads: Sequence[str | Head] | None = None, *, title: str | None = None, note: str = ""
) -> Panel:
    """A panel of a circuit's heads: those given, else the carriers of its mapping."""
    front = scene.front(circuit)
    chosen = tuple(
        Head.parse(head) for head in (heads if heads is not None else front.carriers() if front else ())
    )
    return Panel(
        circuit.source.name if title is None else title,
        chosen,
        tuple(circuit.pattern(head) for head in chosen),
        note,
    )


def head_grid(panels: Panel | Sequence[Panel], *, per_row: int = 9, figure: Figure | None = None) -> Figure:
    """Figure A: the maps of each panel's heads in order, one image per panel however many heads there are."""
    groups = (panels,) if isinstance(panels, Panel) else tuple(panels)
    if not groups or per_row < 1:
        raise PromptError("a head grid needs at least one panel and one tile to a row")
    width = style.WIDTH * 72
    tiles = [_tiles_of(per_row, width) for _ in groups]
    heights = [
        _TITLE_ROOM + max(place.height(len(group.heads)), 20.0) + 3
        for place, group in zip(tiles, groups, strict=True)
    ]
    sheet = new_sheet(width, sum(heights) + _PAD * (len(groups) - 1) + _LEGEND_ROOM, figure)
    top = 1.0
    with looks():
        for group, place, height in zip(groups, tiles, heights, strict=True):
            _draw_panel(
                sheet, group, Tiles(place.x, top + _TITLE_ROOM, place.side, per_row), top, width, height - 1
            )
            top += height + _PAD
        draw_scale(sheet, width - _PAD, top + 1)
    return sheet.get_figure(root=True)  # type: ignore[return-value]


def _tiles_of(per_row: int, width: float) -> Tiles:
    room = width - 2 * _PAD
    return Tiles(_PAD, 0.0, (room - 5.0 * (per_row - 1)) / per_row, per_row)


def _draw_panel(sheet: Axes, group: Panel, place: Tiles, top: float, width: float, height: float) -> None:
    draw_box(sheet, 0.5, top, width - 1, height, edge=style.LINE, fill=style.PAPER, depth=0)
    write(sheet, _PAD, top + 14.5, scene.spell(group.title), size=style.TITLE, bold=True)
    if group.note:
        write(sheet, width - _PAD, top + 14.5, group.note, size=style.SMALL, colour=style.MUTED, ha="right")
    draw_tiles(sheet, place, group.maps)
    longest = max((width_of(str(head), style.SMALL) for head in group.heads), default=0.0)
    size = style.SMALL if longest < place.side * 0.8 else style.SMALL * place.side * 0.8 / longest
    for number, head in enumerate(group.heads):
        x, y = place.corner(number)
        write(sheet, x + place.side - 1.5, y + 1.8, str(head), size=size, ha="right", va="top").set_zorder(5)


def effect_map(
    effects: Circuit | np.ndarray,
    *,
    share: float = SHARE,
    carriers: Sequence[str | Head] = (),
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What every head does, (layer, head), on a scale centred at 0; of a circuit the mapping in front, with its carriers framed."""
    if isinstance(effects, np.ndarray):
        values, framed, said = effects, tuple(Head.parse(head) for head in carriers), title
    else:
        values, framed, said = _effects_of(effects, share, carriers, title)
    if values.ndim != 2:
        raise PromptError(f"a map of effects is layer by head, so it has 2 axes, not {values.ndim}")
    with looks():
        target = _own_axes(values.shape) if ax is None else ax
        _draw_effects(target, values, framed, said)
    return target


def _effects_of(
    circuit: Circuit, share: float, carriers: Sequence[str | Head], title: str | None
) -> tuple[np.ndarray, tuple[Head, ...], str]:
    values = np.full((circuit.source.layers, circuit.source.heads), np.nan)
    front = scene.front(circuit)
    for known in front.heads if front else ():
        values[known.head.layer, known.head.index] = known.effect
    framed = tuple(Head.parse(head) for head in carriers) or (front.carriers(share) if front else ())
    where = f"\nkey {front.key} → query {front.query}" if front else ""
    return values, framed, f"{scene.spell(circuit.source.name)}{where}" if title is None else title


def _own_axes(shape: tuple[int, ...]) -> Axes:
    from matplotlib.figure import Figure

    side = min(0.2, 5.0 / max(shape))
    return Figure(
        figsize=(max(shape[1] * side + 1.2, 2.2), shape[0] * side + 1.0), dpi=300, layout="constrained"
    ).add_subplot()


def _draw_effects(ax: Axes, values: np.ndarray, framed: tuple[Head, ...], title: str | None) -> None:
    from matplotlib.patches import Rectangle

    layers, heads = values.shape
    largest = float(np.nanmax(np.abs(values), initial=0.0)) if np.isfinite(values).any() else 0.0
    scale = style.colormap(style.EFFECT).with_extremes(bad=style.WASH)
    image = ax.imshow(
        np.ma.masked_invalid(values),
        cmap=scale,
        vmin=-(largest or 1.0),
        vmax=largest or 1.0,
        interpolation="none",
    )
    for edge in range(1, max(layers, heads)):
        if edge < layers:
            ax.axhline(edge - 0.5, color=style.LINE, linewidth=0.25)
        if edge < heads:
            ax.axvline(edge - 0.5, color=style.LINE, linewidth=0.25)
    for head in framed:
        ax.add_patch(
            Rectangle(
                (head.index - 0.5, head.layer - 0.5),
                1,
                1,
                fill=False,
                edgecolor=style.RED,
                linewidth=1.2,
                zorder=3,
                clip_on=False,
            )
        )
    ax.set_xticks(range(0, heads, 1 if heads <= 16 else 4))
    ax.set_yticks(range(0, layers, 1 if layers <= 16 else 5))
    ax.tick_params(length=0, pad=2)
    ax.set_xlabel("head", fontsize=style.BODY, labelpad=2)
    ax.set_ylabel("layer", fontsize=style.BODY, labelpad=2)
    if title:
        ax.set_title(title, fontsize=style.BODY, fontweight="bold", loc="left", pad=6)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03, aspect=25)
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    bar.ax.tick_params(length=0, labelsize=style.SMALL)
    bar.set_label("effect (share of the gap)", fontsize=style.SMALL)
