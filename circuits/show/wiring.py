"""Who wrote what: answers of `why` and wirings as text and as pictures, a wiring also as a graph.

1. Of `why`: the three sides of the head, and of each side its leading writers.
2. Of a wiring the question comes first, then how much the drawn wires explain beside random ones, then every
   wire: nodes from the logits down, of each node its sides and their writers, the strongest first.
3. The graph has `position` and `layer` on its nodes, side and effect on its edges. It is drawn on the scale
   of layers, as a circuit is.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from circuits.components import Side
from circuits.show import OUTPUT, Scene, canvas, counterfactual_words, listed, metric_words, plural, spell
from circuits.show.canvas import INK, LINE, MUTED, SMALL, effect_colour
from circuits.show.diagram import scene_figure
from circuits.show.tables import (
    MOST_WORDS,
    Section,
    asked_rows,
    model_words,
    note_line,
    plain,
    token,
    visible,
)
from circuits.tracing.records import SideWriters, WriterEffect
from circuits.tracing.wiring_record import Node

if TYPE_CHECKING:
    from circuits.components import Wire
    from circuits.tracing.records import Ledger, Why
    from circuits.tracing.wiring_record import WireEffect, Wiring

Bars = tuple["SideWriters", *tuple["WriterEffect", ...]]  # a whole side, and its leading writers

_MOST: Final = 8  # writers and parts that are printed
_BARS: Final = 9  # of one side: the whole of it and its leading writers
_NARROW: Final = 0.5  # the width of a side that no writer fills, beside one that some do
_IDLE: Final = 0.3  # and of one that does nothing
_WORDS: Final = 16  # tokens whose words stand along the map
_SMALL: Final = 0.0005  # effects below this are not listed
_SAYS: Final[dict[Side, str]] = {
    "query": "query (what it asks for)",
    "key": "key (what it finds)",
    "value": "value (what it moves)",
}
_MOST_WIRES: Final = 80  # rows of the table
_LITTLE: Final = 0.5  # of the gap: what explains less comes with a note
_MOST_CUT: Final = 8  # nodes that were not explored
_HOW: Final = (
    "A head or an MLP stands at its position and layer; a wire is as wide as its effect. It enters a head by "
    "its query (solid), its key (dashed) or its value (dotted). Filled: the strongest way to the output."
)


def why_text(why: Why) -> str:
    """The answer as plain text, 100 columns wide."""
    return plain(why_sections(why))


def why_sections(why: Why) -> list[Section]:
    """The head and its sides, the writers of each side, and the ledger of its score."""
    sections = [_head(why), *(_side(side) for side in why.sides)]
    return sections if why.ledger is None else [*sections, _ledger(why.ledger)]


def ends(why: Why) -> str:
    """`Ben(9) → to(13)`."""
    return f"{'every key' if why.every_key else token(why, why.key)} → {token(why, why.query)}"


def _head(why: Why) -> Section:
    title = f"{visible(why.source.name)}: why {why.head} reads {ends(why)}"
    look = f"attention {why.weight:.2f} in the clean run, {why.counterfactual_weight:.2f} in the other"
    parts = f"effect {why.effect:z.3f}; its weight alone {why.pattern:z.3f}"
    rows = tuple(
        (_SAYS[each.side], f"{each.effect:z.3f}", f"{each.weight:.2f}", _together(each)) for each in why.sides
    )
    columns = ("side", "effect", "attention then", "first writers together")
    question = f"{metric_words(why, longest=80)}, counterfactual {counterfactual_words(why, longest=80)}"
    return Section(title, (question, f"{look}; {parts}"), columns, rows)


def _together(side: SideWriters) -> str:
    return f"{side.together:z.3f} by {side.leading}" if side.leading else "nothing is below"


def _side(side: SideWriters) -> Section:
    shown = [each for each in side.writers if abs(each.effect) >= _SMALL][:_MOST]
    rows = tuple((str(each), f"{each.effect:z.3f}", f"{each.weight:.2f}") for each in shown)
    if not rows:
        return Section(f"Who wrote its {side.side}", ("no writer has an effect there",))
    return Section(f"Who wrote its {side.side}", (), ("writer", "effect", "attention then"), rows)


def _ledger(ledger: Ledger) -> Section:
    rows = tuple((each.query_writer, each.key_writer, f"{each.part:z.2f}") for each in ledger.parts[:_MOST])
    left = ledger.rest + sum(each.part for each in ledger.parts[_MOST:])
    lines = (f"the score is {ledger.score:z.2f}; the parts below and {left:z.2f} of all others add up to it",)
    return Section("Ledger of the clean score", lines, ("query writer", "key writer", "part"), rows)


def why_figure(why: Why, *, figure: Figure | None = None) -> Figure:
    """The head's map with the edge framed, and three columns of bars on one scale: each whole side, and below
    it its leading writers."""
    shown = [_bars(side) for side in why.sides]
    with canvas.looks():
        figure = Figure() if figure is None else figure
        figure.set_size_inches(canvas.WIDTH, 0.9 + 0.16 * max(map(len, shown)))
        figure.set_layout_engine("constrained")
        axes = figure.subplots(1, 4, width_ratios=(1.15, *map(_width, shown)))
        _draw_map(axes[0], why)
        effects = [each.effect for bars in shown for each in bars]
        limits = min(0.0, *effects), max(0.0, *effects)
        room = 0.28 * (limits[1] - limits[0] or 1.0)
        for axis, bars in zip(axes[1:], shown, strict=True):
            if _width(bars) == _IDLE:
                _draw_idle(axis, bars[0])
                continue
            _draw_bars(axis, bars)
            axis.set_xlim(limits[0] - room * (limits[0] < 0), limits[1] + room)
            axis.set_ylim(max(map(len, shown)) - 0.5, -0.5)  # bars of all sides stand in the same rows
        words = f"{spell(why.source.name, longest=40)}: {why.head}, {ends(why)}"
        figure.suptitle(f"{words}; effect {why.effect:z.2f}", fontsize=canvas.BODY, ha="left", x=0.01)
    return figure


def fill_with_why(folder: Path, why: Why) -> None:
    """Write the answer and its picture into a folder."""
    why.save(folder)
    canvas.save_figure(why_figure(why), folder, name="why")


def _draw_map(axis: Axes, why: Why) -> None:
    """The attention map, query upwards, with the edge framed."""
    length = len(why.prompt)
    axis.set(title="attention", xlabel="key", ylabel="query")
    if why.attention is None:
        axis.text(0.5, 0.5, f"{length} tokens", ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return
    axis.imshow(why.attention, cmap=canvas.colormap(), vmin=0, vmax=1, origin="lower", aspect="equal")
    frame = {"fill": False, "edgecolor": canvas.RED, "linewidth": 1.2}
    axis.add_patch(Rectangle((why.key - 0.5, why.query - 0.5), 1, 1, **frame))
    ticks, names = sorted({0, why.key, why.query}), [*map(str, range(length))]
    if length <= _WORDS:
        ticks, names = [*range(length)], [spell(word, longest=9) for word in why.prompt.words]
        axis.tick_params(length=0, pad=1)
        axis.tick_params(axis="x", rotation=90)
    axis.set_xticks(ticks, [names[tick] for tick in ticks])
    axis.set_yticks(ticks, [names[tick] for tick in ticks])


def _bars(side: SideWriters) -> Bars:
    leading = [each for each in side.writers if abs(each.effect) >= _SMALL]
    return side, *leading[: _BARS - 1]


def _width(bars: Bars) -> float:
    """Of a side's column, beside the others."""
    if len(bars) > 1:
        return 1.0
    return _NARROW if abs(bars[0].effect) >= _SMALL else _IDLE


