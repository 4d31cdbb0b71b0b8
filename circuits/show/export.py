"""Circuits, wirings and rankings of component edges in the formats of other tools: networkx's JSON, GraphML,
Neuronpedia, EAP-IG and MIB.

1. A ranking of component edges is a graph of components: in the EAP format all its edges with their scores,
   those that explain 90% marked as in the graph; elsewhere these alone.
2. A wiring has its wires at positions, which EAP does not know: there an edge has the score of its strongest
   wire. `tasks.wires.from_eap` reads the EAP format back.
3. A circuit is an attribution graph of Neuronpedia. Nodes are the embeddings, the carriers, and the predicted
   token; layers count from 1, as the viewer needs; the feature type `unknown` keeps it from fetching details.
   A carrier is linked to what stands where it reads (the embedding, and the carriers below that write there)
   and to the logit if it writes where that is read. The weight is the effect of its message.
4. An answer of `why` adds the writers of the head's sides, each linked by the effect of its wire, and fills
   `qk_tracing_results`: the parts of the score by pairs of writers, and the sums over either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import networkx as nx

from circuits.components import Component, Head, Wire, component_edges, components
from circuits.errors import FileError, escaped
from circuits.files import to_json
from circuits.results import open_result
from circuits.show import to_graph
from circuits.show.wiring import wiring_graph
from circuits.tasks.ranking import EXPLAINED, Ranking, Shape
from circuits.tracing.records import Circuit, Why
from circuits.tracing.wiring_record import Wiring

Exportable = Circuit | Ranking | Wiring
_PAIRS: Final = "pair_wise_contributors"
_OF_QUERY: Final = "top_q_marginal_contributors"
_OF_KEY: Final = "top_k_marginal_contributors"
_TOP: Final = 8  # marginal contributors of a side
_EMBED: Final = Component(-1, "embed")
Node = dict[str, Any]
Link = tuple[str, str, float]  # source, target, weight


def to_node_link(result: Exportable) -> str:
    """networkx's own JSON: read it with `networkx.node_link_graph`."""
    return to_json(nx.node_link_data(_graph(result), edges="links"))


def to_graphml(result: Exportable) -> str:
    """GraphML for Gephi, yEd and Cytoscape; lists become text, because it has scalars only."""
    graph = _graph(result)
    nodes, edges = graph.nodes.values(), (edge for *_, edge in graph.edges(data=True))
    for attributes in (graph.graph, *nodes, *edges):
        for name, value in attributes.items():
            if isinstance(value, list | dict | tuple):
                attributes[name] = to_json(value, indent=None)
            elif isinstance(value, str):
                attributes[name] = escaped(value)  # XML has no way to say a control character
    return "\n".join(nx.generate_graphml(graph))


def _graph(result: Exportable) -> nx.MultiDiGraph:
    if isinstance(result, Wiring):
        return wiring_graph(result)
    return to_graph(result) if isinstance(result, Circuit) else component_graph(result)


def component_graph(ranking: Ranking, share: float = EXPLAINED) -> nx.MultiDiGraph:
    """The component edges that explain a share: components as nodes, an edge for each wire, keyed by the side
    that reads it."""
    shape = _shape_of(ranking)
    graph = nx.MultiDiGraph(task=ranking.task, model=ranking.model, share=share, layers=shape.layers)
    chosen = set(ranking.needed(share))
    for each in ranking.ranked:
        if each.unit not in chosen:
            continue
        wire = Wire.parse(str(each.unit), layers=shape.layers)
        writer, reader = wire.writer, wire.reader
        start, end = str(writer), str(reader.component or "logits")
        graph.add_node(start, layer=writer.layer, kind=writer.kind)
        graph.add_node(end, layer=reader.layer, kind=getattr(reader.component, "kind", "logits"))
        measured = {"effect": each.effect, "low": each.low, "high": each.high, "exact": each.exact}
        graph.add_edge(start, end, key=reader.kind, side=reader.kind, **measured)
    return graph


def _shape_of(result: Exportable) -> Shape:
    if isinstance(result, Ranking):
        if result.shape is None:
            raise FileError("only a ranking of component edges is a graph; rank the task with units='wires'")
        return result.shape
    source = result.source
    return Shape(source.layers, source.heads, source.width, source.parallel)


def to_eap(result: Exportable) -> str:
    """EAP-IG / MIB circuit JSON. Of a ranking of component edges: every edge `a9.h9->a10.h0<q>`, its effect
    (or, where `exact` is false, its estimate) as the score, those for 90% in the graph. Of a wiring: the
    edges of its wires in the graph, all others with a score of 0. Of a circuit, which has no wires: its heads
    as edges to the logits, each with its largest effect."""
    if isinstance(result, Circuit):
        return _eap_of_circuit(result)
    shape = _shape_of(result)
    if isinstance(result, Ranking):
        scores = {str(each.unit): (each.effect, each.exact) for each in result.ranked}
        return _eap_of_edges(shape, scores, {str(unit) for unit in result.needed()})
    scores = {}
    for each in reversed(result.wires):  # strongest last, so that it stays
        scores[str(Wire(each.wire.writer, each.wire.reader))] = (each.effect, True)
    return _eap_of_edges(shape, scores, set(scores))


