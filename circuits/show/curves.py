"""Keep curves: how much of a task the first heads (or edges) in ranked order explain, for one model or two.

1. A solid line is the explained effect of keeping so many heads, with its bootstrap band. The dashed line is
   that of as many heads in random order.
2. A marker stands where the curve reaches the share, with a bar for the interval of the count and the count
   itself at the foot.
3. What is kept is counted on a logarithmic axis that starts at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    LINE,
    MUTED,
    PAPER,
    SMALL,
    figure_around,
    looks,
)
from circuits.show.plots import axes_for
from circuits.show.words import spell, task_words
from circuits.tasks.ranking import COUNTED

if TYPE_CHECKING:
    from circuits.tasks.ranking import Curve, Ranking, Units

MARKED: Final = 0.9  # the share whose count is marked
# Dark blue and green: apart in lightness as well as in hue. Orange is for effects against the answer.
_COLOURS: Final = (BLUE, "#2a9d8f")
_MARKERS: Final = ("o", "s")
_DASHED: Final[Any] = (0, (3, 2))
_PLOT: Final = 2.0  # inches: the height without the legend
_LINE: Final = 0.1  # inches: a line of the legend
# A curve below or above is cut, so that the part that matters stays readable.
_LOWEST: Final = -0.5
_HIGHEST: Final = 2.5
_HIGHEST_BAND: Final = 1.5  # a band above is cut, unless its curve goes there


@dataclass(frozen=True, slots=True)
class KeepCurve:
    """One ranking and how it is drawn."""

    ranking: Ranking
    title: str
    colour: str
    marker: str


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
    'explained effect (share of the gap)'
    """
    rankings = rankings if isinstance(rankings, Sequence) else (rankings,)
    if not 1 <= len(rankings) <= len(_COLOURS):
        raise PromptError(
            f"one plot holds the curves of one model or two, not of {len(rankings)}"
        )
    _check_alike("tasks", {each.task for each in rankings})
    _check_alike("units", {each.protocol.units for each in rankings})
    titles = [ranking.model for ranking in rankings] if titles is None else titles
    lines = [
        KeepCurve(*parts) for parts in zip(rankings, titles, _COLOURS, _MARKERS, strict=False)
    ]
    with looks():
        size = (COLUMN, _PLOT + (len(rankings) + 1) * _LINE)
        finding = _counts(lines, share)
        axes = axes_for(ax, size, finding, _question(rankings), notes=_protocol(rankings))
        _set_scale(axes, rankings)
        for level in (0, share):
            axes.axhline(level, color=LINE, linewidth=0.6, zorder=1)
        for line in lines:
            _draw_curve(axes, line)
        for row, line in enumerate(lines):
            _draw_count(axes, line, share, row)
        _draw_legend(axes, lines, share)
        _label_axes(axes, rankings[0].protocol.units, share)
    return figure_around(axes)


def _check_alike(name: str, values: set[str]) -> None:
    if len(values) > 1:
        both = " and ".join(sorted(values))
        raise PromptError(
            f"one plot cannot show different {name} ({both}); draw each by itself"
        )


def count_words(ranking: Ranking, share: float = MARKED) -> str:
    """`61 heads for 90% (58–66)`: how many it takes, with the bootstrap band; an end not reached is open."""
    count, low, high = ranking.count(share)
    units = COUNTED[ranking.protocol.units]
    if count is None:
        return f"{share:.0%} not reached with all {ranking.keep.sizes[-1]:,} {units}"
    if count == 1:
        units = units[:-1]
    fewest = "?" if low is None else f"{low:,}"
    most = "never" if high is None else f"{high:,}"
    return f"{count:,} {units} for {share:.0%} ({fewest}–{most})"


def _counts(lines: Sequence[KeepCurve], share: float) -> str:
    """`90% of opposites takes 61 heads in mini and 9 heads in mini-sparse`."""
    found = []
    for line in lines:
        count, _, _ = line.ranking.count(share)
        units = COUNTED[line.ranking.protocol.units]
        if count == 1:
            units = units.removesuffix("s")
        who = "more than all" if count is None else f"{count:,}"
        found.append(f"{who} {units} in {spell(line.title, longest=24)}")
    return f"{share:.0%} of {task_words(lines[0].ranking.task)} takes {' and '.join(found)}"


def _question(rankings: Sequence[Ranking]) -> str:
    pairs = " and ".join(dict.fromkeys(str(ranking.pairs) for ranking in rankings))
    return f"how much is explained if only the first units are kept; {pairs} pairs"


