"""What a picture of a circuit shows, decided once and carried by a networkx graph from which pictures are drawn.

1. Nodes are spans, ends of mappings without a span, and the output; each has the lines of its box. Attention
   edges run from the key's node to the query's, with their carriers; what a node reads from itself is its
   attribute. The residual stream joins the last position to the output. The graph is acyclic, except where a
   group of positions both reads and is read by a token between them.
2. One mapping is in front: the one asked for, or the strongest. Others get an arrow if they carry something.
3. A position stands in its span, of several the one with the fewest positions; else (the last one) in the
   output; else at its token. The ends of the mapping in front have boxes of their own, even without a span.
4. A prompt of up to 24 tokens is shown whole; of a longer one the tokens that matter and their neighbours.
5. A token is spelled so that it can be seen: no spaces around it, an escape (`\\n`) for what has no shape.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from circuits.tracing.records import CARRIES

if TYPE_CHECKING:
    import networkx as nx

    from circuits.tracing.records import Circuit, Mapping, Span

OUTPUT: Final = "output"  # the name of the output's node
LONGEST: Final = 24  # tokens of a prompt that is shown whole
LONGEST_WORD: Final = 32  # characters of a token that is shown whole
_MOST_ARROWS: Final = 6
_SHAPELESS: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})
_JOINERS: Final = frozenset({"\u200c", "\u200d"})  # between letters they shape a word, so they stay


@dataclass(frozen=True, slots=True)
class Scene:
    """A circuit and its graph, with what the graph says of the mapping in front."""

    circuit: Circuit
    graph: nx.MultiDiGraph
    front: dict[str, Any] | None  # the attributes of the mapping in front; None where there is no mapping
    ends: tuple[str, str] | None  # the nodes between which it runs

    @property
    def cell(self) -> tuple[int, int] | None:
        """The key and the query of the mapping in front."""
        return None if self.front is None else (self.front["from_position"], self.front["to_position"])

    @property
    def carriers(self) -> tuple[str, ...]:
        """The heads that carry the mapping in front."""
        return () if self.front is None else tuple(self.front["heads"])

    @property
    def caption(self) -> str:
        """The red line above the maps: `These 5 of 144 heads map key 5 to query 8`."""
        if self.cell is None:
            return "No mapping of this prompt carries anything"
        count, heads = len(self.carriers), self.circuit.source.layers * self.circuit.source.heads
        who = {0: f"None of {heads} heads maps", 1: f"One of {heads} heads maps"}
        key, query = self.cell
        return f"{who.get(count, f'These {count} of {heads} heads map')} key {key} to query {query}"

    @property
    def boxes(self) -> list[tuple[str, dict[str, Any]]]:
        """The nodes that are drawn as boxes, without the output, from left to right."""
        boxes = [(name, node) for name, node in self.graph.nodes.items() if "order" in node]
        return sorted(boxes, key=lambda box: box[1]["order"])

    @property
    def arrows(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The mappings that are drawn as arrows, each with the nodes that it joins, the one in front first."""
        drawn = [edge for edge in self.graph.edges(data=True) if edge[2].get("arrow", -1) >= 0]
        return sorted(drawn, key=lambda edge: edge[2]["arrow"])

    def is_key(self, position: int | None) -> bool:
        return self.cell is not None and position == self.cell[0]

    def shown(self, *, most: int = LONGEST, also: Sequence[int] = (), bos: bool = False) -> list[int | None]:
        """The positions to show, None for a gap; a BOS that plays no part is left out unless it is wanted."""
        length, anchors = len(self.circuit.prompt), [*self.graph.graph["anchors"], *also]
        drop_bos = self.circuit.source.reads_bos and length > 1 and 0 not in anchors and not bos
        return kept_positions(length, anchors, most=most, first=int(drop_bos))


def to_scene(circuit: Circuit, share: float | None = None) -> Scene:
    """What pictures of a circuit show, with the carriers of `share`, by default the share it was measured at."""
    graph = to_graph(circuit, share=share)
    mappings = [(data, (start, end)) for start, end, data in graph.edges(data=True) if "total" in data]
    for name, node in graph.nodes.items():
        mappings += [(data, (name, name)) for data in node.get("self_attention", ())]
    for data, ends in mappings:
        if [data["from_position"], data["to_position"]] == graph.graph["focus"]:
            return Scene(circuit, graph, data, ends)
    return Scene(circuit, graph, None, None)


# The graph


