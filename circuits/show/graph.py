"""A circuit as a networkx graph, the routes through it, and the formats of neighbouring tools.

1. Nodes are spans (`kind, label, positions, layers, effect`) and the output; an end of a mapping without a span is a bare node.
2. Attention edges go from the key's node to the query's (`key, query, total, modulation, heads`); what a position reads from itself
   is an attribute of its node. The residual stream joins the last position to the output. So the graph is acyclic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import networkx as nx

from circuits.errors import FileError, escaped
from circuits.files import to_json
from circuits.tracing.records import SHARE, Circuit, Mapping

OUTPUT: Final = "output"


def to_graph(circuit: Circuit, *, share: float = SHARE) -> nx.MultiDiGraph:
    """Spans, the output, and what runs between them."""
    graph = nx.MultiDiGraph(
        model=circuit.source.name, prompt=circuit.prompt.text, metric=str(circuit.metric), share=share
    )
    node_of: dict[int, str] = {}
    for span in circuit.spans:
        name = "+".join(map(str, span.positions))
        layers = list(span.layers) if span.layers else []
        graph.add_node(
            name,
            kind="span",
            label=span.label,
            positions=list(span.positions),
            layers=layers,
            built=span.built_text,
            effect=span.effect,
        )
        node_of |= dict.fromkeys(span.positions, name)
    ends = {at for mapping in circuit.mappings for at in (mapping.key, mapping.query)} | {
        len(circuit.prompt) - 1
    }
    for at in sorted(ends - node_of.keys()):
        word = circuit.prompt.words[at].strip() or repr(circuit.prompt.words[at])
        graph.add_node(str(at), kind="token", label=word, positions=[at], layers=[], built="", effect=0.0)
        node_of[at] = str(at)
    out = circuit.output
    graph.add_node(
        OUTPUT,
        kind="output",
        label=out.token,
        positions=[len(circuit.prompt) - 1],
        layers=[out.layer],
        effect=1.0,
        probability=out.probability,
    )
    for mapping in sorted(circuit.mappings, key=lambda m: (m.key, m.query)):
        attributes = _attention(mapping, share)
        start, end = node_of[mapping.key], node_of[mapping.query]
        if start == end:
            graph.nodes[start].setdefault("self_attention", []).append(attributes)
        else:
            graph.add_edge(start, end, key=f"{mapping.key}→{mapping.query}", **attributes)
    graph.add_edge(node_of[len(circuit.prompt) - 1], OUTPUT, key="residual", kind="residual")
    return graph


def _attention(mapping: Mapping, share: float) -> dict[str, Any]:
    heads = {str(step.head): step.joint for step in mapping.path[: len(mapping.carriers(share))]}
    return {
        "kind": "attention",
        "from_position": mapping.key,
        "to_position": mapping.query,
        "total": mapping.total,
        "modulation": mapping.modulation(share),
        "heads": heads,
    }


def routes(circuit: Circuit, start: int | str, end: int | str) -> tuple[tuple[str, ...], ...]:
    """Every route from a token to a token or to the output (named by its word), as the labels passed on the way."""
    graph = to_graph(circuit)

    def named(place: int | str) -> str:
        if place == circuit.output.token:
            return OUTPUT
        at = circuit.prompt.position(place)
        return next(
            (name for name, node in graph.nodes.items() if at in node["positions"] and name != OUTPUT),
            str(at),
        )

    first, last = named(start), named(end)
    if first not in graph or last not in graph:
        return ()
    found = {tuple(path) for path in nx.all_simple_paths(graph, first, last)}
    return tuple(tuple(str(graph.nodes[name]["label"]) for name in path) for path in sorted(found))


# Formats of neighbouring tools


def to_node_link(circuit: Circuit) -> str:
    """networkx's own JSON: read it with `networkx.node_link_graph`."""
    return _json(nx.node_link_data(to_graph(circuit), edges="links"))


def to_graphml(circuit: Circuit) -> str:
    """GraphML for Gephi, yEd and Cytoscape; lists become text, because it knows scalars only."""
    graph = to_graph(circuit)
    for attributes in (
        graph.graph,
        *(node for _, node in graph.nodes(data=True)),
        *(edge for *_, edge in graph.edges(data=True)),
    ):
        for name, value in attributes.items():
            if isinstance(value, str):
                attributes[name] = escaped(value)  # XML has no way to say a control character
            elif isinstance(value, list | dict | tuple):
                attributes[name] = to_json(value, indent=None)
    return "\n".join(nx.generate_graphml(graph)) + "\n"


