"""Circuits, wirings and rankings of component edges in the formats of other tools.

1. As a graph (networkx's JSON, GraphML) a ranking of component edges has the edges that explain 90%.
2. In the format of EAP-IG and MIB a ranking has all edges with their scores, and those that explain 90% are
   marked as in the graph. These tools put edges in the order of the size of their scores. So where effects
   make the order, they are the scores; where the search or a file made it, scores fall from 1 to 0 along the
   order and `effect` stands beside them. The format has no positions, so an edge of a wiring has the score of
   its strongest wire; the wires of the circuit are marked as in the graph. `tasks.eap.from_eap` reads the
   format back.
3. The format of Neuronpedia takes a circuit: see `show.neuronpedia`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import networkx as nx

from circuits.components import Component, Wire, component_edges, components
from circuits.errors import FileError, escaped
from circuits.files import to_json
from circuits.results import open_result
from circuits.show import to_graph
from circuits.show.neuronpedia import to_neuronpedia
from circuits.show.wiring import wiring_graph
from circuits.show.words import verdict_values
from circuits.tasks.ranking import EXPLAINED, Ranking, Shape
from circuits.tracing.records import Circuit
from circuits.tracing.why_record import Why
from circuits.wires.record import Wiring

Exportable = Circuit | Ranking | Wiring


# Graphs


def to_node_link(result: Exportable) -> str:
    """networkx's own JSON: read it with `networkx.node_link_graph`."""
    return to_json(nx.node_link_data(_graph(result), edges="links"))


def to_graphml(result: Exportable) -> str:
    """GraphML for Gephi, yEd and Cytoscape; lists become text, because it has scalars only."""
    graph = _graph(result)
    edges = [attributes for _, _, attributes in graph.edges(data=True)]
    for attributes in (graph.graph, *graph.nodes.values(), *edges):
        for name, value in attributes.items():
            if isinstance(value, list | dict | tuple):
                attributes[name] = to_json(value, indent=None)
            elif isinstance(value, str):
                attributes[name] = escaped(value)  # XML has no way to say a control character
    return "\n".join(nx.generate_graphml(graph))


def _graph(result: Exportable) -> nx.MultiDiGraph:
    if isinstance(result, Circuit):
        return to_graph(result)
    if isinstance(result, Wiring):
        graph = wiring_graph(result)
        graph.graph.update(verdict_values(result))
        return graph
    return component_graph(result)


def component_graph(ranking: Ranking, share: float = EXPLAINED) -> nx.MultiDiGraph:
    """The component edges that explain a share: components are nodes, each wire is an edge."""
    layers = _shape_of(ranking).layers
    graph = nx.MultiDiGraph(
        task=ranking.task,
        model=ranking.model,
        share=share,
        layers=layers,
        **verdict_values(ranking),
    )
    needed = set(ranking.needed(share))
    for each in ranking.ranked:
        if each.unit not in needed:
            continue
        wire = Wire.parse(str(each.unit), layers=layers)
        writer, reader = wire.writer, wire.reader
        target = reader.component
        end = "logits" if target is None else str(target)
        graph.add_node(str(writer), layer=writer.layer, kind=writer.kind)
        graph.add_node(
            end, layer=reader.layer, kind="logits" if target is None else target.kind
        )
        graph.add_edge(
            str(writer),
            end,
            key=reader.kind,
            side=reader.kind,
            effect=each.effect,
            low=each.low,
            high=each.high,
            exact=each.exact,
        )
    return graph


def _shape_of(result: Exportable) -> Shape:
    if not isinstance(result, Ranking):
        source = result.source
        return Shape(source.layers, source.heads, source.width, source.parallel)
    if result.shape is None:
        raise FileError(
            "only a ranking of component edges is a graph; rank the task with units='wires'"
        )
    return result.shape


# EAP-IG and MIB


def to_eap(result: Exportable) -> str:
    """A circuit as EAP-IG and MIB write it: JSON with the nodes and edges of the whole model.

    The score of an edge such as `a9.h9->a10.h0<q>` is its effect, or where `exact` is false an estimate of
    it. In an order that effects did not make, the score falls from 1 to 0 along the order, and `effect` is
    beside it. Of an edge of a wiring it is the edge's value in the circuit; edges that a wiring does not have
    score 0. A circuit has no wires: its heads are edges to the logits, each with its largest effect.
    """
    if isinstance(result, Circuit):
        return _eap_of_circuit(result)
    if isinstance(result, Ranking):
        needed = {str(unit) for unit in result.needed()}
        return _eap_of_edges(result, _scores_of(result), needed)
    scores: dict[str, dict[str, Any]] = {}
    for each in reversed(result.wires):  # the strongest wire comes last, so its score stays
        edge = Wire(each.wire.writer, each.wire.reader)
        scores[str(edge)] = {"score": each.value, "exact": True}
    return _eap_of_edges(result, scores, set(scores))


