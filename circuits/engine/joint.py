"""Several wires in one run: swapped together, or kept while all others are swapped.

1. The run goes up the model a block at a time and keeps what every writer adds, so that each reader's stream
   can be put together anew: the stream it would see anyway, plus, for the writers of its wires, the
   difference between their output in the other run and in this very one.
2. Where wires are swapped, everything else is live: a reader without a wire sees the run's own stream. Where
   wires are kept, everything else is the other run's: a reader without a wire writes what it writes there.
3. What stands above the last block at the last position is handed to the engine, which reads the metric.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float

from circuits.components import ALL, SIDES, Component, Reader, Side, Wire, components
from circuits.engine.layout import Parts
from circuits.engine.runs import Runs
from circuits.engine.streams import Cache, Change, Direction, Row
from circuits.engine.wires import Outputs, WireEffects, WireSweep, check_wires, stream_of, writes
from circuits.errors import EdgeError

Whole = Float[torch.Tensor, "input pos d_model"]
Mask = Bool[torch.Tensor, "writer pos"]
Progress = Callable[[int, int], None]


@torch.inference_mode()
def joint_effects(
    runs: Runs,
    rows: Sequence[Sequence[Wire]],
    *,
    direction: Direction = "swap",
    progress: Progress = lambda done, total: None,
) -> WireEffects:
    """The effect of each set of wires on every pair, all of a set in one run."""
    tops = _tops(runs, rows, direction, kept=False, progress=progress)
    return read_tops(runs, tops, direction)


@torch.inference_mode()
def kept_effects(
    runs: Runs, rows: Sequence[Sequence[Wire]], *, progress: Progress = lambda done, total: None
) -> WireEffects:
    """How much of the gap each set of wires explains on every pair: all other wires are swapped together."""
    return 1 - read_tops(runs, _tops(runs, rows, "swap", kept=True, progress=progress), "swap")


def _tops(
    runs: Runs, rows: Sequence[Sequence[Wire]], direction: Direction, *, kept: bool, progress: Progress
) -> list[Whole]:
    sweep = WireSweep(runs, direction)
    check_wires(runs, [wire for wires in rows for wire in wires], direction, parallel=sweep.parts.parallel)
    if kept and any(wire.writer == ALL for wires in rows for wire in wires):
        raise EdgeError("name the writers of the wires to keep: `all` is every one of them")
    tops = []
    shared = Shared(sweep)
    for number, wires in enumerate(rows):
        tops.append(JointRun(shared, Masks.of(wires, runs, sweep.parts), kept=kept).top())
        progress(number + 1, len(rows))
    return tops


def read_tops(runs: Runs, tops: Sequence[Whole], direction: Direction) -> WireEffects:
    """The metric's change when these streams stand above the last block at the last position."""
    if not tops:
        return torch.zeros(0, len(runs.pairs), dtype=torch.float64)
    top, tail = runs.model.n_layers, runs.metric.tail
    read = list(enumerate(range(runs.length - tail, runs.length)))  # the positions where the metric is read
    rows = [
        Row(tuple(Change(top, position, "residual", given=number * tail + n) for n, position in read))
        for number in range(len(tops))
    ]
    given = torch.cat([stream[:, -tail:] for stream in tops], 1)
    return runs.effects(rows, direction=direction, given={"residual": given}).double().cpu()


