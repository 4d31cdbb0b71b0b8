"""Who wrote what a head reads: answers of `why`, and wirings, as text, as pictures and as a graph.

1. An answer of `why` is printed as the three sides of the head (query, key, value), the strongest writers of
   each side, and the QK attribution of the attention score.
2. A wiring is printed as the question, how much of the gap its wires keep beside random ones, and the wires
   from the logits down: of each reader its sides, of each side its writers, strongest first.
3. The graph of a wiring has `position` and `layer` on its nodes, side and effect on its edges. It is drawn on
   the scale of layers, as a circuit is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from circuits.components import Side
from circuits.show import OUTPUT, Scene, canvas, counterfactual_words, listed, metric_words, plural, spell
from circuits.show.diagram import scene_figure
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import MOST_WORDS, SMALL, asked_rows, model_words, note_line, token, visible
from circuits.tracing.wiring_record import Node

if TYPE_CHECKING:
    from circuits.components import Wire
    from circuits.tracing.records import Ledger, SideWriters, Why
    from circuits.tracing.wiring_record import Wiring

_SIDES: Final[dict[Side, str]] = {
    "query": "query (what it asks for)",
    "key": "key (what it finds)",
    "value": "value (what it moves)",
}
_MOST_WRITERS: Final = 8  # writers of a side, and parts of a score
_MOST_ROWS: Final = 80  # of the table of wires
_MOST_NOT_EXPLORED: Final = 8  # nodes that are named
_LITTLE: Final = 0.5  # a wiring that keeps less of the gap has a note
_MOST_TICKS: Final = 16  # tokens along an attention map; of a longer prompt only key and query are named
_LEGEND: Final = (
    "A head or an MLP stands at its position and layer; a wire is as wide as its effect. It enters a head by "
    "its query (solid), its key (dashed) or its value (dotted). Filled: the strongest way to the output."
)


# Why, as text


def why_text(why: Why) -> str:
    """The answer as plain text, 100 columns wide."""
    return plain(why_sections(why))


def why_sections(why: Why) -> list[Section]:
    """The head and its sides, the writers of each side, and the QK attribution of its score."""
    sections = [_head(why)]
    for side in why.sides:
        sections.append(_side(side))
    if why.ledger is not None:
        sections.append(_qk_attribution(why.ledger))
    return sections


def _ends(why: Why) -> str:
    """`Ben(9) → to(13)`."""
    key = "every key" if why.every_key else token(why, why.key)
    return f"{key} → {token(why, why.query)}"


def _head(why: Why) -> Section:
    """What was asked, and a row for each side of the head."""
    lines = [
        f"{metric_words(why, longest=80)}, counterfactual {counterfactual_words(why, longest=80)}",
        f"attention {why.weight:.2f} (clean run) and {why.counterfactual_weight:.2f} (counterfactual run)",
        f"effect {why.effect:z.3f}, of its attention weight alone {why.pattern:z.3f}",
    ]
    columns = (
        Column("side"),
        Column("effect", "z.3f"),
        Column("attention then", ".2f"),
        Column("first writers together", ">"),
    )
    rows = []
    for side in why.sides:
        together = f"{side.together:z.3f} by {side.leading}" if side.leading else "no writer below"
        rows.append((_SIDES[side.side], side.effect, side.weight, together))
    return Section(f"{visible(why.source.name)}: why {why.head} reads {_ends(why)}", lines, columns, rows)


def _side(side: SideWriters) -> Section:
    writers = [each for each in side.writers if abs(each.effect) >= SMALL]
    title = f"Who wrote its {side.side}"
    if not writers:
        return Section(title, ["no writer has an effect there"])
    rows = [(each, each.effect, each.weight) for each in writers[:_MOST_WRITERS]]
    columns = (Column("writer"), Column("effect", "z.3f"), Column("attention then", ".2f"))
    return Section(title, (), columns, rows)


def _qk_attribution(ledger: Ledger) -> Section:
    """The largest parts of the clean score, each by one writer of the query and one of the key."""
    shown = ledger.parts[:_MOST_WRITERS]
    left = ledger.rest + sum(each.part for each in ledger.parts[_MOST_WRITERS:])
    line = f"the score is {ledger.score:z.2f}; the parts below and {left:z.2f} of all others add up to it"
    rows = [(each.query_writer, each.key_writer, each.part) for each in shown]
    columns = (Column("query writer"), Column("key writer"), Column("part", "z.2f"))
    return Section("QK attribution of the clean score", [line], columns, rows)


# Why, as a picture


def why_figure(why: Why, *, figure: Figure | None = None) -> Figure:
    """The attention map with the edge framed, and a column of bars for each side of the head.

    The first bar of a column is the whole side, the others are its strongest writers. All columns have one
    scale. A side without an effect has its number in place of bars.
    """
    sides = [_bars(side) for side in why.sides]
    most_bars = max(map(len, sides))
    effects = [effect for bars in sides for _, effect in bars]
    low, high = min(0.0, *effects), max(0.0, *effects)
    room = 0.28 * (high - low or 1.0)  # for the number beside a bar
    left = low - room if low < 0 else low
    with canvas.looks():
        figure = Figure() if figure is None else figure
        figure.set_size_inches(canvas.WIDTH, 0.9 + 0.16 * most_bars)
        figure.set_layout_engine("constrained")
        axes = figure.subplots(1, 4, width_ratios=(1.15, *map(_width, sides)))
        _draw_map(axes[0], why)
        for axis, side, bars in zip(axes[1:], why.sides, sides, strict=True):
            axis.set_title(f"{side.side} side")
            if len(bars) == 1 and abs(side.effect) < SMALL:
                axis.set_axis_off()
                words = f"no effect\n({side.effect:z.3f})"
                style = {"fontsize": canvas.SMALL, "color": canvas.MUTED, "va": "top"}
                axis.text(0.0, 1.0, words, transform=axis.transAxes, **style)
                continue
            _draw_bars(axis, bars)
            axis.set_xlim(left, high + room)
            axis.set_ylim(most_bars - 0.5, -0.5)  # so that the bars of all sides stand in the same rows
        title = f"{spell(why.source.name, longest=40)}: {why.head}, {_ends(why)}; effect {why.effect:z.2f}"
        figure.suptitle(title, fontsize=canvas.BODY, ha="left", x=0.01)
    return figure


def fill_with_why(folder: Path, why: Why) -> None:
    """Write the answer and its picture into a folder."""
    why.save(folder)
    canvas.save_figure(why_figure(why), folder, name="why")


def _bars(side: SideWriters) -> list[tuple[str, float]]:
    """The name and the effect of each bar of a side."""
    bars = [("whole side", side.effect)]
    for each in side.writers:
        if abs(each.effect) >= SMALL:
            bars.append((str(each), each.effect))
    return bars[: _MOST_WRITERS + 1]


def _width(bars: Sequence[tuple[str, float]]) -> float:
    """The width of a side's column, relative to one with writers."""
    if len(bars) > 1:
        return 1.0
    return 0.5 if abs(bars[0][1]) >= SMALL else 0.3


