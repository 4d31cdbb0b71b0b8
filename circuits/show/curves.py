"""How much of a task the first heads (or edges) in ranked order explain, for one model or two in one plot.

1. A line with its bootstrap band is the explained effect of keeping so many heads; dashed, as many at random.
2. The mark stands where the share is reached, with its own interval across it and the number at its foot.
3. Edges are many, so their axis is logarithmic and starts at 1; heads stand on a plain axis that starts at 0.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, PercentFormatter

from circuits.errors import PromptError
from circuits.show.canvas import (
    BLUE,
    COLUMN,
    HEADING_SMALL,
    LINE,
    MUTED,
    PAPER,
    SMALL,
    effect_colour,
    figure_around,
    looks,
    new_axes,
    width_of,
)
from circuits.show.words import spell
from circuits.tasks.ranking import COUNTED

if TYPE_CHECKING:
    from circuits.tasks.ranking import Curve, Ranking, Units

MARKED: Final = 0.9  # the share whose count is marked
_COLOURS: Final = (BLUE, effect_colour(-1))  # dark blue and orange: apart in lightness as well as in hue
_MARKS: Final = ("o", "s")
_DASHED: Final = (0, (3, 2))
_PLOT: Final = 2.1  # inches: the height without caption and legend
_LINE: Final = 0.1  # inches: a line of caption or legend
_CAPTION: Final = 76  # letters in a line of the caption
_LOWEST, _HIGHEST = -0.5, 2.5  # a curve beyond is cut, so that the part that matters stays readable
_BAND: Final = 1.5  # a band beyond is cut where its curve does not go there


def keep_curves(
    rankings: Ranking | Sequence[Ranking],
    *,
    share: float = MARKED,
    titles: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """The keep curves of one or two rankings of a task; `titles` are by default the models' names.

    >>> figure = show.keep_curves(circuits.rank(model, "greater_than", count=4))
    >>> figure.axes[0].get_ylabel()
    'explained effect'
    """
    rankings = tuple(rankings) if isinstance(rankings, Sequence) else (rankings,)
    if not 1 <= len(rankings) <= len(_COLOURS):
        raise PromptError(f"one plot holds the curves of one model or two, not of {len(rankings)}")
    tasks, units = {each.task for each in rankings}, {each.protocol.units for each in rankings}
    for name, values in (("tasks", tasks), ("units", units)):
        if len(values) > 1:
            both = " and ".join(sorted(values))
            raise PromptError(f"one plot cannot show different {name} ({both}); draw each by itself")
    names = tuple(titles) if titles is not None else tuple(ranking.model for ranking in rankings)
    with looks():
        axes = _own_axes(rankings) if ax is None else ax
        _set_scale(axes, rankings)
        for ranking, colour in zip(rankings, _COLOURS, strict=False):
            _draw_curve(axes, ranking, colour)
        _draw_marks(axes, rankings, share)
        _draw_legend(axes, rankings, names, share)
        _label_axes(axes, rankings[0].protocol.units, share)
    return figure_around(axes)


def count_words(ranking: Ranking, share: float = MARKED) -> str:
    """`61 heads for 90% (58–66)`: how many it takes, with the bootstrap band; an end not reached is open."""
    count, low, high = ranking.count(share)
    units = COUNTED[ranking.protocol.units]
    if count is None:
        return f"{share:.0%} not reached with all {ranking.keep.sizes[-1]:,} {units}"
    band = f"{'?' if low is None else f'{low:,}'}–{'never' if high is None else f'{high:,}'}"
    return f"{count:,} {units if count != 1 else units[:-1]} for {share:.0%} ({band})"


def _own_axes(rankings: Sequence[Ranking]) -> Axes:
    """Axes on a figure of one column; its caption says the protocol, because this changes the number."""
    pairs = " and ".join(dict.fromkeys(str(ranking.pairs) for ranking in rankings))
    protocol = "; ".join(dict.fromkeys(str(ranking.protocol) for ranking in rankings))
    caption = f"{spell(rankings[0].task)}, {pairs} pairs: {protocol}. Bands hold 95% of bootstrap resamples."
    lines = textwrap.wrap(caption, _CAPTION)
    axes = new_axes(COLUMN, _PLOT + (len(lines) + len(rankings) + 1) * _LINE)
    caption = "\n".join(lines)
    figure_around(axes).supxlabel(caption, fontsize=SMALL, color=MUTED, x=0.015, ha="left")
    return axes


def _set_scale(ax: Axes, rankings: Sequence[Ranking]) -> None:
    most = max(ranking.keep.sizes[-1] for ranking in rankings)
    if rankings[0].protocol.units != "heads":
        ax.set_xscale("log")
        ax.set_xlim(0.8, most * 1.25)
    else:
        ax.set_xlim(0, most * 1.02)
    curves = [curve for ranking in rankings for curve in (ranking.keep, ranking.random)]
    lowest = min(value for curve in curves for value in (*curve.explained, *curve.low))
    ends = [min(_BAND, end) for curve in curves for end in curve.high]
    highest = max(*ends, *(value for curve in curves for value in curve.explained))
    ax.set_ylim(max(_LOWEST, min(-0.04, lowest - 0.04)), min(_HIGHEST, max(1.06, highest + 0.04)))


def _draw_curve(ax: Axes, ranking: Ranking, colour: str) -> None:
    sizes, explained, low, high = _points(ranking.keep, ranking)
    ax.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(sizes, explained, color=colour, linewidth=1.2, zorder=4, solid_joinstyle="round")
    sizes, explained, _, _ = _points(ranking.random, ranking)
    ax.plot(sizes, explained, color=colour, linewidth=0.8, linestyle=_DASHED, alpha=0.75, zorder=3)


def _points(curve: Curve, ranking: Ranking) -> tuple[np.ndarray, ...]:
    """Sizes, means, lower and upper ends; on a logarithmic axis, which has no 0, the sizes start at 1."""
    parts = (curve.sizes, curve.explained, curve.low, curve.high)
    sizes, *values = (np.array(part, dtype=float) for part in parts)
    if ranking.protocol.units == "heads":
        return sizes, *values
    shown = np.union1d([1.0], sizes[sizes > 0])
    return shown, *(np.interp(shown, sizes, part) for part in values)


def _draw_marks(ax: Axes, rankings: Sequence[Ranking], share: float) -> None:
    """A mark where the share is reached, its interval, and the count at its foot, one row above the other."""
    for level in (0, share):
        ax.axhline(level, color=LINE, linewidth=0.6, zorder=1)
    to_axes = ax.transData + ax.transAxes.inverted()  # from a count to 0…1 across the plot
    counts = [ranking.count(share) for ranking in rankings]
    across = [to_axes.transform((math.nan if count is None else count, 0))[0] for count, *_ in counts]
    for row, ((count, low, high), colour, mark) in enumerate(zip(counts, _COLOURS, _MARKS, strict=False)):
        if count is None:
            continue
        look: dict[str, Any] = {"color": colour, "alpha": 0.45, "solid_capstyle": "butt"}
        ends = [count if end is None else end for end in (low, high)]
        ax.plot(ends, [share, share], linewidth=2.2, zorder=5, **look)
        ax.plot([count, count], [0, share], color=colour, linewidth=0.6, zorder=1)
        ax.plot([count], [share], color=colour, markeredgewidth=0.6, zorder=6, **_mark(mark))
        here, others = across[row], [*across[:row], *across[row + 1 :]]
        crowded = any(0 < other - here < 0.12 for other in others)  # by another line
        space = here * ax.get_window_extent().width / ax.figure.dpi * 72  # left of the line
        fits = space > width_of(f"{count:,}", HEADING_SMALL) + 3
        side = -1 if here > 0.85 or (crowded and fits) else 1  # where the number has space
        look = {"fontsize": SMALL, "color": colour, "fontweight": "bold", "zorder": 7}
        look |= {"ha": "left" if side > 0 else "right", "va": "bottom"}
        look["bbox"] = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
        offset = (2.5 * side, 2.5 + row * (SMALL + 2))
        ax.annotate(f"{count:,}", (count, 0), offset, textcoords="offset points", **look)


def _mark(shape: str) -> dict[str, Any]:
    return {"marker": shape, "markersize": 4, "markeredgecolor": PAPER}


def _draw_legend(ax: Axes, rankings: Sequence[Ranking], names: Sequence[str], share: float) -> None:
    lines = []
    for ranking, name, colour, mark in zip(rankings, names, _COLOURS, _MARKS, strict=False):
        label = f"{spell(name, longest=24)}: {count_words(ranking, share)}"
        lines.append(Line2D([], [], color=colour, linewidth=1.2, label=label, **_mark(mark)))
    look: dict[str, Any] = {"linewidth": 0.8, "linestyle": _DASHED, "label": "kept in random order"}
    lines.append(Line2D([], [], color=MUTED, **look))
    ax.legend(
        handles=lines, handlelength=2.2, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderaxespad=0.2
    )


def _label_axes(ax: Axes, units: Units, share: float) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(length=2, width=0.5, pad=2)
    ax.tick_params(which="minor", length=0)
    low, high = ax.get_ylim()
    whole = (1,) if (1 - share) / (high - low) > 0.055 else ()  # not on top of the share's own tick
    levels = (-0.5, 0, 0.5, share, *whole, 1.5, 2, 2.5)
    ax.yaxis.set_major_locator(FixedLocator([level for level in levels if low <= level <= high]))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    scale = "" if units == "heads" else " (log scale)"
    ax.set(xlabel=f"{COUNTED[units]} kept, in ranked order{scale}", ylabel="explained effect")
