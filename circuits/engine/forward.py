"""The one walk through a model's blocks.

`Forward.run` takes streams from layer to layer: in every block the heads read and write, then the MLP reads
and writes. Subclasses say what differs from a plain run:

1. `RowForward` runs many rows on top of a base run that was kept. A change at layer l and position p can
   only reach positions ≥ p above layer l. So rows that share their first position `start` are carried
   together, as streams (input, row, pos ≥ start, d_model). Keys and values before `start` are those of the
   base run, shared by all rows. A row joins the batch in the layer of its first change.
2. `whole.KeptRun` runs prompts from their embeddings and keeps what it computes.
3. `kept.CircuitForward` gives every reader a stream of its own.

Output projection and MLP act on each position alone. They see a list of *places*: one position of one row
each. So active rows and rows that join in this block share one product with each matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float

from circuits.engine.cache import Cache, Layer, Replacement
from circuits.engine.layout import AnyBlock, PromptBlock
from circuits.engine.memory import windows
from circuits.engine.rows import ChangeTable, Indices, Row, Site, changes_by_site

Streams = Float[torch.Tensor, "input row pos d_model"]
# With rows that have joined.
MoreStreams = Float[torch.Tensor, "input rows pos d_model"]
RowHeads = Float[torch.Tensor, "input row pos head d_head"]
Queries = Float[torch.Tensor, "input row query head d_head"]
RowPatterns = Float[torch.Tensor, "input row head query key"]
Places = Float[torch.Tensor, "input place d_model"]
PlaceHeads = Float[torch.Tensor, "input place head d_head"]


class Forward(ABC):
    """A run through the blocks. `run` and `step` are the walk; subclasses change the other methods."""

    def __init__(self, blocks: Sequence[AnyBlock]) -> None:
        self.blocks = blocks

    def run(self, stream: torch.Tensor) -> torch.Tensor:
        """Take streams from the input of layer 0 to above the last block."""
        for layer in range(len(self.blocks)):
            stream = self.step(layer, self.enter(layer, stream))
        return stream

    def step(self, layer: int, stream: torch.Tensor) -> torch.Tensor:
        """Take streams through one block."""
        read, z = self.heads(layer, stream)
        middle = read + self.attention_write(layer, z)
        read_by_mlp = read if self.blocks[layer].parallel else middle
        written = middle + self.mlp_write(layer, read_by_mlp)
        return self.leave(layer, written)

    def enter(self, layer: int, stream: torch.Tensor) -> torch.Tensor:
        """The streams at the input of a block."""
        return stream

    @abstractmethod
    def heads(self, layer: int, stream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The streams at the places that the block writes to, and every head's output `z` there."""
        ...

    @abstractmethod
    def attention_write(self, layer: int, z: torch.Tensor) -> torch.Tensor:
        """What attention adds at these places."""
        ...

    @abstractmethod
    def mlp_write(self, layer: int, stream: torch.Tensor) -> torch.Tensor:
        """What the MLP adds at these places, from the streams that it reads there."""
        ...

    def leave(self, layer: int, stream: torch.Tensor) -> torch.Tensor:
        """The streams above a block, from what stands at its places."""
        return stream


class Numbering:
    """The numbers of one block's places: every computed position of the active rows, row by row, then the
    positions at which joining rows change something.

    Where row 0 is active at positions 6…8 and row 1 joins with a change at 8, the places (0, 6), (0, 7),
    (0, 8), (1, 8) have the numbers 0…3.
    """

    def __init__(self, active: Sequence[int], positions: range) -> None:
        self.positions = positions
        self.order = {row: number for number, row in enumerate(active)}
        self.joining: dict[tuple[int, int], int] = {}  # (row, position) -> number

    @property
    def first_joining(self) -> int:
        """The number of the first place of a joining row."""
        return len(self.order) * len(self.positions)

    def join(self, row: int, position: int) -> None:
        """Number a place of a joining row, if it has no number yet."""
        if (row, position) not in self.joining:
            self.joining[row, position] = self.first_joining + len(self.joining)

    def of(self, row: int, position: int) -> int | None:
        """The number of a place; None where the block does not write at it."""
        if row not in self.order:
            return self.joining.get((row, position))
        if position not in self.positions:
            return None
        return self.order[row] * len(self.positions) + position - self.positions.start


