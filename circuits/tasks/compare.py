"""`compare`: two circuits of one question, or two models on one task, such as a dense one and its twin.

1. Two circuits are compared by the focus mapping of the first: its total, carriers and modulation in both,
   the open edges of both prompts, and the heads whose effect changed.
2. Two models on a task are asked the pairs that both get right. Where they share none, because their tokens
   differ, each is asked its own. Heads, attention edges or component edges are ranked by the same protocol.
   Attention maps are measured on the clean prompts, for the heads that explain 90% and for all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, overload

import numpy as np

from circuits.components import Head
from circuits.errors import PromptError, escaped
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Prompt
from circuits.results import Arrays, Faults, Pictured, Progress, Saved, sha256_of, silent
from circuits.tasks.patterns import Changed, PanelFigures, changed, maps_of, measure_panel
from circuits.tasks.rank import rank
from circuits.tasks.ranking import COUNTED, EXPLAINED, UNITS, Mlps, Ranking, Units, heads_of
from circuits.tasks.task import PAIRS, Task, to_task
from circuits.tracing import SHARE, Mapping
from circuits.tracing.records import Circuit

TaskSource = str | Path | tuple[Task, Task]
Maps = tuple[np.ndarray, ...]  # (query, key), one for each head
BOTH: Final[tuple[Units, ...]] = ("heads", "edges")  # what is ranked unless the user says otherwise
_SIDES: Final = ("first", "second")
_NOTICEABLE: Final = 0.05  # a head whose effect changes by less has not moved


@overload
def compare(first: Circuit, second: Circuit, *, share: float = SHARE) -> Comparison: ...
@overload
def compare(
    first: Any,
    second: Any,
    *,
    task: TaskSource,
    units: Sequence[Units] = ...,
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
    units: Sequence[Units] = BOTH,
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
    has_options = (tuple(units), mlps, count, most, seed) != (BOTH, "computed", None, None, 0)
    if task is None and isinstance(first, Circuit) and isinstance(second, Circuit) and not has_options:
        return _compare_circuits(first, second, SHARE if share is None else share)
    if task is None or share is not None or isinstance(first, Circuit) or isinstance(second, Circuit):
        raise PromptError("compare two circuits with no more than a share=…, or two models on a task=…")
    if not units:
        raise PromptError(f"name at least one kind of unit: {' or '.join(UNITS)}")
    models = (as_model(first), as_model(second))
    if isinstance(task, tuple):
        tasks = task
    else:
        tasks = to_same_task(models, task, count=count, seed=seed, progress=progress)
    rankings = []
    for kind in units:
        options: dict[str, Any] = {"units": kind, "count": count, "seed": seed, "progress": progress}
        if kind == "wires":
            options["most"] = most
        else:
            options["mlps"] = mlps
        rankings.append((rank(models[0], tasks[0], **options), rank(models[1], tasks[1], **options)))
    return _compare_rankings(models, tasks, tuple(rankings))


@dataclass(frozen=True, slots=True)
class Moved:
    """One head that does more or less of a mapping in the second model than in the first."""

    head: Head
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.head} {self.before:+.2f} → {self.after:+.2f}"


@dataclass(frozen=True, slots=True)
class Comparison(Saved, Pictured):
    """One mapping in two models.

    >>> both = circuits.compare(found, found)
    >>> both.jaccard, both.ratio
    (1.0, 1.0)
    >>> circuits.Comparison.load(both.save(folder / "compared")) == both
    True
    """

    KIND: ClassVar = "comparison"
    CALLED: ClassVar = "a comparison of two circuits"

    names: tuple[str, str]
    key: int
    query: int
    share: float
    totals: tuple[float, float]
    modulations: tuple[float, float]
    carriers: tuple[tuple[Head, ...], tuple[Head, ...]]
    open_edges: tuple[int, int]
    edges: tuple[int, int]
    moved: tuple[Moved, ...]  # largest change first; empty where the models differ in shape

    @property
    def ratio(self) -> float:
        """How many times more heads the first needs (infinite if the second needs none)."""
        first, second = (len(heads) for heads in self.carriers)
        return first / second if second else float("inf")

    @property
    def overlap(self) -> tuple[Head, ...]:
        """The carriers that both share."""
        return tuple(head for head in self.carriers[0] if head in self.carriers[1])

    @property
    def jaccard(self) -> float:
        """Shared carriers as a share of all carriers of either."""
        either = {*self.carriers[0], *self.carriers[1]}
        return len(self.overlap) / len(either) if either else 0.0

    def faults(self) -> Faults:
        yield not 0 <= self.key <= self.query, "its key and query run backwards"
        yield not 0 < self.share <= 1, f"its share is {self.share}, not above 0 and at most 1"
        twice = any(len(set(heads)) < len(heads) for heads in self.carriers)
        yield twice, "it names a carrier twice"

    def __str__(self) -> str:
        names = [escaped(name) for name in self.names]
        columns = []
        for side in range(2):
            total = f"{self.totals[side]:.3f}"
            heads = str(len(self.carriers[side]))
            modulation = f"{self.modulations[side]:.0%}"
            opened = f"{self.open_edges[side]} of {self.edges[side]}"
            columns.append((names[side], total, heads, modulation, opened))
        total = f"total {self.key}→{self.query}"
        labels = ("", total, f"heads for {self.share:.0%}", "modulation", "open edges")
        lines = [f"{label:16}{one:>20}{two:>20}" for label, one, two in zip(labels, *columns, strict=True)]
        for name, heads in zip(names, self.carriers, strict=True):
            lines.append(f"{name}: {_names(heads)}")
        lines.append(f"shared: {_names(self.overlap)} ({self.jaccard:.0%} of all carriers of either)")
        if self.moved:
            lines.append(f"moved: {', '.join(map(str, self.moved[:5]))}")
        return "\n".join(lines)


def _names(heads: Sequence[Head]) -> str:
    return " ".join(map(str, heads)) or "none"


def _compare_circuits(first: Circuit, second: Circuit, share: float) -> Comparison:
    if len(first.prompt) != len(second.prompt):
        different = f"the two circuits have prompts of {len(first.prompt)} and {len(second.prompt)} tokens"
        raise PromptError(f"{different}; compare circuits of the same prompt")
    before = first.mapping()
    after = second.mapping(before.key, before.query)
    return Comparison(
        names=(first.source.name, second.source.name),
        key=before.key,
        query=before.query,
        share=share,
        totals=(before.total, after.total),
        modulations=(before.modulation(share), after.modulation(share)),
        carriers=(before.carriers(share), after.carriers(share)),
        open_edges=(first.source.open_edges, second.source.open_edges),
        edges=(first.source.edges, second.source.edges),
        moved=_moved(before, after),
    )


def _moved(before: Mapping, after: Mapping) -> tuple[Moved, ...]:
    """The heads whose effect changed, the largest change first; none where the models differ in shape."""
    effect_before = {each.head: each.effect for each in before.heads}
    effect_after = {each.head: each.effect for each in after.heads}
    if effect_before.keys() != effect_after.keys():
        return ()
    moved = []
    for head, effect in effect_before.items():
        if abs(effect_after[head] - effect) >= _NOTICEABLE:
            moved.append(Moved(head, effect, effect_after[head]))
    return tuple(sorted(moved, key=lambda each: (-abs(each.after - each.before), each.head)))


@dataclass(frozen=True, slots=True)
class TaskComparison(Saved, Pictured):
    """One task in two models.

    >>> sparse = circuits.load("mini-sparse")
    >>> both = circuits.compare(model, sparse, task="opposites", count=4, units=("heads",))
    >>> both.models, len(both.overlap) > 0
    (('mini', 'mini-sparse'), True)
    >>> circuits.TaskComparison.load(both.save(folder / "on a task")) == both
    True
    """

    KIND: ClassVar = "task_comparison"
    CALLED: ClassVar = "a comparison on a task"

    task: str
    models: tuple[str, str]
    same_pairs: bool  # both were asked the same pairs
    prompts: tuple[Prompt, Prompt]  # the first clean prompt of each, whose maps are shown
    rankings: tuple[tuple[Ranking, Ranking], ...]  # one couple for each kind of unit
    needed: tuple[PanelFigures, PanelFigures]  # the heads that explain 90%, in ranked order
    panels: tuple[PanelFigures, PanelFigures]  # all heads
    arrays_sha256: str
    # "first", "second": the maps of all heads in `order`, on `prompts`, (head, query, key)
    arrays: Arrays = field(repr=False, compare=False, hash=False)

    @property
    def maps(self) -> tuple[Maps, Maps]:
        """The maps of all heads of each model, in `order`, on `prompts`."""
        return tuple(self.arrays["first"]), tuple(self.arrays["second"])

    def order(self, side: int) -> tuple[Head, ...]:
        """All heads of one model (0 or 1): those that explain 90% first, then the others, as ranked."""
        ranked = [each.unit for each in self.rankings[0][side].ranked if isinstance(each.unit, Head)]
        return tuple(dict.fromkeys([*self.needed[side].heads, *ranked, *self.panels[side].heads]))

    def ranking(self, units: Units) -> tuple[Ranking, Ranking]:
        """Both rankings of heads, of attention edges or of component edges."""
        for couple in self.rankings:
            if couple[0].protocol.units == units:
                return couple
        raise PromptError(
            f"{COUNTED.get(units, units)} were not ranked here; ask for them with units=({units!r},)"
        )

    def ratio(self, units: Units, share: float = EXPLAINED) -> float | None:
        """How many times more the first needs; None where either never reaches the share."""
        first, second = (ranking.count(share)[0] for ranking in self.ranking(units))
        return None if first is None or not second else first / second

    @property
    def comparable(self) -> bool:
        """Whether a head's name means the same head in both models."""
        return self.panels[0].heads == self.panels[1].heads

    @property
    def changes(self) -> tuple[Changed, ...]:
        """The heads that both models take, with their patterns in each; none if models differ in shape."""
        return changed(*self.needed) if self.comparable else ()

    @property
    def overlap(self) -> tuple[Head, ...]:
        """The heads that both models take, in the order of the first."""
        return tuple(each.head for each in self.changes)

    @classmethod
    def from_stored(cls, stored: dict[str, Any], packed: bytes | None = None) -> TaskComparison:
        """The record, without the summary that the command line writes beside it for other readers."""
        record = {name: value for name, value in stored.items() if name != "summary"}
        return super(TaskComparison, cls).from_stored(record, packed)

    def faults(self) -> Faults:
        yield not self.rankings, "it has no rankings"
        kinds = [{ranking.protocol.units for ranking in couple} for couple in self.rankings]
        yield any(len(units) > 1 for units in kinds), "it has two rankings of different units side by side"
        for first, second in self.rankings:
            yield from first.faults()
            yield from second.faults()
        for panel in (*self.needed, *self.panels):
            yield from panel.faults()
        for side, name in enumerate(_SIDES):
            maps = self.arrays.get(name, np.zeros(0))
            length = len(self.prompts[side])
            fits = maps.shape == (len(self.order(side)), length, length)
            numbers = maps.dtype.kind == "f" and bool(np.isfinite(maps).all())
            yield (
                not (fits and numbers),
                f"its {name} maps are not finite numbers of its heads and its tokens",
            )

    def __str__(self) -> str:
        from circuits.show.task_tables import task_comparison_text

        return task_comparison_text(self)


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
    models: tuple[Model, Model], tasks: tuple[Task, Task], rankings: tuple[tuple[Ranking, Ranking], ...]
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
    )
    arrays = {}
    for side, name in enumerate(_SIDES):
        arrays[name] = np.stack(maps_of(models[side], compared.prompts[side], compared.order(side)))
    return replace(compared, arrays=arrays, arrays_sha256=sha256_of(arrays))
