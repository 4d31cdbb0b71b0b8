"""Which heads carry key → query: total, single effects, the greedy path of carriers, loadings, and the controls.

1. The total is the effect of all L·H edges of the mapping in one run.
2. Each head alone is measured in both directions, `swap` and `restore`; its loading stands beside it.
3. Carriers are found by greedy forward selection on the joint effect of one run, from the strongest head on, until all of the
   total is reached or no further head helps. The whole path is kept, so any share can be read off it.
4. Controls: as many random heads, every other key, keeping the carriers only, and clean patched into clean.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float

from circuits.engine import Row, Runs
from circuits.engine.cache import Cache
from circuits.engine.linear import loadings
from circuits.heads import Edge, Head
from circuits.links import Progress, silent
from circuits.tracing.records import SHARE, Controls, HeadEffect, Mapping, Step

LEAST_TOTAL: Final = 0.01  # below this a mapping carries nothing, and has no carriers
WHOLE: Final = 0.995  # the greedy path ends when it has this share of the total
DRAWS: Final = 100


def all_heads(runs: Runs) -> tuple[Head, ...]:
    return tuple(
        Head(layer, head) for layer in range(runs.model.n_layers) for head in range(runs.model.n_heads)
    )


def mapping_row(heads: Sequence[Head], key: int, query: int) -> Row:
    """These heads' messages from key to query, together."""
    return Row.of_edges(Edge(head, key, query) for head in heads)


def totals(runs: Runs, places: Sequence[tuple[int, int]], *, progress: Progress = silent) -> list[float]:
    """The total of each (key, query)."""
    heads, found = all_heads(runs), []
    for start in range(0, len(places), 64):
        part = places[start : start + 64]
        found += _means(runs.effects([mapping_row(heads, key, query) for key, query in part]))
        progress("totals", len(found), len(places))
    return found


def measure_mapping(
    runs: Runs,
    key: int,
    query: int,
    *,
    share: float = SHARE,
    controls: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Mapping:
    """Everything about one mapping."""
    heads = all_heads(runs)
    whole = mapping_row(heads, key, query)
    total, restore = (
        _means(runs.effects([whole], direction=direction))[0] for direction in ("swap", "restore")
    )
    measured = _head_effects(runs, heads, key, query)
    path = _greedy(runs, measured, total, key, query, progress) if total >= LEAST_TOTAL else ()
    found = Mapping(key, query, total, restore, measured, path)
    if not controls:
        return found
    return Mapping(key, query, total, restore, measured, path, _controls(runs, found, share, seed))


def _means(effects: Float[torch.Tensor, "row pair"]) -> list[float]:
    return effects.double().mean(1).tolist()


def _head_effects(runs: Runs, heads: Sequence[Head], key: int, query: int) -> tuple[HeadEffect, ...]:
    rows = [mapping_row([head], key, query) for head in heads]
    swap, restore = (_means(runs.effects(rows, direction=direction)) for direction in ("swap", "restore"))
    loading = (
        [0.0] * len(heads) if runs.layout is None else loadings(runs)[:, :, query, key].flatten().tolist()
    )
    weights = [_weights(side, query, key) for side in (runs.clean.cache, runs.counterfactual.cache)]
    found = (HeadEffect(*values) for values in zip(heads, swap, restore, loading, *weights, strict=True))
    return tuple(sorted(found, key=lambda known: (-known.effect, known.head)))


def _weights(cache: Cache, query: int, key: int) -> list[float]:
    return [weight for layer in cache.layers for weight in layer.pattern[:, :, query, key].mean(0).tolist()]


def _greedy(
    runs: Runs, measured: Sequence[HeadEffect], total: float, key: int, query: int, progress: Progress
) -> tuple[Step, ...]:
    """Each step adds the head that raises the joint effect most. Heads with no message at all never join."""
    left = [
        known.head
        for known in measured
        if known.effect != 0 or known.weight != known.counterfactual_weight or known.weight > 0
    ]
    path = [Step(measured[0].head, measured[0].effect)]
    left.remove(path[0].head)
    while left and path[-1].joint < WHOLE * total:
        taken = [step.head for step in path]
        joint = _means(runs.effects([mapping_row([*taken, head], key, query) for head in left]))
        best = max(range(len(left)), key=lambda index: (joint[index], -left[index].layer, -left[index].index))
        if joint[best] <= path[-1].joint:
            break
        path.append(Step(left.pop(best), joint[best]))
        progress("carriers", min(99, int(100 * path[-1].joint / total)), 100)
    return tuple(path)


def _controls(runs: Runs, found: Mapping, share: float, seed: int) -> Controls:
    heads, carriers = all_heads(runs), found.carriers(share)
    draw = random.Random(f"random heads/{seed}")
    drawn = (
        [mapping_row(draw.sample(heads, len(carriers)), found.key, found.query) for _ in range(DRAWS)]
        if carriers
        else []
    )
    others = [head for head in heads if head not in carriers]
    rest = [mapping_row(others, found.key, found.query)]
    effects = _means(
        runs.effects(
            [*drawn, *rest, *(mapping_row(heads, key, found.query) for key in range(found.query + 1))]
        )
    )
    chance = sorted(effects[: len(drawn)])
    left = 1 - effects[len(drawn)] / found.total if carriers else 0.0
    return Controls(
        random_mean=sum(chance) / len(chance) if chance else 0.0,
        random_p95=chance[int(0.95 * (len(chance) - 1))] if chance else 0.0,
        random_draws=len(drawn),
        key_totals=tuple(effects[len(drawn) + 1 :]),
        sufficiency=left,
        identity=runs.identity(mapping_row(heads, found.key, found.query)),
        share=share,
    )
