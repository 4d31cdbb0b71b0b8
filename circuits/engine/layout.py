"""The blocks of a model as plain functions, so that part of a run can be computed without the rest.

1. The bridge gives every architecture the same part names: `ln1`, `attn.q/k/v/o`, `ln2`, `mlp.in/gate/out`.
2. What is assumed beyond that (pre-norm, one residual stream, causal softmax over all earlier keys) covers
   GPT-2, Llama and GPT-NeoX. An assumption that fails shows in the numbers: `prepare` compares a whole run
   with the model's own, and takes the plain path where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch.nn import functional as F

from circuits.models.hooks import gated
from circuits.models.model import Model

Stream = Float[torch.Tensor, "*batch pos d_model"]
Heads = Float[torch.Tensor, "*batch pos head d_head"]
Groups = Float[
    torch.Tensor, "*batch pos group d_head"
]  # keys or values, of which several heads may share one
Rotation = Float[torch.Tensor, "2 rotated d_rotary"]  # cosines and sines of some positions


@dataclass(frozen=True, slots=True)
class Block:
    """One block: norms, projections and MLP, each a function of the stream."""

    norm1: Callable[[Stream], Stream]
    norm2: Callable[[Stream], Stream]
    v: Callable[[Stream], torch.Tensor]
    qkv: Callable[[Stream], torch.Tensor]  # queries, keys and values beside each other
    o: Callable[[torch.Tensor], Stream]
    mlp: Callable[[Stream], Stream]

    def project(self, stream: Stream) -> torch.Tensor:
        """From the stream at the block's input to its queries, keys and values."""
        return self.qkv(self.norm1(stream))

    def write(self, z: Float[torch.Tensor, "*batch pos d_heads"]) -> Stream:
        """What the heads' outputs, beside each other, add to the stream, bias included."""
        return self.o(z)

    def mlp_output(self, stream: Stream) -> Stream:
        """What the MLP adds to a stream."""
        return self.mlp(self.norm2(stream))


@dataclass(frozen=True, slots=True)
class Layout:
    """A model that the fast path knows."""

    blocks: tuple[Block, ...]
    parallel: bool  # attention and MLP read the same stream
    heads: int
    d_head: int
    scale: float
    is_gated: bool
    rotation: Callable[[Stream], Rotation] | None
    embed: Callable[[torch.Tensor], Stream]  # tokens to the input of layer 0
    final_norm: Callable[[Stream], Stream]
    unembed: Float[torch.Tensor, "vocab d_model"]
    unembed_bias: Float[torch.Tensor, " vocab"] | None

    def split(self, projected: torch.Tensor, rotation: Rotation | None) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values of a block's `project`, all per head, so that grouped keys need no further
        thought."""
        heads = projected.unflatten(-1, (-1, self.d_head))
        groups = (heads.shape[-2] - self.heads) // 2
        q, k, v = heads.split((self.heads, groups, groups), -2)
        if rotation is not None:
            q, k = _rotated(q, rotation), _rotated(k, rotation)
        return q, self.spread(k), self.spread(v)

    def spread(self, groups: Groups) -> Heads:
        """Grouped keys or values, one for every head that reads them."""
        size = self.heads // groups.shape[-2]
        return groups if size == 1 else groups.repeat_interleave(size, -2)

    def attend(
        self, scores: Float[torch.Tensor, "*batch query key"]
    ) -> Float[torch.Tensor, "*batch query key"]:
        """Scaled and masked scores to the pattern."""
        pattern = scores.softmax(-1)
        return gated(scores, pattern) if self.is_gated else pattern

    def rotation_from(self, stream: Stream, start: int) -> Rotation | None:
        """The rotation of the positions from `start` on."""
        return None if self.rotation is None else self.rotation(stream)[:, start:]

    def logits(self, stream: Float[torch.Tensor, "*batch d_model"]) -> Float[torch.Tensor, "*batch vocab"]:
        """The whole vocabulary's logits."""
        return F.linear(self.final_norm(stream), self.unembed, self.unembed_bias)


def read_layout(model: Model) -> Layout:
    """The model's blocks as functions; an AttributeError or TypeError where a part is missing."""
    bridge: Any = model.bridge
    rotary, final = getattr(bridge, "rotary_emb", None), _raw(bridge.unembed)
    scaling = getattr(_raw(bridge.blocks[0].attn), "scaling", None)
    return Layout(
        blocks=tuple(_block(block) for block in bridge.blocks),
        parallel="Parallel" in type(bridge.blocks[0]).__name__,
        heads=model.n_heads,
        d_head=model.d_head,
        scale=float(scaling or model.d_head**-0.5),
        is_gated=model.gated,
        rotation=None if rotary is None else _rotation(_raw(rotary)),
        embed=_embedding(bridge),
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
        v=_raw(attention.v),
        qkv=_projections(attention),
        o=_raw(attention.o),
        mlp=_mlp(block.mlp),
    )


def _projections(attention: Any) -> Callable[[Stream], torch.Tensor]:
    """Queries, keys and values beside each other; in one product where the model keeps the three as parts of
    one matrix."""
    q, k, v = parts = [_raw(part) for part in (attention.q, attention.k, attention.v)]
    joint = getattr(_raw(attention), "c_attn", None)
    if joint is not None:
        storage = joint.weight.untyped_storage().data_ptr()
        if all(part.weight.untyped_storage().data_ptr() == storage for part in parts):
            return joint
    return lambda stream: torch.cat((q(stream), k(stream), v(stream)), -1)


def _mlp(mlp: Any) -> Callable[[Stream], Stream]:
    inner, outer, gate = _raw(getattr(mlp, "in")), _raw(mlp.out), getattr(mlp, "gate", None)
    act = getattr(_raw(mlp), "act", None) or _raw(mlp).act_fn
    act = _tanh_gelu if type(act).__name__ == "NewGELUActivation" else act
    if gate is None:
        return lambda stream: outer(act(inner(stream)))
    gate = _raw(gate)
    return lambda stream: outer(act(gate(stream)) * inner(stream))


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    """GPT-2's x · (1 + tanh u) / 2 = x · σ(2u), u = √(2/π) (x + 0.044715 x³). On a CPU σ takes a quarter of
    tanh's time."""
    if x.device.type != "cpu" or torch.is_grad_enabled():
        return F.gelu(x, approximate="tanh")
    twice = 2 * math.sqrt(2 / math.pi)
    return torch.addcmul(x.new_tensor(twice), x, x, value=0.044715 * twice).mul_(x).sigmoid_().mul_(x)


def _embedding(bridge: Any) -> Callable[[torch.Tensor], Stream]:
    words, positions = _raw(bridge.embed), getattr(bridge, "pos_embed", None)
    if positions is None:
        return words
    positions = _raw(positions)
    return lambda tokens: words(tokens) + positions(torch.arange(tokens.shape[-1], device=tokens.device))


def _rotation(rotary: Any) -> Callable[[Stream], Rotation]:
    def rotation(stream: Stream) -> Rotation:
        cos, sin = rotary(stream[:1], torch.arange(stream.shape[-2], device=stream.device)[None])
        return torch.stack((cos[0], sin[0]))

    return rotation


def _rotated(heads: Heads, rotation: Rotation) -> Heads:
    """Turn the first `d_rotary` numbers of each head by their position's angle, half against half."""
    cos, sin = rotation[:, :, None]  # (pos, 1, d_rotary) each
    turned, kept = heads[..., : cos.shape[-1]], heads[..., cos.shape[-1] :]
    left, right = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-right, left), dim=-1) * sin
    return torch.cat((turned, kept), dim=-1) if kept.shape[-1] else turned
