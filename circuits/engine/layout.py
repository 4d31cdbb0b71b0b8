"""Reading a model as blocks that the fast path can carry.

1. The bridge gives every architecture the same part names: `ln1`, `attn.q/k/v/o`, `ln2`, `mlp.in/gate/out`,
   and `ln1_post`, `ln2_post`, `attn.q_norm`, `attn.k_norm` where they exist. The configuration and the
   attention module say the rest: scale, soft caps, windows, which rotation a layer has.
2. What is assumed beyond that (one residual stream, norms in front of attention and MLP, a causal softmax)
   may fail. It shows in the numbers: `prepare` compares a whole run with the model's own, and takes the plain
   path where they differ. docs/models.md lists which architectures take which path.
3. `Parts` are a block's parts on any stream: what a reader makes of what it sees. `FastParts` computes them
   here; `plain.PlainParts` asks the model's own forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch.nn import functional as F

from circuits.components import Side
from circuits.engine.block import Block, Heads, Hidden, Mlp, Norm, Rotation, Stream, hidden_keys
from circuits.models.model import Model

Act = Callable[[torch.Tensor], torch.Tensor]
Positions = Int[torch.Tensor, " pos"]
Queries = Int[torch.Tensor, " query"]
QueryHeads = Float[torch.Tensor, "*#batch query head d_head"]
KeyHeads = Float[torch.Tensor, "*#batch key head d_head"]
Patterns = Float[torch.Tensor, "*#batch head query key"]
HeadWrites = Float[torch.Tensor, "*batch pos head d_model"]
OwnStreams = Float[torch.Tensor, "*batch head pos d_model"]
_TANH_GELU = ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")  # one function under three names


@dataclass(frozen=True, slots=True)
class Layout:
    """A model that the fast path knows."""

    blocks: tuple[Block, ...]
    parallel: bool  # attention and MLP read the same stream
    embed: Callable[[torch.Tensor], Stream]  # tokens to the input of layer 0
    final_norm: Norm
    unembed: Float[torch.Tensor, "vocab d_model"]
    unembed_bias: Float[torch.Tensor, " vocab"] | None
    logit_cap: float | None

    @property
    def heads(self) -> int:
        return self.blocks[0].heads

    @property
    def splits_heads(self) -> bool:
        """Whether what a head writes reaches the MLP of its own block, and by a product alone."""
        return not self.parallel and all(block.attention_norm is None for block in self.blocks)

    def rotations(self, stream: Stream, start: int) -> tuple[Rotation | None, ...]:
        """For every block, the rotation of the positions from `start` on."""
        different = {block.rotation for block in self.blocks}
        made = {turn: None if turn is None else turn(stream)[:, start:] for turn in different}
        return tuple(made[block.rotation] for block in self.blocks)

    def hidden(self, stream: Stream, start: int) -> tuple[Hidden, ...]:
        """For every block, what the queries from `start` on must not read."""
        length, windows = stream.shape[-2], {block.window for block in self.blocks}
        queries = torch.arange(start, length, device=stream.device)
        made = {window: hidden_keys(queries, length, window) for window in windows}
        return tuple(made[block.window] for block in self.blocks)

    def logits(self, stream: Float[torch.Tensor, "*batch d_model"]) -> Float[torch.Tensor, "*batch vocab"]:
        """The whole vocabulary's logits, from the stream above the last block."""
        return self.output(self.final_norm(stream))

    def output(self, normed: Float[torch.Tensor, "*batch d_model"]) -> Float[torch.Tensor, "*batch vocab"]:
        """The whole vocabulary's logits, from behind the final norm."""
        return self._capped(F.linear(normed, self.unembed, self.unembed_bias))

    def logits_of(
        self, stream: Float[torch.Tensor, "input row d_model"], wanted: Int[torch.Tensor, "input token"]
    ) -> Float[torch.Tensor, "input row token"]:
        """The logits of some tokens of each input."""
        logits = torch.einsum("ird,ivd->irv", self.final_norm(stream), self.unembed[wanted])
        bias = self.unembed_bias
        return self._capped(logits if bias is None else logits + bias[wanted][:, None])

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self.logit_cap is None else (logits / self.logit_cap).tanh() * self.logit_cap


