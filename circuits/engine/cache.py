"""What a run computed, and what of it stands in the changed places of other runs.

1. A `Cache` holds one run of a batch of inputs, layer by layer. `LayersOnCPU` keeps the layers in the memory of
   the CPU, where a GPU has too little.
2. A `Replacement` says what stands in the changed places of a row: the values of another run, nothing
   (`zero`), a mean over a family, or values that the caller computed (`given`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, overload

import torch
from jaxtyping import Float, Int

from circuits.engine.layout import AnyBlock, PromptBlock
from circuits.engine.rows import ChangeTable, Given, Indices, Site

InputIndex = slice | Int[torch.Tensor, " input"]


@dataclass(frozen=True, slots=True, repr=False)
class Layer:
    """One block of one run. Keys and values are repeated for every head and rotated where the model rotates.

    Attention weights are not kept, since they grow with the square of the prompt: `pattern` computes them
    again from queries and keys. The plain path, which sees no rotated keys, keeps them instead.
    """

    pre: Float[torch.Tensor, "input pos d_model"]  # the stream at the block's input
    value: Float[torch.Tensor, "input head pos d_head"]
    z: Float[torch.Tensor, "input pos head d_head"]
    attention: Float[torch.Tensor, "input pos d_model"]  # what attention writes
    mlp: Float[torch.Tensor, "input pos d_model"]  # what the MLP writes
    query: Float[torch.Tensor, "input head pos d_head"] | None = None
    key: Float[torch.Tensor, "input head pos d_head"] | None = None
    block: PromptBlock | None = None
    kept_pattern: Float[torch.Tensor, "input head query key"] | None = None

    def __repr__(self) -> str:
        return f"Layer({_shape_of(self.pre)})"

    def of_inputs(self, index: InputIndex) -> Layer:
        """The layer for some of the inputs."""
        return self._with_tensors(lambda stored: stored[index])

    def to(self, device: torch.device) -> Layer:
        """The layer with its tensors on a device."""
        return self._with_tensors(lambda stored: stored.to(device))

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Layer:
        """The layer with something else in the place of each of its tensors."""
        changed = {}
        for each in fields(self):
            stored = getattr(self, each.name)
            changed[each.name] = change(stored) if isinstance(stored, torch.Tensor) else stored
        return Layer(**changed)

    def pattern(
        self, queries: Int[torch.Tensor, " query"] | None = None
    ) -> Float[torch.Tensor, "input head query key"]:
        """The attention weights at these queries, or at all of them."""
        if queries is None:
            queries = torch.arange(self.pre.shape[1], device=self.pre.device)
        if self.kept_pattern is not None:
            return self.kept_pattern[:, :, queries]
        assert self.query is not None and self.key is not None and self.block is not None
        products = self.query[:, :, queries] @ self.key.mT
        return self.block.block.pattern(products, self.block.mask[queries])

    def pattern_at(self, query: int) -> Float[torch.Tensor, "input head key"]:
        """The attention weights at one query."""
        return self.pattern(torch.tensor([query], device=self.pre.device))[:, :, 0]

    def weights(
        self, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change"]:
        """The attention weights of some edges."""
        # The pattern of a query is computed once, however many edges end there.
        queries, which = query.unique(return_inverse=True)
        return self.pattern(queries)[:, head, which, key]

    def messages(
        self, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change d_head"]:
        """What each edge adds to its head's output `z`: weight times value."""
        return self.weights(head, key, query)[..., None] * self.value[:, head, key]


class LayersOnCPU(Sequence[Layer]):
    """The layers of a run, kept in the memory of the CPU.

    A layer that is asked for is brought to the device that computed it. The last one stays there until
    another is asked for, since a block asks for its layer several times.
    """

    def __init__(self) -> None:
        self.kept: list[Layer] = []
        self._devices: list[torch.device] = []
        self._at_hand: tuple[int, Layer] | None = None

    def append(self, layer: Layer, device: torch.device) -> None:
        """Keep a layer that is used on this device."""
        self.kept.append(layer.to(torch.device("cpu")))
        self._devices.append(device)

    def of_inputs(self, index: InputIndex) -> LayersOnCPU:
        """The layers for some of the inputs."""
        if isinstance(index, torch.Tensor):
            index = index.cpu()
        chosen = LayersOnCPU()
        for layer, device in zip(self.kept, self._devices, strict=True):
            chosen.append(layer.of_inputs(index), device)
        return chosen

    def __len__(self) -> int:
        return len(self.kept)

    @overload
    def __getitem__(self, number: int) -> Layer: ...
    @overload
    def __getitem__(self, number: slice) -> LayersOnCPU: ...
    def __getitem__(self, number: int | slice) -> Layer | LayersOnCPU:
        if isinstance(number, slice):
            chosen = LayersOnCPU()
            for layer, device in zip(self.kept[number], self._devices[number], strict=True):
                chosen.append(layer, device)
            return chosen
        if self._at_hand is None or self._at_hand[0] != number:
            self._at_hand = (number, self.kept[number].to(self._devices[number]))
        return self._at_hand[1]


