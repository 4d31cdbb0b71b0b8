"""Every edge at once: the linear reading of all of them, and the exact effect of all or of the leading ones.

1. A loading is an edge's message times the gradient of the metric, patterns and norm scales frozen: one
   forward and one backward give all of them. It is what published attribution figures show; it never replaces
   an effect.
2. `scan` measures the effect of every edge of a short prompt. In a long one the edges with the largest
   first-order estimate are measured, and `Scan.measured` says which they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Bool, Float

from circuits.components import Edge, Head
from circuits.engine.block import Norm
from circuits.engine.climb import windows
from circuits.engine.layout import Layout
from circuits.engine.rows import Cache, Direction, Layer, Row
from circuits.engine.runs import Runs
from circuits.errors import ModelError

MOST_EDGES: Final = 20_000
Edges = Float[torch.Tensor, "layer head query key"]


def loadings(runs: Runs, *, of: Literal["message", "change"] = "message") -> Edges:
    """Every edge's clean message (or its change, clean minus counterfactual) times ∂metric/∂residual, as a
    share of the gap.

    Averaged over pairs. With `of="change"` it is the first-order estimate of the edge's `swap` effect.
    """
    return _by_layer(runs, slice(None), slice(None), of)


def loadings_of(runs: Runs, key: int, query: int) -> Float[torch.Tensor, "layer head"]:
    """The loading of key → query in every head, without those of all other edges."""
    return _by_layer(runs, slice(query, query + 1), slice(key, key + 1), "message")[..., 0, 0]


@torch.inference_mode()
def _by_layer(runs: Runs, queries: slice, keys: slice, of: str) -> Edges:
    if runs.layout is None:
        raise ModelError(f"loadings need the layout of {runs.model.name}, which the fast path does not know")
    found = [
        _edges(runs, layer, gradient, queries, keys, of) for layer, gradient in _gradients(runs, runs.layout)
    ]
    return torch.stack(found[::-1])


def _edges(
    runs: Runs, layer: int, gradient: torch.Tensor, queries: slice, keys: slice, of: str
) -> Float[torch.Tensor, "head query key"]:
    def read(cache: Cache) -> torch.Tensor:
        stored = cache.layers[layer]
        pattern, value = stored.pattern[:, :, queries, keys], stored.value[:, :, keys]
        return torch.einsum("iqhd,ihqk,ihkd->ihqk", gradient[:, queries], pattern, value)

    scores = read(runs.clean.cache) - (read(runs.counterfactual.cache) if of == "change" else 0)
    return (runs.mean_over_draws(scores) / runs.gap[:, None, None, None]).mean(0)


def _gradients(
    runs: Runs, layout: Layout
) -> Iterator[tuple[int, Float[torch.Tensor, "input pos head d_head"]]]:
    """∂metric/∂z of every layer on the clean inputs, from the last to the first: each block is computed again
    from what it read, so that only one at a time is in memory."""
    cache, tail = runs.clean.cache, runs.metric.tail
    with _gradient():
        top = torch.zeros_like(cache.final)
        top[:, -tail:] = cache.final[:, -tail:]  # elsewhere it was left behind, and nothing reads it
        top.requires_grad_()
        logits = layout.output(layout.final_norm.frozen(top[:, None, -tail:]))
        (above,) = torch.autograd.grad(runs.read(logits).sum(), top)
    for layer in reversed(range(len(layout.blocks))):
        with _gradient():
            block, stored = layout.blocks[layer], cache.layers[layer]
            stream = stored.pre.clone().requires_grad_()
            value = block.split_side(block.v(block.norm1.frozen(stream)), "value", None)
            z = _read(stored, value)
            written = _frozen(block.attention_norm, block.o(z.flatten(-2)))
            middle = stream if layout.parallel else stream + written
            out = stream + written + _frozen(block.mlp_norm, block.mlp(block.norm2.frozen(middle)))
            above, gradient = torch.autograd.grad(out, (stream, z), above)
        yield layer, gradient


def _read(stored: Layer, value: torch.Tensor) -> Float[torch.Tensor, "input pos head d_head"]:
    """What the heads read by the run's own pattern, which is constant here."""
    inputs, length, heads, _ = value.shape
    parts = [
        torch.einsum("ihqk,ikhd->iqhd", stored.pattern[:, :, window].clone(), value)
        for window in windows(length, inputs * heads * length)
    ]
    return torch.cat(parts, 1)


@contextmanager
def _gradient() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def _frozen(norm: Norm | None, written: torch.Tensor) -> torch.Tensor:
    return written if norm is None else norm.frozen(written)


@dataclass(frozen=True, slots=True)
class Scan:
    """Effects (mean over pairs) of all edges; those not `measured` are 0 here and small by their first-order
    estimate."""

    effect: Edges
    measured: Bool[torch.Tensor, "layer head query key"]

    @property
    def exact(self) -> bool:
        """Whether every edge was measured."""
        length = self.measured.shape[-1]
        return bool(self.measured[..., *torch.tril_indices(length, length)].all())

    def top(self, count: int) -> list[tuple[Edge, float]]:
        """The strongest edges."""
        order = self.effect.abs().flatten().argsort(descending=True, stable=True)[:count]
        indices = torch.stack(torch.unravel_index(order, self.effect.shape), 1).tolist()
        edges = [Edge(Head(layer, head), key, query) for layer, head, query, key in indices]
        return list(zip(edges, self.effect.flatten()[order].tolist(), strict=True))


def scan(runs: Runs, *, direction: Direction = "swap", most: int = MOST_EDGES) -> Scan:
    """The exact effect of every edge, or of the `most` edges with the largest first-order estimate.

    >>> scanned = circuits.scan(circuits.prepare(model, [pair]))
    >>> edge, effect = scanned.top(1)[0]
    >>> print(edge, f"{effect:.2f}")
    L5H1:5→8 0.08
    """
    shape = runs.model.n_layers, runs.model.n_heads, runs.length, runs.length
    chosen = torch.ones(shape, dtype=torch.bool).tril()
    if int(chosen.sum()) > most:
        estimate = loadings(runs, of="change").abs().cpu() * chosen
        chosen = torch.zeros(chosen.numel(), dtype=torch.bool)
        chosen = chosen.index_fill(0, estimate.flatten().topk(most).indices, True).view(shape)
    edges = (Edge(Head(layer, head), key, query) for layer, head, query, key in chosen.nonzero().tolist())
    rows = [Row.of_edges([edge]) for edge in edges]
    effect = torch.zeros(shape)
    effect[chosen] = runs.effects(rows, direction=direction).mean(1).cpu().float()
    return Scan(effect, chosen)
