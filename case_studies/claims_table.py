"""The published claims about gated attention, each measured on a dense model and its twin: the lines of the
table that `published_claims.py` prints.

1. Open edges, as a share and a query and head, and what they cost are what the twin's files say.
2. The mapping of a figure: how many heads hold 80% of it, by effect (exact) and by absolute loading (linear).
3. A task: how many heads and attention edges hold 90% of the absolute loading, prompt by prompt.
4. A task: how many heads, attention edges or component edges, kept alone, explain 90% of it, under both
   protocols: one order for all pairs, and an order for each pair. Units that change nothing on any pair, such
   as edges whose gates are shut, are in no circuit and are not counted.
5. The control is what as many random units explain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from circuits.components import ROUNDING
from circuits.engine import prepare
from circuits.engine.loadings import loadings
from circuits.errors import NoPairError
from circuits.models import ZOO
from circuits.models.load import load
from circuits.models.model import Model
from circuits.sparsify.measure import original_of
from circuits.tasks.attention import measure_attention
from circuits.tasks.compare import to_same_task
from circuits.tasks.curve import first_at_least, measure_curve
from circuits.tasks.names import OrderName
from circuits.tasks.rank import rank
from circuits.tasks.ranking import COUNTED, EXPLAINED, SHARES, Ranking, Units
from circuits.tasks.task import Task
from circuits.tracing import SHARE
from circuits.tracing.trace import trace

Models = tuple[Model, Model]  # dense and sparse
Tasks = tuple[Task, Task]
PUBLISHED = {  # of n90, on GPT-2; the paper does not say whether its edges are attention or component edges
    "heads": "4.5× (greater-than), 2.2× (indirect objects)",
    "edges": "97×, 42.8×",
    "wires": "97×, 42.8×",
}
PUBLISHED_LOADING = {"heads": "3.4×", "edges": "16.1×"}
HEADER = ("pair", "quantity", "protocol", "dense", "sparse", "ratio", "published", "control")


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the table, as it is printed."""

    twin: str
    quantity: str
    protocol: str
    dense: str
    sparse: str
    ratio: str
    published: str
    control: str = ""

    def __str__(self) -> str:
        return f"| {' | '.join(astuple(self))} |"


@dataclass(frozen=True, slots=True)
class Count:
    """A number with the range that it lies in, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None and self.high is None:
            return _digits(self.value)
        return f"{_digits(self.value)} [{_digits(self.low)}, {_digits(self.high)}]"

    @classmethod
    def median(cls, values: Sequence[float]) -> Count:
        """The median of some values, and the least and the most of them."""
        return cls(median(values), min(values), max(values))


def _digits(value: float | None) -> str:
    """Four digits, or all of a large count."""
    if value is None:
        return "never"
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def claim(
    twin: str,
    quantity: str,
    protocol: str,
    sides: Sequence[Count],
    *,
    published: str,
    control: str = "",
) -> Claim:
    """A line from the numbers of both sides, dense and sparse."""
    dense, sparse = sides
    ratio = f"{dense.value / sparse.value:.1f}×" if sparse.value else "–"
    return Claim(twin, quantity, protocol, str(dense), str(sparse), ratio, published, control)


# The mapping of a figure


def edges_claims(twin: str) -> list[Claim]:
    """Share of open edges with its cost, and open edges a query and head, as the twin's files say."""
    stored = json.loads((ZOO / twin / "circuits.json").read_text())
    measured = stored["measured"]
    length = stored["settings"]["length"]
    loss = measured["loss"] - measured["dense_loss"]
    shares = []
    edges = []
    for side in ("dense", "gated"):
        share = mean(map(mean, measured[side]["per_head"]))
        shares.append(Count(100 * share))
        # A row of T tokens has T(T + 1)/2 edges a head, for its T queries.
        edges.append(Count(share * (length + 1) / 2))
    text = f"{measured['tokens']:,} held-out tokens"
    cost = f"{measured['divergence']:.3f} nats from dense, loss {loss:+.3f}"
    published = "0.3 to 0.4% at equal loss"
    return [
        claim(twin, "open edges, %", text, shares, published=published, control=cost),
        claim(
            twin,
            "open edges a query and head",
            f"{text}, rows of {length}",
            edges,
            published="length not told",
            control=cost,
        ),
    ]


