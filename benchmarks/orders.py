"""The smallest circuits of component edges, by our search and by other methods: same pairs, same kept runs.

1. A row is a model and a task: some pairs that every method sees, and as many or fewer that none sees.
2. A method puts all component edges in order. The first k of an order are a circuit of k edges: they are kept
   and all others swapped to the counterfactual in one exact run. `80%` and `90%` are the fewest edges whose
   circuit keeps that share of the gap, mean over the pairs; edges on no way from the embedding to the logits
   are not counted, whichever method put them there.
3. CPR and CMD are MIB's: the areas under the curve, and between the curve and 1, at ten sizes from 0.1% of
   all edges to all. `distance` is the mean of |1 − kept| over the pairs and those ten sizes.
4. `held out` says what the circuits of 80% and 90% keep on the unseen pairs, mean and worst, and CPR, CMD and
   distance of the same order there.
5. Seconds (processor time of one thread) and forward passes are those of finding the order, without the runs
   that evaluate it. A backward pass counts as two forward passes, the effect of one edge as one.
6. `acdc` walks from the logits down and removes every edge whose removal moves the kept share by less than a
   threshold: one run for each edge that still leads to the logits. Each threshold gives one circuit, no order,
   so it has no areas. It is run where the model has at most `--walk` edges.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

import numpy as np
import torch
from measure import show

import circuits
from circuits.engine.attribution import STEPS, attribution, integrated_attribution
from circuits.engine.kept import KeptRuns
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.tasks.curve import first_at_least, measure_curve, mib_sizes
from circuits.tasks.orders import EdgeOrder, by_size, explained, searched
from circuits.tasks.task import Item, to_task
from circuits.tasks.wires import MOST_WIRES, exact_effects, kept_runs_of, mib_areas

SHARES = (0.8, 0.9)
THRESHOLDS = (0.01, 0.003, 0.001)  # of the gap, for acdc
EVERY_EFFECT = (
    40_000  # edges up to which all single effects are measured, else the first of EAP
)
HEADER = (
    "task",
    "method",
    "80%",
    "90%",
    "CPR",
    "CMD",
    "distance",
    "held out: 80% (worst)",
    "90% (worst)",
    "CPR",
    "CMD",
    "distance",
    "CPU s",
    "passes",
)


# The rows


@dataclass(frozen=True)
class Row:
    """A task: the pairs that the methods see, and pairs held out."""

    name: str
    model: Model
    seen: tuple[Item, ...]
    unseen: tuple[Item, ...]


def stories() -> Row:
    """Names in children's stories: who is given the thing."""
    model = circuits.load("stories15m")
    names = ("Tom", "Ben", "Tim", "Sam", "Max", "Anna")
    sentences = []
    for first, second in product(names, names):
        for place, thing in product(
            ("park", "beach", "zoo", "store"), ("ball", "toy", "cake", "book")
        ):
            if first != second:
                sentences.append((first, second, place, thing))
    Random("stories/0").shuffle(sentences)
    items = []
    for first, second, place, thing in sentences[:22]:
        text = f"{first} and {second} went to the {place}. {{}} gave the {thing} to"
        items.append(item_of(model, text, first, second))
    return Row("stories15m names", model, tuple(items[:12]), tuple(items[12:]))


def smollm() -> Row:
    """Indirect objects in SmolLM2."""
    model = circuits.load("smollm2")
    text = "When {0} and {1} went to the store, {{}} gave a drink to"
    seen = "Mary John, Tom Anna, Sarah Peter, David Laura"
    unseen = "James Susan, Alice Mark, Paul Emma, Lisa Robert"
    items = []
    for names in f"{seen}, {unseen}".split(", "):
        first, second = names.split()
        items.append(item_of(model, text.format(first, second), first, second))
    return Row("smollm2 indirect objects", model, tuple(items[:4]), tuple(items[4:]))


def item_of(model: Model, text: str, first: str, second: str) -> Item:
    """The second name gives, so the first is the answer; in the counterfactual the first gives."""
    pair = to_pair(
        model,
        text.format(second),
        counterfactual=text.format(first),
        answer=first,
        foil=second,
    )
    return Item(pair, ())


def task_of_mini(name: str) -> Row:
    model = circuits.load("mini")
    items = to_task(model, name, count=16).items
    return Row(f"mini {name}", model, items[:8], items[8:])


ROWS: dict[str, Callable[[], Row]] = {
    "opposites": lambda: task_of_mini("opposites"),
    "indirect_object": lambda: task_of_mini("indirect_object"),
    "greater_than": lambda: task_of_mini("greater_than"),
    "induction": lambda: task_of_mini("induction"),
    "stories": stories,
    "smollm2": smollm,
}


# The methods


def effects_of(kept: KeptRuns) -> tuple[np.ndarray, int]:
    """The exact effect of every edge alone, (edge, pair), and how many were measured. In a large model those
    that EAP puts in front are measured and the others estimated."""
    wires = kept.table.edges.wires
    if len(wires) <= EVERY_EFFECT:
        return exact_effects(kept, wires), len(wires)
    effects = attribution(kept).numpy()
    front = by_size(effects).numbers[:MOST_WIRES]
    effects[front] = exact_effects(kept, [wires[number] for number in front])
    return effects, len(front)


Orders = list[tuple[str, EdgeOrder]]  # with their names


def by_effects(kept: KeptRuns) -> Orders:
    """Two orders of the same effects: the largest first, and the largest of either sign first."""
    effects, measured = effects_of(kept)
    signed = np.argsort(-effects.mean(1), kind="stable").tolist()
    return [
        ("exact single effects, signed", EdgeOrder(signed, passes=measured)),
        ("exact single effects, by size", by_size(effects, passes=measured)),
    ]


