"""A circuit as a networkx graph, with everything that pictures show of it.

1. Nodes are the spans, the output, and each token at an end of a mapping that is in no span. An attention
   edge runs from the key's node to the query's node and names its carriers. A mapping between positions of
   one node is an entry of that node's `self_attention`. The graph is acyclic, except where a group of
   positions both reads and is read by a token between them.
2. Each mapping gets an arrow if its total is large enough; the one in front is number 0.
3. A prompt of up to 24 tokens is shown whole. Of a longer one, the tokens that matter and their neighbours
   are shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import networkx as nx

from circuits.errors import PromptError
from circuits.show.words import spell, verdict_values
from circuits.tracing import CARRIES
from circuits.tracing.parts import Output

if TYPE_CHECKING:
    from circuits.tracing import Mapping, Span
    from circuits.tracing.records import Circuit

OUTPUT: Final = "output"  # the name of the output's node, and how a user names it
LONGEST: Final = 24  # tokens of a prompt that is shown whole
_MOST_ARROWS: Final = 24

Attributes = dict[str, Any]  # of a node or an edge
Ends = tuple[int, int]  # the positions of a key and of a query
# The nodes of the key and the query, and the mapping's attributes.
Arrow = tuple[str, str, Attributes]


def to_graph(circuit: Circuit, *, share: float | None = None) -> nx.MultiDiGraph:
    """Spans, ends of mappings and the output, what runs between them, and how all of it is drawn.

    >>> graph = show.to_graph(found)
    >>> sorted(graph.nodes)
    ['5', '8', 'output']
    """
    share = circuit.share if share is None else share
    graph = nx.MultiDiGraph(
        model=circuit.source.name,
        prompt=circuit.prompt.text,
        metric=str(circuit.metric),
        share=share,
        focus=list(circuit.front.ends) if circuit.front else [],
        words=list(circuit.prompt.words),
        layers=circuit.source.layers,
        reads_bos=circuit.source.reads_bos,
        **verdict_values(circuit),
    )
    last = len(circuit.prompt) - 1
    ends = {last}
    for mapping in circuit.mappings:
        ends.update(mapping.ends)
    for span in circuit.spans:
        _add_span(graph, span)
    _add_tokens(graph, circuit, ends)
    _number_boxes(graph)
    _add_output(graph, circuit)
    node_of = {position: node_at(graph, position) for position in ends}
    arrows = _numbered_arrows(circuit, node_of)
    for mapping in sorted(circuit.mappings, key=lambda mapping: mapping.ends):
        attributes = _attention(mapping, share)
        attributes["arrow"] = arrows.get(mapping.ends, -1)
        start, end = node_of[mapping.key], node_of[mapping.query]
        if start == end:
            graph.nodes[start].setdefault("self_attention", []).append(attributes)
        else:
            graph.add_edge(start, end, key=f"{mapping.key}→{mapping.query}", **attributes)
    graph.add_edge(node_of[last], OUTPUT, key="residual", kind="residual")
    graph.graph["anchors"] = _anchors(circuit, arrows)
    return graph


def node_at(graph: nx.MultiDiGraph, position: int) -> str | None:
    """The node that holds a position; of several the one with the fewest positions; None if there is none."""
    nodes = [
        name
        for name, node in graph.nodes.items()
        if position in node["positions"] and name != OUTPUT
    ]
    return min(nodes, key=lambda name: len(graph.nodes[name]["positions"]), default=None)


def routes(
    circuit: Circuit, start: int | str | Output, end: int | str | Output
) -> tuple[tuple[str, ...], ...]:
    """Every route from a token to a token or to the output, as the labels on the way."""
    graph = to_graph(circuit)
    names = []
    for place in (start, end):
        if isinstance(place, Output) or _is_output(circuit, place):
            name = OUTPUT
        else:
            name = node_at(graph, circuit.prompt.position(place))
        if name is None:
            return ()
        names.append(name)
    paths = sorted({tuple(path) for path in nx.all_simple_paths(graph, *names)})
    return tuple(tuple(str(graph.nodes[name]["label"]) for name in path) for path in paths)


def _is_output(circuit: Circuit, place: int | str | Output) -> bool:
    """Whether a place is the output: `output`, or its word where no token of the prompt is that word."""
    if isinstance(place, Output):
        return True
    if not isinstance(place, str):
        return False
    tokens = circuit.prompt.positions_of(place)
    if place == OUTPUT and tokens:
        where = ", ".join(map(str, tokens))
        both = f"{place!r} is the token at {where} and the output above the last position"
        raise PromptError(f"{both}; write {tokens[0]}, or circuit.output for the output")
    return not tokens and place in (OUTPUT, circuit.output.token)


def gains(mapping: Attributes) -> dict[str, float]:
    """What each head adds to the joint effect of the heads before it; together the gains are that effect."""
    gained = {}
    before = 0.0
    for head, joint in mapping["joint"].items():
        gained[head] = joint - before
        before = joint
    return gained


def kept_positions(
    length: int, anchors: Iterable[int], *, most: int = LONGEST, reach: int = 1, first: int = 0
) -> list[int | None]:
    """At most about `most` positions of `first`…length-1 to show, None for a gap.

    Anchors come most important first; each brings its neighbours up to `reach` away while there is space.
    """
    if length - first <= most:
        return list(range(first, length))
    chosen: set[int] = set()
    for anchor in anchors:
        around = set(range(max(first, anchor - reach), min(length, anchor + reach + 1)))
        if len(chosen | around) <= most:
            chosen |= around
        elif len(chosen) < most:
            chosen.add(anchor)
    # A gap of one saves nothing.
    chosen |= {position + 1 for position in chosen if position + 2 in chosen}
    shown: list[int | None] = []
    for position in sorted(chosen):
        if position > first and position - 1 not in chosen:
            shown.append(None)
        shown.append(position)
    if length - 1 not in chosen:
        shown.append(None)
    return shown


# The parts of the graph


def _add_span(graph: nx.MultiDiGraph, span: Span) -> None:
    name = "+".join(map(str, span.positions))
    while name in graph:
        name += "'"
    graph.add_node(
        name,
        kind="span",
        label=span.label,
        positions=list(span.positions),
        box=True,
        layers=list(span.layers or ()),
        built=span.built_text,
        effect=span.effect,
        ranges=[list(layers) for layers in span.built],
        lines=_span_lines(span),
    )


def _span_lines(span: Span) -> list[str]:
    """The lines in a span's box: `large`, `layer 0-21`, `built in 0, 20-21` (unless that is the same)."""
    lines = [spell(span.label)]
    if span.layers:
        first, last = span.layers
        lines.append(f"layer {first}-{last}" if first != last else f"layer {first}")
    if span.built and span.built != (span.layers,):
        lines.append(f"built in {span.built_text}")
    return lines if len(lines) > 1 else [*lines, "no layer"]