def read_layout(model: Model) -> Layout:
    """The model's blocks as functions; an AttributeError or TypeError where a part is missing."""
    bridge: Any = model.bridge
    config: Any = bridge.original_model.config.get_text_config()
    final, rotations = _raw(bridge.unembed), _rotations(bridge, config)
    return Layout(
        blocks=tuple(
            _block(model, block, rotation, _window(config, layer))
            for layer, (block, rotation) in enumerate(zip(bridge.blocks, rotations, strict=True))
        ),
        parallel="Parallel" in type(bridge.blocks[0]).__name__,
        embed=_embedding(bridge),
        final_norm=Norm(_raw(bridge.ln_final)),
        unembed=final.weight,
        unembed_bias=final.bias,
        logit_cap=getattr(config, "final_logit_softcapping", None),
    )


def _raw(component: Any) -> Any:
    """The module behind the bridge's hooks."""
    while getattr(component, "original_component", None) is not None:
        component = component.original_component
    return component


def _block(
    model: Model, block: Any, rotation: Callable[[Stream], Rotation] | None, window: int | None
) -> Block:
    attention, raw = block.attn, _raw(block.attn)
    q, k, v, o = (_raw(part) for part in (attention.q, attention.k, attention.v, attention.o))
    return Block(
        heads=model.n_heads,
        d_head=model.d_head,
        norm1=Norm(_raw(block.ln1)),
        norm2=Norm(_raw(getattr(block, "ln2", block.ln1))),  # parallel blocks may share one norm
        q=q,
        k=k,
        v=v,
        qkv=_projections(raw, q, k, v),
        o=o,
        mlp=_mlp(block.mlp),
        scale=float(getattr(raw, "scaling", None) or model.d_head**-0.5),
        query_norm=_head_norm(attention, "q_norm", model.d_head),
        key_norm=_head_norm(attention, "k_norm", model.d_head),
        attention_norm=_optional_norm(block, "ln1_post"),
        mlp_norm=_optional_norm(block, "ln2_post"),
        rotation=rotation,
        adjacent=hasattr(raw, "embed_positions"),
        cap=getattr(raw, "attn_logit_softcapping", None),
        window=window,
        is_gated=model.gated,
    )


def _optional_norm(part: Any, name: str) -> Norm | None:
    norm = getattr(part, name, None)
    return None if norm is None else Norm(_raw(norm))


def _head_norm(attention: Any, name: str, d_head: int) -> Norm | None:
    norm = _optional_norm(attention, name)
    if norm is not None and norm.module.weight.shape != (d_head,):
        raise TypeError(f"{name} is not a norm of single heads")
    return norm


def _window(config: Any, layer: int) -> int | None:
    """How far back a layer reads: where the configuration has kinds of layers, only the sliding ones."""
    kinds = getattr(config, "layer_types", None)
    is_sliding = kinds is None or kinds[layer] == "sliding_attention"
    return getattr(config, "sliding_window", None) if is_sliding else None


def _projections(attention: Any, *parts: Any) -> Callable[[Stream], torch.Tensor]:
    """Queries, keys and values beside each other; in one product where the model keeps the three as parts of
    one matrix."""
    joint = getattr(attention, "c_attn", None)
    if joint is not None:
        storage = joint.weight.untyped_storage().data_ptr()
        if all(part.weight.untyped_storage().data_ptr() == storage for part in parts):
            return joint
    return lambda stream: torch.cat([part(stream) for part in parts], -1)


def _mlp(mlp: Any) -> Mlp:
    gate = getattr(mlp, "gate", None)
    inner, outer = _raw(getattr(mlp, "in")), _raw(mlp.out)
    return Mlp(inner, outer, _activation(_raw(mlp)), None if gate is None else _raw(gate))


def _activation(mlp: Any) -> Act:
    names = ("act", "act_fn", "activation_fn")
    act = next(getattr(mlp, name) for name in names if hasattr(mlp, name))
    return _tanh_gelu if type(act).__name__ in _TANH_GELU else act


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
    table = _raw(positions)
    offset = getattr(table, "offset", 0)  # OPT's first two rows are no positions

    def embed(tokens: torch.Tensor) -> Stream:
        return words(tokens) + table.weight[offset : offset + tokens.shape[-1]]

    return embed


