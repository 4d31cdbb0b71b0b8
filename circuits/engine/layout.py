"""Reading a model as blocks that our own forward can run.

1. The bridge gives every architecture the same part names: `ln1`, `attn.q/k/v/o`, `ln2`, `mlp.in/gate/out`,
   and `ln1_post`, `ln2_post`, `attn.q_norm`, `attn.k_norm` where they exist. The configuration and the
   attention module say the rest: scale, soft caps, windows, and which rotation a layer has.
2. What is assumed beyond that (one residual stream, norms in front of attention and MLP, a causal softmax)
   may be wrong for a model. It shows in the numbers: `prepare` compares a whole run of ours with the model's
   own logits and uses the plain path where they differ. docs/models.md lists which architectures take which.
3. `PromptBlock` is a block together with the rotation and the mask of one prompt's positions.
   `plain.PlainBlock` answers the same calls by the model's own forward, where the layout is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch.nn import functional as F

from circuits.components import Side
from circuits.engine.block import (
    Block,
    Heads,
    HeadWrites,
    Mask,
    Mlp,
    Norm,
    OwnStreams,
    Rotation,
    Stream,
    causal_mask,
)
from circuits.models.model import Model

Activation = Callable[[torch.Tensor], torch.Tensor]
Positions = Int[torch.Tensor, " pos"]
Queries = Int[torch.Tensor, " query"]
QueryHeads = Float[torch.Tensor, "*#batch query head d_head"]
KeyHeads = Float[torch.Tensor, "*#batch key head d_head"]
Patterns = Float[torch.Tensor, "*#batch head query key"]
# One function under three names.
_TANH_GELU = ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")


@runtime_checkable
class AnyBlock(Protocol):
    """What one block makes of the streams that its readers see, on the positions of one prompt."""

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP read the same stream."""
        ...

    def project(self, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values of all heads, from one stream at these positions."""
        ...

    def side(
        self, streams: OwnStreams, side: Side, heads: Sequence[int], positions: Positions
    ) -> Heads:
        """Queries, keys or values of some heads, each from a stream of its own."""
        ...

    def attend(
        self,
        query: QueryHeads,
        key: KeyHeads,
        value: KeyHeads,
        *,
        queries: Queries,
        heads: Sequence[int],
    ) -> tuple[Patterns, QueryHeads]:
        """The attention weights of some heads at some queries, and what they read by them. Keys and values
        are those of all positions."""
        ...

    def write(self, z: Heads) -> Stream:
        """What all heads together add to the stream, bias included."""
        ...

    def head_writes(self, z: Heads) -> HeadWrites:
        """What each head adds to the stream, without the bias, which belongs to no head."""
        ...

    def mlp_write(self, stream: Stream, positions: Positions) -> Stream:
        """What the MLP adds where it sees this stream."""
        ...


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """A block of a known layout, with the rotation and the mask of a prompt's positions."""

    block: Block
    rotation: Rotation | None
    mask: Mask

    @property
    def length(self) -> int:
        """How many tokens the prompt has."""
        return len(self.mask)

    @property
    def parallel(self) -> bool:
        return self.block.parallel

    def project(self, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        return self.block.queries_keys_values(stream, self._rotation_at(positions))

    def side(
        self, streams: OwnStreams, side: Side, heads: Sequence[int], positions: Positions
    ) -> Heads:
        return self.block.side(streams, side, heads, self._rotation_at(positions))

    def attend(
        self,
        query: QueryHeads,
        key: KeyHeads,
        value: KeyHeads,
        *,
        queries: Queries,
        heads: Sequence[int],
    ) -> tuple[Patterns, QueryHeads]:
        return self.block.attend(query, key, value, self.mask[queries])

    def write(self, z: Heads) -> Stream:
        return self.block.write(z)

    def head_writes(self, z: Heads) -> HeadWrites:
        return self.block.head_writes(z)

    def mlp_write(self, stream: Stream, positions: Positions) -> Stream:
        return self.block.mlp_write(stream)

    def _rotation_at(self, positions: Positions) -> Rotation | None:
        return None if self.rotation is None else self.rotation[:, positions]


@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """A model whose blocks our own forward can run."""

    blocks: tuple[Block, ...]
    embed: Callable[[torch.Tensor], Stream]  # tokens to the stream at the input of layer 0
    final_norm: Norm
    unembed: Float[torch.Tensor, "vocab d_model"]
    unembed_bias: Float[torch.Tensor, " vocab"] | None
    logit_cap: float | None

    def __repr__(self) -> str:
        return f"Layout({len(self.blocks)} blocks of {self.heads} heads)"

    @property
    def heads(self) -> int:
        return self.blocks[0].heads

    @property
    def parallel(self) -> bool:
        return self.blocks[0].parallel

    @torch.inference_mode(False)  # gradients of a later pass may need the masks
    @torch.no_grad()
    def on_prompt(self, stream: Stream) -> tuple[PromptBlock, ...]:
        """The blocks with the rotations and masks of all positions of this stream. Blocks that are alike in
        this share one."""
        length = stream.shape[-2]
        queries = torch.arange(length, device=stream.device)
        rotations: dict[Any, Rotation | None] = {None: None}
        masks: dict[int | None, Mask] = {}  # window -> mask
        bound = []
        for block in self.blocks:
            if block.rotation is not None and block.rotation not in rotations:
                rotations[block.rotation] = block.rotation(stream)
            if block.window not in masks:
                masks[block.window] = causal_mask(queries, length, block.window)
            bound.append(PromptBlock(block, rotations[block.rotation], masks[block.window]))
        return tuple(bound)

    def linearised(self) -> Layout:
        """The model with norm scales and attention weights held constant for gradients."""
        return replace(
            self,
            blocks=tuple(block.linearised() for block in self.blocks),
            final_norm=replace(self.final_norm, frozen=True),
        )

    def logits(
        self, stream: Float[torch.Tensor, "*batch d_model"]
    ) -> Float[torch.Tensor, "*batch vocab"]:
        """The logits of the whole vocabulary, from the stream above the last block."""
        return self._capped(F.linear(self.final_norm(stream), self.unembed, self.unembed_bias))

    def logits_of(
        self,
        stream: Float[torch.Tensor, "input row d_model"],
        tokens: Int[torch.Tensor, "input token"],
    ) -> Float[torch.Tensor, "input row token"]:
        """The logits of some tokens, which may be others for each input."""
        logits = torch.einsum("ird,ivd->irv", self.final_norm(stream), self.unembed[tokens])
        if self.unembed_bias is not None:
            logits = logits + self.unembed_bias[tokens][:, None]
        return self._capped(logits)

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        if self.logit_cap is None:
            return logits
        return (logits / self.logit_cap).tanh() * self.logit_cap


def read_layout(model: Model) -> Layout:
    """The model's blocks as functions. Raises AttributeError or TypeError where a part is missing."""
    bridge: Any = model.bridge
    config: Any = bridge.original_model.config.get_text_config()
    rotations = _rotations(bridge, config)
    blocks = []
    for layer, block in enumerate(bridge.blocks):
        blocks.append(_block(model, block, rotations[layer], _window(config, layer)))
    unembed = _raw(bridge.unembed)
    return Layout(
        blocks=tuple(blocks),
        embed=_embedding(bridge),
        final_norm=Norm(_raw(bridge.ln_final)),
        unembed=unembed.weight,
        unembed_bias=unembed.bias,
        logit_cap=getattr(config, "final_logit_softcapping", None),
    )


def _raw(component: Any) -> Any:
    """The Hugging Face module inside the bridge's component."""
    while getattr(component, "original_component", None) is not None:
        component = component.original_component
    return component


def _projection(component: Any) -> Any:
    """The Hugging Face module of a projection. One with dropout inside, such as an adapter that is being
    trained, is left to the model's own forward, which runs in eval mode."""
    module = _raw(component)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout) and part.p > 0:
            raise TypeError(f"{type(module).__name__} has dropout inside")
    return module


def is_parallel(bridge: Any) -> bool:
    """Whether attention and MLP of a block read the same stream."""
    return "Parallel" in type(bridge.blocks[0]).__name__


def _block(
    model: Model, block: Any, rotation: Callable[[Stream], Rotation] | None, window: int | None
) -> Block:
    attention = block.attn
    raw = _raw(attention)
    q = _projection(attention.q)
    k = _projection(attention.k)
    v = _projection(attention.v)
    # Attention and MLP of a parallel block may share one norm.
    in_front_of_mlp = getattr(block, "ln2", block.ln1)
    return Block(
        heads=model.n_heads,
        d_head=model.d_head,
        attention_norm=Norm(_raw(block.ln1)),
        mlp_norm=Norm(_raw(in_front_of_mlp)),
        q=q,
        k=k,
        v=v,
        qkv=_joint_projection(raw, q, k, v),
        o=_projection(attention.o),
        mlp=_mlp(block.mlp),
        scale=float(getattr(raw, "scaling", None) or model.d_head**-0.5),
        parallel=is_parallel(model.bridge),
        query_norm=_head_norm(attention, "q_norm", model.d_head),
        key_norm=_head_norm(attention, "k_norm", model.d_head),
        attention_write_norm=_optional_norm(block, "ln1_post"),
        mlp_write_norm=_optional_norm(block, "ln2_post"),
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
    if kinds is not None and kinds[layer] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None)


def _joint_projection(attention: Any, *parts: Any) -> Callable[[Stream], torch.Tensor]:
    """The function that gives queries, keys and values, concatenated. Where the three matrices are parts of one
    in memory (GPT-2's `c_attn`), it is one product."""
    joint = getattr(attention, "c_attn", None)
    if joint is not None:
        storage = joint.weight.untyped_storage().data_ptr()
        if all(part.weight.untyped_storage().data_ptr() == storage for part in parts):
            return joint
    return lambda stream: torch.cat([part(stream) for part in parts], -1)


def _mlp(mlp: Any) -> Mlp:
    gate = getattr(mlp, "gate", None)
    return Mlp(
        inner=_projection(getattr(mlp, "in")),
        outer=_projection(mlp.out),
        act=_activation(_raw(mlp)),
        gate=None if gate is None else _projection(gate),
    )


def _activation(mlp: Any) -> Activation:
    for name in ("act", "act_fn", "activation_fn"):
        if hasattr(mlp, name):
            act = getattr(mlp, name)
            return _tanh_gelu if type(act).__name__ in _TANH_GELU else act
    raise AttributeError(f"{type(mlp).__name__} has no activation function of a known name")


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    """GPT-2's x · (1 + tanh u) / 2 = x · σ(2u), u = √(2/π) (x + 0.044715 x³). On a CPU σ takes a quarter of
    tanh's time."""
    if x.device.type != "cpu" or torch.is_grad_enabled():
        return F.gelu(x, approximate="tanh")
    scale = 2 * math.sqrt(2 / math.pi)
    # 2u = x (scale + 0.044715 · scale · x²), in place but for the first step.
    twice_u = torch.addcmul(x.new_tensor(scale), x, x, value=0.044715 * scale).mul_(x)
    return twice_u.sigmoid_().mul_(x)


def _embedding(bridge: Any) -> Callable[[torch.Tensor], Stream]:
    words = _raw(bridge.embed)
    positions = getattr(bridge, "pos_embed", None)
    if positions is None:
        return words
    table = _raw(positions)
    offset = getattr(table, "offset", 0)  # OPT's first two rows are no positions

    def embed(tokens: torch.Tensor) -> Stream:
        return words(tokens) + table.weight[offset : offset + tokens.shape[-1]]

    return embed


def _rotations(bridge: Any, config: Any) -> list[Callable[[Stream], Rotation] | None]:
    """The rotation of every block. Blocks that turn alike share one function, so that it runs once."""
    if getattr(bridge, "rotary_emb", None) is None:
        tables = [getattr(_raw(block.attn), "embed_positions", None) for block in bridge.blocks]
        return [None if table is None else _adjacent_rotation(table) for table in tables]
    rotary = _raw(bridge.rotary_emb)
    if not hasattr(rotary, "layer_types"):
        return [_rotation(rotary, None)] * len(bridge.blocks)
    of_kind = {kind: _rotation(rotary, kind) for kind in config.layer_types}
    return [of_kind[kind] for kind in config.layer_types]


def _rotation(rotary: Any, kind: str | None) -> Callable[[Stream], Rotation]:
    """The rotation of blocks of one kind; None where all blocks turn alike."""
    more = {} if kind is None else {"layer_type": kind}

    def rotation(stream: Stream) -> Rotation:
        positions = torch.arange(stream.shape[-2], device=stream.device)[None]
        cos, sin = rotary(stream[:1], positions, **more)  # each (1, pos, d_rotary)
        return torch.stack((cos[0], sin[0]))

    return rotation


def _adjacent_rotation(table: torch.Tensor) -> Callable[[Stream], Rotation]:
    """The rotation of GPT-J, whose table (pos, 2 · pair) has the sines of all pairs of neighbours, then their
    cosines."""

    def rotation(stream: Stream) -> Rotation:
        of_pairs = table[: stream.shape[-2]].to(stream)  # (pos, sines and cosines)
        sin, cos = of_pairs.repeat_interleave(2, -1).chunk(2, -1)
        return torch.stack((cos, sin))

    return rotation
