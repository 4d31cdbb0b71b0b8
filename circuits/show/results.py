"""The pictures of every result, by its kind: `figure`, `page`, `to_dot`, `save` and `_repr_html_` lead here.

1. The table says which kinds have a figure of their own. Whatever else has heads (a mapping, a family, a
   sweep, two circuits) has a plot of their effects.
2. A file is written by its ending: .svg, .png, .pdf the figure, .html the page, .dot the diagram.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import graphviz
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.errors import FileError, PromptError
from circuits.results import PICTURES
from circuits.show import canvas, dot, tables
from circuits.show.words import spell
from circuits.show.canvas import INK, LINE, MUTED, RED, SMALL, looks

if TYPE_CHECKING:
    from circuits.components import Head
    from circuits.tracing import Interval

_MOST: Final = 24  # heads in a plot
_SEEN: Final = 0.01  # of the strongest effect: what is less is not seen
_FIGURES: Final = {  # kind -> (module, function); a module is imported when it is first needed
    "Circuit": ("figure", "figure_of_circuit"),
    "TaskComparison": ("grids", "comparison_grid"),
    "Ranking": ("curves", "keep_curves"),
    "Wiring": ("wiring", "wiring_figure"),
    "Why": ("wiring", "why_figure"),
}
_SEVERAL: Final = ("Circuit", "TaskComparison", "Wiring", "Why")  # their figures have more than one panel
_HALF: Final = "carries in at least half of the lines"
_MARKED: Final = {  # what a diamond says, where it is more than a carrier
    "Comparison": "carries in both",
    "MeanCircuit": _HALF,
    "Stability": "in the core",
    "Sweep": _HALF,
}
_STYLE: Final = "body{font:14px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}svg{max-width:100%}"


@dataclass(frozen=True, slots=True)
class HeadRow:
    """One head: its effect, perhaps with an interval or a second effect beside it."""

    name: str
    effect: float
    low: float | None = None
    high: float | None = None
    before: float | None = None
    carries: bool = False


def heads_of_result(result: Any) -> tuple[str, list[HeadRow]]:
    """A title, and the heads of a mapping, a family, a sweep or a comparison, strongest first."""
    kind = type(result).__name__
    if kind == "Mapping":
        carriers = result.carriers()
        rows = [HeadRow(str(each.head), each.effect, carries=each.head in carriers) for each in result.heads]
        return f"key {result.key} → query {result.query}, total {result.total:z.2f}", rows
    if kind == "FamilyTrace":
        carriers = result.carriers()
        rows = [_mean_row(head, effect, head in carriers) for head, effect in result.heads]
        return f"{spell(result.model)}, {len(result.pairs)} pairs, total {result.total.mean:z.2f}", rows
    if kind == "Stability":
        core = result.core
        rows = [_mean_row(each.head, each.effect, each.head in core) for each in result.heads]
        runs = f"{len(result.counterfactuals)} counterfactuals, total {result.total.mean:z.2f}"
        return f"key {result.key} → query {result.query}, {runs}", rows
    if kind == "Sweep":
        return heads_of_result(result.mean())
    if kind == "MeanCircuit":
        rows = [_mean_row(each.head, each.effect, each.carries >= 0.5) for each in result.heads]
        return f"{spell(result.model)}, mean of {result.lines} lines, total {result.total.mean:z.2f}", rows
    if kind == "Comparison":
        (first, second), both = map(spell, result.names), result.overlap
        rows = [
            HeadRow(str(each.head), each.after, before=each.before, carries=each.head in both)
            for each in result.moved
        ]
        return f"{first} (open) → {second} (filled), {result.key}→{result.query}", rows
    raise PromptError(f"there is no picture of a {kind}; draw a circuit, a ranking, a sweep or a comparison")


def _mean_row(head: Head, effect: Interval, carries: bool) -> HeadRow:
    return HeadRow(str(head), effect.mean, effect.low, effect.high, carries=carries)


def figure_of(result: Any, *, ax: Axes | None = None, **options: Any) -> Figure:
    """The figure of any result; `ax` takes a plot of a single panel."""
    kind = type(result).__name__
    if ax is not None:
        if kind in _SEVERAL:
            raise PromptError(
                f"the figure of a {kind} is more than one panel; give it a figure= instead of ax="
            )
        options["ax"] = ax
    if kind in _FIGURES:
        module, name = _FIGURES[kind]
        return getattr(import_module(f"circuits.show.{module}"), name)(result, **options)
    options = {"marked": _MARKED.get(kind, "carrier")} | options
    return canvas.figure_around(effects_plot(*heads_of_result(result), **options))


def effects_plot(
    title: str, rows: Sequence[HeadRow], *, most: int = _MOST, marked: str = "carrier", ax: Axes | None = None
) -> Axes:
    """Heads with their effects, strongest above, intervals as lines; those that carry are red diamonds, and
    `marked` says what that means."""
    ranked = sorted(rows, key=lambda row: -abs(row.effect))[:most]
    least = _SEEN * max((abs(row.effect) for row in ranked), default=0.0)
    shown = [row for row in ranked if row.carries or row.before is not None or abs(row.effect) >= least]
    with looks():
        if ax is None:
            ax = canvas.new_axes(canvas.COLUMN, 0.75 + 0.145 * max(len(shown), 2))
        for y, row in enumerate(shown):
            colour = RED if row.carries else canvas.effect_colour(row.effect)
            if row.low is not None and row.high is not None:
                ax.plot([row.low, row.high], [y, y], color=colour, linewidth=1.6, alpha=0.5, zorder=2)
            if row.before is not None:
                ax.plot([row.before, row.effect], [y, y], color=LINE, linewidth=0.8, zorder=1)
                ax.plot([row.before], [y], "o", color=INK, markerfacecolor="none", markersize=3.5, zorder=3)
            shape, size = ("D", 4) if row.carries else ("o", 3)
            ax.plot([row.effect], [y], shape, color=colour, markersize=size, zorder=4)
        ax.axvline(0, color=LINE, linewidth=0.6, zorder=0)
        bars = "; bars: 95% intervals" if any(row.low is not None for row in shown) else ""
        ax.set_ylim(max(len(shown), 2) - 0.4, -0.6)
        ax.set_xlabel(f"effect (share of the gap)\n◆ {marked}{bars}", fontsize=SMALL)
        ax.set_yticks(range(len(shown)), [row.name for row in shown])
        more = f", the strongest {len(shown)} of {len(rows)}" if len(rows) > len(shown) else ""
        ax.set_title(f"{title}{more}", fontsize=SMALL, loc="left", wrap=True)
        ax.tick_params(length=2, labelsize=SMALL, color=MUTED)
        ax.spines[["top", "right"]].set_visible(False)
    return ax


def dot_of(result: Any, **options: Any) -> graphviz.Digraph:
    """The diagram of any result: a circuit's own, or its heads with what they do."""
    kind = type(result).__name__
    if kind == "Circuit":
        return dot.to_dot(result, **options)
    if kind == "Wiring":
        from circuits.show.wiring import wiring_scene

        return dot.graph_to_dot(wiring_scene(result).graph, **options)
    groups: dict[str, list[tuple[str, float]]] = {}
    needed: dict[str, set[str]] = {}
    if kind in ("Ranking", "TaskComparison"):
        for ranking in result.rankings[0] if kind == "TaskComparison" else (result,):
            groups[ranking.model] = [(str(each.unit), each.effect) for each in ranking.ranked[:_MOST]]
            needed[ranking.model] = {str(unit) for unit in ranking.needed()}
    elif kind == "Why":
        for side in result.sides:
            name = f"{result.head}.{side.side}"
            groups[name] = [(str(writer), writer.effect) for writer in side.writers[:8]]
            needed[name] = {str(writer) for writer in side.writers[: side.leading]}
    else:
        title, rows = heads_of_result(result)
        groups[title] = [(row.name, row.effect) for row in rows[:_MOST]]
        needed[title] = {row.name for row in rows if row.carries}
    return dot.heads_to_dot(groups, needed, **options)


