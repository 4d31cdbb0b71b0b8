"""Sparse twins: post-training that closes attention gates while a model behaves as its dense original does.

    from circuits.sparsify import measure_sparsity, sparsify

    sparsify("mini", "runs/mini-sparse")
    print(measure_sparsity("runs/mini-sparse"))

On the command line: `circuits sparsify mini -o runs/mini-sparse`. `Settings` are everything that decides the
weights of a twin, with two presets: for `mini` and for language models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import lazy_loader

from circuits.errors import CircuitsError

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity, measure_sparsity
    from circuits.sparsify.twin import sparsify

# A module called `sparsify` would take the function's place in this package: it is called `twin`.
_HOMES = {"measure": ("Sparsity", "measure_sparsity"), "twin": ("sparsify",)}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
__all__ += ["Settings", "settings_for"]

Gates = Literal["sampled", "deterministic"]
Constraint = Literal["loss", "kl"]

LEAST, MOST = 1e-4, 1e5  # the multiplier stays between these
SHORT_ROWS: Final = (8, 24)  # the fewest and most tokens of a short row
PACE: Final = 0.02  # its largest step, in log space, taken when the gap is this far (nats) from the budget


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides a twin's weights; the defaults are the preset for language models."""

    steps: int = 600
    batch: int = 4
    length: int = 64
    learning_rate: float = 2e-3
    warmup: int = 20
    gates: Gates = "deterministic"
    bias: float = 0.0
    constraint: Constraint = "kl"
    gap: float = 0.3  # the budget of the constraint, in nats
    slack: float = 1.0  # the budget starts at `slack` gaps and tightens evenly to one: edges close fast
    healing: int = 0  # further steps with half the budget, to regain what closing edges cost
    multiplier: float = 1.0  # its first value
    memory: float = 0.95  # decay of the moving average of the gap
    lora: int = 16  # the rank of the adapter; 0 trains all weights
    states: float = 0.0  # the weight of the distance between both models' hidden states, layer by layer
    short: float = 0.0  # the share of steps that take short pieces of the model's own words
    prompted: float = 0.0  # the share of steps that take short rows after prompts, if prompts are given
    tokens: int = 0  # how many different tokens the model has in training, the likeliest; 0: all of them
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gates not in get_args(Gates):
            raise CircuitsError(f"gates must be sampled or deterministic, not {self.gates!r}")
        if self.constraint not in get_args(Constraint):
            raise CircuitsError(f"constraint must be loss or kl, not {self.constraint!r}")
        if min(self.steps, self.batch, self.length - 1, self.learning_rate, self.multiplier) <= 0:
            raise CircuitsError("steps, batch, learning rate and multiplier must be above 0, length above 1")
        if min(self.lora, self.bias, self.healing, self.states) < 0:
            raise CircuitsError("bias, lora, healing and states must not be below 0")
        if not 0 <= self.short <= 1:
            raise CircuitsError(f"short must be a share from 0 to 1, not {self.short:g}")
        if not 0 <= self.prompted <= 1 - self.short:
            most = f"a share from 0 to {1 - self.short:g}, what short rows leave"
            raise CircuitsError(f"prompted must be {most}, not {self.prompted:g}")
        if self.tokens < 0 or (self.tokens and not self.lora):
            raise CircuitsError("tokens must not be below 0, and fewer tokens need an adapter (lora above 0)")
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
        return self.gap * (1 + (self.slack - 1) * max(0.0, 1 - step / self.steps))

    def next_multiplier(self, multiplier: float, gap: float, step: int) -> float:
        """Up while the gap is within the step's budget, down while it is not."""
        pull = min(1.0, max(-1.0, (self.budget(step) - gap) / PACE))
        return min(MOST, max(LEAST, multiplier * math.exp(pull * PACE)))


LITTLE_LANGUAGE: Final = Settings(
    steps=2000, batch=32, learning_rate=5e-4, warmup=50, gap=0.02, slack=3.0, healing=300, lora=0
)


def settings_for(*, little_language: bool, **changes: Any) -> Settings:
    """The preset of `mini` or of a language model, with the user's changes; None leaves a setting as it is.

    With fewer steps than the preset's, healing shortens in proportion, unless the user gives it.
    """
    preset = LITTLE_LANGUAGE if little_language else Settings()
    given = {name: value for name, value in changes.items() if value is not None}
    share = min(1.0, given.get("steps", preset.steps) / preset.steps)
    return replace(preset, **{"healing": round(preset.healing * share)} | given)


def default_in_words(name: str) -> str:
    """A setting's default: `64`, or `2000 for mini, 600 for a language model` where the presets differ."""
    values = (getattr(preset, name) for preset in (LITTLE_LANGUAGE, Settings()))
    mini, other = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return mini if mini == other else f"{mini} for mini, {other} for a language model"
