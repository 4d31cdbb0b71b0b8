"""Many wires in one run: swapped together, or kept while all others are swapped.

1. `JointForward` is the walk through the blocks in which every reader sees a stream of its own. It remembers
   what every writer adds in this run. A reader's stream is put together from the stream that it would see
   anyway and, for each of its wires, the difference between the writer's two outputs.
2. Where wires are swapped, a reader sees this run's stream, with the other run's output of wired writers.
   Where wires are kept, a reader sees the other run's stream, with this run's output of wired writers.
3. Which wires are in the set is a number for each reader and writer: 1 or 0. Gradients flow through these
   numbers. So one backward pass gives, for every wire at once, what adding or removing it would do to the
   metric, to first order. At an empty set of swapped wires that is edge attribution patching (EAP).
4. Wires over all positions together are component edges, as EAP, ACDC and MIB count them. `EdgeTable` numbers
   them: reader by reader, and of each reader the writers that it sees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import torch
from jaxtyping import Bool, Float

from circuits.components import ALL, SIDES, Component, Reader, Side, Wire, components, readers
from circuits.engine.forward import Forward
from circuits.engine.rows import Cache, Direction, Row
from circuits.engine.runs import Runs
from circuits.engine.wires import (
    Progress,
    WireEffects,
    check_wires,
    no_progress,
    stream_of,
    writes_of,
)
from circuits.errors import EdgeError, ModelError

ReaderMask = Float[torch.Tensor, "writer pos"]
Whole = Float[torch.Tensor, "input pos d_model"]
Difference = Float[torch.Tensor, "input reader pos d_model"]


@dataclass(frozen=True)
class EdgeTable:
    """The component edges of a model of this shape, in their order."""

    layers: int
    heads: int
    parallel: bool = False

    @staticmethod
    def of(runs: Runs) -> EdgeTable:
        return _edge_table(runs.model.n_layers, runs.model.n_heads, runs.blocks[0].parallel)

    @cached_property
    def readers(self) -> tuple[Reader, ...]:
        return readers(layers=self.layers, heads=self.heads)

    @cached_property
    def writers(self) -> tuple[Component, ...]:
        return components(layers=self.layers, heads=self.heads)

    @cached_property
    def exists(self) -> Bool[torch.Tensor, "reader writer"]:
        """Whether a reader sees a writer. Read row by row, this is the numbering of the edges."""
        exists = torch.zeros(len(self.readers), len(self.writers), dtype=torch.bool)
        for row, reader in enumerate(self.readers):
            for column, writer in enumerate(self.writers):
                exists[row, column] = reader.sees(writer, parallel=self.parallel)
        return exists

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        wires = []
        for reader, writer in self.exists.nonzero().tolist():
            wires.append(Wire(self.writers[writer], self.readers[reader]))
        return tuple(wires)

    def __len__(self) -> int:
        return int(self.exists.sum())

    def matrix(
        self, chosen: Float[torch.Tensor, " edge"] | Bool[torch.Tensor, " edge"]
    ) -> torch.Tensor:
        """A number for each edge as a matrix (reader, writer), 0 where there is no edge."""
        matrix = torch.zeros(self.exists.shape, dtype=chosen.dtype, device=chosen.device)
        return matrix.masked_scatter(self.exists.to(chosen.device), chosen)

    def edges(
        self, matrix: Float[torch.Tensor, "*batch reader writer"]
    ) -> Float[torch.Tensor, "*batch edge"]:
        """The numbers of the edges that exist, in their order."""
        return matrix[..., self.exists.to(matrix.device)]


@cache
def _edge_table(layers: int, heads: int, parallel: bool) -> EdgeTable:
    """The table of a shape, made once: it has hundreds of thousands of places in a large model."""
    return EdgeTable(layers, heads, parallel)


@dataclass(frozen=True)
class WireSet:
    """Which writers of which readers are wired.

    Component edges are numbered by one `mask` of all readers and writers, through which gradients flow. Wires
    at positions have a mask for each of the few readers that they name: `own`. Wires of key and value sides
    that hold for one query alone are in `at_query`, by layer and query.
    """

    mask: Float[torch.Tensor, "reader writer"] | None = None
    own: dict[Reader, ReaderMask] = field(default_factory=dict)
    at_query: dict[tuple[int, int], dict[Reader, ReaderMask]] = field(default_factory=dict)

    @classmethod
    def of(cls, wires: Sequence[Wire], runs: Runs) -> WireSet:
        table = EdgeTable.of(runs)
        row_of = {reader: row for row, reader in enumerate(table.readers)}
        column_of = {writer: column for column, writer in enumerate(table.writers)}
        own: dict[Reader, ReaderMask] = {}
        at_query: dict[tuple[int, int], dict[Reader, ReaderMask]] = defaultdict(dict)
        for wire in wires:
            place = own if wire.query is None else at_query[wire.reader.layer, wire.query]
            if wire.reader not in place:
                size = (len(table.writers), runs.length)
                place[wire.reader] = torch.zeros(size, device=runs.model.device)
            column = column_of.get(wire.writer)
            writers = table.exists[row_of[wire.reader]] if column is None else column
            positions = slice(None) if wire.position is None else wire.position
            place[wire.reader][writers, positions] = 1
        for by_reader in at_query.values():
            for reader, mask in by_reader.items():
                if reader in own:  # wires that hold for all queries hold for this one, too
                    by_reader[reader] = torch.maximum(mask, own[reader])
        return cls(own=own, at_query=dict(at_query))


class JointForward(Forward):
    """A run of the base prompts in which every reader sees a stream of its own."""

    wires: WireSet
    differences: list[Whole]  # between the two runs, writer by writer, as the run goes up

    def __init__(self, runs: Runs, direction: Direction, *, kept: bool) -> None:
        super().__init__(runs.blocks)
        self.runs = runs
        self.kept = kept
        self.direction: Direction = direction
        self.table = EdgeTable.of(runs)
        self.heads_in_layer = runs.model.n_heads
        self.readers_in_layer = len(SIDES) * runs.model.n_heads + 1
        self.positions = torch.arange(runs.length, device=runs.model.device)
        self.other: Cache = runs.replacement(direction).run

    def top(self, wires: WireSet) -> Whole:
        """Run the prompts with these wires, and return what the logits see."""
        self.wires = wires
        self.differences = []
        embedded = self.runs.base(self.direction).cache.layers[0].pre
        self._wrote(embedded[:, None])
        live = self.run(embedded)
        row = len(self.table.readers) - 1
        return self._seen(Reader(len(self.blocks), "logits"), row, live)

    # What writers add

    @cached_property
    def _other_writes(self) -> Float[torch.Tensor, "input writer pos d_model"]:
        written = writes_of(self.runs, self.other, self.table.writers, self.positions)
        return self.runs.replacement(self.direction).reduce(written)

    def _wrote(self, written: Float[torch.Tensor, "input writer pos d_model"]) -> None:
        """Remember how the next writers differ between this run and the other."""
        first = len(self.differences)
        other = self._other_writes[:, first : first + written.shape[1]]
        difference = written - other if self.kept else other - written
        self.differences += difference.unbind(1)

    def _difference(self, mask: Float[torch.Tensor, "reader writer pos_or_1"]) -> Difference:
        """How the streams of some readers change by their wires."""
        mask = mask[:, : len(self.differences)]
        used = list(range(len(self.differences)))
        if not mask.requires_grad:
            used = (mask != 0).any(0).any(1).nonzero().flatten().tolist()
        if not used:
            return mask.new_zeros(1, len(mask), 1, 1)
        differences = torch.stack([self.differences[writer] for writer in used], 1)
        mask = mask[:, used].to(differences.dtype)
        if mask.shape[2] == 1:
            return torch.einsum("rw,iwpd->irpd", mask[:, :, 0], differences)
        return torch.einsum("rwp,iwpd->irpd", mask, differences)

    # What readers see

    def _seen(self, reader: Reader, row: int, live: Whole) -> Whole:
        """What the MLP of a layer, or the logits, see. `row` is the reader's row of the mask."""
        stream = (
            stream_of(self.other, reader, parallel=self.table.parallel) if self.kept else live
        )
        if self.wires.mask is not None:
            return stream + self._difference(self.wires.mask[row : row + 1, :, None])[:, 0]
        if reader in self.wires.own:
            return stream + self._difference(self.wires.own[reader][None])[:, 0]
        return stream

    def heads(
        self, layer: int, stream: Whole
    ) -> tuple[Whole, Float[torch.Tensor, "input pos head d_head"]]:
        default = self.other.layers[layer].pre if self.kept else stream
        sides = self._sides(layer, default)
        everyone = list(range(self.heads_in_layer))
        z = self._attend(layer, sides, everyone, self.positions)
        for (at, query), by_reader in self.wires.at_query.items():
            if at == layer:
                z = self._with_query(layer, z, default, sides, query, by_reader)
        written = self.blocks[layer].head_writes(z)
        if not self.table.parallel:
            self._wrote(written.transpose(1, 2))
        else:
            self.written_by_heads = written.transpose(1, 2)
        return stream, z

    def attention_write(
        self, layer: int, z: Float[torch.Tensor, "input pos head d_head"]
    ) -> Whole:
        return self.blocks[layer].write(z)

    def _sides(self, layer: int, default: Whole) -> dict[Side, torch.Tensor]:
        """Queries, keys and values (input, pos, head, d_head) of a layer, each head's from what it sees."""
        block = self.blocks[layer]
        sides: dict[Side, torch.Tensor] = {}
        if self.wires.mask is not None:
            everyone = list(range(self.heads_in_layer))
            for side in SIDES:
                mask = self.wires.mask[self._rows_of(layer, side), :, None]
                seen = default[:, None] + self._difference(mask)
                sides[side] = block.side(seen, side, everyone, self.positions)
            return sides
        for side, projected in zip(SIDES, block.project(default, self.positions), strict=True):
            sides[side] = projected.clone()
        for reader, mask in self.wires.own.items():
            if reader.layer == layer and reader.kind in SIDES:
                sides[reader.kind][:, :, reader.index] = self._own_side(reader, default, mask)
        return sides

    def _own_side(
        self, reader: Reader, default: Whole, mask: ReaderMask
    ) -> Float[torch.Tensor, "input pos d_head"]:
        """One side of one head, from what it sees with these wires."""
        assert reader.kind in SIDES
        seen = default[:, None] + self._difference(mask[None])
        block = self.blocks[reader.layer]
        return block.side(seen, reader.kind, [reader.index], self.positions)[:, :, 0]

    def _rows_of(self, layer: int, side: Side) -> list[int]:
        """The rows of the mask that are this side of the heads of a layer."""
        first = layer * self.readers_in_layer
        return [
            first + head * len(SIDES) + SIDES.index(side) for head in range(self.heads_in_layer)
        ]

    def _attend(
        self,
        layer: int,
        sides: dict[Side, torch.Tensor],
        heads: list[int],
        queries: torch.Tensor,
    ) -> torch.Tensor:
        query, key, value = sides["query"], sides["key"], sides["value"]
        return self.blocks[layer].attend(query, key, value, queries=queries, heads=heads)[1]

    def _with_query(
        self,
        layer: int,
        z: torch.Tensor,
        default: torch.Tensor,
        sides: dict[Side, torch.Tensor],
        query: int,
        by_reader: dict[Reader, torch.Tensor],
    ) -> torch.Tensor:
        """Let some heads read keys or values of their own at one query."""
        heads = sorted({reader.index for reader in by_reader})
        own: dict[Side, torch.Tensor] = {}
        for side, whole in sides.items():
            own[side] = whole[:, :, heads].clone()
        for reader, mask in by_reader.items():
            assert reader.kind in SIDES
            own[reader.kind][:, :, heads.index(reader.index)] = self._own_side(
                reader, default, mask
            )
        queries = self.positions[query : query + 1]
        own["query"] = own["query"][:, queries]
        z = z.clone()
        z[:, query, heads] = self._attend(layer, own, heads, queries)[:, 0]
        return z

    def mlp_write(self, layer: int, stream: Whole) -> Whole:
        row = (layer + 1) * self.readers_in_layer - 1
        seen = self._seen(Reader(layer, "mlp"), row, stream)
        written = self.blocks[layer].mlp_write(seen, self.positions)
        if self.table.parallel:
            self._wrote(self.written_by_heads)
        self._wrote(written[:, None])
        return written


