"""The blocks of a model as plain functions, so that part of a run can be computed without the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch.nn import functional as F

from circuits.models.hooks import gated

Stream = Float[torch.Tensor, "*batch pos d_model"]
Heads = Float[torch.Tensor, "*batch pos head d_head"]
Rotation = tuple[Float[torch.Tensor, "pos d_rotary"], Float[torch.Tensor, "pos d_rotary"]]


@dataclass(frozen=True, slots=True)
class Block:
    """One block: norms, projections and MLP, each a function of the stream."""

    norm1: Callable[[Stream], Stream]
    norm2: Callable[[Stream], Stream]
    q: Callable[[Stream], torch.Tensor]
    k: Callable[[Stream], torch.Tensor]
    v: Callable[[Stream], torch.Tensor]
    qkv: Callable[[Stream], torch.Tensor]  # the three above, beside each other
    o: Callable[[torch.Tensor], Stream]
    mlp: Callable[[Stream], Stream]

    def project(self, stream: Stream) -> torch.Tensor:
        """From the stream at the block's input to its queries, keys and values."""
        return self.qkv(self.norm1(stream))

    def write(self, z: Heads) -> Stream:
        """What the heads' outputs add to the stream, bias included."""
        return self.o(z.flatten(-2))

    def think(self, stream: Stream) -> Stream:
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
    rotate: Callable[[Heads, Rotation], Heads] | None
    rotation: Callable[[Stream], Rotation] | None
    embed: Callable[[torch.Tensor], Stream]  # tokens to the input of layer 0
    token_embedding: Callable[[torch.Tensor], Stream]
    final_norm: Callable[[Stream], Stream]
    unembed: Float[torch.Tensor, "vocab d_model"]
    unembed_bias: Float[torch.Tensor, " vocab"] | None

    def split(self, projected: torch.Tensor) -> Heads:
        return projected.unflatten(-1, (-1, self.d_head))

    def heads_of(self, projected: torch.Tensor, rotation: Rotation | None) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values of a block's `project`; all three per head, so that grouped keys need no further thought."""
        found = self.split(projected)
        groups = (found.shape[-2] - self.heads) // 2
        q, k, v = found.split((self.heads, groups, groups), -2)
        return self._turned(q, rotation), self._spread(self._turned(k, rotation)), self._spread(v)

    def queries(self, block: Block, normed: Stream, rotation: Rotation | None) -> Heads:
        return self._turned(self.split(block.q(normed)), rotation)

    def keys_and_values(self, block: Block, normed: Stream, rotation: Rotation | None) -> tuple[Heads, Heads]:
        k, v = self.split(block.k(normed)), self.split(block.v(normed))
        return self._spread(self._turned(k, rotation)), self._spread(v)

    def _turned(self, heads: Heads, rotation: Rotation | None) -> Heads:
        return heads if rotation is None or self.rotate is None else self.rotate(heads, rotation)

    def _spread(self, heads: Heads) -> Heads:
        group = self.heads // heads.shape[-2]
        return heads if group == 1 else heads.repeat_interleave(group, -2)

    def attend(
        self, scores: Float[torch.Tensor, "*batch query key"]
    ) -> Float[torch.Tensor, "*batch query key"]:
        """Scaled and masked scores to the pattern."""
        pattern = scores.softmax(-1)
        return gated(scores, pattern) if self.is_gated else pattern

    def positions(self, stream: Stream) -> Rotation | None:
        return None if self.rotation is None else self.rotation(stream)

    def logits(self, stream: Float[torch.Tensor, "*batch d_model"]) -> Float[torch.Tensor, "*batch vocab"]:
        """The whole vocabulary's logits."""
        return F.linear(self.final_norm(stream), self.unembed, self.unembed_bias)
