"""One block of a model as plain functions of the residual stream, so that part of it can be computed alone.

1. `project` and `split` give queries, keys and values, one for every head, normed and rotated where the model
   does it; `side` gives one of the three, so that one side of a head can be read from another stream.
2. `scores` turns q·k into what the softmax sees (scale, soft cap, causal mask with window), `attend` into the
   pattern; a score may be edited in between.
3. `write` and `mlp_output` are what attention and MLP add to the stream, behind a norm of the write where the
   model has one; `head_writes` splits the former into heads. `above_heads` is the stream above the block in
   rows where one head writes something else: by way of its few dimensions, for less.

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

    def linear(self, part: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        """A part of a stream, scaled as the whole is: parts that add up to the stream add up to its norm, but
        for the bias."""
        return self.direction(part) * self.scale(stream)

    def direction(self, part: torch.Tensor) -> torch.Tensor:
        """What the norm makes of a part of the stream, before it divides by the spread: linear."""
        return self._centred(part) * self._gain(part)

    def scale(self, stream: torch.Tensor) -> Float[torch.Tensor, "*batch 1"]:
        """One over the spread."""
        return (self._centred(stream).pow(2).mean(-1, keepdim=True) + self._eps).rsqrt()

    @property
    def bias(self) -> torch.Tensor | None:
        return getattr(self.module, "bias", None)

    @property
    def _eps(self) -> float:
        return getattr(self.module, "eps", None) or self.module.variance_epsilon

    def frozen(self, stream: torch.Tensor) -> torch.Tensor:
        """The norm with its scale held at the value it has here, so that it is linear in the stream."""
        scaled = self.linear(stream, stream.detach())
        return scaled if self.bias is None else scaled + self.bias

    def _centred(self, stream: torch.Tensor) -> torch.Tensor:
        is_centred = isinstance(self.module, torch.nn.LayerNorm)
        return stream - stream.mean(-1, keepdim=True) if is_centred else stream

    def _gain(self, like: torch.Tensor) -> torch.Tensor:
        """The weights of a layer norm. Of the other kind, what ones become: Gemma keeps its gain less one."""
        if isinstance(self.module, torch.nn.LayerNorm):
            return self.module.weight
        return self.module(like.new_ones(like.shape[-1])) * (1 + self._eps) ** 0.5


@dataclass(frozen=True, slots=True)
class Mlp:
    """One matrix in, or two of which one gates the other, and one out."""

    inner: Any  # linear layers
    outer: Any
    act: Callable[[torch.Tensor], torch.Tensor]
    gate: Any = None

    def __call__(
        self, normed: Float[torch.Tensor, "*batch d_model"]
    ) -> Float[torch.Tensor, "*batch d_model"]:
        return self._out([layer(normed) for layer in self._ways_in])

    @property
    def _ways_in(self) -> tuple[Any, ...]:
        return (self.inner,) if self.gate is None else (self.gate, self.inner)

    def _out(self, inside: Sequence[torch.Tensor]) -> torch.Tensor:
        first, *rest = inside
        hidden = self.act(first)
        return self.outer(hidden * rest[0] if rest else hidden)

    def moved(
        self,
        norm: Norm,
        base: Float[torch.Tensor, "input 1 pos d_model"],
        scale: Float[torch.Tensor, "input row pos 1"],
        changes: Sequence[torch.Tensor],  # (input, some rows, pos, d_head) each
        spans: Sequence[Float[torch.Tensor, "d_head d_model"]],
    ) -> Float[torch.Tensor, "input row pos d_model"]:
        """What it adds where it reads, behind a norm, `base` plus changes that lie in the few dimensions that
        each `span` names; `scale` is the norm's at what is read. Before the norm divides, all is linear, so
        that `base` goes through the first matrix once and a change by way of its few dimensions."""
        inside = []
        for layer in self._ways_in:
            matrix, at_base = matrix_of(layer), norm.direction(base) @ matrix_of(layer)
            constant = layer(base.new_zeros(base.shape[-1]) if norm.bias is None else norm.bias)
            scales = scale.split([part.shape[1] for part in changes], 1)
            for change, span, own in zip(changes, spans, scales, strict=True):
                through = norm.direction(span) @ matrix  # (d_head, d_mlp)
                product = torch.addmm(constant, (change * own).flatten(0, -2), through)
                inside.append(product.unflatten(0, change.shape[:-1]).addcmul_(own, at_base))
        count = len(changes)
        joined = [torch.cat(inside[n : n + count], 1) for n in range(0, len(inside), count)]
        return self._out(joined)


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
    mlp: Mlp
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

    def few_queries(
        self, stream: Stream, rotation: Rotation | None, queries: int
    ) -> tuple[Float[torch.Tensor, "*batch query head d_head"], Heads, Heads]:
        """`project` and `split`, with queries of the last so many positions alone."""
        normed, turn = self.norm1(stream), None if rotation is None else rotation[:, -queries:]
        query = self.split_side(self.q(normed[..., -queries:, :]), "query", turn)
        key = self.split_side(self.k(normed), "key", rotation)
        return query, key, self.split_side(self.v(normed), "value", rotation)

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
        matrix = matrix_of(layer).T  # (group·d_head, d_model)
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
        parts = torch.einsum("...hd,hdm->...hm", z, self._writing)
        if self.attention_norm is None:
            return parts
        return self.attention_norm.linear(parts, self.o(z.flatten(-2))[..., None, :])

    @property
    def _writing(self) -> Float[torch.Tensor, "head d_head d_model"]:
        return matrix_of(self.o).unflatten(0, (self.heads, -1))

    def above_heads(
        self,
        base: Float[torch.Tensor, "input 1 pos d_model"],
        change: Float[torch.Tensor, "input row pos d_head"],
        heads: Sequence[int],
    ) -> Float[torch.Tensor, "input row pos d_model"]:
        """The stream above the block in rows that each change the output of one head, where `base` is what
        the MLP would read anyway. The heads of the rows stand in order, so that each has one product."""
        spans = [self._writing[head] for head in dict.fromkeys(heads)]
        changes = change.split([heads.count(head) for head in dict.fromkeys(heads)], 1)
        written = [part @ span for part, span in zip(changes, spans, strict=True)]
        stream = base + torch.cat(written, 1)
        added = self.mlp.moved(self.norm2, base, self.norm2.scale(stream), changes, spans)
        return stream.add_(added if self.mlp_norm is None else self.mlp_norm(added))


def matrix_of(layer: Any) -> Float[torch.Tensor, "d_in d_out"]:
    """The matrix of a linear layer; GPT-2 keeps it so, others the other way round."""
    return layer.weight if type(layer).__name__ == "Conv1D" else layer.weight.T


def hidden_keys(queries: Int[torch.Tensor, " query"], length: int, window: int | None) -> Hidden:
    """What these queries must not read."""
    query, key = queries[:, None], torch.arange(length, device=queries.device)
    return (key > query) if window is None else (key > query) | (key <= query - window)


@dataclass(frozen=True, slots=True)
class UnkeptPattern:
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