def to_eap(circuit: Circuit) -> str:
    """EAP-IG / MIB circuit JSON: heads as nodes `a9.h9`; a mapping's heads write to the output (`logits`) with their effect as score."""
    source = circuit.source
    strongest: dict[str, float] = {}
    for known in (effect for mapping in circuit.mappings for effect in mapping.heads):
        name = f"a{known.head.layer}.h{known.head.index}"
        strongest[name] = max(strongest.get(name, 0.0), known.effect, key=abs)
    kept = {f"a{head.layer}.h{head.index}" for mapping in circuit.mappings for head in mapping.carriers()}
    names = [f"a{layer}.h{head}" for layer in range(source.layers) for head in range(source.heads)]
    nodes = (
        {"input": True}
        | {name: name in kept for name in names}
        | {f"m{layer}": True for layer in range(source.layers)}
        | {"logits": True}
    )
    edges = {
        f"{name}->logits": {"score": strongest.get(name, 0.0), "in_graph": name in kept} for name in names
    }
    cfg = {
        "n_layers": source.layers,
        "n_heads": source.heads,
        "parallel_attn_mlp": source.parallel,
        "d_model": source.width,
    }
    return _json(
        {
            "cfg": cfg,
            "nodes": {name: {"in_graph": kept_here} for name, kept_here in nodes.items()},
            "edges": edges,
        }
    )


def to_neuronpedia(circuit: Circuit) -> str:
    """A Neuronpedia attribution graph: embeddings, the carriers as nodes with their key→query pairs, and the predicted token."""
    prompt, layers, last = circuit.prompt, circuit.source.layers, len(circuit.prompt) - 1
    embeddings = [
        _np_node(f"E_{token}_{at}", "E", at, "embedding", prompt.words[at])
        for at, token in enumerate(prompt.tokens)
    ]
    logit = f"{layers + 1}_{circuit.metric.answer}_{last}"
    answer = _np_node(
        logit,
        str(layers + 1),
        last,
        "logit",
        f'Output "{circuit.metric.answer_text}" (p={circuit.output.probability:.3f})',
    )
    answer |= {"is_target_logit": True, "token_prob": circuit.output.probability}
    nodes, links = {node["node_id"]: node for node in embeddings}, []
    for mapping in circuit.mappings:
        for step in mapping.path[: len(mapping.carriers())]:
            effect = mapping.effect_of(step.head).effect
            name = f"{step.head.layer + 1}_{step.head.index}_{mapping.query}"
            node = nodes.setdefault(name, _np_head(name, str(step.head), step.head.layer, mapping.query))
            pairs = node["qk_tracing_results"]
            pairs["pair_wise_contributors"].append(
                [
                    f"E_{prompt.tokens[mapping.query]}_{mapping.query}",
                    f"E_{prompt.tokens[mapping.key]}_{mapping.key}",
                    effect,
                ]
            )
            links.append(
                {"source": f"E_{prompt.tokens[mapping.key]}_{mapping.key}", "target": name, "weight": effect}
            )
            links.append({"source": name, "target": logit, "weight": effect})
    nodes[logit] = answer
    slug = (
        "".join(c if c.isalnum() else "-" for c in f"{circuit.source.name}-{prompt.text}".lower())[:60].strip(
            "-"
        )
        or "circuit"
    )
    metadata = {
        "slug": slug,
        "scan": circuit.source.name,
        "prompt_tokens": list(prompt.words),
        "prompt": prompt.text,
    }
    query = {"linkType": "both", "pinnedIds": [], "clickedId": logit, "supernodes": [], "sg_pos": ""}
    return _json({"metadata": metadata, "qParams": query, "nodes": list(nodes.values()), "links": links})


def _np_node(name: str, layer: str, at: int, kind: str, text: str) -> dict[str, Any]:
    return {
        "node_id": name,
        "jsNodeId": name,
        "feature": None,
        "layer": layer,
        "ctx_idx": at,
        "feature_type": kind,
        "clerp": text,
    }


def _np_head(name: str, spoken: str, layer: int, at: int) -> dict[str, Any]:
    """Layers count from 1, because the viewer needs a numeric layer ≥ 1; `unknown` keeps it from fetching feature details."""
    contributors: dict[str, list[Any]] = {
        "pair_wise_contributors": [],
        "top_q_marginal_contributors": [],
        "top_k_marginal_contributors": [],
    }
    return _np_node(name, str(layer + 1), at, "unknown", spoken) | {"qk_tracing_results": contributors}


def _json(value: Any) -> str:
    return to_json(value) + "\n"


EXPORTS: Final[dict[str, tuple[str, Callable[[Circuit], str]]]] = {  # name -> (file ending, writer)
    "node-link": (".node-link.json", to_node_link),
    "graphml": (".graphml", to_graphml),
    "neuronpedia": (".neuronpedia.json", to_neuronpedia),
    "eap": (".eap.json", to_eap),
}


def export(circuit: Circuit, to: str) -> str:
    """The circuit in another tool's format."""
    if to not in EXPORTS:
        raise FileError(f"no format {to!r}; there are {', '.join(EXPORTS)}")
    return EXPORTS[to][1](circuit)