def figure_claims(twin: str, models: Models, text: str, **question: Any) -> list[Claim]:
    """Open edges and their cost, as the twin's files say; heads of the mapping of a figure."""
    mappings = [trace(model, text, **question).mapping() for model in models]
    carriers = [Count(len(each.carriers(SHARE))) for each in mappings]
    random_heads = [f"{each.controls.random_mean:z.2f}" for each in mappings if each.controls]
    by_loading = []
    for mapping in mappings:
        loading = torch.tensor([head.loading for head in mapping.heads])
        by_loading.append(Count(held(loading, SHARE)))
    heads = [str(len(each.heads)) for each in mappings]
    figure = "heads for 80% of the figure's mapping"
    return [
        *edges_claims(twin),
        claim(
            twin,
            figure,
            "effect, joint",
            carriers,
            published="40+ → 5",
            control=f"as many random: {' and '.join(random_heads)}",
        ),
        claim(
            twin,
            figure,
            "loading, absolute",
            by_loading,
            published="40+ → 5",
            control=f"of {' and '.join(heads)} heads",
        ),
    ]


def held(values: torch.Tensor, share: float) -> int:
    """How many of the largest hold a share of the absolute sum."""
    sums = values.abs().flatten().sort(descending=True).values.cumsum(0)
    return int((sums < share * sums[-1]).sum()) + 1


# A task


def task_claims(
    twin: str,
    models: Models,
    task: str | Path,
    quantity: str,
    *,
    count: int,
    most: int,
    order: OrderName = "search",
) -> list[Claim]:
    """The lines of one task and one quantity: "loading", "heads", "edges" or "wires"; `order` is that of
    wires."""
    try:
        tasks = to_same_task(models, task, count=count)
    except NoPairError as why:
        if quantity != "loading":  # the task has said so already
            return []
        return [Claim(twin, f"{Path(task).stem}: all", "–", "–", "–", "–", "", str(why))]
    if quantity == "loading":
        return loading_claims(twin, models, tasks)
    if quantity == "wires":
        return wire_claims(twin, models, tasks, most=most, order=order)
    units: Any = quantity
    return count_claims(twin, models, tasks, units)


def loading_claims(twin: str, models: Models, tasks: Tasks) -> list[Claim]:
    """How many heads and attention edges hold 90% of the absolute loading, prompt by prompt."""
    edges = []  # of each side, for each pair: (layer, head, query, key)
    for model, task in zip(models, tasks, strict=True):
        edges.append([loadings(prepare(model, [pair])) for pair in task.pairs])
    heads = []
    for side in edges:
        heads.append([each.abs().sum((2, 3)) for each in side])
    claims = []
    for units, sides in (("heads", heads), ("edges", edges)):
        counts = []
        for side in sides:
            counts.append(Count.median([held(each, EXPLAINED) for each in side]))
        not_zero = [f"{side[0].count_nonzero():,}" for side in sides]
        claims.append(
            claim(
                twin,
                f"{tasks[0].name}: {COUNTED[units]} with 90% of the loading",
                f"median of {len(tasks[0])} prompts",
                counts,
                published=PUBLISHED_LOADING[units],
                control=f"not 0 in the first prompt: {' and '.join(not_zero)}",
            )
        )
    return claims


def wire_claims(
    twin: str, models: Models, tasks: Tasks, *, most: int, order: OrderName
) -> list[Claim]:
    """How many component edges, kept alone, explain 80% and 90% of a task in one order for all pairs."""
    rankings = []
    for model, task in zip(models, tasks, strict=True):
        ranking = rank(model, task, units="wires", count=len(task), most=most, order=order)
        rankings.append(ranking)
    return [one_order(twin, rankings, share) for share in (SHARE, EXPLAINED)]


