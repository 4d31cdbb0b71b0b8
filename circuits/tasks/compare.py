"""`compare`: two circuits of one question, or two models on one task, such as a dense one and its twin.

1. Two circuits: the mapping in front of the first, in both: totals, carriers, open edges, heads that moved.
2. Two models: both are asked the pairs that both get right; where they share none (their tokens differ), each
   is asked its own. Heads, attention edges or component edges are ranked by the same protocol. Maps and
   panels are measured on the clean prompts, for the heads that explain 90% and for all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict, Unpack, overload

import numpy as np

from circuits.components import Head
from circuits.errors import PromptError, escaped
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Prompt
from circuits.results import Arrays, Pictured, Progress, Saved, require, sha256_of, silent
from circuits.tasks.patterns import Changed, PanelFigures, attention_maps, changed, measure_panel
from circuits.tasks.rank import rank
from circuits.tasks.ranking import COUNTED, EXPLAINED, UNITS, Mlps, Ranking, Units, heads_of
from circuits.tasks.task import PAIRS, Task, to_task
from circuits.tracing import SHARE, Circuit, Mapping

TaskSource = str | Path | tuple[Task, Task]
Maps = tuple[np.ndarray, ...]  # (query, key), one for each head
BOTH: Final[tuple[Units, ...]] = ("heads", "edges")  # what is ranked unless the user says otherwise
_SIDES: Final = ("first", "second")
_NOTICEABLE: Final = 0.05  # a head whose effect changes by less has not moved


class TaskChoices(TypedDict, total=False):
    """How a task is ranked in both models."""

    units: Sequence[Units]
    mlps: Mlps
    count: int | None
    most: int | None
    seed: int
    progress: Progress


@overload
def compare(first: Circuit, second: Circuit, *, share: float = SHARE) -> Comparison: ...
@overload
def compare(
    first: Any, second: Any, *, task: TaskSource, **options: Unpack[TaskChoices]
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
    are_circuits = [isinstance(each, Circuit) for each in (first, second)]
    has_choices = (tuple(units), mlps, count, most, seed) != (BOTH, "computed", None, None, 0)
    if all(are_circuits) and task is None and not has_choices:
        return _compare_circuits(first, second, SHARE if share is None else share)
    if any(are_circuits) or task is None or share is not None:
        raise PromptError("compare two circuits with no more than a share=…, or two models on a task=…")
    choices: dict[str, Any] = {"mlps": mlps, "count": count, "most": most, "seed": seed, "progress": progress}
    return _compare_on_task((as_model(first), as_model(second)), task, units, choices)


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
    NAME: ClassVar = "a comparison of two circuits"

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

    def check(self) -> None:
        require(0 <= self.key <= self.query, "its key and query run backwards")
        require(0 < self.share <= 1, f"its share is {self.share}, not above 0 and at most 1")
        for heads in self.carriers:
            require(len(set(heads)) == len(heads), "it names a carrier twice")

    def __str__(self) -> str:
        names = [escaped(name) for name in self.names]
        opened = [f"{count} of {edges}" for count, edges in zip(self.open_edges, self.edges, strict=True)]
        rows = [
            ("", *names),
            (f"total {self.key}→{self.query}", *(f"{total:.3f}" for total in self.totals)),
            (f"heads for {self.share:.0%}", *(str(len(heads)) for heads in self.carriers)),
            ("modulation", *(f"{modulation:.0%}" for modulation in self.modulations)),
            ("open edges", *opened),
        ]
        lines = [f"{name:16}{first:>20}{second:>20}" for name, first, second in rows]
        lines += [f"{name}: {_names(heads)}" for name, heads in zip(names, self.carriers, strict=True)]
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
    mappings = (before, second.mapping(before.key, before.query))
    measured = [(each.total, each.modulation(share), each.carriers(share)) for each in mappings]
    sources = [(each.name, each.open_edges, each.edges) for each in (first.source, second.source)]
    totals, modulations, carriers = zip(*measured, strict=True)
    names, opened, edges = zip(*sources, strict=True)
    ends, moved = (before.key, before.query), _moved(*mappings)
    return Comparison(names, *ends, share, totals, modulations, carriers, opened, edges, moved)


def _moved(before: Mapping, after: Mapping) -> tuple[Moved, ...]:
    was, now = ({each.head: each.effect for each in mapping.heads} for mapping in (before, after))
    if was.keys() != now.keys():
        return ()
    moved = (Moved(head, was[head], now[head]) for head in was if abs(now[head] - was[head]) >= _NOTICEABLE)
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
    NAME: ClassVar = "a comparison on a task"

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
    def file_name(cls) -> str:
        return "comparison.json"

    @classmethod
    def from_stored(cls, stored: dict[str, Any], arrays: Arrays | None = None) -> TaskComparison:
        """The record, without the summary that the command line writes beside it for other readers."""
        values = {name: value for name, value in stored.items() if name != "summary"}
        return super(TaskComparison, cls).from_stored(values, arrays)

    def check(self) -> None:
        require(bool(self.rankings), "it has no rankings")
        for first, second in self.rankings:
            alike = first.protocol.units == second.protocol.units
            require(alike, "it has two rankings of different units side by side")
            first.check()
            second.check()
        for panel in (*self.needed, *self.panels):
            panel.check()
        for side, name in enumerate(_SIDES):
            maps, length = self.arrays.get(name, np.zeros(0)), len(self.prompts[side])
            whole = maps.shape == (len(self.order(side)), length, length) and maps.dtype.kind == "f"
            whole = whole and bool(np.isfinite(maps).all())
            require(whole, f"its {name} maps are not finite numbers of its heads and its tokens")

    def __str__(self) -> str:
        from circuits.show.task_tables import task_comparison_text

        return task_comparison_text(self)


def to_same_task(
    models: tuple[Model, Model], name: str | Path, *, count: int | None = None, **options: Any
) -> tuple[Task, Task]:
    """The task for each model with the pairs that both get right or, where there are none, with its own."""
    wanted = PAIRS if count is None else count
    first, second = (to_task(model, name, count=wanted, **options) for model in models)
    others = set(_texts(second))
    shared = [texts for texts in _texts(first) if texts in others]
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


def _compare_on_task(
    models: tuple[Model, Model], task: TaskSource, units: Sequence[Units], choices: dict[str, Any]
) -> TaskComparison:
    if not units:
        raise PromptError(f"name at least one kind of unit: {' or '.join(UNITS)}")
    drawing = {name: choices[name] for name in ("count", "seed", "progress")}
    tasks = task if isinstance(task, tuple) else to_same_task(models, task, **drawing)
    sides = []
    for model, own in zip(models, tasks, strict=True):
        rankings = []
        for kind in units:  # `most` goes with component edges alone, `mlps` with all others
            special = "most" if kind == "wires" else "mlps"
            rankings.append(rank(model, own, units=kind, **drawing, **{special: choices[special]}))
        heads, prompt = heads_of(rankings[0]), own.pairs[0].clean
        panels = (measure_panel(model, own, heads=heads), measure_panel(model, own))
        sides.append((model.name, prompt, rankings, *panels, attention_maps(model, [prompt])[0]))
    names, prompts, rankings, needed, panels, maps = zip(*sides, strict=True)
    couples, same_pairs = tuple(zip(*rankings, strict=True)), _texts(tasks[0]) == _texts(tasks[1])
    compared = TaskComparison(tasks[0].name, names, same_pairs, prompts, couples, needed, panels, "", {})
    arrays = {}
    for side, name in enumerate(_SIDES):
        arrays[name] = np.stack([maps[side][head.layer, head.index] for head in compared.order(side)])
    return replace(compared, arrays=arrays, arrays_sha256=sha256_of(arrays))