@dataclass(frozen=True)
class Masks:
    """Which writers of which readers are wired, position by position: of a key or value side for one query,
    or for all of them (None)."""

    by_reader: dict[Reader, dict[int | None, Mask]]

    @classmethod
    def of(cls, wires: Sequence[Wire], runs: Runs, parts: Parts) -> Masks:
        model, length = runs.model, runs.length
        every = components(layers=model.n_layers, heads=model.n_heads)
        number = {writer: index for index, writer in enumerate(every)}
        listed: dict[Reader, dict[int | None, list[Wire]]] = defaultdict(lambda: defaultdict(list))
        for wire in wires:
            listed[wire.reader][wire.query].append(wire)
        by_reader: dict[Reader, dict[int | None, Mask]] = {}
        for reader, queries in listed.items():
            below = torch.tensor([reader.sees(writer, parallel=parts.parallel) for writer in every])
            by_reader[reader] = {
                query: _mask(own, number, below, length).to(model.device) for query, own in queries.items()
            }
            if None in queries:  # wires for all queries hold for each of them, too
                for mask in by_reader[reader].values():
                    mask |= by_reader[reader][None]
        return cls(by_reader)

    def of_side(self, layer: int, side: Side, query: int | None) -> dict[int, Mask]:
        """By head: what is wired on one side."""
        return {
            reader.index: masks[query]
            for reader, masks in self.by_reader.items()
            if reader.layer == layer and reader.kind == side and query in masks
        }

    def queries(self, layer: int) -> list[int]:
        """The queries at which a head of this layer has wires of its own."""
        named = (masks for reader, masks in self.by_reader.items() if reader.layer == layer)
        return sorted({query for masks in named for query in masks if query is not None})

    def mask_of(self, reader: Reader) -> Mask | None:
        return self.by_reader.get(reader, {}).get(None)


def _mask(wires: Sequence[Wire], number: dict[Component, int], below: torch.Tensor, length: int) -> Mask:
    mask = torch.zeros(len(number), length, dtype=torch.bool)
    for wire in wires:
        positions = slice(None) if wire.position is None else wire.position
        if wire.writer == ALL:
            mask[below, positions] = True
        else:
            mask[number[wire.writer], positions] = True
    return mask


