"""The linear share of every edge: its message times the gradient of the metric, patterns and norm scales frozen.

One forward and one backward give all of them. It is what published attribution figures show; it never replaces an effect.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float

from circuits.engine.cache import Cache
from circuits.engine.layout import Block, Layout
from circuits.engine.runs import Runs
from circuits.errors import ModelError

Edges = Float[torch.Tensor, "layer head query key"]


def loadings(runs: Runs, *, of: Literal["message", "change"] = "message") -> Edges:
    """Every edge's clean message (or its change, clean minus counterfactual) times ∂metric/∂residual, as a share of the gap.

    Averaged over pairs. With `of="change"` it is the first-order estimate of the edge's `swap` effect.
    """
    if runs.layout is None:
        raise ModelError(f"loadings need the layout of {runs.model.name}, which the fast path does not know")
    gradients = _gradients(runs, runs.layout)
    with torch.inference_mode():
        found = [_edges(runs, layer, gradient, of) for layer, gradient in enumerate(gradients)]
        return torch.stack(found)


def _edges(runs: Runs, layer: int, gradient: torch.Tensor, of: str) -> Float[torch.Tensor, "head query key"]:
    def read(cache: Cache) -> torch.Tensor:
        stored = cache.layers[layer]
        return torch.einsum("nqhd,nhqk,nhkd->nhqk", gradient, stored.pattern, stored.value)

    scores = (
        read(runs.clean.cache) - read(runs.counterfactual.cache) if of == "change" else read(runs.clean.cache)
    )
    per_pair = runs.mean_over_draws(scores)
    return (per_pair / runs.gap[:, None, None, None]).mean(0)


def _gradients(runs: Runs, layout: Layout) -> list[Float[torch.Tensor, "input pos head d_head"]]:
    """∂metric/∂z of every layer on the clean inputs."""
    stored = runs.clean.cache
    with torch.inference_mode(False), torch.enable_grad():
        stream = stored.layers[0].pre.clone()
        handles = []
        for block, layer in zip(layout.blocks, stored.layers, strict=True):
            z = torch.einsum("nhqk,nkhd->nqhd", layer.pattern.clone(), _values(layout, block, stream))
            z = z if z.requires_grad else z.requires_grad_()
            handles.append(z)
            written = block.write(z)
            middle = stream if layout.parallel else stream + written
            stream = stream + written + block.mlp(_frozen_norm(block.norm2, middle))
        top = _frozen_norm(layout.final_norm, stream[:, -1:])
        logits = torch.nn.functional.linear(top, layout.unembed, layout.unembed_bias)
        return list(torch.autograd.grad(runs.read(logits).sum(), handles))


def _values(layout: Layout, block: Block, stream: torch.Tensor) -> torch.Tensor:
    values = layout.split(block.v(_frozen_norm(block.norm1, stream)))
    group = layout.heads // values.shape[-2]
    return values if group == 1 else values.repeat_interleave(group, -2)


def _frozen_norm(norm: Any, stream: torch.Tensor) -> torch.Tensor:
    """The norm with its scale held at the value it has here, so that it is linear in the stream."""
    centred = stream - stream.mean(-1, keepdim=True) if isinstance(norm, torch.nn.LayerNorm) else stream
    eps: Any = getattr(norm, "eps", None) or norm.variance_epsilon
    scale = (centred.detach().pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    shifted: torch.Tensor = centred * scale * norm.weight
    bias: torch.Tensor | None = getattr(norm, "bias", None)
    return shifted if bias is None else shifted + bias
