"""The pictures of every result, by its kind: `figure`, `page`, `to_dot`, `save` and `_repr_html_` lead here.

1. A circuit has figures, a diagram and a page of its own. What is ranked or compared on tasks has curves and
   grids. Whatever else has heads (a mapping, a family, a sweep, two circuits) has a plot of effects.
2. A graph of components and wires is drawn on the scale of layers, as a circuit is.
3. A file is written by its ending: .svg, .png, .pdf the figure, .html the page, .dot the diagram.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import graphviz
import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.errors import FileError, PromptError
from circuits.links import PICTURES
from circuits.show import OUTPUT, Scene, canvas, spell
from circuits.show.canvas import INK, LINE, MUTED, RED, SMALL, looks

_MOST: Final = 24  # heads in a plot
_SEEN: Final = 0.01  # of the strongest effect: what is less is not seen
_WIDTH: Final = 3.4  # inches: one column of two
_WIRES: Final = (
    "A head or an MLP stands at its position and layer; a wire is as wide as its effect. It enters a head by "
    "its query (solid), its key (dashed) or its value (dotted). Filled: the strongest way to the output."
)
_HALF: Final = "carries in at least half of the lines"
_MARKED: Final = {  # what a diamond says, where it is more than a carrier
    "Comparison": "carries in both",
    "MeanCircuit": _HALF,
    "Stability": "in the core",
    "Sweep": _HALF,
}
_SEVERAL: Final = ("Circuit", "TaskComparison", "Wiring", "Why")
_STYLE: Final = "body{font:14px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}svg{max-width:100%}"


@dataclass(frozen=True, slots=True)
class HeadRow:
    """What is known of one head: its effect, perhaps with an interval or a second effect beside it."""

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
        rows = [HeadRow(str(h), e.mean, e.low, e.high, carries=h in carriers) for h, e in result.heads]
        return f"{spell(result.model)}, {len(result.pairs)} pairs, total {result.total.mean:z.2f}", rows
    if kind == "Stability":
        core = {each.head for each in result.heads if each.head in result.core}
        each = [(each.head, each.effect) for each in result.heads]
        rows = [HeadRow(str(h), e.mean, e.low, e.high, carries=h in core) for h, e in each]
        runs = f"{len(result.counterfactuals)} counterfactuals, total {result.total.mean:z.2f}"
        return f"key {result.key} → query {result.query}, {runs}", rows
    if kind == "Sweep":
        return heads_of_result(result.mean())
    if kind == "MeanCircuit":
        rows = [
            HeadRow(str(m.head), m.effect.mean, m.effect.low, m.effect.high, carries=m.carries >= 0.5)
            for m in result.heads
        ]
        return f"{spell(result.model)}, mean of {result.lines} lines, total {result.total.mean:z.2f}", rows
    if kind == "Comparison":
        both, (first, second) = {str(head) for head in result.overlap}, map(spell, result.names)
        each = [(str(moved.head), moved.before, moved.after) for moved in result.moved]
        rows = [HeadRow(name, after, before=before, carries=name in both) for name, before, after in each]
        return f"{first} (open) → {second} (filled), {result.key}→{result.query}", rows
    raise PromptError(f"there is no picture of a {kind}; draw a circuit, a ranking, a sweep or a comparison")


def figure_of(result: Any, *, ax: Axes | None = None, **options: Any) -> Figure:
    """The figure of any result; `ax` takes a plot of a single panel."""
    kind = type(result).__name__
    if ax is not None and kind in _SEVERAL:
        raise PromptError(f"the figure of a {kind} is more than one panel; give it a figure= instead of ax=")
    if kind == "Circuit":
        from circuits.show.diagram import circuit_figure
        from circuits.show.figure import mapping_figure

        drawn = options.pop("kind", "circuit" if result.focus is None else "mapping")
        draw = {"circuit": circuit_figure, "mapping": mapping_figure}.get(drawn)
        if draw is None:
            raise PromptError(f"a circuit is drawn as kind='circuit' or 'mapping', not {drawn!r}")
        return draw(result, **options)
    if kind == "TaskComparison":
        from circuits.show.grids import comparison_grid

        return comparison_grid(result, **options)
    if kind == "Ranking":
        from circuits.show.curves import keep_curves

        return keep_curves(result, ax=ax, **options)
    if kind == "Wiring":
        from circuits.show.diagram import scene_figure

        options = {"title": result.source.name, "how": _WIRES, "caption": _wiring_caption(result)} | options
        return scene_figure(wiring_scene(result), **options)
    if kind == "Why":
        from circuits.show.wiring import why_figure

        return why_figure(result, **options)
    options = {"marked": _MARKED.get(kind, "carrier")} | options
    return canvas.figure_around(effects_plot(*heads_of_result(result), ax=ax, **options))


def wiring_scene(wiring: Any) -> Scene:
    """The graph of a wiring as it is drawn on a scale of layers, the strongest way to the output in front."""
    given, last = wiring.to_graph(), len(wiring.prompt) - 1
    graph = nx.MultiDiGraph(model=given.graph["model"], layers=given.graph["layers"], reads_bos=False)
    where = [node["position"] for node in given.nodes.values()]
    graph.graph |= {"words": list(wiring.prompt.words), "anchors": list(dict.fromkeys([last, *where]))}
    front = _strongest_way(given)
    in_front = {end for start, end, _ in front} | {start for start, *_ in front}
    for name, node in given.nodes.items():
        shown = dict(
            node, positions=[node["position"]], box=False, front=name in in_front, lines=[node["label"]]
        )
        graph.add_node(OUTPUT if node["kind"] == "logits" else name, **shown)
    said = wiring.output
    lines = [spell(said.token), f"layer {said.layer}", f"p = {said.probability:.2f}"]
    graph.add_node(OUTPUT, kind="logits", label="logits", positions=[last], lines=lines, box=False)
    for start, end, key, wire in given.edges(keys=True, data=True):
        target = OUTPUT if given.nodes[end]["kind"] == "logits" else end
        graph.add_edge(start, target, key=key, **wire, front=(start, end, key) in front)
    return Scene(wiring, graph)


def _strongest_way(graph: nx.MultiDiGraph) -> set[tuple[str, str, str]]:
    """The wires of the way from a token to the logits whose weakest wire is strongest, if there is one."""
    best: dict[str, tuple[float, tuple[Any, ...]]] = {}
    for name, node in graph.nodes.items():
        best[name] = (math.inf if node["kind"] == "embed" else 0.0, ())
    for name in nx.topological_sort(graph):
        for start, _, key, effect in graph.in_edges(name, keys=True, data="effect"):
            reached = min(best[start][0], abs(effect))
            if reached > best[name][0]:
                best[name] = (reached, (*best[start][1], (start, name, key)))
    ends = [name for name, node in graph.nodes.items() if node["kind"] == "logits"]
    return {wire for name in ends for wire in best[name][1]}


def _wiring_caption(wiring: Any) -> str:
    kept = f"together they keep {wiring.kept:z.0%} of the gap, as many random ones {wiring.random.mean:z.0%}"
    return f"{len(wiring.wires)} wires of {wiring.least:g} or more; {kept}. "


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
            size = (_WIDTH, 0.75 + 0.145 * max(len(shown), 2))
            ax = Figure(figsize=size, dpi=300, layout="constrained").add_subplot()
        for y, row in enumerate(shown):
            colour = RED if row.carries else canvas.shade(0.75)
            colour = canvas.shade(-0.7, canvas.EFFECT) if row.effect < 0 and not row.carries else colour
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
    from circuits.show import dot

    kind = type(result).__name__
    if kind == "Circuit":
        return dot.to_dot(result, **options)
    if kind == "Wiring":
        return dot.graph_to_dot(wiring_scene(result).graph, **options)
    if kind in ("Ranking", "TaskComparison"):
        rankings = result.rankings[0] if kind == "TaskComparison" else (result,)
        each = {
            ranking.model: [(str(unit.unit), unit.effect) for unit in ranking.ranked[:_MOST]]
            for ranking in rankings
        }
        needed = {ranking.model: {str(unit) for unit in ranking.needed()} for ranking in rankings}
    elif kind == "Why":
        sides = {f"{result.head}.{side.side}": side for side in result.sides}
        each = {name: [(str(w), w.effect) for w in side.writers[:8]] for name, side in sides.items()}
        needed = {name: {str(w) for w in side.writers[: side.leading]} for name, side in sides.items()}
    else:
        title, rows = heads_of_result(result)
        each = {title: [(row.name, row.effect) for row in rows[:_MOST]]}
        needed = {title: {row.name for row in rows if row.carries}}
    return dot.heads_to_dot(each, needed, **options)


def html_of(result: Any) -> str:
    """A result for a notebook: its picture, then its tables."""
    from circuits.show import tables

    if type(result).__name__ == "Circuit":
        return tables.to_html(result)
    picture = io.BytesIO()
    with looks():
        figure_of(result).savefig(picture, format="svg", metadata={"Date": None})
    svg = picture.getvalue().decode()
    return f'<div style="max-width:70em">{svg[svg.index("<svg") :]}{_tables_of(result)}</div>'


def _tables_of(result: Any) -> str:
    """Tables where a result has them, else its text."""
    from circuits.show.tables import section_html
    from circuits.show.wiring import why_sections, wiring_sections

    sections = {"Why": why_sections, "Wiring": wiring_sections}.get(type(result).__name__)
    if sections is not None:
        return "".join(map(section_html, sections(result)))
    text = str(result)
    if type(result).__name__ == "Mapping":
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
    if path.suffix in (".html", ".dot"):
        text = page_of(result, **options) if path.suffix == ".html" else dot_of(result, **options).source
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        except OSError as why:
            raise FileError(f"cannot write {path}: {why.strerror or why}; choose another folder") from why
        return path
    return canvas.save_figure(figure_of(result, **options), path.parent, [path.suffix[1:]], name=path.stem)[0]
