"""Circuits, wirings and rankings of component edges in the formats of neighbouring tools: networkx's JSON,
GraphML, Neuronpedia, EAP-IG and MIB.

1. A ranking of component edges is a graph of components: in the EAP format all its edges with their scores,
   those that explain 90% marked as in the graph; elsewhere these alone.
2. A wiring has its wires at positions, which EAP does not know: there an edge has the score of its strongest
   wire.
3. `tasks.eap.from_eap` reads the EAP format back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import networkx as nx

from circuits.components import Component, Reader, Wire, component_edges, components
from circuits.errors import FileError, escaped
from circuits.files import open_result, to_json
from circuits.show.neuronpedia import to_neuronpedia
from circuits.show.scene import to_graph
from circuits.show.wiring import wiring_graph
from circuits.tasks.ranking import EXPLAINED, Ranking, Shape
from circuits.tracing.records import Circuit
from circuits.tracing.why_record import Why
from circuits.tracing.wiring_record import Wiring

Exportable = Circuit | Ranking | Wiring


def to_node_link(found: Exportable) -> str:
    """networkx's own JSON: read it with `networkx.node_link_graph`."""
    return to_json(nx.node_link_data(_graph(found), edges="links"))


def to_graphml(found: Exportable) -> str:
    """GraphML for Gephi, yEd and Cytoscape; lists become text, because it has scalars only."""
    graph = _graph(found)
    nodes, edges = graph.nodes.values(), (edge for *_, edge in graph.edges(data=True))
    for attributes in (graph.graph, *nodes, *edges):
        for name, value in attributes.items():
            if isinstance(value, list | dict | tuple):
                attributes[name] = to_json(value, indent=None)
            elif isinstance(value, str):
                attributes[name] = escaped(value)  # XML has no way to say a control character
    return "\n".join(nx.generate_graphml(graph))


def _graph(found: Exportable) -> nx.MultiDiGraph:
    if isinstance(found, Wiring):
        return wiring_graph(found)
    return to_graph(found) if isinstance(found, Circuit) else component_graph(found)


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
        ends = str(wire.writer), str(wire.reader.component or "logits")
        for name, layer, kind in (
            (ends[0], wire.writer.layer, wire.writer.kind),
            (ends[1], wire.reader.layer, getattr(wire.reader.component, "kind", "logits")),
        ):
            graph.add_node(name, layer=layer, kind=kind)
        measured = {"effect": each.effect, "low": each.low, "high": each.high, "exact": each.exact}
        graph.add_edge(*ends, key=wire.reader.kind, side=wire.reader.kind, **measured)
    return graph


def _shape_of(ranking: Ranking) -> Shape:
    if ranking.shape is None:
        raise FileError("only a ranking of component edges is a graph; rank the task with units='wires'")
    return ranking.shape


def to_eap(found: Exportable) -> str:
    """EAP-IG / MIB circuit JSON. Of a ranking of component edges: every edge `a9.h9->a10.h0<q>`, its effect
    (or, where `exact` is false, its estimate) as the score, those for 90% in the graph. Of a wiring: the
    edges of its wires in the graph, all others with a score of 0. Of a circuit, which has no wires: its heads
    as edges to the logits, each with its largest effect."""
    if isinstance(found, Circuit):
        return _eap_of_circuit(found)
    if isinstance(found, Ranking):
        scores = {str(each.unit): (each.effect, each.exact) for each in found.ranked}
        return _eap_of_edges(_shape_of(found), scores, {str(unit) for unit in found.needed()})
    scores = {}
    for each in reversed(found.wires):  # strongest last, so that it stays
        scores[str(Wire(each.wire.writer, each.wire.reader))] = (each.effect, True)
    source = found.source
    shape = Shape(source.layers, source.heads, source.width, source.parallel)
    return _eap_of_edges(shape, scores, set(scores))


def _eap_of_edges(shape: Shape, scores: Mapping[str, tuple[float, bool]], chosen: set[str]) -> str:
    """Every component edge, by the spoken names of those that have a score and of those in the graph."""
    edges, used = {}, {"input", "logits"}
    for wire in component_edges(layers=shape.layers, heads=shape.heads, parallel=shape.parallel):
        score, exact = scores.get(str(wire), (0.0, True))
        inside = str(wire) in chosen
        edges[wire.eap] = {"score": score, "in_graph": inside, "exact": exact}
        used |= {wire.writer.eap, _owner(wire.reader)} if inside else set()
    every = [component.eap for component in components(layers=shape.layers, heads=shape.heads)]
    nodes = {name: {"in_graph": name in used} for name in (*every, "logits")}
    return to_json({"cfg": _eap_config(shape), "nodes": nodes, "edges": edges})


def _owner(reader: Reader) -> str:
    return "logits" if reader.component is None else reader.component.eap


def _eap_config(shape: Shape) -> dict[str, int | bool]:
    sizes = {"n_layers": shape.layers, "n_heads": shape.heads}
    return sizes | {"parallel_attn_mlp": shape.parallel, "d_model": shape.width}


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
    scores = {name: {"score": strongest.get(name, 0.0), "in_graph": name in kept} for name in names}
    edges = {f"{name}->logits": score for name, score in scores.items()}
    config = _eap_config(Shape(source.layers, source.heads, source.width, source.parallel))
    marked = {name: {"in_graph": in_graph} for name, in_graph in nodes.items()}
    return to_json({"cfg": config, "nodes": marked, "edges": edges})


EXPORTS: Final[dict[str, tuple[str, Callable[..., str]]]] = {  # name -> (file ending, writer)
    "node-link": (".node-link.json", to_node_link),
    "graphml": (".graphml", to_graphml),
    "neuronpedia": (".neuronpedia.json", to_neuronpedia),
    "eap": (".eap.json", to_eap),
}


def export(found: Exportable, to: str, *, why: Sequence[Why] = ()) -> str:
    """A circuit, a wiring or a ranking of component edges in another tool's format, as the text of a file.
    That of Neuronpedia has room for answers of `why`."""
    if to not in EXPORTS:
        raise FileError(f"no format {to!r}; there are {', '.join(EXPORTS)}")
    if isinstance(found, Ranking) and to == "neuronpedia":
        raise FileError("a ranking holds at all positions of many prompts; Neuronpedia draws one prompt: eap")
    if isinstance(found, Wiring) and to == "neuronpedia":
        raise FileError(
            "Neuronpedia's format takes a circuit, and answers of why; a wiring takes eap or graphml"
        )
    if why and to != "neuronpedia":
        raise FileError(f"answers of why go with the format neuronpedia, not with {to}")
    return (EXPORTS[to][1](found, why=why) if why else EXPORTS[to][1](found)) + "\n"


def load_saved(path: Path) -> Exportable:
    """A saved result that can be exported, from its file or its folder."""
    found = open_result(path / "circuit.json" if (path / "circuit.json").exists() else path)
    if not isinstance(found, Exportable):
        raise FileError(f"{path} is {found.CALLED}; circuits, wirings and rankings of wires are exported")
    return found
