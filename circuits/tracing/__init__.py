"""From a pair to a circuit. Here are the parts of the answer: frozen records of plain values.

A `Mapping` says which heads carry key → query, a `Span` which layers hold a token's information, and
`Stability` what stays the same under other counterfactuals. `records` puts them together into a `Circuit`;
`trace` and `circuit` measure it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from circuits.components import ROUNDING, Head
from circuits.errors import EdgeError, PromptError
from circuits.results import Faults, Pictured, Saved

SHARE: Final = 0.8  # of a mapping's total that its carriers must reach, unless the user says otherwise
CARRIES: Final = 0.05  # the least total of a mapping in a circuit, unless the user says otherwise
DRAWN: Final = 0.03  # the least effect of a wire in a wiring, as a share of the gap
SHORT: Final = 64  # tokens of a prompt of which every mapping is measured
NODES: Final = 64  # nodes of a wiring that are explored
CORE: Final = 0.8  # of the runs in which a head of the core carries
_LEAST_TOTAL: Final = 1e-6  # of a mapping that has carriers; modulation divides by it


def check_share(share: float) -> None:
    """Refuse a share that no set of heads could reach, or that every set does."""
    if not 0 < share <= 1:
        raise PromptError(f"a share must be above 0 and at most 1, not {share}")


@dataclass(frozen=True, slots=True)
class HeadEffect:
    """What one head does on one mapping; effects are shares of the gap, loadings too."""

    head: Head
    effect: float  # swap: its counterfactual message put into the clean run
    restore: float  # its clean message put back into the counterfactual run
    loading: float | None  # the linear share, patterns and norms frozen; None where it was not measured
    weight: float  # attention weight of the edge in the clean run (zero if its gate is shut)
    counterfactual_weight: float


@dataclass(frozen=True, slots=True)
class SideEffects:
    """Where a carrier looks and what it moves: effects of its query, key and value side, each alone read from
    the counterfactual stream, and of its weight on the edge alone."""

    head: Head
    query: float
    key: float
    value: float
    pattern: float  # the counterfactual's weight on the clean value
    query_weight: float  # the attention weight on the edge with the query side swapped
    key_weight: float


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
    sufficiency: float  # all heads but the carriers swapped: the share of the total that is left
    identity: float  # clean patched into clean; 0 up to rounding
    share: float = SHARE  # the share at which `random_*` and `sufficiency` were measured


@dataclass(frozen=True, slots=True)
class Mapping(Pictured):
    """Key → query: its total, what each head does, and the greedy path from one head to all that help."""

    key: int
    query: int
    total: float
    restore: float  # the total in the other direction
    heads: tuple[HeadEffect, ...] = ()  # strongest first
    path: tuple[Step, ...] = ()
    controls: Controls | None = None
    sides: tuple[SideEffects, ...] = ()  # of the carriers, in their order
    doubts: tuple[str, ...] = ()  # why its modulation is withheld

    @property
    def ends(self) -> tuple[int, int]:
        return self.key, self.query

    def carriers(self, share: float = SHARE) -> tuple[Head, ...]:
        """The heads found by greedy forward selection until they reach `share` of the total."""
        return tuple(step.head for step in self._steps(share))

    def modulation(self, share: float = SHARE) -> float:
        """Joint effect of the carriers as a share of the total (0 where nothing is carried)."""
        steps = self._steps(share)
        return steps[-1].joint / self.total if steps else 0.0

    def _steps(self, share: float) -> tuple[Step, ...]:
        check_share(share)
        for count, step in enumerate(self.path, 1):
            if step.joint >= share * self.total - ROUNDING:
                return self.path[:count]
        return self.path

    @property
    def negative(self) -> tuple[HeadEffect, ...]:
        """The heads that work against the answer, strongest first."""
        against = (each for each in self.heads if each.effect < -0.01)
        return tuple(sorted(against, key=lambda each: each.effect))

    def effect_of(self, head: str | Head) -> HeadEffect:
        """What one head does on this mapping."""
        wanted = Head.parse(head)
        for each in self.heads:
            if each.head == wanted:
                return each
        raise PromptError(f"no head {wanted} was measured on {self.key}→{self.query}")

    def faults(self, length: int) -> Faults:
        """What does not belong together in a mapping of a prompt of so many tokens."""
        name, controls = f"mapping {self.key}→{self.query}", self.controls
        forward = 0 <= self.key <= self.query < length
        yield not forward, f"{name} lies outside its prompt or runs backwards"
        measured = {effect.head for effect in self.heads}
        once = len(measured) == len(self.heads) and {step.head for step in self.path} <= measured
        yield not once, f"{name} names a head twice, or a carrier that was not measured"
        yield self.path != () and self.total < _LEAST_TOTAL, f"{name} carries nothing and yet has carriers"
        if controls is not None:
            own = 0 < controls.share <= 1 and len(controls.key_totals) == self.query + 1
            yield not own, f"{name} has controls that are not those of its query"


@dataclass(frozen=True, slots=True)
class Span:
    """Where in depth a token's information lives: `layers` leave it there, `built` write it there."""

    label: str
    positions: tuple[int, ...]
    layers: tuple[int, int] | None
    built: tuple[tuple[int, int], ...]
    effect: float  # the largest effect of replacing the residual stream there
    residual: tuple[float, ...]  # effect of replacing the residual stream at the input of layer 0…L
    writes: tuple[float, ...]  # effect of replacing what block 0…L-1 writes there
    counterfactual: str  # what was put in the token's place
    moves: float = 1.0  # how far that moves the metric, in gaps of the pair

    def __str__(self) -> str:
        held = "no layer" if self.layers is None else f"layer {self.layers[0]}-{self.layers[1]}"
        return f"{self.label} / {held}" + (f" / built in {self.built_text}" if self.built else "")

    @property
    def remark(self) -> str:
        """A word on layers that write where nothing is held; empty where the two agree."""
        first, last = self.layers or (0, -1)
        built = [layer for low, high in self.built for layer in range(low, high + 1)]
        apart = ", ".join(str(layer) for layer in built if not first <= layer <= last)
        if not apart:
            return ""
        return f"{self.label}: what layer {apart} writes matters, though afterwards too little is held here"

    @property
    def built_text(self) -> str:
        return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.built)

    def faults(self, layers: int) -> Faults:
        """What does not belong together in a span of a model of so many layers."""
        name = f"the span of {self.label!r}"
        ranges = [*self.built, *([self.layers] if self.layers else [])]
        inside = all(0 <= first <= last <= layers for first, last in ranges)
        yield not inside or not self.positions, f"{name} has no position, or layers that its model lacks"
        each = len(self.residual) == layers + 1 and len(self.writes) == layers
        yield not each, f"{name} does not have one value per layer"


