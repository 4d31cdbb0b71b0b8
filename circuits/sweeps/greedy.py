"""The mapping of every pair of a batch: totals, single effects, and each pair's own carriers.

1. All single effects are the branches of a trunk without taken heads, the total is the trunk with all of them taken (`branches`).
2. The greedy path is each pair's own, by the rule of `circuits.mapping`, and ends where the share is reached. A step is one growth
   of branches for all pairs that are still short of it.
3. Where branches do not fit into memory, the engine measures rows: at each step the pairs that have taken the same heads together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float

from circuits.engine import Runs
from circuits.engine.runs import Run
from circuits.heads import Head
from circuits.prompts import Noise
from circuits.sweeps.branches import branch_values, fits
from circuits.tracing.mapping import LEAST_TOTAL, WHOLE, all_heads, mapping_row
from circuits.tracing.records import Controls, Mapping, Step


@dataclass(frozen=True, slots=True)
class Found:
    """One pair's mapping; effects are in the order of heads, L0H0 first."""

    total: float
    restore: float
    effects: tuple[float, ...]
    path: tuple[Step, ...]  # the carriers, in the order in which they were found
    controls: Controls | None = None

    @property
    def modulation(self) -> float:
        return self.path[-1].joint / self.total if self.path else 0.0

    @classmethod
    def of(cls, mapping: Mapping, share: float) -> Found:
        """The same from a mapping that was measured by itself."""
        alone = {known.head: known.effect for known in mapping.heads}
        path = mapping.path[: len(mapping.carriers(share))]
        return cls(
            mapping.total,
            mapping.restore,
            tuple(alone[head] for head in sorted(alone)),
            path,
            mapping.controls,
        )


@torch.inference_mode()
def measure_pairs(runs: Runs, key: int, query: int, *, share: float) -> list[Found]:
    """What `measure_mapping` finds for each pair, up to the share."""
    heads = all_heads(runs)
    whole = mapping_row(heads, key, query)
    places = range(len(runs.pairs))
    effects = torch.tensor(
        _with_one_more(runs, places, [set() for _ in places], key, query), dtype=torch.float64
    )  # (pair, head)
    effects[_no_change(runs, key, query).cpu()] = 0.0
    totals, restored = (
        runs.effects([whole], direction=direction)[0].double().tolist() for direction in ("swap", "restore")
    )
    paths = _paths(runs, totals, effects.tolist(), key, query, share=share)
    return [
        Found(*values)
        for values in zip(totals, restored, map(tuple, effects.tolist()), map(tuple, paths), strict=True)
    ]


def only(runs: Runs, places: Sequence[int]) -> Runs:
    """The runs of some of the pairs."""
    if list(places) == list(range(len(runs.pairs))):
        return runs
    inputs = _inputs(runs)
    chosen = torch.tensor([at for place in places for at in inputs[place]], device=runs.clean.tokens.device)
    sides: dict[str, Run] = {
        "clean": _chosen(runs.clean, chosen),
        "counterfactual": _chosen(runs.counterfactual, chosen),
    }
    return replace(runs, pairs=tuple(runs.pairs[place] for place in places), **sides)


def _inputs(runs: Runs) -> list[range]:
    """Which inputs belong to each pair: one, or one a draw of noise."""
    found: list[range] = []
    for pair in runs.pairs:
        start = found[-1].stop if found else 0
        found.append(
            range(start, start + (pair.counterfactual.draws if isinstance(pair.counterfactual, Noise) else 1))
        )
    return found


def _chosen(stored: Any, inputs: torch.Tensor) -> Any:
    """A record of tensors whose first axis is the input, with these inputs alone."""
    if isinstance(stored, torch.Tensor):
        return stored[inputs]
    if isinstance(stored, tuple):
        return tuple(_chosen(part, inputs) for part in stored)
    if is_dataclass(stored) and not isinstance(stored, type):
        return replace(
            stored, **{field.name: _chosen(getattr(stored, field.name), inputs) for field in fields(stored)}
        )
    return stored


def _messages(
    runs: Runs, side: Run, key: int, query: int
) -> tuple[Float[torch.Tensor, "pair head"], torch.Tensor]:
    """The attention weight of every head (mean over draws) and its message (input, head, d_head)."""
    weight = torch.cat([layer.pattern[:, :, query, key] for layer in side.cache.layers], 1)
    value = torch.cat([layer.value[:, :, key] for layer in side.cache.layers], 1)
    return runs.mean_over_draws(weight), weight[..., None] * value


