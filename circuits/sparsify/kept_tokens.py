"""A model with fewer tokens: most of a small model's work is the chance of words that it never says.

1. A survey of rows that the model wrote gives the mean chance of every token; the likeliest are kept, and
   those that the openings need.
2. Embedding and output matrix keep the rows of these tokens. All else is untouched, so an adapter that is
   trained on the smaller model fits the whole one. What is measured in the end is measured on the whole one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Int

from circuits.errors import ModelError
from circuits.models.folder import Weights


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """The tokens that a smaller model has, in order: `kept[i]` is the whole model's id of its token i."""

    kept: Int[torch.Tensor, " kept"]
    size: int  # of the whole vocabulary
    coverage: float  # the mean chance of all kept tokens together

    def __str__(self) -> str:
        return f"{len(self.kept)} of {self.size} tokens ({self.coverage:.3%} of the chance)"

    def shrink(self, tokens: Int[torch.Tensor, "*batch pos"]) -> Int[torch.Tensor, "*batch pos"]:
        """The whole model's ids as the smaller one's."""
        lookup = torch.full((self.size,), -1)
        lookup[self.kept] = torch.arange(len(self.kept))
        small = lookup[tokens]
        if small.min() < 0:
            raise ModelError(f"token {int(tokens[small < 0][0])} is not among the {len(self.kept)} kept")
        return small


def survey(model: Any, rows: Int[torch.Tensor, "batch pos"], *, most: int, needed: set[int]) -> KeptTokens:
    """The `most` tokens with the largest mean chance after the rows' tokens, and those that are needed."""
    chances = torch.zeros(model.config.vocab_size, dtype=torch.float64)
    with torch.inference_mode():
        for chunk in rows.split(4):
            logits = model(chunk.to(model.device), use_cache=False).logits
            chances += logits.float().softmax(-1).sum((0, 1)).double().cpu()
    chances /= rows.numel()
    ranked = chances.clone()
    ranked[torch.tensor(sorted(needed | set(rows.unique().tolist())))] = 2.0
    kept = ranked.topk(min(most, len(ranked))).indices.sort().values
    if lost := [token for token in needed if not (kept == token).any()]:
        raise ModelError(f"the openings need {len(lost)} tokens more than the {most} that are kept")
    return KeptTokens(kept, len(chances), chances[kept].sum().item())


def shrunk(weights: Weights, vocabulary: KeptTokens) -> Any:
    """A copy of the model that has the kept tokens alone."""
    model = cast(Any, copy.deepcopy(weights.model))
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    tied = output.weight is embedding.weight
    if getattr(output, "bias", None) is not None:
        raise ModelError("a model whose output has a bias cannot be trained with fewer tokens")
    for layer in (embedding,) if tied else (embedding, output):
        layer.weight = torch.nn.Parameter(layer.weight.detach()[vocabulary.kept].clone(), requires_grad=False)
    if tied:
        output.weight = embedding.weight
    embedding.num_embeddings = output.out_features = model.config.vocab_size = len(vocabulary.kept)
    embedding.padding_idx = None
    return model