def to_graph(circuit: Circuit, *, share: float | None = None) -> nx.MultiDiGraph:
    """Spans, ends of mappings and the output, what runs between them, and how all of it is drawn."""
    import networkx as nx

    share, front = circuit.share if share is None else share, circuit.front
    graph = nx.MultiDiGraph(model=circuit.source.name, prompt=circuit.prompt.text, metric=str(circuit.metric))
    graph.graph |= {"share": share, "focus": [front.key, front.query] if front else []}
    _add_nodes(graph, circuit)
    arrows = _arrows(graph, circuit)
    for mapping in sorted(circuit.mappings, key=lambda mapping: (mapping.key, mapping.query)):
        ends = mapping.key, mapping.query
        attributes = _attention(mapping, share) | {"arrow": arrows.get(ends, -1)}
        start, end = (node_at(graph, position) for position in ends)
        if start == end:
            graph.nodes[start].setdefault("self_attention", []).append(attributes)
        else:
            graph.add_edge(start, end, key=f"{mapping.key}→{mapping.query}", **attributes)
    last, first_word = len(circuit.prompt) - 1, int(circuit.source.reads_bos and len(circuit.prompt) > 1)
    graph.add_edge(node_at(graph, last), OUTPUT, key="residual", kind="residual")
    in_spans = [position for span in circuit.spans for position in span.positions]
    positions = [*(position for ends in arrows for position in ends), last, *in_spans, first_word]
    graph.graph["anchors"] = list(dict.fromkeys(positions))  # the positions that matter, most important first
    return graph


def node_at(graph: nx.MultiDiGraph, position: int) -> str | None:
    """The node in which a position stands: of several the one with the fewest positions, None if there is none."""
    nodes = [name for name, node in graph.nodes.items() if position in node["positions"] and name != OUTPUT]
    return min(nodes, key=lambda name: len(graph.nodes[name]["positions"]), default=None)


def routes(circuit: Circuit, start: int | str, end: int | str) -> tuple[tuple[str, ...], ...]:
    """Every route from a token to a token or to the output (named by its word), as the labels on the way."""
    import networkx as nx

    graph, names = to_graph(circuit), []
    for token in (start, end):
        is_output = token == circuit.output.token
        names.append(OUTPUT if is_output else node_at(graph, circuit.prompt.position(token)))
    if None in names:
        return ()
    paths = {tuple(path) for path in nx.all_simple_paths(graph, *names)}
    return tuple(tuple(str(graph.nodes[name]["label"]) for name in path) for path in sorted(paths))


def _add_nodes(graph: nx.MultiDiGraph, circuit: Circuit) -> None:
    """Spans, the other ends of mappings, and the output; boxes get their order and their importance."""
    last, front, output = len(circuit.prompt) - 1, circuit.front, circuit.output
    for span in circuit.spans:
        name = "+".join(map(str, span.positions))
        while name in graph:
            name += "'"
        graph.add_node(name, kind="span", label=span.label, positions=list(span.positions), box=True)
        graph.nodes[name].update(layers=list(span.layers or ()), built=span.built_text, effect=span.effect)
        graph.nodes[name]["lines"] = _span_lines(span)
    ends = {position for mapping in circuit.mappings for position in (mapping.key, mapping.query)} | {last}
    bare = {position for position in ends if node_at(graph, position) is None}
    if front and front.key != front.query and node_at(graph, front.key) == node_at(graph, front.query):
        bare.add(front.query)
    for position in sorted(bare):
        word, name = circuit.prompt.words[position], str(position)
        boxed = front is not None and (position == front.key or last != position == front.query)
        graph.add_node(name, kind="token", label=word.strip() or repr(word), positions=[position], box=boxed)
        lines = [spell(word, longest=18), f"pos {position}"]
        graph.nodes[name].update(layers=[], built="", effect=0.0, lines=lines)
    key = None if front is None else node_at(graph, front.key)
    boxes = [(name, node) for name, node in graph.nodes.items() if node["box"]]
    for number, (_, node) in enumerate(sorted(boxes, key=lambda box: _middle(box[1]))):
        node["order"] = number  # from left to right
    for number, (_, node) in enumerate(sorted(boxes, key=lambda box: (box[0] != key, *_depth(box[1])))):
        node["rank"] = number  # where not all fit, the first are kept: the key's, then those held deepest
    lines = [spell(output.token), f"layer {output.layer}", f"p = {output.probability:.2f}"]
    graph.add_node(OUTPUT, kind="output", label=output.token, positions=[last], box=True, lines=lines)
    graph.nodes[OUTPUT].update(layers=[output.layer], effect=1.0, probability=output.probability)


def _middle(node: dict[str, Any]) -> tuple[float, int]:
    return sum(node["positions"]) / len(node["positions"]), node["positions"][-1]


def _depth(node: dict[str, Any]) -> tuple[float, ...]:
    """Deepest first; where that and the effect are equal up to rounding, the later token first."""
    return -max(node["layers"], default=-1), -round(node["effect"], 2), -node["positions"][-1]