def _rotations(bridge: Any, config: Any) -> list[Callable[[Stream], Rotation] | None]:
    """The rotation of every block. Blocks that turn alike share one function, so that it runs once."""
    rotary, blocks = getattr(bridge, "rotary_emb", None), bridge.blocks
    if rotary is None:
        tables = [getattr(_raw(block.attn), "embed_positions", None) for block in blocks]
        return [None if table is None else _adjacent_rotation(table) for table in tables]
    kinds = config.layer_types if hasattr(_raw(rotary), "layer_types") else [None] * len(blocks)
    of_kind = {kind: _rotation(_raw(rotary), kind) for kind in kinds}
    return [of_kind[kind] for kind in kinds]


def _rotation(rotary: Any, kind: str | None) -> Callable[[Stream], Rotation]:
    more = {} if kind is None else {"layer_type": kind}

    def rotation(stream: Stream) -> Rotation:
        positions = torch.arange(stream.shape[-2], device=stream.device)[None]
        cos, sin = rotary(stream[:1], positions, **more)
        return torch.stack((cos[0], sin[0]))

    return rotation


def _adjacent_rotation(table: torch.Tensor) -> Callable[[Stream], Rotation]:
    """GPT-J keeps a table of sines beside cosines, one for each pair of neighbours."""

    def rotation(stream: Stream) -> Rotation:
        sin, cos = table[: stream.shape[-2]].to(stream).repeat_interleave(2, -1).chunk(2, -1)
        return torch.stack((cos, sin))

    return rotation


@runtime_checkable
class Parts(Protocol):
    """What a reader makes of a stream, block by block."""

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP read the same stream."""
        ...

    def project(self, layer: int, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values of all heads from a stream at these positions."""
        ...

    def own_side(
        self, layer: int, side: Side, streams: OwnStreams, *, positions: Positions, heads: Sequence[int]
    ) -> Heads:
        """Queries, keys or values of some heads, each from a stream of its own."""
        ...

    def attend(
        self,
        layer: int,
        query: QueryHeads,
        key: KeyHeads,
        value: KeyHeads,
        *,
        queries: Queries,
        heads: Sequence[int],
    ) -> tuple[Patterns, QueryHeads]:
        """The pattern of some heads at some queries, and what they read: from queries there, and keys and
        values everywhere."""
        ...

    def head_writes(self, layer: int, z: Heads) -> HeadWrites:
        """What each head adds to the stream, without the bias that no head owns."""
        ...

    def write(self, layer: int, z: Heads) -> Stream:
        """What all heads together add to the stream, bias included."""
        ...

    def mlp(self, layer: int, stream: Stream, positions: Positions) -> Stream:
        """What the MLP adds where it sees this stream."""
        ...


@dataclass(frozen=True)
class FastParts:
    """Computed from the layout."""

    layout: Layout
    rotations: tuple[Rotation | None, ...]  # of all positions, block by block
    hidden: tuple[Hidden, ...]

    @property
    def parallel(self) -> bool:
        return self.layout.parallel

    def project(self, layer: int, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        block, rotation = self.layout.blocks[layer], self.rotations[layer]
        return block.split(block.project(stream), None if rotation is None else rotation[:, positions])

    def own_side(
        self, layer: int, side: Side, streams: OwnStreams, *, positions: Positions, heads: Sequence[int]
    ) -> Heads:
        block, rotation = self.layout.blocks[layer], self.rotations[layer]
        return block.own_side(streams, side, heads, None if rotation is None else rotation[:, positions])

    def attend(
        self,
        layer: int,
        query: QueryHeads,
        key: KeyHeads,
        value: KeyHeads,
        *,
        queries: Queries,
        heads: Sequence[int],
    ) -> tuple[Patterns, QueryHeads]:
        block = self.layout.blocks[layer]
        products = torch.einsum("...qhd,...khd->...hqk", query, key)
        pattern = block.attend(block.scores(products, self.hidden[layer][queries]))
        return pattern, torch.einsum("...hqk,...khd->...qhd", pattern, value)

    def write(self, layer: int, z: Heads) -> Stream:
        return self.layout.blocks[layer].write(z.flatten(-2))

    def head_writes(self, layer: int, z: Heads) -> HeadWrites:
        return self.layout.blocks[layer].head_writes(z)

    def mlp(self, layer: int, stream: Stream, positions: Positions) -> Stream:
        return self.layout.blocks[layer].mlp_output(stream)
