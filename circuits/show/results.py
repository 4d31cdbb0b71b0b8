"""The pictures of every kind of result; the methods `figure`, `page`, `to_dot` and `save` lead here.

1. `figure_of`, `dot_of`, `html_of` and `page_of` choose by the class of the result (`singledispatch`).
2. A result without a picture of its own has heads with effects: it is drawn as a plot of these effects.
   `heads_of_result` says which heads; a class above this package has a method `heads_to_plot` instead.
3. The ending of a path says what is written: .svg, .png, .pdf the figure, .html the page, .dot the diagram.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, Final

from graphviz import Digraph
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.components import Head
from circuits.errors import FileError, PromptError
from circuits.instruments.grids import OnAxes
from circuits.instruments.reading_records import HeadScores, LogitAttribution, LogitLens
from circuits.results import PICTURES
from circuits.show import canvas, tables, wiring
from circuits.show.canvas import INK, LINE, MUTED, RED, SIGNATURE, SMALL
from circuits.show.curves import keep_curves
from circuits.show.dot import HeadGroup, heads_to_dot, to_dot
from circuits.show.figure import figure_of_circuit
from circuits.show.grids import comparison_grid
from circuits.show.heatmaps import grid_figure, grid_title
from circuits.show.neuron_figures import neurons_figure
from circuits.show.page import to_page
from circuits.show.reading_figures import attribution_figure, lens_figure, scores_figure
from circuits.show.wiring_dot import wiring_dot
from circuits.show.wiring_figure import wiring_figure
from circuits.show.words import spell, verdict_in_short
from circuits.tasks.compare import Comparison, TaskComparison
from circuits.tasks.ranking import Ranking
from circuits.tracing import Interval, Mapping, Stability
from circuits.tracing.family import FamilyTrace
from circuits.tracing.neuron_record import Neurons
from circuits.tracing.records import Circuit, Why
from circuits.wires.record import Wiring

_MOST: Final = 24  # heads in a plot or a diagram
_MOST_WRITERS: Final = 8  # of each side of a head in a diagram
# Of the strongest effect; a point with less would lie on the line of zero.
_LEAST_SEEN: Final = 0.01
# Their figures have more than one panel.
_SEVERAL_PANELS: Final = (Circuit, TaskComparison, Wiring, Why, HeadScores)
_STYLE: Final = (
    "body{font:14px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}svg{max-width:100%}"
)


# Heads and their effects


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
    """What a plot of effects shows: its title, its heads, and what it means that a head `carries`."""

    title: str
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
    """The heads of a mapping, a family, a sweep or a comparison, as they are plotted."""
    if hasattr(result, "heads_to_plot"):
        return result.heads_to_plot()
    kind = type(result).__name__
    raise PromptError(
        f"there is no picture of a {kind}; draw a circuit, a ranking, a sweep or a comparison"
    )


@heads_of_result.register
def _(mapping: Mapping) -> HeadPlot:
    carriers = mapping.carriers()
    rows = [
        HeadRow(str(each.head), each.effect, carries=each.head in carriers)
        for each in mapping.heads
    ]
    title = f"key {mapping.key} → query {mapping.query}, total {mapping.total:z.2f}"
    if mapping.doubts:
        title += ", modulation withheld"
    return HeadPlot(title, rows)


@heads_of_result.register
def _(family: FamilyTrace) -> HeadPlot:
    title = f"{spell(family.model)}, {len(family.pairs)} pairs, total {family.total.mean:z.2f}"
    title += verdict_in_short(family)
    return HeadPlot(title, interval_rows(family.heads, family.carriers()))


@heads_of_result.register
def _(stability: Stability) -> HeadPlot:
    runs = (
        f"{len(stability.counterfactuals)} counterfactuals, total {stability.total.mean:z.2f}"
    )
    effects = [(each.head, each.effect) for each in stability.heads]
    rows = interval_rows(effects, stability.core)
    return HeadPlot(
        f"key {stability.key} → query {stability.query}, {runs}{verdict_in_short(stability)}",
        rows,
        marked="in the core",
    )


@heads_of_result.register
def _(comparison: Comparison) -> HeadPlot:
    first, second = (spell(name, longest=24) for name in comparison.names)
    counts = [len(heads) for heads in comparison.carriers]
    rows = []
    for each in comparison.moved:
        carries = [each.head in heads for heads in comparison.carriers]
        note = {
            (True, True): "both",
            (True, False): f"only {first}",
            (False, True): f"only {second}",
        }
        rows.append(
            HeadRow(
                str(each.head),
                each.after,
                before=each.before,
                carries=all(carries),
                note=note.get((carries[0], carries[1]), ""),
            )
        )
    title = f"{counts[0]} heads carry {comparison.key}→{comparison.query} in {first} (open)"
    title += (
        f"\nand {counts[1]} in {second} (filled), {len(comparison.overlap)} of them the same"
    )
    unclear = [verdict for verdict in comparison.verdicts if verdict not in (None, "clear")]
    if unclear:
        title += "; not a clear question"
    return HeadPlot(title, rows, marked="carries in both")


@heads_of_result.register
def _(result: OnAxes) -> HeadPlot:
    rows = [HeadRow(" ".join(place), value) for place, value in result.strongest()]
    return HeadPlot(grid_title(result), rows)


@heads_of_result.register
def _(found: Neurons) -> HeadPlot:
    rows = [HeadRow(f"n{each.neuron}", each.effect) for each in found.neurons]
    return HeadPlot(f"{spell(found.source.name)}: neurons of {found.name}", rows)


def effects_plot(
    title: str,
    rows: Sequence[HeadRow],
    *,
    most: int = _MOST,
    marked: str = "carrier",
    ax: Axes | None = None,
) -> Axes:
    """Heads with their effects, the strongest at the top, and their intervals as lines.

    Heads that carry are red diamonds; `marked` is what the axis says about diamonds. An open circle is the
    effect in the first of two models.
    """
    # Carriers of either of two models come first, so that none of them is missing.
    strongest = sorted(rows, key=lambda row: (not row.note, -abs(row.effect)))[:most]
    least = _LEAST_SEEN * max((abs(row.effect) for row in strongest), default=0.0)
    shown = [
        row
        for row in strongest
        if row.carries or row.before is not None or abs(row.effect) >= least
    ]
    height = max(len(shown), 2)
    with canvas.looks():
        if ax is None:
            ax = canvas.new_axes(canvas.COLUMN, 0.75 + 0.145 * height)
        for y, row in enumerate(shown):
            _plot_row(ax, y, row)
        ax.axvline(0, color=LINE, linewidth=0.6, zorder=0)
        ax.set_ylim(height - 0.4, -0.6)
        bars = "; bars: 95% intervals" if any(row.low is not None for row in shown) else ""
        ax.set_xlabel(f"effect (share of the gap)\n◆ {marked}{bars}", fontsize=SMALL)
        ax.set_yticks(range(len(shown)), [row.name for row in shown])
        if len(rows) > len(shown):
            title += f", the strongest {len(shown)} of {len(rows)}"
        ax.set_title(title, fontsize=SMALL, loc="left", wrap=True)
        ax.tick_params(length=2, labelsize=SMALL, color=MUTED)
        ax.spines[["top", "right"]].set_visible(False)
        if any(row.note for row in shown):
            ax.margins(x=0.22)  # for the notes behind the heads
    return ax


def _plot_row(ax: Axes, y: int, row: HeadRow) -> None:
    colour = RED if row.carries else canvas.effect_colour(row.effect)
    if row.low is not None and row.high is not None:
        ax.plot([row.low, row.high], [y, y], color=colour, linewidth=1.6, alpha=0.5, zorder=2)
    if row.before is not None:
        ax.plot([row.before, row.effect], [y, y], color=LINE, linewidth=1.4, zorder=1)
        ax.plot(
            [row.before], [y], "o", color=INK, markerfacecolor="none", markersize=3.5, zorder=3
        )
    if row.note:
        end = max(row.effect, row.before or 0.0)
        look = {
            "fontsize": SMALL,
            "color": MUTED,
            "va": "center",
            "textcoords": "offset points",
        }
        ax.annotate(row.note, (end, y), xytext=(5, 0), **look)
    if row.carries:
        ax.plot([row.effect], [y], "D", color=colour, markersize=4, zorder=4)
    else:
        ax.plot([row.effect], [y], "o", color=colour, markersize=3, zorder=4)


# Figures


def figure_of(result: Any, *, ax: Axes | None = None, **options: Any) -> Figure:
    """The figure of any result; `ax` takes a plot of a single panel."""
    if ax is not None:
        if isinstance(result, _SEVERAL_PANELS):
            kind = type(result).__name__
            raise PromptError(
                f"the figure of a {kind} is more than one panel; give it a figure= instead of ax="
            )
        options["ax"] = ax
    return _figure(result, **options)


@singledispatch
def _figure(result: Any, **options: Any) -> Figure:
    plot = heads_of_result(result)
    options.setdefault("marked", plot.marked)
    return canvas.figure_around(effects_plot(plot.title, plot.rows, **options))


_figure.register(Circuit, figure_of_circuit)
_figure.register(TaskComparison, comparison_grid)
_figure.register(Ranking, keep_curves)
_figure.register(Wiring, wiring_figure)
_figure.register(Why, wiring.why_figure)
_figure.register(OnAxes, grid_figure)
_figure.register(LogitAttribution, attribution_figure)
_figure.register(LogitLens, lens_figure)
_figure.register(HeadScores, scores_figure)
_figure.register(Neurons, neurons_figure)


# Diagrams


@singledispatch
def dot_of(result: Any, **options: Any) -> Digraph:
    """The Graphviz diagram of any result: a circuit, a wiring, or heads with their effects."""
    plot = heads_of_result(result)
    effects = [(row.name, row.effect) for row in plot.rows[:_MOST]]
    carriers = {row.name for row in plot.rows if row.carries}
    return heads_to_dot([HeadGroup(plot.title, effects, carriers)], **options)


dot_of.register(Circuit, to_dot)
dot_of.register(Wiring, wiring_dot)


@dot_of.register
def _(ranking: Ranking, **options: Any) -> Digraph:
    return heads_to_dot([_ranked_group(ranking)], **options)


@dot_of.register
def _(comparison: TaskComparison, **options: Any) -> Digraph:
    return heads_to_dot(
        [_ranked_group(ranking) for ranking in comparison.rankings[0]], **options
    )


def _ranked_group(ranking: Ranking) -> HeadGroup:
    effects = [(str(each.unit), each.effect) for each in ranking.ranked[:_MOST]]
    return HeadGroup(ranking.model, effects, {str(unit) for unit in ranking.needed()})


@dot_of.register
def _(why: Why, **options: Any) -> Digraph:
    groups = []
    for side in why.sides:
        effects = [(str(writer), writer.effect) for writer in side.writers[:_MOST_WRITERS]]
        leading = {str(writer) for writer in side.writers[: side.leading]}
        groups.append(HeadGroup(f"{why.head}.{side.side}", effects, leading))
    return heads_to_dot(groups, **options)


# Notebooks and pages


@singledispatch
def html_of(result: Any) -> str:
    """A result for a notebook: its picture, then its tables."""
    picture = io.BytesIO()
    with canvas.looks():
        figure_of(result).savefig(picture, format="svg", metadata={"Date": None})
    svg = picture.getvalue().decode()
    return f'<div style="max-width:70em">{svg[svg.index("<svg") :]}{_tables_of(result)}</div>'


html_of.register(Circuit, tables.to_html)


@singledispatch
def _tables_of(result: Any) -> str:
    return f"<pre>{html.escape(str(result))}</pre>"


@_tables_of.register
def _(mapping: Mapping) -> str:
    rows = heads_of_result(mapping).rows[:_MOST]
    lines = "\n".join(f"{row.name:8}{row.effect:z.3f}" for row in rows)
    return f"<pre>{html.escape(lines)}</pre>"


@_tables_of.register
def _(why: Why) -> str:
    return "".join(map(tables.section_html, wiring.why_sections(why)))


@_tables_of.register
def _(result: Wiring) -> str:
    return "".join(map(tables.section_html, wiring.wiring_sections(result)))


@singledispatch
def page_of(result: Any) -> str:
    """A result as one HTML file that needs no network; of a circuit, a page to explore it in."""
    title = html.escape(_page_title(result))
    head = f'<meta charset="utf-8"><title>{title}</title><meta name="generator" content="{SIGNATURE}">'
    return f"<!doctype html>{head}<style>{_STYLE}</style>{html_of(result)}\n"


page_of.register(Circuit, to_page)


def _page_title(result: Any) -> str:
    """What a browser shows in its tab."""
    if isinstance(result, Wiring):
        return f"{wiring.headline(result)}, {spell(result.source.name)}"
    return type(result).__name__


# Files


def save_picture(result: Any, path: str | Path, **options: Any) -> Path:
    """Write the figure, the page or the diagram of a result, by the ending of the path."""
    path = Path(path)
    if path.suffix not in PICTURES:
        raise FileError(
            f"cannot save {path.name!r}: give it one of the endings {' '.join(PICTURES)}"
        )
    if path.suffix == ".html":
        return canvas.write_file(path, page_of(result, **options).encode())
    if path.suffix == ".dot":
        return canvas.write_file(path, dot_of(result, **options).source.encode())
    return canvas.save_figure(
        figure_of(result, **options), path.parent, [path.suffix[1:]], name=path.stem
    )[0]
