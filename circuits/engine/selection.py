"""Greedy selection: which heads carry a mapping key → query, in the order in which they add most.

1. Each step adds the head that raises the joint effect of the heads chosen so far most. Every candidate is
   measured by a row in which the chosen heads' messages and its own are all replaced.
2. Two joint effects that differ by no more than `ROUNDING` count as equal, since that much may depend on
   threads and batches; of equal heads the lower one is taken. So a head that adds no more than that does not
   help, and a share is reached if no more than that is missing.
3. A head without any message is never tried. Where no head helps by itself, the path is empty, however large
   the total.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Bool, Float

from circuits.components import ROUNDING, Edge, Head
from circuits.engine.rows import Direction, Row
from circuits.engine.runs import Runs

# A path ends when it has this share of the total, whatever share is wanted.
WHOLE: Final = 0.995
LEAST_TOTAL: Final = 0.01  # a mapping with a smaller total carries nothing and has no carriers
# Heads in the order of selection, each with the joint effect up to it.
Path = list[tuple[Head, float]]


@dataclass(frozen=True)
class Mapped:
    """Pairs that ran together, and the key and query of a mapping in them. A family whose prompts differ in
    length has several of these for one mapping."""

    runs: Runs
    key: int
    query: int

    def row(self, heads: Sequence[Head]) -> Row:
        """These heads' messages from key to query, together."""
        return mapping_row(heads, self.key, self.query)


def mapping_row(heads: Sequence[Head], key: int, query: int) -> Row:
    """These heads' messages from key to query, together."""
    return Row.of_edges(Edge(head, key, query) for head in heads)


def mapping_rows(heads: Sequence[Head], key: int, query: int) -> list[Row]:
    """Each head's message from key to query alone, and last all of them together."""
    rows = [mapping_row([head], key, query) for head in heads]
    return [*rows, mapping_row(heads, key, query)]


def effects_over(
    parts: Sequence[Mapped],
    sets: Sequence[Sequence[Head]],
    *,
    direction: Direction | None = None,
) -> Float[torch.Tensor, "set pair"]:
    """The joint effect of each set of heads on the mapping, on the pairs of all parts."""
    effects = []
    for part in parts:
        rows = [part.row(heads) for heads in sets]
        effects.append(part.runs.effects(rows, direction=direction))
    return torch.cat(effects, 1)


def select_over(
    parts: Sequence[Mapped],
    *,
    effects: Float[torch.Tensor, "head pair"],
    totals: Float[torch.Tensor, " pair"],
    share: float = 1.0,
    among: Collection[Head] | None = None,
    progress: Callable[[float], None] = lambda reached: None,
) -> Path:
    """One path for the pairs of all parts, chosen by the mean over pairs. It ends when it reaches `share` of
    the total or when no head helps.

    `effects` are those of the single heads, `totals` those of all heads together; both were measured before.
    Heads that are not `among` these are not tried. `progress` is called with the share that is reached.
    """
    single = effects.double().cpu()
    total = float(totals.double().mean())
    if total < LEAST_TOTAL:
        return []
    candidates = (single != 0).any(1)
    for part in parts:
        candidates |= _has_message(part)
    heads = parts[0].runs.heads
    if among is not None:
        candidates &= torch.tensor([head in among for head in heads])
    goal = min(share, WHOLE) * total - ROUNDING

    def joint(sets: Sequence[Sequence[Head]]) -> Float[torch.Tensor, " set"]:
        return effects_over(parts, sets).double().mean(1).cpu()

    return _path(joint, heads, single.mean(1), candidates, goal, total, progress)


def select(
    runs: Runs,
    key: int,
    query: int,
    *,
    effects: Float[torch.Tensor, "head pair"],
    totals: Float[torch.Tensor, " pair"],
    share: float = 1.0,
    among: Collection[Head] | None = None,
) -> list[Path]:
    """One path for each pair alone; else as `select_over`."""
    paths = []
    for pair in range(len(runs.pairs)):
        part = Mapped(runs.only([pair]), key, query)
        paths.append(
            select_over(
                [part],
                effects=effects[:, [pair]],
                totals=totals[[pair]],
                share=share,
                among=among,
            )
        )
    return paths


def _has_message(part: Mapped) -> Bool[torch.Tensor, " head"]:
    """Heads with any message: a weight above zero in the clean run, or another one in the counterfactual."""
    runs = part.runs
    clean = runs.mean_over_draws(runs.clean.cache.weights_on_edge(part.key, part.query))
    other = runs.mean_over_draws(
        runs.counterfactual.cache.weights_on_edge(part.key, part.query)
    )
    has_message = (clean > 0) | (clean != other)  # (pair, head)
    return has_message.any(0).cpu()


def _path(
    joint_of: Callable[[Sequence[Sequence[Head]]], Float[torch.Tensor, " set"]],
    heads: Sequence[Head],
    single: Float[torch.Tensor, " head"],
    candidates: Bool[torch.Tensor, " head"],
    goal: float,
    total: float,
    progress: Callable[[float], None],
) -> Path:
    """Add the best of the candidates until the goal is reached or none helps. `single` are the effects of each
    head alone, with which the first step chooses; `joint_of` measures sets of heads together."""
    path: Path = []
    reached = 0.0
    joint = single
    while reached < goal:
        best = best_candidate(joint, candidates, reached=reached)
        if best is None:
            break
        reached = float(joint[best])
        path.append((heads[best], reached))
        candidates[best] = False
        progress(reached / total)
        if reached < goal:
            chosen = [head for head, _ in path]
            numbers = candidates.nonzero().flatten().tolist()
            joint = torch.zeros(len(heads), dtype=torch.float64)
            if numbers:
                joint[numbers] = joint_of([[*chosen, heads[number]] for number in numbers])
    return path


def best_candidate(
    joint: Float[torch.Tensor, " head"],
    candidates: Bool[torch.Tensor, " head"],
    *,
    reached: float,
) -> int | None:
    """The candidate with the largest joint effect, of equal ones the lowest; None where no candidate raises
    the effect reached so far."""
    allowed = torch.where(candidates, joint, -torch.inf)
    best = int((allowed >= allowed.max() - ROUNDING).nonzero()[0])
    return best if float(allowed[best]) > reached + ROUNDING else None
