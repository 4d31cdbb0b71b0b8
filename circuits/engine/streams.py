"""Rows, which say what one run of the model gets changed, and streams, which climb the model in step.

1. A row is a set of changes, each at a layer, a position and a site: `edge` (the message of one head from one
   key to one query, the only site that `knockout` knows), `head` (all that a head writes at a position, its
   `z`), `attention` and `mlp` (what they write at a position), `residual` (the stream at a layer's input).
2. `Cache` holds one run of a batch of inputs; it grows while the run climbs, and what is there may be read at
   once. `NewValues` says what should stand there instead: another run's values, nothing, or a family's mean.
3. `climb` takes streams through the blocks. In every block each stream hands over what it wants projected,
   written and put through the MLP; `climb` stacks what all of them hand over, so that each matrix is read
   once and multiplies one tall stack.
4. `WholeRun` is a run of the model that leaves each layer in a cache as it passes. A counterfactual run
   shares the positions before the first difference with the clean run ahead of it.
5. The metric is read at the last position (of an answer of several tokens: at the last few, the `tail`), so
   above the attention of the last block only those positions are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int

from circuits.components import SIDES, Edge, Head
from circuits.engine.block import UnkeptPattern, Written
from circuits.engine.layout import Layout
from circuits.errors import EdgeError

Direction = Literal["swap", "restore", "zero", "knockout", "mean"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("swap", "restore", "zero", "knockout", "mean")
Site = Literal["edge", "head", "attention", "mlp", "residual"]
Indices = Int[torch.Tensor, " change"]
Given = Mapping[Site, Float[torch.Tensor, "input value width"]]  # values handed over with rows
MOST_PATTERNS: Final = 2**27  # numbers in the patterns of one run; those of longer ones are computed again
MOST_SCORES: Final = 2**22  # numbers in the scores that are there at once, or one query's if it has more
Tensors = list[torch.Tensor]
RunHeads = Float[torch.Tensor, "input pos head d_head"]


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One thing that is not as in the base run."""

    layer: int
    position: int  # where it is written: an edge's query
    site: Site
    head: int = -1  # edges and heads
    key: int = -1  # edges
    given: int = -1  # which of the values handed over with the rows to put there; -1: the direction's own


@dataclass(frozen=True, slots=True)
class Row:
    """All the changes of one run; no change at all is the base run itself.

    >>> edge = circuits.Edge.parse("L5H1:5→8")
    >>> circuits.Row.of_edges([edge]).first_layer
    5
    """

    changes: tuple[Change, ...]

    @classmethod
    def of_edges(cls, edges: Iterable[Edge]) -> Row:
        """All these messages together."""
        return cls(tuple(sorted(Change(e.head.layer, e.query, "edge", e.head.index, e.key) for e in edges)))

    @classmethod
    def of_heads(cls, heads: Iterable[Head], positions: Iterable[int]) -> Row:
        """Everything these heads write at these positions."""
        written = tuple(positions)
        return cls(
            tuple(sorted(Change(h.layer, position, "head", h.index) for h in heads for position in written))
        )

    @classmethod
    def of_writes(cls, layer: int, positions: Iterable[int]) -> Row:
        """What block `layer` writes at these positions, attention and MLP."""
        sites: tuple[Site, Site] = ("attention", "mlp")
        return cls(tuple(sorted(Change(layer, position, site) for position in positions for site in sites)))

    @classmethod
    def of_residual(cls, layer: int, positions: Iterable[int]) -> Row:
        """The residual stream at the input of `layer` (of the number of layers: above the last block)."""
        return cls(tuple(Change(layer, position, "residual") for position in sorted(positions)))

    def only(self, wanted: Callable[[Change], bool]) -> Row:
        """The row without the other changes."""
        return Row(tuple(filter(wanted, self.changes)))

    @property
    def first_layer(self) -> int:
        return min([change.layer for change in self.changes])

    @property
    def first_position(self) -> int:
        return min([change.position for change in self.changes])