# Measuring sets of wires


@torch.inference_mode()
def joint_effects(
    runs: Runs,
    sets: Sequence[Sequence[Wire]],
    *,
    direction: Direction = "swap",
    progress: Progress = no_progress,
) -> WireEffects:
    """The effect of each set of wires on every pair, all wires of a set in one run."""
    return _effects(runs, sets, direction, kept=False, progress=progress)


@torch.inference_mode()
def kept_effects(
    runs: Runs, sets: Sequence[Sequence[Wire]], *, progress: Progress = no_progress
) -> WireEffects:
    """How much of the gap each set of wires keeps on every pair, while all other wires are swapped."""
    for wires in sets:
        if any(wire.writer == ALL for wire in wires):
            raise EdgeError("name the writers of the wires to keep: `all` is every one of them")
    return 1 - _effects(runs, sets, "swap", kept=True, progress=progress)


def _effects(
    runs: Runs,
    sets: Sequence[Sequence[Wire]],
    direction: Direction,
    *,
    kept: bool,
    progress: Progress,
) -> WireEffects:
    for wires in sets:
        check_wires(runs, wires, direction)
    forward = JointForward(runs, direction, kept=kept)
    tops = []
    for number, wires in enumerate(sets):
        tops.append(forward.top(WireSet.of(wires, runs))[:, -runs.metric.positions_read :])
        progress(number + 1, len(sets))
    return _effects_of_tops(runs, tops, direction)


