"""One task in two models: how many heads and edges each takes, which heads both take, and how their maps differ.

1. Both models are asked the same pairs: those that both get right. Where they share none (their tokens differ), each is asked its own.
2. Heads, edges or both are ranked in each model by the same protocol; a ratio is the first model's count over the second's.
3. Patterns and a panel's figures are measured on the clean prompts, for the heads that explain 90% and for all heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from circuits.errors import PromptError
from circuits.heads import Head
from circuits.links import Progress, silent
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Prompt
from circuits.tasks.patterns import Changed, PanelFigures, attention_maps, changed, measure_panel
from circuits.tasks.rank import rank
from circuits.tasks.ranking import UNITS, Mlps, Ranking, Units
from circuits.tasks.records import Task
from circuits.tasks.task import to_task

SHARE: Final = 0.9  # the share whose heads are shown and compared
PAIRS: Final = 64
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SameTask:
    """One task for two models: the pairs that both get right, or each model's own where they share none."""

    tasks: tuple[Task, Task]
    same_pairs: bool


@dataclass(frozen=True, slots=True)
class Contrast:
    """One task in two models, the first usually dense and the second its sparse twin."""

    task: str
    models: tuple[str, str]
    same_pairs: bool  # both were asked the same pairs
    prompts: tuple[Prompt, Prompt]  # the first clean prompt of each, whose maps are shown
    rankings: tuple[tuple[Ranking, Ranking], ...]  # one couple for each kind of unit
    needed: tuple[PanelFigures, PanelFigures]  # the heads that explain 90%, in ranked order
    panels: tuple[PanelFigures, PanelFigures]  # all heads
    maps: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]] = field(
        repr=False, compare=False
    )  # of the needed heads, on `prompts`

    def ranking(self, units: Units) -> tuple[Ranking, Ranking]:
        """Both rankings of heads or of edges."""
        for couple in self.rankings:
            if couple[0].protocol.units == units:
                return couple
        raise PromptError(f"{units} were not ranked here; ask for them with units=({units!r},)")

    def ratio(self, units: Units, share: float = SHARE) -> float | None:
        """How many times more the first needs; None where either never reaches the share."""
        first, second = (ranking.count(share)[0] for ranking in self.ranking(units))
        return None if first is None or not second else first / second

    @property
    def comparable(self) -> bool:
        """Whether a head's name means the same place in both models."""
        return self.panels[0].heads == self.panels[1].heads

    @property
    def changes(self) -> tuple[Changed, ...]:
        """The heads that both models take, in the order of the first, with their patterns in each; none where shapes differ."""
        return changed(*self.needed) if self.comparable else ()

    @property
    def overlap(self) -> tuple[Head, ...]:
        """The heads that both models take."""
        return tuple(each.head for each in self.changes)


def contrast(
    models: Sequence[Any],
    task: str | Path | SameTask,
    *,
    units: Sequence[Units] = UNITS,
    mlps: Mlps = "computed",
    count: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Contrast:
    """Ask two models the same task, by name, by path or as `to_same_task` made it. `count` pairs are measured, by default as many as
    `rank` measures."""
    if len(models) != 2 or not units:
        raise PromptError(
            f"a contrast takes two models and at least one kind of unit, not {len(models)} and {len(units)}"
        )
    first, second = (as_model(model) for model in models)
    asked_both = (
        task
        if isinstance(task, SameTask)
        else to_same_task((first, second), task, count=count, seed=seed, progress=progress)
    )
    tasks = asked_both.tasks
    rankings = []
    for kind in units:
        one, other = (
            rank(model, asked, units=kind, mlps=mlps, count=count, seed=seed, progress=progress)
            for model, asked in zip((first, second), tasks, strict=True)
        )
        rankings.append((one, other))
    panels = _both(measure_panel(model, asked) for model, asked in zip((first, second), tasks, strict=True))
    chosen = [heads_of(ranking) for ranking in rankings[0]]
    needed = _both(
        measure_panel(model, asked, heads=heads)
        for model, asked, heads in zip((first, second), tasks, chosen, strict=True)
    )
    prompts = _both(asked.pairs[0].clean for asked in tasks)
    maps = _both(
        maps_of(model, prompt, heads)
        for model, prompt, heads in zip((first, second), prompts, chosen, strict=True)
    )
    return Contrast(
        tasks[0].name,
        (first.name, second.name),
        asked_both.same_pairs,
        prompts,
        tuple(rankings),
        needed,
        panels,
        maps,
    )


def maps_of(model: Model, prompt: Prompt, heads: Sequence[Head]) -> tuple[np.ndarray, ...]:
    """The maps (query, key) of these heads on one prompt."""
    maps = attention_maps(model, [prompt])[0]
    return tuple(maps[head.layer, head.index] for head in heads)


def to_same_task(
    models: tuple[Model, Model],
    name: str | Path,
    *,
    count: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> SameTask:
    """The task for each model with the pairs that both get right; where there are none, each has its own."""
    wanted = PAIRS if count is None else count
    tasks = _both(to_task(model, name, count=wanted, seed=seed, progress=progress) for model in models)
    texts = [
        {(pair.clean.text, str(pair.counterfactual)): at for at, pair in enumerate(task.pairs)}
        for task in tasks
    ]
    shared = [text for text in texts[0] if text in texts[1]]
    if not shared:
        return SameTask(tasks, same_pairs=False)
    return SameTask(
        _both(
            _cut(task, [places[text] for text in shared]) for task, places in zip(tasks, texts, strict=True)
        ),
        same_pairs=True,
    )


def _cut(task: Task, places: Sequence[int]) -> Task:
    dropped = len(task.items) - len(places)
    left_out = (
        (*task.left_out, ("are not among those of the other model", dropped)) if dropped else task.left_out
    )
    return replace(task, items=tuple(task.items[at] for at in places), left_out=left_out)


def _both(made: Iterable[_T]) -> tuple[_T, _T]:
    first, second = made
    return first, second


def heads_of(ranking: Ranking, share: float = SHARE) -> tuple[Head, ...]:
    """The heads that explain a share, in ranked order; of a ranking of edges, the heads of those edges."""
    units = ranking.needed(share)
    return tuple(dict.fromkeys(unit if isinstance(unit, Head) else unit.head for unit in units))


def random_count(ranking: Ranking, share: float = SHARE) -> int | None:
    """How many units in random order explain a share, read off the control between its sizes; None where it is never reached."""
    curve = ranking.random
    for at, (size, value) in enumerate(zip(curve.sizes, curve.explained, strict=True)):
        if value >= share - 1e-6:
            if at == 0:
                return size
            before, lower = curve.sizes[at - 1], curve.explained[at - 1]
            return math.ceil(before + (size - before) * (share - lower) / (value - lower) - 1e-9)
    return None
