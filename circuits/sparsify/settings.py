"""`Settings`: everything that decides the weights of a twin, with two presets.

1. `LITTLE_LANGUAGE` is the preset for `mini` and other models of the little language; the defaults of
   `Settings` are the preset for language models.
2. `rate`, `budget` and `next_multiplier` are the three schedules of a training, as functions of the step.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from circuits.errors import CircuitsError

Gates = Literal["sampled", "deterministic"]
Constraint = Literal["loss", "kl"]

SHORT_ROWS: Final = (8, 24)  # the fewest and most tokens of a short row
SMALLEST_MULTIPLIER: Final = 1e-4
LARGEST_MULTIPLIER: Final = 1e5
PACE: Final = 0.02  # the multiplier's largest change in one step, as a logarithm
FAR: Final = 0.02  # nats between gap and budget at which the multiplier changes by all of PACE


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides a twin's weights; the defaults are the preset for language models."""

    steps: int = 600  # without those of `healing`
    batch: int = 4  # rows of a step
    length: int = 64  # tokens of a row
    learning_rate: float = 2e-3  # the highest, after the warm-up
    warmup: int = 20  # steps
    gates: Gates = "deterministic"  # whether noise is added to the scores that open a gate
    bias: float = 0.0  # added to the scores that open a gate, in training alone
    # What the gap is: KL(dense‖gated), or the difference of both losses.
    constraint: Constraint = "kl"
    gap: float = 0.3  # the budget: the largest gap allowed, in nats
    slack: float = 1.0  # the budget starts at `slack` times the gap and falls evenly to one: edges close fast
    healing: int = 0  # further steps with half the budget, to regain what closing edges cost
    multiplier: float = 1.0  # the first weight of the penalty on open edges
    memory: float = 0.95  # decay of the moving average of the gap
    lora: int = 16  # the rank of the adapter; 0 trains all weights
    # The weight of the distance between both models' hidden states, layer by layer.
    states: float = 0.0
    # The share of steps that take short pieces of the text that the model wrote.
    short: float = 0.0
    # The share of steps that take short rows after prompts, if prompts are given.
    prompted: float = 0.0
    # The size of the vocabulary in training, the likeliest tokens; 0: all of them.
    tokens: int = 0
    seed: int = 0  # of rows and noise

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise CircuitsError(f"{name} must be a finite number, not {value}")
        if self.gates not in get_args(Gates):
            raise CircuitsError(f"gates must be sampled or deterministic, not {self.gates!r}")
        if self.constraint not in get_args(Constraint):
            raise CircuitsError(f"constraint must be loss or kl, not {self.constraint!r}")
        positive = (
            self.steps,
            self.batch,
            self.length - 1,
            self.learning_rate,
            self.multiplier,
        )
        if min(positive) <= 0:
            raise CircuitsError(
                "steps, batch, learning rate and multiplier must be above 0, length above 1"
            )
        if min(self.lora, self.bias, self.healing, self.states) < 0:
            raise CircuitsError("bias, lora, healing and states must not be below 0")
        if self.constraint == "kl" and self.gap < 0:
            raise CircuitsError(f"gap must not be below 0 nats, not {self.gap:g}: KL never is")
        if not 0 <= self.short <= 1:
            raise CircuitsError(f"short must be a share from 0 to 1, not {self.short:g}")
        if not 0 <= self.prompted <= 1 - self.short:
            allowed = f"a share from 0 to {1 - self.short:g}, what short rows leave"
            raise CircuitsError(f"prompted must be {allowed}, not {self.prompted:g}")
        if self.tokens < 0 or (self.tokens and not self.lora):
            raise CircuitsError(
                "tokens must not be below 0, and fewer tokens need an adapter (lora above 0)"
            )
        if self.slack < 1:
            raise CircuitsError(f"slack must be at least 1 (no slack), not {self.slack:g}")

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
        """The largest gap allowed at a step, in nats."""
        if step >= self.steps:
            return self.gap / 2
        left = max(0.0, 1 - step / self.steps)
        return self.gap * (1 + (self.slack - 1) * left)

    def next_multiplier(self, multiplier: float, gap: float, step: int) -> float:
        """The multiplier after a step: higher while the gap is within the step's budget, else lower."""
        pull = (self.budget(step) - gap) / FAR
        pull = min(1.0, max(-1.0, pull))
        changed = multiplier * math.exp(pull * PACE)
        return min(LARGEST_MULTIPLIER, max(SMALLEST_MULTIPLIER, changed))


LITTLE_LANGUAGE: Final = Settings(
    steps=2000,
    batch=32,
    learning_rate=5e-4,
    warmup=50,
    gap=0.02,
    slack=3.0,
    healing=300,
    lora=0,
)


def settings_for(*, little_language: bool, **changes: Any) -> Settings:
    """The preset of `mini` or of a language model, with the user's changes; None leaves a setting as it is.

    With fewer steps than the preset's, healing shortens in proportion, unless the user gives it.
    """
    preset = LITTLE_LANGUAGE if little_language else Settings()
    given = {name: value for name, value in changes.items() if value is not None}
    if "healing" not in given:
        share = min(1.0, given.get("steps", preset.steps) / preset.steps)
        given["healing"] = round(preset.healing * share)
    return replace(preset, **given)


def default_in_words(name: str) -> str:
    """A setting's default: `64`, or `2000 for mini, 600 for a language model` where the presets differ."""
    mini = _in_words(getattr(LITTLE_LANGUAGE, name))
    other = _in_words(getattr(Settings(), name))
    return mini if mini == other else f"{mini} for mini, {other} for a language model"


def _in_words(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
