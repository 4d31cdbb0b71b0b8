"""The published claims about gated attention, each measured on a dense model and its twin.

1. The share of open edges, and what it costs, are what the twin's files say.
2. The mapping of a figure: how many heads hold 80% of it, by effect (exact) and by absolute loading (linear).
3. A task: how many heads and edges hold 90% of the absolute loading, prompt by prompt; and how many, kept
   alone, explain 90% of it, under both protocols: one order for all pairs, and an order for each pair. Beside
   the first stands what as many random ones explain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

import torch

from circuits.engine import prepare
from circuits.engine.loadings import loadings
from circuits.models.model import Model
from circuits.tasks.compare import to_same_task
from circuits.tasks.rank import rank
from circuits.tasks.ranking import Units
from circuits.tracing.trace import trace
from circuits.zoo import FOLDER

Models = tuple[Model, Model]
PUBLISHED: Final[dict[Units, str]] = {"heads": "4.5× and 2.2×", "edges": "97× and 42.8×"}  # of n90


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the table: a quantity of the dense model and of its twin, and what is published."""

    twin: str
    what: str
    dense: float
    sparse: float
    published: str

    def __str__(self) -> str:
        ratio = f"{self.dense / self.sparse:.1f}×" if self.sparse else "–"
        counts = f"{self.dense:.4g} | {self.sparse:.4g} | {ratio}"
        return f"| {self.twin} | {self.what} | {counts} | {self.published} |"


def claim(twin: str, what: str, sides: Sequence[float], published: str) -> Claim:
    """A line from the values of both sides, dense and sparse."""
    dense, sparse = sides
    return Claim(twin, what, dense, sparse, published)


def held(values: torch.Tensor, share: float) -> int:
    """How many of the largest hold a share of the absolute sum."""
    sums = values.abs().flatten().sort(descending=True).values.cumsum(0)
    return int((sums < share * sums[-1]).sum()) + 1


def figure_claims(name: str, models: Models, text: str, **asked: Any) -> Iterator[Claim]:
    """Share of open edges and its cost, as the twin's files say; heads of the mapping of a figure."""
    told = json.loads((FOLDER / name / "circuits.json").read_text())["measured"]
    cost = f"at {told['divergence']:.3f} nats from dense, loss {told['loss'] - told['dense_loss']:+.3f}"
    shares = [mean(map(mean, told[side]["per_head"])) for side in ("dense", "gated")]
    yield claim(name, f"share of open edges, {cost}", shares, "0.3 to 0.4% at equal loss")
    found = [trace(model, text, **asked).mapping() for model in models]
    carriers = [len(each.carriers(0.8)) for each in found]
    yield claim(name, "figure: heads for 80% by effect", carriers, "40+ → 5")
    loaded = [held(torch.tensor([head.loading for head in each.heads]), 0.8) for each in found]
    yield claim(name, "figure: heads for 80% by loading", loaded, "40+ → 5")


def task_claims(name: str, models: Models, task: str | Path, *, count: int) -> Iterator[Claim]:
    """How many heads and edges hold 90% of the loading, and how many explain 90% of a task."""
    sides = list(zip(models, to_same_task(models, task, count=count), strict=True))
    title = sides[0][1].name
    edges = [[loadings(prepare(model, [pair])) for pair in side.pairs] for model, side in sides]
    heads = [[each.abs().sum((2, 3)) for each in side] for side in edges]
    for kind, values, published in (("heads", heads, "3.4×"), ("edges", edges, "16.1×")):
        counts = [mean(held(each, 0.9) for each in side) for side in values]
        yield claim(name, f"{title}: {kind} with 90% of the loading, mean of prompts", counts, published)
    for kind, published in PUBLISHED.items():
        found = [rank(model, side, units=kind, count=count) for model, side in sides]
        counts = [each.count()[0] or each.units for each in found]
        random = " and ".join(f"{each.random_at(n):.2f}" for each, n in zip(found, counts, strict=True))
        told = f"one order (as many random: {random})"
        yield claim(name, f"{title}: n90 {kind}, {told}", counts, published)
        each = [[rank(m, replace(t, items=(i,)), units=kind, count=1) for i in t.items] for m, t in sides]
        counts = [mean(one.count()[0] or one.units for one in side) for side in each]
        yield claim(name, f"{title}: n90 {kind}, an order for each pair", counts, published)
