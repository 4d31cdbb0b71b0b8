"""The ledger of a score: with the norm's scale fixed, q·k is bilinear in the writers of query and key.

1. The scale of the norm is that of the whole stream, so what each writer adds to the stream becomes a part of
   the normed stream, of the query (or key), and after the rotation a part of the score.
2. What no writer owns is one part more: biases of norms, projections and earlier attention layers.
3. The parts of all pairs of writers add up to the score, before any soft cap. It is a reading of the clean
   run, as a loading is: it stands beside effects and never replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float

from circuits.components import Component, Head, Side, components
from circuits.engine.block import Block, rotated
from circuits.engine.runs import Runs
from circuits.engine.wires import parts_of, writes
from circuits.errors import ModelError


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """The parts of one score. The last row and the last column are what no writer owns."""

    score: float  # as the model has it, scaled, before a soft cap
    writers: tuple[Component, ...]
    parts: Float[torch.Tensor, "query_writer key_writer"]


@torch.inference_mode()
def score_parts(runs: Runs, head: Head, key: int, query: int) -> ScoreParts:
    """The parts of a head's score on key → query in the clean run of the first pair."""
    if runs.layout is None:
        raise ModelError(f"a ledger needs the layout of {runs.model.name}, which the fast path does not know")
    block, stored = runs.layout.blocks[head.layer], runs.clean.cache.layers[head.layer]
    assert stored.query is not None and stored.key is not None
    every = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
    below = tuple(writer for writer in every if writer.layer < head.layer)
    queries = _side(runs, block, head, below, "query", query)
    keys = _side(runs, block, head, below, "key", key)
    own = stored.query[0, head.index, query] @ stored.key[0, head.index, key]
    return ScoreParts(float(own * block.scale), below, queries @ keys.T * block.scale)


def _side(
    runs: Runs, block: Block, head: Head, writers: tuple[Component, ...], side: Side, position: int
) -> Float[torch.Tensor, "writer d_head"]:
    """Each writer's part of the head's query (or key) at a position, and last the part that none owns."""
    parts, cache = parts_of(runs), runs.clean.cache
    at = torch.tensor([position], device=runs.model.device)
    stream = cache.layers[head.layer].pre[:1, at]  # (1, 1, d_model)
    written = writes(parts, cache, writers, at)[0, :, 0]  # (writer, d_model)
    silent = torch.zeros_like(cache.layers[0].z[:1, at])
    biases = sum((parts.write(layer, silent)[0] for layer in range(head.layer)), torch.zeros_like(stream[0]))
    normed = block.norm1.linear(torch.cat((written, biases)), stream[0])  # (writer + 1, d_model)
    product = block.q if side == "query" else block.k
    none = product(torch.zeros_like(normed[:1]))
    bias = getattr(block.norm1.module, "bias", None)
    projected = product(normed) - none
    projected[-1] += product(torch.zeros_like(normed[:1]) if bias is None else bias[None])[0]
    heads = projected.unflatten(-1, (-1, block.d_head))  # (writer + 1, group, d_head)
    norm = block.query_norm if side == "query" else block.key_norm
    if norm is not None:
        heads = norm.linear(heads, heads.sum(0, keepdim=True))
    rotation = None if block.rotation is None else block.rotation(cache.final)[:, at]
    if rotation is not None:
        heads = rotated(heads[:, None], rotation, adjacent=block.adjacent)[:, 0]
    return block.spread(heads)[:, head.index]
