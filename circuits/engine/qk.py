"""QK attribution: which writers make a head's score on key → query.

With the norm's scale held at its value in the clean run, a score q·k is bilinear: the query is a sum over the
writers below the head, and so is the key. Each pair of writers has a part of the score, and the parts add up
to it. This is a reading: it stands beside effects and never replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float

from circuits.components import Component, Head, Side, components
from circuits.engine.block import Block
from circuits.engine.runs import Runs
from circuits.engine.wires import writes_of
from circuits.errors import ModelError


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """The parts of one score. The last row and the last column belong to no writer: they are the biases."""

    score: float  # as the model has it, scaled, before a soft cap
    writers: tuple[Component, ...]
    parts: Float[torch.Tensor, "query_writer key_writer"]


@torch.inference_mode()
def score_parts(runs: Runs, head: Head, key: int, query: int) -> ScoreParts:
    """The parts of a head's score on key → query in the clean run of the first pair."""
    if runs.layout is None:
        name = runs.model.name
        raise ModelError(
            f"QK attribution needs the layout of {name}, which the fast path does not know"
        )
    one = runs.first_input()
    block = runs.layout.blocks[head.layer]
    stored = one.clean.cache.layers[head.layer]
    assert stored.query is not None and stored.key is not None
    every = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
    below = tuple(writer for writer in every if writer.layer < head.layer)
    queries = _parts_of_side(one, block, head, below, "query", query)
    keys = _parts_of_side(one, block, head, below, "key", key)
    score = stored.query[0, head.index, query] @ stored.key[0, head.index, key]
    return ScoreParts(float(score * block.scale), below, queries @ keys.T * block.scale)


def _parts_of_side(
    runs: Runs,
    block: Block,
    head: Head,
    writers: tuple[Component, ...],
    side: Side,
    position: int,
) -> Float[torch.Tensor, "writer d_head"]:
    """Each writer's part of the head's query (or key) at a position, and last the part of the biases: those
    of the attention layers below, of the norm and of the projection."""
    cache = runs.clean.cache
    at = torch.tensor([position], device=runs.model.device)
    stream = cache.layers[head.layer].pre[0, at]  # (1, d_model)
    written = writes_of(runs, cache, writers, at)[0, :, 0]  # (writer, d_model)
    biases = torch.zeros_like(stream)
    silent = torch.zeros_like(cache.layers[0].z[:1, at])
    for layer in range(head.layer):
        biases = biases + runs.blocks[layer].write(silent)[0]
    # (writer + 1, d_model)
    normed = block.attention_norm.linear(torch.cat((written, biases)), stream)

    def project(
        parts: Float[torch.Tensor, "part d_model"],
    ) -> Float[torch.Tensor, "part d_head"]:
        return block.project_side(parts[:, None, None], side, [head.index])[:, 0, 0]

    # `project` adds the projection's bias to each part; it belongs to the biases alone.
    nothing = torch.zeros_like(stream)
    parts = project(normed) - project(nothing)
    norm_bias = (
        nothing if block.attention_norm.bias is None else block.attention_norm.bias[None]
    )
    parts[-1] += project(norm_bias)[0]
    norm = block.query_norm if side == "query" else block.key_norm
    if norm is not None:
        parts = norm.linear(parts, parts.sum(0, keepdim=True))
    if block.rotation is None:
        return parts
    rotation = block.rotation(cache.final)[:, at]
    return block.rotate(parts[:, None, None], rotation)[:, 0, 0]