class RowForward(Forward):
    """Rows that share their first position, on top of a base run."""

    blocks: tuple[PromptBlock, ...]

    def __init__(
        self,
        blocks: tuple[PromptBlock, ...],
        base: Cache | None,
        rows: Sequence[Row],
        new: Replacement | None = None,
        *,
        start: int,
        read: int,
        budget: int,
        knockout: bool = False,
    ) -> None:
        super().__init__(blocks)
        self.base = base
        self.rows = rows
        self.new = new
        self.start = start  # the first position at which any row differs from the base
        self.read = read  # how many positions at the end are read above the last block
        self.budget = budget
        self.knockout = knockout
        self.length = blocks[0].length
        self.device = blocks[0].mask.device
        self.changes = changes_by_site(rows)
        self.active: list[int] = []  # rows that have joined, in the order of the streams
        self.places = Numbering((), range(0))  # of the present block
        self.joining_at_input: dict[int, list[int]] = defaultdict(list)  # layer -> rows
        self.joining_inside: dict[int, list[int]] = defaultdict(list)

    def _plan(self, number: int, row: Row) -> None:
        """A row joins at the input of the layer of its first change if the change is made there: of the
        residual stream, or of a score (knockout). Otherwise the row joins inside that layer, at the few
        positions where the layer writes something else."""
        first = row.first_layer
        sites = {change.site for change in row.changes if change.layer == first}
        if self.knockout or "residual" in sites:
            self.joining_at_input[first].append(number)
        else:
            self.joining_inside[first].append(number)

    def top(self) -> Float[torch.Tensor, "input row read d_model"]:
        """Run all rows and return their streams above the last block, where they are read."""
        assert self.base is not None
        for number, row in enumerate(self.rows):
            if row.changes:
                self._plan(number, row)
        inputs, _, width = self.base.final.shape
        nothing = self.base.final.new_empty(inputs, 0, self.length - self.start, width)
        stream = self.enter(len(self.blocks), self.run(nothing))
        top = self.base.final[:, None, -self.read :].repeat(1, len(self.rows), 1, 1)
        # Rows that start after the first position that is read are the base run's before `start`.
        computed = stream.shape[2]
        top[:, self.active, -computed:] = stream
        return top

    # Rows join the batch

    def enter(self, layer: int, stream: Streams) -> MoreStreams:
        """Let rows join that change the stream or a score of this layer, and put in their new streams."""
        joining = self.joining_at_input.get(layer)
        if joining:
            stream = self._join(stream, joining, self._copies_of_base(layer, len(joining)))
        # The first position of the streams: `start`, or above the last block the first that is read.
        first = self.length - stream.shape[2]
        table = self._changes_of_streams(layer, "residual", first, self.length)
        if table is not None:
            new = self._new_values(layer, "residual", table)
            stream[:, table.row, table.position - first] = new
        return stream

    def _copies_of_base(self, layer: int, rows: int) -> Streams:
        """The base run's stream at the input of a layer, from `start` on, for each of so many rows. Above the
        last block only what is read."""
        assert self.base is not None
        stream = self.base.pre(layer)[:, None, self.start :]
        if layer == len(self.blocks):
            stream = stream[:, :, -self.read :]
        return stream.repeat(1, rows, 1, 1)

    def _join(
        self,
        stream: Streams,
        rows: list[int],
        joined: Float[torch.Tensor, "input joining pos d_model"],
    ) -> MoreStreams:
        """Put rows after the active ones; `joined` are their streams."""
        stream = torch.cat((stream, joined), 1) if self.active else joined
        self.active = self.active + rows
        return stream

    def heads(self, layer: int, stream: Streams) -> tuple[Places, PlaceHeads]:
        """Active rows attend. Rows that join here equal the base run below this layer, so their `z` is the
        base run's, with this layer's changes."""
        z = self._attend_all(layer, stream)
        positions = z.shape[2]
        places = stream[:, :, -positions:].flatten(1, 2)
        z = z.flatten(1, 2)
        self.places = self._numbered(layer, positions)
        if not self.places.joining:
            return places, z
        stored = self._base_layer(layer)
        at = [position for _, position in self.places.joining]
        joining = stored.pre[:, at]
        joining_z = self._changed_z(layer, stored, stored.z[:, at])
        return torch.cat((places, joining), 1), torch.cat((z, joining_z), 1)

    def _numbered(self, layer: int, positions: int) -> Numbering:
        """The places of this block. In the last block those that are not read later are left out."""
        places = Numbering(self.active, range(self.length - positions, self.length))
        first_read = self.length - self.read if layer == len(self.blocks) - 1 else 0
        for row in self.joining_inside.get(layer, ()):
            for change in self.rows[row].changes:
                if change.layer == layer and change.position >= first_read:
                    places.join(row, change.position)
        return places

    def _changed_z(self, layer: int, stored: Layer, z: PlaceHeads) -> PlaceHeads:
        """The base run's `z` at the places of joining rows, with their edges and heads changed."""
        first = self.places.first_joining
        heads = self._changes_at_places(layer, "head", first)
        edges = self._changes_at_places(layer, "edge", first)
        if edges is not None:
            old = stored.messages(edges.head, edges.key, edges.position)
            change = self._new_messages(layer, edges) - old
            add_to_heads(z, edges.row - first, edges.head, change)
        if heads is not None:
            z[:, heads.row - first, heads.head] = self._new_values(layer, "head", heads)
        return z

    def leave(self, layer: int, stream: Places) -> Streams:
        """Give the active rows their streams back, and add those that joined inside: the base run's stream
        above the block, except at their places."""
        places = self.places
        first = places.first_joining
        active = stream[:, :first].unflatten(1, (len(places.order), len(places.positions)))
        joining = self.joining_inside.get(layer)
        if not joining:
            return active
        joined = self._copies_of_base(layer + 1, len(joining))
        if places.joining:
            order = {row: number for number, row in enumerate(joining)}
            which = [order[row] for row, _ in places.joining]
            # Counted from the end: above the last block there are only the positions that are read.
            where = [position - self.length for _, position in places.joining]
            joined[:, which, where] = stream[:, first:]
        return self._join(active, joining, joined)

    # Changes

    def _changes_of_streams(
        self, layer: int, site: Site, first: int, stop: int
    ) -> ChangeTable | None:
        """Changes of active rows at positions first…stop−1; `row` is the row's order in the streams."""
        listed = self.changes.get((layer, site))
        if not listed:
            return None
        order = {row: number for number, row in enumerate(self.active)}
        chosen = []
        for row, change in listed:
            if row in order and first <= change.position < stop:
                chosen.append((order[row], change))
        return ChangeTable.of(chosen, self.device) if chosen else None

    def _changes_at_places(self, layer: int, site: Site, first: int = 0) -> ChangeTable | None:
        """Changes at the places from number `first` on; `row` is the number of the place."""
        chosen = []
        for row, change in self.changes.get((layer, site), ()):
            place = self.places.of(row, change.position)
            if place is not None and place >= first:
                chosen.append((place, change))
        return ChangeTable.of(chosen, self.device) if chosen else None

    def attention_write(self, layer: int, z: PlaceHeads) -> Places:
        return self._replaced(layer, "attention", self.blocks[layer].write(z))

    def mlp_write(self, layer: int, stream: Places) -> Places:
        return self._replaced(layer, "mlp", self.blocks[layer].block.mlp_write(stream))

    def _replaced(self, layer: int, site: Site, written: Places) -> Places:
        """Put new values in the place of what a block writes."""
        table = self._changes_at_places(layer, site)
        if table is not None:
            written[:, table.row] = self._new_values(layer, site, table)
        return written

    def _new_values(
        self, layer: int, site: Site, table: ChangeTable
    ) -> Float[torch.Tensor, "input change width"]:
        """What each change of a site puts in its place."""
        assert self.new is not None
        return self.new.values(layer, site, table)

    def _new_messages(
        self, layer: int, table: ChangeTable
    ) -> Float[torch.Tensor, "input change d_head"]:
        """The message that each edge is given."""
        assert self.new is not None
        return self.new.messages(layer, table.head, table.key, table.position)

    def _base_layer(self, layer: int) -> Layer:
        """What the base run computed in a block."""
        assert self.base is not None
        return self.base.layers[layer]

    # Attention of the active rows

    def _attend_all(self, layer: int, stream: Streams) -> Queries:
        """What the heads read at all positions; in the last block, at those that are read later."""
        bound = self.blocks[layer]
        block = bound.block
        if not self.active:
            inputs, _, positions, _ = stream.shape
            return stream.new_empty(inputs, 0, positions, block.heads, block.d_head)
        rotation = None if bound.rotation is None else bound.rotation[:, self.start :]
        query, key, value = block.queries_keys_values(stream, rotation)
        if layer == len(self.blocks) - 1:
            query = query[:, :, -self.read :]
        return self._attend(layer, query, key, value)

    def _attend(self, layer: int, query: Queries, key: RowHeads, value: RowHeads) -> Queries:
        """What the heads read, in windows of queries that bound the scores in memory."""
        inputs, rows, queries, heads, _ = query.shape
        first = self.length - queries
        scores_a_query = inputs * rows * heads * self.length
        parts = []
        for window in windows(queries, scores_a_query, self.budget):
            some = query[:, :, window]
            parts.append(self._attend_window(layer, some, key, value, first + window.start))
        z = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        table = self._changes_of_streams(layer, "head", first, self.length)
        if table is not None:
            new = self._new_values(layer, "head", table)
            z[:, table.row, table.position - first, table.head] = new
        return z

    def _attend_window(
        self, layer: int, query: Queries, key: RowHeads, value: RowHeads, first: int
    ) -> Queries:
        """What the heads read at the queries from `first` on, with the rows' edges changed."""
        edges = self._changes_of_streams(layer, "edge", first, first + query.shape[2])
        pattern = self._pattern(layer, query, key, first, edges if self.knockout else None)
        z = self._read_values(layer, pattern, value)
        if edges is not None and not self.knockout:
            self._replace_messages(layer, z, edges, pattern, value, first)
        return z

    def _pattern(
        self,
        layer: int,
        query: Queries,
        key: RowHeads,
        first: int,
        knocked_out: ChangeTable | None,
    ) -> RowPatterns:
        """The attention weights over all keys: those before `start` are the base run's."""
        bound = self.blocks[layer]
        own_queries = rearrange(query, "i r q h d -> i r h q d")
        own_keys = rearrange(key, "i r k h d -> i r h d k")
        products = own_queries @ own_keys  # (input, row, head, query, key from `start` on)
        if self.start:
            # All rows read the same earlier keys, so one product serves them all.
            all_queries = rearrange(query, "i r q h d -> i h (r q) d")
            flat = all_queries @ self._before_start(layer, "key").mT
            earlier = rearrange(flat, "i h (r q) k -> i r h q k", r=query.shape[1])
            products = torch.cat((earlier, products), -1)  # (input, row, head, query, key)
        scores = bound.block.scores(products, bound.mask[first : first + query.shape[2]])
        if knocked_out is None:
            return bound.block.weights(scores)
        table = knocked_out
        scores[:, table.row, table.head, table.position - first, table.key] = -torch.inf
        # A head without any key left writes nothing.
        return bound.block.weights(scores).nan_to_num_(0.0)

    def _read_values(self, layer: int, pattern: RowPatterns, value: RowHeads) -> Queries:
        """What the heads read by their attention weights."""
        z = pattern[..., self.start :] @ rearrange(value, "i r k h d -> i r h k d")
        if self.start:
            flat = rearrange(pattern[..., : self.start], "i r h q k -> i h (r q) k")
            earlier = flat @ self._before_start(layer, "value")
            z = z + rearrange(earlier, "i h (r q) d -> i r h q d", r=pattern.shape[1])
        return rearrange(z, "i r h q d -> i r q h d").contiguous()

    def _before_start(
        self, layer: int, side: str
    ) -> Float[torch.Tensor, "input head key d_head"]:
        """Keys or values of the base run before `start`."""
        stored = self._base_layer(layer)
        whole = stored.value if side == "value" else stored.key
        assert whole is not None
        return whole[:, :, : self.start]

    def _replace_messages(
        self,
        layer: int,
        z: Queries,
        table: ChangeTable,
        pattern: RowPatterns,
        value: RowHeads,
        first: int,
    ) -> None:
        """Take the message that each edge carries in its row out of `z`, and put the new one in."""
        weight = pattern[:, table.row, table.head, table.position - first, table.key]
        # The value at a key before `start` is the base run's, at a later one the row's own.
        is_own = table.key >= self.start
        own = value[:, table.row, (table.key - self.start).clamp(min=0), table.head]
        shared = self._base_layer(layer).value[:, table.head, table.key]
        read = torch.where(is_own[:, None], own, shared)  # (input, change, d_head)
        change = self._new_messages(layer, table) - weight[..., None] * read
        place = table.row * z.shape[2] + table.position - first  # row by row, query by query
        add_to_heads(z.flatten(1, 2), place, table.head, change)


def add_to_heads(
    z: PlaceHeads,
    place: Indices,
    head: Indices,
    change: Float[torch.Tensor, "input change d_head"],
) -> None:
    """Add each change, in place, to the `z` of one head at one place. Several changes may go to the same head
    and place (edges from different keys): `index_add_` adds all of them, where `z[…] += …` would keep one."""
    by_head = z.flatten(1, 2)  # (input, place and head, d_head), the same memory
    by_head.index_add_(1, place * z.shape[2] + head, change.expand(len(z), -1, -1))
