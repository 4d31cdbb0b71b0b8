"""All edges at once: the effect of every (head, key, query) of a prompt.

1. A short prompt is measured whole.
2. In a long one the edges with the largest first-order estimate are measured exactly, and `Scan.measured` says which they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Bool, Float

from circuits.engine.linear import loadings
from circuits.engine.rows import Direction, Row
from circuits.engine.runs import Runs
from circuits.heads import Edge, Head

MOST_EDGES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Scan:
    """Effects (mean over pairs) of all edges; those not `measured` are 0 here and small by their first-order estimate."""

    effect: Float[torch.Tensor, "layer head query key"]
    measured: Bool[torch.Tensor, "layer head query key"]

    @property
    def exact(self) -> bool:
        """Whether every edge was measured."""
        length = self.measured.shape[-1]
        return bool(self.measured[..., *torch.tril_indices(length, length)].all())

    def top(self, count: int) -> list[tuple[Edge, float]]:
        """The strongest edges."""
        order = self.effect.abs().flatten().argsort(descending=True, stable=True)[:count]
        places = torch.stack(torch.unravel_index(order, self.effect.shape), 1).tolist()
        return [
            (Edge(Head(layer, head), key, query), float(self.effect[layer, head, query, key]))
            for layer, head, query, key in places
        ]


def scan(runs: Runs, *, direction: Direction = "swap", most: int = MOST_EDGES) -> Scan:
    """The exact effect of every edge, or of the `most` edges with the largest first-order estimate."""
    layers, heads, length = runs.model.n_layers, runs.model.n_heads, runs.length
    chosen = torch.ones(layers, heads, length, length, dtype=torch.bool).tril()
    if int(chosen.sum()) > most:
        estimate = loadings(runs, of="change").abs().cpu() * chosen
        chosen = (
            torch.zeros_like(chosen)
            .flatten()
            .index_fill(0, estimate.flatten().topk(most).indices, True)
            .view_as(chosen)
        )
    places = chosen.nonzero().tolist()
    rows = [Row.of_edges([Edge(Head(layer, head), key, query)]) for layer, head, query, key in places]
    effect = torch.zeros(chosen.shape)
    effect[chosen] = runs.effects(rows, direction=direction).mean(1).cpu().float()
    return Scan(effect, chosen)
