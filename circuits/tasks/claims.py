"""The published claims about gated attention, each measured on a dense model and its twin.

1. The share of open edges, and what it costs, are what the twin's files say.
2. The mapping of a figure: how many heads hold 80% of it, by effect (exact) and by absolute loading (linear).
3. A task: how many heads and attention edges hold 90% of the absolute loading, prompt by prompt.
4. A task: how many heads, attention edges or component edges, kept alone, explain 90% of it, under both
   protocols: one order for all pairs, and an order for each pair. Units that change nothing on any pair, such
   as edges whose gates are shut, are in no circuit and are not counted.
5. The control is what as many random units explain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import torch

from circuits.engine import prepare
from circuits.engine.search import loadings
from circuits.errors import NoPairError
from circuits.models import ZOO
from circuits.models.model import Model
from circuits.tasks.compare import to_same_task
from circuits.tasks.rank import rank, to_measurement
from circuits.tasks.ranking import (
    COUNTED,
    EXPLAINED,
    Protocol,
    Ranking,
    Units,
    counted,
    first_at_least,
    measure_curve,
)
from circuits.tasks.task import Task
from circuits.tracing import SHARE
from circuits.tracing.trace import trace

Models = tuple[Model, Model]
Sides = tuple[tuple[Model, Task], tuple[Model, Task]]
PUBLISHED: Final[dict[Units, str]] = {
    "heads": "4.5× (greater-than), 2.2× (indirect objects)",
    "edges": "97×, 42.8×",
    "wires": "97×, 42.8×",
}  # of n90, on GPT-2; whether the edges are attention edges or component edges is not said
MASS: Final[dict[Units, str]] = {"heads": "3.4×", "edges": "16.1×"}
HEADER: Final = ("pair", "quantity", "protocol", "dense", "sparse", "ratio", "published", "control")


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


def _digits(value: float) -> str:
    """Four digits, or all of a large count."""
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Count:
    """A number with the range that it lies in, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        numbers = (self.value, self.low, self.high)
        value, *ends = ("never" if each is None else _digits(each) for each in numbers)
        return value + (f" [{', '.join(ends)}]" if ends != ["never"] * 2 else "")

    @classmethod
    def median(cls, values: Sequence[float]) -> Count:
        """The median of some values, and the least and the most of them."""
        return cls(median(values), min(values), max(values))


def claim(twin: str, quantity: str, protocol: str, sides: Sequence[Count], **said: str) -> Claim:
    """A line from the numbers of both sides, dense and sparse."""
    dense, sparse = sides
    ratio = f"{dense.value / sparse.value:.1f}×" if sparse.value else "–"
    return Claim(twin, quantity, protocol, str(dense), str(sparse), ratio, **said)


def held(values: torch.Tensor, share: float) -> int:
    """How many of the largest hold a share of the absolute sum."""
    sums = values.abs().flatten().sort(descending=True).values.cumsum(0)
    return int((sums < share * sums[-1]).sum()) + 1


def figure_claims(twin: str, models: Models, text: str, **options: Any) -> Iterator[Claim]:
    """Share of open edges and its cost, as the twin's files say; heads of the mapping of a figure."""
    measured = json.loads((ZOO / twin / "circuits.json").read_text())["measured"]
    more = measured["loss"] - measured["dense_loss"]
    cost = f"{measured['divergence']:.3f} nats from dense, loss {more:+.3f}"
    shares = [Count(100 * mean(map(mean, measured[side]["per_head"]))) for side in ("dense", "gated")]
    where = f"{measured['tokens']:,} held-out tokens"
    published = "0.3 to 0.4% at equal loss"
    yield claim(twin, "open edges, %", where, shares, published=published, control=cost)
    mappings = [trace(model, text, **options).mapping() for model in models]
    counts = [Count(len(each.carriers(SHARE))) for each in mappings]
    chance = " and ".join(f"{each.controls.random_mean:.2f}" for each in mappings if each.controls)
    said = {"published": "40+ → 5", "control": f"as many random: {chance}"}
    figure = "heads for 80% of the figure's mapping"
    yield claim(twin, figure, "effect, joint", counts, **said)
    counts = [Count(held(torch.tensor([head.loading for head in each.heads]), SHARE)) for each in mappings]
    of = " and ".join(str(len(each.heads)) for each in mappings)
    yield claim(twin, figure, "loading, absolute", counts, published="40+ → 5", control=f"of {of} heads")


