"""Carriers hang on no setting of a run: 200 questions, with one thread and two, small chunks and large, one
pair at a time and eight.

Each setting is a process of its own, since threads are set when one starts. The questions are pairs of the
tasks, on the mapping from the first position where a pair differs to the last. Printed: in how many questions
the carriers of 80% differ from those of the first setting, and by how much any joint effect does.

`python benchmarks/same_answer.py [model] [count]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import circuits
from circuits.engine import prepare
from circuits.engine.runs import every_head
from circuits.engine.selection import mapping_rows, select
from circuits.errors import CircuitsError
from circuits.models.model import Model
from circuits.prompts import Pair
from circuits.tasks import TASKS
from circuits.tasks.task import to_task

SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Setting:
    """How a question is run."""

    threads: int
    megabytes: int  # of rows under way at once
    batch: int  # pairs that are run together


def questions(model: Model, count: int) -> list[Pair]:
    """So many pairs, as many of each task as it has."""
    pairs: list[Pair] = []
    for task in TASKS:
        try:
            pairs += to_task(model, task, count=-(-count // len(TASKS))).pairs
        except CircuitsError:  # a model that cannot do it
            continue
    return pairs[:count]


def paths_of(
    model: Model, pairs: Sequence[Pair], setting: Setting
) -> list[list[tuple[str, float]]]:
    """The path of every question, in the order of the questions."""
    shapes: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        shapes[
            len(pair), pair.differs_at[0], pair.metric.kind, pair.metric.positions_read
        ].append(number)
    paths: dict[int, list[tuple[str, float]]] = {}
    for (length, key, *_), alike in shapes.items():
        for start in range(0, len(alike), setting.batch):
            numbers = alike[start : start + setting.batch]
            rows = mapping_rows(every_head(model), key, length - 1)
            budget = setting.megabytes * 2**20
            runs = prepare(model, [pairs[number] for number in numbers], budget=budget)
            effects = runs.effects(rows)
            found = select(
                runs, key, length - 1, effects=effects[:-1], totals=effects[-1], share=SHARE
            )
            for number, path in zip(numbers, found, strict=True):
                paths[number] = [(str(head), joint) for head, joint in path]
    return [paths[number] for number in range(len(pairs))]


def measure(name: str, count: int, setting: Setting) -> list[list[tuple[str, float]]]:
    """The paths of one setting, from a process of its own."""
    told = [sys.executable, __file__, "--one", name, str(count), json.dumps(asdict(setting))]
    # Two threads on a busy machine would wait for each other at work.
    waiting = {"OMP_WAIT_POLICY": "PASSIVE"}
    environment = os.environ | waiting | {"OMP_NUM_THREADS": str(setting.threads)}
    ran = subprocess.run(told, stdout=subprocess.PIPE, env=environment, check=True)
    return json.loads(ran.stdout)


def main(name: str = "mini", count: str = "200") -> None:
    settings = [Setting(*each) for each in product((1, 2), (4, 64), (1, 8))]
    first = measure(name, int(count), settings[0])
    print(f"{name}, {len(first)} questions, carriers of {SHARE:.0%}, beside {settings[0]}")
    for setting in settings[1:]:
        other = measure(name, int(count), setting)
        pairs = list(zip(first, other, strict=True))
        differing = sum(
            [head for head, _ in one] != [head for head, _ in two] for one, two in pairs
        )
        steps = [(a, b) for one, two in pairs for (_, a), (_, b) in zip(one, two, strict=False)]
        apart = max(abs(a - b) for a, b in steps)
        print(f"{setting}: {differing} differ, joint effects by up to {apart:.1e}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        model = circuits.load(sys.argv[2])
        asked = questions(model, int(sys.argv[3]))
        print(json.dumps(paths_of(model, asked, Setting(**json.loads(sys.argv[4])))))
    else:
        main(*sys.argv[1:])