def check_rows(rows: Iterable[Row], *, direction: str, layers: int, heads: int, length: int) -> None:
    """Refuse, before anything runs, a change that does not exist in this model and prompt."""
    if direction not in DIRECTIONS:
        raise EdgeError(f"no direction {direction!r}; there are {', '.join(DIRECTIONS)}")
    for change in (change for row in rows for change in row.changes):
        if not 0 <= change.position < length:
            raise EdgeError(f"position {change.position} lies outside the prompt, which has 0…{length - 1}")
        top = layers if change.site == "residual" else layers - 1
        if not 0 <= change.layer <= top:
            raise EdgeError(f"layer {change.layer} does not exist: this model has 0…{layers - 1}")
        if change.site in ("edge", "head") and not 0 <= change.head < heads:
            raise EdgeError(
                f"head L{change.layer}H{change.head} does not exist: this model has {heads} heads a layer"
            )
        if change.site == "edge" and not 0 <= change.key <= change.position:
            raise EdgeError(
                f"edge {change.key}→{change.position} runs backwards: attention reads at or before its query"
            )
        if direction == "knockout" and change.site != "edge":
            raise EdgeError(f"knockout shuts attention edges; it means nothing for {change.site}: use zero")


@dataclass(frozen=True, slots=True)
class ChangeTable:
    """Changes of one site in one layer as index tensors: which row, which position, which head, which key."""

    row: Indices
    position: Indices
    head: Indices
    key: Indices
    given: Indices

    @classmethod
    def of(cls, changes: Sequence[tuple[int, Change]], device: torch.device) -> ChangeTable:
        listed = [(row, c.position, c.head, c.key, c.given) for row, c in changes]
        return cls(*torch.tensor(listed, device=device).reshape(-1, 5).unbind(1))


# What a run leaves behind


@dataclass(slots=True)
class Layer:
    """One block of one run. Keys and values are spread over all heads, rotated where the model rotates.

    Of the last block the fast path computes `z`, `attention` and `mlp` only where the metric is read, at the
    last position or the last few; elsewhere, where nothing can read them, they are NaN. Of a long prompt it
    keeps neither patterns nor writes.
    """

    pre: Float[torch.Tensor, "input pos d_model"]
    pattern: Float[torch.Tensor, "input head query key"] | UnkeptPattern
    value: Float[torch.Tensor, "input head pos d_head"]
    z: Float[torch.Tensor, "input pos head d_head"]
    attention: Float[torch.Tensor, "input pos d_model"] | Written
    mlp: Float[torch.Tensor, "input pos d_model"] | Written
    query: Float[torch.Tensor, "input head pos d_head"] | None = (
        None  # the fast path reads these two, the plain one does not
    )
    key: Float[torch.Tensor, "input head pos d_head"] | None = None


@dataclass(slots=True)
class Cache:
    """One run: its blocks and what came out of the last (of the last block of all: where the metric is read,
    NaN elsewhere)."""

    layers: tuple[Layer, ...]
    final: Float[torch.Tensor, "input pos d_model"]

    def pre(self, layer: int) -> Float[torch.Tensor, "input pos d_model"]:
        """The residual stream at the input of a layer, or above the last so far."""
        return self.layers[layer].pre if layer < len(self.layers) else self.final


