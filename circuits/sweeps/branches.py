"""One more head for every pair of a batch at once, though each pair has taken other heads so far.

1. The trunk of a pair is its clean run in which the messages of its taken heads are the counterfactual's. It is carried from the
   query on through all layers; what lies before the query is the clean run's and is shared.
2. With one head more, a run is the trunk up to that head's layer: there a branch grows for each head of the layer, and is carried
   up with the trunk and the branches from below. So all heads cost half of what whole runs would, whatever was taken.
3. Which heads are taken is a mask, so all pairs go through the layers together.

Where not even one pair's branches fit into memory (`fits`), the engine's rows give the same numbers, a few at a time.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Bool, Float

from circuits.engine import Runs
from circuits.engine.layout import Block, Layout

Taken = Bool[torch.Tensor, "input layer head"]
Heads = Float[torch.Tensor, "input row pos head d_head"]


def fits(runs: Runs, query: int) -> int:
    """How many inputs may branch at once; 0 where not one may, or where the layout is not known."""
    if runs.layout is None:
        return 0
    rows, after = 1 + runs.model.n_layers * runs.model.n_heads, runs.length - query
    numbers = rows * after * (16 * runs.model.d_model + 3 * runs.model.n_heads * runs.length)
    return runs.budget // (numbers * runs.clean.cache.final.element_size())


def branch_values(runs: Runs, taken: Taken, key: int, query: int) -> Float[torch.Tensor, "input row"]:
    """The metric of each input's trunk, then of its branches in the order of heads; that of a taken head is the trunk again."""
    assert runs.layout is not None
    return _read(runs, runs.layout, _carry(runs, runs.layout, taken, key, query))


def _carry(
    runs: Runs, layout: Layout, taken: Taken, key: int, query: int
) -> Float[torch.Tensor, "input row d_model"]:
    """The stream at the last position above the last layer."""
    clean, other = runs.clean.cache, runs.counterfactual.cache
    turns = layout.positions(clean.final)
    turns = None if turns is None else (turns[0][query:], turns[1][query:])
    stream = clean.layers[0].pre[:, None, query:]  # (input, row, pos, d_model)
    every = torch.arange(layout.heads, device=stream.device)
    for layer, block in enumerate(layout.blocks):
        base, swapped = clean.layers[layer], other.layers[layer]
        assert base.key is not None
        normed = block.norm1(stream)
        queries, (keys, values) = (
            layout.queries(block, normed, turns),
            layout.keys_and_values(block, normed, turns),
        )
        pattern = _attend(layout, queries, keys, base.key[:, :, :query])
        z = _gather(pattern, values, base.value[:, :, :query])
        source = base.value[:, None, :, key] if key < query else values[:, :, 0]  # (input, row, head, d_head)
        message = swapped.pattern[:, :, query, key, None] * swapped.value[:, :, key]  # (input, head, d_head)
        change = message[:, None] - pattern[:, :, :, 0, key, None] * source
        mine = taken[:, layer, :, None]  # (input, head, 1)
        z[:, :, 0] += change * mine[:, None]
        grown = z[:, :1].repeat(1, layout.heads, 1, 1, 1)
        grown[:, every, 0, every] += change[:, 0] * ~mine
        stream = _finish(
            layout, block, _with(stream, stream[:, :1].expand(-1, layout.heads, -1, -1)), _with(z, grown)
        )
    return stream[:, :, -1]


def _with(rows: torch.Tensor, further: torch.Tensor) -> torch.Tensor:
    return torch.cat((rows, further), 1)


def _finish(layout: Layout, block: Block, stream: torch.Tensor, z: Heads) -> torch.Tensor:
    written = block.write(z)
    middle = stream + written
    return middle + block.mlp(block.norm2(stream if layout.parallel else middle))


def _attend(
    layout: Layout, queries: Heads, keys: Heads, before: Float[torch.Tensor, "input head key d_head"]
) -> Float[torch.Tensor, "input row head query key"]:
    """The pattern over the shared keys before the query and the row's own from there on."""
    count = queries.shape[2]
    shared = rearrange(queries, "i r q h d -> i h (r q) d") @ before.mT
    own = rearrange(queries, "i r q h d -> i r h q d") @ rearrange(keys, "i r k h d -> i r h d k")
    future = torch.ones(count, count, dtype=torch.bool, device=own.device).triu(1)
    scores = (rearrange(shared, "i h (r q) k -> i r h q k", q=count), own.masked_fill_(future, -torch.inf))
    return layout.attend(torch.cat(scores, -1) * layout.scale)


def _gather(
    pattern: torch.Tensor, values: Heads, before: Float[torch.Tensor, "input head key d_head"]
) -> Heads:
    """What the heads read, by their pattern."""
    count, shared = pattern.shape[-2], before.shape[2]
    first = rearrange(pattern[..., :shared], "i r h q k -> i h (r q) k") @ before
    own = pattern[..., shared:] @ rearrange(values, "i r k h d -> i r h k d")
    return (
        rearrange(first, "i h (r q) d -> i r q h d", q=count) + rearrange(own, "i r h q d -> i r q h d")
    ).contiguous()


def _read(
    runs: Runs, layout: Layout, top: Float[torch.Tensor, "input row d_model"]
) -> Float[torch.Tensor, "input row"]:
    """The metric of every row; of the vocabulary only the two tokens that a difference of logits needs."""
    if runs.metric.reads is None:
        step = max(1, runs.budget // (4 * runs.model.vocab_size * len(top)))
        return torch.cat([runs.read(layout.logits(part)) for part in top.split(step, 1)], 1)
    wanted = [pair.metric.reads for pair in runs.pairs for _ in range(len(top) // len(runs.pairs))]
    answer, foil = torch.tensor(wanted, device=top.device).unbind(1)
    bias = (
        0.0
        if layout.unembed_bias is None
        else (layout.unembed_bias[answer] - layout.unembed_bias[foil])[:, None]
    )
    return (
        torch.einsum("ird,id->ir", layout.final_norm(top), layout.unembed[answer] - layout.unembed[foil])
        + bias
    )