@dataclass(frozen=True, slots=True)
class Output:
    """What the model says at the last position."""

    token: str
    probability: float
    layer: int  # the number of layers: the output stands above them all


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over pairs and the range that holds 95% of its bootstrap resamples."""

    mean: float
    low: float
    high: float
    pairs: int = 0  # 0 where it is not known

    def __str__(self) -> str:
        if self.pairs == 1:  # one pair says nothing about others
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class HeadStability:
    """A head that carries the mapping under some counterfactuals."""

    head: Head
    carries: float  # the share of runs in which it is a carrier
    effect: Interval  # over all runs

    def __str__(self) -> str:
        return f"{self.head!s:8}carries in {self.carries:.0%} of runs, effect {self.effect}"


@dataclass(frozen=True, slots=True)
class Stability(Saved, Pictured):
    """A mapping under other counterfactuals of the same kind.

    >>> steady = circuits.stability(model, TEXT, key="large", swap={"large": "hot"}, n=3)
    >>> len(steady.counterfactuals), set(steady.core) <= {each.head for each in steady.heads}
    (3, True)
    """

    KIND: ClassVar = "stability"
    CALLED: ClassVar = "a record of stability"

    key: int
    query: int
    share: float
    counterfactuals: tuple[str, ...]  # one a run
    total: Interval
    heads: tuple[HeadStability, ...]  # that carry in any run, the most frequent first
    overlap: float  # the mean share that two runs' carriers have in common
    shares: tuple[tuple[float, tuple[Head, ...]], ...]  # the core at neighbouring shares
    restore: tuple[Head, ...] | None  # the carriers in the other direction; None for noise
    weak: int = 0  # counterfactuals that were left out: they hardly move the answer

    @property
    def core(self) -> tuple[Head, ...]:
        """The heads that carry in at least 80% of the runs."""
        return tuple(each.head for each in self.heads if each.carries >= CORE)

    @property
    def rim(self) -> tuple[Head, ...]:
        """The other carriers."""
        return tuple(each.head for each in self.heads if each.carries < CORE)

    def faults(self) -> Faults:
        yield not 0 <= self.key <= self.query, "its key and query run backwards"
        yield not self.counterfactuals, "it has no counterfactuals"
        heads = [each.head for each in self.heads]
        yield len(set(heads)) < len(heads), "it names a head twice"
        shares = [self.share, *(each.carries for each in self.heads), *(share for share, _ in self.shares)]
        yield not all(0 <= share <= 1 for share in shares), "it has a share below 0 or above 1"

    def __str__(self) -> str:
        weak = f" ({self.weak} more hardly move the answer)" if self.weak else ""
        runs = f"{self.key}→{self.query} under {len(self.counterfactuals)} counterfactuals{weak}"
        lines = [f"{runs}: total {self.total}, carriers overlap by {self.overlap:.0%}"]
        lines.append(f"core (in {CORE:.0%} of runs or more): {_named(self.core)}")
        lines.append(f"rim: {_named(self.rim)}")
        lines += [f"core at a share of {share:.0%}: {_named(core)}" for share, core in self.shares]
        if self.restore is not None:
            lines.append(f"carriers in the other direction (restore): {_named(self.restore)}")
        return "\n".join([*lines, *(f"  {each}" for each in self.heads[:8])])


def _named(heads: tuple[Head, ...]) -> str:
    return " ".join(map(str, heads)) or "none"


@dataclass(frozen=True, slots=True)
class QuestionControl:
    """Whether the pair is a question: whether its gap is worth dividing by."""

    verdict: Literal["clear", "weak", "none"]
    reasons: tuple[str, ...]  # why it is not clear
    other_gaps: tuple[float, ...]  # how far random words in the same place move the metric
    probability: float | None  # of the answer on the clean prompt
    said: tuple[str, str | None]  # what both runs predict; None where draws of noise disagree


@dataclass(frozen=True, slots=True)
class MeasuredModel:
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
    dtype: str = "float32"

    def checked(self, head: str | Head) -> Head:
        """The head, if this model has it."""
        parsed = Head.parse(head)
        if parsed.layer >= self.layers or parsed.index >= self.heads:
            last = Head(self.layers - 1, self.heads - 1)
            raise EdgeError(f"no head {parsed} in {self.name}, which has L0H0…{last}")
        return parsed
