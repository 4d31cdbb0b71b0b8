"""Runs of whole prompts from their embeddings, of which everything is kept: the base of all rows."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float

from circuits.engine.cache import Cache, Layer, LayersOnCPU
from circuits.engine.forward import (
    PlaceHeads,
    Places,
    Queries,
    RowForward,
    RowHeads,
    Streams,
)
from circuits.engine.layout import Layout, PromptBlock
from circuits.engine.memory import BUDGET
from circuits.engine.rows import Row


class KeptRun(RowForward):
    """A run of which everything is kept. It may share the positions before `start` with a base run that has
    the same tokens there."""

    def __init__(
        self,
        blocks: tuple[PromptBlock, ...],
        base: Cache | None,
        *,
        start: int,
        budget: int,
        offload: bool,
    ) -> None:
        read = blocks[0].length - start
        super().__init__(blocks, base, [Row(())], start=start, read=read, budget=budget)
        self.active = [0]
        self.layers: list[Layer] | LayersOnCPU = LayersOnCPU() if offload else []

    def cache(self, embedded: Float[torch.Tensor, "input pos d_model"]) -> Cache:
        """Run the prompts from their embeddings and return what was kept."""
        final = self.run(embedded[:, None, self.start :])[:, 0]
        if self.base is not None:
            final = torch.cat((self.base.final[:, : self.start], final), 1)
        layers = tuple(self.layers) if isinstance(self.layers, list) else self.layers
        return Cache(layers, final)

    def step(self, layer: int, stream: Streams) -> Streams:
        """Take the prompts through one block and keep it: the methods below note what passes through them."""
        above = super().step(layer, stream)
        kept = Layer(
            pre=self._whole(layer, "pre", stream[:, 0]),
            query=self._by_head(layer, "query", self.query),
            key=self._by_head(layer, "key", self.key),
            value=self._by_head(layer, "value", self.value),
            z=self._whole(layer, "z", self.z[:, 0]),
            attention=self._whole(layer, "attention", self.written),
            mlp=self._whole(layer, "mlp", self.added),
            block=self.blocks[layer],
        )
        if isinstance(self.layers, LayersOnCPU):
            self.layers.append(kept, stream.device)
        else:
            self.layers.append(kept)
        return above

    def _attend(self, layer: int, query: Queries, key: RowHeads, value: RowHeads) -> Queries:
        self.query, self.key, self.value = query, key, value
        self.z = super()._attend(layer, query, key, value)
        return self.z

    def attention_write(self, layer: int, z: PlaceHeads) -> Places:
        self.written = super().attention_write(layer, z)
        return self.written

    def mlp_write(self, layer: int, stream: Places) -> Places:
        self.added = super().mlp_write(layer, stream)
        return self.added

    def _whole(self, layer: int, name: str, own: torch.Tensor) -> torch.Tensor:
        """(input, pos, …) at all positions: those before `start` are what the base run kept by this name."""
        if self.base is None:
            return own
        base = getattr(self.base.layers[layer], name)
        return torch.cat((base[:, : self.start], own), 1)

    def _by_head(self, layer: int, name: str, own: RowHeads) -> torch.Tensor:
        """Queries, keys or values as (input, head, pos, d_head) at all positions, as `_whole` has them."""
        own = rearrange(own[:, 0], "i p h d -> i h p d")
        if self.base is None:
            return own.contiguous()
        base = getattr(self.base.layers[layer], name)
        return torch.cat((base[:, :, : self.start], own), 2)


def whole_run(
    layout: Layout,
    embedded: Float[torch.Tensor, "input pos d_model"],
    *,
    base: Cache | None = None,
    start: int = 0,
    budget: int = BUDGET,
    offload: bool = False,
) -> Cache:
    """Run prompts from their embeddings and keep everything. Positions before `start` are those of `base`,
    which has the same tokens there, and are not computed again. With `offload` what is kept of the layers is
    on the CPU."""
    blocks = layout.on_prompt(embedded)
    run = KeptRun(blocks, base, start=start, budget=budget, offload=offload)
    return run.cache(embedded)
