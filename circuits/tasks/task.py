"""Tasks: seeded families of pairs for any tokenizer, judged by the model that will be measured.

1. `families` writes candidates: opposites, indirect_object, greater_than, induction; `own` reads them from a jsonl file.
2. `judging` keeps those that the model's tokenizer cuts evenly and that the model gets right; all others are counted by reason.
3. The same model, name, count and seed give the same task.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from circuits.errors import NoPairError, PromptError
from circuits.links import Progress, silent
from circuits.models.load import as_model
from circuits.tasks import TASKS, check_task
from circuits.tasks.families import ABOUT, FAMILIES, Candidate, YearsAfter
from circuits.tasks.judging import judge
from circuits.tasks.own import read_own
from circuits.tasks.records import END, Item, Task

__all__ = ["END", "TASKS", "Item", "Task", "YearsAfter", "to_task"]

BEYOND: Final = "come after as many as were asked for"
_BATCH: Final = 32
_TRIES: Final = 16  # candidates for each item asked for, at most
_HOPELESS: Final = 192  # as many candidates without a single item end the search


def to_task(
    model: Any, name: str | Path, *, count: int = 64, seed: int = 0, progress: Progress = silent
) -> Task:
    """At most `count` pairs of a task that this model gets right: one of TASKS, or the path of a jsonl file of own items."""
    check_task(name)
    known = as_model(model)
    if count < 1:
        raise PromptError(f"a task needs at least one pair, not {count}")
    if str(name) in FAMILIES:
        writer = FAMILIES[str(name)](known, random.Random(f"{name}/{seed}"))
        candidates, title, about = islice(writer, _TRIES * count), str(name), ABOUT[str(name)]
    else:
        candidates, title, about = (
            iter(read_own(known, Path(name))),
            Path(name).stem,
            "counterfactual: as the file gives it",
        )
    items, left_out = _judged(known, candidates, count, progress)
    if title not in FAMILIES:
        left_out[BEYOND] += sum(1 for _ in candidates)
    reasons = tuple(sorted((+left_out).items(), key=lambda reason: (-reason[1], reason[0])))
    if not items:
        why = (
            "; ".join(f"{number} {reason}" for reason, number in reasons)
            or "its tokenizer cuts the words of this task in no usable way"
        )
        raise NoPairError(f"no pair of {title} is left for {known.name}: {why}")
    return Task(title, tuple(items), reasons, about)


def _judged(
    model: Any, candidates: Iterator[Candidate], count: int, progress: Progress
) -> tuple[list[Item], Counter[str]]:
    """The first `count` good items, and the reasons of those that were passed over on the way."""
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    while len(items) < count and (batch := list(islice(candidates, min(_BATCH, count - len(items))))):
        for found in judge(model, batch):
            if isinstance(found, Item):
                items.append(found)
            else:
                left_out[found] += 1
        progress("pairs", len(items), count)
        if not items and left_out.total() >= _HOPELESS:
            break
    return items, left_out
