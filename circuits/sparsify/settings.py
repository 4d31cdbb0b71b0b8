"""Everything that decides the weights of a twin, and the two sets of choices that were found to work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from circuits.errors import CircuitsError

Gates = Literal["sampled", "deterministic"]
Constraint = Literal["loss", "kl"]

LEAST, MOST = 1e-4, 1e5  # the multiplier stays between these
PACE: Final = (
    0.02  # its largest step, in log space, and the distance from the budget (nats) at which it takes it
)


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
    slack: float = 1.0  # the budget begins at so many gaps and falls to one, evenly: edges close fast, then the model heals
    healing: int = (
        0  # further steps with half the budget, so that the model regains what closing edges cost it
    )
    multiplier: float = 1.0  # where it starts
    memory: float = 0.95  # of the moving average of the gap
    lora: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gates not in get_args(Gates) or self.constraint not in get_args(Constraint):
            raise CircuitsError(
                f"gates are sampled or deterministic, constraint is loss or kl; not {self.gates!r}, {self.constraint!r}"
            )
        if min(self.steps, self.batch, self.length - 1, self.learning_rate, self.multiplier) <= 0:
            raise CircuitsError("steps, batch, learning rate and multiplier must be above 0, length above 1")
        if min(self.lora, self.bias, self.healing) < 0:
            raise CircuitsError("bias, lora and healing must not be below 0")
        if self.slack < 1:
            raise CircuitsError(f"slack is at least 1 (no slack), not {self.slack:g}")

    @property
    def all_steps(self) -> int:
        return self.steps + self.healing

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine to 2% of the peak; in healing a line from 20% to 2%."""
        if step >= self.steps:
            return self.learning_rate * (0.02 + 0.18 * (1 - (step - self.steps) / self.healing))
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))

    def budget(self, step: int) -> float:
        if step >= self.steps:
            return self.gap / 2
        return self.gap * (1 + (self.slack - 1) * max(0.0, 1 - step / self.steps))

    def next_multiplier(self, multiplier: float, gap: float, step: int) -> float:
        """Up while the gap is within the step's budget, down while it is not."""
        pull = min(1.0, max(-1.0, (self.budget(step) - gap) / PACE))
        return min(MOST, max(LEAST, multiplier * math.exp(pull * PACE)))


LITTLE_LANGUAGE: Final = Settings(
    steps=2000, batch=32, learning_rate=5e-4, warmup=50, gap=0.02, slack=3.0, healing=300, lora=0
)


def settings_for(*, little_language: bool, **changes: Any) -> Settings:
    """The settings of `mini`, or those of a language model, with what the user asked for."""
    base = LITTLE_LANGUAGE if little_language else Settings()
    return replace(base, **{name: value for name, value in changes.items() if value is not None})
