"""Greedy forward selection: each step adds the head that raises the joint effect of key → query most.

1. The trunk of an input is its clean run in which the messages of the heads taken so far are the
   counterfactual's. What one head more would do is a row on top of the trunk; all of them climb behind it, so
   a step costs one run and half of the rows' layers.
2. Every pair has a path of its own, or all pairs share one (`together`), chosen by the mean over them.
3. Of equal heads the lower one is taken: equal are joint effects within the rounding that the engine keeps
   to, whatever threads, batch and chunks it runs with (`ROUNDING`). So a head that adds no more than that
   does not help, and a share is reached if that much is missing. A head without any message never joins.
4. Where no head helps by itself the path is empty, however large the total.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import torch
from jaxtyping import Bool, Float

from circuits.components import ROUNDING, Edge, Head
from circuits.engine.climb import Taken, WholeRun
from circuits.engine.fast import carry
from circuits.engine.rows import Cache, NewValues, Row
from circuits.engine.runs import Runs

WHOLE: Final = 0.995  # a path ends when it has this share of the total, whatever share is wanted
LEAST_TOTAL: Final = 0.01  # below this a mapping carries nothing, and has no carriers
Path = list[
    tuple[Head, float]
]  # heads in the order in which they were added, each with the joint effect up to it


def mapping_row(heads: Sequence[Head], key: int, query: int) -> Row:
    """These heads' messages from key to query, together."""
    return Row.of_edges(Edge(head, key, query) for head in heads)


def mapping_rows(heads: Sequence[Head], key: int, query: int) -> list[Row]:
    """Each head's message from key to query alone, and last all of them together: where a trace begins."""
    return [*(mapping_row([head], key, query) for head in heads), mapping_row(heads, key, query)]


@torch.inference_mode()
def select(
    runs: Runs,
    key: int,
    query: int,
    *,
    effects: Float[torch.Tensor, "head pair"],
    totals: Float[torch.Tensor, " pair"],
    share: float = 1.0,
    together: bool = False,
    among: Collection[Head] | None = None,
    progress: Callable[[float], None] = lambda reached: None,
) -> list[Path]:
    """One path a pair, or one for all together, until `share` of the total is reached or no head helps.

    `effects` are those of the single heads, `totals` those of all heads; both are measured beforehand. Heads
    that are not `among` these are not tried.
    """
    count = len(runs.pairs)
    groups = [list(range(count))] if together else [[pair] for pair in range(count)]
    mean = torch.zeros(len(groups), count, dtype=torch.float64)
    for number, members in enumerate(groups):
        mean[number, members] = 1 / len(members)
    heads, reads = runs.heads, _reads(runs, key, query).T.cpu()  # (head, pair)
    single, total = effects.double().cpu() @ mean.T, (mean @ totals.double().cpu()).tolist()
    left = ((effects.cpu() != 0) | reads).double() @ mean.T > 0  # (head, group)
    if among is not None:
        left &= torch.tensor([head in among for head in heads])[:, None]
    goals = [min(share, WHOLE) * each - ROUNDING for each in total]
    paths: list[Path] = [[] for _ in groups]
    going = [n for n, each in enumerate(total) if each >= LEAST_TOTAL and bool(left[:, n].any())]
    joint = single
    while going:
        for number in going:
            _step(paths[number], joint[:, number], left[:, number], heads)
        if together and paths[0]:
            progress(paths[0][-1][1] / total[0])
        going = [n for n in going if bool(left[:, n].any()) and paths[n][-1][1] < goals[n]]
        if going:
            joint = _with_one_more(runs, key, query, paths, left, groups, going) @ mean.T
    return paths


