"""The fast path: carry only what changes, all rows together.

A change at layer l and position p can only reach positions ≥ p, above l. So the rows of one call that share their first position
`start` form a stream (pair, row, position ≥ start, d_model); everything before `start` is read from the base run and shared.

1. A row whose first change is a write (an edge, a head, a block's output) joins after the attention of that layer, as the base
   run's stream plus the change. One whose first change comes before (the residual stream, a knocked-out score) joins at its input.
2. A row that differs from the base at `start` alone is *narrow*: the MLP of its layer and the projections of the next run for that
   one position. One attention later it is wide.
3. The answer is read at the last position, so in the last layer only that query is computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int

from circuits.engine.cache import Cache, FromRun, Source
from circuits.engine.layout import Block, Layout, Rotation
from circuits.engine.rows import Change, Row, Site

Rows = Float[torch.Tensor, "pair row pos d_model"]


@dataclass(frozen=True, slots=True)
class Todo:
    """Changes of one site in one layer as index tensors: which row, which position, which head, which key."""

    row: Int[torch.Tensor, " change"]
    at: Int[torch.Tensor, " change"]
    head: Int[torch.Tensor, " change"]
    key: Int[torch.Tensor, " change"]

    @classmethod
    def of(cls, changes: Sequence[tuple[int, Change]], device: torch.device) -> Todo:
        table = torch.tensor([(row, c.position, c.head, c.key) for row, c in changes], device=device).reshape(-1, 4)
        return cls(*table.unbind(1))

    def among(self, rows: Sequence[int], *, first: int, total: int) -> Todo:
        """Only the changes of these rows (renumbered to their places in the list) from position `first` on (renumbered from 0)."""
        place = torch.full((total,), -1, device=self.row.device)
        place[list(rows)] = torch.arange(len(rows), device=self.row.device)
        kept = (place[self.row] >= 0) & (self.at >= first)
        return Todo(place[self.row[kept]], self.at[kept], self.head[kept], self.key[kept])

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows in the middle of a block, after its attention."""

    rows: list[int]
    narrow: bool
    stream: Rows
    written: Rows
    mlp: Rows | None  # given where it is known without computing it