def _draw_idle(axis: Axes, side: SideWriters) -> None:
    """A side through which the counterfactual changes nothing: its number, and no empty plot."""
    axis.set_title(f"{side.side} side")
    axis.set_axis_off()
    text = f"no effect\n({side.effect:z.3f})"
    axis.text(0.0, 1.0, text, fontsize=SMALL, color=MUTED, va="top", transform=axis.transAxes)


def _draw_bars(axis: Axes, bars: Bars) -> None:
    names = ["whole side", *map(str, bars[1:])]
    effects = [each.effect for each in bars]
    colours = [INK, *map(effect_colour, effects[1:])]
    axis.barh(range(len(bars)), effects, color=colours, height=0.7)
    axis.set_yticks(range(len(bars)), names)
    axis.axvline(0, color=LINE, linewidth=0.6)
    axis.set_title(f"{bars[0].side} side")
    axis.set_xlabel("effect (share of the gap)", fontsize=SMALL)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    for number, effect in enumerate(effects):
        label = {"xytext": (2, 0), "textcoords": "offset points", "va": "center", "fontsize": SMALL}
        axis.annotate(f"{effect:z.3f}", (max(effect, 0.0), number), **label)


def wiring_text(wiring: Wiring) -> str:
    """The wiring as plain text, 100 columns wide."""
    return plain(wiring_sections(wiring))


