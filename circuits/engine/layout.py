"""The blocks of a model as plain functions, so that part of a run can be computed without the rest.

1. The bridge gives every architecture the same part names: `ln1`, `attn.q/k/v/o`, `ln2`, `mlp.in/gate/out`.
2. What is assumed beyond that (pre-norm, one residual stream, causal softmax over all earlier keys) covers GPT-2, Llama and GPT-NeoX.
3. An assumption that fails shows in the numbers: `read_layout` compares a whole run with the model's own and returns None
   if they differ, and the plain path is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch.nn import functional as F

from circuits.engine.cache import Cache, Layer
from circuits.gate import gated
from circuits.models import Model

Stream = Float[torch.Tensor, "*batch pos d_model"]
Heads = Float[torch.Tensor, "*batch pos head d_head"]
Rotation = tuple[Float[torch.Tensor, "pos d_rotary"], Float[torch.Tensor, "pos d_rotary"]]
_TOLERANCE = 1e-3  # of the largest logit, between a whole run here and the model's own


@dataclass(frozen=True, slots=True)
class Block:
    """One block: norms, projections and MLP, each a function of the stream."""

    norm1: Callable[[Stream], Stream]
    norm2: Callable[[Stream], Stream]
    q: Callable[[Stream], torch.Tensor]
    k: Callable[[Stream], torch.Tensor]
    v: Callable[[Stream], torch.Tensor]
    o: Callable[[torch.Tensor], Stream]
    o_bias: Float[torch.Tensor, " d_model"] | None
    mlp: Callable[[Stream], Stream]

    def write(self, z: Heads) -> Stream:
        """What the heads' outputs add to the stream, bias included."""
        return self.o(z.flatten(-2))

    def write_change(self, z: Heads) -> Stream:
        """What a difference of heads' outputs adds to the stream: the same without the bias."""
        written = self.write(z)
        return written if self.o_bias is None else written - self.o_bias