def by_attribution(kept: KeptRuns) -> Orders:
    return [("EAP", by_size(attribution(kept).numpy(), passes=3))]


def by_integrated_attribution(kept: KeptRuns) -> Orders:
    scores = integrated_attribution(kept).numpy()
    return [(f"EAP-IG ({STEPS} steps)", by_size(scores, passes=3 * STEPS))]


METHODS: dict[str, Callable[[KeptRuns], Orders]] = {
    "faithful": lambda kept: [("ours, faithful", searched(kept, aim="faithful"))],
    "performance": lambda kept: [("ours, performance", searched(kept, aim="performance"))],
    "effect": by_effects,
    "eap": by_attribution,
    "eap-ig": by_integrated_attribution,
}


def walk(kept: KeptRuns, threshold: float) -> tuple[torch.Tensor, int]:
    """ACDC: the edges whose removal, from the logits down, moves the kept share by the threshold or more, and
    how many runs that took. An edge into a reader that no longer leads to the logits moves nothing, so it goes
    without a run."""
    reader_of = kept.table.ends[0]
    chosen = torch.ones(len(kept.table), dtype=torch.bool)
    now = float(kept.kept(chosen[None]).mean())
    runs = 1
    for reader in range(int(reader_of.max()), -1, -1):
        # Readers above are done, so whether this one leads to the logits is settled.
        chosen = kept.table.alive(chosen)
        edges = (chosen & (reader_of == reader)).nonzero().flatten().tolist()
        for number in reversed(edges):
            chosen[number] = False
            without = float(kept.kept(chosen[None]).mean())
            runs += 1
            if abs(without - now) < threshold:
                now = without
            else:
                chosen[number] = True
    return kept.table.alive(chosen), runs


# One line of the table


def evaluate(seen: KeptRuns, unseen: KeptRuns, order: EdgeOrder) -> list[str]:
    """Counts and areas of an order, on the pairs seen and on those held out."""
    mib = mib_sizes(len(seen.table))
    also = [*mib, *order.sizes]
    sizes, values = measure_curve(
        lambda some: explained(seen, order.numbers, some),
        len(seen.table),
        shares=SHARES,
        also=also,
    )
    counts = []
    held_out = []
    for share in SHARES:
        size = first_at_least(sizes, values.mean(1).tolist(), share)
        counts.append("–" if size is None else f"{alive(seen, order, size):,}")
        held_out.append("–" if size is None else mean_and_worst(unseen, order, size))
    other = explained(unseen, order.numbers, mib)
    own = areas(seen, sizes, values)
    return [*counts, *own, *held_out, *areas(unseen, mib, other)]


def alive(kept: KeptRuns, order: EdgeOrder, size: int) -> int:
    """How many of the first edges lie on a way from the embedding to the logits."""
    chosen = torch.zeros(len(kept.table), dtype=torch.bool)
    chosen[order.numbers[:size]] = True
    return int(kept.table.alive(chosen).sum())


def mean_and_worst(kept: KeptRuns, order: EdgeOrder, size: int) -> str:
    shares = explained(kept, order.numbers, [size])[0]
    return f"{shares.mean():.2f} ({shares.min():.2f})"


def areas(kept: KeptRuns, sizes: Sequence[int], values: np.ndarray) -> list[str]:
    """CPR, CMD and the mean distance at the sizes of MIB."""
    cpr, cmd = mib_areas(kept, sizes, values)
    at = [sizes.index(size) for size in mib_sizes(len(kept.table))]
    distance = np.abs(1 - values[at]).mean()
    return [f"{cpr:.3f}", f"{cmd:.4f}", f"{distance:.4f}"]


def evaluate_walk(
    row: Row, seen: KeptRuns, unseen: KeptRuns, thresholds: Sequence[float]
) -> None:
    """A line for each threshold: its one circuit counts for a share where it keeps as much."""
    for threshold in thresholds:
        start = time.process_time()
        circuit, runs = walk(seen, threshold)
        seconds = time.process_time() - start
        kept = float(seen.kept(circuit[None]).mean())
        other = unseen.kept(circuit[None])[0]
        edges = f"{int(circuit.sum()):,} keep {kept:.2f}"
        counts = [edges if kept >= share else "–" for share in SHARES]
        held_out = f"{other.mean():.2f} ({other.min():.2f})"
        none = ["–"] * 3
        show(
            [
                row.name,
                f"ACDC walk, threshold {threshold:g}: {edges}",
                *counts,
                *none,
                held_out,
                held_out,
                *none,
                f"{seconds:.0f}",
                f"{runs:,}",
            ]
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument(
        "--methods", nargs="+", choices=[*METHODS, "acdc"], default=[*METHODS, "acdc"]
    )
    parser.add_argument(
        "--walk", type=int, default=3000, help="most edges of a model on which acdc walks"
    )
    parser.add_argument("--thresholds", nargs="+", type=float, default=THRESHOLDS)
    options = parser.parse_args()
    show(HEADER)
    show(["---"] * len(HEADER))
    for name in options.rows:
        row = ROWS[name]()
        seen, unseen = kept_runs_of(row.model, row.seen), kept_runs_of(row.model, row.unseen)
        for method in METHODS:
            if method not in options.methods:
                continue
            start = time.process_time()
            orders = METHODS[method](seen)
            seconds = time.process_time() - start
            for title, order in orders:
                cost = [f"{seconds:.0f}", f"{order.passes:,}"]
                show([row.name, title, *evaluate(seen, unseen, order), *cost])
        if "acdc" in options.methods and len(seen.table) <= options.walk:
            evaluate_walk(row, seen, unseen, options.thresholds)


if __name__ == "__main__":
    main()
