"""The control of a wiring by chance: circuits of as many random wires that also lead from the embedding to the
logits."""

from __future__ import annotations

from random import Random
from typing import Final

import torch

from circuits.components import Wire
from circuits.engine.kept import KeptRuns
from circuits.engine.wire_table import Chosen, WireTable
from circuits.results import Progress
from circuits.tracing.measure import finite
from circuits.wires.parts import RandomCircuits

DRAWS: Final = 10
_TRIES: Final = 8  # paths that are drawn for each wire that is wanted, at most


def random_circuits(
    seen: KeptRuns, chosen: Chosen, *, seed: int, progress: Progress
) -> RandomCircuits:
    """What circuits of as many random wires keep."""
    count = int(chosen.sum())
    draws = [
        random_circuit(seen.table, count, besides=chosen, seed=f"{seed} {number}")
        for number in range(DRAWS)
    ]

    def report(done: int, total: int) -> None:
        progress("random circuits", done, total)

    kept = seen.kept(torch.stack(draws), progress=report).mean(1)
    return RandomCircuits(finite(float(kept.mean())), finite(float(kept.max())), DRAWS)


def random_circuit(table: WireTable, count: int, *, besides: Chosen, seed: str) -> Chosen:
    """About so many random wires that are not in another circuit: random paths from the logits down to the
    embedding, until there are enough."""
    draw = Random(seed)
    chosen = torch.zeros(len(table), dtype=torch.bool)
    places = len(table.places)
    for _ in range(_TRIES * count):
        path = _random_path(table, draw, places - 1)
        if besides[path].any():
            continue
        chosen[path] = True
        if int(chosen.sum()) >= count:
            break
    return chosen


def _random_path(table: WireTable, draw: Random, place: int) -> list[int]:
    """The numbers of the wires on one random path from the logits, at a place, to the embedding."""
    edges = table.edges
    row = len(edges.readers) - 1  # the logits
    path = []
    while True:
        writers = edges.exists[row].nonzero().flatten().tolist()
        writer = edges.writers[draw.choice(writers)]
        edge = edges.number_of[Wire(writer, edges.readers[row])]
        path.append(edge * len(table.places) + place)
        if writer.kind == "embed":
            return path
        row = draw.choice(list(edges.rows_of(writer)))
        if edges.readers[row].kind in ("key", "value"):
            place = draw.choice(table.readable[place].nonzero().flatten().tolist())
