"""Which heads carry key → query: total, single effects, the greedy path of carriers, loadings, controls.

1. The total is the effect of all L·H edges of the mapping in one run.
2. Each head alone is measured in both directions, `swap` and `restore`; its loading stands beside it.
3. Carriers are found by greedy forward selection (`engine.select`) until all of the total is reached or no
   further head helps. The whole path is kept, so any share can be read off it.
4. The three sides of every carrier are measured (`sides`).
5. Controls: as many random heads, every other key, keeping the carriers only, and clean patched into clean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import torch
from jaxtyping import Float

from circuits.engine import Direction, Row, Runs
from circuits.engine.loadings import loadings_of
from circuits.engine.select import mapping_row, mapping_rows, select
from circuits.links import Progress, silent
from circuits.tracing.records import SHARE, Controls, HeadEffect, Mapping, Step
from circuits.tracing.sides import side_effects

T = TypeVar("T")
DRAWS: Final = 100
ROWS: Final = 64  # that are measured between two words on progress
_BOTH: Final[tuple[Direction, Direction]] = ("swap", "restore")


def totals(runs: Runs, ends: Sequence[tuple[int, int]], *, progress: Progress = silent) -> list[float]:
    """The total of each (key, query)."""
    return measured_in_parts(runs, ends, lambda end: mapping_row(runs.heads, *end), "totals", progress)


def measured_in_parts(
    runs: Runs, asked: Sequence[T], to_row: Callable[[T], Row], stage: str, progress: Progress
) -> list[float]:
    """The effect of the row of each thing asked for, averaged over the pairs; after every part it is told how
    far this is."""
    measured: list[float] = []
    for start in range(0, len(asked), ROWS):
        measured += _means(runs.effects([to_row(each) for each in asked[start : start + ROWS]]))
        progress(stage, len(measured), len(asked))
    return measured


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
    """Everything about one mapping, averaged over the pairs of `runs`."""
    rows = mapping_rows(runs.heads, key, query)
    swap, restore = (runs.effects(rows, direction=direction) for direction in _BOTH)

    def note(reached: float) -> None:
        progress("carriers", min(99, int(100 * reached)), 100)

    (path,) = select(runs, key, query, effects=swap[:-1], totals=swap[-1], together=True, progress=note)
    *singles, (total, restored) = zip(_means(swap), _means(restore), strict=True)
    heads, steps = _head_effects(runs, singles, key, query), tuple(Step(*step) for step in path)
    mapping = Mapping(key, query, total, restored, heads, steps)
    if not controls:
        return mapping
    sides = () if runs.absent else side_effects(runs, mapping.carriers(share), key, query)
    return replace(mapping, controls=_controls(runs, mapping, share, seed), sides=sides)


def _means(effects: Float[torch.Tensor, "row pair"]) -> list[float]:
    return effects.double().mean(1).tolist()


def _head_effects(
    runs: Runs, singles: Sequence[tuple[float, float]], key: int, query: int
) -> tuple[HeadEffect, ...]:
    """What each head does, given its effects in both directions; strongest first."""
    linear_shares: list[float] | list[None] = [None] * len(singles)
    if runs.layout is not None:
        linear_shares = loadings_of(runs, key, query).flatten().tolist()
    layers = [side.cache.layers for side in (runs.clean, runs.counterfactual)]
    weights = [torch.cat([layer.pattern[:, :, query, key].mean(0) for layer in side]) for side in layers]
    each = zip(runs.heads, singles, linear_shares, *(side.tolist() for side in weights), strict=True)
    effects = [HeadEffect(head, *both, *rest) for head, both, *rest in each]  # loading, then both weights
    return tuple(sorted(effects, key=lambda effect: (-round(effect.effect, 5), effect.head)))


def _controls(runs: Runs, mapping: Mapping, share: float, seed: int) -> Controls:
    heads, carriers, ends = runs.heads, mapping.carriers(share), (mapping.key, mapping.query)
    draw = random.Random(f"random heads/{seed}")
    draws = DRAWS if carriers else 0
    rows = [mapping_row(draw.sample(heads, len(carriers)), *ends) for _ in range(draws)]
    rows.append(mapping_row([head for head in heads if head not in carriers], *ends))
    rows += [mapping_row(heads, key, mapping.query) for key in range(mapping.query + 1)]
    effects = _means(runs.effects(rows))
    chance, rest, key_totals = sorted(effects[:draws]), effects[draws], effects[draws + 1 :]
    return Controls(
        random_mean=sum(chance) / draws if draws else 0.0,
        random_p95=chance[int(0.95 * (draws - 1))] if draws else 0.0,
        random_draws=draws,
        key_totals=tuple(key_totals),
        sufficiency=1 - rest / mapping.total if carriers else 0.0,
        identity=runs.identity(mapping_row(heads, *ends)),
        share=share,
    )
