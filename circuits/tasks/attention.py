"""Heads and attention edges of a task: the effect of each alone, and what is explained by keeping some.

1. Pairs that can run together form a batch: pairs of one length and, for edges, with the same roles at the
   same positions. Nothing is changed before the first position at which the two prompts differ.
2. A unit is swapped by replacing its messages in the clean run by those of the counterfactual run.
3. MLPs are `computed` from what reaches them, `held` at the clean run's writes, or `swapped` to the
   counterfactual's. Embeddings are always clean. Where both prompts end with the same token, this means:

   - computed: keeping no unit explains exactly 0 (positions exchange information by attention alone, so the
     last one sees only the counterfactual); keeping all explains exactly 1.
   - held: keeping all explains exactly 1; keeping none explains what clean MLPs alone write at the last
     token.
   - swapped: keeping none explains exactly 0; keeping all explains what heads carry from the embeddings
     alone, often little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from circuits.engine import SWAP, Ablation, Change, Row, Runs, prepare
from circuits.engine.loadings import loadings
from circuits.engine.rows import OF_PAIR
from circuits.engine.runs import every_head
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.results import Progress, silent
from circuits.tasks.measurement import Effects, Measurement, groups_that_run_together, to_numpy
from circuits.tasks.ranking import Mlps, Protocol, RoleEdge, Units
from circuits.tasks.task import Item

# Multiply-adds for the single effects of edges: two minutes of one core.
MOST_WORK: Final = 2.5e12
_ROWS: Final = 512  # rows measured between two reports of progress


# A batch of pairs


@dataclass(frozen=True)
class Batch:
    """Pairs that run together."""

    runs: Runs
    indices: list[int]  # which pairs of the task these are
    # The number of the unit that an edge belongs to.
    unit_of: Int[np.ndarray, "layer head query key"]
    positions: range  # from the first position at which clean and counterfactual differ
    mlp_changes: tuple[Change, ...]  # made in every row: the writes of all MLPs, or nothing

    @classmethod
    def of(cls, runs: Runs, indices: list[int], unit_of: np.ndarray, mlps: Mlps) -> Batch:
        positions = range(runs.first_changed(), runs.length)
        if mlps == "computed":
            return cls(runs, indices, unit_of, positions, ())
        layers = range(runs.model.n_layers)
        changes = tuple(
            Change(layer, position, "mlp") for layer in layers for position in positions
        )
        if mlps == "held":
            runs = _with_clean_mlps(runs)
        return cls(runs, indices, unit_of, positions, changes)

    def measure(self, rows: Sequence[Row]) -> Float[np.ndarray, "row pair"]:
        """The metric in each row."""
        with torch.inference_mode():
            return to_numpy(self.runs.mean_over_draws(self.runs.measure(rows)).T)

    def heads_alone(self) -> Iterator[tuple[int, Row]]:
        """The number of each head, and the row in which it alone is swapped."""
        for number, head in enumerate(every_head(self.runs.model)):
            changes = [
                Change(head.layer, position, "head", head.index) for position in self.positions
            ]
            yield number, Row((*self.mlp_changes, *changes))

    def edges_alone(self) -> Iterator[tuple[int, Row]]:
        """The number of each edge that can have an effect here, and the row in which it alone is swapped."""
        heads = every_head(self.runs.model)
        for query in self.positions:  # rows that start at the same position stand together
            for head in heads:
                for key in range(query + 1):
                    change = Change(head.layer, query, "edge", head.index, key)
                    unit = self.unit_of[head.layer, head.index, query, key]
                    yield int(unit), Row((*self.mlp_changes, change))

    def all_but(self, kept: Bool[np.ndarray, " unit"]) -> Row:
        """The row in which every unit that is not kept is swapped, or what the runs' ablation does.

        Where no key of a head is kept at a query, the head's whole output there is swapped. Where no head is
        kept there, all that attention writes is swapped. Both equal swapping message by message, for less.
        """
        first = self.positions.start
        causal = np.tri(self.runs.length, dtype=bool)[first:]  # (query, key)
        edge_stays = kept[self.unit_of[:, :, first:]] & causal  # (layer, head, query, key)
        head_stays = np.asarray(edge_stays.any(3))  # (layer, head, query)
        if self.runs.ablation.kind == "knockout":  # it shuts edges one by one
            head_stays = np.ones_like(head_stays)
        layer_stays = np.asarray(head_stays.any(1))  # (layer, query)
        if self.runs.ablation.kind not in OF_PAIR:  # attention's bias belongs to no head
            layer_stays = np.ones_like(layer_stays)
        swapped_heads = layer_stays[:, None] & ~head_stays  # (layer, head, query)
        # (layer, head, query, key)
        swapped_edges = head_stays[..., None] & ~edge_stays & causal
        changes = list(self.mlp_changes)
        for layer, query in np.argwhere(~layer_stays).tolist():
            changes.append(Change(layer, first + query, "attention"))
        for layer, head, query in np.argwhere(swapped_heads).tolist():
            changes.append(Change(layer, first + query, "head", head))
        for layer, head, query, key in np.argwhere(swapped_edges).tolist():
            changes.append(Change(layer, first + query, "edge", head, key))
        return Row(tuple(changes))

    @property
    def restores(self) -> bool:
        """Whether units are put back into the counterfactual run, not taken out of the clean one."""
        return self.runs.ablation.kind == "restore"

    def with_kept(self, kept: Bool[np.ndarray, " unit"]) -> Row:
        """The row in which only these units are as in the clean run."""
        return self.all_but(~kept if self.restores else kept)

    @property
    def work(self) -> float:
        """Multiply-adds for the effect of every edge alone. A row changes on average half of the positions in
        half of the layers; where MLPs are changed too, all of them."""
        model = self.runs.model
        edges = model.n_layers * model.n_heads * sum(query + 1 for query in self.positions)
        one_row = len(self.positions) * model.n_layers * 24 * model.d_model**2
        part = 1 if self.mlp_changes else 4
        return edges * len(self.indices) * one_row / part


def _with_clean_mlps(runs: Runs) -> Runs:
    """The same runs, with a counterfactual in which the MLPs write what they write in the clean run."""
    other = runs.counterfactual
    layers = []
    for layer, clean in zip(other.cache.layers, runs.clean.cache.layers, strict=True):
        layers.append(replace(layer, mlp=clean.mlp))
    cache = replace(other.cache, layers=tuple(layers))
    return replace(runs, counterfactual=replace(other, cache=cache))


# All pairs of a task


@dataclass(frozen=True, kw_only=True)
class AttentionMeasurement(Measurement):
    """The heads or attention edges of a task, and its pairs in batches."""

    batches: list[Batch]

    def single_effects(self) -> Effects:
        """The effect of every unit alone on every pair; 0 where it does not stand in the pair's prompt."""
        effects = np.zeros((len(self.units), self.pairs))
        for number, batch in enumerate(self.batches):
            if self.protocol.order == "loading":
                _estimate(batch, effects)
                self.progress("single effects", number + 1, len(self.batches))
            else:
                self._measure(batch, effects, before=number)
        return effects

    def _measure(self, batch: Batch, effects: Effects, *, before: int) -> None:
        """Fill in the exact effects of the units on the pairs of a batch, after so many batches `before`.
        Progress counts batches, in hundredths."""
        alone = batch.heads_alone() if self.protocol.units == "heads" else batch.edges_alone()
        numbers, rows = zip(*alone, strict=True)
        base = batch.measure([Row(batch.mlp_changes)])
        values = []
        for start in range(0, len(rows), _ROWS):
            values.append(batch.measure(rows[start : start + _ROWS]))
            share = min(1.0, (start + _ROWS) / len(rows))
            done = 100 * before + int(100 * share)
            self.progress("single effects", done, 100 * len(self.batches))
        changes = base - np.concatenate(values)
        gap = to_numpy(batch.runs.gap)
        unit = -gap if batch.restores else gap
        effects[np.ix_(numbers, batch.indices)] = changes / unit

    def explained(
        self, order: Sequence[int], sizes: Sequence[int]
    ) -> Float[np.ndarray, "size pair"]:
        """(M(kept) − M(counterfactual)) / gap of keeping the first units of an order, on every pair."""
        explained = np.zeros((len(sizes), self.pairs))
        rank_of = np.argsort(order)
        for number, batch in enumerate(self.batches):
            counterfactual = to_numpy(batch.runs.values(batch.runs.counterfactual))
            values = batch.measure([batch.with_kept(rank_of < size) for size in sizes])
            explained[:, batch.indices] = (values - counterfactual) / to_numpy(batch.runs.gap)
            self.progress("keep curve", number + 1, len(self.batches))
        return explained


