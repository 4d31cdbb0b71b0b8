"""Wires: the effect of one writer on one reader, each in a run of its own.

1. A wire's reader alone sees its stream plus what the writer would add in the other run, less what it adds in
   this one. Norm, projection and attention are computed anew from that, once, below the rows.
2. What comes of it is a new output of one head, or a new stream above one MLP. That is a row
   (`engine.streams`), with the output handed over as a value; the engine carries it up with all others.
3. Wires that share layer, positions and query are computed together: writers are a batch, and in a layer
   one projection serves all heads and sides. The rows of all wires then climb together, as many as the
   budget holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from jaxtyping import Float

from circuits.components import ALL, SIDES, Component, Reader, Wire
from circuits.engine.layout import FastParts, Parts, Positions
from circuits.engine.runs import Runs
from circuits.engine.streams import Cache, Change, Direction, Given, Row, Site
from circuits.errors import EdgeError

WIRED: Final = ("swap", "restore", "zero", "mean")  # the directions that a wire can take
Outputs = Float[torch.Tensor, "input writer pos d_model"]
WireEffects = Float[torch.Tensor, "wire pair"]
Values = Float[torch.Tensor, "input value width"]  # handed over with rows
Weights = Float[torch.Tensor, "wire pair"]
Watched = tuple[int, int]  # key, query
_ROW_BYTES: Final = 4096  # about what a row takes beside the values that it hands over
_Group = tuple[int, bool, int | None, int | None]  # layer, whether an MLP, position, query


def parts_of(runs: Runs) -> Parts:
    """The parts of the model's blocks, by the path of these runs."""
    if runs.layout is None:
        from circuits.engine.plain import PlainParts

        return PlainParts(runs.model, runs.length, runs.budget)
    like = runs.clean.cache.final
    return FastParts(runs.layout, runs.layout.rotations(like, 0), runs.layout.hidden(like, 0))


def check_wires(runs: Runs, wires: Sequence[Wire], direction: Direction, *, parallel: bool) -> None:
    """Refuse, before anything runs, a wire that does not exist in this model and prompt."""
    if direction not in WIRED:
        raise EdgeError(f"{direction} means nothing for a wire; there are {', '.join(WIRED)}")
    layers, heads, length = runs.model.n_layers, runs.model.n_heads, runs.length
    for wire in wires:
        writer, reader = wire.writer, wire.reader
        for part in (writer, reader):
            beyond = part.layer >= layers + (part is reader and reader.kind == "logits")
            if beyond or part.index >= heads:
                last = f"L0H0…L{layers - 1}H{heads - 1} and M0…M{layers - 1}"
                raise EdgeError(f"no {part} in this model, which has {last}")
        if not reader.sees(writer, parallel=parallel):
            raise EdgeError(f"{wire} runs downwards: {writer} does not stand below {reader}")
        named = [position for position in (wire.position, wire.query) if position is not None]
        if any(position >= length for position in named):
            raise EdgeError(f"{wire} lies outside the prompt, which has 0…{length - 1}")
        first_read = length - runs.metric.tail
        if reader.kind == "logits" and wire.position is not None and wire.position < first_read:
            read = f"the last position, {length - 1}" if runs.metric.tail == 1 else f"{first_read} and after"
            raise EdgeError(f"{wire}: the logits are read at {read}")
    if runs.absent:
        raise EdgeError("wires are measured in the whole model, not in one without some of its heads")


