"""The circuit of components that write and read: a wiring as text, as a graph and as a picture.

1. The text has the question, how much of the gap the wires keep beside random ones, and the wires from the
   logits down: of each reader its sides, of each side its writers, strongest first.
2. The graph has `position` and `layer` on its nodes, side and effect on its edges. It is drawn on a scale of
   layers, as a circuit is.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import networkx as nx
from matplotlib.figure import Figure

from circuits.show import OUTPUT, Scene, listed, plural, spell
from circuits.show.diagram import scene_figure
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import MOST_WORDS, asked_rows, model_words, note_line, token, visible
from circuits.show.why import why_figure, why_sections, why_text  # noqa: F401  # callers find them here, too
from circuits.tracing.wiring_record import Node

if TYPE_CHECKING:
    from circuits.components import Wire
    from circuits.tracing.wiring_record import Wiring

_MOST_ROWS: Final = 80  # of the table of wires
_MOST_NOT_EXPLORED: Final = 8  # nodes that are named
_LITTLE: Final = 0.5  # a wiring that keeps less of the gap has a note
_LEGEND: Final = (
    "A head or an MLP stands at its position and layer; a wire is as wide as its effect. It enters a head by "
    "its query (solid), its key (dashed) or its value (dotted). Filled: the strongest way to the output."
)


# The text


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
        roles = [
            f"{visible(role)} is {token(wiring, position)}" for role, position in wiring.roles
        ]
        rows.append(("roles", ", ".join(roles)))
    notes = [note_line(note) for note in wiring.notes]
    return Section(model_words(wiring.source), notes, rows=rows)


def _kept(wiring: Wiring) -> Section:
    nodes, random = wiring.nodes, wiring.random
    kinds = Counter(node.component.kind for node in nodes if node.component)
    counts = f"{kinds['head']} heads and {kinds['mlp']} MLPs at positions, embeddings, logits"
    chance = f"mean {random.mean:z.3f}, largest {random.largest:z.3f} of {random.draws} draws"
    rows = [
        (
            "kept",
            f"{wiring.kept:z.3f} of the gap is left when all other wires are swapped in one run",
        ),
        ("random", f"{chance} of as many wires, each draw a random walk back from the logits"),
        ("nodes", f"{len(nodes)}: {counts}"),
        (
            "measured",
            f"{wiring.measured:,} wires and sides, each in a run of its own, {wiring.engine} path",
        ),
    ]
    if wiring.cut:
        names = listed(
            [node_name(wiring, node) for node in wiring.cut], most=_MOST_NOT_EXPLORED
        )
        limit = f"as the limit of {wiring.most} nodes was reached"
        rows.append(("cut", f"{len(wiring.cut)} nodes not explored, {limit}: {names}"))
    lines = []
    if wiring.kept < _LITTLE:
        lines.append(
            "Note: most of the gap runs along smaller wires; a smaller least draws more of them"
        )
    return Section(
        f"{plural(len(wiring.wires), 'wire')} of at least {wiring.least:g} of the gap",
        lines,
        rows=rows,
    )


def _wires(wiring: Wiring) -> Section:
    """A row for each wire, and one for each side without a drawn wire.

    The name of a reader or of a side is printed in its first row only.
    """
    order = {node: number for number, node in enumerate(reversed(wiring.nodes))}
    sides = [side for side in wiring.sides if Node.read(side.wire) in order]
    sides.sort(
        key=lambda side: (order[Node.read(side.wire)], -abs(side.effect), str(side.wire))
    )
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


# The graph


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


# The picture


def wiring_figure(wiring: Wiring, **options: Any) -> Figure:
    """The wires on a scale of layers, with a caption that says how much of the gap they keep."""
    kept = f"{wiring.kept:z.0%} of the gap, as many random ones {wiring.random.mean:z.0%}"
    caption = (
        f"{len(wiring.wires)} wires of {wiring.least:g} or more; together they keep {kept}. "
    )
    options = {"title": wiring.source.name, "how": _LEGEND, "caption": caption} | options
    return scene_figure(wiring_scene(wiring), **options)


def wiring_scene(wiring: Wiring) -> Scene:
    """The graph of a wiring with what its picture needs; the strongest way to the output is in front."""
    graph = wiring_graph(wiring)
    front = _strongest_way(graph)
    for node in graph.nodes.values():
        node.update(box=False, front=False, lines=[node["label"]], positions=[node["position"]])
    for start, end, key, wire in graph.edges(keys=True, data=True):
        wire["front"] = (start, end, key) in front
        if wire["front"]:
            graph.nodes[start]["front"] = True
            graph.nodes[end]["front"] = True
    graph = nx.relabel_nodes(graph, {"logits": OUTPUT})
    last = len(wiring.prompt) - 1
    output = wiring.output
    lines = [spell(output.token), f"layer {output.layer}", f"p = {output.probability:.2f}"]
    graph.add_node(
        OUTPUT, kind="logits", label="logits", positions=[last], lines=lines, box=False
    )
    positions = [
        last,
        *(node["position"] for node in graph.nodes.values() if "position" in node),
    ]
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
