"""Rows in batches: those that share their first position, as many at a time as the budget holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float

from circuits.engine.cache import Cache, Replacement
from circuits.engine.forward import RowForward
from circuits.engine.layout import Layout
from circuits.engine.memory import stream_bytes, streams_at_once
from circuits.engine.rows import Row


def run_rows(
    layout: Layout,
    base: Cache,
    new: Replacement,
    rows: Sequence[Row],
    *,
    budget: int,
    read: int = 1,
    knockout: bool = False,
    layers: int | None = None,
) -> Float[torch.Tensor, "input row read d_model"]:
    """The stream above the last block, at the last `read` positions, of every row on top of a base run; or the
    stream above the first `layers` blocks, which alone are run."""
    blocks = layout.on_prompt(base.final)
    if layers is not None:
        blocks = blocks[:layers]
        base = Cache(base.layers[:layers], base.pre(layers))
    inputs, _, width = base.final.shape
    top = base.final.new_empty(inputs, len(rows), read, width)
    for start, numbers in _batches(layout, base, rows, budget):
        forward = RowForward(
            blocks,
            base,
            [rows[number] for number in numbers],
            new,
            start=start,
            read=read,
            budget=budget,
            knockout=knockout,
        )
        top[:, numbers] = forward.top()
    return top


def _batches(
    layout: Layout, base: Cache, rows: Sequence[Row], budget: int
) -> Iterator[tuple[int, list[int]]]:
    """Rows that start at the same position, in the order of the layers in which they join, as many at a time
    as the budget holds."""
    inputs, length, width = base.final.shape
    by_start: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_start[row.first_position].append(number)
    for start, numbers in by_start.items():
        stream = stream_bytes(
            d_model=width, heads=layout.heads, length=length, positions=length - start
        )
        step = streams_at_once(budget, inputs * stream)
        numbers.sort(key=lambda number: rows[number].first_layer)
        for first in range(0, len(numbers), step):
            yield start, numbers[first : first + step]