def _protocol(rankings: Sequence[Ranking]) -> str:
    """The protocol, because it changes the number."""
    protocol = "; ".join(dict.fromkeys(str(ranking.protocol) for ranking in rankings))
    return f"{protocol}. Bands hold 95% of bootstrap resamples."


def _set_scale(ax: Axes, rankings: Sequence[Ranking]) -> None:
    most = max(ranking.keep.sizes[-1] for ranking in rankings)
    ax.set_xscale("log")
    ax.set_xlim(0.8, most * 1.25)
    lowest, highest = 0.0, 1.02
    for ranking in rankings:
        for curve in (ranking.keep, ranking.random):
            lowest = min(lowest, *curve.explained, *curve.low)
            highest = max(highest, *curve.explained, min(_HIGHEST_BAND, max(curve.high)))
    ax.set_ylim(max(_LOWEST, lowest - 0.04), min(_HIGHEST, highest + 0.04))


def _draw_curve(ax: Axes, line: KeepCurve) -> None:
    keep, random = line.ranking.keep, line.ranking.random
    sizes, explained, low, high = _points(keep)
    ax.fill_between(sizes, low, high, color=line.colour, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(
        sizes, explained, color=line.colour, linewidth=1.2, zorder=4, solid_joinstyle="round"
    )
    sizes, explained, _, _ = _points(random)
    ax.plot(
        sizes,
        explained,
        color=line.colour,
        linewidth=0.8,
        linestyle=_DASHED,
        alpha=0.75,
        zorder=3,
    )


def _points(curve: Curve) -> list[np.ndarray]:
    """Sizes from 1, means, lower and upper ends; a logarithmic axis has no size 0."""
    parts = [curve.sizes, curve.explained, curve.low, curve.high]
    sizes, *values = [np.array(part, dtype=float) for part in parts]
    shown = np.union1d([1.0], sizes[sizes > 0])
    return [shown, *(np.interp(shown, sizes, part) for part in values)]


def _draw_count(ax: Axes, line: KeepCurve, share: float, row: int) -> None:
    """Where a curve reaches the share: a marker with the interval of the count, a stem, and the count at its
    foot. The counts of two curves stand in different rows above the axis."""
    count, low, high = line.ranking.count(share)
    if count is None:
        return
    interval = [count if low is None else low, count if high is None else high]
    (bar,) = ax.plot(interval, [share, share], color=line.colour, linewidth=2.2, zorder=5)
    bar.set(alpha=0.45, solid_capstyle="butt")
    ax.plot([count, count], [0, share], color=line.colour, linewidth=0.6, zorder=1)
    (marker,) = ax.plot([count], [share], marker=line.marker, color=line.colour, zorder=6)
    marker.set(markersize=4, markeredgewidth=0.6, markeredgecolor=PAPER)
    left = count > ax.get_xlim()[1] / 3  # at the right end of the axis
    ax.annotate(
        f"{count:,}",
        (count, 0),
        (-2.5 if left else 2.5, 2.5 + row * (SMALL + 2)),
        textcoords="offset points",
        fontsize=SMALL,
        color=line.colour,
        fontweight="bold",
        zorder=7,
        ha="right" if left else "left",
        va="bottom",
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
    )


def _draw_legend(ax: Axes, lines: Sequence[KeepCurve], share: float) -> None:
    handles = []
    for line in lines:
        label = f"{spell(line.title, longest=24)}: {count_words(line.ranking, share)}"
        handle = Line2D([], [], color=line.colour, marker=line.marker, mec=PAPER, label=label)
        handle.set(linewidth=1.2, markersize=4)
        handles.append(handle)
    random = "kept in random order"
    handles.append(Line2D([], [], color=MUTED, linewidth=0.8, linestyle=_DASHED, label=random))
    ax.legend(
        handles=handles,
        handlelength=2.2,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        borderaxespad=0.2,
    )


def _label_axes(ax: Axes, units: Units, share: float) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(length=2, width=0.5, pad=2)
    ax.tick_params(which="minor", length=0)
    low, high = ax.get_ylim()
    levels = [-0.5, 0, 0.5, share, 1.5, 2, 2.5]
    if (1 - share) / (high - low) > 0.055:  # else its number would lie on that of the share
        levels.append(1)
    ax.yaxis.set_major_locator(
        FixedLocator(sorted(level for level in levels if low <= level <= high))
    )
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    label = f"{COUNTED[units]} kept, in ranked order (log scale)"
    ax.set(xlabel=label, ylabel="explained effect (share of the gap)")
