"""Which heads carry key → query: total, single effects, the greedy path of carriers, loadings, controls.

1. The total is the effect of all L·H edges of the mapping in one run.
2. Each head alone is measured in both directions, `swap` and `restore`; its loading stands beside it.
3. Carriers are found by greedy forward selection (`engine.select`) until all of the total is reached or no
   further head helps. The whole path is kept, so any share can be read off it.
4. The three sides of every carrier: the effect of a side is that of it alone read from the counterfactual
   stream, the other two staying clean. The query side changes the head's whole row at the query; key and
   value are those of the one key. Beside them the pattern alone: the message with the counterfactual's weight
   and the clean value.
5. Controls: as many random heads, every other key, keeping the carriers only, and clean patched into clean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import torch
from jaxtyping import Float

from circuits.components import ALL, SIDES, Head, Reader, Side, Wire
from circuits.engine import Direction, Row, Runs
from circuits.engine.loadings import loadings_of
from circuits.engine.rows import Change, Given
from circuits.engine.select import mapping_row, mapping_rows, select
from circuits.engine.wires import wire_effects
from circuits.links import Progress, Watch, silent, unwatched
from circuits.tracing import SHORT
from circuits.tracing.records import SHARE, Controls, HeadEffect, Mapping, SideEffects, Step

T = TypeVar("T")
DRAWS: Final = 100
ROWS: Final = 64  # that are measured between two words on progress
FIRST_ROWS: Final = 4  # of a long prompt, so that it is soon known how long all will take
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
    step = ROWS if runs.length <= SHORT else FIRST_ROWS
    while len(measured) < len(asked):
        part = asked[len(measured) : len(measured) + step]
        measured += _means(runs.effects([to_row(each) for each in part]))
        progress(stage, len(measured), len(asked))
        step = ROWS
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
    watch: Watch[Mapping] = unwatched,
) -> Mapping:
    """Everything about one mapping, averaged over the pairs of `runs`; `watch` is shown it as it grows."""
    rows = mapping_rows(runs.heads, key, query)
    swap, restore = (runs.effects(rows, direction=direction) for direction in _BOTH)
    *singles, (total, restored) = zip(_means(swap), _means(restore), strict=True)
    watch(Mapping(key, query, total, restored))

    def note(reached: float) -> None:
        progress("carriers", min(99, int(100 * reached)), 100)

    (path,) = select(runs, key, query, effects=swap[:-1], totals=swap[-1], together=True, progress=note)
    heads, steps = _head_effects(runs, singles, key, query), tuple(Step(*step) for step in path)
    mapping = Mapping(key, query, total, restored, heads, steps)
    if not controls:
        return mapping
    watch(mapping)
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


# Sides


def tells_sides(runs: Runs) -> bool:
    """Whether the sides of a head can be told apart: always on the fast path, on the plain one where edits of
    attention reach the logits."""
    return runs.layout is not None or runs.model.edits_attention


def side_wire(side: Side, head: Head, key: int | None, query: int) -> Wire:
    """The whole of one side, as a wire from everything below; without a key, all keys of the query."""
    reader = Reader(head.layer, side, head.index)
    return Wire(ALL, reader, query) if side == "query" else Wire(ALL, reader, key, query)


def side_effects(runs: Runs, heads: Sequence[Head], key: int, query: int) -> tuple[SideEffects, ...]:
    """The sides of each head on the edge key → query, averaged over the pairs."""
    if not heads or not tells_sides(runs):
        return ()
    wires = [side_wire(side, head, key, query) for head in heads for side in SIDES]
    effects, weights = wire_effects(runs, wires, watch=(key, query))
    by_side, looks = (values.mean(1).unflatten(0, (-1, 3)).T.tolist() for values in (effects, weights))
    patterns = pattern_effects(runs, heads, key, query)
    return tuple(map(SideEffects, heads, *by_side, patterns, *looks[:2]))


@torch.inference_mode()
def pattern_effects(runs: Runs, heads: Sequence[Head], key: int, query: int) -> list[float]:
    """The effect of each head's weight on the edge being the counterfactual's, its value being clean."""
    values, rows = [], []
    for number, head in enumerate(heads):
        clean, other = (side.cache.layers[head.layer] for side in (runs.clean, runs.counterfactual))
        weight = (side.pattern[:, head.index, query, key, None] for side in (clean, other))
        before, after = weight
        values.append(clean.z[:, query, head.index] + (after - before) * clean.value[:, head.index, key])
        rows.append(Row((Change(head.layer, query, "head", head.index, given=number),)))
    given: Given = {"head": torch.stack(values, 1)}
    return runs.effects(rows, given=given).double().mean(1).tolist()
