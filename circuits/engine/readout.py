"""How the output reads the stream: parts of a logit, logits of streams below the top, and what a head copies.

These are readings. They say what a component writes in the direction of a token, not what the answer would be
without it.

1. Direct logit attribution: the final norm's scale is held at that of the run. Then a logit, or a difference
   of logits, is a sum over the components that wrote the final stream, plus the biases.
2. Logit lens: final norm and unembedding applied to the stream below any layer.
3. A head's copying: the head attends to one token alone. Is that token among the first that the head's output
   would predict? As in the IOI paper, the head reads the stream above the first block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch.nn import functional as F

from circuits.engine.cache import Cache
from circuits.engine.layout import Layout, PromptBlock

TOP: Final = 5  # tokens among which a copied token must be
_SAMPLE: Final = 2048  # tokens that a copied token must beat before all others are computed
_AT_ONCE: Final = 2**26  # numbers of logits at once
Writes = Float[torch.Tensor, "row d_model"]
Tokens = Int[torch.Tensor, " row"]


# Direct logit attribution


def direction_of(
    layout: Layout, answers: Sequence[int], foils: Sequence[int]
) -> tuple[Float[torch.Tensor, " d_model"], float]:
    """The direction in the normed final stream that is the mean logit of the answers less that of the foils
    (without foils, less the mean of all tokens), and what the unembedding's bias adds."""
    chosen = list(answers)
    others = list(foils) or slice(None)  # without foils every token
    direction = layout.unembed[chosen].mean(0) - layout.unembed[others].mean(0)
    if layout.unembed_bias is None:
        return direction, 0.0
    bias = layout.unembed_bias[chosen].mean() - layout.unembed_bias[others].mean()
    return direction, float(bias)


def direct_parts(
    layout: Layout, cache: Cache, answers: Sequence[int], foils: Sequence[int]
) -> tuple[Float[torch.Tensor, " component"], float]:
    """What each component of one run writes at the last position in the direction of the answer: the
    embedding, the heads and the MLP of every layer, and last the biases. Also their sum, as it is read."""
    direction, bias = direction_of(layout, answers, foils)
    norm = layout.final_norm
    final = cache.final[0, -1]  # (d_model)
    written = torch.cat(list(_last_writes(layout, cache)))  # (component, d_model)
    rest = final - written.sum(0)  # the biases of the attention layers
    parts = norm.linear(torch.cat((written, rest[None])), final) @ direction
    parts[-1] += bias if norm.bias is None else bias + norm.bias @ direction
    return parts, float(norm(final) @ direction) + bias


def _last_writes(layout: Layout, cache: Cache) -> Iterator[Writes]:
    """What the embedding, and the heads and the MLP of every layer, write at the last position."""
    yield cache.layers[0].pre[0, -1:]
    for block, layer in zip(layout.blocks, cache.layers, strict=True):
        yield block.head_writes(layer.z[0, -1:])[0]
        yield layer.mlp[0, -1:]


# Logit lens


class LensLayer(NamedTuple):
    """What one layer would predict if it were the last, at every position of one run."""

    probability: Float[torch.Tensor, " pos"]  # of the answer
    rank: Int[torch.Tensor, " pos"]  # how many tokens stand before the answer
    top_probability: Float[torch.Tensor, " pos"]
    top_token: Int[torch.Tensor, " pos"]


def lens_of(layout: Layout, cache: Cache, token: int) -> Iterator[LensLayer]:
    """What the stream at the input of each layer, and above the last, says of a token."""
    for layer in range(len(cache.layers) + 1):
        probabilities = layout.logits(cache.pre(layer)[0]).float().softmax(-1)  # (pos, vocab)
        own = probabilities[:, token]
        before = (probabilities > own[:, None]).sum(-1)
        top, which = probabilities.max(-1)
        yield LensLayer(own, before, top, which)


# What a head copies


def head_outputs(
    blocks: Sequence[PromptBlock], cache: Cache, layer: int
) -> Float[torch.Tensor, "input head d_model"]:
    """What each head of a layer writes when it attends to the last position alone, and reads there the stream
    above the first block (in the first block: the embedding)."""
    stream = cache.pre(min(layer, 1))[:, -1:]
    last = torch.tensor([cache.final.shape[1] - 1], device=stream.device)
    _, _, value = blocks[layer].project(stream, last)
    return blocks[layer].head_writes(value)[:, 0]


def is_in_top(
    layout: Layout, writes: Writes, tokens: Tokens, *, most: int = TOP
) -> Bool[torch.Tensor, " row"]:
    """Whether each token is among the first that the output would predict from a write alone. Equal logits
    count as standing before it. Rows that lose against a sample of the vocabulary need no further logits."""
    normed = layout.final_norm(writes)
    own = (normed * layout.unembed[tokens]).sum(-1)
    if layout.unembed_bias is not None:
        own = own + layout.unembed_bias[tokens]
    vocab = len(layout.unembed)
    sample = torch.arange(0, vocab, max(1, vocab // _SAMPLE), device=writes.device)
    in_top = _before(layout, normed, own, tokens, sample) < most
    left = in_top.nonzero().flatten()
    every = torch.arange(vocab, device=writes.device)
    for some in left.split(max(1, _AT_ONCE // vocab)):
        in_top[some] = _before(layout, normed[some], own[some], tokens[some], every) < most
    return in_top


def _before(
    layout: Layout, normed: Writes, own: torch.Tensor, tokens: Tokens, others: torch.Tensor
) -> Int[torch.Tensor, " row"]:
    """How many of the other tokens have at least the logit of the row's own."""
    bias = None if layout.unembed_bias is None else layout.unembed_bias[others]
    logits = F.linear(normed, layout.unembed[others], bias)  # (row, other)
    as_large = (logits >= own[:, None]) & (others[None] != tokens[:, None])
    return as_large.sum(-1)


def is_largest_of(
    layout: Layout, writes: Writes, token: Tokens, series: Int[torch.Tensor, " other"]
) -> Bool[torch.Tensor, " row"]:
    """Whether each token has the largest logit of a series of tokens."""
    bias = None if layout.unembed_bias is None else layout.unembed_bias[series]
    logits = F.linear(layout.final_norm(writes), layout.unembed[series], bias)
    return series[logits.argmax(-1)] == token
