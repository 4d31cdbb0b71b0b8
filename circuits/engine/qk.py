"""QK attribution: which writers make a head's score on key → query.

With the norm's scale held at its value in the clean run, a score q·k is bilinear: the query is a sum over the
writers below the head, and so is the key. Each pair of writers has a part of the score, and the parts add up
to it. This is a reading: it stands beside effects and never replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float

from circuits.components import Component, Head, components
from circuits.engine.layout import PromptBlock
from circuits.engine.runs import Runs
from circuits.engine.wires import writes_of


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """The parts of one score. The last row and the last column belong to no writer: they are the biases."""

    score: float  # as the model has it, scaled, before a soft cap
    writers: tuple[Component, ...]
    parts: Float[torch.Tensor, "query_writer key_writer"]


@torch.inference_mode()
def score_parts(runs: Runs, head: Head, key: int, query: int) -> ScoreParts:
    """The parts of a head's score on key → query in the clean run of the first pair."""
    layout = runs.layout_for("the parts of a score")
    one = runs.first_input()
    stored = one.clean.cache.layers[head.layer]
    assert stored.query is not None and stored.key is not None
    block = layout.on_prompt(one.clean.cache.final)[head.layer]
    every = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
    below = tuple(writer for writer in every if writer.layer < head.layer)
    queries = _side_by_writer(one, block, head, below, "query", query)
    keys = _side_by_writer(one, block, head, below, "key", key)
    scale = block.block.scale
    score = stored.query[0, head.index, query] @ stored.key[0, head.index, key]
    return ScoreParts(float(score * scale), below, queries @ keys.T * scale)


def _side_by_writer(
    runs: Runs,
    bound: PromptBlock,
    head: Head,
    writers: tuple[Component, ...],
    side: Literal["query", "key"],
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
    parts = torch.cat((written, biases))  # (writer + 1, d_model), which add up to the stream
    rotation = None if bound.rotation is None else bound.rotation[:, at]
    return bound.block.side_by_part(parts, stream, side, head.index, rotation)