def _eap_of_edges(shape: Shape, scores: Mapping[str, tuple[float, bool]], chosen: set[str]) -> str:
    """Every component edge, by the spoken names of those that have a score and of those in the graph."""
    edges, used = {}, {"input", "logits"}
    for wire in component_edges(layers=shape.layers, heads=shape.heads, parallel=shape.parallel):
        score, exact = scores.get(str(wire), (0.0, True))
        inside = str(wire) in chosen
        edges[wire.eap] = {"score": score, "in_graph": inside, "exact": exact}
        if inside:
            used |= {wire.writer.eap} | ({wire.reader.component.eap} if wire.reader.component else set())
    every = [component.eap for component in components(layers=shape.layers, heads=shape.heads)]
    return _eap(shape, {name: name in used for name in (*every, "logits")}, edges)


def _eap(shape: Shape, nodes: Mapping[str, bool], edges: Mapping[str, Any]) -> str:
    """The JSON of these edges and of nodes that are in the graph or not."""
    config = {"n_layers": shape.layers, "n_heads": shape.heads}
    config |= {"parallel_attn_mlp": shape.parallel, "d_model": shape.width}
    marked = {name: {"in_graph": inside} for name, inside in nodes.items()}
    return to_json({"cfg": config, "nodes": marked, "edges": edges})


def _eap_of_circuit(circuit: Circuit) -> str:
    source, mappings = circuit.source, circuit.mappings
    strongest: dict[str, float] = {}
    for effect in (effect for mapping in mappings for effect in mapping.heads):
        name = Component.of(effect.head).eap
        strongest[name] = max(strongest.get(name, 0.0), effect.effect, key=abs)
    kept = {Component.of(head).eap for mapping in mappings for head in mapping.carriers(circuit.share)}
    names = [f"a{layer}.h{head}" for layer in range(source.layers) for head in range(source.heads)]
    mlps = [f"m{layer}" for layer in range(source.layers)]
    nodes = {"input": True} | {name: name in kept for name in names} | dict.fromkeys([*mlps, "logits"], True)
    edges = {}
    for name in names:
        edges[f"{name}->logits"] = {"score": strongest.get(name, 0.0), "in_graph": name in kept}
    return _eap(_shape_of(circuit), nodes, edges)


def to_neuronpedia(circuit: Circuit, *, why: Sequence[Why] = ()) -> str:
    """The graph as JSON; `why` are answers about heads of this circuit."""
    prompt, layer, last = circuit.prompt, circuit.source.layers + 1, len(circuit.prompt) - 1
    nodes = _embeddings(circuit)
    logit, probability = f"{layer}_{circuit.metric.answer}_{last}", circuit.output.probability
    links = [*_carriers(circuit, nodes, logit)]
    for answer in why:
        links += _writers(circuit, nodes, answer)
    text = f'Output "{circuit.metric.answer_text}" (p={probability:.3f})'
    answer = _node(logit, str(layer), last, "logit", text)
    nodes[logit] = answer | {"is_target_logit": True, "token_prob": probability}
    name = f"{circuit.source.name}-{prompt.text}".lower()
    slug = "".join(letter if letter.isalnum() else "-" for letter in name)[:60].strip("-") or "circuit"
    metadata = {"slug": slug, "scan": circuit.source.name}
    metadata |= {"prompt_tokens": list(prompt.words), "prompt": prompt.text}
    query = {"linkType": "both", "pinnedIds": [], "clickedId": logit, "supernodes": [], "sg_pos": ""}
    listed = {"nodes": list(nodes.values()), "links": _once(links)}
    return to_json({"metadata": metadata, "qParams": query} | listed)


def _once(links: Sequence[Link]) -> list[dict[str, str | float]]:
    """One link for each source and target, with the largest weight."""
    strongest: dict[tuple[str, str], float] = {}
    for source, target, weight in links:
        strongest[source, target] = max(strongest.get((source, target), 0.0), weight, key=abs)
    return [{"source": a, "target": b, "weight": weight} for (a, b), weight in strongest.items()]


# Nodes


def _node(name: str, layer: str, position: int, kind: str, text: str) -> Node:
    node = {"node_id": name, "jsNodeId": name, "feature": None, "layer": layer}
    return node | {"ctx_idx": position, "feature_type": kind, "clerp": text}


def _embeddings(circuit: Circuit) -> dict[str, Node]:
    nodes = {}
    for position, word in enumerate(circuit.prompt.words):
        name = _name(circuit, _EMBED, position)
        nodes[name] = _node(name, "E", position, "embedding", word)
    return nodes