def count_claims(twin: str, models: Models, tasks: Tasks, units: Units) -> list[Claim]:
    """How many heads or attention edges, kept alone, explain 80% and 90% of a task in one order for all pairs,
    and how many explain 90% in an order for each pair."""
    rankings = []
    for model, task in zip(models, tasks, strict=True):
        rankings.append(rank(model, task, units=units, count=len(task)))
    claims = [one_order(twin, rankings, share) for share in (SHARE, EXPLAINED)]
    counts = []
    for model, task in zip(models, tasks, strict=True):
        counts.append(Count.median(count_each(model, task, units=units)))
    quantity = f"{tasks[0].name}: n90 {COUNTED[units]}"
    protocol = f"an order for each of {len(tasks[0])} pairs, median"
    return [*claims, claim(twin, quantity, protocol, counts, published=PUBLISHED[units])]


def one_order(twin: str, rankings: Sequence[Ranking], share: float) -> Claim:
    """How many units explain a share, in the order of each side's ranking."""
    counts = []
    random_units = []
    for ranking in rankings:
        count, low, high = (counted(ranking, number) for number in ranking.count(share))
        counts.append(Count(count or 0, low, high))
        random_units.append(f"{ranking.random_at(count or 0):z.2f}")
    first = rankings[0]
    return claim(
        twin,
        f"{first.task}: n{100 * share:.0f} {COUNTED[first.protocol.units]}",
        f"one order, {_pairs_and_order(rankings)}",
        counts,
        published=PUBLISHED[first.protocol.units] if share == EXPLAINED else "",
        control=f"as many random: {' and '.join(random_units)}",
    )


def counted(ranking: Ranking, size: int | None) -> int | None:
    """How many of the first `size` units change anything. Those that change nothing are not listed; in an
    order of effects they come after the units of positive effect and before those of negative effect, in
    other orders last."""
    if size is None:
        return None
    if ranking.protocol.order not in ("exact", "loading", "front"):
        return min(size, len(ranking.ranked))
    idle = ranking.units - len(ranking.ranked)
    before_idle = 0
    for each in ranking.ranked:
        least = -ROUNDING if each.exact else 0.0
        if each.effect > least:
            before_idle += 1
    return min(size, before_idle) + max(0, size - before_idle - idle)


def count_each(
    model: Model, task: Task, *, units: Units, share: float = EXPLAINED
) -> list[int]:
    """How many units explain a share of each pair, in an order of its own; idle ones are not counted."""
    counts = []
    for item in task.items:
        measurement = measure_attention(model, [item], units)
        effects = measurement.single_effects()
        order = measurement.order(effects)

        def keep(
            sizes: list[int], measurement: Any = measurement, order: list[int] = order
        ) -> Any:
            return measurement.explained(order, sizes)

        sizes, values = measure_curve(keep, len(order), shares=SHARES)
        size = first_at_least(sizes, values[:, 0].tolist(), share)
        counts.append(int(effects[order[:size]].any(1).sum()))
    return counts


def _pairs_and_order(rankings: Sequence[Ranking]) -> str:
    """How many pairs, and how the units were put in order where not every effect was measured."""
    protocol = rankings[0].protocol
    words = {
        "exact": "",
        "loading": ", by estimates",
        "front": f", {protocol.measured:,} exact",
        "search": ", by the search",
    }
    orders = dict.fromkeys(words[each.protocol.order] for each in rankings)
    return f"{rankings[0].pairs} pairs{' and'.join(orders)}"


# What is loaded or measured once


@lru_cache(maxsize=1)
def load_both(twin: str) -> Models:
    """The dense model and its twin; those of the last twin stay in memory."""
    return load(original_of(twin) or twin), load(twin)


def measured_once(
    keep: Path | None, key: str, measure: Callable[[], list[Claim]]
) -> list[Claim]:
    """What the file `keep` holds under this key, or what is measured now, which is added to the file."""
    if keep is not None and keep.exists():
        for line in keep.read_text(encoding="utf-8").splitlines():
            stored = json.loads(line)
            if stored["key"] == key:
                return [Claim(**each) for each in stored["claims"]]
    claims = measure()
    if keep is not None:
        line = json.dumps({"key": key, "claims": [asdict(each) for each in claims]})
        with keep.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    return claims
