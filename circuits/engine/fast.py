"""The fast path: carry only what changes, and take everything that is under way up the model together.

A change at layer l and position p can only reach positions ≥ p, above l. So rows that share their first
position `start` form a stream (input, row, position ≥ start, d_model); everything before `start` is read from
the base run and shared.

1. `climb` takes streams through the blocks in step. In every block each stream hands over what it wants
   projected, written and put through the MLP; `climb` stacks what all of them hand over, so that each matrix
   is read once and multiplies one tall stack.
2. `WholeRun` is a run of the model that leaves each layer in a cache as it passes. A counterfactual run
   shares the positions before the first difference with the clean run ahead of it.
3. `RowStream` carries rows. One whose first change is a write (an edge, a head, a block's output) joins after
   the attention of that layer, as the base run's stream plus the change. One whose first change comes before
   (the residual stream, a knocked-out score) joins at its input. A row that differs from the base at `start`
   alone is *narrow*: the MLP of its layer and the projections of the next run for that one position. One
   attention later it is wide. Many rows that change one head each take a shorter way through the block in
   which they join (`Block.above_heads`).
4. The metric is read at the last position (of an answer of several tokens: at the last few, the `tail`), so
   above the attention of the last block only those positions are computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Literal, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Bool, Float

from circuits.components import SIDES
from circuits.engine.block import Heads, Pattern, Written
from circuits.engine.layout import Layout
from circuits.engine.rows import Cache, Change, ChangeTable, Layer, NewValues, Row, Site

MOST_PATTERNS: Final = 2**27  # numbers in the patterns of one run; those of longer ones are computed again
MOST_SCORES: Final = 2**22  # numbers in the scores that are there at once, or one query's if it has more
Tensors = list[torch.Tensor]
RunHeads = Float[torch.Tensor, "input pos head d_head"]
Rows = Float[torch.Tensor, "input row pos d_model"]
RowHeads = Float[torch.Tensor, "input row pos head d_head"]
RowQueries = Float[torch.Tensor, "input row query head d_head"]
Joining = tuple[int, bool, bool]  # layer, late, narrow


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
        kept = Pattern(query, key, block) if pattern is None else self._whole(pattern, "pattern", 2)
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
        return _joined(patterns, 2) if patterns else None, _joined(parts, 1)

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


def _joined(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim)


def carry(
    layout: Layout,
    base: Cache,
    new: NewValues,
    rows: Sequence[Row],
    *,
    knockout: bool = False,
    budget: int,
    behind: Sequence[WholeRun] = (),
    taken: Taken | None = None,
    tail: int = 1,
) -> Float[torch.Tensor, "input row read d_model"]:
    """The stream of every row at the last `tail` positions above the last layer, at most `budget` bytes of
    rows at a time. What is `taken` holds in all rows.

    Where the runs that the rows read are still to be made, they are `behind`: the first rows climb behind
    them, so that each matrix is read once for both.
    """
    top = base.final.new_empty(len(base.final), len(rows), tail, base.final.shape[-1])
    leading = list(behind)
    for chunk in _chunks(layout, base, rows, budget):
        by_start: dict[int, list[int]] = defaultdict(list)
        for index in chunk:
            by_start[rows[index].first_position].append(index)
        groups = by_start.values()
        streams = [
            RowStream(layout, base, new, [rows[i] for i in group], knockout, taken, tail) for group in groups
        ]
        climb(layout, [*leading, *streams])
        leading = []
        for stream, group in zip(streams, groups, strict=True):
            top[:, group] = stream.top()
    if leading:
        climb(layout, leading)
    return top


def _chunks(layout: Layout, base: Cache, rows: Sequence[Row], budget: int) -> Iterator[list[int]]:
    """The rows in the order in which they join, as many at a time as the budget holds, at least one."""
    inputs, length, width = base.final.shape
    size, held = base.final.element_size(), 0
    chunk: list[int] = []

    def joins(index: int) -> tuple[int, int]:  # rows that change one head stand together
        return rows[index].first_layer, rows[index].changes[0].head

    for index in sorted(range(len(rows)), key=joins):
        positions = length - rows[index].first_position
        scores = min(inputs * layout.heads * length * positions, MOST_SCORES)
        needed = size * (inputs * 16 * width * positions + 3 * scores)  # live at once
        if chunk and held + needed > budget:
            yield chunk
            chunk, held = [], 0
        chunk.append(index)
        held += needed
    if chunk:
        yield chunk


@dataclass(frozen=True, slots=True)
class Part:
    """Rows in the middle of a block, after its attention. The stream may be one for all of them."""

    rows: list[int]
    narrow: bool
    stream: Float[torch.Tensor, "input one_or_row pos d_model"]
    z: RowHeads


@dataclass
class RowStream:
    """Rows that share their first position, on their way up."""

    layout: Layout
    base: Cache
    new: NewValues
    rows: Sequence[Row]
    knockout: bool
    taken: Taken | None
    tail: int = 1

    def __post_init__(self) -> None:
        self.start, self.top_layer = self.rows[0].first_position, len(self.layout.blocks)
        self.inputs, self.length, self.width = self.base.final.shape
        self.rotations = self.layout.rotations(self.base.final, self.start)
        self.hidden = self.layout.hidden(self.base.final, self.start)
        self.wide_rows: list[int] = []  # which rows `wide` holds, in its order
        self.narrow_rows: list[int] = []
        self.wide: Rows = self.base.final.new_empty(self.inputs, 0, self.length - self.start, self.width)
        self.narrow: Rows = self.base.final.new_empty(self.inputs, 0, 1, self.width)
        self.parts: list[Part] = []  # the rows in the middle of a block
        self.above: list[tuple[Rows, list[int], bool]] = []  # those that are through, and whether narrow
        self.middle: list[Rows] = []
        self.joining: dict[Joining, list[int]] = defaultdict(list)
        self.changes: dict[tuple[int, Site], list[tuple[int, Change]]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            self.joining[self._joins(row)].append(index)
            for change in row.changes:
                self.changes[change.layer, change.site].append((index, change))

    def _joins(self, row: Row) -> Joining:
        """At which layer, whether after its attention, and whether it differs at `start` alone."""
        lowest = row.first_layer
        first = [change for change in row.changes if change.layer == lowest]
        late = not self.knockout and "residual" not in [change.site for change in first]
        is_narrow = {change.position for change in first} == {self.start} != {self.length - 1}
        return lowest, late, is_narrow and lowest < self.top_layer - late

    # The four steps of a block

    def enter(self, layer: int) -> Tensors:
        self._join_early(layer)
        together = self.wide if self._first(layer) == self.start else self.wide[:, :0]
        return [together, self.narrow]

    def attend(self, layer: int, projected: Tensors) -> Tensors:
        self.parts = [*self._attended(layer, *projected), *self._join_late(layer)]
        return [part.z.flatten(-2) for part in self.parts]

    def write(self, layer: int, written: Tensors) -> Tensors:
        for part, own in zip(self.parts, written, strict=True):
            if table := self._table(layer, "attention", part.rows):
                new = self.new.values(layer, "attention", table)
                own[:, table.row, table.position - self._first(layer)] = new
        self.middle = [part.stream + own for part, own in zip(self.parts, written, strict=True)]
        return [part.stream for part in self.parts] if self.layout.parallel else self.middle

    def leave(self, layer: int, added: Tensors) -> None:
        self.wide_rows, self.narrow, self.narrow_rows = [], self.narrow[:, :0], []
        for part, stream, mlp in zip(self.parts, self.middle, added, strict=True):
            if table := self._table(layer, "mlp", part.rows):
                mlp = mlp.expand_as(stream).clone()
                new = self.new.values(layer, "mlp", table)
                mlp[:, table.row, table.position - self._first(layer)] = new
            self._add(stream.add_(mlp), part.rows, narrow=part.narrow)
        for stream, rows, narrow in self.above:
            self._add(stream, rows, narrow=narrow)
        self.parts, self.middle, self.above = [], [], []

    def top(self) -> Float[torch.Tensor, "input row read d_model"]:
        """The last positions of every row above the last block; those before `start` are the base run's."""
        self._join_early(self.top_layer)
        top = _copies(self.base.final[:, -self.tail :], len(self.rows))
        top[:, self.wide_rows, -self.wide.shape[2] :] = self.wide
        return top

    def _first(self, layer: int) -> int:
        """The first position that is still needed in the output of a layer: above the last block only the
        tail is read."""
        return max(self.start, self.length - self.tail) if layer >= self.top_layer - 1 else self.start

    def _table(
        self, layer: int, site: Site, rows: Sequence[int], first: int = -1, stop: int | None = None
    ) -> ChangeTable | None:
        """The changes of these rows, numbered by their order here, from `first` (or what is needed) on."""
        if not (listed := self.changes.get((layer, site))):
            return None
        number = {row: number for number, row in enumerate(rows)}
        first = self._first(layer) if first < 0 else first
        needed = range(first, self.length if stop is None else stop)
        chosen = [(number[row], c) for row, c in listed if row in number and c.position in needed]
        return ChangeTable.of(chosen, self.wide.device) if chosen else None

    # Joining

    def _join_early(self, layer: int) -> None:
        """Rows whose residual stream (or scores) change at the input of this layer, and rows under way that
        change again."""
        if self._table(layer, "residual", self.wide_rows + self.narrow_rows, 0) is not None:
            if self.narrow_rows:
                self._add(self._widened(layer), self.narrow_rows, narrow=False)
                self.narrow, self.narrow_rows = self.narrow[:, :0], []
            self._set_residual(layer, self.wide, self.wide_rows, self.length - self.wide.shape[2])
        for narrow in (False, True):
            if rows := self.joining.pop((layer, False, narrow), []):
                first = self._first(layer) if layer == self.top_layer else self.start
                window = slice(first, self.start + 1 if narrow else None)
                joined = _copies(self.base.pre(layer)[:, window], len(rows))
                self._set_residual(layer, joined, rows, first)
                self._add(joined, rows, narrow=narrow)

    def _set_residual(self, layer: int, stream: Rows, rows: Sequence[int], first: int) -> None:
        if table := self._table(layer, "residual", rows, first):
            stream[:, table.row, table.position - first] = self.new.values(layer, "residual", table)

    def _join_late(self, layer: int) -> list[Part]:
        """Rows whose first change is a write of this layer: the base run's stream plus the change."""
        stored, first, parts = self.base.layers[layer], self._first(layer), []
        for narrow in (False, True):
            rows = self.joining.pop((layer, True, narrow), [])
            if not rows:
                continue
            window = slice(first, self.start + 1 if narrow else None)
            if by_head := self._one_head_each(layer, rows, window):
                self.above.append((self._above_heads(layer, by_head, window), list(by_head), narrow))
                continue
            z = _copies(stored.z[:, window], len(rows))
            if table := self._table(layer, "edge", rows):
                now = NewValues(self.base).message(layer, table.head, table.key, table.position)
                self._swap_edges(layer, z, table, now, first)
            self._set_heads(layer, z, rows)
            parts.append(Part(rows, narrow, stored.pre[:, None, window], z))
        return parts

    def _one_head_each(self, layer: int, rows: Sequence[int], window: slice) -> dict[int, int]:
        """The head that each row changes here, in the order of heads, where each changes one and they are
        many enough for a product of its own to pay; else nothing."""
        if not self.layout.splits_heads or self.base.final.dtype not in (torch.float32, torch.float64):
            return {}  # in half precision the shorter way would round otherwise
        changed = {row: {c.head for c in self.rows[row].changes if c.layer == layer} for row in rows}
        sites = {change.site for row in rows for change in self.rows[row].changes if change.layer == layer}
        if sites != {"head"} or any(len(heads) > 1 for heads in changed.values()):
            return {}
        by_head = dict(sorted(((row, heads.pop()) for row, heads in changed.items()), key=itemgetter(1)))
        numbers = self.inputs * len(rows) * len(range(self.length)[window])
        worth = numbers > 2 * len(set(by_head.values())) * self.layout.blocks[layer].d_head
        return by_head if worth else {}

    def _above_heads(self, layer: int, by_head: dict[int, int], window: slice) -> Rows:
        """The stream above this block of rows that change one head each."""
        stored, block = self.base.layers[layer], self.layout.blocks[layer]
        table, positions = self._table(layer, "head", list(by_head)), len(range(self.length)[window])
        assert table is not None
        change = stored.z.new_zeros(self.inputs, len(by_head), positions, block.d_head)
        old = stored.z[:, table.position, table.head]
        change[:, table.row, table.position - self._first(layer)] = (
            self.new.values(layer, "head", table) - old
        )
        base = (stored.pre[:, window] + stored.attention[:, window])[:, None]
        return block.above_heads(base, change, list(by_head.values()))

    def _add(self, stream: Rows, rows: list[int], *, narrow: bool) -> None:
        if narrow:
            self.narrow, self.narrow_rows = torch.cat((self.narrow, stream), 1), self.narrow_rows + rows
        else:
            self.wide = torch.cat((self.wide, stream), 1) if self.wide_rows else stream
            self.wide_rows = self.wide_rows + rows

    def _widened(self, layer: int) -> Rows:
        """The narrow rows with the base run's stream at the positions where they do not differ."""
        wide = _copies(self.base.pre(layer)[:, self.start :], len(self.narrow_rows))
        wide[:, :, :1] = self.narrow
        return wide

    # Attention

    def _attended(self, layer: int, wide: torch.Tensor, narrow: torch.Tensor) -> list[Part]:
        """Take every row under way through the attention of one block; afterwards all of them are wide."""
        rows, first = self.wide_rows + self.narrow_rows, self._first(layer)
        if not rows:
            return []
        query, key, value = self._heads(layer, wide, narrow, first)
        numbers = self.inputs * len(rows) * self.layout.heads * self.length
        z = _joined(
            [
                self._read(layer, query[:, :, window], key, value, rows, first + window.start)
                for window in windows(query.shape[2], numbers)
            ],
            2,
        )
        self._set_heads(layer, z, rows)
        needed = slice(first - self.start, None)
        stream = self.wide[:, :, needed]
        if self.narrow_rows:
            stream = torch.cat((stream, self._widened(layer)[:, :, needed]), 1)
        return [Part(rows, False, stream, z)]

    def _heads(
        self, layer: int, wide: torch.Tensor, narrow: torch.Tensor, first: int
    ) -> tuple[RowQueries, RowHeads, RowHeads]:
        """Queries from position `first` (above the last block few are read: they were not projected with all
        other streams), keys and values from `start`; narrow rows share the base's everywhere but at
        `start`."""
        stored, count = self.base.layers[layer], len(self.narrow_rows)
        assert stored.query is not None and stored.key is not None
        block, rotation = self.layout.blocks[layer], self.rotations[layer]
        if first == self.start:
            heads: list[Heads] = list(block.split(wide, rotation))
        else:
            heads = list(
                block.few_queries(self.wide[:, : len(self.wide_rows)], rotation, self.length - first)
            )
        if count:
            own = block.split(narrow, None if rotation is None else rotation[:, :1])
            for kind, shared in enumerate((stored.query, stored.key, stored.value)):
                rest = _copies(rearrange(shared[:, :, self.start + 1 :], "i h t d -> i t h d"), count)
                whole = torch.cat((own[kind], rest), 2)[:, :, -heads[kind].shape[2] :]
                heads[kind] = torch.cat((heads[kind], whole), 1)
        query, key, value = heads
        return query, key, value

    def _read(
        self, layer: int, query: RowQueries, key: RowHeads, value: RowHeads, rows: Sequence[int], first: int
    ) -> RowQueries:
        """What the heads read at the queries from `first` on, edges swapped."""
        pattern = self._pattern(layer, query, key, rows, first)
        z, stop = self._read_by(layer, pattern, value), first + query.shape[2]
        if not self.knockout and (table := self._table(layer, "edge", rows, first, stop)):
            now = self._message_now(layer, pattern, value, table, first)
            self._swap_edges(layer, z, table, now, first)
        if self.taken is not None and first <= self.taken.query < stop:
            self._swap_taken(self.taken, layer, z[:, :, self.taken.query - first], pattern, value, first)
        return z

    def _pattern(
        self, layer: int, query: RowQueries, key: RowHeads, rows: Sequence[int], first: int
    ) -> Float[torch.Tensor, "input row head query key"]:
        """The pattern over all keys: those before `start` are the base run's, the others the row's own."""
        stored = self.base.layers[layer].key
        assert stored is not None
        before = rearrange(query, "i r q h d -> i h (r q) d") @ stored[:, :, : self.start].mT
        own = rearrange(query, "i r q h d -> i r h q d") @ rearrange(key, "i r k h d -> i r h d k")
        before = rearrange(before, "i h (r q) k -> i r h q k", q=own.shape[-2])
        block, begin, count = self.layout.blocks[layer], first - self.start, own.shape[-2]
        scores = block.scores(torch.cat((before, own), -1), self.hidden[layer][begin : begin + count])
        table = self._table(layer, "edge", rows, first, first + count) if self.knockout else None
        if table is None:
            return block.attend(scores)
        scores[:, table.row, table.head, table.position - first, table.key] = -torch.inf
        return block.attend(scores).nan_to_num_(0.0)  # without any key a head writes nothing

    def _read_by(self, layer: int, pattern: torch.Tensor, value: torch.Tensor) -> RowHeads:
        """What the heads read, by their pattern."""
        queries, shared = pattern.shape[-2], self.base.layers[layer].value[:, :, : self.start]
        before = rearrange(pattern[..., : self.start], "i r h q k -> i h (r q) k") @ shared
        own = pattern[..., self.start :] @ rearrange(value, "i r k h d -> i r h k d")
        before = rearrange(before, "i h (r q) d -> i r q h d", q=queries)
        return (before + rearrange(own, "i r h q d -> i r q h d")).contiguous()

    def _set_heads(self, layer: int, z: RowHeads, rows: Sequence[int]) -> None:
        if table := self._table(layer, "head", rows):
            new = self.new.values(layer, "head", table)
            z[:, table.row, table.position - self._first(layer), table.head] = new

    def _message_now(
        self, layer: int, pattern: torch.Tensor, value: torch.Tensor, table: ChangeTable, first: int
    ) -> Float[torch.Tensor, "input change d_head"]:
        """The message that each edge carries in its own row at this moment."""
        weight = pattern[:, table.row, table.head, table.position - first, table.key]
        shared = self.base.layers[layer].value[:, table.head, table.key]
        own = value[:, table.row, (table.key - self.start).clamp(min=0), table.head]
        return weight[..., None] * torch.where((table.key >= self.start)[:, None], own, shared)

    def _swap_edges(self, layer: int, z: RowHeads, table: ChangeTable, now: torch.Tensor, first: int) -> None:
        """Put new messages in the place of what they are now, in outputs from position `first` on; several
        keys of one head and query add up."""
        change = self.new.message(layer, table.head, table.key, table.position) - now
        _, _, window, heads, _ = z.shape
        flat = (table.row * window + table.position - first) * heads + table.head
        z.flatten(1, 3).index_add_(1, flat, change.expand(len(z), -1, -1))

    def _swap_taken(
        self,
        taken: Taken,
        layer: int,
        z: Float[torch.Tensor, "input row head d_head"],
        pattern: torch.Tensor,
        value: torch.Tensor,
        first: int,
    ) -> None:
        """In every row, the messages that are swapped throughout, at their query."""
        column = taken.key
        shared = self.base.layers[layer].value[:, None, :, column]  # (input, 1, head, d_head)
        read = value[:, :, column - self.start] if column >= self.start else shared
        z += taken.change(layer, pattern[:, :, :, taken.query - first, column], read)


def _copies(values: torch.Tensor, rows: int) -> torch.Tensor:
    """(input, …) to (input, row, …), each row its own copy."""
    return values[:, None].expand(-1, rows, *values.shape[1:]).clone()