def _draw_bars(axis: Axes, bars: Sequence[tuple[str, float]]) -> None:
    names = [name for name, _ in bars]
    effects = [effect for _, effect in bars]
    colours = [canvas.INK, *map(canvas.effect_colour, effects[1:])]
    axis.barh(range(len(bars)), effects, color=colours, height=0.7)
    axis.set_yticks(range(len(bars)), names)
    axis.axvline(0, color=canvas.LINE, linewidth=0.6)
    axis.set_xlabel("effect (share of the gap)", fontsize=canvas.SMALL)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    for row, effect in enumerate(effects):
        label = {"xytext": (2, 0), "textcoords": "offset points", "va": "center", "fontsize": canvas.SMALL}
        axis.annotate(f"{effect:z.3f}", (max(effect, 0.0), row), **label)


def _draw_map(axis: Axes, why: Why) -> None:
    """The attention map, (query, key), with the edge framed."""
    length = len(why.prompt)
    axis.set(title="attention", xlabel="key", ylabel="query")
    if why.attention is None:
        axis.text(0.5, 0.5, f"{length} tokens", ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return
    axis.imshow(why.attention, cmap=canvas.colormap(), vmin=0, vmax=1, origin="lower", aspect="equal")
    corner = (why.key - 0.5, why.query - 0.5)
    axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=canvas.RED, linewidth=1.2))
    if length <= _MOST_TICKS:
        ticks = list(range(length))
        names = [spell(word, longest=9) for word in why.prompt.words]
        axis.tick_params(length=0, pad=1)
        axis.tick_params(axis="x", rotation=90)
    else:
        ticks = sorted({0, why.key, why.query})
        names = [str(tick) for tick in ticks]
    axis.set_xticks(ticks, names)
    axis.set_yticks(ticks, names)


# A wiring as text


