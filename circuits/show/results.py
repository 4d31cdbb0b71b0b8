"""The pictures of every kind of result; the methods `figure`, `page`, `to_dot` and `save` lead here.

1. `figure_of`, `dot_of`, `html_of` and `page_of` choose by the class of the result (`singledispatch`).
2. A result without a picture of its own has heads with effects: `head_plots` draws them.
3. The ending of a path says what is written: .svg, .png, .pdf the figure, .html the page, .dot the diagram.
"""

from __future__ import annotations

import html
import io
from functools import singledispatch
from pathlib import Path
from typing import Any, Final

from graphviz import Digraph
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.errors import FileError, PromptError
from circuits.files import SIGNATURE
from circuits.instruments.grids import OnAxes
from circuits.instruments.reading_records import HeadScores, LogitAttribution, LogitLens
from circuits.results import PICTURES
from circuits.show import canvas, tables, wiring
from circuits.show.curves import keep_curves
from circuits.show.diagram import circuit_figure
from circuits.show.dot import HeadGroup, heads_to_dot, to_dot
from circuits.show.figure import mapping_figure
from circuits.show.grids import comparison_grid
from circuits.show.head_plots import MOST, heads_of_result, plot_heads
from circuits.show.heatmaps import grid_figure
from circuits.show.neuron_figures import neurons_figure
from circuits.show.page import to_page
from circuits.show.reading_figures import attribution_figure, lens_figure, scores_figure
from circuits.show.why import why_figure, why_sections
from circuits.show.wiring_dot import wiring_dot
from circuits.show.wiring_figure import wiring_figure
from circuits.show.words import spell
from circuits.tasks.comparison import TaskComparison
from circuits.tasks.ranking import Ranking
from circuits.tracing import Mapping
from circuits.tracing.neuron_record import Neurons
from circuits.tracing.records import Circuit
from circuits.tracing.why_record import Why
from circuits.wires.record import Wiring

_MOST_WRITERS: Final = 8  # of each side of a head in a diagram
# Their figures have more than one panel.
_SEVERAL_PANELS: Final = (Circuit, TaskComparison, Wiring, Why, HeadScores)
_STYLE: Final = (
    "body{font:14px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}svg{max-width:100%}"
)


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


def figure_of_circuit(circuit: Circuit, *, kind: str | None = None, **options: Any) -> Figure:
    """The figure of a `kind`: "mapping", or "circuit", the default where no mapping was asked for."""
    if kind is None:
        kind = "circuit" if circuit.focus is None else "mapping"
    if kind == "circuit":
        return circuit_figure(circuit, **options)
    if kind == "mapping":
        return mapping_figure(circuit, **options)
    raise PromptError(f"a circuit is drawn as kind='circuit' or 'mapping', not {kind!r}")


_figure = singledispatch(plot_heads)
_figure.register(Circuit, figure_of_circuit)
_figure.register(TaskComparison, comparison_grid)
_figure.register(Ranking, keep_curves)
_figure.register(Wiring, wiring_figure)
_figure.register(Why, why_figure)
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
    effects = [(row.name, row.effect) for row in plot.rows[:MOST]]
    carriers = {row.name for row in plot.rows if row.carries}
    return heads_to_dot([HeadGroup(plot.finding, effects, carriers)], **options)


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
    effects = [(str(each.unit), each.effect) for each in ranking.ranked[:MOST]]
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
    rows = heads_of_result(mapping).rows[:MOST]
    lines = "\n".join(f"{row.name:8}{row.effect:z.3f}" for row in rows)
    return f"<pre>{html.escape(lines)}</pre>"


@_tables_of.register
def _(why: Why) -> str:
    return "".join(map(tables.section_html, why_sections(why)))


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
