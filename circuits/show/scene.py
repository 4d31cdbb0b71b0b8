"""What the pictures of a circuit show, decided once and held as a networkx graph.

1. `graph` makes the graph: nodes are spans, tokens and the output, edges are mappings.
2. One mapping is in front: the one that the user asked for, or else the strongest. Its carriers are named.
3. A scene says in words what was found, what was asked and what is not drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import networkx as nx

from circuits.show.graph import (
    LONGEST,
    Arrow,
    Attributes,
    Ends,
    kept_positions,
    positions_of,
    to_graph,
)
from circuits.show.words import (
    plural,
    question_words,
    spell,
    verdict_words,
)
from circuits.tracing import CARRIES

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

ATTENDS: Final = 0.05  # a head with a smaller weight does not attend to the key


@dataclass(frozen=True, slots=True)
class Scene:
    """A circuit and its graph, with the mapping in front, if there is one."""

    circuit: Circuit
    graph: nx.MultiDiGraph
    front: Attributes | None = None  # the attributes of the mapping in front
    cell: Ends | None = None  # its key and its query
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
    def drawn(self) -> dict[Ends, Attributes]:
        """Every mapping that is drawn, by key and query: those between nodes, then those inside a node."""
        mappings = [mapping for _, _, mapping in self.arrows]
        mappings += self.own_arrows
        return {positions_of(mapping): mapping for mapping in mappings}

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
        if count == 0:
            who = "No head maps"
        elif count == 1:
            who = "One head maps"
        elif opening:
            who = f"{count} heads map"
        else:
            who = "Both heads map" if count == 2 else f"All {count} heads map"
        caption = f"{who} key {key} to query {query}"
        return f"{caption}, {opening} only in the counterfactual" if opening else caption

    @property
    def verdict(self) -> str:
        """`A weak question: …`, which a picture says first; empty where the question is clear."""
        words = verdict_words(self.circuit)
        return words[:1].upper() + words[1:]

    def counted(self, drawn: Collection[Ends]) -> str:
        """How many of the mappings that carry something are in `drawn`: `All 8 mappings with a total …`."""
        carrying = {
            mapping.ends for mapping in self.circuit.mappings if abs(mapping.total) >= CARRIES
        }
        count = len(carrying)
        shown = len(carrying.intersection(drawn))
        if shown < count:
            which = f"{shown} of {count} mappings"
        else:
            few = {0: "No mapping", 1: "The only mapping", 2: "Both mappings"}
            which = few.get(count, f"All {count} mappings")
        return f"{which} with a total of {CARRIES:g} or more"

    def is_key(self, position: int | None) -> bool:
        """Whether a position is the key of the mapping in front."""
        return self.cell is not None and position == self.cell[0]

    def is_query(self, position: int) -> bool:
        """Whether a position is the query of the mapping in front."""
        return self.cell is not None and position == self.cell[1]

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
    mappings = [edge for edge in graph.edges(data=True) if edge[2]["kind"] == "attention"]
    for name, node in graph.nodes.items():
        mappings += [(name, name, mapping) for mapping in node.get("self_attention", ())]
    for start, end, mapping in mappings:
        cell = positions_of(mapping)
        if list(cell) == graph.graph["focus"]:
            return Scene(circuit, graph, mapping, cell, (start, end), tuple(mapping["heads"]))
    return Scene(circuit, graph)
