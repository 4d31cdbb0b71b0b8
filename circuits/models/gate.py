"""The sparse attention rule, in one place: `s = q·k/√d_head`, `P = softmax(s)`, `A = 1[s > 0]`, output `Σ A·P·v`.

The softmax runs over all allowed keys and is not renormalised after gating, so a row whose gates are all shut writes nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float


def open_gates(scores: Float[torch.Tensor, "*batch query key"]) -> Bool[torch.Tensor, "*batch query key"]:
    """Which edges are open: those whose scaled attention logit is above zero (a masked key's logit never is)."""
    return scores > 0


def gated(
    scores: Float[torch.Tensor, "*batch query key"], pattern: Float[torch.Tensor, "*batch query key"]
) -> Float[torch.Tensor, "*batch query key"]:
    """The pattern with its shut edges at exactly zero."""
    return torch.where(
        open_gates(scores), pattern, torch.zeros((), dtype=pattern.dtype, device=pattern.device)
    )
