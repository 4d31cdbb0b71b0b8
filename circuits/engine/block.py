"""One block of a model as plain functions of the residual stream, so that part of it can be computed alone.

1. `project` and `split` give queries, keys and values, one for every head, normed and rotated where the model
   does it; `side` gives one of the three, so that one side of a head can be read from another stream.
2. `scores` turns q·k into what the softmax sees (scale, soft cap, causal mask with window), `attend` into the
   pattern; a score may be edited in between.
3. `write` and `mlp_output` are what attention and MLP add to the stream, behind a norm of the write where the
   model has one; `head_writes` splits the former into heads.

What differs between architectures is data here (a window, a cap, a norm that may be absent): nothing in the
engine asks which architecture it carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int

from circuits.components import Side
from circuits.models.model import gated

Stream = Float[torch.Tensor, "*batch pos d_model"]
Heads = Float[torch.Tensor, "*batch pos head d_head"]
Groups = Float[
    torch.Tensor, "*batch pos group d_head"
]  # keys or values, of which several heads may share one
Scores = Float[torch.Tensor, "*batch query key"]
Hidden = Bool[
    torch.Tensor, "query key"
]  # what a query must not read: later keys, and those before its window
Rotation = Float[torch.Tensor, "2 rotated d_rotary"]  # cosines and sines of some positions


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm or a root-mean-square norm: centre (or not), divide by the spread, multiply by a gain."""

    module: Any

    def __call__(self, stream: torch.Tensor) -> torch.Tensor:
        return self.module(stream)

    def linear(self, part: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """A part of the stream `at`, scaled as the whole is: what adds up to `at` adds up to its norm, less
        the bias."""
        eps: Any = getattr(self.module, "eps", None) or self.module.variance_epsilon
        scale = (self._centred(at).pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        return self._centred(part) * scale * self._gain(at, eps)

    def frozen(self, stream: torch.Tensor) -> torch.Tensor:
        """The norm with its scale held at the value it has here, so that it is linear in the stream."""
        scaled, bias = self.linear(stream, stream.detach()), getattr(self.module, "bias", None)
        return scaled if bias is None else scaled + bias

    def _centred(self, stream: torch.Tensor) -> torch.Tensor:
        is_centred = isinstance(self.module, torch.nn.LayerNorm)
        return stream - stream.mean(-1, keepdim=True) if is_centred else stream

    def _gain(self, like: torch.Tensor, eps: float) -> torch.Tensor:
        """The weights of a layer norm. Of the other kind, what ones become: Gemma keeps its gain less one."""
        if isinstance(self.module, torch.nn.LayerNorm):
            return self.module.weight
        return self.module(like.new_ones(like.shape[-1])) * (1 + eps) ** 0.5


@dataclass(frozen=True, slots=True)
class Block:
    """One block: norms, projections and MLP, and what it does between them."""

    heads: int
    d_head: int
    norm1: Norm
    norm2: Norm
    q: Any  # linear layers
    k: Any
    v: Any
    qkv: Callable[[Stream], torch.Tensor]  # queries, keys and values beside each other
    o: Any  # a linear layer: heads' outputs, beside each other, to the stream
    mlp: Callable[[Stream], Stream]
    scale: float
    query_norm: Norm | None = None  # of each head
    key_norm: Norm | None = None
    attention_norm: Norm | None = None  # of what attention writes
    mlp_norm: Norm | None = None
    rotation: Callable[[Stream], Rotation] | None = None
    adjacent: bool = False  # rotation turns neighbours (GPT-J), not the first half against the second
    cap: float | None = None  # of the scores
    window: int | None = None  # how many keys a query reads, itself included
    is_gated: bool = False

    # Reading the stream

    def project(self, stream: Stream) -> torch.Tensor:
        """From the stream at the block's input to its queries, keys and values, beside each other."""
        return self.qkv(self.norm1(stream))

    def split(self, projected: torch.Tensor, rotation: Rotation | None) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values from `project`, all per head, so that grouped keys need no further
        thought. `rotation` is that of the stream's positions."""
        heads = projected.unflatten(-1, (-1, self.d_head))
        groups = (heads.shape[-2] - self.heads) // 2
        q, k, v = heads.split((self.heads, groups, groups), -2)
        return self._turned(q, "query", rotation), self._turned(k, "key", rotation), self.spread(v)

    def side(self, stream: Stream, side: Side, rotation: Rotation | None) -> Heads:
        """One of the three alone, from a stream at the block's input."""
        product = {"query": self.q, "key": self.k, "value": self.v}[side]
        return self.split_side(product(self.norm1(stream)), side, rotation)

    def split_side(self, projected: torch.Tensor, side: Side, rotation: Rotation | None) -> Heads:
        """Per head, normed and rotated, from the side's own product."""
        heads = projected.unflatten(-1, (-1, self.d_head))
        return self.spread(heads) if side == "value" else self._turned(heads, side, rotation)

    def own_side(
        self,
        streams: Float[torch.Tensor, "*batch head pos d_model"],
        side: Side,
        heads: Sequence[int],
        rotation: Rotation | None,
    ) -> Heads:
        """One of the three for some heads, each from a stream of its own."""
        layer = {"query": self.q, "key": self.k, "value": self.v}[side]
        matrix = layer.weight.T if _is_conv1d(layer) else layer.weight  # (group·d_head, d_model)
        group = [head * matrix.shape[0] // (self.heads * self.d_head) for head in heads]
        own = matrix.unflatten(0, (-1, self.d_head))[group]  # (head, d_head, d_model)
        projected = torch.einsum("...htm,hdm->...thd", self.norm1(streams), own)
        if layer.bias is not None:
            projected = projected + layer.bias.unflatten(0, (-1, self.d_head))[group]
        return projected if side == "value" else self._at_positions(projected, side, rotation)

    def spread(self, groups: Groups) -> Heads:
        """Grouped keys or values, one for every head that reads them."""
        size = self.heads // groups.shape[-2]
        return groups if size == 1 else groups.repeat_interleave(size, -2)

    def _turned(self, groups: Groups, side: Side, rotation: Rotation | None) -> Heads:
        return self.spread(self._at_positions(groups, side, rotation))

    def _at_positions(self, groups: Groups, side: Side, rotation: Rotation | None) -> Groups:
        """Queries or keys, normed and rotated where the model does it."""
        norm = self.query_norm if side == "query" else self.key_norm
        groups = groups if norm is None else norm(groups)
        return groups if rotation is None else rotated(groups, rotation, adjacent=self.adjacent)

    # Attention

    def scores(self, products: Scores, hidden: Hidden) -> Scores:
        """From q·k, which is overwritten, to what the softmax sees."""
        scores = products.mul_(self.scale)
        if self.cap is not None:
            scores = scores.div_(self.cap).tanh_().mul(self.cap)  # a gradient needs what tanh gave
        return scores.masked_fill_(hidden, -torch.inf)

    def attend(self, scores: Scores) -> Scores:
        """Scores to the pattern."""
        pattern = scores.softmax(-1)
        return gated(scores, pattern) if self.is_gated else pattern

    # Writing to the stream

    def write(self, z: Float[torch.Tensor, "*batch pos d_heads"]) -> Stream:
        """What the heads' outputs, beside each other, add to the stream, bias included."""
        written = self.o(z)
        return written if self.attention_norm is None else self.attention_norm(written)

    def mlp_output(self, stream: Stream) -> Stream:
        """What the MLP adds, from the stream that it reads."""
        added = self.mlp(self.norm2(stream))
        return added if self.mlp_norm is None else self.mlp_norm(added)

    def head_writes(self, z: Heads) -> Float[torch.Tensor, "*batch pos head d_model"]:
        """What each head adds to the stream. All of them and the bias make `write`; a norm of the write
        scales them as it scales the whole of this very run."""
        weight = self.o.weight if _is_conv1d(self.o) else self.o.weight.T  # (head·d_head, d_model)
        parts = torch.einsum("...hd,hdm->...hm", z, weight.unflatten(0, (self.heads, -1)))
        if self.attention_norm is None:
            return parts
        return self.attention_norm.linear(parts, self.o(z.flatten(-2))[..., None, :])


def _is_conv1d(layer: Any) -> bool:
    """Whether a linear layer keeps its matrix as (in, out), as GPT-2 does."""
    return type(layer).__name__ == "Conv1D"


def hidden_keys(queries: Int[torch.Tensor, " query"], length: int, window: int | None) -> Hidden:
    """What these queries must not read."""
    query, key = queries[:, None], torch.arange(length, device=queries.device)
    return (key > query) if window is None else (key > query) | (key <= query - window)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The pattern of a long run, which is not kept: what is asked of it is computed again from queries and
    keys. It is indexed as the tensor (input, head, query, key) is; the input by a number or a slice."""

    query: Float[torch.Tensor, "input head pos d_head"]
    key: Float[torch.Tensor, "input head pos d_head"]
    block: Block

    def __getitem__(self, index: Any) -> torch.Tensor:
        given = index if isinstance(index, tuple) else (index,)
        inputs, heads, queries, *rest = *given, *[slice(None)] * (3 - len(given))
        every = torch.arange(self.key.shape[2], device=self.key.device)
        if isinstance(queries, torch.Tensor):
            wanted, queries = queries.unique(return_inverse=True)
        elif isinstance(queries, int):
            wanted, queries = every[queries, None], 0
        else:
            wanted, queries = every[queries], slice(None)
        computed = self._rows(_kept_axis(inputs), _kept_axis(heads), wanted)
        inputs, heads = (0 if isinstance(own, int) else own for own in (inputs, heads))
        return computed[inputs, heads, queries, *rest]

    def _rows(self, inputs: slice, heads: slice, queries: torch.Tensor) -> torch.Tensor:
        key = self.key[inputs, heads]
        products = self.query[inputs, heads][:, :, queries] @ key.mT
        return self.block.attend(
            self.block.scores(products, hidden_keys(queries, key.shape[2], self.block.window))
        )


@dataclass(frozen=True, slots=True)
class Written:
    """What attention or the MLP of a long run wrote, which is not kept: where it is asked for, it is computed
    again from the heads' outputs and the stream. It is indexed as the tensor (input, pos, d_model) is."""

    by: Literal["attention", "mlp"]
    block: Block
    z: Float[torch.Tensor, "input pos head d_head"]
    pre: Float[torch.Tensor, "input pos d_model"]
    parallel: bool

    def __getitem__(self, index: Any) -> torch.Tensor:
        attention = self.block.write(self.z[index].flatten(-2))
        if self.by == "attention":
            return attention
        return self.block.mlp_output(self.pre[index] if self.parallel else self.pre[index] + attention)


def _kept_axis(index: Any) -> slice:
    """One number as a slice; anything else takes all, and is chosen from afterwards."""
    return slice(index, index + 1) if isinstance(index, int) else slice(None)


def rotated(heads: Groups, rotation: Rotation, *, adjacent: bool = False) -> Groups:
    """Turn the first `d_rotary` numbers of each head by their position's angle: half against half, or
    `adjacent` numbers against each other."""
    cos, sin = rotation[:, :, None]  # (pos, 1, d_rotary) each
    turned, kept = heads[..., : cos.shape[-1]], heads[..., cos.shape[-1] :]
    if adjacent:
        across = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        left, right = turned.chunk(2, dim=-1)
        across = torch.cat((-right, left), dim=-1)
    turned = turned * cos + across * sin
    return torch.cat((turned, kept), dim=-1) if kept.shape[-1] else turned
