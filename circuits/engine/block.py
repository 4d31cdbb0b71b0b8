"""One transformer block as plain functions of the residual stream.

A block reads the stream four times and writes to it twice. Each of these is a method, so that any reader can
be given a stream of its own and any write can be replaced:

1. `queries_keys_values` projects one stream for all heads; `side` projects a stream of its own for each head.
   Both apply the block's norm, the norms of single heads and the rotation where the model has them.
2. `pattern` turns the products q·k into attention weights: scale, soft cap, causal mask with window, softmax
   and, in a sparse model, the gate.
3. `write` is what the heads' outputs add to the stream, `head_writes` the same head by head. `mlp_write` is
   what the MLP adds; `neurons` and `neuron_writes` are the same neuron by neuron.

What differs between architectures is data here (a window, a cap, a norm that may be absent). No other module
of the engine asks which architecture it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from jaxtyping import Bool, Float, Int

from circuits.components import Side
from circuits.models.model import gated

Stream = Float[torch.Tensor, "*batch pos d_model"]
OwnStreams = Float[torch.Tensor, "*batch head pos d_model"]  # a stream for each head
Heads = Float[torch.Tensor, "*batch pos head d_head"]
# Keys or values before heads share them.
Groups = Float[torch.Tensor, "*batch pos group d_head"]
HeadWrites = Float[torch.Tensor, "*batch pos head d_model"]
Neurons = Float[torch.Tensor, "*batch pos neuron"]
Scores = Float[torch.Tensor, "*batch query key"]
Mask = Bool[torch.Tensor, "query key"]  # True where a query must not read a key
Rotation = Float[torch.Tensor, "2 pos d_rotary"]  # cosines and sines
_STEP: Final = 1e-3  # inputs of a neuron that differ by less are taken apart by so much


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm or a root-mean-square norm.

    `frozen` holds its scale at the value that it has for the stream it is given, so that gradients treat the
    norm as a linear map.
    """

    module: Any
    frozen: bool = False

    def __call__(self, stream: torch.Tensor) -> torch.Tensor:
        if not self.frozen:
            return self.module(stream)
        scaled = self.linear(stream, stream.detach())
        return scaled if self.bias is None else scaled + self.bias

    def linear(self, part: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        """Scale a part of a stream as the norm scales the whole stream. Parts that add up to the stream add
        up to its norm, except for the bias."""
        centred = self._centred(stream)
        scale = (centred.pow(2).mean(-1, keepdim=True) + self._epsilon).rsqrt()
        return self._centred(part) * self._gain(part) * scale

    @property
    def bias(self) -> torch.Tensor | None:
        return getattr(self.module, "bias", None)

    @property
    def _is_layer_norm(self) -> bool:
        return isinstance(self.module, torch.nn.LayerNorm)

    @property
    def _epsilon(self) -> float:
        return getattr(self.module, "eps", None) or self.module.variance_epsilon

    def _centred(self, stream: torch.Tensor) -> torch.Tensor:
        """A layer norm subtracts the mean; a root-mean-square norm does not."""
        return stream - stream.mean(-1, keepdim=True) if self._is_layer_norm else stream

    def _gain(self, like: torch.Tensor) -> torch.Tensor:
        """The gain (d_model). A root-mean-square norm is asked for what it makes of ones, because Gemma stores
        its gain less one."""
        if self._is_layer_norm:
            return self.module.weight
        ones = like.new_ones(like.shape[-1])
        # The mean square of ones is 1, so the norm has divided its gain by √(1 + ε).
        return self.module(ones) * (1 + self._epsilon) ** 0.5


@dataclass(frozen=True, slots=True)
class Mlp:
    """An MLP: `outer(act(inner(x)))`, or with a gate `outer(act(gate(x)) · inner(x))`."""

    inner: Any  # linear layer, d_model to neurons
    outer: Any  # linear layer, neurons to d_model
    act: Callable[[torch.Tensor], torch.Tensor]
    gate: Any = None  # linear layer, d_model to neurons

    def __call__(
        self, normed: Float[torch.Tensor, "*batch d_model"]
    ) -> Float[torch.Tensor, "*batch d_model"]:
        return self.outer(self.neurons(normed))

    def neurons(
        self, normed: Float[torch.Tensor, "*batch d_model"]
    ) -> Float[torch.Tensor, "*batch neuron"]:
        """What `outer` is multiplied with: the activation of every neuron, with a gate the product."""
        if self.gate is None:
            return self.act(self.inner(normed))
        return self.act(self.gate(normed)) * self.inner(normed)

    def changes_by_part(
        self,
        normed: Float[torch.Tensor, "*batch d_model"],
        other: Float[torch.Tensor, "*batch d_model"],
        parts: Float[torch.Tensor, "*batch part d_model"],
        neurons: Sequence[int],
    ) -> Float[torch.Tensor, "*batch part neuron"]:
        """Split the change of some neurons between two inputs of the MLP among the parts of the inputs'
        difference. The input is `normed` in one run and `other` in the other; `parts` add up to normed − other,
        and what is returned for each of them adds up to the neurons' activations at normed less at other.

        The activation function is replaced by its mean slope between both inputs. A product of two factors
        changes by the change of each times the mean of the other: ab − a′b′ = (a − a′)(b + b′)/2 +
        (b − b′)(a + a′)/2.
        """
        chosen = list(neurons)

        def read(layer: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            """What a layer makes of both inputs, (…, neuron), and of each part, (…, part, neuron)."""
            columns = matrix_of(layer)[:, chosen]  # (d_model, neuron)
            return layer(normed)[..., chosen], layer(other)[..., chosen], parts @ columns

        value, other_value, value_parts = read(self.inner)
        if self.gate is None:
            return value_parts * self._slope(value, other_value)[..., None, :]
        gate, other_gate, gate_parts = read(self.gate)
        mean_gate = (self.act(gate) + self.act(other_gate)) / 2
        mean_value = (value + other_value) / 2
        by_gate = mean_value * self._slope(gate, other_gate)
        return value_parts * mean_gate[..., None, :] + gate_parts * by_gate[..., None, :]

    def _slope(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The mean slope of the activation function between two inputs; where they are (nearly) equal, its
        slope around them."""
        step = torch.where((one - other).abs() < _STEP, _STEP, 0.0)
        above, below = one + step, other - step
        return (self.act(above) - self.act(below)) / (above - below)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its norms, projections and MLP, and the numbers that its attention uses."""

    heads: int
    d_head: int
    attention_norm: Norm  # in front of the projections
    mlp_norm: Norm  # in front of the MLP
    q: Any  # linear layers
    k: Any
    v: Any
    # Queries, keys and values of one stream, concatenated: (…, pos, (head + 2 group) · d_head).
    qkv: Callable[[Stream], torch.Tensor]
    o: Any  # linear layer: the heads' outputs, concatenated, to the stream
    mlp: Mlp
    scale: float
    parallel: bool = False  # attention and MLP read the same stream
    query_norm: Norm | None = None  # of each head's query
    key_norm: Norm | None = None
    attention_write_norm: Norm | None = None  # of what attention adds to the stream (Gemma)
    mlp_write_norm: Norm | None = None
    rotation: Callable[[Stream], Rotation] | None = None
    # The rotation turns neighbours (GPT-J), not the first half against the second.
    adjacent: bool = False
    cap: float | None = None  # soft cap of the scores
    window: int | None = None  # how many keys a query reads, itself included
    is_gated: bool = False
    constant_pattern: bool = False  # gradients do not flow through the attention weights

    def linearised(self) -> Block:
        """The block with norm scales and attention weights held constant for gradients, as attribution by
        gradients does: all that is left is linear, except for the MLP."""

        def frozen(norm: Norm | None) -> Norm | None:
            return None if norm is None else replace(norm, frozen=True)

        return replace(
            self,
            attention_norm=replace(self.attention_norm, frozen=True),
            mlp_norm=replace(self.mlp_norm, frozen=True),
            attention_write_norm=frozen(self.attention_write_norm),
            mlp_write_norm=frozen(self.mlp_write_norm),
            constant_pattern=True,
        )

    # Reading the stream

    def queries_keys_values(
        self, stream: Stream, rotation: Rotation | None
    ) -> tuple[Heads, Heads, Heads]:
        """Project one stream for all heads. Keys and values that heads share are repeated for each of them.
        `rotation` is that of the stream's positions."""
        projected = self.qkv(self.attention_norm(stream))
        # (…, pos, head + 2 group, d_head)
        projected = projected.unflatten(-1, (-1, self.d_head))
        groups = (projected.shape[-2] - self.heads) // 2  # how many keys, and values, there are
        query, key, value = projected.split((self.heads, groups, groups), -2)
        query = self._normed_and_rotated(query, self.query_norm, rotation)
        key = self._normed_and_rotated(key, self.key_norm, rotation)
        return query, self.for_each_head(key), self.for_each_head(value)

    def side(
        self, streams: OwnStreams, side: Side, heads: Sequence[int], rotation: Rotation | None
    ) -> Heads:
        """Project one side (queries, keys or values) of some heads, each from a stream of its own."""
        normed = self.attention_norm(streams)
        projected = self.project_side(normed, side, heads)
        if side == "value":
            return projected
        norm = self.query_norm if side == "query" else self.key_norm
        return self._normed_and_rotated(projected, norm, rotation)

    def project_side(self, normed: OwnStreams, side: Side, heads: Sequence[int]) -> Heads:
        """Multiply streams that the norm has already scaled by the heads' matrices W_Q, W_K or W_V, and add the
        bias. Heads that share a key and value share the matrix."""
        layer = {"query": self.q, "key": self.k, "value": self.v}[side]
        matrix = matrix_of(layer).T.unflatten(0, (-1, self.d_head))  # (group, d_head, d_model)
        sharing = self.heads // len(matrix)  # heads that share one key or value
        groups = [head // sharing for head in heads]
        projected = torch.einsum("...hpm,hdm->...phd", normed, matrix[groups])  # m: d_model
        if layer.bias is None:
            return projected
        return projected + layer.bias.unflatten(0, (-1, self.d_head))[groups]

    def side_by_part(
        self,
        parts: Float[torch.Tensor, "part d_model"],
        stream: Float[torch.Tensor, "1 d_model"],
        side: Literal["query", "key"],
        head: int,
        rotation: Rotation | None,
    ) -> Float[torch.Tensor, "part d_head"]:
        """Split one head's query or key at one position among parts of the stream there.

        The parts add up to the stream, and what is returned adds up to the query: the scale of every norm is
        held at the value that it has for the whole stream. The biases of norm and projection are added to the
        last part. `rotation` is that of the position.
        """

        def project(
            normed: Float[torch.Tensor, "part d_model"],
        ) -> Float[torch.Tensor, "part d_head"]:
            return self.project_side(normed[:, None, None], side, [head])[:, 0, 0]

        nothing = torch.zeros_like(stream)
        # `project_side` adds the projection's bias to every part; the last part alone is to have it.
        projected = project(self.attention_norm.linear(parts, stream)) - project(nothing)
        norm_bias = self.attention_norm.bias
        projected[-1] += project(nothing if norm_bias is None else norm_bias[None])[0]
        norm = self.query_norm if side == "query" else self.key_norm
        if norm is not None:
            projected = norm.linear(projected, projected.sum(0, keepdim=True))
        if rotation is None:
            return projected
        return self.rotate(projected[:, None, None], rotation)[:, 0, 0]

    def for_each_head(self, groups: Groups) -> Heads:
        """Repeat keys or values for every head that reads them."""
        sharing = self.heads // groups.shape[-2]
        return groups if sharing == 1 else groups.repeat_interleave(sharing, -2)

    def _normed_and_rotated(
        self, groups: Groups, norm: Norm | None, rotation: Rotation | None
    ) -> Groups:
        normed = groups if norm is None else norm(groups)
        return normed if rotation is None else self.rotate(normed, rotation)

    def rotate(self, groups: Groups, rotation: Rotation) -> Groups:
        """Turn queries or keys by the angles of their positions."""
        return rotated(groups, rotation, adjacent=self.adjacent)

    # Attention

    def pattern(self, products: Scores, mask: Mask) -> Scores:
        """Attention weights from the products q·k, which are overwritten."""
        return self.weights(self.scores(products, mask))

    def scores(self, products: Scores, mask: Mask) -> Scores:
        """What the softmax sees, from the products q·k, which are overwritten."""
        scores = products.mul_(self.scale)
        if self.cap is not None:
            # Not in place at the end: the gradient of tanh needs its output.
            scores = scores.div_(self.cap).tanh_().mul(self.cap)
        return scores.masked_fill_(mask, -torch.inf)

    def weights(self, scores: Scores) -> Scores:
        """Attention weights from the scores: softmax and, in a sparse model, the gate."""
        weights = scores.softmax(-1)
        if self.is_gated:
            weights = gated(scores, weights)
        return weights.detach() if self.constant_pattern else weights

    def attend(
        self,
        query: Float[torch.Tensor, "*#batch query head d_head"],
        key: Float[torch.Tensor, "*#batch key head d_head"],
        value: Float[torch.Tensor, "*#batch key head d_head"],
        mask: Mask,
    ) -> tuple[
        Float[torch.Tensor, "*#batch head query key"],
        Float[torch.Tensor, "*#batch query head d_head"],
    ]:
        """The attention weights of some heads, and what the heads read by them."""
        pattern = self.pattern(torch.einsum("...qhd,...khd->...hqk", query, key), mask)
        return pattern, torch.einsum("...hqk,...khd->...qhd", pattern, value)

    # Writing to the stream

    def write(self, z: Heads) -> Stream:
        """What the heads' outputs add to the stream, bias included."""
        written = self.o(z.flatten(-2))
        if self.attention_write_norm is None:
            return written
        return self.attention_write_norm(written)

    def head_writes(self, z: Heads) -> HeadWrites:
        """What each head adds to the stream. All heads and the bias together make `write`. Where the model
        norms the write, each head's part is scaled as the whole write of this run is."""
        matrices = matrix_of(self.o).unflatten(0, (self.heads, -1))  # (head, d_head, d_model)
        parts = torch.einsum("...hd,hdm->...hm", z, matrices)  # (…, pos, head, d_model)
        if self.attention_write_norm is None:
            return parts
        whole = self.o(z.flatten(-2))
        return self.attention_write_norm.linear(parts, whole[..., None, :])

    def mlp_write(self, stream: Stream) -> Stream:
        """What the MLP adds to the stream, from the stream that it reads."""
        return self.mlp_added(self.mlp_output(stream))

    def mlp_output(self, stream: Stream) -> Stream:
        """The MLP's output, from the stream that it reads, before the norm that some models put after it."""
        return self.mlp(self.mlp_input(stream))

    def mlp_added(self, output: Stream) -> Stream:
        """What is added to the stream where the MLP's output is this."""
        return output if self.mlp_write_norm is None else self.mlp_write_norm(output)

    def neurons(self, stream: Stream) -> Neurons:
        """The activation of every neuron of the MLP, from the stream that it reads."""
        return self.mlp.neurons(self.mlp_input(stream))

    def mlp_input(self, stream: Stream) -> Stream:
        """What the MLP's matrices are multiplied with, from the stream that the MLP reads."""
        return self.mlp_norm(stream)

    def mlp_input_by_part(
        self, parts: Float[torch.Tensor, "*batch pos part d_model"], stream: Stream
    ) -> Float[torch.Tensor, "*batch pos part d_model"]:
        """Each part's share of `mlp_input`, without the norm's bias. The parts add up to the stream."""
        return self.mlp_norm.linear(parts, stream[..., None, :])

    @property
    def neuron_writes(self) -> Float[torch.Tensor, "neuron d_model"]:
        """What each neuron writes for an activation of one. All neurons and the bias together make the MLP's
        write, before its norm."""
        return matrix_of(self.mlp.outer)


def matrix_of(layer: Any) -> Float[torch.Tensor, "d_in d_out"]:
    """The matrix of a linear layer. GPT-2's Conv1D stores it this way round, others transposed."""
    return layer.weight if type(layer).__name__ == "Conv1D" else layer.weight.T


def causal_mask(queries: Int[torch.Tensor, " query"], length: int, window: int | None) -> Mask:
    """True where a query must not read a key: at later keys, and at those before its window."""
    query = queries[:, None]
    key = torch.arange(length, device=queries.device)
    later = key > query  # (query, key)
    if window is None:
        return later
    before_window = key <= query - window
    return later | before_window


def rotated(heads: Groups, rotation: Rotation, *, adjacent: bool = False) -> Groups:
    """Turn the first `d_rotary` numbers of each head by its position's angle: the first half against the
    second, or `adjacent` numbers against each other."""
    cos, sin = rotation[:, :, None]  # each (pos, 1, d_rotary): the same for every head
    turned = heads[..., : cos.shape[-1]]
    kept = heads[..., cos.shape[-1] :]
    if adjacent:
        across = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        left, right = turned.chunk(2, dim=-1)
        across = torch.cat((-right, left), dim=-1)
    turned = turned * cos + across * sin
    if kept.shape[-1] == 0:
        return turned
    return torch.cat((turned, kept), dim=-1)
