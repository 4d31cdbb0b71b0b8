"""The fast path: carry only what changes.

A change at layer l and position p can only reach positions ≥ p, above l. So rows that share their first
position `start` form a stream (input, row, position ≥ start, d_model); everything before `start` is read from
the base run and shared. Streams climb together (`engine.streams`).

1. A row whose first change is a write (an edge, a head, a block's output) joins after the attention of that
   layer, as the base run's stream plus the change. One whose first change comes before (the residual stream,
   a knocked-out score) joins at its input.
2. A row that differs from the base at `start` alone is *narrow*: the MLP of its layer and the projections of
   the next run for that one position. One attention later it is wide.
3. Many rows that change one head each take a shorter way through the block in which they join
   (`Block.above_heads`).
4. In the last block only the queries are computed that the metric reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from einops import rearrange
from jaxtyping import Float

from circuits.engine.block import Heads
from circuits.engine.layout import Layout
from circuits.engine.streams import (
    MOST_SCORES,
    Cache,
    Change,
    ChangeTable,
    NewValues,
    Row,
    Site,
    Taken,
    Tensors,
    WholeRun,
    climb,
    copies,
    joined,
    windows,
)

Rows = Float[torch.Tensor, "input row pos d_model"]
RowHeads = Float[torch.Tensor, "input row pos head d_head"]
RowQueries = Float[torch.Tensor, "input row query head d_head"]
Joining = tuple[int, bool, bool]  # layer, late, narrow


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
    joins = [(row.first_layer, row.changes[0].head, row.first_position) for row in rows]
    for index in sorted(range(len(rows)), key=joins.__getitem__):  # rows of one head stand together
        positions = length - joins[index][2]
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
        top = copies(self.base.final[:, -self.tail :], len(self.rows))
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
                joined = copies(self.base.pre(layer)[:, window], len(rows))
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
            z = copies(stored.z[:, window], len(rows))
            if table := self._table(layer, "edge", rows):
                now = NewValues(self.base).message(layer, table.head, table.key, table.position)
                self._swap_edges(layer, z, table, now, first)
            self._set_heads(layer, z, rows)
            parts.append(Part(rows, narrow, stored.pre[:, None, window], z))
        return parts

    def _one_head_each(self, layer: int, rows: Sequence[int], window: slice) -> dict[int, int]:
        """The head that each row changes here, in the order of heads, where each changes one and they are
        many enough for a product of its own to pay; else nothing."""
        is_half = self.base.final.dtype not in (torch.float32, torch.float64)  # which would round otherwise
        if is_half or not self.layout.splits_heads or (layer, "head") not in self.changes:
            return {}
        heads = {row: self._head_of(row, layer) for row in rows}
        streams = self.inputs * len(rows) * len(range(self.length)[window])
        few = 2 * len(set(heads.values())) * self.layout.blocks[layer].d_head
        if streams <= few or -1 in heads.values():
            return {}
        return dict(sorted(heads.items(), key=itemgetter(1)))

    def _head_of(self, row: int, layer: int) -> int:
        """The head whose output a row changes in a layer; -1 where that is not all that it changes there."""
        (site, head), *more = {(c.site, c.head) for c in self.rows[row].changes if c.layer == layer}
        return head if site == "head" and not more else -1

    def _above_heads(self, layer: int, by_head: dict[int, int], window: slice) -> Rows:
        """The stream above this block of rows that change one head each."""
        stored, block = self.base.layers[layer], self.layout.blocks[layer]
        table, positions = self._table(layer, "head", list(by_head)), len(range(self.length)[window])
        assert table is not None
        change = stored.z.new_zeros(self.inputs, len(by_head), positions, block.d_head)
        old = stored.z[:, table.position, table.head]
        new = self.new.values(layer, "head", table)
        change[:, table.row, table.position - self._first(layer)] = new - old
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
        wide = copies(self.base.pre(layer)[:, self.start :], len(self.narrow_rows))
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
        read = [
            self._read(layer, query[:, :, window], key, value, rows, first + window.start)
            for window in windows(query.shape[2], numbers)
        ]
        z = joined(read, 2)
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
                rest = copies(rearrange(shared[:, :, self.start + 1 :], "i h t d -> i t h d"), count)
                whole = torch.cat((own[kind], rest), 2)[:, :, -heads[kind].shape[2] :]
                heads[kind] = torch.cat((heads[kind], whole), 1)
        return heads[0], heads[1], heads[2]

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
