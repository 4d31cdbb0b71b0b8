"""Scores of component edges from gradients in the whole model: EAP and EAP-IG, which others rank edges by.

1. Edge attribution patching (EAP): the gradient of the metric with respect to what a reader sees in the clean
   run, times how far the writer's output lies from its output in the counterfactual run. In a kept run with
   all wires this is the gradient with respect to a wire's weight.
2. With integrated gradients (EAP-IG, on inputs) the gradients are averaged over runs whose embeddings lie
   between the counterfactual's and the clean ones: counterfactual + α (clean − counterfactual), for α = 1/n,
   2/n, …, 1. The differences of the writers stay those of the clean run. In a kept run the wires out of the
   embedding have the weight α, all others 1.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float, Int

from circuits.engine.kept import (
    CircuitForward,
    KeptRuns,
    PairBatch,
    Weights,
    parts_in_memory,
    shares_kept,
)
from circuits.engine.runs import Runs
from circuits.engine.wire_table import WireTable
from circuits.engine.wires import writes_of

STEPS: Final = 5  # of EAP-IG, as its authors take
Scores = Float[torch.Tensor, "wire pair"]


def attribution(runs: KeptRuns) -> Scores:
    """EAP: the share of the gap that swapping each edge would cost on every pair, to first order."""
    return runs.values(_every_wire(runs.table))


def integrated_attribution(runs: KeptRuns, *, steps: int = STEPS) -> Scores:
    """EAP-IG: the same with gradients averaged over `steps` runs on interpolated embeddings."""
    scores = torch.zeros(len(runs.table), runs.pairs, dtype=torch.float64)
    for batch in runs.batches:
        for part, pairs in parts_in_memory(batch):
            own = PairBatch(part, pairs, batch.place_of)
            for step in range(1, steps + 1):
                scores[:, pairs] += _gradient(own, runs.table, step / steps) / steps
    return scores


def _every_wire(table: WireTable) -> torch.Tensor:
    return torch.ones(len(table), dtype=torch.bool)


def _gradient(batch: PairBatch, table: WireTable, alpha: float) -> Scores:
    """The scores of all wires from one run whose embeddings lie at `alpha` between the two prompts."""
    runs = batch.runs
    runs.layout_for("gradients")
    from_embedding = table.ends.writer == 0  # the embedding is the first writer
    weights = torch.where(from_embedding, alpha, 1.0).to(runs.model.device, runs.model.dtype)
    with torch.inference_mode(False), torch.enable_grad():
        size = (len(batch.pairs), len(table))  # (pair, wire)
        probes = torch.zeros(
            size, dtype=weights.dtype, device=weights.device, requires_grad=True
        )
        draws = torch.tensor(runs.draws, device=weights.device)
        forward = ProbedForward(batch, table, probes.repeat_interleave(draws, 0))
        top = forward.top(weights.repeat(len(runs.clean.tokens), 1))
        total = shares_kept(runs, top[None]).sum()
        (gradient,) = torch.autograd.grad(total, probes)
    return gradient.T.double().cpu()


class ProbedForward(CircuitForward):
    """A run of all wires in which every reader also sees, with weights of their own, the differences between
    what its writers write in the clean and in the counterfactual run. Weights of 0 change nothing; their
    gradients are those of the reader's stream times the differences."""

    def __init__(self, batch: PairBatch, table: WireTable, probes: Weights) -> None:
        every = torch.arange(len(table))
        super().__init__(batch.runs, table, batch.place_of, every, copies=1)
        self.probe = self._mask(probes)  # (input, pos or 1, reader, writer)
        self.fixed = _differences(batch.runs, table)

    def _arriving(
        self, readers: Int[torch.Tensor, " row"]
    ) -> Float[torch.Tensor, "copy pos row d_model"]:
        below = len(self.differences)
        probe = self.probe[:, :, readers, :below]
        return super()._arriving(readers) + probe @ self.fixed[:, :, :below]


def _differences(
    runs: Runs, table: WireTable
) -> Float[torch.Tensor, "input pos writer d_model"]:
    """What every writer writes in the clean run less what it writes where it is ablated."""
    positions = torch.arange(runs.length, device=runs.model.device)
    writers = table.edges.writers
    clean = writes_of(runs, runs.clean.cache, writers, positions)
    new = runs.replacement(runs.ablation.kind)
    other = new.reduce(writes_of(runs, new.run, writers, positions))
    return (clean - other).transpose(1, 2)
