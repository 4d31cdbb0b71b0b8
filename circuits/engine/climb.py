"""Take everything that is under way to the top of the model together: each matrix is read once, and multiplies one tall stack.

1. A traveller is a generator. In every block it asks for three products: the queries, keys and values of its streams; what its
   heads' outputs write; what the MLP adds to its streams. `climb` stacks what all travellers ask for and hands each its share.
2. `travel` is a whole run, which leaves each layer in a cache as it passes. A counterfactual run shares the positions before the first
   difference with the clean run ahead of it. Rows (`fast`) travel alone, or behind the two runs whose layers they read.
3. The answer is read at the last position. So in the last block, after its attention, the others are left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from einops import rearrange

from circuits.engine.cache import Cache, Layer
from circuits.engine.layout import Layout, Rotation

Tensors = list[torch.Tensor]
Traveller = Generator[Tensors, Tensors, None]


def climb(layout: Layout, travellers: Sequence[Traveller]) -> None:
    """Serve the travellers in their order, block by block. One that has arrived asks for nothing."""
    asked = [next(traveller) for traveller in travellers]
    for block in layout.blocks:
        for product in (block.project, block.o, block.think):
            given = _together(product, asked)
            asked = [traveller.send(own) for traveller, own in zip(travellers, given, strict=True)]


def _together(product: Callable[[torch.Tensor], torch.Tensor], asked: Sequence[Tensors]) -> list[Tensors]:
    """One product for all: (…, width) each."""
    flat = [wanted.flatten(0, -2) for own in asked for wanted in own]
    filled = [part for part in flat if len(part)] or flat[:1]
    if not filled:
        return [[] for _ in asked]
    stacked = filled[0] if len(filled) == 1 else torch.cat(filled)
    shares = iter(product(stacked).split([len(part) for part in flat]))
    return [[next(shares).unflatten(0, wanted.shape[:-1]) for wanted in own] for own in asked]


def travel(layout: Layout, kept: Cache, *, start: int = 0, ahead: Cache | None = None) -> Traveller:
    """A whole run from `kept.final`, at first the embedded tokens. Before `start` it is the same as the run ahead of it."""
    length, last = kept.final.shape[1], len(layout.blocks) - 1
    rotation = turns(layout.positions(kept.final), slice(start, None))
    future = torch.ones(length, length, dtype=torch.bool, device=kept.final.device).triu(1)[start:]

    def whole(own: torch.Tensor, name: str, dim: int = 1) -> torch.Tensor:
        """All positions: in front of its own those of the run ahead, or NaN for what is left behind. A copy: shares are let go."""
        missing = length - own.shape[dim]
        if missing == 0:
            return own.clone(memory_format=torch.contiguous_format)
        if ahead is not None:
            return torch.cat((getattr(ahead.layers[index], name).narrow(dim, 0, missing), own), dim)
        return torch.cat(
            (own.new_full((*own.shape[:dim], missing, *own.shape[dim + 1 :]), torch.nan), own), dim
        )

    for index in range(len(layout.blocks)):
        stream = kept.final[:, start:]
        (projected,) = yield [stream]
        heads = (rearrange(x, "p t h d -> p h t d") for x in layout.heads_of(projected, rotation))
        query, key, value = (
            whole(own, name, 2) for own, name in zip(heads, ("query", "key", "value"), strict=True)
        )
        pattern = layout.attend(
            (query[:, :, start:] @ key.mT).mul_(layout.scale).masked_fill_(future, -torch.inf)
        )
        z = rearrange(pattern @ value, "p h t d -> p t h d")
        if index == last:
            stream, z = stream[:, -1:], z[:, -1:]
        unknown = stream[:, :0]
        layer = Layer(
            kept.final,
            whole(pattern, "pattern", 2),
            value,
            whole(z, "z"),
            unknown,
            unknown,
            query=query,
            key=key,
        )
        kept.layers = (*kept.layers, layer)
        (written,) = yield [z.flatten(-2)]
        layer.attention = whole(written, "attention")
        (added,) = yield [stream if layout.parallel else stream + written]
        layer.mlp = whole(added, "mlp")
        kept.final = layer.pre + layer.attention + layer.mlp
    yield []


def turns(rotation: Rotation | None, window: slice) -> Rotation | None:
    """The rotation of some positions."""
    return None if rotation is None else (rotation[0][window], rotation[1][window])