def _step(
    path: Path, joint: Float[torch.Tensor, " head"], left: Bool[torch.Tensor, " head"], heads: Sequence[Head]
) -> None:
    """Add the head that raises the joint effect most, of equal ones the lowest; where none does, nothing is
    left."""
    open_to, reached = torch.where(left, joint, -torch.inf), path[-1][1] if path else 0.0
    best = int((open_to >= open_to.max() - ROUNDING).nonzero()[0])
    if float(joint[best]) <= reached + ROUNDING:
        left[:] = False
        return
    path.append((heads[best], float(joint[best])))
    left[best] = False


def _reads(runs: Runs, key: int, query: int) -> Bool[torch.Tensor, "pair head"]:
    """Whether a head has any message: a weight above zero in the clean run, or another one in the
    counterfactual."""

    def weights(cache: Cache) -> torch.Tensor:
        return runs.mean_over_draws(torch.cat([layer.pattern[:, :, query, key] for layer in cache.layers], 1))

    clean, other = weights(runs.clean.cache), weights(runs.counterfactual.cache)
    return (clean > 0) | (clean != other)


def _with_one_more(
    runs: Runs,
    key: int,
    query: int,
    paths: Sequence[Path],
    left: Bool[torch.Tensor, "head group"],
    groups: Sequence[Sequence[int]],
    going: Sequence[int],
) -> Float[torch.Tensor, "head pair"]:
    """The joint effect of each pair's heads together with each head that is left in any of the groups still
    going."""
    pairs = [pair for number in going for pair in groups[number]]
    taken = [{head for head, _ in paths[number]} for number in going for _ in groups[number]]
    heads = [
        head for head, wanted in zip(runs.heads, left[:, list(going)].any(1).tolist(), strict=True) if wanted
    ]
    part = runs.only(pairs)
    # In a long prompt a trunk of its own costs more, time and memory, than the layers that rows share.
    by_trunk = part.layout is not None and not part.absent and part.keeps_patterns
    values = (_behind_trunk if by_trunk else _by_rows)(part, taken, heads, key, query)
    joint = torch.zeros(len(runs.heads), len(runs.pairs), dtype=torch.float64)
    numbers = [head.layer * runs.model.n_heads + head.index for head in heads]
    joint[torch.tensor(numbers)[:, None], torch.tensor(pairs)] = values.double().cpu()
    return joint


def _behind_trunk(
    runs: Runs, taken: Sequence[set[Head]], heads: Sequence[Head], key: int, query: int
) -> Float[torch.Tensor, "head pair"]:
    """By the fast path: rows of one head each, behind the run in which each pair's own heads are taken."""
    assert runs.layout is not None
    mask = torch.tensor([[head in own for head in runs.heads] for own in runs.per_input(taken)])
    mask = mask.unflatten(1, (runs.model.n_layers, runs.model.n_heads)).to(runs.model.device)
    clean, other = runs.clean.cache, runs.counterfactual.cache
    trunk = Cache((), clean.layers[0].pre)
    tail, taken_now = runs.metric.tail, Taken(mask, key, query, other)
    run = WholeRun(runs.layout, trunk, start=query, ahead=clean, taken=taken_now, tail=tail)
    rows = [mapping_row([head], key, query) for head in heads]
    how = {"budget": runs.budget, "behind": [run], "taken": taken_now, "tail": tail}
    top = carry(runs.layout, trunk, NewValues(other), rows, **how)
    values = runs.mean_over_draws(runs.read_stream(top))  # (pair, head)
    return ((runs.values(runs.clean)[:, None] - values) / runs.gap[:, None]).T


def _by_rows(
    runs: Runs, taken: Sequence[set[Head]], heads: Sequence[Head], key: int, query: int
) -> Float[torch.Tensor, "head pair"]:
    """By rows that hold all of a pair's heads: pairs that have taken the same are measured together."""
    values = torch.zeros(len(heads), len(runs.pairs))
    for own in {frozenset(each) for each in taken}:
        members = [pair for pair, each in enumerate(taken) if each == own]
        rows = [mapping_row([*own, head], key, query) for head in heads]
        values[:, members] = runs.only(members).effects(rows).float().cpu()
    return values