def wiring_sections(wiring: Wiring) -> list[Section]:
    """The question, how much is explained, and the wires."""
    return [_question(wiring), _explained(wiring), _wires(wiring)]


def _question(wiring: Wiring) -> Section:
    length = len(wiring.prompt)
    words = [token(wiring, position) for position in range(min(length, MOST_WORDS))]
    prompt = " ".join(words) + (" …" if length > MOST_WORDS else "")
    rows = [("prompt", prompt), *asked_rows(wiring)]
    roles = [f"{visible(role)} is {token(wiring, position)}" for role, position in wiring.roles]
    rows += [("roles", ", ".join(roles))] if roles else []
    return Section(model_words(wiring.source), tuple(map(note_line, wiring.notes)), rows=tuple(rows))


def _explained(wiring: Wiring) -> Section:
    random, nodes = wiring.random, wiring.nodes
    kinds = Counter(node.component.kind for node in nodes if node.component)
    counts = f"{kinds['head']} heads and {kinds['mlp']} MLPs at positions, embeddings, logits"
    chance = f"mean {random.mean:z.3f}, largest {random.largest:z.3f} of {random.draws} draws"
    rows = [
        ("kept", f"{wiring.kept:z.3f} of the gap is left when all other wires are swapped in one run"),
        ("random", f"{chance} of as many wires, walked back at random"),
        ("nodes", f"{len(nodes)}: {counts}"),
        ("measured", f"{wiring.measured:,} wires and sides, each in a run of its own, {wiring.engine} path"),
    ]
    if wiring.cut:
        names = listed([node_name(wiring, node) for node in wiring.cut], most=_MOST_CUT)
        rows.append(("cut", f"{len(wiring.cut)} not explored, as {wiring.most} were: {names}"))
    smaller = "Note: most of the gap runs along smaller wires; a smaller least draws more of them"
    lines = (smaller,) if wiring.kept < _LITTLE else ()
    title = f"{plural(len(wiring.wires), 'wire')} of at least {wiring.least:g} of the gap"
    return Section(title, lines, rows=tuple(rows))


def _wires(wiring: Wiring) -> Section:
    """One row a wire; what is the same as in the row above is not said again. A side that no writer fills
    alone has a row, too."""
    order = {node: number for number, node in enumerate(reversed(wiring.nodes))}
    followed = [each for each in wiring.sides if Node.read(each.wire) in order]
    followed.sort(key=lambda each: (order[Node.read(each.wire)], -abs(each.effect), str(each.wire)))
    rows, last = [], None
    for side in followed:
        reader = Node.read(side.wire)
        own = [each for each in wiring.wires if _side_of(each.wire) == _side_of(side.wire)]
        writers = [(node_name(wiring, Node.written(each.wire)), f"{each.effect:z.3f}") for each in own]
        for number, writer in enumerate(writers or [("(no writer alone)", "")]):
            seen = ("", "") if number else (side_name(wiring, side.wire), f"{side.effect:z.3f}")
            rows.append(("" if reader == last else node_name(wiring, reader), *seen, *writer))
            last = reader
    if not rows:
        return Section(lines=(f"no wire carries {wiring.least:g} or more of the gap",))
    more = (f"the first {_MOST_WIRES} of {len(rows)} rows:",) if len(rows) > _MOST_WIRES else ()
    columns = ("reader", "side", "its effect", "writer", "effect")
    return Section("Wires, from the logits down", more, columns, tuple(rows[:_MOST_WIRES]))


# Names


def node_name(wiring: Wiring, node: Node) -> str:
    """A node with its position by role where it has one: `L4H4@END`."""
    if node.component is None or node.position is None:
        return str(node)
    return f"{node.component}@{visible(wiring.position_name(node.position))}"


def side_name(wiring: Wiring, wire: Wire) -> str:
    """`query`, or of keys and values which position: `value of S2`."""
    kind = wire.reader.kind
    if kind in ("mlp", "logits"):
        return ""
    if kind == "query" or wire.position is None:
        return kind
    return f"{kind} of {visible(wiring.position_name(wire.position))}"


