"""What the pictures of a circuit show, decided once and held as a networkx graph.

1. Nodes are the spans, the output, and each token at an end of a mapping that is in no span. An attention
   edge runs from the key's node to the query's node and names its carriers. A mapping between positions of
   one node is an entry of that node's `self_attention`. The graph is acyclic, except where a group of
   positions both reads and is read by a token between them.
2. One mapping is in front: the one that the user asked for, or else the strongest. Each other mapping gets an
   arrow if its total is large enough.
3. A prompt of up to 24 tokens is shown whole. Of a longer one, the tokens that matter and their neighbours
   are shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import networkx as nx

from circuits.errors import PromptError
from circuits.show.words import (
    plural,
    question_words,
    spell,
    verdict_values,
    verdict_words,
)
from circuits.tracing import CARRIES
from circuits.tracing.parts import Output

if TYPE_CHECKING:
    from circuits.tracing import Mapping, Span
    from circuits.tracing.records import Circuit

OUTPUT: Final = "output"  # the name of the output's node, and how a user names it
LONGEST: Final = 24  # tokens of a prompt that is shown whole
_MOST_ARROWS: Final = 24
ATTENDS: Final = 0.05  # a head with a smaller weight does not attend to the key

Attributes = dict[str, Any]  # of a node or an edge
# The nodes of the key and the query, and the mapping's attributes.
Arrow = tuple[str, str, Attributes]


@dataclass(frozen=True, slots=True)
class Scene:
    """A circuit and its graph, with the mapping in front, if there is one."""

    circuit: Circuit
    graph: nx.MultiDiGraph
    front: Attributes | None = None  # the attributes of the mapping in front
    cell: tuple[int, int] | None = None  # its key and its query
    ends: tuple[str, str] | None = None  # the nodes of its key and its query
    carriers: tuple[str, ...] = ()  # the heads that carry it

    @property
    def words(self) -> list[str]:
        """The tokens of the prompt, as the model reads them."""
        return self.graph.graph["words"]

    @property
    def depth(self) -> int:
        """The number of layers."""
        return self.graph.graph["layers"]

    @property
    def boxes(self) -> list[tuple[str, Attributes]]:
        """The nodes that are drawn as boxes, without the output, from left to right."""
        boxes = [(name, node) for name, node in self.graph.nodes.items() if "order" in node]
        return sorted(boxes, key=lambda box: box[1]["order"])

    @property
    def arrows(self) -> list[Arrow]:
        """The mappings drawn as arrows between two nodes; the one in front comes first."""
        arrows = [edge for edge in self.graph.edges(data=True) if edge[2].get("arrow", -1) >= 0]
        return sorted(arrows, key=lambda edge: edge[2]["arrow"])

    @property
    def own_arrows(self) -> list[Attributes]:
        """The mappings inside one node that are drawn: the one in front, and those that carry something."""
        own = []
        for node in self.graph.nodes.values():
            for mapping in node.get("self_attention", ()):
                if mapping is self.front or abs(mapping["total"]) >= CARRIES:
                    own.append(mapping)
        return own

    @property
    def drawn(self) -> dict[tuple[int, int], Attributes]:
        """Every mapping that is drawn, by key and query: those between nodes, then those inside a node."""
        mappings = [mapping for _, _, mapping in self.arrows]
        mappings += self.own_arrows
        return {_positions(mapping): mapping for mapping in mappings}

    @property
    def ends_text(self) -> str:
        """The mapping in front: `large(5) → "(8)`."""
        if self.cell is None:
            return ""
        key, query = (f"{spell(self.words[at], longest=16)}({at})" for at in self.cell)
        return f"{key} → {query}"

    @property
    def carried(self) -> str:
        """`5 of 144 heads carry 92%`: how many carry how much of the mapping in front."""
        if self.front is None:
            return ""
        if self.front["doubts"]:
            return "modulation withheld"
        heads = self.circuit.source.layers * self.circuit.source.heads
        count = len(self.carriers)
        if not count:
            return f"none of {heads} heads carries"
        verb = "carries" if count == 1 else "carry"
        return f"{count} of {heads} heads {verb} {self.front['modulation']:.0%}"

    @property
    def finding(self) -> str:
        """What was found, in one sentence: `5 of 144 heads carry 92% of large(5) → "(8)`."""
        if self.front is None:
            return "No mapping of this prompt carries anything"
        if self.front["doubts"]:
            return f"{self.ends_text}: modulation withheld, {self.front['doubts'][0]}"
        if not self.carriers:
            return f"{self.carried[0].upper()}{self.carried[1:]} {self.ends_text}"
        return f"{self.carried} of {self.ends_text}"

    def question(self, name: str | None = None) -> str:
        """What was asked of which model: `large(5) → hot; logit(small) − logit(cold); mini; total 1.00 …`."""
        words = question_words(self.circuit, self.circuit.source.name if name is None else name)
        if self.front is None:
            return words
        return f"{words}; total {self.front['total']:z.2f} of the gap"

    @property
    def opening(self) -> tuple[str, ...]:
        """The carriers that attend to the key in the counterfactual, and on the prompt do not."""
        if self.circuit.front is None:
            return ()
        weights = {}
        for each in self.circuit.front.heads:
            weights[str(each.head)] = (each.weight, each.counterfactual_weight)
        opening = []
        for head in self.carriers:
            clean, other = weights[head]
            if clean < ATTENDS <= other:
                opening.append(head)
        return tuple(opening)

    @property
    def caption(self) -> str:
        """What the maps show: `All 5 heads map key 5 to query 8`; heads that only open are counted apart."""
        if self.cell is None or not self.carriers:
            return ""
        key, query = self.cell
        opening = len(self.opening)
        count = len(self.carriers) - opening
        named = {0: "No head maps", 1: "One head maps", 2: "Both heads map"}
        who = named.get(count, f"All {count} heads map")
        if opening:
            who = {0: "No head maps", 1: "One head maps"}.get(count, f"{count} heads map")
        caption = f"{who} key {key} to query {query}"
        return f"{caption}, {opening} only in the counterfactual" if opening else caption

    @property
    def verdict(self) -> str:
        """`A weak question: …`, which a picture says first; empty where the question is clear."""
        words = verdict_words(self.circuit)
        return words[:1].upper() + words[1:]

    def counted(self, drawn: Collection[tuple[int, int]]) -> str:
        """How many of the mappings that carry something are in `drawn`: `All 8 mappings with a total …`."""
        carrying = {
            mapping.ends for mapping in self.circuit.mappings if abs(mapping.total) >= CARRIES
        }
        count = len(carrying)
        shown = len(carrying.intersection(drawn))
        all_of_them = {0: "No mapping", 1: "The only mapping", 2: "Both mappings"}
        which = all_of_them.get(count, f"All {count} mappings")
        if shown < count:
            which = f"{shown} of {count} mappings"
        return f"{which} with a total of {CARRIES:g} or more"

    def is_key(self, position: int | None) -> bool:
        """Whether a position is the key of the mapping in front."""
        return self.cell is not None and position == self.cell[0]

    def mapped(self, most: int) -> tuple[str, ...]:
        """The first `most` carriers whose attention maps are in the circuit."""
        return tuple(head for head in self.carriers if self.circuit.has_map(head))[:most]

    def more(self, most: int) -> str:
        """`and 3 more heads`: the carriers beyond those of `mapped`; empty if there are none."""
        count = len(self.carriers) - len(self.mapped(most))
        return f"and {plural(count, 'more head')}" if count else ""

    def shown(
        self, *, most: int = LONGEST, also: Sequence[int] = (), bos: bool = False
    ) -> list[int | None]:
        """The positions to show, None for a gap.

        Positions in `also` matter too. A BOS that no mapping or span uses is left out unless `bos` is true.
        """
        length = len(self.words)
        anchors = [*self.graph.graph["anchors"], *also]
        without_bos = (
            self.graph.graph["reads_bos"] and length > 1 and 0 not in anchors and not bos
        )
        return kept_positions(length, anchors, most=most, first=1 if without_bos else 0)


def to_scene(circuit: Circuit | Scene, share: float | None = None) -> Scene:
    """What pictures of a circuit show, with the carriers of `share`, by default that of the circuit.

    A scene is returned as it is, so that several pictures of one circuit can share it.
    """
    if isinstance(circuit, Scene):
        return circuit
    graph = to_graph(circuit, share=share)
    mappings: list[Arrow] = list(graph.edges(data=True))
    for name, node in graph.nodes.items():
        mappings += [(name, name, mapping) for mapping in node.get("self_attention", ())]
    for start, end, mapping in mappings:
        if mapping["kind"] == "attention" and list(_positions(mapping)) == graph.graph["focus"]:
            return Scene(
                circuit,
                graph,
                mapping,
                _positions(mapping),
                (start, end),
                tuple(mapping["heads"]),
            )
    return Scene(circuit, graph)


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
    _number_boxes(graph, circuit)
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


def _number_boxes(graph: nx.MultiDiGraph, circuit: Circuit) -> None:
    """Give each box its `order` from left to right and its `rank`: the key's first, then the deepest."""
    key = None if circuit.front is None else node_at(graph, circuit.front.key)

    def across(box: tuple[str, Attributes]) -> tuple[float, int]:
        positions = box[1]["positions"]
        return fmean(positions), positions[-1]

    def importance(box: tuple[str, Attributes]) -> tuple[bool, int, float, int]:
        name, node = box
        deepest = max(node["layers"], default=-1)
        return name == key, deepest, round(node["effect"], 2), node["positions"][-1]

    boxes = [(name, node) for name, node in graph.nodes.items() if node["box"]]
    for order, (_, node) in enumerate(sorted(boxes, key=across)):
        node["order"] = order
    for rank, (_, node) in enumerate(sorted(boxes, key=importance, reverse=True)):
        node["rank"] = rank


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


def _numbered_arrows(
    circuit: Circuit, node_of: dict[int, str | None]
) -> dict[tuple[int, int], int]:
    """The mappings between two nodes that get an arrow, numbered: 0 is in front, then the strongest."""
    arrows: dict[tuple[int, int], int] = {}
    number = 1
    for mapping in sorted(
        circuit.mappings, key=lambda mapping: (-abs(mapping.total), mapping.ends)
    ):
        if node_of[mapping.key] == node_of[mapping.query]:
            continue
        if mapping is circuit.front:
            arrows = {mapping.ends: 0} | arrows
        elif abs(mapping.total) >= CARRIES and number < _MOST_ARROWS:
            arrows[mapping.ends] = number
            number += 1
    return arrows


def _anchors(circuit: Circuit, arrows: Iterable[tuple[int, int]]) -> list[int]:
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


def _positions(mapping: Attributes) -> tuple[int, int]:
    return mapping["from_position"], mapping["to_position"]