@dataclass(frozen=True, slots=True)
class NewValues:
    """The values of a run, as they are, averaged over its inputs (`mean`) or reduced to nothing (`zero`)."""

    run: Cache
    reduced: Literal["mean", "zero"] | None = None
    given: Given = field(default_factory=dict)

    def reduce(self, values: torch.Tensor) -> torch.Tensor:
        if self.reduced is None:
            return values
        return values.mean(0, keepdim=True) if self.reduced == "mean" else torch.zeros_like(values)

    def message(
        self, layer: int, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change d_head"]:
        stored = self.run.layers[layer]
        return self.reduce(stored.pattern[:, head, query, key, None] * stored.value[:, head, key])

    def values(self, layer: int, site: Site, table: ChangeTable) -> Float[torch.Tensor, "input change width"]:
        """What each change of a site puts there: the run's own value, or the one handed over for it."""
        if site == "head":
            own = self.run.layers[layer].z[:, table.position, table.head]
        elif site == "residual":
            own = self.run.pre(layer)[:, table.position]
        else:
            own = getattr(self.run.layers[layer], site)[:, table.position]
        if site not in self.given:
            return self.reduce(own)
        handed = self.given[site][:, table.given.clamp(min=0)]
        return torch.where((table.given >= 0)[:, None], handed, self.reduce(own))


@runtime_checkable
class Stream(Protocol):
    """Something that climbs: in each block it is asked four times, and answered with one product for each of
    its tensors."""

    def enter(self, layer: int) -> Tensors: ...  # streams at the input -> queries, keys and values
    def attend(self, layer: int, projected: Tensors) -> Tensors: ...  # heads' outputs -> what they write
    def write(self, layer: int, written: Tensors) -> Tensors: ...  # what the MLP reads -> what it adds
    def leave(self, layer: int, added: Tensors) -> None: ...


def climb(layout: Layout, streams: Sequence[Stream]) -> None:
    """Take the streams to the top, each block in the order in which they are given: one may read what those
    before it left."""
    for layer, block in enumerate(layout.blocks):
        projected = _together(block.project, [stream.enter(layer) for stream in streams])
        read = [stream.attend(layer, own) for stream, own in zip(streams, projected, strict=True)]
        written = _together(block.write, read)
        middle = [stream.write(layer, own) for stream, own in zip(streams, written, strict=True)]
        for stream, added in zip(streams, _together(block.mlp_output, middle), strict=True):
            stream.leave(layer, added)


def _together(product: Callable[[torch.Tensor], torch.Tensor], wanted: Sequence[Tensors]) -> list[Tensors]:
    """One product for all: (…, width) each."""
    flat = [tensor.flatten(0, -2) for own in wanted for tensor in own]
    filled = [part for part in flat if len(part)] or flat[:1]
    if not filled:
        return [[] for _ in wanted]
    stacked = product(filled[0] if len(filled) == 1 else torch.cat(filled))
    parts = iter(stacked.split([len(part) for part in flat]))
    return [[next(parts).unflatten(0, tensor.shape[:-1]) for tensor in own] for own in wanted]


@dataclass(frozen=True, slots=True)
class Taken:
    """Messages of key → query that are swapped in a whole run and in every row on top of it: of other heads
    for each input."""

    heads: Bool[torch.Tensor, "input layer head"]
    key: int
    query: int
    new: Cache

    def change(self, layer: int, weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """What to add to (input, …, head, d_head), given the weight (…, head) and the value (…, head, d_head)
        of the edge now."""
        stored = self.new.layers[layer]
        weights, chosen = stored.pattern[:, :, self.query, self.key, None], self.heads[:, layer, :, None]
        message = weights * stored.value[:, :, self.key]  # (input, head, d_head)
        if weight.ndim == 3:  # (input, row, head)
            message, chosen = message[:, None], chosen[:, None]
        return (message - weight[..., None] * value) * chosen


@dataclass
class WholeRun:
    """A run from `cache.final`, at first the embedded tokens. Before `start` it is that of the run ahead."""

    layout: Layout
    cache: Cache
    start: int = 0
    ahead: Cache | None = None
    taken: Taken | None = None
    tail: int = 1

    def __post_init__(self) -> None:
        self.length, self.last = self.cache.final.shape[1], len(self.layout.blocks) - 1
        self.rotations = self.layout.rotations(self.cache.final, self.start)
        self.hidden = self.layout.hidden(self.cache.final, self.start)
        numbers = len(self.layout.blocks) * self.layout.heads * self.length**2
        self.keeps_patterns = len(self.cache.final) * numbers <= MOST_PATTERNS

    def enter(self, layer: int) -> Tensors:
        return [self.cache.final[:, self.start :]]

    def attend(self, layer: int, projected: Tensors) -> Tensors:
        block = self.layout.blocks[layer]
        heads = block.split(projected[0], self.rotations[layer])
        query, key, value = (
            self._whole(rearrange(own, "i t h d -> i h t d"), name, 2)
            for own, name in zip(heads, SIDES, strict=True)
        )
        pattern, z = self._read(layer, query[:, :, self.start :], key, value)
        z = z[:, -self.tail :] if layer == self.last else z
        final = self.cache.final  # stands for what attention and MLP will write, until they have
        kept = UnkeptPattern(query, key, block) if pattern is None else self._whole(pattern, "pattern", 2)
        written = kept, value, self._whole(z, "z"), final, final
        self.cache.layers = (*self.cache.layers, Layer(final, *written, query=query, key=key))
        return [z.flatten(-2)]

    def _read(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor | None, RunHeads]:
        """The pattern, unless it is too large to be kept, and what the heads read by it."""
        block, parts, patterns = self.layout.blocks[layer], [], []
        for window in windows(query.shape[2], query.shape[0] * query.shape[1] * self.length):
            products = query[:, :, window] @ key.mT
            pattern = block.attend(block.scores(products, self.hidden[layer][window]))
            z = rearrange(pattern @ value, "i h t d -> i t h d")
            if self.taken is not None and self.taken.query - self.start in range(window.start, window.stop):
                row, column = self.taken.query - self.start - window.start, self.taken.key
                z[:, row] += self.taken.change(layer, pattern[:, :, row, column], value[:, :, column])
            parts.append(z)
            if self.keeps_patterns:
                patterns.append(pattern)
        return joined(patterns, 2) if patterns else None, joined(parts, 1)

    def write(self, layer: int, written: Tensors) -> Tensors:
        self.written, stored = written[0], self.cache.layers[layer]
        kept = (
            self._whole(written[0], "attention") if self.keeps_patterns else self._again("attention", layer)
        )
        stored.attention = kept
        stream = self.cache.final[:, -written[0].shape[1] :]
        return [stream if self.layout.parallel else stream + written[0]]

    def leave(self, layer: int, added: Tensors) -> None:
        stored = self.cache.layers[layer]
        if self.keeps_patterns:
            stored.mlp = self._whole(added[0], "mlp")
            self.cache.final = stored.pre + stored.attention[:] + stored.mlp
            return
        stored.mlp = self._again("mlp", layer)
        above = stored.pre[:, -added[0].shape[1] :] + self.written + added[0]
        self.cache.final = self._whole(above, "final")

    def _again(self, by: Literal["attention", "mlp"], layer: int) -> Written:
        stored = self.cache.layers[layer]
        return Written(by, self.layout.blocks[layer], stored.z, stored.pre, self.layout.parallel)

    def _whole(self, own: torch.Tensor, name: str, dim: int = 1) -> torch.Tensor:
        """All positions: in front of its own those of the run ahead, or NaN for what is left behind. A copy:
        stacks are let go."""
        missing, layer = self.length - own.shape[dim], len(self.cache.layers) - (name in ("attention", "mlp"))
        if missing == 0:
            return own.clone(memory_format=torch.contiguous_format)
        if self.ahead is not None:
            stored = self.ahead.pre(layer) if name == "final" else getattr(self.ahead.layers[layer], name)
            return torch.cat((stored.narrow(dim, 0, missing), own), dim)
        shape = (*own.shape[:dim], missing, *own.shape[dim + 1 :])
        return torch.cat((own.new_full(shape, torch.nan), own), dim)


def windows(queries: int, numbers: int) -> list[slice]:
    """The queries, as many at a time as their scores may be there at once: of so many numbers each."""
    step = max(1, MOST_SCORES // numbers)
    return [slice(first, min(first + step, queries)) for first in range(0, queries, step)]


def joined(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim)


def copies(values: torch.Tensor, rows: int) -> torch.Tensor:
    """(input, …) to (input, row, …), each row its own copy."""
    return values[:, None].expand(-1, rows, *values.shape[1:]).clone()
