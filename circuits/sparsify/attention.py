"""Attention under any rule, in any Hugging Face model, through the library's own attention interface.

1. Scores are `s = q·k/√d_head` with masked keys at the lowest number, as in the model's eager attention.
2. A rule turns scores into weights of the values: `dense` (softmax), `hard` (the gate), or a `TrainingGate`.
3. The training gate lets gradients pass: `A = 1[s + b + noise > 0]` counts as `σ(s + b + noise)` in the
   backward pass, with logistic noise (sampled, as published) or none (deterministic). Its penalty is
   `Σσ(s + b)` over allowed edges, per row and head, divided by T(T+1)/2.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from circuits.errors import ModelError
from circuits.models.model import gated, open_gates

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
    """Inside this `with` the model's attention follows `rule`; its end restores what was before."""
    before = model.config._attn_implementation
    token = _RULE.set(rule)
    model.config._attn_implementation = _NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _RULE.reset(token)


def logits_under(
    rule: Rule, model: Any, tokens: Int[torch.Tensor, "batch pos"]
) -> torch.Tensor:
    """A model's logits with its attention under a rule."""
    with attending(model, rule):
        return model(tokens, use_cache=False).logits


def allowed_edges(length: int) -> int:
    """Edges of one head on one row: every key up to and including the query's own position."""
    return length * (length + 1) // 2


class TrainingGate:
    """The gate during one training step; afterwards it has the step's penalty and share of open edges.

    `part` is (index, count): this process sees part `index` of `count` of the step's rows. Noise is drawn for
    all rows, so that a row's noise does not depend on the number of processes.
    """

    def __init__(
        self,
        *,
        noise: torch.Generator | None = None,
        bias: float = 0.0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.noise = noise
        self.bias = bias
        self.part = part
        # One number per layer: the expected share of open edges.
        self._expected: list[torch.Tensor] = []
        # One number per layer: the share that is open at evaluation.
        self._open: list[torch.Tensor] = []

    def __call__(self, scores: Scores) -> Scores:
        batch, heads, length, _ = scores.shape
        shifted = scores + self.bias if self.bias else scores
        is_open: Any = _StraightThrough.apply(shifted + self._noise(scores))
        edges = batch * heads * allowed_edges(length)
        self._expected.append(shifted.sigmoid().sum() / edges)
        self._open.append(open_gates(scores.detach()).sum() / edges)
        return is_open * scores.softmax(-1)

    def _noise(self, scores: Scores) -> Scores | float:
        if self.noise is None:
            return 0.0
        index, count = self.part
        shape = (count * len(scores), *scores.shape[1:])
        uniform = torch.rand(
            shape, generator=self.noise, device=scores.device, dtype=scores.dtype
        )
        return uniform.chunk(count)[index].logit_(eps=1e-7)

    def check(self, n_layers: int) -> None:
        """Refuse a model in which the attention of some layer did not call the gate."""
        gated_layers = len(self._expected)
        if gated_layers != n_layers:
            counts = f"{gated_layers} of {n_layers} layers"
            raise ModelError(
                f"{counts} use the library's attention interface; the gate needs all of them"
            )

    @property
    def penalty(self) -> torch.Tensor:
        """Mean over layers and heads of the expected share of open edges."""
        return torch.stack(self._expected).mean()

    @property
    def open_edges(self) -> float:
        return torch.stack(self._open).mean().item()


class _StraightThrough(torch.autograd.Function):
    """A = 1[x > 0], which counts as σ(x) in the backward pass."""

    @staticmethod
    def forward(ctx: Any, noisy: Scores) -> Scores:
        ctx.save_for_backward(torch.sigmoid(noisy))
        return (noisy > 0).to(noisy.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Scores:
        (soft,) = ctx.saved_tensors
        return gradients[0] * (soft - soft * soft)  # σ' = σ - σ²


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The library's signature: (batch, head, pos, d_head) in, (batch, pos, head, d_head) and weights out."""
    if key.shape[1] != query.shape[1]:  # grouped keys
        groups = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    scores = (query * scaling) @ key.transpose(-1, -2)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if attention_mask is not None:
        scores = scores + attention_mask
    rule = _RULE.get()
    weights = rule(scores)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, eager_mask)
