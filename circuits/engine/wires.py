"""Wires one at a time: the effect of one writer on one reader, each in a run of its own.

1. The reader of a wire sees its stream plus what the writer adds in the other run less what it adds in this
   one. Norm, projection and attention of that reader are computed anew from this stream.
2. The result is a new output of one head, or a new stream above one MLP. That is a row, with the new output
   given as a value, and rows are run together (`engine.forward`).
3. Wires that share layer, position and query are computed together: one projection of a writer's stream
   serves all heads and sides of the layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from jaxtyping import Float

from circuits.components import ALL, SIDES, Component, Reader, Side, Wire
from circuits.engine.cache import Cache
from circuits.engine.layout import Positions
from circuits.engine.memory import BYTES, stream_bytes, streams_at_once
from circuits.engine.rows import Direction, Given, Row, Site
from circuits.engine.runs import Runs
from circuits.errors import EdgeError

DIRECTIONS_OF_WIRES: Final[tuple[Direction, ...]] = ("swap", "restore", "zero", "mean", "noise")
Writes = Float[torch.Tensor, "input writer pos d_model"]
WireEffects = Float[torch.Tensor, "wire pair"]
Progress = Callable[[int, int], None]
_ROW_BYTES: Final = 4096  # about what a row takes in addition to its values


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


@torch.inference_mode()
def wire_effects(
    runs: Runs,
    wires: Sequence[Wire],
    *,
    direction: Direction | None = None,
    watch: tuple[int, int] | None = None,
    all_means: Sequence[Component] | None = None,
    progress: Progress = no_progress,
) -> tuple[WireEffects, WireEffects]:
    """The effect of every wire on every pair, each by itself. Also the attention weight that its reader then
    has on the edge `watch` = (key, query), NaN where the reader is no head.

    A wire from `all` swaps every writer below its reader together, or those that `all_means` names. Without a
    `direction` it is the ablation of the runs."""
    direction = direction or runs.ablation.kind
    check_wires(runs, wires, direction)
    effects = torch.zeros(len(wires), len(runs.pairs), dtype=torch.float64)
    weights = torch.full_like(effects, torch.nan)
    readers = _Readers(runs, direction, watch, all_means)
    done = 0
    for batch in _batches(runs, readers, wires, weights):
        measured = runs.effects(batch.rows, direction=direction, given=batch.given)
        effects[batch.numbers] = measured.double().cpu()
        done += len(batch.numbers)
        progress(done, len(wires))
    return effects, weights


def _batches(
    runs: Runs, readers: _Readers, wires: Sequence[Wire], weights: WireEffects
) -> Iterator[_Batch]:
    """All wires as rows, as many together as a part of the budget holds. The attention weights on the watched
    edge are written into `weights` on the way."""
    batch = _Batch()
    for numbers in _groups(wires):
        step = readers.wires_at_once(wires[numbers[0]])
        for first in range(0, len(numbers), step):
            chunk = numbers[first : first + step]
            weights[chunk] = readers.add(batch, chunk, [wires[number] for number in chunk])
            if batch.bytes > runs.budget // 4:
                yield batch
                batch = _Batch()
    if batch.numbers:
        yield batch


def _groups(wires: Sequence[Wire]) -> list[list[int]]:
    """The numbers of wires that are computed together: same layer, position and query, and either all readers
    are sides of heads or all are the MLP (or the logits). Wires of one writer stand together."""
    groups: dict[tuple[int, bool, int, int], list[int]] = defaultdict(list)
    for number, wire in enumerate(wires):
        is_head = wire.reader.kind in SIDES
        position = -1 if wire.position is None else wire.position
        query = -1 if wire.query is None else wire.query
        groups[wire.reader.layer, is_head, position, query].append(number)
    for numbers in groups.values():
        numbers.sort(key=lambda number: wires[number].writer)
    return list(groups.values())


def check_wires(runs: Runs, wires: Sequence[Wire], direction: Direction) -> None:
    """Refuse, before anything runs, a wire that does not exist in this model and prompt."""
    if direction not in DIRECTIONS_OF_WIRES:
        raise EdgeError(
            f"{direction} means nothing for a wire; there are {', '.join(DIRECTIONS_OF_WIRES)}"
        )
    if runs.absent:
        raise EdgeError(
            "wires are measured in the whole model, not in one without some of its heads"
        )
    parallel = runs.blocks[0].parallel
    for wire in wires:
        _check_ends(runs, wire)
        if not wire.reader.sees(wire.writer, parallel=parallel):
            raise EdgeError(
                f"{wire} runs downwards: {wire.writer} does not stand below {wire.reader}"
            )
        _check_positions(runs, wire)


def _check_ends(runs: Runs, wire: Wire) -> None:
    layers, heads = runs.model.n_layers, runs.model.n_heads
    highest = layers if wire.reader.kind == "logits" else layers - 1
    last = f"L0H0…L{layers - 1}H{heads - 1} and M0…M{layers - 1}"
    if wire.writer.layer >= layers or wire.writer.index >= heads:
        raise EdgeError(f"no {wire.writer} in this model, which has {last}")
    if wire.reader.layer > highest or wire.reader.index >= heads:
        raise EdgeError(f"no {wire.reader} in this model, which has {last}")


def _check_positions(runs: Runs, wire: Wire) -> None:
    length = runs.length
    for position in (wire.position, wire.query):
        if position is not None and position >= length:
            raise EdgeError(f"{wire} lies outside the prompt, which has 0…{length - 1}")
    if wire.reader.kind != "logits" or wire.position is None:
        return
    first_read = length - runs.metric.positions_read
    if wire.position < first_read:
        one = runs.metric.positions_read == 1
        read = f"the last position, {length - 1}" if one else f"{first_read} and after"
        raise EdgeError(f"{wire}: the logits are read at {read}")


# What readers see


def stream_of(
    cache: Cache, reader: Reader, *, parallel: bool
) -> Float[torch.Tensor, "input pos d_model"]:
    """What a reader sees in a run."""
    if reader.kind == "mlp" and not parallel:
        stored = cache.layers[reader.layer]
        return stored.pre + stored.attention
    return cache.pre(reader.layer)


def writes_of(
    runs: Runs, cache: Cache, writers: Sequence[Component], positions: Positions
) -> Writes:
    """What each writer adds to the stream of a run at these positions."""
    written = []
    of_heads: dict[int, torch.Tensor] = {}  # layer -> (input, pos, head, d_model)
    for writer in writers:
        if writer.kind == "embed":
            written.append(cache.layers[0].pre[:, positions])
        elif writer.kind == "mlp":
            written.append(cache.layers[writer.layer].mlp[:, positions])
        else:
            if writer.layer not in of_heads:
                z = cache.layers[writer.layer].z[:, positions]
                of_heads[writer.layer] = runs.blocks[writer.layer].head_writes(z)
            written.append(of_heads[writer.layer][:, :, writer.index])
    return torch.stack(written, 1)


def projections(
    runs: Runs, cache: Cache, layer: int
) -> dict[Side, Float[torch.Tensor, "input pos head d"]]:
    """Queries, keys and values of a run in one layer."""
    stored = cache.layers[layer]
    if stored.query is None or stored.key is None:  # the plain path keeps only values
        positions = torch.arange(runs.length, device=stored.pre.device)
        query, key, value = runs.blocks[layer].project(stored.pre, positions)
        return {"query": query, "key": key, "value": value}
    return {
        "query": stored.query.transpose(1, 2),
        "key": stored.key.transpose(1, 2),
        "value": stored.value.transpose(1, 2),
    }


# Wires as rows


@dataclass
class _Batch:
    """Wires as rows that are run together, and the values that the rows name by number."""

    numbers: list[int] = field(default_factory=list)  # of the wires
    rows: list[Row] = field(default_factory=list)
    values: dict[Site, list[torch.Tensor]] = field(
        default_factory=lambda: {"head": [], "residual": []}
    )
    bytes: int = 0

    def put(
        self,
        numbers: Sequence[int],
        layer: int,
        positions: Sequence[int],
        site: Site,
        values: Float[torch.Tensor, "input wire pos width"],
        *,
        heads: Sequence[int] | None = None,
    ) -> None:
        """Add a row for each wire: its values stand at these positions of the site, in its own one of the
        heads where the site is `head`."""
        first = sum(part.shape[1] for part in self.values[site])
        for wire in range(len(numbers)):
            head = -1 if heads is None else heads[wire]
            self.rows.append(Row.of_given(layer, positions, site, first=first, head=head))
            first += len(positions)
        self.numbers += numbers
        self.values[site].append(values.flatten(1, 2))
        self.bytes += values.numel() * BYTES + len(numbers) * _ROW_BYTES

    @property
    def given(self) -> Given:
        return {site: torch.cat(parts, 1) for site, parts in self.values.items() if parts}


class _Readers:
    """Computes what readers write when, of all that they see, one writer is as in the other run."""

    def __init__(
        self,
        runs: Runs,
        direction: Direction,
        watch: tuple[int, int] | None,
        all_means: Sequence[Component] | None,
    ) -> None:
        self.runs = runs
        self.watch = watch
        self.all_means = all_means
        self.base = runs.base(direction).cache
        self.new = runs.replacement(direction)
        self.parallel = runs.blocks[0].parallel
        # Before the first difference both runs are the same, so no wire changes anything there.
        self.first = runs.first_changed(direction)

    def wires_at_once(self, wire: Wire) -> int:
        """How many wires of a group the budget holds while their readers are computed."""
        runs = self.runs
        positions = runs.length if wire.position is None else 1
        each = len(self.base.final) * stream_bytes(
            d_model=runs.model.d_model, heads=1, length=runs.length, positions=positions
        )
        # About four wires share a writer's stream.
        return 4 * streams_at_once(runs.budget, each)

    def add(
        self, batch: _Batch, numbers: list[int], wires: Sequence[Wire]
    ) -> Float[torch.Tensor, "wire pair"]:
        """Put wires of one group into a batch, as rows; return the attention weights on the watched edge."""
        if wires[0].reader.kind in SIDES:
            return self._add_heads(batch, numbers, wires)
        reader = wires[0].reader
        positions = self._positions(wires[0].position)
        if reader.kind == "logits":
            first_read = self.runs.length - self.runs.metric.positions_read
            positions = positions[positions >= first_read]
        values = self._seen(reader, [wire.writer for wire in wires], positions)
        layer = reader.layer
        if reader.kind == "mlp":
            # All that changes is the stream above the block: what stood below the MLP, and what it now adds.
            stored = self.base.layers[layer]
            below = stored.pre[:, positions] + stored.attention[:, positions]
            values = below[:, None] + self.runs.blocks[layer].mlp_write(values, positions)
            layer += 1
        batch.put(numbers, layer, positions.tolist(), "residual", values)
        return torch.full((len(wires), len(self.runs.pairs)), torch.nan, dtype=torch.float64)

    def _positions(self, position: int | None) -> Positions:
        """The positions of a wire: the one that it names, or all at which the two runs can differ."""
        positions = range(self.first, self.runs.length) if position is None else [position]
        return torch.tensor(positions, device=self.runs.model.device)

    def _seen(
        self, reader: Reader, writers: Sequence[Component], positions: Positions
    ) -> Writes:
        """What the reader sees when each of these writers in turn is as in the other run."""
        own = stream_of(self.base, reader, parallel=self.parallel)[:, None, positions]
        seen = own.expand(-1, len(writers), -1, -1).clone()
        single = [number for number, writer in enumerate(writers) if writer != ALL]
        if single:
            named = [writers[number] for number in single]
            seen[:, single] += self._differences(named, positions)
        every = [number for number, writer in enumerate(writers) if writer == ALL]
        if every and self.all_means is not None:
            seen[:, every] += self._differences(self.all_means, positions).sum(1, keepdim=True)
        elif every:
            seen[:, every] = self._seen_of_other_run(reader, positions)[:, None]
        return seen

    def _differences(self, writers: Sequence[Component], positions: Positions) -> Writes:
        """How far each writer's output in the other run lies from its output in this one."""
        other = self.new.reduce(writes_of(self.runs, self.new.run, writers, positions))
        return other - writes_of(self.runs, self.base, writers, positions)

    def _seen_of_other_run(
        self, reader: Reader, positions: Positions
    ) -> Float[torch.Tensor, "input pos d_model"]:
        """What the reader sees when all writers are as in the other run. Where they write nothing, the biases
        of the attention layers below remain, which belong to no writer."""
        if self.new.reduced != "zero":
            stream = stream_of(self.new.run, reader, parallel=self.parallel)
            return self.new.reduce(stream)[:, positions]
        own_attention = reader.kind == "mlp" and not self.parallel
        layers_below = reader.layer + 1 if own_attention else reader.layer
        seen = torch.zeros_like(self.base.final[:, positions])
        silent = torch.zeros_like(self.base.layers[0].z[:, positions])
        for layer in range(layers_below):
            seen += self.runs.blocks[layer].write(silent)
        return seen

    def _add_heads(
        self, batch: _Batch, numbers: list[int], wires: Sequence[Wire]
    ) -> Float[torch.Tensor, "wire pair"]:
        """Wires into sides of heads of one layer."""
        layer = wires[0].reader.layer
        positions = self._positions(wires[0].position)
        writers = list(dict.fromkeys(wire.writer for wire in wires))  # each once
        seen = self._seen(wires[0].reader, writers, positions)
        query, key, value = self.runs.blocks[layer].project(seen, positions)
        projected: dict[Side, torch.Tensor] = {"query": query, "key": key, "value": value}
        watched = torch.full((len(wires), len(self.base.final)), torch.nan, dtype=torch.float64)
        for side in SIDES:
            own = [number for number, wire in enumerate(wires) if wire.reader.kind == side]
            if own:
                own_numbers = [numbers[number] for number in own]
                own_wires = [wires[number] for number in own]
                watched[own] = self._add_side(
                    batch, own_numbers, own_wires, side, writers, projected[side]
                )
        return self.runs.mean_over_draws(watched.T).T

    def _add_side(
        self,
        batch: _Batch,
        numbers: Sequence[int],
        wires: Sequence[Wire],
        side: Side,
        writers: Sequence[Component],
        projected: Float[torch.Tensor, "input writer pos head d_head"],
    ) -> Float[torch.Tensor, "wire input"]:
        """Wires into one side of heads of one layer. `projected` is that side, for each writer as it is when
        that writer is as in the other run."""
        heads = sorted({wire.reader.index for wire in wires})
        pattern, z, queries = self._attend(wires[0], side, projected[:, :, :, heads], heads)
        writer = torch.tensor([writers.index(wire.writer) for wire in wires], device=z.device)
        head = torch.tensor([heads.index(wire.reader.index) for wire in wires], device=z.device)
        values = z.transpose(2, 3)[:, writer, head]  # (input, wire, query, d_head)
        own_heads = [wire.reader.index for wire in wires]
        batch.put(numbers, wires[0].reader.layer, queries, "head", values, heads=own_heads)
        if self.watch is None or self.watch[1] not in queries:
            return torch.full((len(wires), len(z)), torch.nan, dtype=torch.float64)
        key, query = self.watch
        weights = pattern[:, :, :, queries.index(query), key]  # (input, writer, head)
        return weights[:, writer, head].T.double().cpu()

    def _attend(
        self,
        wire: Wire,
        side: Side,
        new: Float[torch.Tensor, "input writer pos head d_head"],
        heads: list[int],
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Let heads attend with one side changed at the wire's positions, and the other two as in this run.
        Returns the attention weights (input, writer, head, query, key), the outputs (input, writer, query,
        head, d_head), and the queries at which these change."""
        layer = wire.reader.layer
        positions = self._positions(wire.position)
        sides: dict[Side, torch.Tensor] = {}
        for name, whole in projections(self.runs, self.base, layer).items():
            sides[name] = whole[:, None, :, heads]  # (input, 1, pos, head, d_head)
        if side == "query":
            queries = positions
            sides["query"] = new
        else:
            # A new key or value can change its own and every later query.
            queries = self._positions(wire.query)
            if wire.query is None:
                queries = queries[queries >= positions[0]]
            sides["query"] = sides["query"][:, :, queries]
            changed = sides[side].expand(-1, new.shape[1], -1, -1, -1).clone()
            changed[:, :, positions] = new
            sides[side] = changed
        pattern, z = self.runs.blocks[layer].attend(
            sides["query"], sides["key"], sides["value"], queries=queries, heads=heads
        )
        return pattern.expand(-1, new.shape[1], -1, -1, -1), z, queries.tolist()
