"""Which changes of a row can matter: those that reach what the metric reads, and that change anything at all.

A row without such changes is not run; its value is exactly that of the base run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool

from circuits.components import Head
from circuits.engine.cache import Cache, Replacement
from circuits.engine.rows import Change, ChangeTable, Row


@dataclass(frozen=True, slots=True)
class Reach:
    """What a change must pass on its way to the metric."""

    first_changed: int  # before this position the ablation's values are the base run's own
    first_read: int  # the first position at which the metric is read
    layers: int  # blocks below what the metric reads
    is_probe: bool  # the metric reads the stream at the input of layer `layers`

    def matters(self, change: Change) -> bool:
        """Whether a change can change what the metric reads."""
        is_own = change.given < 0
        if is_own and change.position < self.first_changed:
            return False
        # The lowest layer whose attention can carry the change to other positions.
        read_by = change.layer if change.site == "residual" else change.layer + 1
        if self.is_probe and read_by > self.layers:
            return False
        return read_by < self.layers or change.position >= self.first_read


def without_heads(
    row: Row, absent: Sequence[Head], positions: Iterable[int], *, swapped: bool
) -> Row:
    """The row in a model where some heads are absent: ablated at all positions of every run, or, if not
    `swapped`, left as the base run has them."""
    places = {(head.layer, head.index) for head in absent}

    def is_present(change: Change) -> bool:
        if change.site not in ("edge", "head"):
            return True
        return (change.layer, change.head) not in places

    present = row.only(is_present)
    if not swapped:
        return present
    ablated = Row.of_heads(absent, positions)
    return Row(tuple(sorted((*present.changes, *ablated.changes))))


def changed_inputs(
    rows: Sequence[Row], base: Cache, new: Replacement, *, knockout: bool
) -> Bool[torch.Tensor, "input row"]:
    """Which rows change which inputs. A row of edges whose old and new messages are equal (both gates are
    shut) changes nothing."""
    inputs, device = len(base.final), base.final.device
    changed = torch.zeros(inputs, len(rows), dtype=torch.bool, device=device)
    edges_of: dict[int, list[tuple[int, Change]]] = defaultdict(list)  # layer -> row and edge
    for number, row in enumerate(rows):
        if knockout or any(change.site != "edge" for change in row.changes):
            changed[:, number] = bool(row.changes)
            continue
        for change in row.changes:
            edges_of[change.layer].append((number, change))
    every_input = torch.arange(inputs, device=device)[:, None]
    for layer, listed in edges_of.items():
        table = ChangeTable.of(listed, device)
        ends = (table.head, table.key, table.position)
        old = base.layers[layer].messages(*ends)  # (input, change, d_head)
        differs = (new.messages(layer, *ends) != old).any(-1).expand(inputs, -1)
        # Of the edges of one row any may differ: `accumulate` is a logical or.
        changed.index_put_((every_input, table.row[None]), differs, accumulate=True)
    return changed
