"""Circuits of wires: run some wires as in the clean run and all others as in the counterfactual run.

1. Every reader sees the counterfactual stream plus, for each of its wires, how far the writer's output in
   this run lies from its output in the counterfactual run. A reader without wires sees the counterfactual,
   so what it writes is known without computing it: a small circuit is cheap in a large model. Where the
   ablation of the runs is another than `swap`, what it puts there takes the counterfactual's place
   (`Runs.ablated`).
2. A wire is present with a weight: 1 or 0, or a number between them. Gradients flow through the weights. So
   one backward pass says, for every wire of a circuit at once, what removing it would cost to first order.
3. Weights are given for each input. So several circuits run in one batch, each on a copy of the inputs, and
   the gradient of each pair is its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int

from circuits.components import EMBED, SIDES, Component, Reader, Side
from circuits.engine.cache import Cache
from circuits.engine.edges import EdgeTable
from circuits.engine.forward import Forward
from circuits.engine.memory import (
    GRADIENT_BUDGET,
    gradient_bytes,
    stream_bytes,
    streams_at_once,
)
from circuits.engine.rows import Row
from circuits.engine.runs import Runs
from circuits.engine.wire_table import Chosen, Numbers, WireTable
from circuits.engine.wires import Progress, no_progress, stream_of
from circuits.errors import PromptError

Places = Int[torch.Tensor, " pos"]  # the place of every position
Weights = Float[torch.Tensor, "copy wire"]  # a copy is one input in one circuit
Streams = Float[torch.Tensor, "copy pos d_model"]
StreamHeads = Float[torch.Tensor, "copy pos head d_head"]
Kept = Float[torch.Tensor, "circuit pair"]  # shares of the gap


# The run of a circuit


class CircuitForward(Forward):
    """Copies of the inputs, each in a circuit of its own.

    `wires` are the numbers of all wires that any of the circuits has. The batch holds so many `copies` of the
    inputs: copy c of input i is number c · inputs + i.
    """

    def __init__(
        self, runs: Runs, table: WireTable, place_of: Places, wires: Numbers, *, copies: int
    ) -> None:
        super().__init__(runs.blocks)
        self.runs = runs
        self.table = table
        self.place_of = place_of  # position -> place
        self.copies = copies
        self.ablated: Cache = runs.ablated  # the counterfactual, where the ablation is `swap`
        self.positions = torch.arange(runs.length, device=runs.model.device)
        # Only readers and writers that have wires take part: each is known by its number among these.
        self.readers, self.reader_of_wire = table.ends.reader[wires].unique(return_inverse=True)
        self.writers, self.writer_of_wire = table.ends.writer[wires].unique(return_inverse=True)
        self.place_of_wire = table.ends.place[wires]
        self.wired = {table.edges.writers[number] for number in self.writers.tolist()}

    def top(self, weights: Weights) -> Float[torch.Tensor, "copy read d_model"]:
        """Run the circuits, each wire present with its weight, and return what the logits see."""
        self.mask = self._mask(weights)
        self.differences: list[Streams] = []  # of the writers so far, in the order of `writers`
        clean = self.runs.clean.cache.layers[0].pre
        embedded = self._copied(clean - self.ablated.layers[0].pre)
        self._wrote(EMBED, embedded)
        # The walk adds up all differences, a stream that no reader sees: each has one of its own (`_arriving`).
        self.run(embedded)
        logits = self._numbers_of([len(self.table.edges.readers) - 1])  # the last reader
        seen = self._copied(self.ablated.final) + self._arriving(logits)[:, :, 0]
        return seen[:, -self.runs.metric.positions_read :]

    def _mask(self, weights: Weights) -> Float[torch.Tensor, "copy pos_or_1 reader writer"]:
        """The weight of every wire, by its ends. Component edges have one weight for all positions."""
        size = (len(weights), len(self.table.places), len(self.readers), len(self.writers))
        empty = weights.new_zeros(size)
        copy = torch.arange(len(weights), device=weights.device)[:, None]
        ends = (copy, self.place_of_wire, self.reader_of_wire, self.writer_of_wire)
        mask = empty.index_put(ends, weights)
        return mask if self.table.everywhere else mask[:, self.place_of]

    def _copied(self, streams: torch.Tensor) -> torch.Tensor:
        """(input, …) as (copy, …): copy after copy of all inputs."""
        once = [1] * (streams.dim() - 1)
        return streams.repeat(self.copies, *once)

    def _numbers_of(self, rows: Sequence[int]) -> Int[torch.Tensor, " row"]:
        """The numbers of readers among those that have wires; −1 for a reader without."""
        wanted = torch.tensor(rows, device=self.readers.device)
        at = torch.searchsorted(self.readers, wanted).clamp(max=len(self.readers) - 1)
        return torch.where(self.readers[at] == wanted, at, -1)

    def _arriving(
        self, readers: Int[torch.Tensor, " row"]
    ) -> Float[torch.Tensor, "copy pos row d_model"]:
        """How far the streams of some readers lie from the counterfactual: the differences of the writers
        below, each with the weight of its wire. 0 where a reader has no wires."""
        below = len(self.differences)
        has_wires = readers >= 0
        if below == 0 or not has_wires.any():
            inputs, length, width = self.ablated.final.shape
            size = (self.copies * inputs, length, len(readers), width)
            return self.ablated.final.new_zeros(size)
        # The first `below` of `writers`, since a block's writers come after those of the blocks below.
        stacked = torch.stack(self.differences, 2)  # (copy, pos, writer, d_model)
        mask = self.mask[:, :, readers.clamp(min=0), :below]  # (copy, pos or 1, row, writer)
        mask = mask * has_wires[:, None]
        return mask.to(stacked.dtype) @ stacked

    # One block

    def heads(self, layer: int, stream: Streams) -> tuple[Streams, StreamHeads]:
        """Every head's output `z`. Heads with wires read; those without see the counterfactual, and their
        output is the counterfactual's."""
        rows = self.table.edges.rows_of_heads(layer)
        numbers = self._numbers_of(rows).unflatten(0, (-1, len(SIDES)))  # (head, side)
        reading = (numbers >= 0).any(1).nonzero().flatten()  # heads with wires into any side
        self.any_head_reads = len(reading) > 0
        z = self._copied(self.ablated.layers[layer].z)
        if self.any_head_reads:
            z = z.index_copy(2, reading, self._read(layer, reading.tolist(), numbers[reading]))
        return stream, z

    def _read(
        self, layer: int, heads: list[int], numbers: Int[torch.Tensor, "head side"]
    ) -> StreamHeads:
        """What some heads read, each of their sides from a stream of its own."""
        block = self.blocks[layer]
        stream = self._copied(self.ablated.layers[layer].pre)
        arriving = self._arriving(numbers.T.flatten())  # (copy, pos, side and head, d_model)
        seen = stream[:, :, None] + arriving
        own = rearrange(seen, "c p (s h) d -> s c h p d", s=len(SIDES))
        sides: dict[Side, torch.Tensor] = {}
        for side, streams in zip(SIDES, own, strict=True):
            sides[side] = block.side(streams, side, heads, self.positions)
        query, key, value = sides["query"], sides["key"], sides["value"]
        return block.attend(query, key, value, queries=self.positions, heads=heads)[1]

    def attention_write(self, layer: int, z: StreamHeads) -> Streams:
        """How far the heads' writes lie from the counterfactual's."""
        if self.any_head_reads:
            written = self.blocks[layer].head_writes(z)  # (copy, pos, head, d_model)
            differences = written - self._copied(self.runs.ablated_head_writes(layer))
        else:
            differences = z.new_zeros(*z.shape[:3], self.runs.model.d_model)
        for head, difference in enumerate(differences.unbind(2)):
            self._wrote(Component(layer, "head", head), difference)
        return differences.sum(2)

    def mlp_write(self, layer: int, stream: Streams) -> Streams:
        """How far the MLP's write lies from the counterfactual's."""
        component = Component(layer, "mlp")
        number = self._numbers_of(self.table.edges.rows_of(component))  # one
        difference = torch.zeros_like(stream)
        if int(number) >= 0:
            reader = Reader(layer, "mlp")
            base = stream_of(self.ablated, reader, parallel=self.table.edges.parallel)
            seen = self._copied(base) + self._arriving(number)[:, :, 0]
            ablated = self._copied(self.ablated.layers[layer].mlp)
            difference = self.blocks[layer].mlp_write(seen, self.positions) - ablated
        self._wrote(component, difference)
        return difference

    def _wrote(self, component: Component, difference: Streams) -> None:
        """Remember how far a writer's output lies from the counterfactual's, if a wire begins there."""
        if component in self.wired:
            self.differences.append(difference)