@dataclass(frozen=True, slots=True, repr=False)
class Cache:
    """One run: its blocks, and the stream above the last of them."""

    layers: Sequence[Layer]
    final: Float[torch.Tensor, "input pos d_model"]

    def __repr__(self) -> str:
        return f"Cache({len(self.layers)} layers, {_shape_of(self.final)})"

    def of_inputs(self, index: InputIndex) -> Cache:
        """The run of some of the inputs."""
        if isinstance(self.layers, LayersOnCPU):
            return Cache(self.layers.of_inputs(index), self.final[index])
        layers = tuple(layer.of_inputs(index) for layer in self.layers)
        return Cache(layers, self.final[index])

    def weights_on_edge(self, key: int, query: int) -> Float[torch.Tensor, "input head"]:
        """The attention weight of every head of the model on key → query, layer by layer."""
        by_layer = [layer.pattern_at(query)[:, :, key] for layer in self.layers]
        return torch.cat(by_layer, 1)

    def pre(self, layer: int) -> Float[torch.Tensor, "input pos d_model"]:
        """The residual stream at the input of a layer; of the number of layers: above the last block."""
        return self.layers[layer].pre if layer < len(self.layers) else self.final


def _shape_of(stream: Float[torch.Tensor, "input pos d_model"]) -> str:
    inputs, length, width = stream.shape
    return f"{inputs} inputs of {length} tokens, d_model {width}"


@dataclass(frozen=True, slots=True)
class Replacement:
    """What stands in the changed places: the values of a run, their mean over its inputs, or nothing."""

    run: Cache
    reduced: Literal["mean", "zero"] | None = None
    given: Given = field(default_factory=dict)

    def reduce(self, values: torch.Tensor) -> torch.Tensor:
        """(input, …) as it is, as its mean (1, …), or as zeros."""
        if self.reduced == "mean":
            return values.mean(0, keepdim=True)
        if self.reduced == "zero":
            return torch.zeros_like(values)
        return values

    def messages(
        self, layer: int, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change d_head"]:
        """The new message of each edge."""
        return self.reduce(self.run.layers[layer].messages(head, key, query))

    def values(
        self, layer: int, site: Site, table: ChangeTable
    ) -> Float[torch.Tensor, "input change width"]:
        """What each change of a site puts there: the caller's value where it names one, else the run's."""
        if site == "residual":
            own = self.run.pre(layer)[:, table.position]
        elif site == "head":
            own = self.run.layers[layer].z[:, table.position, table.head]
        elif site == "attention":
            own = self.run.layers[layer].attention[:, table.position]
        else:
            own = self.run.layers[layer].mlp[:, table.position]
        own = self.reduce(own)
        if site not in self.given:
            return own
        is_given = table.given >= 0
        of_caller = self.given[site][:, table.given.clamp(min=0)]  # (input, change, width)
        return torch.where(is_given[:, None], of_caller, own)


def all_ablated(new: Replacement, blocks: Sequence[AnyBlock], *, inputs: int) -> Cache:
    """What every writer writes and every reader sees where all writers are ablated, as a run of so many
    inputs.

    Of `swap` and `noise` this is a run that was made. Of `mean` each tensor is its mean over the family, the
    streams too. Of `zero` the writers add nothing, so that the stream holds only the biases of the attention
    layers below, which belong to no writer.
    """
    if new.reduced is None:
        return new.run

    def ablated(values: torch.Tensor) -> torch.Tensor:
        """(input, …): the same for every input."""
        one = new.reduce(values)[:1]
        return one.expand(inputs, *one.shape[1:])

    layers = []
    stream = ablated(new.run.layers[0].pre)
    for block, stored in zip(blocks, new.run.layers, strict=True):
        layer = Layer(
            pre=ablated(stored.pre),
            value=ablated(stored.value),
            z=ablated(stored.z),
            attention=ablated(stored.attention),
            mlp=ablated(stored.mlp),
            block=stored.block,
        )
        if new.reduced == "zero":
            bias = block.write(layer.z)  # of silent heads
            layer = replace(layer, pre=stream, attention=bias)
            stream = stream + bias
        layers.append(layer)
    final = stream if new.reduced == "zero" else ablated(new.run.final)
    return Cache(tuple(layers), final)
