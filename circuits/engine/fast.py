"""The fast path: carry only what changes, all rows together.

A change at layer l and position p can only reach positions ≥ p, above l. So rows that share their first position `start` form a
stream (pair, row, position ≥ start, d_model); everything before `start` is read from the base run and shared.

1. A row whose first change is a write (an edge, a head, a block's output) joins after the attention of that layer, as the base
   run's stream plus the change. One whose first change comes before (the residual stream, a knocked-out score) joins at its input.
2. A row that differs from the base at `start` alone is *narrow*: the MLP of its layer and the projections of the next run for that
   one position. One attention later it is wide.
3. The answer is read at the last position, so in the last layer only that query is computed.
4. Rows climb (`climb`) with the runs that they change, or behind them; streams of several starts climb together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int

from circuits.engine.cache import Cache, FromRun, Source
from circuits.engine.climb import Traveller, climb, turns
from circuits.engine.layout import Layout
from circuits.engine.rows import Change, Row, Site

Rows = Float[torch.Tensor, "pair row pos d_model"]
Heads = Float[torch.Tensor, "pair row pos head d_head"]


@dataclass(frozen=True, slots=True)
class Todo:
    """Changes of one site in one layer as index tensors: which row, which position, which head, which key."""

    row: Int[torch.Tensor, " change"]
    at: Int[torch.Tensor, " change"]
    head: Int[torch.Tensor, " change"]
    key: Int[torch.Tensor, " change"]

    @classmethod
    def of(cls, changes: Sequence[tuple[int, Change]], device: torch.device) -> Todo:
        table = torch.tensor([(row, c.position, c.head, c.key) for row, c in changes], device=device).reshape(
            -1, 4
        )
        return cls(*table.unbind(1))


@dataclass(frozen=True, slots=True)
class Part:
    """Rows in the middle of a block, after its attention. The stream may be one for all of them."""

    rows: list[int]
    narrow: bool
    stream: Rows
    z: Heads


def carry(
    layout: Layout,
    base: Cache,
    source: Source,
    rows: Sequence[Row],
    *,
    knockout: bool,
    budget: int,
    along: Sequence[Traveller] = (),
) -> Float[torch.Tensor, "pair row d_model"]:
    """The stream of every row at the last position above the last layer, at most `budget` bytes of rows at a time.

    Where base and source are still to be run, `along` holds their travellers: they climb with the first rows.
    """
    top = base.final.new_empty(len(base.final), len(rows), base.final.shape[-1])
    for chunk in _chunks(layout, base, rows, budget):
        by_start: dict[int, list[int]] = defaultdict(list)
        for index in chunk:
            by_start[rows[index].first_position].append(index)
        streams = [
            _Stream(layout, base, source, [rows[index] for index in group], knockout=knockout)
            for group in by_start.values()
        ]
        climb(layout, [*along, *(stream.travel() for stream in streams)])
        along = ()
        for group, stream in zip(by_start.values(), streams, strict=True):
            top[:, group] = stream.top()
    climb(layout, along)
    return top


def _chunks(layout: Layout, base: Cache, rows: Sequence[Row], budget: int) -> Iterator[list[int]]:
    """The rows in the order in which they join, as many at a time as the budget holds, at least one."""
    pairs, length, width = base.final.shape
    position = (
        pairs * (16 * width + 3 * layout.heads * length) * base.final.element_size()
    )  # live at once, per position of a row
    chunk: list[int] = []
    held = 0
    for index in sorted(range(len(rows)), key=lambda index: rows[index].first_layer):
        needed = position * (length - rows[index].first_position)
        if chunk and held + needed > budget:
            yield chunk
            chunk, held = [], 0
        chunk.append(index)
        held += needed
    if chunk:
        yield chunk


class _Stream:
    """Rows that share their first position, on their way up."""

    def __init__(
        self, layout: Layout, base: Cache, source: Source, rows: Sequence[Row], *, knockout: bool
    ) -> None:
        self.layout, self.base, self.source, self.rows, self.knockout = layout, base, source, rows, knockout
        self.start = rows[0].first_position
        self.pairs, self.length, self.width = base.final.shape
        self.top_layer = len(layout.blocks)
        self.rotation = turns(layout.positions(base.final), slice(self.start, None))
        self.wide_rows: list[int] = []  # which row stands at each place of `wide`
        self.narrow_rows: list[int] = []
        self.wide: Rows = base.final.new_empty(self.pairs, 0, self.length - self.start, self.width)
        self.narrow: Rows = base.final.new_empty(self.pairs, 0, 1, self.width)
        self.joining: dict[tuple[int, bool, bool], list[int]] = defaultdict(
            list
        )  # (layer, late, narrow) -> rows
        self.changes: dict[tuple[int, Site], list[tuple[int, Change]]] = defaultdict(list)
        for index, row in enumerate(rows):
            self.joining[self._joins(row)].append(index)
            for change in row.changes:
                self.changes[change.layer, change.site].append((index, change))

    def _joins(self, row: Row) -> tuple[int, bool, bool]:
        """At which layer, whether after its attention, and whether it differs from the base at `start` alone."""
        lowest = row.first_layer
        first = [change for change in row.changes if change.layer == lowest]
        late = not self.knockout and all(change.site != "residual" for change in first)
        narrow = self.start < self.length - 1 and all(change.position == self.start for change in first)
        return lowest, late, narrow and lowest < self.top_layer - late

    def travel(self) -> Traveller:
        """Every row from where it joins to the top."""
        for layer in range(self.top_layer):
            self._join_early(layer)
            projected = yield [self.wide, self.narrow]
            parts = [*self._attend(layer, *projected), *self._join_late(layer)]
            written = yield [part.z.flatten(-2) for part in parts]
            middle = [self._middle(layer, part, own) for part, own in zip(parts, written, strict=True)]
            added = yield [part.stream for part in parts] if self.layout.parallel else middle
            self._leave(layer, parts, middle, added)
        self._join_early(self.top_layer)
        yield []

    def top(self) -> Float[torch.Tensor, "pair row d_model"]:
        top = self.wide.new_empty(self.pairs, len(self.rows), self.width)
        top[:, self.wide_rows] = self.wide[:, :, -1]
        return top

    def _first(self, layer: int) -> int:
        """The first position that is still needed in the output of a layer: above the last block only the last is read."""
        return self.length - 1 if layer >= self.top_layer - 1 else self.start

    def _todo(self, layer: int, site: Site, rows: Sequence[int], first: int) -> Todo | None:
        """The changes of these rows (numbered by their places in the list) from position `first` on."""
        if not (listed := self.changes.get((layer, site))):
            return None
        place = {row: at for at, row in enumerate(rows)}
        chosen = [(place[row], change) for row, change in listed if row in place and change.position >= first]
        return Todo.of(chosen, self.wide.device) if chosen else None

    # Joining

    def _join_early(self, layer: int) -> None:
        """Rows whose residual stream (or scores) change at the input of this layer, and rows under way that change again."""
        if self._todo(layer, "residual", self.wide_rows + self.narrow_rows, 0) is not None:
            if self.narrow_rows:
                self._add(self._widened(layer), self.narrow_rows, narrow=False)
                self.narrow, self.narrow_rows = self.narrow[:, :0], []
            self._set_residual(layer, self.wide, self.wide_rows, self.length - self.wide.shape[2])
        for narrow in (False, True):
            rows = self.joining.pop((layer, False, narrow), [])
            if rows:
                first = self.length - 1 if layer == self.top_layer else self.start
                last = self.start + 1 if narrow else None
                joined = _spread(self.base.pre(layer)[:, first:last], len(rows))
                self._set_residual(layer, joined, rows, first)
                self._add(joined, rows, narrow=narrow)

    def _set_residual(self, layer: int, stream: Rows, rows: Sequence[int], first: int) -> None:
        if todo := self._todo(layer, "residual", rows, first):
            stream[:, todo.row, todo.at - first] = self.source.residual(layer, todo.at)

    def _join_late(self, layer: int) -> list[Part]:
        """Rows whose first change is a write of this layer: the base run's stream plus the change."""
        stored, run, parts = self.base.layers[layer], FromRun(self.base), []
        for narrow in (False, True):
            rows = self.joining.pop((layer, True, narrow), [])
            if not rows:
                continue
            first = self._first(layer)
            window = slice(first, self.start + 1 if narrow else None)
            z = _spread(stored.z[:, window], len(rows))
            if todo := self._todo(layer, "edge", rows, first):
                where = (layer, todo.head, todo.key, todo.at)
                _add_heads(z, todo, first, self.source.message(*where) - run.message(*where))
            self._set_heads(layer, z, rows)
            parts.append(Part(rows, narrow, stored.pre[:, None, window], z))
        return parts

    def _add(self, stream: Rows, rows: list[int], *, narrow: bool) -> None:
        if narrow:
            self.narrow, self.narrow_rows = torch.cat((self.narrow, stream), 1), self.narrow_rows + rows
        else:
            self.wide = torch.cat((self.wide, stream), 1) if self.wide_rows else stream
            self.wide_rows = self.wide_rows + rows

    def _widened(self, layer: int) -> Rows:
        """The narrow rows with the base run's stream at the positions where they do not differ."""
        wide = _spread(self.base.pre(layer)[:, self.start :], len(self.narrow_rows))
        wide[:, :, :1] = self.narrow
        return wide

    # One block

    def _attend(self, layer: int, wide: torch.Tensor, narrow: torch.Tensor) -> list[Part]:
        """Take every row under way through the attention of one block; afterwards all of them are wide."""
        rows, first = self.wide_rows + self.narrow_rows, self._first(layer)
        if not rows:
            return []
        query, key, value = self._heads(layer, wide, narrow, first)
        pattern = self._pattern(layer, query, key, rows, first)
        z = self._read(layer, pattern, value)
        if not self.knockout and (todo := self._todo(layer, "edge", rows, first)):
            now = self._message_now(layer, pattern, value, todo, first)
            _add_heads(z, todo, first, self.source.message(layer, todo.head, todo.key, todo.at) - now)
        self._set_heads(layer, z, rows)
        needed = slice(first - self.start, None)
        stream = (
            torch.cat((self.wide[:, :, needed], self._widened(layer)[:, :, needed]), 1)
            if self.narrow_rows
            else self.wide[:, :, needed]
        )
        return [Part(rows, False, stream, z)]

    def _middle(self, layer: int, part: Part, written: Rows) -> Rows:
        """The stream after the attention."""
        if todo := self._todo(layer, "attention", part.rows, self._first(layer)):
            written[:, todo.row, todo.at - self._first(layer)] = self.source.attention(layer, todo.at)
        return part.stream + written

    def _leave(self, layer: int, parts: Sequence[Part], middle: list[Rows], added: list[Rows]) -> None:
        """The output of the block."""
        self.wide_rows, self.narrow, self.narrow_rows = [], self.narrow[:, :0], []
        for part, stream, mlp in zip(parts, middle, added, strict=True):
            if todo := self._todo(layer, "mlp", part.rows, self._first(layer)):
                mlp = mlp.expand_as(stream).clone()
                mlp[:, todo.row, todo.at - self._first(layer)] = self.source.mlp(layer, todo.at)
            self._add(stream.add_(mlp), part.rows, narrow=part.narrow)

    def _heads(
        self, layer: int, wide: torch.Tensor, narrow: torch.Tensor, first: int
    ) -> tuple[Heads, Heads, Heads]:
        """Queries from position `first`, keys and values from `start`; narrow rows share the base's everywhere but at `start`."""
        stored, rows = self.base.layers[layer], len(self.narrow_rows)
        assert stored.query is not None and stored.key is not None
        found = list(self.layout.heads_of(wide, self.rotation))
        if rows:
            own = self.layout.heads_of(narrow, turns(self.rotation, slice(0, 1)))
            for at, shared in enumerate((stored.query, stored.key, stored.value)):
                rest = _spread(rearrange(shared[:, :, self.start + 1 :], "p h t d -> p t h d"), rows)
                found[at] = torch.cat((found[at], torch.cat((own[at], rest), 2)), 1)
        query, key, value = found
        return query[:, :, first - self.start :], key, value

    def _pattern(
        self, layer: int, query: Heads, key: Heads, rows: Sequence[int], first: int
    ) -> Float[torch.Tensor, "pair row head query key"]:
        """The pattern over all keys: those before `start` are the base run's, the others the row's own."""
        stored = self.base.layers[layer].key
        assert stored is not None
        before = rearrange(query, "p r q h d -> p h (r q) d") @ stored[:, :, : self.start].mT
        own = rearrange(query, "p r q h d -> p r h q d") @ rearrange(key, "p r k h d -> p r h d k")
        queries, keys = own.shape[-2:]
        future = torch.ones(queries, keys, dtype=torch.bool, device=own.device).triu(keys - queries + 1)
        before = rearrange(before, "p h (r q) k -> p r h q k", q=queries)
        scores = torch.cat((before, own.masked_fill_(future, -torch.inf)), -1).mul_(self.layout.scale)
        todo = self._todo(layer, "edge", rows, first) if self.knockout else None
        if todo is None:
            return self.layout.attend(scores)
        scores[:, todo.row, todo.head, todo.at - first, todo.key] = -torch.inf
        return self.layout.attend(scores).nan_to_num_(
            0.0
        )  # a head whose every key is knocked out writes nothing

    def _read(
        self, layer: int, pattern: torch.Tensor, value: torch.Tensor
    ) -> Float[torch.Tensor, "pair row query head d_head"]:
        queries = pattern.shape[-2]
        before = (
            rearrange(pattern[..., : self.start], "p r h q k -> p h (r q) k")
            @ self.base.layers[layer].value[:, :, : self.start]
        )
        own = pattern[..., self.start :] @ rearrange(value, "p r k h d -> p r h k d")
        return (
            rearrange(before, "p h (r q) d -> p r q h d", q=queries)
            + rearrange(own, "p r h q d -> p r q h d")
        ).contiguous()

    def _set_heads(self, layer: int, z: Heads, rows: Sequence[int]) -> None:
        first = self._first(layer)
        if todo := self._todo(layer, "head", rows, first):
            z[:, todo.row, todo.at - first, todo.head] = self.source.head(layer, todo.head, todo.at)

    def _message_now(
        self, layer: int, pattern: torch.Tensor, value: torch.Tensor, todo: Todo, first: int
    ) -> Float[torch.Tensor, "pair change d_head"]:
        """The message that each edge carries in its own row at this moment."""
        weight = pattern[:, todo.row, todo.head, todo.at - first, todo.key]
        shared = self.base.layers[layer].value[:, todo.head, todo.key]
        own = value[:, todo.row, (todo.key - self.start).clamp(min=0), todo.head]
        return weight[..., None] * torch.where((todo.key >= self.start)[:, None], own, shared)


def _spread(values: torch.Tensor, rows: int) -> torch.Tensor:
    """(pair, …) to (pair, row, …), each row its own copy."""
    return values[:, None].expand(-1, rows, *values.shape[1:]).clone()


def _add_heads(
    z: torch.Tensor, todo: Todo, first: int, change: Float[torch.Tensor, "pair change d_head"]
) -> None:
    """Add to (pair, row, pos, head, d_head) in place; several keys of one head and query add up."""
    _, _, window, heads, _ = z.shape
    z.flatten(1, 3).index_add_(
        1, (todo.row * window + todo.at - first) * heads + todo.head, change.expand(len(z), -1, -1)
    )
