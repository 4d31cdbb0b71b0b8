"""A circuit as an attribution graph of Neuronpedia.

1. Nodes are the embeddings, the carriers, and the predicted token. Layers count from 1, as the viewer needs.
   The feature type `unknown` keeps the viewer from fetching details of a head.
2. A carrier is linked to what stands where it reads: the embedding there, and the carriers of lower layers
   that write there. It is linked to the logit if it writes at the last position. The weight of a link is the
   effect of the carrier's message.
3. An answer of `why` adds the writers of the head's sides, each linked with the effect of its wire. It fills
   `qk_tracing_results`: the parts of the score by pairs of writers, and the sums over either side.
4. The verdict on the question stands in the metadata, under `question`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from circuits.components import EMBED, Component, Head
from circuits.files import to_json
from circuits.show.words import verdict_values
from circuits.tracing.records import Circuit
from circuits.tracing.why_record import QKAttribution, Why

_MOST_SUMS: Final = 8  # writers of a side that are listed with their sum


def to_neuronpedia(circuit: Circuit, *, why: Sequence[Why] = ()) -> str:
    """The graph as JSON; `why` are answers about heads of this circuit."""
    prompt = circuit.prompt
    graph = _Graph(circuit)
    graph.add_carriers()
    for answer in why:
        graph.add_writers(answer)
    graph.add_logit()
    name = f"{circuit.source.name}-{prompt.text}".lower()
    slug = "".join(letter if letter.isalnum() else "-" for letter in name)[:60].strip("-")
    links = []
    for (source, target), weight in graph.weights.items():
        links.append({"source": source, "target": target, "weight": weight})
    return to_json(
        {
            "metadata": {
                "slug": slug or "circuit",
                "scan": circuit.source.name,
                "prompt_tokens": list(prompt.words),
                "prompt": prompt.text,
                "question": verdict_values(circuit),
            },
            "qParams": {
                "linkType": "both",
                "pinnedIds": [],
                "clickedId": graph.logit,
                "supernodes": [],
                "sg_pos": "",
            },
            "nodes": list(graph.nodes.values()),
            "links": links,
        }
    )


class _Graph:
    """The nodes by their names, and one weight for each two nodes that are linked."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        self.last = len(circuit.prompt) - 1
        self.logit = f"{circuit.source.layers + 1}_{circuit.metric.answer}_{self.last}"
        self.nodes: dict[str, dict[str, Any]] = {}
        self.weights: dict[tuple[str, str], float] = {}
        for position in range(len(circuit.prompt)):
            self.add(EMBED, position)

    def add(self, component: Component | Head, position: int) -> str:
        """The name of a component at a position, which becomes a node if it is none yet."""
        circuit = self.circuit
        writer = Component.parse(component)
        layer = str(writer.layer + 1)
        if writer.kind == "embed":
            name = f"E_{circuit.prompt.tokens[position]}_{position}"
            self._add_node(name, "E", position, "embedding", circuit.prompt.words[position])
        elif writer.kind == "mlp":  # the number after the last head of its layer
            name = f"{layer}_{circuit.source.heads}_{position}"
            self._add_node(name, layer, position, "unknown", str(writer))
        else:
            name = f"{layer}_{writer.index}_{position}"
            self._add_node(name, layer, position, "unknown", str(writer))
        return name

    def _add_node(self, name: str, layer: str, position: int, kind: str, text: str) -> None:
        node = {
            "node_id": name,
            "jsNodeId": name,
            "feature": None,
            "layer": layer,
            "ctx_idx": position,
            "feature_type": kind,
            "clerp": text,
        }
        self.nodes.setdefault(name, node)

    def link(self, source: str, target: str, weight: float) -> None:
        """Link two nodes; of several weights the largest stays."""
        before = self.weights.get((source, target), 0.0)
        self.weights[source, target] = max(before, weight, key=abs)

    def score_parts(self, name: str) -> dict[str, list[Any]]:
        """The lists of `qk_tracing_results` of a node."""
        empty = {
            "pair_wise_contributors": [],
            "top_q_marginal_contributors": [],
            "top_k_marginal_contributors": [],
        }
        return self.nodes[name].setdefault("qk_tracing_results", empty)

    def add_carriers(self) -> None:
        """The carriers of all mappings, with the links into and out of them."""
        carriers = []
        for mapping in self.circuit.mappings:
            carriers += [(head, mapping) for head in mapping.carriers(self.circuit.share)]
        for head, mapping in carriers:
            effect = mapping.effect_of(head).effect
            name = self.add(head, mapping.query)
            key = self.add(EMBED, mapping.key)
            query = self.add(EMBED, mapping.query)
            self.score_parts(name)["pair_wise_contributors"].append([query, key, effect])
            self.link(key, name, effect)
            for lower, below in carriers:
                if below.query == mapping.key and lower.layer < head.layer:
                    self.link(self.add(lower, below.query), name, effect)
            if mapping.query == self.last:
                self.link(name, self.logit, effect)

    def add_writers(self, why: Why) -> None:
        """What `why` found about one head: the leading writers of its sides, and the parts of its score."""
        name = self.add(why.head, why.query)
        for side in why.sides:
            for each in side.writers[: side.leading]:
                if each.position is not None:
                    self.link(self.add(each.writer, each.position), name, each.effect)
        if why.qk_attribution is not None:
            self._add_score(self.score_parts(name), why.qk_attribution, why)

    def _add_score(
        self, parts: dict[str, list[Any]], attribution: QKAttribution, why: Why
    ) -> None:
        """The score by pairs of writers, and by either writer; biases are left out, as no component writes
        them."""
        for each in attribution.parts:
            if "biases" not in (each.query_writer, each.key_writer):
                query = self.add(Component.parse(each.query_writer), why.query)
                key = self.add(Component.parse(each.key_writer), why.key)
                parts["pair_wise_contributors"].append([query, key, each.part])
        for kind, sums, position in (
            ("top_q_marginal_contributors", attribution.by_query_writer, why.query),
            ("top_k_marginal_contributors", attribution.by_key_writer, why.key),
        ):
            written = [(writer, part) for writer, part in sums if writer != "biases"]
            written.sort(key=lambda each: -abs(each[1]))
            for writer, part in written[:_MOST_SUMS]:
                parts[kind].append([self.add(Component.parse(writer), position), part])

    def add_logit(self) -> None:
        """The predicted token."""
        circuit = self.circuit
        probability = circuit.output.probability
        text = f'Output "{circuit.metric.answer_text}" (p={probability:.3f})'
        self._add_node(self.logit, str(circuit.source.layers + 1), self.last, "logit", text)
        self.nodes[self.logit] |= {"is_target_logit": True, "token_prob": probability}