@dataclass(frozen=True)
class Shared:
    """What all rows read of the two runs."""

    sweep: WireSweep

    @cached_property
    def writers(self) -> tuple[Component, ...]:
        model = self.sweep.runs.model
        return components(layers=model.n_layers, heads=model.n_heads)

    @cached_property
    def positions(self) -> torch.Tensor:
        return torch.arange(self.sweep.runs.length, device=self.sweep.runs.model.device)

    @cached_property
    def new(self) -> Outputs:
        """What every writer adds in the other run."""
        new = self.sweep.runs.new_values(self.sweep.direction)
        return new.reduce(writes(self.sweep.parts, new.run, self.writers, self.positions))

    @cached_property
    def other(self) -> Cache:
        return self.sweep.runs.new_values(self.sweep.direction).run

    def sides(self, layer: int) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values of the other run, (input, pos, head, d_head)."""
        return WireSweep(self.sweep.runs, "restore").own(layer)


@dataclass
class JointRun:
    """One row on its way up."""

    shared: Shared
    masks: Masks
    kept: bool

    def top(self) -> Whole:
        """The stream above the last block."""
        sweep = self.shared.sweep
        self.parts, self.heads = sweep.parts, sweep.runs.model.n_heads
        stream = sweep.base.layers[0].pre
        inputs, length, width = stream.shape
        # What every writer so far would change if it were seen as in the other run (kept: as in this one).
        self.changes = stream.new_empty(inputs, len(self.shared.writers), length, width)
        self.written = 0
        self._note(stream[:, None])
        layers = sweep.runs.model.n_layers
        for layer in range(layers):
            z = self._kept_heads(layer) if self.kept else self._live_heads(layer, stream)
            written = self.parts.head_writes(layer, z).transpose(1, 2)  # (input, head, pos, d_model)
            after = stream + self.parts.write(layer, z)
            if self.parts.parallel:
                mlp = self._mlp(layer, stream)
                self._note(written)
            else:
                self._note(written)
                mlp = self._mlp(layer, after)
            self._note(mlp[:, None])
            stream = after + mlp
        return self._seen(Reader(layers, "logits"), stream)

    def _note(self, outputs: Outputs) -> None:
        """Keep what the next writers change. Above the last block only where the metric is read is real."""
        end = self.written + outputs.shape[1]
        change = self.shared.new[:, self.written : end] - outputs
        self.changes[:, self.written : end] = (-change if self.kept else change).nan_to_num_(0.0)
        self.written = end

    def _seen(self, reader: Reader, live: Whole) -> Whole:
        """What a reader that is no head sees."""
        default = stream_of(self.shared.other, reader, self.parts.parallel) if self.kept else live
        mask = self.masks.mask_of(reader)
        return default if mask is None else default + self._difference(mask[None])[:, 0]

    def _difference(
        self, masks: Bool[torch.Tensor, "reader writer pos"]
    ) -> Float[torch.Tensor, "input reader pos d_model"]:
        """What its wires change in a reader's stream: swapped writers become the other run's, kept ones this
        run's."""
        masks = masks[:, : self.written]
        used = masks.any(0).any(1).nonzero().flatten()
        masks, changes = masks[:, used].to(self.changes), self.changes[:, used]
        if bool((masks == masks[..., :1]).all()):  # the same at all positions: one product, and a faster one
            return torch.einsum("ew,iwtd->ietd", masks[..., 0], changes)
        return torch.einsum("ewt,iwtd->ietd", masks, changes)

    def _sides(
        self, layer: int, default: Whole, query: int | None
    ) -> dict[Side, tuple[list[int], torch.Tensor]]:
        """For each side the heads that have wires there, and what they make of what they see,
        (input, pos, head, d_head)."""
        sides: dict[Side, tuple[list[int], torch.Tensor]] = {}
        for side in SIDES:
            wired = self.masks.of_side(layer, side, query)
            if not wired:
                continue
            heads = sorted(wired)
            seen = default[:, None] + self._difference(torch.stack([wired[head] for head in heads]))
            positions = self.shared.positions
            sides[side] = heads, self.parts.own_side(layer, side, seen, positions=positions, heads=heads)
        return sides

    def _attended(
        self, layer: int, default: Whole, base: Sequence[torch.Tensor], z: torch.Tensor
    ) -> torch.Tensor:
        """The heads' outputs with their wires in place, given queries, keys and values without them."""
        everyone = list(range(self.heads))
        sides: dict[Side, torch.Tensor] = {side: part.clone() for side, part in zip(SIDES, base, strict=True)}
        wired: set[int] = set()
        for side, (heads, own) in self._sides(layer, default, None).items():
            sides[side][:, :, heads] = own
            wired |= set(heads)
        chosen = sorted(wired) if self.kept else everyone
        if chosen:
            parts = [sides[side][:, :, chosen] for side in SIDES]
            z = z.clone()
            z[:, :, chosen] = self.parts.attend(layer, *parts, queries=self.shared.positions, heads=chosen)[1]
        for query in self.masks.queries(layer):
            z = self._at_query(layer, default, sides, z, query)
        return z

    def _at_query(
        self, layer: int, default: Whole, sides: dict[Side, torch.Tensor], z: torch.Tensor, query: int
    ) -> torch.Tensor:
        """Heads that read keys or values of their own at one query."""
        own = self._sides(layer, default, query)
        heads = sorted({head for named, _ in own.values() for head in named})
        parts = {side: part[:, :, heads].clone() for side, part in sides.items()}
        for side, (named, values) in own.items():
            parts[side][:, :, [heads.index(head) for head in named]] = values
        queries = torch.tensor([query], device=z.device)
        own_sides = parts["query"][:, queries], parts["key"], parts["value"]
        _, read = self.parts.attend(layer, *own_sides, queries=queries, heads=heads)
        z = z.clone()
        z[:, query, heads] = read[:, 0]
        return z

    def _live_heads(self, layer: int, stream: Whole) -> torch.Tensor:
        base = self.parts.project(layer, stream, self.shared.positions)
        return self._attended(layer, stream, base, torch.zeros_like(base[0]))

    def _kept_heads(self, layer: int) -> torch.Tensor:
        stored = self.shared.other.layers[layer]
        return self._attended(layer, stored.pre, self.shared.sides(layer), stored.z)

    def _mlp(self, layer: int, live: Whole) -> Whole:
        reader = Reader(layer, "mlp")
        if self.kept and self.masks.mask_of(reader) is None:
            return self.shared.other.layers[layer].mlp[:]
        return self.parts.mlp(layer, self._seen(reader, live), self.shared.positions)