def _effects_of_tops(runs: Runs, tops: Sequence[Whole], direction: Direction) -> WireEffects:
    """The effects of runs that end with these streams above the last block."""
    if not tops:
        return torch.zeros(0, len(runs.pairs), dtype=torch.float64)
    read = runs.metric.positions_read
    positions = range(runs.length - read, runs.length)
    layers = runs.model.n_layers
    rows = [
        Row.of_given(layers, positions, "residual", first=n * read) for n in range(len(tops))
    ]
    given = torch.cat(list(tops), 1)  # (input, set · read, d_model)
    return runs.effects(rows, direction=direction, given={"residual": given}).double().cpu()


@torch.inference_mode()
def kept_edges(
    runs: Runs, sets: Bool[torch.Tensor, "set edge"], *, progress: Progress = no_progress
) -> WireEffects:
    """How much of the gap each set of component edges keeps on every pair, while all others are swapped."""
    table = EdgeTable.of(runs)
    forward = JointForward(runs, "swap", kept=True)
    tops = []
    for number, chosen in enumerate(sets):
        mask = table.matrix(chosen.float().to(runs.model.device))
        tops.append(forward.top(WireSet(mask))[:, -runs.metric.positions_read :])
        progress(number + 1, len(sets))
    return 1 - _effects_of_tops(runs, tops, "swap")


def estimates(runs: Runs) -> WireEffects:
    """Edge attribution patching: the first-order estimate of the `swap` effect of every component edge, on
    every pair. Gates count as they stand: that a change may open or shut one is not in the estimate. Pairs
    are estimated one by one to save memory."""
    if runs.layout is None:
        name = runs.model.name
        raise ModelError(
            f"the estimate needs the layout of {name}, which the fast path does not know"
        )
    each = [_estimate(runs.only([pair])) for pair in range(len(runs.pairs))]
    return torch.stack(each, 1).double().cpu()


def _estimate(runs: Runs) -> Float[torch.Tensor, " edge"]:
    """Minus the gradient of the metric with respect to each edge's presence among the swapped edges, where
    none is present, as a share of the gap."""
    table = EdgeTable.of(runs)
    with torch.inference_mode(False), torch.enable_grad():
        mask = torch.zeros(table.exists.shape, device=runs.model.device, requires_grad=True)
        forward = JointForward(runs, "swap", kept=False)
        top = forward.top(WireSet(mask))[:, None, -runs.metric.positions_read :]
        value = runs.mean_over_draws(runs.read_stream(top)).sum()
        (gradient,) = torch.autograd.grad(value, mask)
    return -table.edges(gradient) / runs.gap