@torch.inference_mode()
def wire_effects(
    runs: Runs,
    wires: Sequence[Wire],
    *,
    direction: Direction = "swap",
    watch: Watched | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[WireEffects, WireEffects]:
    """The effect of every wire on every pair, each by itself; and the attention weight that its reader then
    has on the watched edge (NaN where the reader is no head)."""
    sweep = WireSweep(runs, direction)
    check_wires(runs, wires, direction, parallel=sweep.parts.parallel)
    effects = torch.zeros(len(wires), len(runs.pairs), dtype=torch.float64)
    weights = torch.full_like(effects, torch.nan)
    groups: dict[_Group, list[int]] = defaultdict(list)
    for number, wire in enumerate(wires):
        groups[wire.reader.layer, wire.reader.kind not in SIDES, wire.position, wire.query].append(number)
    waiting, done = _Waiting(), 0

    def carry() -> None:
        nonlocal waiting, done
        carried = runs.effects(waiting.rows, direction=direction, given=waiting.given)
        effects[waiting.numbers] = carried.double().cpu()
        done += len(waiting.numbers)
        progress(done, len(wires))
        waiting = _Waiting()

    for numbers in groups.values():
        numbers.sort(key=lambda number: wires[number].writer)  # so that a chunk projects few writers
        for chunk in sweep.chunks([wires[number] for number in numbers]):
            chosen = numbers[chunk]
            weights[chosen] = waiting.add(sweep, chosen, [wires[number] for number in chosen], watch)
            if waiting.bytes > runs.budget // 4:
                carry()
    if waiting.numbers:
        carry()
    return effects, weights


@dataclass
class _Waiting:
    """Wires as rows that have not been carried yet, of as many groups as climb together: the values that they
    hand over are numbered through."""

    numbers: list[int] = field(default_factory=list)  # of the wires
    rows: list[Row] = field(default_factory=list)
    values: dict[Site, list[Values]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self, sweep: WireSweep, numbers: list[int], wires: Sequence[Wire], watch: Watched | None
    ) -> Weights:
        """Wires of one group. What their readers then have on the watched edge is known before they climb."""
        site: Site = "head" if wires[0].reader.kind in SIDES else "residual"
        rows, values, weights = sweep.rows(wires, watch, sum(own.shape[1] for own in self.values[site]))
        self.numbers += numbers
        self.rows += rows
        self.values[site].append(values)
        return weights.double().cpu()

    @property
    def given(self) -> Given:
        return {site: torch.cat(parts, 1) for site, parts in self.values.items()}

    @property
    def bytes(self) -> int:
        """What waits in memory: values handed over, and what each row will leave above the last block."""
        values = (value for own in self.values.values() for value in own)
        return sum(value.numel() * value.element_size() for value in values) + len(self.rows) * _ROW_BYTES


@dataclass(frozen=True)
class WireSweep:
    """What the wires of one direction need of both runs."""

    runs: Runs
    direction: Direction

    @cached_property
    def parts(self) -> Parts:
        return parts_of(self.runs)

    @cached_property
    def base(self) -> Cache:
        return self.runs.base(self.direction).cache

    def positions(self, position: int | None) -> Positions:
        """The positions that a wire names: one, or all at which the two runs can differ."""
        first = self.runs.first_difference if self.direction in ("swap", "restore") else 0
        every = range(first, self.runs.length) if position is None else [position]
        return torch.tensor(every, device=self.runs.model.device)

    def chunks(self, wires: Sequence[Wire]) -> Iterator[slice]:
        """As many wires of a group at a time as the budget holds, at least one writer's."""
        length, width = self.runs.length, self.runs.model.d_model
        each = 16 * width * len(self.base.final) * (length if wires[0].position is None else 1)
        each += 4 * length * self.runs.model.d_head * len(self.base.final)
        step = max(1, self.runs.budget // (4 * each)) * 4
        yield from (slice(start, start + step) for start in range(0, len(wires), step))

    def seen(self, reader: Reader, writers: Sequence[Component], positions: Positions) -> Outputs:
        """What the reader sees when each writer's output is that of the other run. `all` is its whole stream
        there."""
        new, own = self.runs.new_values(self.direction), stream_of(self.base, reader, self.parts.parallel)
        single = [number for number, writer in enumerate(writers) if writer != ALL]
        seen = own[:, None, positions].expand(-1, len(writers), -1, -1).clone()
        if single:
            named = [writers[number] for number in single]
            other, base = (writes(self.parts, cache, named, positions) for cache in (new.run, self.base))
            seen[:, single] += new.reduce(other) - base
        if len(single) < len(writers):
            seen[:, [writer == ALL for writer in writers]] = self._whole(reader, positions)[:, None]
        return seen

    def _whole(self, reader: Reader, positions: Positions) -> Float[torch.Tensor, "input pos d_model"]:
        """The reader's stream when every writer's output is that of the other run. Where that is nothing at
        all, the biases of the attention layers remain, which no writer owns."""
        new = self.runs.new_values(self.direction)
        if new.reduced != "zero":
            return new.reduce(stream_of(new.run, reader, self.parts.parallel))[:, positions]
        below = range(reader.layer + (reader.kind == "mlp" and not self.parts.parallel))
        silent = torch.zeros_like(self.base.layers[0].z[:, positions])
        none = torch.zeros_like(self.base.final[:, positions])
        return none + sum(self.parts.write(layer, silent) for layer in below)

    def rows(
        self, wires: Sequence[Wire], watch: Watched | None, first: int
    ) -> tuple[list[Row], Values, Weights]:
        """A row for each wire of one group, the values that the rows hand over, numbered from `first` on, and
        the watched weights."""
        reader = wires[0].reader
        if reader.kind in SIDES:
            return self._head_rows(wires, watch, first)
        positions = self.positions(wires[0].position)
        if reader.kind == "logits":  # where the metric is read: at the last position, or the last few
            positions = positions[positions >= self.runs.length - self.runs.metric.tail]
        values, layer = self.seen(reader, [wire.writer for wire in wires], positions), reader.layer
        if reader.kind == "mlp":  # the stream above the block, which is all that changes
            stored = self.base.layers[layer]
            rest = stored.pre[:, positions] + stored.attention[:, positions]
            values, layer = rest[:, None] + self.parts.mlp(layer, values, positions), layer + 1
        where = positions.tolist()
        rows = [_row(layer, where, "residual", -1, first + n * len(where)) for n in range(len(wires))]
        unread = torch.full((len(wires), len(self.runs.pairs)), torch.nan)
        return rows, values.flatten(1, 2), unread

    def _head_rows(
        self, wires: Sequence[Wire], watch: Watched | None, first: int
    ) -> tuple[list[Row], Values, Weights]:
        """Wires into sides of heads of one layer. Writers are a batch; each side is computed for those of its
        heads that a wire names."""
        layer, keys = wires[0].reader.layer, self.positions(wires[0].position)
        writers = {writer: index for index, writer in enumerate(dict.fromkeys(wire.writer for wire in wires))}
        seen = self.seen(wires[0].reader, list(writers), keys)
        projected = dict(zip(SIDES, self.parts.project(layer, seen, keys), strict=True))
        rows: list[Row] = [Row(())] * len(wires)
        watched = torch.full((len(wires), len(self.base.final)), torch.nan)
        values = []
        for side in SIDES:
            own = [number for number, wire in enumerate(wires) if wire.reader.kind == side]
            if not own:
                continue
            named = sorted({wires[number].reader.index for number in own})
            pattern, z, queries = self._read(layer, wires[0], side, projected[side], named)
            writer = torch.tensor([writers[wires[number].writer] for number in own], device=z.device)
            head = torch.tensor([named.index(wires[number].reader.index) for number in own], device=z.device)
            values.append(z.transpose(2, 3)[:, writer, head].flatten(1, 2))  # (input, wire · query, d_head)
            for number in own:
                rows[number] = _row(layer, queries, "head", wires[number].reader.index, first)
                first += len(queries)
            if watch is not None and watch[1] in queries:
                weights = pattern[:, :, :, queries.index(watch[1]), watch[0]]
                watched[own] = weights[:, writer, head].T.float().cpu()
        return rows, torch.cat(values, 1), self.runs.mean_over_draws(watched.T).T

    def _read(
        self, layer: int, wire: Wire, side: str, projected: torch.Tensor, heads: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Pattern and outputs of heads that see one side anew, (input, writer, …), and at which queries."""
        keys = self.positions(wire.position)
        chosen = keys if side == "query" else self.positions(wire.query)
        queries = chosen if side == "query" or wire.query is not None else chosen[chosen >= keys[0]]
        sides = {name: part[:, None, :, heads] for name, part in zip(SIDES, self.own(layer), strict=True)}
        changed = projected[:, :, :, heads]
        if side == "query":
            sides["query"] = changed
        else:
            sides["query"] = sides["query"][:, :, queries]
            whole = sides[side].expand(-1, projected.shape[1], -1, -1, -1).clone()
            whole[:, :, keys] = changed
            sides[side] = whole
        pattern, z = self.parts.attend(
            layer, sides["query"], sides["key"], sides["value"], queries=queries, heads=heads
        )
        return pattern.expand(-1, projected.shape[1], -1, -1, -1), z, queries.tolist()

    def own(self, layer: int) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values of this run, (input, pos, head, d_head)."""
        stored = self.base.layers[layer]
        if stored.query is None or stored.key is None:
            everywhere = torch.arange(self.runs.length, device=stored.pre.device)
            return self.parts.project(layer, stored.pre, everywhere)
        return tuple(side.transpose(1, 2) for side in (stored.query, stored.key, stored.value))


def _row(layer: int, positions: Sequence[int], site: Site, head: int, first: int) -> Row:
    """The row that puts values handed over, from number `first` on, at these positions."""
    return Row(
        tuple(Change(layer, position, site, head, given=n) for n, position in enumerate(positions, first))
    )


def stream_of(cache: Cache, reader: Reader, parallel: bool) -> Float[torch.Tensor, "input pos d_model"]:
    """What a reader sees in a run."""
    if reader.kind == "mlp" and not parallel:
        stored = cache.layers[reader.layer]
        return stored.pre + stored.attention[:]
    return cache.pre(reader.layer)


def writes(parts: Parts, cache: Cache, writers: Sequence[Component], positions: Positions) -> Outputs:
    """What each writer adds to the stream of a run at these positions."""
    outputs: list[torch.Tensor] = []
    by_head: dict[int, torch.Tensor] = {}
    for writer in writers:
        if writer.kind == "embed":
            outputs.append(cache.layers[0].pre[:, positions])
        elif writer.kind == "mlp":
            outputs.append(cache.layers[writer.layer].mlp[:, positions])
        else:
            if writer.layer not in by_head:
                z = cache.layers[writer.layer].z[:, positions]
                by_head[writer.layer] = parts.head_writes(writer.layer, z)
            outputs.append(by_head[writer.layer][:, :, writer.index])
    return torch.stack(outputs, 1)
