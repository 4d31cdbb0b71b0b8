"""Every attention edge at once: its loading, which is a linear reading, and its exact effect.

1. A loading is an edge's message times the gradient of the metric, with attention weights and norm scales
   held constant. One backward pass gives all of them. It is what published attribution figures show. It is a
   reading and never replaces an effect.
2. `scan` measures the exact effect of every edge of a short prompt. In a long prompt it measures the edges
   with the largest first-order estimates, and `Scan.measured` says which they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Bool, Float

from circuits.components import Edge, Head
from circuits.engine.cache import Layer
from circuits.engine.forward import PlaceHeads, Places, RowForward, Streams
from circuits.engine.layout import Layout, PromptBlock
from circuits.engine.rows import Direction, Row
from circuits.engine.runs import Runs
from circuits.errors import check_whole

MOST_EDGES: Final = 20_000
Edges = Float[torch.Tensor, "layer head query key"]
Of = Literal["message", "change"]


def loadings(runs: Runs, *, of: Of = "message") -> Edges:
    """Every edge's clean message (or its change, clean minus counterfactual) times the gradient of the metric
    with respect to it, as a share of the gap, averaged over pairs.

    With `of="change"` it is the first-order estimate of the edge's `swap` effect.
    """
    return _loadings(runs, slice(None), slice(None), of)


def loadings_of(runs: Runs, key: int, query: int) -> Float[torch.Tensor, "layer head"]:
    """The loading of key → query in every head, without those of all other edges."""
    return _loadings(runs, slice(query, query + 1), slice(key, key + 1), "message")[..., 0, 0]


def _loadings(runs: Runs, queries: slice, keys: slice, of: Of) -> Edges:
    """The loadings of the edges between these keys and these queries."""
    layout = runs.layout_for("loadings")
    by_layer = []
    for layer, gradient in _gradients(runs, layout):
        with torch.inference_mode():
            clean = runs.clean.cache.layers[layer]
            parts = _products(clean, gradient, queries, keys)
            if of == "change":
                other = runs.counterfactual.cache.layers[layer]
                parts = parts - _products(other, gradient, queries, keys)
            share = runs.mean_over_draws(parts) / runs.gap[:, None, None, None]
            by_layer.append(share.mean(0))  # (head, query, key)
    by_layer.reverse()  # gradients come from the last layer down
    return torch.stack(by_layer)


def _products(
    stored: Layer,
    gradient: Float[torch.Tensor, "input pos head d_head"],
    queries: slice,
    keys: slice,
) -> Float[torch.Tensor, "input head query key"]:
    """Each edge's message times the gradient at its query."""
    wanted = torch.arange(stored.pre.shape[1], device=stored.pre.device)[queries]
    pattern = stored.pattern(wanted)[..., keys]
    return torch.einsum(
        "iqhd,ihqk,ihkd->ihqk", gradient[:, queries], pattern, stored.value[:, :, keys]
    )


class _OneBlock(RowForward):
    """The walk through one block for whole prompts, one row each. It keeps the heads' outputs `z`, so that
    gradients can be taken with respect to them."""

    def __init__(self, blocks: tuple[PromptBlock, ...], budget: int) -> None:
        length = blocks[0].length
        super().__init__(blocks, None, [Row(())], start=0, read=length, budget=budget)
        self.active = [0]

    def heads(self, layer: int, stream: Streams) -> tuple[Places, PlaceHeads]:
        places, self.z = super().heads(layer, stream)
        return places, self.z


def _gradients(
    runs: Runs, layout: Layout
) -> Iterator[tuple[int, Float[torch.Tensor, "input pos head d_head"]]]:
    """The gradient of the metric with respect to every layer's `z` on the clean inputs, from the last layer
    to the first. Each block is run again from the stream that it read, so that the graph of only one block is
    in memory."""
    linear = layout.linearised()
    blocks = linear.on_prompt(runs.clean.cache.final)
    cache = runs.clean.cache
    read = runs.metric.positions_read
    with torch.inference_mode(False), torch.enable_grad():
        top = cache.final.clone().requires_grad_()
        logits = linear.logits(top[:, None, -read:])
        (gradient,) = torch.autograd.grad(runs.read_logits(logits).sum(), top)
    for layer in reversed(range(len(blocks))):
        with torch.inference_mode(False), torch.enable_grad():
            stream = cache.layers[layer].pre.clone().requires_grad_()
            forward = _OneBlock(blocks, runs.budget)
            above = forward.step(layer, stream[:, None])[:, 0]
            gradient, of_z = torch.autograd.grad(above, (stream, forward.z), gradient)
        yield layer, of_z


@dataclass(frozen=True, slots=True, repr=False)
class Scan:
    """The effects of all edges, averaged over pairs. Edges that were not `measured` are 0 here, and small by
    their first-order estimate."""

    effect: Edges
    measured: Bool[torch.Tensor, "layer head query key"]

    def __repr__(self) -> str:
        layers, heads, length, _ = self.effect.shape
        size = f"{layers} layers of {heads} heads, {length} tokens"
        return f"Scan({size}, {int(self.measured.sum())} edges measured)"

    @property
    def exact(self) -> bool:
        """Whether every edge was measured."""
        every_edge = torch.ones_like(self.measured).tril()  # key at or before query
        left_out = every_edge & ~self.measured
        return not left_out.any()

    def top(self, count: int) -> list[tuple[Edge, float]]:
        """The strongest edges with their effects."""
        order = self.effect.abs().flatten().argsort(descending=True, stable=True)[:count]
        strongest = []
        places = torch.stack(torch.unravel_index(order, self.effect.shape), 1)
        for layer, head, query, key in places.tolist():
            edge = Edge(Head(layer, head), key, query)
            strongest.append((edge, float(self.effect[layer, head, query, key])))
        return strongest


def scan(runs: Runs, *, direction: Direction | None = None, most: int = MOST_EDGES) -> Scan:
    """The exact effect of every edge, or of the `most` edges with the largest first-order estimates.

    >>> scanned = circuits.scan(circuits.prepare(model, [pair]))
    >>> edge, effect = scanned.top(1)[0]
    >>> print(edge, f"{effect:.2f}")
    L5H1:5→8 0.08
    """
    check_whole("most", most, least=1)
    shape = (runs.model.n_layers, runs.model.n_heads, runs.length, runs.length)
    chosen = torch.ones(shape, dtype=torch.bool).tril()
    if int(chosen.sum()) > most:
        # Many estimates are 0, those of all edges before the first difference: what is no edge comes after them.
        estimate = loadings(runs, of="change").abs().cpu().masked_fill(~chosen, -1.0)
        chosen = torch.zeros(shape, dtype=torch.bool)
        chosen.view(-1)[estimate.flatten().topk(most).indices] = True
    rows = []
    for layer, head, query, key in chosen.nonzero().tolist():
        rows.append(Row.of_edges([Edge(Head(layer, head), key, query)]))
    effect = torch.zeros(shape)
    effect[chosen] = runs.effects(rows, direction=direction).mean(1).cpu().float()
    return Scan(effect, chosen)
