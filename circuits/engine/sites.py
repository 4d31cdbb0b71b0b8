"""One site at a time: rows that patch every layer and position, or every head, of a model.

1. `residual`, `attention` and `mlp` are vectors at a position. Their rows name a layer and a position, and the
   direction says what stands there.
2. `head` is a head's output `z`, at some positions together or at each of them.
3. `query`, `key` and `value` are one head's own projections. The new ones stand in for those of the base run
   at some positions, the head attends anew, and its new output is a value that the row names (`given`).
4. `pattern` are one head's attention weights. The new weights at some queries read the base run's values.

Heads that share a key and a value are told apart: a row changes what one head reads, not what its group does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float

from circuits.engine.cache import Cache, Replacement
from circuits.engine.rows import DIRECTIONS, Change, Direction, Given, Row, Site
from circuits.engine.runs import Runs
from circuits.engine.wires import projections
from circuits.errors import EdgeError

PatchSite = Literal["residual", "attention", "mlp", "head", "query", "key", "value", "pattern"]
PATCH_SITES: Final[tuple[PatchSite, ...]] = get_args(PatchSite)
# Knockout shuts attention edges, and no site is one.
ABLATIONS: Final[tuple[Direction, ...]] = tuple(
    kind for kind in DIRECTIONS if kind != "knockout"
)
BY_POSITION: Final = ("residual", "attention", "mlp")  # sites of a layer, not of a head
Output = Float[torch.Tensor, "input query head d_head"]


@dataclass(frozen=True, slots=True)
class SiteRows:
    """Rows, with the values that they name."""

    rows: list[Row]
    given: Given


def layer_rows(
    runs: Runs, site: Site, positions: Sequence[int], direction: Direction
) -> list[Row]:
    """One row for each layer and position. The residual stream has a further layer: above the last block.

    Where both runs have the same value, as the embeddings of equal tokens, the row changes nothing and is
    empty: it need not be run.
    """
    base = runs.base(direction).cache
    new = runs.replacement(direction)
    layers = runs.model.n_layers + 1 if site == "residual" else runs.model.n_layers
    rows = []
    for layer in range(layers):
        other = new.reduce(_stored(new.run, site, layer))
        differs = (other != _stored(base, site, layer)).any(-1).any(0).tolist()  # by position
        for position in positions:
            changes = (Change(layer, position, site),) if differs[position] else ()
            rows.append(Row(changes))
    return rows


def _stored(cache: Cache, site: Site, layer: int) -> Float[torch.Tensor, "input pos d_model"]:
    """What stands at a site of a layer in a run."""
    if site == "residual":
        return cache.pre(layer)
    stored = cache.layers[layer]
    return stored.attention if site == "attention" else stored.mlp


def head_rows(runs: Runs, groups: Sequence[Sequence[int]]) -> list[Row]:
    """One row for each head and group of positions: all that the head writes at them."""
    rows = []
    for head in runs.heads:
        rows += [Row.of_heads([head], group) for group in groups]
    return rows


@torch.inference_mode()
def computed_rows(
    runs: Runs,
    site: PatchSite,
    groups: Sequence[Sequence[int]],
    direction: Direction,
    layers: Sequence[int],
) -> SiteRows:
    """One row for each head of these layers and each group of positions: the head's output with its queries,
    keys, values or attention weights changed there."""
    if direction == "knockout":
        raise EdgeError(
            f"knockout shuts attention edges; it means nothing for {site}: use zero"
        )
    rows: list[Row] = []
    values: list[torch.Tensor] = []
    count = 0  # of the values so far
    for layer in layers:
        outputs = _Outputs(runs, direction, layer)
        # Each (input, query, head, d_head), and the queries.
        changed = [outputs.of(site, outputs.that_differ(group)) for group in groups]
        for head in range(runs.model.n_heads):
            for z, queries in changed:
                rows.append(Row.of_given(layer, queries, "head", first=count, head=head))
                values.append(z[:, :, head])
                count += len(queries)
    return SiteRows(rows, {"head": torch.cat(values, 1)})


class _Outputs:
    """What the heads of one layer write when one of their sites is changed."""

    def __init__(self, runs: Runs, direction: Direction, layer: int) -> None:
        self.runs = runs
        self.layer = layer
        self.base = runs.base(direction).cache
        self.new: Replacement = runs.replacement(direction)
        self.length = runs.length
        # Before the first difference both runs are the same.
        self.first = runs.first_changed(direction)

    def that_differ(self, group: Sequence[int]) -> list[int]:
        """The positions of a group at which the two runs can differ."""
        return [position for position in group if position >= self.first]

    def of(self, site: PatchSite, positions: list[int]) -> tuple[Output, list[int]]:
        """The output of every head with the site changed at these positions, and where it changes."""
        if not positions:
            return self.base.layers[self.layer].z[:, :0], []
        if site == "pattern":
            return self._of_pattern(positions), positions
        assert site == "query" or site == "key" or site == "value"
        sides = projections(self.runs, self.base, self.layer)  # each (input, pos, head, d_head)
        other = projections(self.runs, self.new.run, self.layer)
        changed = sides[site].expand(len(self.base.final), -1, -1, -1).clone()
        changed[:, positions] = self.new.reduce(other[site])[:, positions]
        sides = {**sides, site: changed}
        # A new key or value can change every query from the first of these positions on. A family of prompts of
        # different lengths has its positions in the order in which the user named them.
        queries = positions if site == "query" else list(range(min(positions), self.length))
        _, z = self.runs.blocks[self.layer].attend(
            sides["query"][:, queries],
            sides["key"],
            sides["value"],
            queries=torch.tensor(queries, device=changed.device),
            heads=range(self.runs.model.n_heads),
        )
        return z, queries

    def _of_pattern(self, positions: list[int]) -> Output:
        """The new attention weights at these queries times this run's values."""
        queries = torch.tensor(positions, device=self.base.final.device)
        weights = self.new.reduce(self.new.run.layers[self.layer].pattern(queries))
        value = self.base.layers[self.layer].value  # (input, head, key, d_head)
        return torch.einsum("ihqk,ihkd->iqhd", weights.expand(len(value), -1, -1, -1), value)
