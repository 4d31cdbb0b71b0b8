"""A block as functions: its parts are those of the whole."""

from __future__ import annotations

import torch

from circuits.engine import prepare
from circuits.engine.block import SIDES
from circuits.models.model import Model
from circuits.prompts import to_pair


@torch.inference_mode()
def test_one_side_of_a_block_is_that_side_of_the_whole(model: Model) -> None:
    runs = prepare(model, [to_pair(model, 'The opposite of "large" is "', swap={"large": "hot"})])
    assert runs.layout is not None
    for block, rotation, layer in zip(
        runs.layout.blocks,
        runs.layout.rotations(runs.clean.cache.layers[0].pre, 0),
        runs.clean.cache.layers,
        strict=True,
    ):
        for side in SIDES:
            alone = block.side(layer.pre, side, rotation).transpose(1, 2)
            torch.testing.assert_close(alone, getattr(layer, side), rtol=0, atol=1e-5)


@torch.inference_mode()
def test_what_the_heads_write_adds_up_to_what_attention_writes(model: Model) -> None:
    runs = prepare(model, [to_pair(model, 'The opposite of "large" is "', swap={"large": "hot"})])
    assert runs.layout is not None
    for block, layer in zip(runs.layout.blocks, runs.clean.cache.layers, strict=True):
        z = layer.z[:, -1:]
        bias = block.write(torch.zeros_like(z).flatten(-2)) if block.attention_norm is None else 0
        written = block.head_writes(z).sum(-2) + bias
        torch.testing.assert_close(written, layer.attention[:, -1:], rtol=0, atol=1e-4)
