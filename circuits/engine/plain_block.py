"""One block of any model, computed by the model's own forward.

A stream, or queries, keys and values, are set at a hook of the block, and what the block makes of them is read
at another. So nothing need be known of how the block is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float

from circuits.components import SIDES, Side
from circuits.engine.block import Heads, HeadWrites, OwnStreams, Stream
from circuits.engine.layout import (
    KeyHeads,
    Patterns,
    Positions,
    Queries,
    QueryHeads,
    is_parallel,
)
from circuits.engine.memory import streams_at_once
from circuits.engine.plain import Hook, copy_bytes
from circuits.errors import ModelError
from circuits.models.model import Model


def blocks_of(model: Model, length: int, budget: int) -> tuple[PlainBlock, ...]:
    """The blocks of a model on a prompt of this length, computed by its own forward."""
    return tuple(PlainBlock(model, layer, length, budget) for layer in range(model.n_layers))


@dataclass(frozen=True)
class PlainBlock:
    """One block, computed by the model's own forward: one copy of the prompt for each stream."""

    model: Model
    layer: int
    length: int
    budget: int

    @property
    def parallel(self) -> bool:
        return is_parallel(self.model.bridge)

    def project(self, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        """Set the stream at the block's input, and read queries, keys and values at their hooks."""
        names = [
            self._hook("attn.hook_q"),
            self._hook("attn.hook_k"),
            self._hook("attn.hook_v"),
        ]
        edits = {self._hook("hook_resid_pre"): self._on_prompt(stream, positions)}
        sides = []
        for side in self._forward(edits, names):
            own = side[:, positions].unflatten(0, stream.shape[:-2])
            sides.append(own.repeat_interleave(self.model.n_heads // own.shape[-2], -2))
        query, key, value = sides
        return query, key, value

    def side(
        self, streams: OwnStreams, side: Side, heads: Sequence[int], positions: Positions
    ) -> Heads:
        projected = self.project(streams, positions)[SIDES.index(side)]
        own = [projected[..., number, :, head, :] for number, head in enumerate(heads)]
        return torch.stack(own, -2)

    def attend(
        self,
        query: QueryHeads,
        key: KeyHeads,
        value: KeyHeads,
        *,
        queries: Queries,
        heads: Sequence[int],
    ) -> tuple[Patterns, QueryHeads]:
        """Set queries, keys and values at their hooks. Heads that share a key and value cannot be set in one
        copy of the prompt, so each stream has as many copies as heads share: copy g holds the g-th head of
        every group."""
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        groups = self.model.n_key_value_heads
        sharing = self.model.n_heads // groups
        wanted = torch.tensor(heads, device=query.device)
        group = wanted // sharing
        copy = wanted % sharing

        def flat(side: torch.Tensor) -> torch.Tensor:
            """(stream, pos, head, d_head)"""
            return side.expand(*batch, *side.shape[-3:]).flatten(0, -4)

        own = flat(query)
        streams, width = len(own), query.shape[-1]
        all_queries = own.new_zeros(streams, sharing, self.length, self.model.n_heads, width)
        by_head = rearrange(own, "s q h d -> s h q d")
        all_queries[:, copy[:, None], queries, wanted[:, None]] = by_head
        edits = {self._hook("attn.hook_q"): all_queries.flatten(0, 1)}
        for name, side in (("attn.hook_k", key), ("attn.hook_v", value)):
            shared = own.new_zeros(streams, sharing, self.length, groups, width)
            shared[:, copy, :, group] = rearrange(flat(side), "s k h d -> h s k d")
            edits[self._hook(name)] = shared.flatten(0, 1)
        pattern, z = self._forward(
            edits, [self._hook("attn.hook_pattern"), self._hook("attn.hook_z")]
        )
        pattern = pattern.unflatten(0, (streams, sharing))[:, copy, wanted]
        pattern = pattern[:, :, queries]  # (stream, head, query, key)
        z = z.reshape(streams, sharing, self.length, self.model.n_heads, width)
        z = rearrange(z[:, copy, :, wanted], "h s q d -> s q h d")[:, queries]
        return pattern.unflatten(0, batch), z.unflatten(0, batch)

    def write(self, z: Heads) -> Stream:
        positions = torch.arange(z.shape[-3], device=z.device)
        edits = {self._hook("attn.hook_z"): self._on_prompt(z.flatten(-2), positions)}
        (written,) = self._forward(edits, [self._hook("hook_attn_out")])
        return written[:, positions].unflatten(0, z.shape[:-3])

    def head_writes(self, z: Heads) -> HeadWrites:
        """The write of each head alone, less the write when all heads are silent."""
        heads = self.model.n_heads
        one_head = torch.eye(heads).to(z)[:, None, :, None]  # (head alone, 1, head, 1)
        alone = repeat(z, "... p h d -> ... a p h d", a=heads) * one_head
        silent = self.write(torch.zeros_like(z[:1]))
        written = self.write(alone) - silent[..., None, :, :]  # (…, head alone, pos, d_model)
        return written.transpose(-2, -3)

    def mlp_write(self, stream: Stream, positions: Positions) -> Stream:
        norm = self._hook("ln2.hook_in")
        if not self.model.has_hook(norm):
            why = f"the MLPs of {self.model.name} have no norm of their own"
            raise ModelError(
                f"{why}, so what they read cannot be changed alone on the plain path"
            )
        edits = {norm: self._on_prompt(stream, positions)}
        (written,) = self._forward(edits, [self._hook("hook_mlp_out")])
        return written[:, positions].unflatten(0, stream.shape[:-2])

    def _hook(self, name: str) -> str:
        return f"blocks.{self.layer}.{name}"

    def _on_prompt(
        self, stream: Stream, positions: Positions
    ) -> Float[torch.Tensor, "copy length width"]:
        """Each stream as a whole prompt, with zeros at the positions that are not given."""
        flat = stream.flatten(0, -3)
        whole = flat.new_zeros(len(flat), self.length, stream.shape[-1])
        whole[:, positions] = flat
        return whole

    def _forward(
        self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]
    ) -> list[torch.Tensor]:
        """What stands at the wanted hooks when these values are set at others."""
        copies = len(next(iter(edits.values())))
        step = streams_at_once(self.budget, copy_bytes(self.model, self.length))
        parts: list[list[torch.Tensor]] = [[] for _ in wanted]
        for first in range(0, copies, step):
            some = {name: value[first : first + step] for name, value in edits.items()}
            for part, caught in zip(parts, self._forward_some(some, wanted), strict=True):
                part.append(caught)
        return [torch.cat(part) for part in parts]

    def _forward_some(
        self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]
    ) -> list[torch.Tensor]:
        """What `_forward` returns, for copies that run together."""
        # What the tokens are does not matter: all that is read follows from the values that are set.
        caught: dict[str, torch.Tensor] = {}

        def put(tensor: torch.Tensor, hook: Any, *, value: torch.Tensor) -> torch.Tensor:
            return value.to(tensor).view(tensor.shape)

        def catch(tensor: torch.Tensor, hook: Any, *, name: str) -> None:
            caught[name] = tensor.detach().clone()

        hooks: list[Hook] = []
        hooks += [(name, partial(put, value=value)) for name, value in edits.items()]
        hooks += [(name, partial(catch, name=name)) for name in wanted]
        copies = len(next(iter(edits.values())))
        tokens = torch.zeros(copies, self.length, dtype=torch.long, device=self.model.device)
        with self.model.hooked(hooks):
            self.model.forward(tokens)
        return [caught[name] for name in wanted]
