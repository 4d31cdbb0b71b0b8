"""A circuit as an attribution graph of Neuronpedia.

1. Nodes are the embeddings, the carriers, and the predicted token. Layers count from 1, as the viewer needs;
   the feature type `unknown` keeps it from fetching details.
2. A carrier is linked to what stands where it reads: the embedding, and the carriers below that write there.
   It is linked to the logit if it writes where that is read. The weight is the effect of its message.
3. An answer of `why` adds the writers of the head's sides, each linked by the effect of its wire, and fills
   `qk_tracing_results`: the parts of the score by pairs of writers, and the sums over either side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from circuits.components import Component, Head
from circuits.files import to_json
from circuits.tracing.records import Circuit
from circuits.tracing.why_record import Why

PAIRS, OF_QUERY, OF_KEY = (
    "pair_wise_contributors",
    "top_q_marginal_contributors",
    "top_k_marginal_contributors",
)
_TOP: Final = 8  # marginal contributors of a side
Node = dict[str, Any]
Link = tuple[str, str, float]  # source, target, weight


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
    words = circuit.prompt.words
    names = [_name(circuit, Component(-1, "embed"), position) for position in range(len(words))]
    return {
        name: _node(name, "E", position, "embedding", words[position]) for position, name in enumerate(names)
    }


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
    return nodes[name].setdefault("qk_tracing_results", {part: [] for part in (PAIRS, OF_QUERY, OF_KEY)})


# Links


def _carriers(circuit: Circuit, nodes: dict[str, Node], logit: str) -> Iterator[Link]:
    """The carriers as nodes, with their key→query pairs, and the links into and out of them."""
    carriers = [(head, mapping) for mapping in circuit.mappings for head in mapping.carriers(circuit.share)]
    for head, mapping in carriers:
        effect, name = mapping.effect_of(head).effect, _put_head(circuit, nodes, head, mapping.query)
        at_key, at_query = (_name(circuit, Component(-1, "embed"), at) for at in (mapping.key, mapping.query))
        _results(nodes, name)[PAIRS].append([at_query, at_key, effect])
        yield at_key, name, effect
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
            results[PAIRS].append([*names, part.part])
    for kind, listed, position in (
        (OF_QUERY, why.ledger.by_query_writer, why.query),
        (OF_KEY, why.ledger.by_key_writer, why.key),
    ):
        owned = sorted((each for each in listed if each[0] != "biases"), key=lambda each: -abs(each[1]))
        for name, part in owned[:_TOP]:
            results[kind].append([_put(circuit, nodes, Component.parse(name), position), part])
