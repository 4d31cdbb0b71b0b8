"""How much of a task the first heads (or edges) in ranked order explain, for one model or two in one plot.

1. A line with its bootstrap band is the explained effect of keeping so many heads; the dashed line keeps as many in random order.
2. The mark stands where the asked share is reached, with its own interval across it and the number at its foot.
3. Edges are many, so their axis is logarithmic and starts at 1; heads stand on a plain axis that starts at 0.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from circuits.errors import PromptError
from circuits.show import scene, style
from circuits.show.canvas import looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from circuits.tasks.ranking import Curve, Ranking

MARKED: Final = 0.9  # the share whose count is marked
_COLOURS: Final = (
    style.BLUE,
    style.shade(-0.7, style.EFFECT),
)  # dark blue and orange: apart in lightness as well as in hue
_MARKS: Final = ("o", "s")
_WIDTH: Final = 3.4  # inches: one column of two
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
) -> Axes:
    """The keep curves of one ranking or two of the same task and units; `titles` are one for each, by default the models' names."""
    told = tuple(rankings) if isinstance(rankings, Sequence) else (rankings,)
    _check(told)
    names = tuple(titles) if titles is not None else tuple(ranking.model for ranking in told)
    with looks():
        target = _own_axes(told) if ax is None else ax
        _set_scale(target, told)
        for ranking, colour in zip(told, _COLOURS, strict=False):
            _draw_curve(target, ranking, colour)
        _draw_marks(target, told, share)
        _draw_legend(target, told, names, share)
        _say(target, told, share)
    return target


def _check(told: Sequence[Ranking]) -> None:
    if not 1 <= len(told) <= len(_COLOURS):
        raise PromptError(f"one plot holds the curves of one model or two, not of {len(told)}")
    for name, said in (
        ("tasks", {each.task for each in told}),
        ("units", {each.protocol.units for each in told}),
    ):
        if len(said) > 1:
            raise PromptError(
                f"curves of different {name} ({', '.join(sorted(said))}) do not belong into one plot; draw each by itself"
            )


def _own_axes(told: Sequence[Ranking]) -> Axes:
    from matplotlib.figure import Figure

    lines = _caption(told)
    height = _PLOT + (len(lines) + len(told) + 1) * _LINE
    figure = Figure(figsize=(_WIDTH, height), dpi=300, layout="constrained")
    figure.supxlabel("\n".join(lines), fontsize=style.SMALL, color=style.MUTED, x=0.015, ha="left")
    return figure.add_subplot()


def _caption(told: Sequence[Ranking]) -> list[str]:
    """The task and the protocol, because the protocol changes the number."""
    pairs = " and ".join(dict.fromkeys(str(ranking.pairs) for ranking in told))
    protocol = "; ".join(dict.fromkeys(str(ranking.protocol) for ranking in told))
    return textwrap.wrap(
        f"{scene.spell(told[0].task)}, {pairs} pairs: {protocol}. Bands hold 95% of bootstrap resamples.",
        _CAPTION,
    )


def _set_scale(ax: Axes, told: Sequence[Ranking]) -> None:
    most = max(ranking.keep.sizes[-1] for ranking in told)
    if told[0].protocol.units == "edges":
        ax.set_xscale("log")
        ax.set_xlim(0.8, most * 1.25)
    else:
        ax.set_xlim(0, most * 1.02)
    curves = [curve for each in told for curve in (each.keep, each.random)]
    lowest = min(value for curve in curves for value in (*curve.explained, *curve.low))
    highest = max(
        value for curve in curves for value in (*curve.explained, *(min(_BAND, end) for end in curve.high))
    )
    ax.set_ylim(max(_LOWEST, min(-0.04, lowest - 0.04)), min(_HIGHEST, max(1.06, highest + 0.04)))


def _draw_curve(ax: Axes, ranking: Ranking, colour: str) -> None:
    sizes, explained, low, high = _points(ranking.keep, ranking)
    ax.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(sizes, explained, color=colour, linewidth=1.2, zorder=4, solid_joinstyle="round")
    sizes, explained, _, _ = _points(ranking.random, ranking)
    ax.plot(sizes, explained, color=colour, linewidth=0.8, linestyle=(0, (3, 2)), alpha=0.75, zorder=3)


def _points(curve: Curve, ranking: Ranking) -> tuple[np.ndarray, ...]:
    """Sizes, means, lower and upper ends. A logarithmic axis has no 0: there the curve starts at 1, on the line from 0 to the next size."""
    sizes, *values = (
        np.array(part, dtype=float) for part in (curve.sizes, curve.explained, curve.low, curve.high)
    )
    if ranking.protocol.units != "edges":
        return sizes, *values
    shown = np.union1d([1.0], sizes[sizes > 0])
    return shown, *(np.interp(shown, sizes, part) for part in values)