def wiring_text(wiring: Wiring) -> str:
    """The wiring as plain text, 100 columns wide."""
    return plain(wiring_sections(wiring))


def wiring_sections(wiring: Wiring) -> list[Section]:
    """The question, how much of the gap the wires keep, and the wires."""
    return [_question(wiring), _kept(wiring), _wires(wiring)]


def _question(wiring: Wiring) -> Section:
    length = len(wiring.prompt)
    words = [token(wiring, position) for position in range(min(length, MOST_WORDS))]
    if length > MOST_WORDS:
        words.append("…")
    rows = [("prompt", " ".join(words)), *asked_rows(wiring)]
    if wiring.roles:
        roles = [f"{visible(role)} is {token(wiring, position)}" for role, position in wiring.roles]
        rows.append(("roles", ", ".join(roles)))
    notes = [note_line(note) for note in wiring.notes]
    return Section(model_words(wiring.source), notes, rows=rows)


def _kept(wiring: Wiring) -> Section:
    nodes, random = wiring.nodes, wiring.random
    kinds = Counter(node.component.kind for node in nodes if node.component)
    counts = f"{kinds['head']} heads and {kinds['mlp']} MLPs at positions, embeddings, logits"
    chance = f"mean {random.mean:z.3f}, largest {random.largest:z.3f} of {random.draws} draws"
    rows = [
        ("kept", f"{wiring.kept:z.3f} of the gap is left when all other wires are swapped in one run"),
        ("random", f"{chance} of as many wires, each draw a random walk back from the logits"),
        ("nodes", f"{len(nodes)}: {counts}"),
        ("measured", f"{wiring.measured:,} wires and sides, each in a run of its own, {wiring.engine} path"),
    ]
    if wiring.cut:
        names = listed([node_name(wiring, node) for node in wiring.cut], most=_MOST_NOT_EXPLORED)
        limit = f"as the limit of {wiring.most} nodes was reached"
        rows.append(("cut", f"{len(wiring.cut)} nodes not explored, {limit}: {names}"))
    lines = []
    if wiring.kept < _LITTLE:
        lines.append("Note: most of the gap runs along smaller wires; a smaller least draws more of them")
    return Section(
        f"{plural(len(wiring.wires), 'wire')} of at least {wiring.least:g} of the gap", lines, rows=rows
    )


def _wires(wiring: Wiring) -> Section:
    """A row for each wire, and one for each side without a drawn wire.

    The name of a reader or of a side is printed in its first row only.
    """
    order = {node: number for number, node in enumerate(reversed(wiring.nodes))}
    sides = [side for side in wiring.sides if Node.read(side.wire) in order]
    sides.sort(key=lambda side: (order[Node.read(side.wire)], -abs(side.effect), str(side.wire)))
    rows: list[tuple[Any, ...]] = []
    last_reader = None
    for side in sides:
        reader = Node.read(side.wire)
        name = "" if reader == last_reader else node_name(wiring, reader)
        last_reader = reader
        start = (name, _side_name(wiring, side.wire), side.effect)
        wires = [each for each in wiring.wires if _side_of(each.wire) == _side_of(side.wire)]
        if not wires:
            rows.append((*start, "(no writer alone)", None))
        for each in wires:
            rows.append((*start, node_name(wiring, Node.written(each.wire)), each.effect))
            start = ("", "", None)
    if not rows:
        return Section(lines=[f"no wire carries {wiring.least:g} or more of the gap"])
    lines = []
    if len(rows) > _MOST_ROWS:
        lines.append(f"the first {_MOST_ROWS} of {len(rows)} rows:")
    columns = [Column("reader"), Column("side"), Column("its effect", "z.3f")]
    columns += [Column("writer"), Column("effect", "z.3f")]
    return Section("Wires, from the logits down", lines, columns, rows[:_MOST_ROWS])


def node_name(wiring: Wiring, node: Node) -> str:
    """A node with the role of its position, if that has one: `L4H4@END`."""
    if node.component is None or node.position is None:
        return str(node)
    return f"{node.component}@{visible(wiring.position_name(node.position))}"


def _side_name(wiring: Wiring, wire: Wire) -> str:
    """`query`, `value of S2`, and nothing for MLPs and the logits, which have no sides."""
    kind = wire.reader.kind
    if kind in ("mlp", "logits"):
        return ""
    if kind == "query" or wire.position is None:
        return kind
    return f"{kind} of {visible(wiring.position_name(wire.position))}"


def _side_of(wire: Wire) -> tuple[Any, ...]:
    """What the wires into one side of one reader have in common."""
    return wire.reader, wire.position, wire.query


