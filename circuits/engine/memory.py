"""How much memory a measurement may take: one budget and one formula, used wherever work is cut into chunks.

What passes through a block at once is a batch of streams (rows, copies of a prompt, what readers see). The
batch is cut so that all of it fits into the budget. The default is about the size of a processor's cache:
larger batches are no faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

BUDGET: Final = 32 * 2**20  # bytes that one batch of streams may take
# d_model-sized vectors a position needs in a block: q, k, v, z, writes, MLP.
VECTORS_A_POSITION: Final = 16
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


def windows(queries: int, scores_a_query: int, budget: int) -> list[slice]:
    """Cut the queries of a long prompt into windows whose attention scores fit into the budget."""
    step = max(1, budget // (BYTES * SCORES_A_STREAM * scores_a_query))
    return [slice(first, min(first + step, queries)) for first in range(0, queries, step)]


def free_memory() -> int | None:
    """Bytes that a process can still have; None where the system does not say."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    for line in table.read_text().splitlines():
        name, amount, *_ = line.split()
        if name == "MemAvailable:":
            return 1024 * int(amount)
    return None
