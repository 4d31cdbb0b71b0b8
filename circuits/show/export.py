"""Circuits in the formats of neighbouring tools: networkx's JSON, GraphML, Neuronpedia, EAP-IG."""

from collections.abc import Callable
from typing import Any, Final

import networkx as nx

from circuits.errors import FileError, escaped
from circuits.files import to_json
from circuits.heads import Head
from circuits.show.scene import to_graph
from circuits.tracing.records import Circuit

_QK_PARTS: Final = ("pair_wise_contributors", "top_q_marginal_contributors", "top_k_marginal_contributors")


def to_node_link(circuit: Circuit) -> str:
    """networkx's own JSON: read it with `networkx.node_link_graph`."""
    return to_json(nx.node_link_data(to_graph(circuit), edges="links"))


def to_graphml(circuit: Circuit) -> str:
    """GraphML for Gephi, yEd and Cytoscape; lists become text, because it has scalars only."""
    graph = to_graph(circuit)
    nodes, edges = graph.nodes.values(), (edge for *_, edge in graph.edges(data=True))
    for attributes in (graph.graph, *nodes, *edges):
        for name, value in attributes.items():
            if isinstance(value, list | dict | tuple):
                attributes[name] = to_json(value, indent=None)
            elif isinstance(value, str):
                attributes[name] = escaped(value)  # XML has no way to say a control character
    return "\n".join(nx.generate_graphml(graph))


def to_eap(circuit: Circuit) -> str:
    """EAP-IG / MIB circuit JSON: a head `a9.h9` writes to `logits`, with its largest effect as the score."""
    source, mappings = circuit.source, circuit.mappings
    strongest: dict[str, float] = {}
    for effect in (effect for mapping in mappings for effect in mapping.heads):
        name = _eap_name(effect.head)
        strongest[name] = max(strongest.get(name, 0.0), effect.effect, key=abs)
    kept = {_eap_name(head) for mapping in mappings for head in mapping.carriers(circuit.share)}
    names = [_eap_name(Head(layer, head)) for layer in range(source.layers) for head in range(source.heads)]
    mlps = [f"m{layer}" for layer in range(source.layers)]
    nodes = {"input": True} | {name: name in kept for name in names} | dict.fromkeys([*mlps, "logits"], True)
    scores = {name: {"score": strongest.get(name, 0.0), "in_graph": name in kept} for name in names}
    edges = {f"{name}->logits": score for name, score in scores.items()}
    config: dict[str, int | bool] = {"n_layers": source.layers, "n_heads": source.heads}
    config |= {"parallel_attn_mlp": source.parallel, "d_model": source.width}
    marked = {name: {"in_graph": in_graph} for name, in_graph in nodes.items()}
    return to_json({"cfg": config, "nodes": marked, "edges": edges})


def _eap_name(head: Head) -> str:
    return f"a{head.layer}.h{head.index}"


def to_neuronpedia(circuit: Circuit) -> str:
    """A Neuronpedia graph: embeddings, the carriers with their key→query pairs, and the predicted token."""
    prompt, layer, last = circuit.prompt, circuit.source.layers + 1, len(circuit.prompt) - 1
    embedded = [f"E_{token}_{position}" for position, token in enumerate(prompt.tokens)]
    each = enumerate(zip(embedded, prompt.words, strict=True))
    nodes = {name: _np_node(name, "E", position, "embedding", word) for position, (name, word) in each}
    logit, probability = f"{layer}_{circuit.metric.answer}_{last}", circuit.output.probability
    links = []
    for mapping in circuit.mappings:
        for head in mapping.carriers(circuit.share):
            effect, name = mapping.effect_of(head).effect, f"{head.layer + 1}_{head.index}_{mapping.query}"
            # Layers count from 1, as the viewer needs; `unknown` keeps it from fetching details.
            node = _np_node(name, str(head.layer + 1), mapping.query, "unknown", str(head))
            pairs = nodes.setdefault(name, node | {"qk_tracing_results": {part: [] for part in _QK_PARTS}})
            pair = [embedded[mapping.query], embedded[mapping.key], effect]
            pairs["qk_tracing_results"]["pair_wise_contributors"].append(pair)
            links.append({"source": embedded[mapping.key], "target": name, "weight": effect})
            links.append({"source": name, "target": logit, "weight": effect})
    text = f'Output "{circuit.metric.answer_text}" (p={probability:.3f})'
    answer = _np_node(logit, str(layer), last, "logit", text)
    nodes[logit] = answer | {"is_target_logit": True, "token_prob": probability}
    name = f"{circuit.source.name}-{prompt.text}".lower()
    slug = "".join(letter if letter.isalnum() else "-" for letter in name)[:60].strip("-") or "circuit"
    metadata = {"slug": slug, "scan": circuit.source.name}
    metadata |= {"prompt_tokens": list(prompt.words), "prompt": prompt.text}
    query = {"linkType": "both", "pinnedIds": [], "clickedId": logit, "supernodes": [], "sg_pos": ""}
    return to_json({"metadata": metadata, "qParams": query, "nodes": list(nodes.values()), "links": links})


def _np_node(name: str, layer: str, position: int, kind: str, text: str) -> dict[str, Any]:
    node = {"node_id": name, "jsNodeId": name, "feature": None, "layer": layer}
    return node | {"ctx_idx": position, "feature_type": kind, "clerp": text}


EXPORTS: Final[dict[str, tuple[str, Callable[[Circuit], str]]]] = {  # name -> (file ending, writer)
    "node-link": (".node-link.json", to_node_link),
    "graphml": (".graphml", to_graphml),
    "neuronpedia": (".neuronpedia.json", to_neuronpedia),
    "eap": (".eap.json", to_eap),
}


def export(circuit: Circuit, to: str) -> str:
    """The circuit in another tool's format, as the text of a file."""
    if to not in EXPORTS:
        raise FileError(f"no format {to!r}; there are {', '.join(EXPORTS)}")
    return EXPORTS[to][1](circuit) + "\n"