def _side_of(wire: Wire) -> tuple[Any, ...]:
    return wire.reader, wire.position, wire.query


# The graph


def wiring_graph(wiring: Wiring) -> nx.MultiDiGraph:
    """Nodes are components at positions and the logits; edges are wires, several between two nodes where a
    head is read into on several sides."""
    graph = nx.MultiDiGraph(
        model=wiring.source.name,
        layers=wiring.source.layers,
        tokens=[spell(word) for word in wiring.prompt.words],
        roles=dict(wiring.roles),
        gap=wiring.gap,
        kept=wiring.kept,
        random=wiring.random.mean,
        least=wiring.least,
    )
    for node in wiring.nodes:
        graph.add_node(str(node), **_node(wiring, node))
    whole = {_side_of(each.wire): each.effect for each in wiring.sides}
    for each in wiring.wires:
        ends = str(Node.written(each.wire)), str(Node.read(each.wire))
        graph.add_edge(*ends, key=str(each.wire), **_edge(each, whole.get(_side_of(each.wire))))
    return graph


def _node(wiring: Wiring, node: Node) -> dict[str, Any]:
    """What a picture needs of a node: its column, its row, its kind and its words."""
    last, component = len(wiring.prompt) - 1, node.component
    position = last if node.position is None else node.position
    strongest = max(
        (abs(each.effect) for each in wiring.wires if Node.written(each.wire) == node), default=1.0
    )
    kind, layer, label = "logits", wiring.source.layers, spell(wiring.output.token)
    if component is not None:
        kind, layer = component.kind, component.layer
        label = spell(wiring.prompt.words[position]) if kind == "embed" else str(component)
    return {
        "kind": kind,
        "layer": layer,
        "position": position,
        "label": label,
        "token": spell(wiring.prompt.words[position]),
        "role": next((role for role, index in wiring.roles if index == position), ""),
        "effect": strongest,
        "explored": node not in wiring.cut,
    }


def _edge(each: WireEffect, whole: float | None) -> dict[str, Any]:
    """`side` is query, key, value, mlp or logits; `side_effect` that of all its writers at once."""
    wire = each.wire
    return {
        "kind": "wire",
        "side": wire.reader.kind,
        "effect": each.effect,
        "side_effect": each.effect if whole is None else whole,
        "from_position": wire.position,
        "to_position": wire.position if wire.query is None else wire.query,
    }


# The picture


def wiring_figure(wiring: Wiring, **options: Any) -> Figure:
    """The wires on a scale of layers, with a caption that says how much they explain."""
    shares = f"{wiring.kept:z.0%} of the gap, as many random ones {wiring.random.mean:z.0%}"
    caption = f"{len(wiring.wires)} wires of {wiring.least:g} or more; together they keep {shares}. "
    options = {"title": wiring.source.name, "how": _HOW, "caption": caption} | options
    return scene_figure(wiring_scene(wiring), **options)


def wiring_scene(wiring: Wiring) -> Scene:
    """The graph of a wiring as it is drawn on a scale of layers, the strongest way to the output in front."""
    given, last, output = wiring_graph(wiring), len(wiring.prompt) - 1, wiring.output
    graph = nx.MultiDiGraph(model=given.graph["model"], layers=given.graph["layers"], reads_bos=False)
    positions = [node["position"] for node in given.nodes.values()]
    graph.graph |= {"words": list(wiring.prompt.words), "anchors": list(dict.fromkeys([last, *positions]))}
    front = _strongest_way(given)
    in_front = {name for start, end, _ in front for name in (start, end)}
    for name, node in given.nodes.items():
        look = {"box": False, "front": name in in_front, "lines": [node["label"]]}
        graph.add_node(
            OUTPUT if node["kind"] == "logits" else name, **node, positions=[node["position"]], **look
        )
    lines = [spell(output.token), f"layer {output.layer}", f"p = {output.probability:.2f}"]
    graph.add_node(OUTPUT, kind="logits", label="logits", positions=[last], lines=lines, box=False)
    for start, end, key, wire in given.edges(keys=True, data=True):
        target = OUTPUT if given.nodes[end]["kind"] == "logits" else end
        graph.add_edge(start, target, key=key, **wire, front=(start, end, key) in front)
    return Scene(wiring, graph)  # type: ignore[arg-type]  # only the graph is drawn


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
