"""`rank`: the heads, attention edges or component edges of a task in order, and how many of them explain it.

1. Each unit alone is swapped to the counterfactual in the clean run; its mean effect over the pairs gives the
   order. For edges, where measuring all of them would cost too much, first-order estimates stand in.
   Component edges are by default in the order of the search for small circuits (`tasks.orders`).
2. The keep curve: for k = 0, 1, 2, … the first k units are kept and all others swapped, in one run. Explained
   effect = (M(kept) − M(counterfactual)) / gap, averaged over pairs. The control keeps random units.

`tasks.attention` measures heads and attention edges, `tasks.wires` component edges.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from circuits.engine import DIRECTIONS, Ablation, Direction, prepare, to_ablation
from circuits.errors import PromptError, check_whole, shortened
from circuits.executors.executor import Executor, here_and_there
from circuits.models.model import Model
from circuits.results import Progress, silent
from circuits.tasks.attention import measure_attention
from circuits.tasks.curve import Curve, Values, geometric, measure_curve
from circuits.tasks.eap import EapGraph
from circuits.tasks.measurement import (
    Effects,
    Measurement,
    groups_that_run_together,
)
from circuits.tasks.names import OrderName
from circuits.tasks.ranking import (
    COUNTED,
    MLPS,
    SHARES,
    UNITS,
    Mlps,
    Ranked,
    Ranking,
    Units,
)
from circuits.tasks.task import PAIRS, Item, Task, to_task
from circuits.tasks.wires import measure_wires
from circuits.tracing import Interval
from circuits.tracing.family import bootstrap
from circuits.tracing.judge import judge_each, together
from circuits.tracing.parts import FamilyControl, QuestionControl
from circuits.wires.wiring import ABLATIONS

# A head without any of its edges writes nothing: that is `zero`.
ABLATIONS_OF: Final[dict[Units, tuple[Direction, ...]]] = {
    "heads": tuple(kind for kind in DIRECTIONS if kind != "knockout"),
    "edges": DIRECTIONS,
    "wires": ABLATIONS,
}
PAIRS_OF: Final = {"heads": PAIRS, "edges": 16, "wires": 16}  # unless the user says how many
RANDOM_ORDERS: Final = 5
_JUDGED_TOGETHER: Final = 16  # pairs whose runs are in memory together
_AT_A_TIME: Final = 2000  # units whose bootstrap resamples are in memory together


def rank(
    model: Any,
    task: Task | str | Path | Any,
    *,
    units: Units = "heads",
    mlps: Mlps = "computed",
    count: int | None = None,
    most: int | None = None,
    order: OrderName | EapGraph | str | Path | None = None,
    ablation: Direction = "swap",
    reference: Sequence[str] | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> Ranking:
    """Which heads (or edges) a task takes, in order, and how many explain 80, 90 and 95% of it.

    `task` is a Task, a name of TASKS, the path of a jsonl file, or its lines as a list of dicts, of (prompt,
    counterfactual) or as a pandas table; `count` pairs are measured, by default 64 for heads and 16 for edges.
    `units` are "heads", "edges" (attention edges: one head, one key, one
    query) or "wires" (component edges: one writer, one reader, all positions together). The `order` of
    component edges is "search" (the search for small circuits, the default), "effect" (exact effects alone),
    "eap", "eap-ig", or that of a file of EAP-IG or MIB (`from_eap`), to evaluate somebody else's circuit.
    The `most` first are measured exactly: 400, or for "effect" 4,000 that an estimate puts in front; an
    `executor` divides that between workers.
    `ablation` is what stands in the place of units that are not kept ("restore" puts the kept ones back
    instead); a "mean" is over the texts of `reference`, or over the task's own prompts.

        >>> ranking = circuits.rank(model, "opposites", count=4)
        >>> count, low, high = ranking.count(0.9)
        >>> low <= count <= high
        True
    """
    _check(units, mlps, most, order, ablation)
    check_whole("seed", seed)
    if count is not None:
        check_whole("count", count, least=1)
    if executor is not None and units != "wires":
        raise PromptError(
            "an executor measures component edges: units='wires'; others take seconds"
        )
    model, source = here_and_there(model)
    chosen = to_ablation(
        model, ablation, reference, allowed=ABLATIONS_OF[units], of=COUNTED[units]
    )
    wanted = PAIRS_OF[units] if count is None else count
    if not isinstance(task, Task):
        task = to_task(model, task, count=wanted, seed=seed, progress=progress)
    items = task.items if count is None and units == "heads" else task.items[:wanted]
    if not items:
        raise PromptError(f"the task {task.name} has no pairs to rank")
    over = chosen.over([item.pair.clean for item in items])
    if units == "wires":
        measurement = measure_wires(
            model,
            items,
            most=most,
            order=order,
            ablation=over,
            executor=executor,
            source=source,
            progress=progress,
        )
    else:
        measurement = measure_attention(
            model, items, units, mlps=mlps, ablation=over, progress=progress
        )
    question = judge_items(model, items)
    return _rank_units(model, task, measurement, question, ablation=chosen, seed=seed)


def _rank_units(
    model: Model,
    task: Task,
    measurement: Measurement,
    question: FamilyControl,
    *,
    ablation: Ablation,
    seed: int,
) -> Ranking:
    """Measure each unit alone, then keep more and more of them, in order."""
    effects = measurement.single_effects()
    numbers = measurement.order(effects)

    def keep(sizes: Sequence[int]) -> Values:
        return measurement.explained(numbers, sizes)

    sizes, explained = measure_curve(
        keep, len(numbers), shares=SHARES, also=measurement.curve_sizes
    )
    cpr, cmd = measurement.areas(sizes, explained)
    return Ranking(
        task=task.name,
        model=model.name,
        fingerprint=model.fingerprint,
        gated=model.gated,
        protocol=measurement.protocol,
        pairs=measurement.pairs,
        left_out=task.left_out,
        units=len(numbers),
        ranked=_ranked(measurement, numbers, effects, seed),
        keep=Curve.of(sizes, explained, seed=seed),
        random=_random_curve(measurement, seed),
        cpr=cpr,
        cmd=cmd,
        seed=seed,
        each=tuple(tuple(row) for row in explained.tolist()),
        shape=measurement.shape,
        question=question,
        ablation=ablation,
    )


def judge_items(model: Model, items: Sequence[Item]) -> FamilyControl:
    """The verdict on the pairs of a task: each is judged as `trace` judges a question without a key."""
    judged: list[QuestionControl] = []
    for numbers in groups_that_run_together(items):
        for start in range(0, len(numbers), _JUDGED_TOGETHER):
            part = numbers[start : start + _JUDGED_TOGETHER]
            runs = prepare(model, [items[number].pair for number in part], smallest_gap=0.0)
            judged += judge_each(runs)
    return together(judged)


def _check(units: str, mlps: str, most: int | None, order: object, ablation: object) -> None:
    known = isinstance(units, str) and isinstance(mlps, str)
    if not known or units not in UNITS or mlps not in MLPS:
        allowed = f"units are {', '.join(UNITS)} and mlps {', '.join(MLPS)}"
        raise PromptError(f"{allowed}, not {shortened(units)} and {shortened(mlps)}")
    if units == "wires" and mlps != "computed":
        raise PromptError(
            f"among component edges MLPs are units themselves: leave mlps={mlps!r} out"
        )
    if mlps != "computed" and ablation != "swap":
        raise PromptError(
            f"mlps={mlps!r} goes with ablation 'swap' alone: leave one of them out"
        )
    if units != "wires" and (most is not None or order is not None):
        raise PromptError("most= and order= go with component edges: units='wires'")
    if most is not None:
        check_whole("most", most)
    if most is not None and most < 1:
        raise PromptError(
            f"most= is how many component edges are measured exactly, at least 1, not {most}"
        )


def _ranked(
    measurement: Measurement, order: Sequence[int], effects: Effects, seed: int
) -> tuple[Ranked, ...]:
    """The units that are listed, in order, with the bootstrap intervals of their effects."""
    is_listed = measurement.listed(effects)
    listed = [number for number in order if is_listed[number]]
    bands: list[Interval] = []
    for start in range(0, len(listed), _AT_A_TIME):
        bands += bootstrap(effects[listed[start : start + _AT_A_TIME]], seed=seed)
    ranked = []
    for number, band in zip(listed, bands, strict=True):
        unit = measurement.units[number]
        ranked.append(
            Ranked(unit, band.mean, band.low, band.high, bool(measurement.exact[number]))
        )
    return tuple(ranked)


def _random_curve(measurement: Measurement, seed: int) -> Curve:
    """The control: the mean over several random orders, at a few sizes."""
    total = len(measurement.units)
    grid = geometric(total, small=1, step=measurement.random_step)
    sizes = [size for size in grid if size == 0 or size * 64 >= total]
    values = []
    for number in range(RANDOM_ORDERS):
        draw = random.Random(f"random order/{seed}/{number}")
        values.append(measurement.explained(draw.sample(range(total), total), sizes))
    return Curve.of(sizes, np.mean(values, axis=0), seed=seed)
