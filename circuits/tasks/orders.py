"""Orders of component edges: whichever way they were found, the first k of an order are a circuit of k edges.

- `search`: the reverse of the order in which the search for small circuits removes edges. The last survivors
  come first; edges that are on no way from the embedding to the logits come last.
- `effect`: the exact effect of each edge alone, the largest first; where measuring all would cost too much,
  estimates stand in behind the first.
- `eap`: edge attribution patching, by the size of the scores, as EAP and MIB order them.
- `eap-ig`: the same with integrated gradients.

All of them are evaluated by the same runs: `explained` keeps the first edges and swaps all others together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float

from circuits.engine.kept import KeptRuns
from circuits.results import Progress, silent
from circuits.wires.search import Aim, search

_ALIKE: Final = 4  # circuits run together if the largest has at most so many times the edges of the smallest


@dataclass(frozen=True)
class EdgeOrder:
    """All component edges by number, and what finding their order took."""

    numbers: list[int]
    sizes: tuple[int, ...] = ()  # of the circuits that a search passed
    passes: int = 0  # forward passes; a backward pass counts as two


def searched(
    kept: KeptRuns, *, aim: Aim = "faithful", progress: Progress = silent
) -> EdgeOrder:
    """The order of the search for small circuits."""
    found = search(kept, aim=aim, progress=progress)
    sizes = tuple(sorted(len(stage) for stage in found.stages))
    return EdgeOrder(found.order(), sizes, found.passes)


def by_size(scores: Float[np.ndarray, "edge pair"], *, passes: int = 0) -> EdgeOrder:
    """The largest mean score of either sign first; of equal ones the edge with the lower number."""
    order = np.argsort(-np.abs(scores.mean(1)), kind="stable")
    return EdgeOrder(order.tolist(), passes=passes)


def explained(
    kept: KeptRuns, order: Sequence[int], sizes: Sequence[int], progress: Progress = silent
) -> Float[np.ndarray, "size pair"]:
    """The share of the gap that the first edges of an order keep, for each size, on every pair."""
    rank_of = torch.from_numpy(np.argsort(order))
    values = np.zeros((len(sizes), kept.pairs))
    done = 0
    for numbers in _alike(sizes):
        circuits = torch.stack([rank_of < sizes[number] for number in numbers])
        values[numbers] = kept.kept(circuits).numpy()
        done += len(numbers)
        progress("keep curve", done, len(sizes))
    return values


def _alike(sizes: Sequence[int]) -> list[list[int]]:
    """The numbers of the sizes, in groups of similar size: a small circuit that runs beside a large one costs
    as much as that one."""
    rising = sorted(range(len(sizes)), key=lambda number: sizes[number])
    groups: list[list[int]] = []
    for number in rising:
        smallest = sizes[groups[-1][0]] if groups else None
        if smallest is None or sizes[number] > _ALIKE * max(smallest, 1):
            groups.append([])
        groups[-1].append(number)
    return groups
