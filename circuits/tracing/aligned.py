"""Positions that all prompts of a circuit share, and rows measured there.

1. Prompts of one length whose named positions are the same share every position, by index.
2. Others share the positions that have the same name in all of them: those that the user named by roles, and
   those at the same distance after a named one (`S2+1`), up to the next.
3. Shared positions are numbered in the order of the first prompt. Each batch knows where its prompts have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from circuits.engine import Row, Runs
from circuits.engine.selection import Mapped
from circuits.errors import PromptError
from circuits.results import Progress
from circuits.tracing.asked import names_of_positions
from circuits.tracing.parts import SHORT, Roles

T = TypeVar("T")
ROWS_AT_ONCE = 64  # rows measured between two reports of progress
FIRST_ROWS_OF_LONG = (
    4  # the first rows of a long prompt, so that the remaining time is soon known
)


@dataclass(frozen=True)
class Aligned:
    """Pairs of one length that ran together, and where they have the shared positions."""

    runs: Runs
    places: tuple[int, ...]  # of each shared position

    @classmethod
    def whole(cls, runs: Runs) -> Aligned:
        """The only runs that there are: every position is shared."""
        return cls(runs, tuple(range(runs.length)))

    def at(self, shared: Sequence[int]) -> tuple[int, ...]:
        """Where these prompts have some of the shared positions."""
        return tuple(self.places[number] for number in shared)


def shared_places(prompts: Sequence[tuple[int, Roles]]) -> list[tuple[int, ...]]:
    """For each prompt, given by its length and roles, where it has the positions that all of them share."""
    if len(set(prompts)) == 1:
        return [tuple(range(length)) for length, _ in prompts]
    lengths = sorted({length for length, _ in prompts})
    if not all(roles for _, roles in prompts):
        raise PromptError(
            f"these prompts have {', '.join(map(str, lengths))} tokens; name the positions that they share "
            "by roles=, such as {'S2': 'Ben', 'END': -1}, or a roles in every line"
        )
    named: list[dict[str, int]] = []  # for each prompt the position of every name
    for length, roles in prompts:
        names = names_of_positions(roles, length)
        named.append({name: position for position, name in enumerate(names)})
    shared = list(named[0])
    for other in named[1:]:
        shared = [name for name in shared if name in other]
    if not shared:
        raise PromptError(
            "these prompts share no named position; give all of them the same roles"
        )
    places = []
    for position_of in named:
        places.append(tuple(position_of[name] for name in shared))
    return places


def mapped(parts: Sequence[Aligned], key: int, query: int) -> list[Mapped]:
    """The mapping between two shared positions, in every part."""
    return [Mapped(part.runs, part.places[key], part.places[query]) for part in parts]


def effects_at(
    parts: Sequence[Aligned],
    things: Sequence[T],
    to_row: Callable[[Aligned, T], Row],
    stage: str,
    progress: Progress,
) -> list[float]:
    """The effect of the row of each thing, averaged over all pairs; progress is reported after every part of
    the things."""
    measured: list[float] = []
    is_long = any(part.runs.length > SHORT for part in parts)
    size = FIRST_ROWS_OF_LONG if is_long else ROWS_AT_ONCE
    while len(measured) < len(things):
        some = things[len(measured) : len(measured) + size]
        effects = []
        for part in parts:
            effects.append(part.runs.effects([to_row(part, each) for each in some]))
        measured += torch.cat(effects, 1).double().mean(1).tolist()
        progress(stage, len(measured), len(things))
        size = ROWS_AT_ONCE
    return measured