def _add_tokens(graph: nx.MultiDiGraph, circuit: Circuit, ends: Iterable[int]) -> None:
    """Add a node for each end of a mapping that is in no span; the ends of the front mapping have boxes.

    If one span holds both ends of the front mapping, its query gets a node of its own. The last token has no
    box as a query, because the output stands above it.
    """
    bare = {position for position in ends if node_at(graph, position) is None}
    boxed = set()
    front = circuit.front
    if front is not None:
        boxed = {front.key, front.query}
        if front.key != front.query:
            boxed.discard(len(circuit.prompt) - 1)
            if node_at(graph, front.key) == node_at(graph, front.query):
                bare.add(front.query)
    for position in sorted(bare):
        word = circuit.prompt.words[position]
        graph.add_node(
            str(position),
            kind="token",
            label=word.strip() or repr(word),
            positions=[position],
            box=position in boxed,
            layers=[],
            built="",
            effect=0.0,
            lines=[spell(word, longest=18), f"pos {position}"],
        )


def _number_boxes(graph: nx.MultiDiGraph) -> None:
    """Give each box its `order` from left to right."""

    def across(box: tuple[str, Attributes]) -> tuple[float, int]:
        positions = box[1]["positions"]
        return fmean(positions), positions[-1]

    boxes = [(name, node) for name, node in graph.nodes.items() if node["box"]]
    for order, (_, node) in enumerate(sorted(boxes, key=across)):
        node["order"] = order


def _add_output(graph: nx.MultiDiGraph, circuit: Circuit) -> None:
    output = circuit.output
    graph.add_node(
        OUTPUT,
        kind="output",
        label=output.token,
        positions=[len(circuit.prompt) - 1],
        box=True,
        lines=[spell(output.token), f"layer {output.layer}", f"p = {output.probability:.2f}"],
        layers=[output.layer],
        effect=1.0,
        probability=output.probability,
    )


def _numbered_arrows(circuit: Circuit, node_of: dict[int, str | None]) -> dict[Ends, int]:
    """The mappings between two nodes that get an arrow, numbered: 0 is in front, then the strongest."""
    between = []
    for mapping in circuit.mappings:
        if node_of[mapping.key] != node_of[mapping.query]:
            between.append(mapping)
    between.sort(key=lambda mapping: (-abs(mapping.total), mapping.ends))
    arrows = {mapping.ends: 0 for mapping in between if mapping is circuit.front}
    others = [mapping for mapping in between if mapping is not circuit.front]
    for number, mapping in enumerate(others[: _MOST_ARROWS - 1], 1):
        if abs(mapping.total) >= CARRIES:
            arrows[mapping.ends] = number
    return arrows


def _anchors(circuit: Circuit, arrows: Iterable[Ends]) -> list[int]:
    """The positions that matter, most important first: ends of arrows, the last, spans, the first word."""
    last = len(circuit.prompt) - 1
    first_word = 1 if circuit.source.reads_bos and last > 0 else 0
    anchors = [position for ends in arrows for position in ends]
    anchors.append(last)
    for span in circuit.spans:
        anchors += span.positions
    anchors.append(first_word)
    return list(dict.fromkeys(anchors))


def _attention(mapping: Mapping, share: float) -> Attributes:
    """The attributes of a mapping's edge.

    `heads` has the effect of each carrier alone, `joint` the effect of all carriers up to that one together.
    """
    carriers = mapping.carriers(share)
    modulation = mapping.modulation(share)
    label = f"Modulated at {modulation:.0%} by"
    if mapping.doubts:
        label = "Modulation withheld"
    if not carriers:
        label = "Carried by no head"
    return {
        "kind": "attention",
        "label": label,
        "doubts": list(mapping.doubts),
        "from_position": mapping.key,
        "to_position": mapping.query,
        "total": mapping.total,
        "modulation": modulation,
        "heads": {str(head): mapping.effect_of(head).effect for head in carriers},
        "joint": {str(step.head): step.joint for step in mapping.path[: len(carriers)]},
    }


def positions_of(mapping: Attributes) -> Ends:
    """Key and query of a mapping."""
    return mapping["from_position"], mapping["to_position"]
