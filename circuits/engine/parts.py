"""The parts of a block on any stream, from either path: what readers make of what they see.

`FastParts` computes them from the layout. `PlainParts` asks the model's own forward: it sets a stream, or
queries, keys and values, at a hook, and reads what comes of them. So it need not know how the block is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int

from circuits.components import SIDES, Side
from circuits.engine.block import Heads, Hidden, Rotation, Stream
from circuits.engine.layout import Layout
from circuits.errors import ModelError
from circuits.models.model import Model

Positions = Int[torch.Tensor, " pos"]
Queries = Int[torch.Tensor, " query"]
QueryHeads = Float[torch.Tensor, "*#batch query head d_head"]
KeyHeads = Float[torch.Tensor, "*#batch key head d_head"]
Patterns = Float[torch.Tensor, "*#batch head query key"]
HeadWrites = Float[torch.Tensor, "*batch pos head d_model"]
OwnStreams = Float[torch.Tensor, "*batch head pos d_model"]


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


@dataclass(frozen=True)
class PlainParts:
    """Asked of the model's own forward, a row of its batch for each stream."""

    model: Model
    length: int
    budget: int

    @property
    def parallel(self) -> bool:
        return "Parallel" in type(self.model.bridge.blocks[0]).__name__

    def project(self, layer: int, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        batch, flat = stream.shape[:-2], self._everywhere(stream, positions)
        names = [f"blocks.{layer}.attn.hook_{side}" for side in "qkv"]
        sides = self._forward({f"blocks.{layer}.hook_resid_pre": flat}, names)
        q, k, v = (side[:, positions].unflatten(0, batch) for side in sides)
        group = self.model.n_heads // k.shape[-2]
        return q, k.repeat_interleave(group, -2), v.repeat_interleave(group, -2)

    def own_side(
        self, layer: int, side: Side, streams: OwnStreams, *, positions: Positions, heads: Sequence[int]
    ) -> Heads:
        projected = self.project(layer, streams, positions)[SIDES.index(side)]
        return torch.stack([projected[..., n, :, head, :] for n, head in enumerate(heads)], -2)

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
        """Heads that share their keys and values take turns: in row g of each input stands the g-th of every
        group."""
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        group = self.model.n_heads // self.model.n_key_value_heads
        wanted = torch.tensor(heads, device=query.device)
        turn, shared = wanted % group, wanted // group
        own, *read = (side.expand(*batch, *side.shape[-3:]).flatten(0, -4) for side in (query, key, value))
        rows, width = len(own), query.shape[-1]
        q = own.new_zeros(rows, group, self.length, self.model.n_heads, width)
        q[:, turn[:, None], queries, wanted[:, None]] = rearrange(own, "b q h d -> b h q d")
        sides = [own.new_zeros(rows, group, self.length, self.model.n_key_value_heads, width) for _ in read]
        for side, part in zip(sides, read, strict=True):
            side[:, turn, :, shared] = rearrange(part, "b k h d -> h b k d")
        names = [f"blocks.{layer}.attn.hook_{side}" for side in "qkv"]
        edits = dict(zip(names, (side.flatten(0, 1) for side in (q, *sides)), strict=True))
        got = self._forward(edits, [f"blocks.{layer}.attn.hook_{kind}" for kind in ("pattern", "z")])
        pattern, z = (part.unflatten(0, (rows, group)) for part in got)
        z = z if z.ndim == 5 else z.unflatten(-1, (self.model.n_heads, -1))
        z = rearrange(z[:, turn, :, wanted], "h b q d -> b q h d")[:, queries]
        return pattern[:, turn, wanted][:, :, queries].unflatten(0, batch), z.unflatten(0, batch)

    def head_writes(self, layer: int, z: Heads) -> HeadWrites:
        """Each head's alone, less what the projection adds when all of them are silent."""
        heads, silent = self.model.n_heads, torch.zeros_like(z[:1, ..., :1, :, :])
        alone = repeat(z, "... p h d -> ... g p h d", g=heads) * torch.eye(heads).to(z)[:, None, :, None]
        written = self.write(layer, alone) - self.write(layer, silent)[..., None, :, :]
        return written.transpose(-2, -3)

    def write(self, layer: int, z: Heads) -> Stream:
        positions = torch.arange(z.shape[-3], device=z.device)
        whole = self._everywhere(z.flatten(-2), positions)
        (written,) = self._forward({f"blocks.{layer}.attn.hook_z": whole}, [f"blocks.{layer}.hook_attn_out"])
        return written[:, positions].unflatten(0, z.shape[:-3])

    def mlp(self, layer: int, stream: Stream, positions: Positions) -> Stream:
        if not self.model.has_hook(norm := f"blocks.{layer}.ln2.hook_in"):
            alone = f"the MLPs of {self.model.name} have no norm of their own"
            raise ModelError(f"{alone}, so what they read cannot be changed alone on the plain path")
        edits = {norm: self._everywhere(stream, positions)}
        (written,) = self._forward(edits, [f"blocks.{layer}.hook_mlp_out"])
        return written[:, positions].unflatten(0, stream.shape[:-2])

    def _everywhere(self, stream: Stream, positions: Positions) -> Float[torch.Tensor, "row length width"]:
        """One row a stream, zeros at the positions that are not given."""
        flat = stream.flatten(0, -3)
        whole = flat.new_zeros(len(flat), self.length, stream.shape[-1])
        whole[:, positions] = flat
        return whole

    def _forward(self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]) -> list[torch.Tensor]:
        """What comes out at the wanted hooks when these values are set at others, in chunks of the budget."""
        rows = len(next(iter(edits.values())))
        numbers = self.length * (
            16 * self.model.d_model + 3 * self.model.n_heads * self.length + self.model.vocab_size
        )
        step = max(1, self.budget // (4 * numbers))
        chunks = [
            self._chunk({n: v[start : start + step] for n, v in edits.items()}, wanted)
            for start in range(0, rows, step)
        ]
        return [torch.cat(parts) for parts in zip(*chunks, strict=True)]

    def _chunk(self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]) -> list[torch.Tensor]:
        caught: dict[str, torch.Tensor] = {}

        def put(value: torch.Tensor) -> Any:
            return lambda tensor, hook: value.to(tensor).view(tensor.shape)

        def catch(name: str) -> Any:
            return name, lambda tensor, hook: caught.update({name: tensor.detach().clone()})

        rows = len(next(iter(edits.values())))
        tokens = torch.zeros(rows, self.length, dtype=torch.long, device=self.model.device)
        hooks = [(name, put(value)) for name, value in edits.items()]
        with self.model.hooked([*hooks, *map(catch, wanted)]):
            self.model.forward(tokens)
        return [caught[name] for name in wanted]