def loading_claims(twin: str, sides: Sides) -> Iterator[Claim]:
    """How many heads and attention edges hold 90% of the absolute loading, prompt by prompt."""
    edges = [[loadings(prepare(model, [pair])) for pair in task.pairs] for model, task in sides]
    heads = [[each.abs().sum((2, 3)) for each in side] for side in edges]
    kinds: tuple[tuple[Units, Any], ...] = (("heads", heads), ("edges", edges))
    for units, values in kinds:
        counts = [Count.median([held(each, EXPLAINED) for each in side]) for side in values]
        quantity = f"{sides[0][1].name}: {COUNTED[units]} with 90% of the loading"
        of = " and ".join(f"{side[0].count_nonzero():,}" for side in values)
        said = {"published": MASS[units], "control": f"not 0 in the first prompt: {of}"}
        yield claim(twin, quantity, f"median of {len(sides[0][1])} prompts", counts, **said)


def count_claims(twin: str, sides: Sides, units: Units, most: int | None = None) -> Iterator[Claim]:
    """How many units, kept alone, explain 90% of a task: in one order, and (but wires) one a pair."""
    quantity = f"{sides[0][1].name}: n90 {COUNTED[units]}"
    rankings = [rank(model, task, units=units, count=len(task), most=most) for model, task in sides]
    ranges = [[counted(each, number) for number in each.count()] for each in rankings]
    counts = [Count(number or 0, low, high) for number, low, high in ranges]
    pairs = zip(rankings, counts, strict=True)
    random = " and ".join(f"{each.random_at(int(number.value)):.2f}" for each, number in pairs)
    said = {"published": PUBLISHED[units], "control": f"as many random: {random}"}
    yield claim(twin, quantity, f"one order, {_ordered(rankings)}", counts, **said)
    if units == "wires":
        return
    counts = [Count.median(count_each(model, task, units=units)) for model, task in sides]
    protocol = f"an order for each of {len(sides[0][1])} pairs, median"
    yield claim(twin, quantity, protocol, counts, published=PUBLISHED[units])


def count_each(model: Model, task: Task, *, units: Units, share: float = EXPLAINED) -> list[int]:
    """How many units explain a share of each pair, in an order of its own; idle ones are not counted."""
    counts = []
    for item in task.items:
        measurement = to_measurement(model, [item], Protocol(units))
        effects = measurement.single_effects()
        numbers = measurement.order(effects)
        sizes, values = measure_curve(partial(measurement.explained, numbers), len(numbers))
        size = first_at_least(sizes, values[:, 0].tolist(), share)
        counts.append(int(effects[numbers[:size]].any(1).sum()))
    return counts


def _ordered(rankings: Sequence[Ranking]) -> str:
    """How many pairs, and how the units were put in order where not every effect was measured."""
    kinds = {"exact": "", "loading": ", by estimates", "front": f", {rankings[0].protocol.measured:,} exact"}
    orders = dict.fromkeys(kinds[each.protocol.order] for each in rankings)
    return f"{rankings[0].pairs} pairs{' and'.join(orders)}"


def unable(twin: str, task: str, why: NoPairError) -> Claim:
    """The line of a task that one of the two cannot do."""
    return Claim(twin, f"{Path(task).stem}: all", "–", "–", "–", "–", "", str(why))


def measured_once(keep: Path | None, key: str, measure: Callable[[], Iterable[Claim]]) -> list[Claim]:
    """What a file holds under this key, or what is measured now, which is added to the file."""
    lines = keep.read_text(encoding="utf-8").splitlines() if keep and keep.exists() else []
    for stored in map(json.loads, lines):
        if stored["key"] == key:
            return [Claim(**each) for each in stored["claims"]]
    claims = list(measure())
    if keep:
        line = json.dumps({"key": key, "claims": [asdict(each) for each in claims]})
        with keep.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    return claims


Part = Callable[[Models], Iterator[Claim]]


def task_parts(twin: str, task: str | Path, *, count: int, most: int) -> dict[str, Part]:
    """What is measured of a task, in parts that can be measured on different days."""

    def measured(act: Callable[..., Iterator[Claim]], models: Models) -> Iterator[Claim]:
        try:
            tasks = to_same_task(models, task, count=count)
        except NoPairError as why:
            if act is loading_claims:  # said once
                yield unable(twin, str(task), why)
            return
        yield from act(twin, ((models[0], tasks[0]), (models[1], tasks[1])))

    acts = {
        "loading": loading_claims,
        "heads": partial(count_claims, units="heads"),
        "edges": partial(count_claims, units="edges"),
        "wires": partial(count_claims, units="wires", most=most),
    }
    return {f"{Path(task).stem} {name}": partial(measured, act) for name, act in acts.items()}
