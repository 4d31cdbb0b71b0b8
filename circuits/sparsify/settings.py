"""Everything that decides the weights of a twin, and the two sets of choices that were found to work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from circuits.errors import CircuitsError

Gates = Literal["sampled", "deterministic"]
Constraint = Literal["loss", "kl"]

LEAST, MOST = 1e-4, 1e5  # the multiplier stays between these
PACE: Final = 0.02  # its largest step, in log space, and the distance from the budget (nats) at which it takes it


@dataclass(frozen=True, slots=True)
class Settings:
    """The defaults are for language models. `gap` is the budget of the constraint in nats; `lora` is a rank, 0 trains all weights."""

    steps: int = 600
    batch: int = 4
    length: int = 64
    learning_rate: float = 2e-3
    warmup: int = 20
    gates: Gates = "deterministic"
    bias: float = 0.0
    constraint: Constraint = "kl"
    gap: float = 0.3
    multiplier: float = 1.0  # where it starts
    memory: float = 0.95  # of the moving average of the gap
    lora: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gates not in get_args(Gates) or self.constraint not in get_args(Constraint):
            raise CircuitsError(f"gates are sampled or deterministic, constraint is loss or kl; not {self.gates!r}, {self.constraint!r}")
        if min(self.steps, self.batch, self.length - 1, self.learning_rate, self.multiplier) <= 0 or self.lora < 0 or self.bias < 0:
            raise CircuitsError("steps, batch, learning rate and multiplier must be above 0, length above 1, bias and lora not below 0")

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine to 2% of the peak."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))

    def next_multiplier(self, multiplier: float, gap: float) -> float:
        """Up while the gap is within the budget, down while it is not."""
        pull = min(1.0, max(-1.0, (self.gap - gap) / PACE))
        return min(MOST, max(LEAST, multiplier * math.exp(pull * PACE)))


LITTLE_LANGUAGE: Final = Settings(steps=3000, batch=32, learning_rate=1e-3, warmup=50, gates="sampled", constraint="loss", gap=0.03, lora=0)


def settings_for(*, little_language: bool, **changes: Any) -> Settings:
    """The settings of `mini`, or those of a language model, with what the user asked for."""
    base = LITTLE_LANGUAGE if little_language else Settings()
    return replace(base, **{name: value for name, value in changes.items() if value is not None})
