"""The frozen records that a question is answered with: plain values, equal by value, written to and read from `circuit.json`.

`Circuit` holds `Mapping`s (which heads carry key → query), `Span`s (which layers hold a token's information) and the `Output`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from circuits.edges import Head
from circuits.errors import PromptError

SHARE: Final = 0.8  # the share of a mapping's total that its carriers must reach, unless asked otherwise
CARRIES: Final = 0.05  # a mapping with at least this total belongs to a circuit, unless asked otherwise


@dataclass(frozen=True, slots=True)
class HeadEffect:
    """What one head does on one mapping; effects are shares of the gap, loadings too."""

    head: Head
    effect: float  # swap: its counterfactual message put into the clean run
    restore: float  # its clean message put back into the counterfactual run
    loading: float  # the linear share of the same message, patterns and norms frozen
    weight: float  # attention weight of the edge in the clean run (zero if its gate is shut)
    counterfactual_weight: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the greedy path: the head added, and the joint effect of all heads up to here."""

    head: Head
    joint: float


@dataclass(frozen=True, slots=True)
class Controls:
    """How far to trust a mapping."""

    random_mean: float  # effect of as many random heads as there are carriers
    random_p95: float
    random_draws: int
    key_totals: tuple[float, ...]  # total of every key 0…query to the same query: is this key special?
    sufficiency: float  # all heads of the mapping swapped except the carriers: the share of the total that is left
    identity: float  # clean patched into clean; 0 up to rounding
    share: float = SHARE  # the share at which `random_*` and `sufficiency` were measured


@dataclass(frozen=True, slots=True)
class Mapping:
    """Key → query: its total, what each head does, and the greedy path from one head to all that help."""

    key: int
    query: int
    total: float
    restore: float  # the total in the other direction
    heads: tuple[HeadEffect, ...] = ()  # strongest first
    path: tuple[Step, ...] = ()
    controls: Controls | None = None

    def carriers(self, share: float = SHARE) -> tuple[Head, ...]:
        """The heads found by greedy forward selection until their joint effect reaches `share` of the total."""
        return tuple(step.head for step in self._steps(share))

    def modulation(self, share: float = SHARE) -> float:
        """Joint effect of the carriers as a share of the total (0 where nothing is carried)."""
        steps = self._steps(share)
        return steps[-1].joint / self.total if steps else 0.0

    def _steps(self, share: float) -> tuple[Step, ...]:
        if not 0 < share <= 1:
            raise PromptError(f"a share lies above 0 and at most at 1, not at {share}")
        for count, step in enumerate(self.path, 1):
            if step.joint >= share * self.total:
                return self.path[:count]
        return self.path

    @property
    def negative(self) -> tuple[HeadEffect, ...]:
        """The heads that work against the answer, strongest first."""
        return tuple(sorted((h for h in self.heads if h.effect < -0.01), key=lambda h: h.effect))

    def effect_of(self, head: str | Head) -> HeadEffect:
        """What one head does on this mapping."""
        wanted = Head.parse(head)
        for known in self.heads:
            if known.head == wanted:
                return known
        raise PromptError(f"no head {wanted} was measured on {self.key}→{self.query}")


@dataclass(frozen=True, slots=True)
class Span:
    """Where in depth a token's information lives: `layers` leave it there, `built` write it (inclusive ranges of layers)."""

    label: str
    positions: tuple[int, ...]
    layers: tuple[int, int] | None
    built: tuple[tuple[int, int], ...]
    effect: float  # the largest effect of replacing the residual stream there
    residual: tuple[float, ...]  # effect of replacing the residual stream at the input of layer 0…L
    writes: tuple[float, ...]  # effect of replacing what block 0…L-1 writes there
    counterfactual: str  # what was put in the token's place

    def __str__(self) -> str:
        held = "no layer" if self.layers is None else f"layer {self.layers[0]}-{self.layers[1]}"
        return f"{self.label} / {held}" + (f" / built in {self.built_text}" if self.built else "")

    @property
    def built_text(self) -> str:
        return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.built)


@dataclass(frozen=True, slots=True)
class Output:
    """What the model says at the last position."""

    token: str
    probability: float
    layer: int  # the number of layers: the output stands above them all


@dataclass(frozen=True, slots=True)
class Source:
    """The model that was measured."""

    name: str
    fingerprint: str  # sha256 of its weights
    layers: int
    heads: int
    gated: bool
    reads_bos: bool
    width: int  # d_model
    parallel: bool  # attention and MLP read the same stream
    open_edges: int  # edges of the clean run with a weight above zero
    edges: int  # all edges of the prompt: layers × heads × T(T+1)/2