def _estimate(batch: Batch, effects: Effects) -> None:
    """Fill in first-order estimates of all edges: one backward pass a pair, through MLPs that compute."""
    causal = np.tri(batch.runs.length, dtype=bool)
    for index, pair in zip(batch.indices, batch.runs.pairs, strict=True):
        change = loadings(prepare(batch.runs.model, [pair]), of="change")
        effects[batch.unit_of[..., causal], index] = to_numpy(change)[..., causal]


def measure_heads(
    model: Model,
    items: Sequence[Item],
    *,
    mlps: Mlps = "computed",
    ablation: Ablation = SWAP,
    progress: Progress = silent,
) -> AttentionMeasurement:
    """Run the pairs, with heads as units."""
    heads = every_head(model)
    numbers = np.arange(len(heads)).reshape(model.n_layers, model.n_heads, 1, 1)
    batches = []
    for indices in groups_that_run_together(items):
        runs = prepare(model, [items[index].pair for index in indices], ablation=ablation)
        shape = (model.n_layers, model.n_heads, runs.length, runs.length)
        batches.append(Batch.of(runs, indices, np.broadcast_to(numbers, shape), mlps))
    protocol = Protocol("heads", mlps, source=ablation.kind)
    return AttentionMeasurement(
        units=heads, pairs=len(items), protocol=protocol, progress=progress, batches=batches
    )


