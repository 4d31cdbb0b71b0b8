"""What is measured of one circuit of wires, whichever way it was found: what it keeps on every pair, the value
of each wire in it and its effect alone, and what random circuits and all other wires keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from circuits.components import Wire
from circuits.engine.kept import KeptRuns
from circuits.engine.wire_table import Chosen, WireTable
from circuits.engine.wires import wire_effects
from circuits.results import Progress
from circuits.tracing.measure import finite
from circuits.wires.pairs import SplitRuns, wired_pairs
from circuits.wires.parts import RandomCircuits, WiredPair, WireValue
from circuits.wires.random_circuits import random_circuits


@dataclass(frozen=True)
class CircuitMeasures:
    """The fields of a wiring that depend on its circuit alone, by their names there."""

    pairs: tuple[WiredPair, ...]
    wires: tuple[WireValue, ...]
    complement: float
    random: RandomCircuits


def measure_circuit(
    runs: SplitRuns, chosen: Chosen, *, seed: int, progress: Progress
) -> CircuitMeasures:
    """What a circuit keeps on every pair, values and effects of its wires, and its controls."""
    seen, unseen = runs.seen, runs.unseen
    kept = seen.kept(chosen[None])[0].tolist()
    if unseen is not None:
        same = circuit_of(unseen.table, named_wires(seen.table, chosen))
        kept += unseen.kept(same[None])[0].tolist()
    left = float(seen.kept(~chosen[None]).mean())
    return CircuitMeasures(
        wired_pairs(runs, kept),
        _values(seen, chosen, progress),
        complement=finite(left),
        random=random_circuits(seen, chosen, seed=seed, progress=progress),
    )


def _values(seen: KeptRuns, chosen: Chosen, progress: Progress) -> tuple[WireValue, ...]:
    """The value of each wire in the circuit and its effect alone, the most valuable first."""
    numbers = chosen.nonzero().flatten()
    left_out = chosen.repeat(len(numbers), 1)
    left_out[torch.arange(len(numbers)), numbers] = False
    circuits = torch.cat((chosen[None], left_out))

    def report(done: int, total: int) -> None:
        progress("values", done, total)

    kept = seen.kept(circuits, progress=report).mean(1)
    values = (kept[0] - kept[1:]).tolist()
    wires = named_wires(seen.table, chosen)
    effects = _effects_alone(seen, wires)
    listed = []
    for wire, value, effect in zip(wires, values, effects, strict=True):
        listed.append(WireValue(wire, finite(value), finite(effect)))
    return tuple(sorted(listed, key=lambda each: (-each.value, str(each.wire))))


def _effects_alone(seen: KeptRuns, wires: Sequence[Wire]) -> list[float]:
    """The effect of swapping each wire alone in the whole model, mean over the pairs."""
    effects = torch.zeros(len(wires), seen.pairs, dtype=torch.float64)
    for batch in seen.batches:
        position_of = {place: at for at, place in enumerate(batch.place_of.tolist())}
        first_read = batch.runs.length - batch.runs.metric.positions_read
        numbers = []  # of the wires that these prompts have
        placed = []
        for number, wire in enumerate(wires):
            own = _at_position(wire, position_of, first_read=first_read)
            if own is not None:
                numbers.append(number)
                placed.append(own)
        measured, _ = wire_effects(batch.runs, placed)
        effects[torch.tensor(numbers)[:, None], torch.tensor(batch.pairs)] = measured
    return effects.mean(1).tolist()


def _at_position(wire: Wire, position_of: Mapping[int, int], *, first_read: int) -> Wire | None:
    """A wire with the position that its place has in the prompts of a batch. None where these prompts do not
    have the place, or, of a wire into the logits, where they are not read: there it has no effect."""
    if wire.position is None:
        return wire
    position = position_of.get(wire.position)
    if position is None:
        return None
    if wire.reader.kind == "logits" and position < first_read:
        return None
    return replace(wire, position=position)


def named_wires(table: WireTable, chosen: Chosen) -> list[Wire]:
    """The wires of a circuit; the position of a wire is the number of its place."""
    wires = []
    for number in chosen.nonzero().flatten().tolist():
        edge, place = divmod(number, len(table.places))
        wire = table.edges.wires[edge]
        wires.append(wire if table.everywhere else replace(wire, position=place))
    return wires


def circuit_of(table: WireTable, wires: Sequence[Wire]) -> Chosen:
    """The circuit of these wires."""
    chosen = torch.zeros(len(table), dtype=torch.bool)
    for wire in wires:
        edge = table.edges.number_of[replace(wire, position=None)]
        chosen[edge * len(table.places) + (wire.position or 0)] = True
    return chosen
