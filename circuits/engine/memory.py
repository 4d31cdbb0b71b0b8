"""How much memory a measurement may take: one budget and one formula, used wherever work is cut into chunks.

What passes through a block at once is a batch of streams (rows, copies of a prompt, what readers see). The
batch is cut so that all of it fits into the budget. The default is about the size of a processor's cache:
larger batches are no faster. A backward pass keeps what it computed, so it has a larger budget of its own
(`GRADIENT_BUDGET`). `plan_memory` says beforehand what a measurement keeps and how it is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch

BUDGET: Final = 32 * 2**20  # bytes that one batch of streams may take
GRADIENT_BUDGET: Final = 2**31  # bytes that one backward pass may keep
# d_model-sized vectors a position needs in a block: q, k, v, z, writes, MLP.
VECTORS_A_POSITION: Final = 16
# d_model-sized vectors kept of a layer and position: stream, q, k, v, z, and two writes.
VECTORS_A_RUN: Final = 7
# d_model-sized vectors a position that each head keeps for a backward pass, about: the streams of its three
# sides, and what the norm makes of them.
VECTORS_A_GRADIENT: Final = 12
SCORES_A_STREAM: Final = 3  # copies of the scores in a block: products, softmax and gate
# Of a number: half precision is counted as single, which errs on the safe side.
BYTES: Final = 4


def stream_bytes(
    *, d_model: int, heads: int, length: int, positions: int | None = None, vocab: int = 0
) -> int:
    """Bytes that one stream takes while it passes a block.

    `positions` of its `length` positions are computed (all of them unless said otherwise). `vocab` counts the
    logits at every position, which the model's own forward computes and our forward does not.
    """
    positions = length if positions is None else positions
    vectors = VECTORS_A_POSITION * d_model * positions
    scores = SCORES_A_STREAM * heads * length * positions
    return BYTES * (vectors + scores + vocab * positions)


def streams_at_once(budget: int, stream: int) -> int:
    """How many streams of so many bytes pass a block together: at least one."""
    return max(1, budget // stream)


class ModelSizes(Protocol):
    """The sizes of a model, as `Model` has them."""

    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a measurement takes beside the weights, by its sizes alone."""

    run: int  # bytes of one run of one input that is kept
    runs: int  # bytes of all of them, clean and counterfactual
    row: int  # bytes of one row on its way through a block, for all inputs
    rows: int  # rows that pass a block together

    @property
    def streams(self) -> int:
        """Bytes of the rows that are on their way together."""
        return self.row * self.rows

    def __str__(self) -> str:
        kept = f"{self.run / 1e6:.1f} MB a run, {self.runs / 1e6:.0f} MB for all runs"
        return f"{kept}, and {self.rows} rows of {self.row / 1e6:.1f} MB at once"


def plan_memory(
    model: ModelSizes,
    *,
    length: int,
    inputs: int = 1,
    plain: bool = False,
    budget: int = BUDGET,
) -> MemoryPlan:
    """What the runs of so many inputs of this length take, and how rows that change all positions are cut.
    The plain path keeps attention weights, and computes the logits at every position."""
    run = _run_bytes(model, length, plain=plain)
    row = inputs * stream_bytes(
        d_model=model.d_model,
        heads=model.n_heads,
        length=length,
        vocab=model.vocab_size if plain else 0,
    )
    return MemoryPlan(run, 2 * inputs * run, row, streams_at_once(budget, row))


def _run_bytes(model: ModelSizes, length: int, *, plain: bool) -> int:
    """Bytes that one kept run of one input takes."""
    vectors = VECTORS_A_RUN * length * model.d_model
    scores = model.n_heads * length * length if plain else 0
    return BYTES * model.n_layers * (vectors + scores)


def gradient_bytes(model: ModelSizes, length: int) -> int:
    """Bytes that a circuit of wires keeps of one input for its backward pass."""
    # Every layer keeps the differences of all writers below, once for the heads and once for the MLP.
    writers = model.n_layers * (model.n_heads + 1)
    vectors = length * (writers + VECTORS_A_GRADIENT * model.n_heads)
    return BYTES * model.n_layers * model.d_model * vectors


def windows(queries: int, scores_a_query: int, budget: int) -> list[slice]:
    """Cut the queries of a long prompt into windows whose attention scores fit into the budget."""
    step = max(1, budget // (BYTES * SCORES_A_STREAM * scores_a_query))
    return [slice(first, min(first + step, queries)) for first in range(0, queries, step)]


def free_memory(device: torch.device) -> int | None:
    """Bytes that tensors can still take on a device; None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # torch keeps memory of tensors that are gone, and gives it to new ones.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    for line in table.read_text().splitlines():
        name, amount, *_ = line.split()
        if name == "MemAvailable:":
            return 1024 * int(amount)
    return None
