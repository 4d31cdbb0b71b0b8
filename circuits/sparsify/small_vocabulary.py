"""A copy of a model with the likeliest tokens alone, which samples and trains faster.

Most of a small model's work is the probability of tokens that it hardly ever writes. A survey of rows that it
wrote gives the mean probability of every token; embedding and output matrix keep the likeliest tokens and
those that the openings need (`KeptTokens`). All other weights stay as they are, so an adapter trained on the
smaller model fits the whole one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Int

from circuits.errors import ModelError
from circuits.models.folder import Weights

Tokens = Int[torch.Tensor, "batch pos"]


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """The vocabulary of a smaller model: `kept[i]` is the whole model's id of its token i, ascending."""

    kept: Int[torch.Tensor, " kept"]
    size: int  # of the whole vocabulary
    coverage: float  # the mean probability of all kept tokens together

    def __str__(self) -> str:
        return f"{len(self.kept)} of {self.size} tokens ({self.coverage:.3%} of the chance)"

    def shrink(
        self, tokens: Int[torch.Tensor, "*batch pos"]
    ) -> Int[torch.Tensor, "*batch pos"]:
        """Turn the whole model's ids into the smaller model's."""
        small_id = torch.full((self.size,), -1)
        small_id[self.kept] = torch.arange(len(self.kept))
        small = small_id[tokens]
        if small.min() < 0:
            raise ModelError(
                f"token {int(tokens[small < 0][0])} is not among the {len(self.kept)} kept"
            )
        return small


def survey(
    model: Any, rows: Int[torch.Tensor, "batch pos"], *, most: int, needed: set[int]
) -> KeptTokens:
    """The `most` tokens of the largest mean probability after the rows' tokens.

    Those that stand in the rows come before all others, and so do the `needed` ones.
    """
    mean = torch.zeros(model.config.vocab_size, dtype=torch.float64)
    with torch.inference_mode():
        for chunk in rows.split(4):
            logits = model(chunk.to(model.device), use_cache=False).logits
            mean += logits.float().softmax(-1).sum((0, 1)).double().cpu()
    mean /= rows.numel()
    rank = mean.clone()
    rank[rows.unique()] = 2.0  # above every probability
    rank[sorted(needed)] = 2.0
    kept = rank.topk(min(most, len(rank))).indices.sort().values
    lost = needed - set(kept.tolist())
    if lost:
        raise ModelError(
            f"the openings need {len(lost)} tokens more than the {most} that are kept"
        )
    return KeptTokens(kept, len(mean), mean[kept].sum().item())


def shrunk(weights: Weights, vocabulary: KeptTokens) -> Any:
    """A copy of the model with the kept tokens alone."""
    model = cast(Any, copy.deepcopy(weights.model))
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    if getattr(output, "bias", None) is not None:
        raise ModelError("a model whose output has a bias cannot be trained with fewer tokens")
    tied = output.weight is embedding.weight
    embedding.weight = _kept_rows(embedding.weight, vocabulary)
    output.weight = embedding.weight if tied else _kept_rows(output.weight, vocabulary)
    embedding.num_embeddings = len(vocabulary.kept)
    embedding.padding_idx = None
    output.out_features = len(vocabulary.kept)
    model.config.vocab_size = len(vocabulary.kept)
    return model


def _kept_rows(matrix: torch.Tensor, vocabulary: KeptTokens) -> torch.nn.Parameter:
    return torch.nn.Parameter(matrix.detach()[vocabulary.kept].clone(), requires_grad=False)