# A wiring as a graph


def wiring_graph(wiring: Wiring) -> nx.MultiDiGraph:
    """Nodes are components at positions and the logits; each wire is an edge.

    Two nodes have several edges where the writer is read by several sides of a head. `side_effect` is the
    effect of all writers of a side swapped together.
    """
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
        graph.add_node(str(node), **_node_attributes(wiring, node))
    side_effects = {_side_of(side.wire): side.effect for side in wiring.sides}
    for each in wiring.wires:
        wire = each.wire
        graph.add_edge(
            str(Node.written(wire)),
            str(Node.read(wire)),
            key=str(wire),
            kind="wire",
            side=wire.reader.kind,
            effect=each.effect,
            side_effect=side_effects.get(_side_of(wire), each.effect),
            from_position=wire.position,
            to_position=wire.position if wire.query is None else wire.query,
        )
    return graph


def _node_attributes(wiring: Wiring, node: Node) -> dict[str, Any]:
    """Where a node stands, what it is, and the effect of its strongest outgoing wire."""
    position = len(wiring.prompt) - 1 if node.position is None else node.position
    word = spell(wiring.prompt.words[position])
    component = node.component
    if component is None:
        kind, layer, label = "logits", wiring.source.layers, spell(wiring.output.token)
    else:
        kind, layer = component.kind, component.layer
        label = word if kind == "embed" else str(component)
    effects = [abs(each.effect) for each in wiring.wires if Node.written(each.wire) == node]
    roles = [role for role, index in wiring.roles if index == position]
    return {
        "kind": kind,
        "layer": layer,
        "position": position,
        "label": label,
        "token": word,
        "role": roles[0] if roles else "",
        "effect": max(effects, default=1.0),
        "explored": node not in wiring.cut,
    }


# A wiring as a picture


def wiring_figure(wiring: Wiring, **options: Any) -> Figure:
    """The wires on a scale of layers, with a caption that says how much of the gap they keep."""
    kept = f"{wiring.kept:z.0%} of the gap, as many random ones {wiring.random.mean:z.0%}"
    caption = f"{len(wiring.wires)} wires of {wiring.least:g} or more; together they keep {kept}. "
    options = {"title": wiring.source.name, "how": _LEGEND, "caption": caption} | options
    return scene_figure(wiring_scene(wiring), **options)


def wiring_scene(wiring: Wiring) -> Scene:
    """The graph of a wiring with what its picture needs; the strongest way to the output is in front."""
    graph = wiring_graph(wiring)
    front = _strongest_way(graph)
    nodes_in_front = {name for start, end, _ in front for name in (start, end)}
    for name, node in graph.nodes.items():
        node.update(
            box=False, front=name in nodes_in_front, lines=[node["label"]], positions=[node["position"]]
        )
    for start, end, key, wire in graph.edges(keys=True, data=True):
        wire["front"] = (start, end, key) in front
    graph = nx.relabel_nodes(graph, {"logits": OUTPUT})
    last = len(wiring.prompt) - 1
    output = wiring.output
    lines = [spell(output.token), f"layer {output.layer}", f"p = {output.probability:.2f}"]
    graph.add_node(OUTPUT, kind="logits", label="logits", positions=[last], lines=lines, box=False)
    positions = [last, *(node["position"] for node in graph.nodes.values() if "position" in node)]
    graph.graph["reads_bos"] = False
    graph.graph["words"] = list(wiring.prompt.words)
    graph.graph["anchors"] = list(dict.fromkeys(positions))
    return Scene(wiring, graph)  # type: ignore[arg-type]  # only the graph is drawn


def _strongest_way(graph: nx.MultiDiGraph) -> set[tuple[str, str, str]]:
    """The wires (start, end, key) of one path from a token to the logits: the path whose weakest wire is
    stronger than the weakest wire of any other; empty where no path leads there."""
    weakest = {}  # node -> the weakest wire on the best path to it
    paths: dict[str, list[tuple[str, str, str]]] = {}
    for name, node in graph.nodes.items():
        weakest[name] = math.inf if node["kind"] == "embed" else 0.0
        paths[name] = []
    for name in nx.topological_sort(graph):
        for start, _, key, effect in graph.in_edges(name, keys=True, data="effect"):
            reached = min(weakest[start], abs(effect))
            if reached > weakest[name]:
                weakest[name] = reached
                paths[name] = [*paths[start], (start, name, key)]
    return set(paths.get("logits", ()))
