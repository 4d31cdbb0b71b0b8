"""The three sides of a head on an edge: where it looks (query and key) and what it moves (value).

1. The effect of a side: it alone is read from the counterfactual stream, the other two stay clean. The query
   side changes the head's whole row at the query; key and value are those of the one key.
2. Where and what: the message with the counterfactual's weight and the clean value (the pattern alone), and
   with the clean weight and the counterfactual's value, which is the value side. Both together are the edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from circuits.components import ALL, SIDES, Reader, Side, Wire
from circuits.engine import Row, Runs
from circuits.engine.rows import Change, Given
from circuits.engine.wires import wire_effects
from circuits.heads import Head
from circuits.tracing.records import SideEffects


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
