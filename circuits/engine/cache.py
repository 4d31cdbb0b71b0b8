"""What a run leaves behind, and where a change's new value comes from.

`Cache` holds one run of a batch of inputs; it grows while the run climbs, and what is there may be read at once. A `Source` answers
"what should stand there instead": another run's values, nothing at all, or the mean over a family of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int

Indices = Int[torch.Tensor, " change"]


@dataclass(slots=True)
class Layer:
    """One block of one run. Keys and values are spread over all heads, rotated where the model rotates.

    Of the last block the fast path computes `z`, `attention` and `mlp` at the last position only; elsewhere, where nothing can read
    them, they are NaN.
    """

    pre: Float[torch.Tensor, "pair pos d_model"]
    pattern: Float[torch.Tensor, "pair head query key"]
    value: Float[torch.Tensor, "pair head pos d_head"]
    z: Float[torch.Tensor, "pair pos head d_head"]
    attention: Float[torch.Tensor, "pair pos d_model"]
    mlp: Float[torch.Tensor, "pair pos d_model"]
    query: Float[torch.Tensor, "pair head pos d_head"] | None = (
        None  # the fast path reads these two, the plain path does not
    )
    key: Float[torch.Tensor, "pair head pos d_head"] | None = None


@dataclass(slots=True)
class Cache:
    """One run: its blocks and what came out of the last (of the last block of all: at the last position, NaN elsewhere)."""

    layers: tuple[Layer, ...]
    final: Float[torch.Tensor, "pair pos d_model"]

    def pre(self, layer: int) -> Float[torch.Tensor, "pair pos d_model"]:
        """The residual stream at the input of a layer, or above the last so far."""
        return self.layers[layer].pre if layer < len(self.layers) else self.final


class Source(Protocol):
    """New values for changes; `pair` may be 1 where they are the same for every pair."""

    def message(
        self, layer: int, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "pair change d_head"]: ...
    def head(self, layer: int, head: Indices, at: Indices) -> Float[torch.Tensor, "pair change d_head"]: ...
    def attention(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]: ...
    def mlp(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]: ...
    def residual(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]: ...


@dataclass(frozen=True, slots=True)
class FromRun:
    """The values of a run."""

    run: Cache

    def message(
        self, layer: int, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "pair change d_head"]:
        stored = self.run.layers[layer]
        return stored.pattern[:, head, query, key, None] * stored.value[:, head, key]

    def head(self, layer: int, head: Indices, at: Indices) -> Float[torch.Tensor, "pair change d_head"]:
        return self.run.layers[layer].z[:, at, head]

    def attention(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]:
        return self.run.layers[layer].attention[:, at]

    def mlp(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]:
        return self.run.layers[layer].mlp[:, at]

    def residual(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]:
        return self.run.pre(layer)[:, at]


@dataclass(frozen=True, slots=True)
class Scaled:
    """Another source, averaged over its runs (`mean`) or reduced to nothing (`zero`)."""

    of: FromRun
    how: str

    def _reduced(self, values: torch.Tensor) -> torch.Tensor:
        return values.mean(0, keepdim=True) if self.how == "mean" else torch.zeros_like(values)

    def message(
        self, layer: int, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "pair change d_head"]:
        return self._reduced(self.of.message(layer, head, key, query))

    def head(self, layer: int, head: Indices, at: Indices) -> Float[torch.Tensor, "pair change d_head"]:
        return self._reduced(self.of.head(layer, head, at))

    def attention(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]:
        return self._reduced(self.of.attention(layer, at))

    def mlp(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]:
        return self._reduced(self.of.mlp(layer, at))

    def residual(self, layer: int, at: Indices) -> Float[torch.Tensor, "pair change d_model"]:
        return self._reduced(self.of.residual(layer, at))