def _name(circuit: Circuit, writer: Component, position: int) -> str:
    """An MLP is numbered behind the heads of its layer."""
    if writer.kind == "embed":
        return f"E_{circuit.prompt.tokens[position]}_{position}"
    index = circuit.source.heads if writer.kind == "mlp" else writer.index
    return f"{writer.layer + 1}_{index}_{position}"


def _put(circuit: Circuit, nodes: dict[str, Node], writer: Component, position: int) -> str:
    """A node for a component at a position, if there is none; its name."""
    name = _name(circuit, writer, position)
    if name not in nodes:
        nodes[name] = _node(name, str(writer.layer + 1), position, "unknown", str(writer))
    return name


def _results(nodes: dict[str, Node], name: str) -> dict[str, list[Any]]:
    return nodes[name].setdefault("qk_tracing_results", {part: [] for part in (_PAIRS, _OF_QUERY, _OF_KEY)})


# Links


def _carriers(circuit: Circuit, nodes: dict[str, Node], logit: str) -> Iterator[Link]:
    """The carriers as nodes, with their key→query pairs, and the links into and out of them."""
    carriers = [(head, mapping) for mapping in circuit.mappings for head in mapping.carriers(circuit.share)]
    for head, mapping in carriers:
        effect, name = mapping.effect_of(head).effect, _put_head(circuit, nodes, head, mapping.query)
        key, query = (_name(circuit, _EMBED, position) for position in mapping.ends)
        _results(nodes, name)[_PAIRS].append([query, key, effect])
        yield key, name, effect
        for lower, below in carriers:
            if below.query == mapping.key and lower.layer < head.layer:
                yield _put_head(circuit, nodes, lower, below.query), name, effect
        if mapping.query == len(circuit.prompt) - 1:
            yield name, logit, effect


def _put_head(circuit: Circuit, nodes: dict[str, Node], head: Head, query: int) -> str:
    return _put(circuit, nodes, Component.of(head), query)


def _writers(circuit: Circuit, nodes: dict[str, Node], why: Why) -> Iterator[Link]:
    """What `why` says of a head: its leading writers as nodes and links, and the parts of its score."""
    target = _put_head(circuit, nodes, why.head, why.query)
    for side in why.sides:
        for writer in side.writers[: side.leading]:
            if writer.position is not None:
                yield _put(circuit, nodes, writer.writer, writer.position), target, writer.effect
    if why.ledger is None:
        return
    results = _results(nodes, target)
    for part in why.ledger.parts:
        ends = ((part.query_writer, why.query), (part.key_writer, why.key))
        if all(name != "biases" for name, _ in ends):  # no component wrote those
            names = [_put(circuit, nodes, Component.parse(name), position) for name, position in ends]
            results[_PAIRS].append([*names, part.part])
    for kind, listed, position in (
        (_OF_QUERY, why.ledger.by_query_writer, why.query),
        (_OF_KEY, why.ledger.by_key_writer, why.key),
    ):
        owned = sorted((each for each in listed if each[0] != "biases"), key=lambda each: -abs(each[1]))
        for name, part in owned[:_TOP]:
            results[kind].append([_put(circuit, nodes, Component.parse(name), position), part])


EXPORTS: Final[dict[str, tuple[str, Callable[..., str]]]] = {  # name -> (file ending, writer)
    "node-link": (".node-link.json", to_node_link),
    "graphml": (".graphml", to_graphml),
    "neuronpedia": (".neuronpedia.json", to_neuronpedia),
    "eap": (".eap.json", to_eap),
}


def export(result: Exportable, to: str, *, why: Sequence[Why] = ()) -> str:
    """A circuit, a wiring or a ranking of component edges in another tool's format, as the text of a file.
    That of Neuronpedia has room for answers of `why`."""
    if to not in EXPORTS:
        raise FileError(f"no format {to!r}; there are {', '.join(EXPORTS)}")
    if isinstance(result, Ranking) and to == "neuronpedia":
        raise FileError("a ranking is of many prompts, and Neuronpedia draws one prompt; export it as eap")
    if isinstance(result, Wiring) and to == "neuronpedia":
        raise FileError(
            "Neuronpedia's format takes a circuit, and answers of why; a wiring takes eap or graphml"
        )
    if why and to != "neuronpedia":
        raise FileError(f"answers of why go with the format neuronpedia, not with {to}")
    _, write = EXPORTS[to]
    return (write(result, why=why) if why else write(result)) + "\n"


def load_saved(path: Path) -> Exportable:
    """A saved result that can be exported, from its file or its folder."""
    result = open_result(path / "circuit.json" if (path / "circuit.json").exists() else path)
    if not isinstance(result, Exportable):
        raise FileError(f"{path} is {result.NAME}; circuits, wirings and rankings of wires are exported")
    return result