def _draw_marks(ax: Axes, told: Sequence[Ranking], share: float) -> None:
    """A mark where the share is reached, its interval, and the count at its foot, one row above the other."""
    for level in (0, share):
        ax.axhline(level, color=style.LINE, linewidth=0.6, zorder=1)
    counts = [ranking.count(share) for ranking in told]
    places = [None if count is None else _across(ax, count) for count, _, _ in counts]
    for row, ((count, low, high), colour, mark) in enumerate(zip(counts, _COLOURS, _MARKS, strict=False)):
        if count is None:
            continue
        ends = [count if end is None else end for end in (low, high)]
        ax.plot(
            ends, [share, share], color=colour, linewidth=2.2, alpha=0.45, solid_capstyle="butt", zorder=5
        )
        ax.plot([count, count], [0, share], color=colour, linewidth=0.6, zorder=1)
        ax.plot(
            [count],
            [share],
            marker=mark,
            markersize=4,
            color=colour,
            markeredgecolor=style.PAPER,
            markeredgewidth=0.6,
            zorder=6,
        )
        side = _free_side(places[row], [place for at, place in enumerate(places) if at != row])
        ax.annotate(
            f"{count:,}",
            (count, 0),
            xytext=(2.5 * side, 2.5 + row * (style.SMALL + 2)),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="bottom",
            fontsize=style.SMALL,
            color=colour,
            fontweight="bold",
            bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            zorder=7,
        )


def _across(ax: Axes, count: int) -> float:
    """How far across the plot a count stands, from 0 to 1."""
    return float(ax.transAxes.inverted().transform(ax.transData.transform((count, 0)))[0])


def _free_side(place: float | None, others: Sequence[float | None]) -> int:
    """On which side of its line a number has room: right (1), or left (-1) near the right edge or another line."""
    if place is None or place > 0.85:
        return -1
    crowded = any(other is not None and 0 < other - place < 0.12 for other in others)
    return -1 if crowded and place > 0.05 else 1


def _draw_legend(ax: Axes, told: Sequence[Ranking], names: Sequence[str], share: float) -> None:
    from matplotlib.lines import Line2D

    entries = []
    for ranking, name, colour, mark in zip(told, names, _COLOURS, _MARKS, strict=False):
        said = f"{scene.spell(name, longest=24)}: {count_words(ranking, share)}"
        entries.append(
            Line2D(
                [],
                [],
                color=colour,
                linewidth=1.2,
                marker=mark,
                markersize=4,
                markeredgecolor=style.PAPER,
                label=said,
            )
        )
    entries.append(
        Line2D([], [], color=style.MUTED, linewidth=0.8, linestyle=(0, (3, 2)), label="kept in random order")
    )
    ax.legend(
        handles=entries,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        frameon=False,
        fontsize=style.SMALL,
        handlelength=2.2,
        labelspacing=0.25,
        borderaxespad=0.2,
        borderpad=0.2,
    )


def count_words(ranking: Ranking, share: float = MARKED) -> str:
    """`61 heads for 90% (58–66)`: how many it takes, with the bootstrap band; an end that was not reached is open."""
    count, low, high = ranking.count(share)
    units = ranking.protocol.units
    if count is None:
        return f"{share:.0%} not reached with all {ranking.keep.sizes[-1]:,} {units}"
    band = f"{'?' if low is None else f'{low:,}'}–{'never' if high is None else f'{high:,}'}"
    return f"{count:,} {units if count != 1 else units[:-1]} for {share:.0%} ({band})"


def _say(ax: Axes, told: Sequence[Ranking], share: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, PercentFormatter

    units = told[0].protocol.units
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(length=2, width=0.5, pad=2)
    ax.tick_params(which="minor", length=0)
    low, high = ax.get_ylim()
    whole = (
        (1,) if (1 - share) / (high - low) > 0.055 else ()
    )  # not where it would stand on the share's own tick
    ax.yaxis.set_major_locator(
        FixedLocator([at for at in (-0.5, 0, 0.5, share, *whole, 1.5, 2, 2.5) if low <= at <= high])
    )
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylabel("explained effect", fontsize=style.BODY, labelpad=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(
        f"{units} kept, in ranked order{' (log scale)' if units == 'edges' else ''}",
        fontsize=style.BODY,
        labelpad=2,
    )
