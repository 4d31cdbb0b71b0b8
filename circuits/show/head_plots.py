"""Plots of heads with their effects: of a mapping, a family, a sweep, or a comparison of two models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.components import Head
from circuits.errors import PromptError
from circuits.instruments.grids import OnAxes
from circuits.show.canvas import (
    COLUMN,
    INK,
    LINE,
    MUTED,
    RED,
    SMALL,
    effect_colour,
    figure_around,
    looks,
)
from circuits.show.heatmaps import MapOnAxes, grid_words
from circuits.show.plots import axes_for, write_beside
from circuits.show.words import heads_carry, pair_words, plural, spell, verdict_in_short
from circuits.tasks.compare import Comparison
from circuits.tracing import Interval, Mapping, Stability
from circuits.tracing.family import FamilyTrace
from circuits.tracing.neuron_record import Neurons

MOST: Final = 24  # heads in a plot or a diagram
# Of the strongest effect; a point with less would lie on the line of zero.
_LEAST_SEEN: Final = 0.01


@dataclass(frozen=True, slots=True)
class HeadRow:
    """One head: its effect, perhaps with an interval or with its effect in another model."""

    name: str
    effect: float
    low: float | None = None
    high: float | None = None
    before: float | None = None
    carries: bool = False
    note: str = ""  # behind the head: which of two models it carries in


@dataclass(frozen=True, slots=True)
class HeadPlot:
    """What a plot of effects shows: finding and question, its heads, and what it means that a head `carries`."""

    finding: str
    question: str
    rows: list[HeadRow]
    marked: str = "carrier"


def interval_rows(
    effects: Iterable[tuple[Head, Interval]], carriers: Iterable[Head]
) -> list[HeadRow]:
    """Heads with their mean effects and intervals; those among `carriers` are marked."""
    carrying = set(carriers)
    return [
        HeadRow(str(head), effect.mean, effect.low, effect.high, carries=head in carrying)
        for head, effect in effects
    ]


@singledispatch
def heads_of_result(result: Any) -> HeadPlot:
    """The heads of a mapping, a family or a comparison, as they are plotted; a class above this package has a
    method `heads_to_plot` instead."""
    if hasattr(result, "heads_to_plot"):
        return result.heads_to_plot()
    kind = type(result).__name__
    raise PromptError(
        f"there is no picture of a {kind}; draw a circuit, a ranking, a sweep or a comparison"
    )


def carry_words(heads: Collection[Head], share: float | None, what: str) -> str:
    """`6 heads carry 80% of 5→8`; without a share, its modulation is withheld."""
    if share is None:
        return f"{what}: modulation withheld"
    if not heads:
        return f"No head carries {what}"
    return f"{heads_carry(len(heads))} {share:.0%} of {what}"


def _ends(result: Mapping | Stability | Comparison) -> str:
    """`large(5) → "(8)` where the prompt is known, else `key 5 → query 8`."""
    pair = None if isinstance(result, Mapping) else result.pair
    if pair is None:
        return f"key {result.key} → query {result.query}"
    words = pair.clean.words
    key, query = (f"{spell(words[at], longest=16)}({at})" for at in (result.key, result.query))
    return f"{key} → {query}"


@heads_of_result.register
def _(mapping: Mapping) -> HeadPlot:
    carriers = mapping.carriers()
    rows = [
        HeadRow(str(each.head), each.effect, carries=each.head in carriers)
        for each in mapping.heads
    ]
    share = None if mapping.doubts else mapping.modulation()
    finding = carry_words(carriers, share, _ends(mapping))
    return HeadPlot(finding, f"total {mapping.total:z.2f} of the gap", rows)


@heads_of_result.register
def _(family: FamilyTrace) -> HeadPlot:
    mapping, carriers = family.mapping, family.carriers()
    share = None if mapping.doubts else mapping.modulation(family.share)
    finding = carry_words(carriers, share, _ends(mapping))
    asked = pair_words(family.pairs[0], others=len(family.pairs) - 1)
    total = f"total {family.total.mean:z.2f} of the gap"
    question = f"{asked}; {spell(family.model)}, mean{verdict_in_short(family)}; {total}"
    return HeadPlot(finding, question, interval_rows(family.heads, carriers))


@heads_of_result.register
def _(stability: Stability) -> HeadPlot:
    runs = len(stability.counterfactuals)
    often = "in 80% of the runs or more"
    finding = f"{heads_carry(len(stability.core))} {_ends(stability)} {often}"
    asked = f"{plural(runs, 'counterfactual')} of one kind"
    if stability.pair is not None:
        words = pair_words(stability.pair, others=runs - 1, kind="counterfactual")
        asked = f"{words}; {spell(stability.model)}"
    total = f"total {stability.total.mean:z.2f} of the gap"
    question = f"{asked}{verdict_in_short(stability)}; {total}"
    rows = interval_rows([(each.head, each.effect) for each in stability.heads], stability.core)
    return HeadPlot(finding, question, rows, marked=f"carries {often}")


@heads_of_result.register
def _(comparison: Comparison) -> HeadPlot:
    first, second = (spell(name, longest=24) for name in comparison.names)
    of_first, of_second = comparison.carriers
    shared = comparison.overlap
    rows = []
    for each in comparison.moved:
        note = ""
        if each.head in shared:
            note = "both"
        elif each.head in of_first:
            note = f"only {first}"
        elif each.head in of_second:
            note = f"only {second}"
        name = str(each.head)
        row = HeadRow(name, each.after, before=each.before, carries=note == "both", note=note)
        rows.append(row)
    finding = f"{heads_carry(len(of_first))} {_ends(comparison)} in {first}, {len(of_second)} in {second}"
    finding += f", {len(shared)} in both"
    totals = " and ".join(f"{total:z.2f}" for total in comparison.totals)
    question = f"open: {first}, filled: {second}; total {totals} of the gap; carriers of {comparison.share:.0%}"
    if comparison.pair is not None:
        question = f"{pair_words(comparison.pair)}; {question}"
    unclear = [verdict for verdict in comparison.verdicts if verdict not in (None, "clear")]
    if unclear:
        question += "; not a clear question"
    return HeadPlot(finding, question, rows, marked="carries in both")


@heads_of_result.register
def _(result: OnAxes) -> HeadPlot:
    rows = [HeadRow(" ".join(place), value) for place, value in result.strongest()]
    assert isinstance(result, MapOnAxes)  # all maps that there are
    return HeadPlot(*grid_words(result), rows)


@heads_of_result.register
def _(found: Neurons) -> HeadPlot:
    rows = [HeadRow(f"n{each.neuron}", each.effect) for each in found.neurons]
    return HeadPlot(f"Neurons of {found.name}", spell(found.source.name), rows)


def plot_heads(result: Any, *, most: int = MOST, ax: Axes | None = None) -> Figure:
    """Heads with their effects, the strongest at the top, and their intervals as lines.

    Heads that carry are red diamonds. An open circle is the effect in the first of two models.
    """
    plot = heads_of_result(result)
    shown = _shown(plot.rows, most)
    question = plot.question
    if len(plot.rows) > len(shown):
        question += f"; the strongest {len(shown)} of {len(plot.rows)}"
    height = max(len(shown), 2)
    with looks():
        ax = axes_for(ax, (COLUMN, 0.5 + 0.145 * height), plot.finding, question)
        for y, row in enumerate(shown):
            _plot_row(ax, y, row)
        ax.axvline(0, color=LINE, linewidth=0.6, zorder=0)
        ax.set_ylim(height - 0.4, -0.6)
        bars = "; bars: 95% intervals" if any(row.low is not None for row in shown) else ""
        ax.set_xlabel(f"effect (share of the gap)\n◆ {plot.marked}{bars}")
        ax.set_yticks(range(len(shown)), [row.name for row in shown])
        ax.tick_params(length=2, labelsize=SMALL, color=MUTED)
        ax.spines[["top", "right"]].set_visible(False)
        if any(row.note for row in shown):
            ax.margins(x=0.22)  # for the notes behind the heads
    return figure_around(ax)


def _shown(rows: Sequence[HeadRow], most: int) -> list[HeadRow]:
    """The strongest rows; carriers of either of two models come first, so that none of them is missing."""
    strongest = sorted(rows, key=lambda row: (not row.note, -abs(row.effect)))[:most]
    least = _LEAST_SEEN * max((abs(row.effect) for row in strongest), default=0.0)
    return [
        row
        for row in strongest
        if row.carries or row.before is not None or abs(row.effect) >= least
    ]


def _plot_row(ax: Axes, y: int, row: HeadRow) -> None:
    colour = RED if row.carries else effect_colour(row.effect)
    if row.low is not None and row.high is not None:
        ax.plot([row.low, row.high], [y, y], color=colour, linewidth=1.6, alpha=0.5, zorder=2)
    if row.before is not None:
        ax.plot([row.before, row.effect], [y, y], color=LINE, linewidth=1.4, zorder=1)
        ax.plot([row.before], [y], "o", color=INK, mfc="none", markersize=3.5, zorder=3)
    if row.note:
        write_beside(ax, max(row.effect, row.before or 0.0), y, row.note, gap=5, colour=MUTED)
    shape, size = ("D", 4) if row.carries else ("o", 3)
    ax.plot([row.effect], [y], shape, color=colour, markersize=size, zorder=4)