def _scores_of(ranking: Ranking) -> dict[str, dict[str, Any]]:
    """What the format says of every edge that the ranking lists."""
    by_effect = ranking.protocol.order in ("exact", "front")
    scores: dict[str, dict[str, Any]] = {}
    for position, each in enumerate(ranking.ranked):
        fields: dict[str, Any] = {"score": each.effect, "exact": each.exact}
        if not by_effect:
            fields["score"] = 1 - position / ranking.units
            fields["effect"] = each.effect
        scores[str(each.unit)] = fields
    return scores


def _eap_of_edges(
    result: Ranking | Wiring, scores: dict[str, dict[str, Any]], in_graph: set[str]
) -> str:
    """All component edges; `scores` (and what stands beside them) and `in_graph` are by an edge's name."""
    shape = _shape_of(result)
    edges = {}
    nodes = {
        component.eap: False for component in components(layers=shape.layers, heads=shape.heads)
    }
    nodes |= {"input": True, "logits": True}
    for wire in component_edges(
        layers=shape.layers, heads=shape.heads, parallel=shape.parallel
    ):
        fields = scores.get(str(wire), {"score": 0.0, "exact": True})
        edges[wire.eap] = {"in_graph": str(wire) in in_graph, **fields}
        if str(wire) in in_graph:
            nodes[wire.writer.eap] = True
            if wire.reader.component is not None:
                nodes[wire.reader.component.eap] = True
    return _eap(result, nodes, edges)


def _eap_of_circuit(circuit: Circuit) -> str:
    strongest: dict[str, float] = {}
    carriers = set()
    for mapping in circuit.mappings:
        carriers |= set(mapping.carriers(circuit.share))
        for each in mapping.heads:
            name = Component.of(each.head).eap
            strongest[name] = max(strongest.get(name, 0.0), each.effect, key=abs)
    nodes = {"input": True}
    edges = {}
    mlps = {}
    for component in components(layers=circuit.source.layers, heads=circuit.source.heads):
        name = component.eap
        if component.kind == "head":
            nodes[name] = component.head in carriers
            edges[f"{name}->logits"] = {
                "score": strongest.get(name, 0.0),
                "in_graph": nodes[name],
            }
        elif component.kind == "mlp":
            mlps[name] = True
    return _eap(circuit, nodes | mlps | {"logits": True}, edges)


def _eap(result: Exportable, nodes: dict[str, bool], edges: dict[str, Any]) -> str:
    """The JSON of nodes, by whether they are in the graph, and of edges. Readers of the format pass over
    `question`, which has the verdict."""
    shape = _shape_of(result)
    config = {
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "parallel_attn_mlp": shape.parallel,
        "d_model": shape.width,
    }
    marked = {name: {"in_graph": in_graph} for name, in_graph in nodes.items()}
    question = verdict_values(result)
    return to_json({"cfg": config, "nodes": marked, "edges": edges, "question": question})


# All formats


EXPORTS: Final[dict[str, tuple[str, Callable[..., str]]]] = {  # name -> (file ending, writer)
    "node-link": (".node-link.json", to_node_link),
    "graphml": (".graphml", to_graphml),
    "neuronpedia": (".neuronpedia.json", to_neuronpedia),
    "eap": (".eap.json", to_eap),
}


def export(result: Exportable, to: str, *, why: Sequence[Why] = ()) -> str:
    """A circuit, a wiring or a ranking of component edges in another tool's format, as the text of a file.

    Answers of `why` have a place in the format of Neuronpedia alone.
    """
    if to not in EXPORTS:
        raise FileError(f"no format {to!r}; there are {', '.join(EXPORTS)}")
    if to != "neuronpedia":
        if why:
            raise FileError(f"answers of why go with the format neuronpedia, not with {to}")
        _, write = EXPORTS[to]
        return write(result) + "\n"
    if isinstance(result, Circuit):
        return to_neuronpedia(result, why=why) + "\n"
    if isinstance(result, Ranking):
        raise FileError(
            "a ranking is of many prompts, and Neuronpedia draws one prompt; export it as eap"
        )
    raise FileError(
        "Neuronpedia's format takes a circuit, and answers of why; a wiring takes eap or graphml"
    )


def load_saved(path: Path) -> Exportable:
    """A saved result that can be exported, from its file or its folder."""
    result = open_result(path / "circuit.json" if (path / "circuit.json").exists() else path)
    if not isinstance(result, Exportable):
        allowed = "circuits, wirings and rankings of component edges are exported"
        raise FileError(f"{path} is {result.NAME}; {allowed}")
    return result