def carry(
    layout: Layout, base: Cache, source: Source, rows: Sequence[Row], *, knockout: bool, budget: int
) -> Float[torch.Tensor, "pair row d_model"]:
    """The stream of every row at the last position above the last layer, at most `budget` bytes of rows at a time."""
    pairs, length, width = base.final.shape
    top = base.final.new_empty(pairs, len(rows), width)
    by_start: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_start[row.first_position].append(index)
    for start, group in by_start.items():
        group.sort(key=lambda index: rows[index].first_layer)
        numbers = pairs * (length - start) * (16 * width + 3 * layout.heads * length)  # live at once, per row
        step = max(1, budget // (numbers * base.final.element_size()))
        for chunk in (group[at : at + step] for at in range(0, len(group), step)):
            top[:, chunk] = _Stream(layout, base, source, [rows[index] for index in chunk], knockout=knockout).carry()
    return top


class _Stream:
    """Rows that share their first position, on their way up."""

    def __init__(self, layout: Layout, base: Cache, source: Source, rows: Sequence[Row], *, knockout: bool) -> None:
        self.layout, self.base, self.source, self.rows, self.knockout = layout, base, source, rows, knockout
        self.start = rows[0].first_position
        self.pairs, self.length, self.width = base.final.shape
        self.top_layer = len(layout.blocks)
        self.wide_rows: list[int] = []  # which row stands at each place of `wide`
        self.narrow_rows: list[int] = []
        self.wide: Rows = base.final.new_empty(self.pairs, 0, self.length - self.start, self.width)
        self.narrow: Rows = base.final.new_empty(self.pairs, 0, 1, self.width)
        self.joining: dict[tuple[int, bool, bool], list[int]] = defaultdict(list)  # (layer, late, narrow) -> rows
        changes: dict[tuple[int, Site], list[tuple[int, Change]]] = defaultdict(list)
        for index, row in enumerate(rows):
            self.joining[self._joins(row)].append(index)
            for change in row.changes:
                changes[change.layer, change.site].append((index, change))
        self.todo = {place: Todo.of(listed, base.final.device) for place, listed in changes.items()}

    def _joins(self, row: Row) -> tuple[int, bool, bool]:
        """At which layer, whether after its attention, and whether it differs from the base at `start` alone."""
        first = [change for change in row.changes if change.layer == row.first_layer]
        late = not self.knockout and all(change.site != "residual" for change in first)
        narrow = self.start < self.length - 1 and all(change.position == self.start for change in first)
        return row.first_layer, late, narrow and row.first_layer < self.top_layer - late

    def carry(self) -> Float[torch.Tensor, "pair row d_model"]:
        """Every row from where it joins to the top."""
        rotation = self.layout.positions(self.base.final)
        for layer, block in enumerate(self.layout.blocks):
            self._join_early(layer)
            parts = [self._pass(layer, block, rotation)] if self.wide_rows or self.narrow_rows else []
            parts += self._join_late(layer, block)
            if parts:
                self._finish(layer, block, parts)
        self._join_early(self.top_layer)
        top = self.base.final.new_empty(self.pairs, len(self.rows), self.width)
        top[:, self.wide_rows] = self.wide[:, :, -1]
        return top

    def _first(self, layer: int) -> int:
        """The first position that is still needed in the output of a layer: above the last block only the last is read."""
        return self.length - 1 if layer >= self.top_layer - 1 else self.start

    def _todo(self, layer: int, site: Site, rows: Sequence[int], first: int) -> Todo | None:
        listed = self.todo.get((layer, site))
        chosen = None if listed is None else listed.among(rows, first=first, total=len(self.rows))
        return chosen if chosen is not None and len(chosen) else None

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

    def _join_late(self, layer: int, block: Block) -> list[Part]:
        """Rows whose first change is a write of this layer: the base run's stream plus the change."""
        stored, run, parts = self.base.layers[layer], FromRun(self.base), []
        for narrow in (False, True):
            rows = self.joining.pop((layer, True, narrow), [])
            if not rows:
                continue
            first = self._first(layer)
            window = slice(first, self.start + 1 if narrow else None)
            change = stored.z.new_zeros(self.pairs, len(rows), len(range(self.length)[window]), *stored.z.shape[2:])
            if todo := self._todo(layer, "edge", rows, first):
                where = (layer, todo.head, todo.key, todo.at)
                _add_heads(change, todo, first, self.source.message(*where) - run.message(*where))
            if todo := self._todo(layer, "head", rows, first):
                new = self.source.head(layer, todo.head, todo.at)
                change[:, todo.row, todo.at - first, todo.head] = new - run.head(layer, todo.head, todo.at)
            written = stored.attention[:, None, window] + block.write_change(change)
            unchanged = _spread(stored.mlp[:, window], len(rows)) if self.layout.parallel else None
            parts.append(Part(rows, narrow, stored.pre[:, None, window], written, unchanged))
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

    def _pass(self, layer: int, block: Block, rotation: Rotation | None) -> Part:
        """Take every row under way through the attention of one block; afterwards all of them are wide."""
        rows, first = self.wide_rows + self.narrow_rows, self._first(layer)
        query, key, value = self._project(layer, block, rotation, first)
        pattern = self._attend(layer, query, key, rows, first)
        z = self._read(layer, pattern, value)
        if not self.knockout and (todo := self._todo(layer, "edge", rows, first)):
            now = self._message_now(layer, pattern, value, todo, first)
            _add_heads(z, todo, first, self.source.message(layer, todo.head, todo.key, todo.at) - now)
        if todo := self._todo(layer, "head", rows, first):
            z[:, todo.row, todo.at - first, todo.head] = self.source.head(layer, todo.head, todo.at)
        stream = torch.cat((self.wide, self._widened(layer)), 1)[:, :, first - self.start :]
        self.wide_rows, self.narrow, self.narrow_rows = [], self.narrow[:, :0], []
        return Part(rows, False, stream, block.write(z), None)

    def _finish(self, layer: int, block: Block, parts: Sequence[Part]) -> None:
        """From what attention writes to the output of the block, the MLP once for the positions of all rows."""
        first, fed = self._first(layer), []
        for part in parts:
            if todo := self._todo(layer, "attention", part.rows, first):
                part.written[:, todo.row, todo.at - first] = self.source.attention(layer, todo.at)
            if part.mlp is None:
                stream = part.stream if self.layout.parallel else part.stream + part.written
                fed.append(block.norm2(stream))
        computed: Iterator[torch.Tensor] = iter(())
        if fed:
            flat = fed[0].flatten(1, 2) if len(fed) == 1 else torch.cat([x.flatten(1, 2) for x in fed], 1)
            computed = iter(block.mlp(flat).split([x.shape[1] * x.shape[2] for x in fed], 1))
        for part in parts:
            mlp = next(computed).unflatten(1, part.written.shape[1:3]) if part.mlp is None else part.mlp
            if todo := self._todo(layer, "mlp", part.rows, first):
                mlp[:, todo.row, todo.at - first] = self.source.mlp(layer, todo.at)
            self._add(part.stream + part.written + mlp, part.rows, narrow=part.narrow)

    def _project(self, layer: int, block: Block, rotation: Rotation | None, first: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries from position `first`, keys and values from `start`: (pair, row, pos, head, d_head); narrow rows share the base's."""
        layout, stored = self.layout, self.base.layers[layer]
        assert stored.query is not None and stored.key is not None
        normed = block.norm1(self.wide)
        query = layout.queries(block, normed[:, :, first - self.start :], _turns(rotation, slice(first, None)))
        key, value = layout.keys_and_values(block, normed, _turns(rotation, slice(self.start, None)))
        if not self.narrow_rows:
            return query, key, value
        normed, turn = block.norm1(self.narrow), _turns(rotation, slice(self.start, self.start + 1))
        own = (layout.queries(block, normed, turn), *layout.keys_and_values(block, normed, turn))
        shared = (stored.query[:, :, first:], stored.key[:, :, self.start :], stored.value[:, :, self.start :])
        filled = [_spread(rearrange(x, "p h t d -> p t h d"), len(self.narrow_rows)) for x in shared]
        for new, whole in zip(own, filled, strict=True):
            if whole.shape[2] == self.length - self.start:  # in the last layer the one query that is read is not at `start`
                whole[:, :, :1] = new
        query, key, value = (torch.cat(both, 1) for both in zip((query, key, value), filled, strict=True))
        return query, key, value

    def _attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, rows: Sequence[int], first: int
    ) -> Float[torch.Tensor, "pair row head query key"]:
        """The pattern over all keys: those before `start` are the base run's, the others the row's own."""
        stored = self.base.layers[layer].key
        assert stored is not None
        before = rearrange(query, "p r q h d -> p h (r q) d") @ stored[:, :, : self.start].mT
        own = rearrange(query, "p r q h d -> p r h q d") @ rearrange(key, "p r k h d -> p r h d k")
        queries, keys = own.shape[-2:]
        future = torch.ones(queries, keys, dtype=torch.bool, device=own.device).triu(keys - queries + 1)
        before = rearrange(before, "p h (r q) k -> p r h q k", q=queries)
        scores = torch.cat((before, own.masked_fill_(future, -torch.inf)), -1) * self.layout.scale
        todo = self._todo(layer, "edge", rows, first) if self.knockout else None
        if todo is None:
            return self.layout.attend(scores)
        scores[:, todo.row, todo.head, todo.at - first, todo.key] = -torch.inf
        return self.layout.attend(scores).nan_to_num_(0.0)  # a head whose every key is knocked out writes nothing

    def _read(self, layer: int, pattern: torch.Tensor, value: torch.Tensor) -> Float[torch.Tensor, "pair row query head d_head"]:
        queries = pattern.shape[-2]
        before = rearrange(pattern[..., : self.start], "p r h q k -> p h (r q) k") @ self.base.layers[layer].value[:, :, : self.start]
        own = pattern[..., self.start :] @ rearrange(value, "p r k h d -> p r h k d")
        return (rearrange(before, "p h (r q) d -> p r q h d", q=queries) + rearrange(own, "p r h q d -> p r q h d")).contiguous()

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


def _add_heads(z: torch.Tensor, todo: Todo, first: int, change: Float[torch.Tensor, "pair change d_head"]) -> None:
    """Add to (pair, row, pos, head, d_head) in place; several keys of one head and query add up."""
    _, _, window, heads, _ = z.shape
    z.flatten(1, 3).index_add_(1, (todo.row * window + todo.at - first) * heads + todo.head, change.expand(len(z), -1, -1))


def _turns(rotation: Rotation | None, window: slice) -> Rotation | None:
    return None if rotation is None else (rotation[0][window], rotation[1][window])
