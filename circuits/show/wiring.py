"""A wiring as text and as a graph.

1. The question comes first, then how much the drawn wires explain beside random ones, then every wire: nodes
   from the logits down, of each node its sides and their writers, the strongest first.
2. The graph is what pictures are drawn from: token columns (`position`) and layer rows (`layer`) are on its
   nodes, side and effect on its edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from circuits.show.scene import counterfactual_words, listed, metric_words, spell
from circuits.show.tables import Section, plain, visible
from circuits.tracing.wiring_record import Node

if TYPE_CHECKING:
    import networkx as nx

    from circuits.components import Wire
    from circuits.tracing.wiring_record import WireEffect, Wiring

_MOST_WIRES: Final = 80  # rows of the table
_LITTLE: Final = 0.5  # of the gap: what explains less comes with a note
_MOST_CUT: Final = 8  # nodes that were not explored
_MOST_WORDS: Final = 200  # tokens of a prompt that is printed whole


def wiring_text(wiring: Wiring) -> str:
    """The wiring as plain text, 100 columns wide."""
    return plain(wiring_sections(wiring))


def wiring_sections(wiring: Wiring) -> list[Section]:
    """The question, how much is explained, and the wires."""
    return [_question(wiring), _explained(wiring), _wires(wiring)]


def _question(wiring: Wiring) -> Section:
    source, words = wiring.source, wiring.prompt.words
    size = f"{source.layers} layers × {source.heads} heads, {'gated' if source.gated else 'dense'}"
    shown = [f"{visible(word)}({position})" for position, word in enumerate(words[:_MOST_WORDS])]
    values = f"clean {wiring.clean_value:z.2f}, counterfactual {wiring.counterfactual_value:z.2f}"
    rows = [
        ("prompt", " ".join(shown) + ("" if len(words) <= _MOST_WORDS else " …")),
        ("counterfactual", counterfactual_words(wiring, longest=80)),
        ("metric", f"{metric_words(wiring, longest=80)}: {values}, gap {wiring.gap:z.2f}"),
    ]
    roles = [f"{visible(role)} is {visible(words[position])}({position})" for role, position in wiring.roles]
    rows += [("roles", ", ".join(roles))] if roles else []
    notes = tuple(f"Note: {visible(note, longest=400)}" for note in wiring.notes)
    return Section(f"{visible(source.name)}: {size}", notes, rows=tuple(rows))


def _explained(wiring: Wiring) -> Section:
    random, nodes = wiring.random, wiring.nodes
    heads = len({node for node in nodes if node.component and node.component.kind == "head"})
    mlps = len({node for node in nodes if node.component and node.component.kind == "mlp"})
    chance = f"mean {random.mean:z.3f}, largest {random.largest:z.3f} of {random.draws} draws"
    rows = [
        ("kept", f"{wiring.kept:z.3f} of the gap is left when all other wires are swapped in one run"),
        ("random", f"{chance} of as many wires, walked back at random"),
        ("nodes", f"{len(nodes)}: {heads} heads and {mlps} MLPs at positions, embeddings, logits"),
        ("measured", f"{wiring.measured:,} wires and sides, each in a run of its own, {wiring.engine} path"),
    ]
    if wiring.cut:
        names = listed([place_name(wiring, node) for node in wiring.cut], most=_MOST_CUT)
        rows.append(("cut", f"{len(wiring.cut)} not explored, as {wiring.most} were: {names}"))
    count = f"{len(wiring.wires)} wire{'' if len(wiring.wires) == 1 else 's'}"
    small = (
        "Note: most of the gap runs along wires that are smaller, each for itself; a smaller least draws more"
    )
    lines = (small,) if wiring.kept < _LITTLE else ()
    return Section(f"{count} of at least {wiring.least:g} of the gap", lines, rows=tuple(rows))


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
        writers = [(place_name(wiring, Node.written(each.wire)), f"{each.effect:z.3f}") for each in own]
        for number, writer in enumerate(writers or [("(no writer alone)", "")]):
            seen = ("", "") if number else (side_name(wiring, side.wire), f"{side.effect:z.3f}")
            rows.append(("" if reader == last else place_name(wiring, reader), *seen, *writer))
            last = reader
    if not rows:
        return Section(lines=(f"no wire carries {wiring.least:g} or more of the gap",))
    more = (f"the first {_MOST_WIRES} of {len(rows)} rows:",) if len(rows) > _MOST_WIRES else ()
    columns = ("reader", "side", "its effect", "writer", "effect")
    return Section("Wires, from the logits down", more, columns, tuple(rows[:_MOST_WIRES]))


# Names


def place_name(wiring: Wiring, node: Node) -> str:
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
    import networkx as nx

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
