"""The circuit of components that write and read: a wiring as text and as a graph.

1. The text has the headline (how much the circuit keeps), the question, the controls, and the wires from the
   logits down.
2. The graph has `place` and `layer` on its nodes; side, value and effect on its edges.
3. `strongest_path` says which wires its pictures (`wiring_figure`, `wiring_dot`) put in front.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import networkx as nx

from circuits.components import SIDES
from circuits.show import spell
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import asked_rows, model_words, token, visible
from circuits.show.words import note_line, verdict_lines
from circuits.wires.parts import Node

if TYPE_CHECKING:
    from circuits.components import Wire
    from circuits.wires.parts import OtherCircuit, WiredPair, WireValue
    from circuits.wires.record import Wiring

_MOST_ROWS: Final = 80  # of the table of wires
_MOST_PAIRS: Final = 3  # prompts that are printed
_SHARES: Final = (0.5, 0.8, 0.9, 0.95)  # for which the smallest circuit is printed


# The text


def wiring_text(wiring: Wiring) -> str:
    """The wiring as plain text, 100 columns wide."""
    return plain(wiring_sections(wiring))


def wiring_sections(wiring: Wiring) -> list[Section]:
    """What the circuit keeps, the question, the controls, and the wires."""
    return [_question(wiring), _kept(wiring), _wires(wiring)]


def headline(wiring: Wiring) -> str:
    """What was found: `33 of 30,632 wires keep 81% of the gap`."""
    kind = "wires" if wiring.places else "component edges"
    found = (
        f"{len(wiring.wires)} of {wiring.all_wires:,} {kind} keep {wiring.kept:z.0%} of the gap"
    )
    if wiring.enough:
        return found
    return f"{found}, less than the {wiring.share:.0%} asked for"


def _question(wiring: Wiring) -> Section:
    """The headline, and what was asked."""
    seen = wiring.seen
    title = f"{headline(wiring)} in {model_words(wiring.source)}"
    rows = []
    if wiring.task:
        rows.append(("task", visible(wiring.task)))
    for pair in seen[:_MOST_PAIRS]:
        rows.append(("prompt", visible(pair.prompt.text, longest=80)))
    if len(seen) > _MOST_PAIRS:
        rows.append(("", f"… {len(seen)} prompts in all"))
    rows += asked_rows(wiring)
    named = [(name, position) for name, position in wiring.pairs[0].roles]
    if named:
        roles = [f"{visible(role)} is {token(wiring, position)}" for role, position in named]
        rows.append(("roles", ", ".join(roles)))
    return Section(title, [*verdict_lines(wiring), *_warning(wiring)], rows=rows)


def _warning(wiring: Wiring) -> list[str]:
    """What a circuit that serves only the pairs that the search saw says of itself."""
    if wiring.generalises:
        return []
    unseen = fmean(pair.kept for pair in wiring.held_out)
    saw = f"keeps {wiring.kept:z.0%} of the pairs it saw, {unseen:z.0%} of pairs it did not"
    return [note_line(f"{saw}: search with more pairs")]


def _kept(wiring: Wiring) -> Section:
    """What the circuit keeps where, and the controls."""
    random = wiring.random
    kinds = Counter(node.component.kind for node in wiring.nodes if node.component)
    rows = [("kept", f"{_mean_and_worst(wiring.seen)}; all other wires are swapped in one run")]
    if wiring.held_out:
        unseen = f"{_mean_and_worst(wiring.held_out)}, which the search did not see"
        rows.append(("held out", unseen))
    chance = f"mean {random.mean:z.3f}, largest {random.largest:z.3f}"
    rows += [
        ("random", f"{chance} of {random.draws} circuits of as many other wires"),
        ("the rest", f"all other wires, with these swapped, keep {wiring.complement:z.3f}"),
    ]
    if wiring.overlap is not None:
        overlap = wiring.overlap
        alike = f"Jaccard {overlap.jaccard:.2f} with {overlap.resamples} circuits of resampled pairs"
        rows.append(("overlap", f"{alike}; {len(overlap.core)} wires are in all of them"))
    if wiring.against is not None:
        rows.append(("another", _other_circuit(wiring.against)))
    if wiring.without_heads:
        gone = " ".join(map(str, wiring.without_heads))
        left = f"{gone} swapped away; all other wires keep {wiring.reachable:z.3f}"
        rows.append(("without", left))
    counts = f"{kinds['head']} heads and {kinds['mlp']} MLPs"
    rows.append(("nodes", f"{counts} beside embeddings and logits"))
    rows.append(("sizes", _sizes(wiring)))
    return Section("What it keeps", rows=rows)


def _sizes(wiring: Wiring) -> str:
    """How many wires the smallest circuit has that keeps each share, and what the search aimed at."""
    sizes = []
    for share in _SHARES:
        enough = [point.wires for point in wiring.curve if point.kept >= share]
        sizes.append(f"{enough[-1] if enough else 'none'} for {share:.0%}")
    aim = "as the whole model does" if wiring.aim == "faithful" else "as much as possible"
    return f"{', '.join(sizes)}; {wiring.aim}: keep {aim}"


def _other_circuit(other: OtherCircuit) -> str:
    own = fmean(pair.kept for pair in other.pairs)
    name = visible(other.task) if other.task else "other prompts"
    where = f"{own:z.3f} there, {other.kept:z.3f} here"
    return (
        f"{other.wires} wires found for {name} keep {where}; both circuits have {other.shared}"
    )


def _mean_and_worst(pairs: Sequence[WiredPair]) -> str:
    mean = fmean(pair.kept for pair in pairs)
    if len(pairs) == 1:
        return f"{mean:z.3f} of the gap"
    worst = min(pair.kept for pair in pairs)
    return f"{mean:z.3f} of the gap, mean of {len(pairs)} pairs (worst {worst:z.3f})"


def _wires(wiring: Wiring) -> Section:
    """A row for each wire, from the logits down. The name of a reader is printed in its first row only."""
    rows: list[tuple[Any, ...]] = []
    above = ""  # the reader of the row before
    for each in sorted(wiring.wires, key=_from_the_logits_down):
        reader = each.wire.reader
        name = str(reader.component or "logits")
        side = reader.kind if reader.kind in SIDES else ""
        writer = wiring.node_name(Node.written(each.wire))
        mark = "new" if each.new else ""
        shown = "" if name == above else name
        rows.append((shown, side, visible(writer), each.value, each.effect, mark))
        above = name
    if not rows:
        return Section(lines=["no circuit keeps anything"])
    lines = []
    if len(rows) > _MOST_ROWS:
        lines.append(f"the first {_MOST_ROWS} of {len(rows)} rows:")
    columns = [Column("reader"), Column("side"), Column("writer")]
    columns += [Column("value", "z.3f"), Column("effect alone", "z.3f"), Column("")]
    title = "Wires, from the logits down (value: what the circuit keeps less without it)"
    return Section(title, lines, columns, rows[:_MOST_ROWS])


def _from_the_logits_down(each: WireValue) -> tuple[Any, ...]:
    """Later layers first, an MLP before the heads of its layer; of one reader by side, the best wire first."""
    reader = each.wire.reader
    return -reader.layer, reader.kind != "mlp", reader.index, reader.kind, -each.value


# The graph


def wiring_graph(wiring: Wiring) -> nx.MultiDiGraph:
    """Nodes are components, at places or at all positions together, and the logits; each wire is an edge, or
    several where a key or value is read at several places."""
    graph = nx.MultiDiGraph(
        model=wiring.source.name,
        layers=wiring.source.layers,
        places=list(wiring.places),
        tokens=[spell(word) for word in wiring.prompt.words],
        share=wiring.share,
        kept=wiring.kept,
        random=wiring.random.mean,
        verdict=wiring.verdict,
    )
    for node in wiring.nodes:
        graph.add_node(str(node), **_node_attributes(wiring, node))
    for each in wiring.wires:
        wire = each.wire
        for end in wiring.readers_of(wire):
            graph.add_edge(
                str(Node.written(wire)),
                str(end),
                key=str(wire),
                kind="wire",
                side=wire.reader.kind,
                value=each.value,
                effect=each.effect,
                new=each.new,
            )
    return graph


def _node_attributes(wiring: Wiring, node: Node) -> dict[str, Any]:
    """Where a node stands and what it is. A place of −1 means all positions together."""
    component = node.component
    if component is None:
        place = -1 if wiring.output_place is None else wiring.output_place
        label = spell(wiring.output.token)
        return {"kind": "logits", "layer": wiring.source.layers, "place": place, "label": label}
    place = -1 if node.place is None else node.place
    return {
        "kind": component.kind,
        "layer": component.layer,
        "place": place,
        "label": str(component),
        "name": "" if node.place is None else wiring.places[node.place],
    }


# The path that pictures put in front


def strongest_path(wiring: Wiring) -> list[tuple[Node, Node, Wire]]:
    """The wires (start, end, wire) of the path from an embedding to the logits whose weakest wire is
    strongest; of paths with equal weakest wires the one whose second weakest is strongest, and so on. Empty
    where no path leads there."""
    graph = wiring_graph(wiring)
    nodes = {str(node): node for node in wiring.nodes}
    wires = {str(each.wire): each.wire for each in wiring.wires}
    best: dict[str, list[tuple[str, str, str]]] = {}  # node -> the best path to it
    values: dict[str, list[float]] = {}  # of the wires of this path, the weakest first
    for name, node in graph.nodes.items():
        if node["kind"] == "embed":
            best[name], values[name] = [], []
    for name in nx.lexicographical_topological_sort(graph):
        for start, _, key, value in graph.in_edges(name, keys=True, data="value"):
            if start not in best:
                continue
            reached = sorted([*values[start], value])
            # A shorter path has no further weak wire, hence infinity.
            if name not in best or [*reached, math.inf] > [*values[name], math.inf]:
                best[name] = [*best[start], (start, name, key)]
                values[name] = reached
    path = best.get("logits", [])
    return [(nodes[start], nodes[end], wires[key]) for start, end, key in path]
