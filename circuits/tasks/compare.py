"""`compare`: two circuits of one question, or two models on one task, such as a dense one and its twin.

1. Two circuits are compared by the focus mapping of the first: its total, carriers and modulation in both,
   the open edges of both prompts, and the heads whose effect changed.
2. Two models on a task are asked the pairs that both get right. Where they share none, because their tokens
   differ, each is asked its own. Heads, attention edges or component edges are ranked by the same protocol.
   Attention maps are measured on the clean prompts, for the heads that explain 90% and for all heads.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, overload

import numpy as np

from circuits.components import Head
from circuits.errors import PromptError, as_listed
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair
from circuits.results import Progress, sha256_of, silent
from circuits.tasks.comparison import NOTICEABLE, SIDES, Comparison, Moved, TaskComparison
from circuits.tasks.patterns import maps_of, measure_panel
from circuits.tasks.rank import rank
from circuits.tasks.ranking import UNITS, Mlps, Ranking, Units, heads_of
from circuits.tasks.task import PAIRS, Task, to_task
from circuits.tracing import SHARE, Mapping
from circuits.tracing.parts import Verdict
from circuits.tracing.records import Circuit

TaskSource = str | Path | tuple[Task, Task]
# What is ranked unless the user says otherwise.
BOTH: Final[tuple[Units, ...]] = ("heads", "edges")
_TWO_WAYS: Final = "compare two circuits with no more than a share=…, or two models on a task=…"


@overload
def compare(first: Circuit, second: Circuit, *, share: float = SHARE) -> Comparison: ...
@overload
def compare(
    first: Any,
    second: Any,
    *,
    task: TaskSource,
    units: Units | Sequence[Units] = ...,
    mlps: Mlps = ...,
    count: int | None = ...,
    most: int | None = ...,
    seed: int = ...,
    progress: Progress = ...,
) -> TaskComparison: ...
def compare(
    first: Any,
    second: Any,
    *,
    share: float | None = None,
    task: TaskSource | None = None,
    units: Units | Sequence[Units] = BOTH,
    mlps: Mlps = "computed",
    count: int | None = None,
    most: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Comparison | TaskComparison:
    """How two models answer the same question.

    Two circuits are compared by the mapping in front of `first`, with the carriers of a `share`. Two models
    are compared on a `task`: its name, its path, or one Task for each model. The other options are those of
    `rank`; `units` are several, by default heads and (attention) edges.

        >>> sparse = circuits.load("mini-sparse")
        >>> other = circuits.trace(sparse, TEXT, key="large", swap={"large": "hot"})
        >>> both = circuits.compare(found, other)
        >>> print(*both.overlap)
        L5H1 L4H0 L5H3 L4H5
    """
    kinds = tuple(as_listed(units))
    has_options = (kinds, mlps, count, most, seed) != (BOTH, "computed", None, None, 0)
    if isinstance(first, Circuit) and isinstance(second, Circuit):
        if task is None and not has_options:
            return _compare_circuits(first, second, SHARE if share is None else share)
        raise PromptError(_TWO_WAYS)
    if isinstance(first, Circuit) or isinstance(second, Circuit):
        raise PromptError(_TWO_WAYS)
    if task is None or share is not None:
        raise PromptError(_TWO_WAYS)
    if not kinds:
        raise PromptError(f"name at least one kind of unit: {' or '.join(UNITS)}")
    models = (as_model(first), as_model(second))
    if isinstance(task, tuple):
        tasks = task
    else:
        tasks = to_same_task(models, task, count=count, seed=seed, progress=progress)
    rankings = []
    for kind in kinds:
        options: dict[str, Any] = {"units": kind, "count": count, "seed": seed}
        if kind == "wires":
            options["most"] = most
        else:
            options["mlps"] = mlps
        of_first = rank(models[0], tasks[0], progress=progress, **options)
        of_second = rank(models[1], tasks[1], progress=progress, **options)
        rankings.append((of_first, of_second))
    return _compare_rankings(models, tasks, tuple(rankings))


def _compare_circuits(first: Circuit, second: Circuit, share: float) -> Comparison:
    if len(first.prompt) != len(second.prompt):
        different = f"the two circuits have prompts of {len(first.prompt)} and {len(second.prompt)} tokens"
        raise PromptError(f"{different}; compare circuits of the same prompt")
    before = first.mapping()
    after = second.mapping(before.key, before.query)
    carriers = before.carriers(share), after.carriers(share)
    return Comparison(
        names=(first.source.name, second.source.name),
        key=before.key,
        query=before.query,
        share=share,
        totals=(before.total, after.total),
        modulations=(before.modulation(share), after.modulation(share)),
        carriers=carriers,
        open_edges=(first.source.open_edges, second.source.open_edges),
        edges=(first.source.edges, second.source.edges),
        moved=_moved(before, after, {*carriers[0], *carriers[1]}),
        verdicts=(_verdict(first), _verdict(second)),
        reasons=(_reasons(first), _reasons(second)),
        doubts=(before.doubts, after.doubts),
        pair=Pair(first.prompt, first.counterfactual, first.metric).without_function(),
    )


def _verdict(circuit: Circuit) -> Verdict | None:
    return None if circuit.question is None else circuit.question.verdict


def _reasons(circuit: Circuit) -> tuple[str, ...]:
    return () if circuit.question is None else circuit.question.reasons


def _moved(before: Mapping, after: Mapping, carriers: Set[Head]) -> tuple[Moved, ...]:
    """The heads whose effect changed and the carriers of either model, the largest change first; none where the
    models differ in shape."""
    effect_before = {each.head: each.effect for each in before.heads}
    effect_after = {each.head: each.effect for each in after.heads}
    if effect_before.keys() != effect_after.keys():
        return ()
    moved = []
    for head, effect in effect_before.items():
        if head in carriers or abs(effect_after[head] - effect) >= NOTICEABLE:
            moved.append(Moved(head, effect, effect_after[head]))
    return tuple(sorted(moved, key=lambda each: (-abs(each.after - each.before), each.head)))


def to_same_task(
    models: tuple[Model, Model], name: str | Path, *, count: int | None = None, **options: Any
) -> tuple[Task, Task]:
    """The task for each model with the pairs that both get right or, where there are none, with its own."""
    wanted = PAIRS if count is None else count
    first = to_task(models[0], name, count=wanted, **options)
    second = to_task(models[1], name, count=wanted, **options)
    in_second = set(_texts(second))
    shared = [texts for texts in _texts(first) if texts in in_second]
    return (_only(first, shared), _only(second, shared)) if shared else (first, second)


def _texts(task: Task) -> list[tuple[str, str]]:
    return [(pair.clean.text, str(pair.counterfactual)) for pair in task.pairs]


def _only(task: Task, texts: Sequence[tuple[str, str]]) -> Task:
    """The task with the pairs of these texts, in their order."""
    by_text = dict(zip(_texts(task), task.items, strict=True))
    items = tuple(by_text[each] for each in dict.fromkeys(texts))
    dropped = len(task) - len(items)
    reasons = (("are not among those of the other model", dropped),) if dropped else ()
    return replace(task, items=items, left_out=(*task.left_out, *reasons))


def _compare_rankings(
    models: tuple[Model, Model],
    tasks: tuple[Task, Task],
    rankings: tuple[tuple[Ranking, Ranking], ...],
) -> TaskComparison:
    """Set the rankings side by side, with the attention maps of both models."""
    needed = []
    panels = []
    for side in range(2):
        heads = heads_of(rankings[0][side])
        needed.append(measure_panel(models[side], tasks[side], heads=heads))
        panels.append(measure_panel(models[side], tasks[side]))
    compared = TaskComparison(
        task=tasks[0].name,
        models=(models[0].name, models[1].name),
        same_pairs=_texts(tasks[0]) == _texts(tasks[1]),
        prompts=(tasks[0].pairs[0].clean, tasks[1].pairs[0].clean),
        rankings=rankings,
        needed=(needed[0], needed[1]),
        panels=(panels[0], panels[1]),
        arrays_sha256="",
        arrays={},
        examples=(tasks[0].pairs[0].without_function(), tasks[1].pairs[0].without_function()),
    )
    arrays = {}
    for side, name in enumerate(SIDES):
        arrays[name] = np.stack(
            maps_of(models[side], compared.prompts[side], compared.order(side))
        )
    return replace(compared, arrays=arrays, arrays_sha256=sha256_of(arrays))