# Circuits on many pairs


@dataclass(frozen=True)
class PairBatch:
    """Pairs of one length that run together."""

    runs: Runs
    pairs: list[int]  # their numbers among all pairs
    place_of: Places


@dataclass(frozen=True)
class KeptRuns:
    """Pairs on which circuits are run."""

    table: WireTable
    batches: tuple[PairBatch, ...]
    pairs: int

    @classmethod
    def everywhere(cls, batches: Sequence[tuple[Runs, list[int]]]) -> KeptRuns:
        """Circuits of component edges, which hold at all positions together."""
        _refuse_probes(batches)
        edges = EdgeTable.of(batches[0][0])
        table = WireTable(edges, ("",), torch.ones(1, 1, dtype=torch.bool))
        placed = []
        for runs, pairs in batches:
            place_of = torch.zeros(runs.length, dtype=torch.long, device=runs.model.device)
            placed.append(PairBatch(runs, pairs, place_of))
        return cls(table, tuple(placed), sum(len(pairs) for _, pairs in batches))

    @classmethod
    def at_places(
        cls,
        batches: Sequence[tuple[Runs, list[int]]],
        names: Sequence[Sequence[str]],
        *,
        first: Sequence[str] = (),
    ) -> KeptRuns:
        """Circuits of wires at places; `names` are those of every position, for each batch. Places that are
        named `first` have the lowest numbers, whether or not these prompts have them."""
        _refuse_probes(batches)
        places = tuple(dict.fromkeys((*first, *chain.from_iterable(names))))  # each once
        number_of = {name: number for number, name in enumerate(places)}
        readable = torch.zeros(len(places), len(places), dtype=torch.bool)  # (query, key)
        placed = []
        for (runs, pairs), listed in zip(batches, names, strict=True):
            place_of = torch.tensor([number_of[name] for name in listed])
            for position, place in enumerate(place_of.tolist()):
                up_to_here = place_of[: position + 1]
                readable[place, up_to_here] = True
            placed.append(PairBatch(runs, pairs, place_of.to(runs.model.device)))
        table = WireTable(EdgeTable.of(batches[0][0]), places, readable)
        return cls(table, tuple(placed), sum(len(pairs) for _, pairs in batches))

    def of_pairs(self, numbers: Sequence[int]) -> KeptRuns:
        """Some of the pairs, each as often as it is named, in the order of the batches."""
        batches = []
        count = 0
        for batch in self.batches:
            own = [batch.pairs.index(number) for number in numbers if number in batch.pairs]
            if own:
                pairs = list(range(count, count + len(own)))
                batches.append(PairBatch(batch.runs.only(own), pairs, batch.place_of))
                count += len(own)
        return KeptRuns(self.table, tuple(batches), count)

    @torch.inference_mode()
    def kept(
        self, circuits: Bool[torch.Tensor, "circuit wire"], *, progress: Progress = no_progress
    ) -> Kept:
        """How much of the gap each circuit keeps on every pair, while all its other wires are swapped."""
        kept = torch.zeros(len(circuits), self.pairs, dtype=torch.float64)
        done = 0  # circuits, once for each batch
        for batch in self.batches:
            step = self._circuits_at_once(batch, circuits)
            for first in range(0, len(circuits), step):
                some = circuits[first : first + step]
                kept[first : first + step, batch.pairs] = self._kept(batch, some)
                done += len(some)
                progress(done, len(circuits) * len(self.batches))
        return kept

    def _kept(self, batch: PairBatch, circuits: Bool[torch.Tensor, "circuit wire"]) -> Kept:
        """What these circuits keep on the pairs of one batch, all circuits in one run."""
        runs = batch.runs
        if not circuits.any() and runs.ablation.kind == "swap":
            # Without any wire the run is the counterfactual's.
            return torch.zeros(len(circuits), len(batch.pairs), dtype=torch.float64)
        top = self._top(batch, circuits)
        shares = _shares_by_rows(runs, top) if runs.layout is None else shares_kept(runs, top)
        return shares.double().cpu()

    def _top(
        self, batch: PairBatch, circuits: Bool[torch.Tensor, "circuit wire"]
    ) -> Float[torch.Tensor, "circuit input read d_model"]:
        """What the logits see in each circuit."""
        runs = batch.runs
        wires = circuits.any(0).nonzero().flatten()  # that any of the circuits has
        if not len(wires):
            seen = runs.ablated.final[:, -runs.metric.positions_read :]
            return seen.expand(len(circuits), -1, -1, -1)
        weights = circuits[:, wires].to(runs.model.device, runs.model.dtype)
        forward = CircuitForward(runs, self.table, batch.place_of, wires, copies=len(circuits))
        inputs = len(runs.clean.tokens)
        top = forward.top(weights.repeat_interleave(inputs, 0))  # copy after copy of all inputs
        return top.unflatten(0, (-1, inputs))

    def _circuits_at_once(
        self, batch: PairBatch, circuits: Bool[torch.Tensor, "circuit wire"]
    ) -> int:
        """How many circuits run together: every reader of a block has a stream of its own."""
        runs = batch.runs
        in_layer = self.table.edges.readers_in_layer
        readers_of_wires = self.table.ends.reader[circuits.any(0)]
        wires_by_layer = torch.bincount(readers_of_wires // in_layer, minlength=1)
        # At most this many readers of a layer have wires.
        readers = min(int(wires_by_layer.max()), in_layer)
        stream = stream_bytes(
            d_model=runs.model.d_model, heads=runs.model.n_heads, length=runs.length
        )
        # A head's three sides are counted in the stream of one.
        copy = max(1, readers // len(SIDES)) * stream
        return streams_at_once(8 * runs.budget, len(runs.clean.tokens) * copy)

    def values(
        self, chosen: Chosen, *, scales: Sequence[float] = (1.0,)
    ) -> Float[torch.Tensor, "wire pair"]:
        """What each wire of a circuit is worth on every pair, to first order: the share of the gap that would
        be lost without it; 0 for wires that are not in the circuit. Gradients are averaged over the circuit
        with all its weights scaled by each of `scales`."""
        wires = chosen.nonzero().flatten()
        values = torch.zeros(len(chosen), self.pairs, dtype=torch.float64)
        for batch in self.batches:
            for runs, pairs in parts_in_memory(batch):
                part = PairBatch(runs, pairs, batch.place_of)
                for scale in scales:
                    one = torch.ones(
                        len(wires), dtype=runs.model.dtype, device=runs.model.device
                    )
                    gradient = self._gradient(part, wires, scale * one)
                    values[wires[:, None], torch.tensor(pairs)] += gradient / len(scales)
        return values

    def _gradient(
        self, batch: PairBatch, wires: Numbers, weights: Float[torch.Tensor, " wire"]
    ) -> Float[torch.Tensor, "wire pair"]:
        """The gradient of what is kept on each pair, with respect to the weights of these wires; all other
        wires have the weight 0."""
        runs = batch.runs
        runs.layout_for("gradients")
        with torch.inference_mode(False), torch.enable_grad():
            # Each pair has weights of its own, so the gradient of the sum is that of each pair alone.
            own = weights.repeat(len(batch.pairs), 1).requires_grad_()  # (pair, wire)
            draws = torch.tensor(runs.draws, device=own.device)
            forward = CircuitForward(runs, self.table, batch.place_of, wires, copies=1)
            top = forward.top(own.repeat_interleave(draws, 0))
            total = shares_kept(runs, top[None]).sum()
            (gradient,) = torch.autograd.grad(total, own)
        return gradient.T.double().cpu()


def _refuse_probes(batches: Sequence[tuple[Runs, list[int]]]) -> None:
    """Refuse a metric that is not read from the logits, where all wires end."""
    if any(runs.metric.kind == "probe" for runs, _ in batches):
        raise PromptError(
            "circuits of wires end at the logits; take another metric than a probe"
        )


def shares_kept(runs: Runs, tops: Float[torch.Tensor, "circuit input read d_model"]) -> Kept:
    """The share of the gap that is kept in runs that end with these streams above the last block."""
    values = runs.mean_over_draws(runs.read_stream(tops.transpose(0, 1)))  # (pair, circuit)
    base = runs.values(runs.counterfactual)
    return ((values - base[:, None]) / runs.gap[:, None]).T


def _shares_by_rows(
    runs: Runs, tops: Float[torch.Tensor, "circuit input read d_model"]
) -> Kept:
    """The share of the gap that is kept, where only the model's own forward can read the metric: the streams
    are put in as rows."""
    read = tops.shape[2]
    positions = range(runs.length - read, runs.length)
    rows = []
    for number in range(len(tops)):
        rows.append(
            Row.of_given(runs.model.n_layers, positions, "residual", first=number * read)
        )
    given = rearrange(tops, "c i r d -> i (c r) d")
    return 1 - runs.effects(rows, direction="swap", given={"residual": given})


def parts_in_memory(batch: PairBatch) -> Iterator[tuple[Runs, list[int]]]:
    """The pairs of a batch in parts whose backward pass fits into memory."""
    runs = batch.runs
    pair = max(runs.draws) * gradient_bytes(runs.model, runs.length)
    step = streams_at_once(GRADIENT_BUDGET, pair)
    for first in range(0, len(batch.pairs), step):
        numbers = list(range(first, min(first + step, len(batch.pairs))))
        yield runs.only(numbers), [batch.pairs[number] for number in numbers]