def _arrows(graph: nx.MultiDiGraph, circuit: Circuit) -> dict[tuple[int, int], int]:
    """The ends of mappings worth an arrow, numbered: 0 is in front, then the strongest; none inside a node."""
    front = circuit.front and (circuit.front.key, circuit.front.query)
    strong = [mapping for mapping in circuit.mappings if abs(mapping.total) >= CARRIES]
    strong.sort(key=lambda mapping: (-abs(mapping.total), mapping.key, mapping.query))
    others = [(mapping.key, mapping.query) for mapping in strong]
    drawn = [ends for ends in others if ends != front and _is_apart(graph, ends)][: _MOST_ARROWS - 1]
    first = {front: 0} if front and _is_apart(graph, front) else {}
    return first | {ends: number for number, ends in enumerate(drawn, 1)}


def _is_apart(graph: nx.MultiDiGraph, ends: tuple[int, int]) -> bool:
    return node_at(graph, ends[0]) != node_at(graph, ends[1])


def _attention(mapping: Mapping, share: float) -> dict[str, Any]:
    """What an edge says of a mapping; `heads` are effects of one head alone, `joint` of all up to that head."""
    steps, modulation = mapping.path[: len(mapping.carriers(share))], mapping.modulation(share)
    return {
        "kind": "attention",
        "label": f"Modulated at {modulation:.0%} by" if steps else "Carried by no head",
        "from_position": mapping.key,
        "to_position": mapping.query,
        "total": mapping.total,
        "modulation": modulation,
        "heads": {str(step.head): mapping.effect_of(step.head).effect for step in steps},
        "joint": {str(step.head): step.joint for step in steps},
    }


# Positions


def kept_positions(
    length: int, anchors: Iterable[int], *, most: int = LONGEST, reach: int = 1, first: int = 0
) -> list[int | None]:
    """The positions to show, None for a gap; anchors come most important first, with their neighbours."""
    if length - first <= most:
        return list(range(first, length))
    chosen: set[int] = set()
    for anchor in anchors:
        around = set(range(max(first, anchor - reach), min(length, anchor + reach + 1)))
        if len(chosen | around) <= most:
            chosen |= around
        elif len(chosen) < most:
            chosen.add(anchor)
    chosen |= {position + 1 for position in chosen if position + 2 in chosen}  # a gap of one saves nothing
    shown: list[int | None] = []
    for position in sorted(chosen):
        if position > first and position - 1 not in chosen:
            shown.append(None)
        shown.append(position)
    return shown if length - 1 in chosen else [*shown, None]


# Words


def spell(word: str, *, longest: int = LONGEST_WORD) -> str:
    """A token's text as it can be seen: never empty, no control characters, cut where it is too long."""
    bare = word.strip(" ")
    if not bare:
        return "␣" * max(1, min(len(word), 4))
    end = len(bare) - 1
    shown = "".join(_visible(letter, inside=0 < index < end) for index, letter in enumerate(bare))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _visible(letter: str, *, inside: bool) -> str:
    if letter in _JOINERS and inside:
        return letter
    category = unicodedata.category(letter)
    if category in _SHAPELESS or (category == "Zs" and letter != " "):
        return letter.encode("unicode_escape").decode("ascii")
    return letter


def metric_words(circuit: Circuit, *, longest: int = LONGEST_WORD) -> str:
    """The metric with its tokens spelled."""
    metric = circuit.metric
    foil = None if metric.foil_text is None else spell(metric.foil_text, longest=longest)
    return str(replace(metric, answer_text=spell(metric.answer_text, longest=longest), foil_text=foil))


def counterfactual_words(circuit: Circuit, *, longest: int = LONGEST_WORD) -> str:
    """The counterfactual by what differs: `large(5) → hot`; noise says itself."""
    words = getattr(circuit.counterfactual, "words", None)
    if words is None:
        return str(circuit.counterfactual)
    texts = []
    for position, pair in enumerate(zip(circuit.prompt.words, words, strict=True)):
        clean, other = (spell(word, longest=longest) for word in pair)
        texts += [f"{clean}({position}) → {other}"] if pair[0] != pair[1] else []
    return listed(texts, most=8)


def listed(texts: Sequence[str], *, most: int) -> str:
    """`a, b and 3 more`."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def name_rows(names: Sequence[str], *, most: int, in_a_row: int = 4) -> list[str]:
    """The first `most` names in rows of equal length, and how many more there are."""
    shown = names[:most]
    width = -(-len(shown) // -(-len(shown) // in_a_row)) if shown else 1
    rows = [" ".join(shown[start : start + width]) for start in range(0, len(shown), width)]
    return rows + ([f"and {len(names) - len(shown)} more"] if len(names) > len(shown) else [])


def _span_lines(span: Span) -> list[str]:
    """What a span's box says: `large`, `layer 0-21`, `built in 0, 20-21` (once, if both are the same)."""
    first, last = span.layers or (0, 0)
    held = [f"layer {first}-{last}" if first != last else f"layer {first}"] if span.layers else []
    built = [f"built in {span.built_text}"] if span.built and span.built != (span.layers,) else []
    return [spell(span.label), *(held + built or ["no layer"])]
