"""Read a model's blocks as functions.

1. The bridge gives every architecture the same part names: `ln1`, `attn.q/k/v/o`, `ln2`, `mlp.in/gate/out`.
2. What is assumed beyond that (pre-norm, one residual stream, causal softmax over all earlier keys) covers GPT-2, Llama and GPT-NeoX.
3. An assumption that fails shows in the numbers: `read_layout` compares a whole run with the model's own and returns None
   if they differ, and the plain path is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional as F

from circuits.engine.cache import Cache
from circuits.engine.climb import climb, travel
from circuits.engine.layout import Block, Heads, Layout, Rotation, Stream
from circuits.models.model import Model

_TOLERANCE: Final = 1e-3  # of the largest logit, between a whole run here and the model's own


def read_layout(model: Model, probe: torch.Tensor) -> Layout | None:
    """The model's blocks as functions, or None where they do not reproduce the model's own logits on `probe`."""
    try:
        layout = _read(model)
        with torch.inference_mode():
            run = Cache((), layout.embed(probe))
            climb(layout, [travel(layout, run)])
            mine, own = layout.logits(run.final[:, -1]), model.logits(probe)[:, -1]
    except (AttributeError, TypeError, RuntimeError):
        return None
    return layout if torch.allclose(mine, own, rtol=0, atol=_TOLERANCE * float(own.abs().max())) else None


def _read(model: Model) -> Layout:
    bridge: Any = model.bridge
    attention = bridge.blocks[0].attn
    rotary = getattr(bridge, "rotary_emb", None)
    final = _raw(bridge.unembed)
    return Layout(
        blocks=tuple(_block(block) for block in bridge.blocks),
        parallel="Parallel" in type(bridge.blocks[0]).__name__,
        heads=model.n_heads,
        d_head=model.d_head,
        scale=float(getattr(_raw(attention), "scaling", None) or model.d_head**-0.5),
        is_gated=model.gated,
        rotate=None if rotary is None else _rotate,
        rotation=None if rotary is None else _rotation_of(_raw(rotary)),
        embed=_embedding(bridge),
        token_embedding=_raw(bridge.embed),
        final_norm=_raw(bridge.ln_final),
        unembed=final.weight,
        unembed_bias=final.bias,
    )


def _raw(component: Any) -> Any:
    """The module behind the bridge's hooks."""
    while getattr(component, "original_component", None) is not None:
        component = component.original_component
    return component


def _block(block: Any) -> Block:
    attention = block.attn
    return Block(
        norm1=_raw(block.ln1),
        norm2=_raw(block.ln2),
        q=_raw(attention.q),
        k=_raw(attention.k),
        v=_raw(attention.v),
        qkv=_projections(attention),
        o=_raw(attention.o),
        mlp=_mlp(block.mlp),
    )


def _projections(attention: Any) -> Callable[[Stream], torch.Tensor]:
    """Queries, keys and values beside each other; in one product where the model keeps the three as parts of one matrix."""
    q, k, v = parts = [_raw(part) for part in (attention.q, attention.k, attention.v)]
    joint = getattr(_raw(attention), "c_attn", None)
    if joint is not None and all(
        part.weight.untyped_storage().data_ptr() == joint.weight.untyped_storage().data_ptr()
        for part in parts
    ):
        return joint
    return lambda stream: torch.cat((q(stream), k(stream), v(stream)), -1)


def _mlp(mlp: Any) -> Callable[[Stream], Stream]:
    inner, outer, gate = _raw(getattr(mlp, "in")), _raw(mlp.out), getattr(mlp, "gate", None)
    act = _activation(_raw(mlp))
    if gate is None:
        return lambda stream: outer(act(inner(stream)))
    gate = _raw(gate)
    return lambda stream: outer(act(gate(stream)) * inner(stream))


def _activation(mlp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The MLP's own activation; GPT-2's spelled-out tanh GELU in fewer steps."""
    act = getattr(mlp, "act", None) or mlp.act_fn
    return _tanh_gelu if type(act).__name__ == "NewGELUActivation" else act


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    """x · (1 + tanh u) / 2 = x · σ(2u), with u = √(2/π) (x + 0.044715 x³). On a CPU σ takes a quarter of tanh's time."""
    if x.device.type != "cpu" or torch.is_grad_enabled():
        return F.gelu(x, approximate="tanh")
    twice = 2 * math.sqrt(2 / math.pi)
    return torch.addcmul(x.new_tensor(twice), x, x, value=0.044715 * twice).mul_(x).sigmoid_().mul_(x)


def _embedding(bridge: Any) -> Callable[[torch.Tensor], Stream]:
    words = _raw(bridge.embed)
    places = getattr(bridge, "pos_embed", None)
    if places is None:
        return words
    places = _raw(places)
    return lambda tokens: words(tokens) + places(torch.arange(tokens.shape[-1], device=tokens.device))


def _rotation_of(rotary: Any) -> Callable[[Stream], Rotation]:
    def rotation(stream: Stream) -> Rotation:
        cos, sin = rotary(stream[:1], torch.arange(stream.shape[-2], device=stream.device)[None])
        return cos[0], sin[0]

    return rotation


def _rotate(heads: Heads, rotation: Rotation) -> Heads:
    """Turn the first `d_rotary` numbers of each head by their position's angle, half against half."""
    cos, sin = (part[:, None] for part in rotation)  # (pos, 1, d_rotary)
    turned, kept = heads[..., : cos.shape[-1]], heads[..., cos.shape[-1] :]
    left, right = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-right, left), dim=-1) * sin
    return torch.cat((turned, kept), dim=-1) if kept.shape[-1] else turned
