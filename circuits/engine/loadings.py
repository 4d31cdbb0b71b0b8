"""Every edge at once: the linear reading of all of them, and the exact effect of all or of the leading ones.

1. A loading is an edge's message times the gradient of the metric, patterns and norm scales frozen: one
   forward and one backward give all of them. It is what published attribution figures show; it never replaces
   an effect.
2. `scan` measures the effect of every edge of a short prompt. In a long one the edges with the largest
   first-order estimate are measured, and `Scan.measured` says which they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Bool, Float

from circuits.engine.block import Norm
from circuits.engine.layout import Layout
from circuits.engine.rows import Cache, Direction, Row
from circuits.engine.runs import Runs
from circuits.errors import ModelError
from circuits.heads import Edge, Head

MOST_EDGES: Final = 20_000
Edges = Float[torch.Tensor, "layer head query key"]


def loadings(runs: Runs, *, of: Literal["message", "change"] = "message") -> Edges:
    """Every edge's clean message (or its change, clean minus counterfactual) times ∂metric/∂residual, as a
    share of the gap.

    Averaged over pairs. With `of="change"` it is the first-order estimate of the edge's `swap` effect.
    """
    if runs.layout is None:
        raise ModelError(f"loadings need the layout of {runs.model.name}, which the fast path does not know")
    gradients = _gradients(runs, runs.layout)
    with torch.inference_mode():
        return torch.stack([_edges(runs, layer, gradient, of) for layer, gradient in enumerate(gradients)])


def _edges(runs: Runs, layer: int, gradient: torch.Tensor, of: str) -> Float[torch.Tensor, "head query key"]:
    def read(cache: Cache) -> torch.Tensor:
        stored = cache.layers[layer]
        return torch.einsum("iqhd,ihqk,ihkd->ihqk", gradient, stored.pattern, stored.value)

    scores = read(runs.clean.cache) - (read(runs.counterfactual.cache) if of == "change" else 0)
    return (runs.mean_over_draws(scores) / runs.gap[:, None, None, None]).mean(0)


def _gradients(runs: Runs, layout: Layout) -> list[Float[torch.Tensor, "input pos head d_head"]]:
    """∂metric/∂z of every layer on the clean inputs."""
    stored = runs.clean.cache
    with torch.inference_mode(False), torch.enable_grad():
        stream = stored.layers[0].pre.clone()
        handles = []
        for block, layer in zip(layout.blocks, stored.layers, strict=True):
            value = block.split_side(block.v(block.norm1.frozen(stream)), "value", None)
            z = torch.einsum("ihqk,ikhd->iqhd", layer.pattern.clone(), value)
            z = z if z.requires_grad else z.requires_grad_()
            handles.append(z)
            written = _frozen(block.attention_norm, block.o(z.flatten(-2)))
            middle = stream if layout.parallel else stream + written
            stream = stream + written + _frozen(block.mlp_norm, block.mlp(block.norm2.frozen(middle)))
        logits = layout.output(layout.final_norm.frozen(stream[:, None, -runs.metric.tail :]))
        return list(torch.autograd.grad(runs.read(logits).sum(), handles))


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
    """The exact effect of every edge, or of the `most` edges with the largest first-order estimate."""
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