def _no_change(runs: Runs, key: int, query: int) -> Bool[torch.Tensor, "pair head"]:
    """Where the message is the same on both sides (a shut gate, a query before the difference): the effect is exactly 0."""
    changed = [_messages(runs, side, key, query)[1] for side in (runs.clean, runs.counterfactual)]
    same = (changed[0] == changed[1]).all(-1)
    return torch.stack([same[list(inputs)].all(0) for inputs in _inputs(runs)])


def _paths(
    runs: Runs,
    totals: Sequence[float],
    effects: Sequence[Sequence[float]],
    key: int,
    query: int,
    *,
    share: float,
) -> list[list[Step]]:
    """Each step adds the head that raises the pair's joint effect most, until the share is reached or no head helps."""
    heads = all_heads(runs)
    left = _candidates(runs, effects, key, query)
    goals = [min(share, WHOLE) * total for total in totals]
    paths: list[list[Step]] = [[] for _ in totals]
    for place, alone in enumerate(effects):
        if totals[place] >= LEAST_TOTAL:
            best = max(range(len(heads)), key=lambda at, alone=alone: (alone[at], -at))
            paths[place].append(Step(heads[best], alone[best]))
            left[place].discard(heads[best])
    going = [
        place for place, path in enumerate(paths) if path and path[-1].joint < goals[place] and left[place]
    ]
    while going:
        taken = [{step.head for step in paths[place]} for place in going]
        joints = _with_one_more(runs, going, taken, key, query)
        stepped = [
            place
            for place, joint in zip(going, joints, strict=True)
            if _step(paths[place], left[place], heads, joint)
        ]
        going = [place for place in stepped if paths[place][-1].joint < goals[place] and left[place]]
    return paths


def _step(path: list[Step], left: set[Head], heads: Sequence[Head], joint: Sequence[float]) -> bool:
    """Add the head that raises the joint effect most; tells whether any does."""
    best = max((at for at, head in enumerate(heads) if head in left), key=lambda at: (joint[at], -at))
    if joint[best] <= path[-1].joint:
        return False
    path.append(Step(heads[best], joint[best]))
    left.remove(heads[best])
    return True


def _candidates(runs: Runs, effects: Sequence[Sequence[float]], key: int, query: int) -> list[set[Head]]:
    """The heads of each pair that have any message; the others never join."""
    weights = [_messages(runs, side, key, query)[0] for side in (runs.clean, runs.counterfactual)]
    reads = ((weights[0] > 0) | (weights[0] != weights[1])).tolist()
    heads = all_heads(runs)
    return [
        {head for head, effect, weighs in zip(heads, alone, mine, strict=True) if effect != 0 or weighs}
        for alone, mine in zip(effects, reads, strict=True)
    ]


def _with_one_more(
    runs: Runs, places: Sequence[int], taken: Sequence[set[Head]], key: int, query: int
) -> list[list[float]]:
    """For each of these pairs the joint effect of its taken heads together with each head, in the order of heads."""
    inputs = _inputs(runs)
    most = fits(runs, query) // max(len(inputs[place]) for place in places)
    if most == 0:
        return _by_rows(runs, places, taken, key, query)
    found: list[list[float]] = []
    for start in range(0, len(places), most):
        part = only(runs, places[start : start + most])
        found += _by_branches(part, taken[start : start + most], key, query)
    return found


def _by_branches(runs: Runs, taken: Sequence[set[Head]], key: int, query: int) -> list[list[float]]:
    heads = all_heads(runs)
    rows = [
        [head in mine for head in heads]
        for mine, inputs in zip(taken, _inputs(runs), strict=True)
        for _ in inputs
    ]
    mask = torch.tensor(rows, device=runs.clean.tokens.device).unflatten(
        1, (runs.model.n_layers, runs.model.n_heads)
    )
    values = runs.mean_over_draws(branch_values(runs, mask, key, query)[:, 1:])
    return ((runs.values(runs.clean)[:, None] - values) / runs.gap[:, None]).double().tolist()


def _by_rows(
    runs: Runs, places: Sequence[int], taken: Sequence[set[Head]], key: int, query: int
) -> list[list[float]]:
    heads = all_heads(runs)
    grouped: dict[frozenset[Head], list[int]] = defaultdict(list)
    for at, mine in enumerate(taken):
        grouped[frozenset(mine)].append(at)
    found: list[list[float]] = [[] for _ in places]
    for mine, members in grouped.items():
        rows = [mapping_row([*mine, head] if head not in mine else [*mine], key, query) for head in heads]
        joints = only(runs, [places[at] for at in members]).effects(rows).double().T.tolist()
        for at, joint in zip(members, joints, strict=True):
            found[at] = joint
    return found