@dataclass(frozen=True, slots=True)
class Layout:
    """A model that the fast path knows."""

    blocks: tuple[Block, ...]
    parallel: bool  # attention and MLP read the same stream
    heads: int
    d_head: int
    scale: float
    is_gated: bool
    rotate: Callable[[Heads, Rotation], Heads] | None
    rotation: Callable[[Stream], Rotation] | None
    embed: Callable[[torch.Tensor], Stream]  # tokens to the input of layer 0
    token_embedding: Callable[[torch.Tensor], Stream]
    final_norm: Callable[[Stream], Stream]
    unembed: Float[torch.Tensor, "vocab d_model"]
    unembed_bias: Float[torch.Tensor, " vocab"] | None

    def split(self, projected: torch.Tensor) -> Heads:
        return projected.unflatten(-1, (-1, self.d_head))

    def queries(self, block: Block, normed: Stream, rotation: Rotation | None) -> Heads:
        q = self.split(block.q(normed))
        return q if rotation is None or self.rotate is None else self.rotate(q, rotation)

    def keys_and_values(self, block: Block, normed: Stream, rotation: Rotation | None) -> tuple[Heads, Heads]:
        """Keys and values spread over all heads, so that grouped keys need no further thought."""
        k, v = self.split(block.k(normed)), self.split(block.v(normed))
        k = k if rotation is None or self.rotate is None else self.rotate(k, rotation)
        group = self.heads // k.shape[-2]
        return (k, v) if group == 1 else (k.repeat_interleave(group, -2), v.repeat_interleave(group, -2))

    def attend(self, scores: Float[torch.Tensor, "*batch query key"]) -> Float[torch.Tensor, "*batch query key"]:
        """Scaled and masked scores to the pattern."""
        pattern = scores.softmax(-1)
        return gated(scores, pattern) if self.is_gated else pattern

    def positions(self, stream: Stream) -> Rotation | None:
        return None if self.rotation is None else self.rotation(stream)

    def logits(self, stream: Float[torch.Tensor, "*batch d_model"]) -> Float[torch.Tensor, "*batch vocab"]:
        """The whole vocabulary's logits."""
        return F.linear(self.final_norm(stream), self.unembed, self.unembed_bias)

    def run(self, stream: Float[torch.Tensor, "pair pos d_model"]) -> Cache:
        """A whole run from the input of layer 0, everything kept."""
        return self.run_both(stream, stream[:, :0])[0]

    def run_both(
        self, clean: Float[torch.Tensor, "pair pos d_model"], other: Float[torch.Tensor, "pair late d_model"]
    ) -> tuple[Cache, Cache]:
        """A run and its counterfactual in one pass. `other` holds the last positions, from the first difference on.

        Before the difference both are the same, so those positions are computed once. The positions of both pass through the
        matrices side by side, so each matrix is read once.
        """
        length, late = clean.shape[1], other.shape[1]
        start, sizes = length - late, (length, late)
        stream = torch.cat((clean, other), 1)
        places = torch.cat((torch.arange(length), torch.arange(start, length))).to(clean.device)
        rotation = self.positions(clean)
        rotation = None if rotation is None else (rotation[0][places], rotation[1][places])
        future = torch.ones(length, length, dtype=torch.bool, device=clean.device).triu(1)
        kept: tuple[list[Layer], list[Layer]] = ([], [])
        for block in self.blocks:
            normed = block.norm1(stream)
            q = rearrange(self.queries(block, normed, rotation), "p t h d -> p h t d")
            k, v = (rearrange(x, "p t h d -> p h t d") for x in self.keys_and_values(block, normed, rotation))
            (q, own_q), (k, own_k), (v, own_v) = (x.split(sizes, 2) for x in (q, k, v))
            other_k, other_v = _after(k, own_k, start, 2), _after(v, own_v, start, 2)
            pattern = self.attend((q @ k.mT * self.scale).masked_fill_(future, -torch.inf))
            own_pattern = self.attend((own_q @ other_k.mT * self.scale).masked_fill_(future[start:], -torch.inf))
            z = rearrange(torch.cat((pattern @ v, own_pattern @ other_v), 2), "p h t d -> p t h d")
            attention = block.write(z)
            mlp = block.mlp(block.norm2(stream if self.parallel else stream + attention))
            (pre, own_pre), (z, own_z), (written, own_written), (fed, own_fed) = (x.split(sizes, 1) for x in (stream, z, attention, mlp))
            kept[0].append(Layer(pre, pattern, v, z, written, fed, query=q, key=k))
            if late:
                kept[1].append(
                    Layer(
                        _after(pre, own_pre, start, 1),
                        _after(pattern, own_pattern, start, 2),
                        other_v,
                        _after(z, own_z, start, 1),
                        _after(written, own_written, start, 1),
                        _after(fed, own_fed, start, 1),
                        query=_after(q, own_q, start, 2),
                        key=other_k,
                    )
                )
            stream = stream + attention + mlp
        final, own_final = stream.split(sizes, 1)
        return Cache(tuple(kept[0]), final), Cache(tuple(kept[1]), _after(final, own_final, start, 1))


def _after(shared: torch.Tensor, own: torch.Tensor, start: int, dim: int) -> torch.Tensor:
    """The shared positions before `start`, then one's own."""
    return own if start == 0 else torch.cat((shared.narrow(dim, 0, start), own), dim)


def read_layout(model: Model, probe: torch.Tensor) -> Layout | None:
    """The model's blocks as functions, or None where they do not reproduce the model's own logits on `probe`."""
    try:
        layout = _read(model)
        with torch.inference_mode():
            mine, own = layout.logits(layout.run(layout.embed(probe)).final), model.logits(probe)
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
    o = _raw(attention.o)
    return Block(
        norm1=_raw(block.ln1),
        norm2=_raw(block.ln2),
        q=_raw(attention.q),
        k=_raw(attention.k),
        v=_raw(attention.v),
        o=o,
        o_bias=getattr(o, "bias", None),
        mlp=_mlp(block.mlp),
    )


def _mlp(mlp: Any) -> Callable[[Stream], Stream]:
    inner, outer, gate = _raw(getattr(mlp, "in")), _raw(mlp.out), getattr(mlp, "gate", None)
    act = _activation(_raw(mlp))
    if gate is None:
        return lambda stream: outer(act(inner(stream)))
    gate = _raw(gate)
    return lambda stream: outer(act(gate(stream)) * inner(stream))


def _activation(mlp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The MLP's own activation; GPT-2's spelled-out tanh GELU is the fused one, several times faster."""
    act = getattr(mlp, "act", None) or mlp.act_fn
    return (lambda x: F.gelu(x, approximate="tanh")) if type(act).__name__ == "NewGELUActivation" else act


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