def measure_edges(
    model: Model,
    items: Sequence[Item],
    *,
    mlps: Mlps = "computed",
    most_work: float = MOST_WORK,
    ablation: Ablation = SWAP,
    progress: Progress = silent,
) -> AttentionMeasurement:
    """Run the pairs, with attention edges as units.

    If the roles of all prompts stand at the same positions, an edge is named by the positions of its key and
    query, else by their roles. If measuring every edge takes more than `most_work`, effects are estimated,
    which is possible for `swap` alone.
    """
    heads = every_head(model)
    head_numbers = np.arange(len(heads)).reshape(model.n_layers, model.n_heads, 1, 1)
    layouts = {(len(item.pair), item.roles) for item in items}
    by_role = len(layouts) > 1
    # (key, query) by name, numbered in the order they are met.
    number_of: dict[tuple[str, str], int] = {}
    batches = []
    for indices in groups_that_run_together(items, by_roles=True):
        item = items[indices[0]]
        names = [item.name_of(at) if by_role else str(at) for at in range(len(item.pair))]
        numbers = _number_ends(names, number_of)
        runs = prepare(model, [items[index].pair for index in indices], ablation=ablation)
        batches.append(Batch.of(runs, indices, numbers * len(heads) + head_numbers, mlps))
    edges = tuple(RoleEdge(head, key, query) for key, query in number_of for head in heads)
    is_much = sum(batch.work for batch in batches) > most_work
    if is_much and ablation.kind != "swap":
        raise PromptError(
            f"measuring every edge by {ablation.kind} takes too long, and only swap can be estimated; "
            "rank fewer pairs (count=), or heads"
        )
    protocol = Protocol(
        "edges",
        mlps,
        positions="roles" if by_role else "absolute",
        order="loading" if is_much else "exact",
        source=ablation.kind,
    )
    return AttentionMeasurement(
        units=edges, pairs=len(items), protocol=protocol, progress=progress, batches=batches
    )


def _number_ends(
    names: Sequence[str], number_of: dict[tuple[str, str], int]
) -> Int[np.ndarray, "query key"]:
    """The number of each (key, query) of a prompt by the names of its positions; those that `number_of` does
    not have yet are added to it."""
    numbers = np.zeros((len(names), len(names)), dtype=np.int64)
    for query, name in enumerate(names):
        for key in range(query + 1):
            numbers[query, key] = number_of.setdefault((names[key], name), len(number_of))
    return numbers


def measure_attention(
    model: Model,
    items: Sequence[Item],
    units: Units,
    *,
    mlps: Mlps = "computed",
    ablation: Ablation = SWAP,
    progress: Progress = silent,
) -> AttentionMeasurement:
    """Run the pairs, with heads or attention edges as units."""
    measure = measure_heads if units == "heads" else measure_edges
    return measure(model, items, mlps=mlps, ablation=ablation, progress=progress)
