"""Pictures and tables of results. What they show of a circuit is its scene, decided once, here, and carried
by the networkx graph that they are drawn from.

1. Nodes are spans, ends of mappings without a span, and the output; attention edges run from the key's node
   to the query's, with their carriers; what a node reads from itself is its attribute. The graph is acyclic,
   except where a group of positions both reads and is read by a token between them.
2. One mapping is in front: the one asked for, or the strongest. Others get an arrow if they carry something.
3. A prompt of up to 24 tokens is shown whole; of a longer one the tokens that matter and their neighbours.
4. A token is spelled so that it can be seen: no spaces around it, an escape (`\\n`) for what has no shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import lazy_loader
import networkx as nx

from circuits.errors import escaped
from circuits.tracing import CARRIES

if TYPE_CHECKING:
    from circuits.show.canvas import save_figure
    from circuits.show.curves import keep_curves
    from circuits.show.diagram import circuit_figure
    from circuits.show.dot import draw, to_dot
    from circuits.show.figure import mapping_figure
    from circuits.show.grids import Panel, comparison_grid, effect_map, head_grid, to_panel
    from circuits.show.page import to_page
    from circuits.tracing import Mapping, Span
    from circuits.tracing.records import Circuit, Why
    from circuits.tracing.wiring_record import Wiring

OUTPUT: Final = "output"  # the name of the output's node
LONGEST: Final = 24  # tokens of a prompt that is shown whole
LONGEST_WORD: Final = 32  # characters of a token that is shown whole
_MOST_ARROWS: Final = 24
_JOINERS: Final = "\u200c\u200d"  # between letters they shape a word, so they stay

_HOMES: Final = {
    "canvas": ("save_figure",),
    "curves": ("keep_curves",),
    "diagram": ("circuit_figure",),
    "dot": ("draw", "to_dot"),
    "figure": ("mapping_figure",),
    "grids": ("Panel", "comparison_grid", "effect_map", "head_grid", "to_panel"),
    "page": ("to_page",),
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A circuit and its graph, with what the graph says of the mapping in front, if there is one.

    What is drawn on a scale of layers comes from the graph alone, so a graph of components and wires will do.
    """

    circuit: Circuit
    graph: nx.MultiDiGraph
    front: dict[str, Any] | None = None  # the attributes of the mapping in front
    cell: tuple[int, int] | None = None  # its key and its query
    ends: tuple[str, str] | None = None  # the nodes between which it runs
    carriers: tuple[str, ...] = ()  # the heads that carry it

    @property
    def caption(self) -> str:
        """The red line above the maps: `These 5 of 144 heads map key 5 to query 8`."""
        if self.cell is None:
            return "No mapping of this prompt carries anything"
        count, heads = len(self.carriers), self.circuit.source.layers * self.circuit.source.heads
        who = {0: f"None of {heads} heads maps", 1: f"One of {heads} heads maps"}
        key, query = self.cell
        if self.front and self.front["doubts"]:
            return f"Key {key} to query {query}: modulation withheld, {self.front['doubts'][0]}"
        return f"{who.get(count, f'These {count} of {heads} heads map')} key {key} to query {query}"

    @property
    def verdict(self) -> str:
        """`A weak question: …`, which comes before all else; nothing where the question is clear."""
        words = verdict_words(self.circuit)
        return words[:1].upper() + words[1:]

    @property
    def boxes(self) -> list[tuple[str, dict[str, Any]]]:
        """The nodes that are drawn as boxes, without the output, from left to right."""
        boxes = [(name, node) for name, node in self.graph.nodes.items() if "order" in node]
        return sorted(boxes, key=lambda box: box[1]["order"])

    @property
    def arrows(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The mappings drawn as arrows, each with the nodes that it joins; the one in front comes first."""
        drawn = [edge for edge in self.graph.edges(data=True) if edge[2].get("arrow", -1) >= 0]
        return sorted(drawn, key=lambda edge: edge[2]["arrow"])

    @property
    def own_arrows(self) -> list[dict[str, Any]]:
        """The mappings that carry something between positions of one node, or of a position with itself."""
        listed = [data for node in self.graph.nodes.values() for data in node.get("self_attention", ())]
        return [data for data in listed if abs(data["total"]) >= CARRIES or data is self.front]

    @property
    def drawn(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Every mapping that is drawn, by key and query: the arrows, then those within one node."""
        mappings = [data for *_, data in self.arrows] + self.own_arrows
        return {(data["from_position"], data["to_position"]): data for data in mappings}

    def counted(self, drawn: Collection[tuple[int, int]]) -> str:
        """How many mappings (key, query) are drawn of those that carry something: `All 8 mappings with …`."""
        carrying = [mapping.ends for mapping in self.circuit.mappings if abs(mapping.total) >= CARRIES]
        count, shown = len(carrying), sum(ends in drawn for ends in carrying)
        whole = {0: "No mapping", 1: "The only mapping", 2: "Both mappings"}
        some = f"{shown} of {count} mappings" if shown < count else whole.get(count, f"All {count} mappings")
        return f"{some} with a total of {CARRIES:g} or more"

    @property
    def words(self) -> list[str]:
        return self.graph.graph["words"]

    @property
    def depth(self) -> int:
        """The number of layers."""
        return self.graph.graph["layers"]

    def is_key(self, position: int | None) -> bool:
        return self.cell is not None and position == self.cell[0]

    def mapped(self, most: int) -> tuple[str, ...]:
        """The first carriers, at most so many, of those whose attention maps the circuit has."""
        return tuple(head for head in self.carriers if self.circuit.has_map(head))[:most]

    def more(self, most: int) -> str:
        """How many carriers there are beyond those with a map, in words."""
        count = len(self.carriers) - len(self.mapped(most))
        return f"and {plural(count, 'more head')}" if count > 0 else ""

    def shown(self, *, most: int = LONGEST, also: Sequence[int] = (), bos: bool = False) -> list[int | None]:
        """The positions to show, None for a gap; a BOS that plays no part is left out unless it is wanted."""
        length, anchors = len(self.words), [*self.graph.graph["anchors"], *also]
        drop_bos = self.graph.graph["reads_bos"] and length > 1 and 0 not in anchors and not bos
        return kept_positions(length, anchors, most=most, first=int(drop_bos))


def to_scene(circuit: Circuit, share: float | None = None) -> Scene:
    """What pictures of a circuit show; carriers are those of `share`, by default that of the circuit."""
    graph = to_graph(circuit, share=share)
    mappings = [(data, (start, end)) for start, end, data in graph.edges(data=True) if "total" in data]
    for name, node in graph.nodes.items():
        mappings += [(data, (name, name)) for data in node.get("self_attention", ())]
    for data, ends in mappings:
        cell = data["from_position"], data["to_position"]
        if [*cell] == graph.graph["focus"]:
            return Scene(circuit, graph, data, cell, ends, tuple(data["heads"]))
    return Scene(circuit, graph)


def to_graph(circuit: Circuit, *, share: float | None = None) -> nx.MultiDiGraph:
    """Spans, ends of mappings and the output, what runs between them, and how all of it is drawn.

    >>> graph = show.to_graph(found)
    >>> sorted(graph.nodes)
    ['5', '8', 'output']
    """
    share, front = circuit.share if share is None else share, circuit.front
    graph = nx.MultiDiGraph(model=circuit.source.name, prompt=circuit.prompt.text, metric=str(circuit.metric))
    graph.graph |= {"share": share, "focus": list(front.ends) if front else []}
    graph.graph |= {"words": list(circuit.prompt.words), "layers": circuit.source.layers}
    graph.graph["reads_bos"] = circuit.source.reads_bos
    node_of = _add_nodes(graph, circuit)
    arrows = _arrows(circuit, node_of)
    for mapping in sorted(circuit.mappings, key=lambda mapping: mapping.ends):
        attributes = _attention(mapping, share) | {"arrow": arrows.get(mapping.ends, -1)}
        start, end = node_of[mapping.key], node_of[mapping.query]
        if start == end:
            graph.nodes[start].setdefault("self_attention", []).append(attributes)
        else:
            graph.add_edge(start, end, key=f"{mapping.key}→{mapping.query}", **attributes)
    last, first_word = len(circuit.prompt) - 1, int(circuit.source.reads_bos and len(circuit.prompt) > 1)
    graph.add_edge(node_of[last], OUTPUT, key="residual", kind="residual")
    in_spans = [position for span in circuit.spans for position in span.positions]
    positions = [*(position for ends in arrows for position in ends), last, *in_spans, first_word]
    graph.graph["anchors"] = list(dict.fromkeys(positions))  # the positions that matter, most important first
    return graph


def node_at(graph: nx.MultiDiGraph, position: int) -> str | None:
    """The node in which a position stands: of several the one with the fewest positions; None if in none."""
    nodes = [name for name, node in graph.nodes.items() if position in node["positions"] and name != OUTPUT]
    return min(nodes, key=lambda name: len(graph.nodes[name]["positions"]), default=None)


def routes(circuit: Circuit, start: int | str, end: int | str) -> tuple[tuple[str, ...], ...]:
    """Every route from a token to a token or to the output (named by its word), as the labels on the way."""
    graph, names = to_graph(circuit), []
    for token in (start, end):
        is_output = token == circuit.output.token
        names.append(OUTPUT if is_output else node_at(graph, circuit.prompt.position(token)))
    if None in names:
        return ()
    paths = {tuple(path) for path in nx.all_simple_paths(graph, *names)}
    return tuple(tuple(str(graph.nodes[name]["label"]) for name in path) for path in sorted(paths))


def _add_nodes(graph: nx.MultiDiGraph, circuit: Circuit) -> dict[int, str | None]:
    """Add spans, the other ends of mappings and the output, and say in which node each end stands."""
    last, front, output = len(circuit.prompt) - 1, circuit.front, circuit.output
    for span in circuit.spans:
        name = "+".join(map(str, span.positions))
        while name in graph:
            name += "'"
        graph.add_node(name, kind="span", label=span.label, positions=list(span.positions), box=True)
        graph.nodes[name].update(layers=list(span.layers or ()), built=span.built_text, effect=span.effect)
        graph.nodes[name]["ranges"] = [list(layers) for layers in span.built]
        graph.nodes[name]["lines"] = _span_lines(span)
    ends = {position for mapping in circuit.mappings for position in mapping.ends} | {last}
    bare = {position for position in ends if node_at(graph, position) is None}
    if front and front.key != front.query and node_at(graph, front.key) == node_at(graph, front.query):
        bare.add(front.query)
    for position in sorted(bare):
        word, name = circuit.prompt.words[position], str(position)
        boxed = front is not None and (position == front.key or last != position == front.query)
        graph.add_node(name, kind="token", label=word.strip() or repr(word), positions=[position], box=boxed)
        lines = [spell(word, longest=18), f"pos {position}"]
        graph.nodes[name].update(layers=[], built="", effect=0.0, lines=lines)
    _arrange(graph, None if front is None else node_at(graph, front.key))
    lines = [spell(output.token), f"layer {output.layer}", f"p = {output.probability:.2f}"]
    graph.add_node(OUTPUT, kind="output", label=output.token, positions=[last], box=True, lines=lines)
    graph.nodes[OUTPUT].update(layers=[output.layer], effect=1.0, probability=output.probability)
    return {position: node_at(graph, position) for position in ends}


def _arrange(graph: nx.MultiDiGraph, key: str | None) -> None:
    """Number the boxes from left to right and, for where not all fit, the key's first, then the deepest."""
    nodes = graph.nodes
    boxes = [name for name in nodes if nodes[name]["box"]]
    last = {name: nodes[name]["positions"][-1] for name in boxes}
    depth = {name: max(nodes[name]["layers"], default=-1) for name in boxes}
    effect = {name: round(nodes[name]["effect"], 2) for name in boxes}
    across = sorted(boxes, key=lambda name: (fmean(nodes[name]["positions"]), last[name]))
    kept = sorted(boxes, key=lambda name: (name == key, depth[name], effect[name], last[name]), reverse=True)
    for name in boxes:
        nodes[name].update(order=across.index(name), rank=kept.index(name))


def _arrows(circuit: Circuit, node_of: dict[int, str | None]) -> dict[tuple[int, int], int]:
    """The ends of mappings worth an arrow, numbered: 0 is in front, then the strongest; none in one node."""
    mappings = sorted(circuit.mappings, key=lambda mapping: (-abs(mapping.total), mapping.ends))
    apart = [mapping for mapping in mappings if node_of[mapping.key] != node_of[mapping.query]]
    others = [mapping for mapping in apart if abs(mapping.total) >= CARRIES and mapping is not circuit.front]
    numbers = {mapping.ends: 0 for mapping in apart if mapping is circuit.front}
    drawn = enumerate(others[: _MOST_ARROWS - 1], 1)
    return numbers | {mapping.ends: number for number, mapping in drawn}


def _attention(mapping: Mapping, share: float) -> dict[str, Any]:
    """What an edge says of a mapping: `heads` are effects of a head alone, `joint` of all up to that head."""
    steps, modulation = mapping.path[: len(mapping.carriers(share))], mapping.modulation(share)
    label = "Modulation withheld" if mapping.doubts else f"Modulated at {modulation:.0%} by"
    return {
        "kind": "attention",
        "label": label if steps else "Carried by no head",
        "doubts": list(mapping.doubts),
        "from_position": mapping.key,
        "to_position": mapping.query,
        "total": mapping.total,
        "modulation": modulation,
        "heads": {str(step.head): mapping.effect_of(step.head).effect for step in steps},
        "joint": {str(step.head): step.joint for step in steps},
    }


def gains(mapping: dict[str, Any]) -> dict[str, float]:
    """What each head adds to the joint effect of those before it; the gains of all add up to it."""
    steps = pairwise([("", 0.0), *mapping["joint"].items()])
    return {name: joint - before for (_, before), (name, joint) in steps}


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


def spell(word: str, *, longest: int = LONGEST_WORD) -> str:
    """A token's text as it can be seen: never empty, no control characters, cut where it is too long."""
    bare = word.strip(" ")
    if not bare:
        return "␣" * max(1, min(len(word), 4))
    inside = range(1, len(bare) - 1)
    letters = (c if c in _JOINERS and index in inside else escaped(c) for index, c in enumerate(bare))
    shown = "".join(letters)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def metric_words(circuit: Circuit | Why | Wiring, *, longest: int = LONGEST_WORD) -> str:
    """The metric with its tokens spelled."""
    metric = circuit.metric
    foil = None if metric.foil_text is None else spell(metric.foil_text, longest=longest)
    return str(replace(metric, answer_text=spell(metric.answer_text, longest=longest), foil_text=foil))


def counterfactual_words(circuit: Circuit | Why | Wiring, *, longest: int = LONGEST_WORD) -> str:
    """The counterfactual by what differs: `large(5) → hot`; noise says itself."""
    words = getattr(circuit.counterfactual, "words", None)
    if words is None:
        return str(circuit.counterfactual)
    texts = []
    for position, pair in enumerate(zip(circuit.prompt.words, words, strict=True)):
        clean, other = (spell(word, longest=longest) for word in pair)
        texts += [f"{clean}({position}) → {other}"] if pair[0] != pair[1] else []
    return listed(texts, most=8)


def verdict_words(circuit: Circuit | Wiring) -> str:
    """`a weak question: …` with its reasons; nothing where the question is clear, or was not judged."""
    question = getattr(circuit, "question", None)
    if question is None or question.verdict == "clear":
        return ""
    kind = {"weak": "a weak question", "none": "no question"}[question.verdict]
    return f"{kind}: {'; '.join(spell(reason, longest=400) for reason in question.reasons)}"


def plural(count: int, name: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{count} {name}{'' if count == 1 else 's'}"


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


# The pictures themselves are imported when they are first used.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
__all__ = sorted([*__all__, "to_graph"])
