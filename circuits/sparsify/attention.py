"""Attention under any rule, in any Hugging Face model, through the library's own attention interface.

1. Scores are `s = q·k/√d_head` with masked keys at the lowest number, as the model's eager attention has them.
2. A rule turns scores into the weights that multiply the values: `dense` (softmax), `hard` (the gate), or a `TrainingGate`.
3. The training gate lets gradients pass: `A = 1[s + b + noise > 0]` counts as `σ(s + b + noise)` in the backward pass, with logistic
   noise (sampled, as published) or none (deterministic). Its penalty is `Σσ(s + b)` over allowed edges, per row and head, over T(T+1)/2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
from jaxtyping import Float
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from circuits.errors import ModelError
from circuits.models.hooks import gated, open_gates

Scores = Float[torch.Tensor, "batch head query key"]
Rule = Callable[[Scores], Scores]

_NAME: Final = "circuits_rule"
_RULE: ContextVar[Rule] = ContextVar("rule")


def dense(scores: Scores) -> Scores:
    """Ordinary attention."""
    return scores.softmax(-1)


def hard(scores: Scores) -> Scores:
    """The gate as it is at evaluation."""
    return gated(scores, scores.softmax(-1))


@contextmanager
def attending(model: Any, rule: Rule) -> Iterator[None]:
    """Within this `with`, the model's attention follows `rule`; afterwards it is what it was."""
    before, token = model.config._attn_implementation, _RULE.set(rule)
    model.config._attn_implementation = _NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _RULE.reset(token)


def allowed_edges(length: int) -> int:
    """Edges of one head on one row: every key up to and including the query's own position."""
    return length * (length + 1) // 2


class TrainingGate:
    """The gate during one training step; afterwards it knows the step's penalty and share of open edges.

    `part` says which part of the step's rows it sees, of how many; noise is drawn for all rows, so that a row's does not depend on it.
    """

    def __init__(
        self, *, noise: torch.Generator | None = None, bias: float = 0.0, part: tuple[int, int] = (0, 1)
    ) -> None:
        self.noise, self.bias, self.part = noise, bias, part
        self._expected: list[torch.Tensor] = []  # one number per layer: the expected share of open edges
        self._open: list[torch.Tensor] = []  # one number per layer: the share that is open at evaluation

    def __call__(self, scores: Scores) -> Scores:
        batch, heads, length, _ = scores.shape
        weights, expected = _StraightThrough.apply(scores, self.bias, self._uniform(scores))  # pyright: ignore[reportGeneralTypeIssues]
        edges = batch * heads * allowed_edges(length)
        self._expected.append(expected / edges)
        self._open.append(open_gates(scores.detach()).sum() / edges)
        return weights

    def _uniform(self, scores: Scores) -> Scores | None:
        if self.noise is None:
            return None
        index, count = self.part
        shape = (count * len(scores), *scores.shape[1:])
        return torch.rand(shape, generator=self.noise, device=scores.device, dtype=scores.dtype).chunk(count)[
            index
        ]

    def check(self, n_layers: int) -> None:
        if len(self._expected) != n_layers:
            raise ModelError(
                f"{len(self._expected)} of {n_layers} layers use the library's attention interface; the gate needs all"
            )

    @property
    def penalty(self) -> torch.Tensor:
        """Mean over layers and heads of the expected share of open edges."""
        return torch.stack(self._expected).mean()

    @property
    def open_edges(self) -> float:
        return torch.stack(self._open).mean().item()


class _StraightThrough(torch.autograd.Function):
    """`weights = A·P` and `expected = Σσ(s + b)`, with dA/ds = σ'(s + b + noise); written out because it is most of a step's time."""

    @staticmethod
    def forward(ctx: Any, scores: Scores, bias: float, uniform: Scores | None) -> tuple[Scores, torch.Tensor]:
        pattern = scores.softmax(-1)
        shifted = scores + bias if bias else scores
        chance = torch.sigmoid(shifted)
        noisy = shifted if uniform is None else uniform.logit_(eps=1e-7).add_(shifted)
        is_open = noisy > 0
        weights = pattern * is_open
        soft = chance if uniform is None else noisy.sigmoid_()
        slope = soft - soft * soft
        by_weight = slope.add_(is_open).mul_(
            pattern
        )  # P·(A + σ'): how a gradient of the weights reaches this edge's own score
        expected = chance.sum()
        spread = chance.sub_(chance * chance) if uniform is not None else chance - chance * chance
        ctx.save_for_backward(pattern, weights, by_weight, spread)
        return weights, expected

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Scores, None, None]:
        of_weights, of_expected = gradients
        pattern, weights, by_weight, spread = ctx.saved_tensors
        shared = (of_weights * weights).sum(
            -1, keepdim=True
        )  # the softmax takes from every key what it gave to one
        return (
            (of_weights * by_weight).addcmul_(pattern, shared, value=-1).addcmul_(spread, of_expected),
            None,
            None,
        )


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The library's signature: (batch, head, pos, d_head) in, (batch, pos, head, d_head) and the weights out."""
    if key.shape[1] != query.shape[1]:  # grouped keys
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
    weights = _RULE.get()(scores if attention_mask is None else scores + attention_mask)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, eager_mask)