def html_of(result: Any) -> str:
    """A result for a notebook: its picture, then its tables."""
    if type(result).__name__ == "Circuit":
        return tables.to_html(result)
    picture = io.BytesIO()
    with looks():
        figure_of(result).savefig(picture, format="svg", metadata={"Date": None})
    svg = picture.getvalue().decode()
    return f'<div style="max-width:70em">{svg[svg.index("<svg") :]}{_tables_of(result)}</div>'


def _tables_of(result: Any) -> str:
    """Tables where a result has them, else its text."""
    kind, text = type(result).__name__, str(result)
    if kind in ("Why", "Wiring"):
        from circuits.show.wiring import why_sections, wiring_sections

        sections = why_sections(result) if kind == "Why" else wiring_sections(result)
        return "".join(map(tables.section_html, sections))
    if kind == "Mapping":
        text = "\n".join(f"{row.name:8}{row.effect:z.3f}" for row in heads_of_result(result)[1][:_MOST])
    return f"<pre>{html.escape(text)}</pre>"


def page_of(result: Any, **options: Any) -> str:
    """A result as one HTML file that needs no network; of a circuit, a page to explore it in."""
    if type(result).__name__ == "Circuit":
        from circuits.show.page import to_page

        return to_page(result, **options)
    title = html.escape(type(result).__name__)
    head = f'<meta charset="utf-8"><title>{title}</title><meta name="generator" content="{canvas.SIGNATURE}">'
    return f"<!doctype html>{head}<style>{_STYLE}</style>{html_of(result)}\n"


def save_picture(result: Any, path: str | Path, **options: Any) -> Path:
    """Write the figure, the page or the diagram of a result, by the ending of the path."""
    path = Path(path)
    if path.suffix not in PICTURES:
        raise FileError(f"cannot save {path.name!r}: give it one of the endings {' '.join(PICTURES)}")
    if path.suffix == ".html":
        return canvas.write_file(path, page_of(result, **options).encode())
    if path.suffix == ".dot":
        return canvas.write_file(path, dot_of(result, **options).source.encode())
    return canvas.save_figure(figure_of(result, **options), path.parent, [path.suffix[1:]], name=path.stem)[0]
