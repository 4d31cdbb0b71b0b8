"""The parts of a circuit: the model and the question, mappings, spans, intervals, and the default thresholds.

A `Mapping` says which heads carry key → query, a `Span` in which layers a token's information lives. All are
frozen records of plain values. This module imports no model library: the help of the command line prints the
defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as MappingType
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from circuits.components import ROUNDING, Head
from circuits.errors import EdgeError, PromptError, escaped, is_number, shortened
from circuits.results import OfHeads, Pictured, require

SHARE: Final = 0.8  # the share of a mapping's total that its carriers must reach
CARRIES: Final = 0.05  # the smallest total of a mapping in a circuit, as a share of the gap
SHORT: Final = 64  # tokens; every mapping of a prompt up to this length is measured
Verdict = Literal["clear", "weak", "none"]
# As users write a position: its index, the text of its token, or a name that they gave to it.
Position = int | str
RoleNames = MappingType[str, Position]  # the names that a user gives to positions
# The same as found in one prompt, in the order of the positions.
Roles = tuple[tuple[str, int], ...]
Ends = tuple[int, int]  # the positions of a key and of a query
CORE: Final = 0.8  # a head of the core carries in at least this share of the runs
_SMALLEST_TOTAL: Final = 1e-6  # of a mapping that has carriers; the modulation divides by it
_AGAINST: Final = -0.01  # heads of a smaller effect are listed as working against the answer


def check_share(share: float) -> None:
    """Refuse a share that no set of heads could reach, or that every set does."""
    if not is_number(share) or not 0 < share <= 1:
        raise PromptError(f"a share must be above 0 and at most 1, not {shortened(share)}")


# The model and the question


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
        """The head of this name; an error if the model does not have it."""
        parsed = Head.parse(head)
        if parsed.layer >= self.layers or parsed.index >= self.heads:
            last = Head(self.layers - 1, self.heads - 1)
            raise EdgeError(f"no head {parsed} in {self.name}, which has L0H0…{last}")
        return parsed

    def check(self, output: Output) -> None:
        """Refuse a model without size, or an output that does not stand above all its layers."""
        sized = min(self.layers, self.heads, self.width, self.edges) >= 1
        require(
            sized and output.layer == self.layers, "its model has no size, or no output on top"
        )


@dataclass(frozen=True, slots=True)
class Output:
    """The prediction at the last position."""

    token: str
    probability: float
    layer: int  # the number of layers: the output stands above them all


@dataclass(frozen=True, slots=True)
class QuestionControl:
    """Whether one pair asks a clear question about its key: the verdict, and what it rests on."""

    verdict: Verdict
    reasons: tuple[str, ...]  # why it is not clear
    other_gaps: tuple[float, ...]  # how far random words in the same place move the metric
    probability: float | None  # of the answer on the clean prompt
    # The predictions of both runs; None where draws of noise disagree.
    said: tuple[str, str | None]
    withheld: tuple[str, ...] = ()  # the reasons for which a modulation is withheld
    # The effect of the key alone: its own token swapped or, where the counterfactual leaves that as it is, all
    # its messages to the query. None where no key was named.
    at_key: float | None = None
    # The effect of all other changed tokens without the key's; None where there are none.
    elsewhere: float | None = None


@dataclass(frozen=True, slots=True)
class FamilyControl:
    """Whether several pairs, judged one by one, ask a clear question on the whole; also a family of one."""

    verdict: Verdict
    reasons: tuple[str, ...]  # why it is not clear
    clear: int  # how many pairs have each verdict
    weak: int
    none: int
    withheld: tuple[str, ...] = ()  # the reasons for which a modulation is withheld
    notes: tuple[str, ...] = ()  # on pairs that are not clear, where most are
    at_key: float | None = None  # means over the pairs; see `QuestionControl`
    elsewhere: float | None = None

    @property
    def pairs(self) -> int:
        return self.clear + self.weak + self.none


# Mappings


@dataclass(frozen=True, slots=True)
class HeadEffect:
    """One head on one mapping; effects and loading are shares of the gap."""

    head: Head
    effect: float  # swap: its counterfactual message put into the clean run
    restore: float  # its clean message put back into the counterfactual run
    # The linear share, patterns and norms frozen; None where it was not measured.
    loading: float | None
    weight: float  # attention weight of the edge in the clean run (zero if its gate is shut)
    counterfactual_weight: float


@dataclass(frozen=True, slots=True)
class SideEffects:
    """The effects of one carrier's query, key and value side, each alone read from the counterfactual stream,
    and of its attention weight on the edge alone."""

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
    """Measurements that say how far to trust a mapping."""

    # Effect of as many random heads as there are carriers, drawn from the heads that are no carriers.
    random_mean: float
    random_p95: float
    random_draws: int
    # Total of every key 0…query to the same query: is this key special?
    key_totals: tuple[float, ...]
    sufficiency: (
        float  # all heads but the carriers swapped: the share of the total that is left
    )
    identity: float  # clean patched into clean; 0 up to rounding
    share: float = SHARE  # the share at which `random_*` and `sufficiency` were measured
    # How many heads were drawn from; None in files of version 0.2, which drew from all, carriers included.
    random_pool: int | None = None
    # Heads in each draw: fewer than carriers if the pool is smaller.
    random_size: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Mapping(OfHeads, Pictured):
    """Key → query: its total, the effect of each head, and the greedy path that adds one head at a time."""

    key: int
    query: int
    total: float
    restore: float  # the total in the other direction
    heads: tuple[HeadEffect, ...] = ()  # strongest first
    path: tuple[Step, ...] = ()
    controls: Controls | None = None
    sides: tuple[SideEffects, ...] = ()  # of the carriers, in their order
    doubts: tuple[str, ...] = ()  # reasons why its modulation is withheld

    @property
    def ends(self) -> Ends:
        return self.key, self.query

    @property
    def summary(self) -> str:
        """Its ends and what was measured."""
        return f"{self.key}→{self.query}: {self.measured}"

    @property
    def measured(self) -> str:
        """The total and how many heads carry it, in words."""
        total = f"total {self.total:.3f}"
        if self.doubts:
            return f"{total}, modulation withheld"
        count = len(self.carriers(share_of(self)))
        return f"{total}, {count} {'carrier' if count == 1 else 'carriers'}"

    def carriers(self, share: float = SHARE) -> tuple[Head, ...]:
        """The heads found by greedy forward selection until they reach `share` of the total."""
        return tuple(step.head for step in self._steps(share))

    def modulation(self, share: float = SHARE) -> float:
        """Joint effect of the carriers as a share of the total (0 where nothing is carried)."""
        steps = self._steps(share)
        return steps[-1].joint / self.total if steps else 0.0

    def _steps(self, share: float) -> tuple[Step, ...]:
        """The greedy path up to the first step that reaches `share` of the total."""
        check_share(share)
        for count, step in enumerate(self.path, 1):
            if step.joint >= share * self.total - ROUNDING:
                return self.path[:count]
        return self.path

    @property
    def negative(self) -> tuple[HeadEffect, ...]:
        """The heads that work against the answer, strongest first."""
        against = [each for each in self.heads if each.effect < _AGAINST]
        return tuple(sorted(against, key=lambda each: each.effect))

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each head that was measured."""
        carriers = self.carriers(share_of(self))
        rows = []
        for each in self.heads:
            row = asdict(each) | {"head": str(each.head), "carries": each.head in carriers}
            rows.append(row)
        return rows

    def effect_of(self, head: str | Head) -> HeadEffect:
        """The effect of one head on this mapping."""
        wanted = Head.parse(head)
        for each in self.heads:
            if each.head == wanted:
                return each
        raise PromptError(f"no head {wanted} was measured on {self.key}→{self.query}")

    def check(self, length: int) -> None:
        """Refuse a mapping that cannot be one of a prompt of `length` tokens."""
        name = f"mapping {self.key}→{self.query}"
        forward = 0 <= self.key <= self.query < length
        require(forward, f"{name} lies outside its prompt or runs backwards")
        measured = {effect.head for effect in self.heads}
        once = len(measured) == len(self.heads) and all(
            step.head in measured for step in self.path
        )
        require(once, f"{name} names a head twice, or a carrier that was not measured")
        carries = not self.path or self.total >= _SMALLEST_TOTAL
        require(carries, f"{name} carries nothing and yet has carriers")
        if self.controls is not None:
            fits = (
                0 < self.controls.share <= 1 and len(self.controls.key_totals) == self.query + 1
            )
            require(fits, f"{name} has controls that are not those of its query")


def share_of(mapping: Mapping | None) -> float:
    """The share at which a mapping was measured; the default share where it has no controls."""
    if mapping is None or mapping.controls is None:
        return SHARE
    return mapping.controls.share


# Spans


@dataclass(frozen=True, slots=True)
class Span:
    """In which layers a token's information lives: `layers` hold it, `built` are the layers that write it."""

    label: str
    positions: tuple[int, ...]
    layers: tuple[int, int] | None
    built: tuple[tuple[int, int], ...]
    effect: float  # the largest effect of replacing the residual stream there
    # Effect of replacing the residual stream at the input of layer 0…L.
    residual: tuple[float, ...]
    writes: tuple[float, ...]  # effect of replacing what block 0…L-1 writes there
    counterfactual: str  # what was put in the token's place
    moves: float = 1.0  # how far that moves the metric, in gaps of the pair

    def __str__(self) -> str:
        held = "no layer" if self.layers is None else f"layer {self.layers[0]}-{self.layers[1]}"
        built = f" / built in {self.built_text}" if self.built else ""
        return f"{escaped(self.label)} / {held}{built}"

    @property
    def remark(self) -> str:
        """A sentence on layers that write outside of the layers that hold; empty if there are none."""
        first, last = self.layers or (0, -1)
        outside: list[str] = []
        for low, high in self.built:
            outside += [
                str(layer) for layer in range(low, high + 1) if not first <= layer <= last
            ]
        if not outside:
            return ""
        layers = ", ".join(outside)
        positions = ", ".join(map(str, self.positions))
        return (
            f"{escaped(self.label)}({positions}): what layer {layers} writes matters, "
            "though replacing the residual stream after it hardly changes the answer"
        )

    @property
    def built_text(self) -> str:
        """The ranges of layers that built it: `0, 20-21`."""
        return ", ".join(
            str(first) if first == last else f"{first}-{last}" for first, last in self.built
        )

    def check(self, layers: int, length: int) -> None:
        """Refuse a span that cannot be one of a model of `layers` layers and a prompt of `length` tokens."""
        name = f"the span of {self.label!r}"
        ranges = list(self.built)
        if self.layers is not None:
            ranges.append(self.layers)
        inside = all(0 <= first <= last <= layers for first, last in ranges)
        require(
            inside and bool(self.positions),
            f"{name} has no position, or layers that its model lacks",
        )
        one_each = len(self.residual) == layers + 1 and len(self.writes) == layers
        require(one_each, f"{name} does not have one value per layer")
        check_positions(self.positions, length)


def check_positions(positions: Iterable[int], length: int) -> None:
    """Refuse positions outside a prompt of `length` tokens."""
    inside = all(0 <= position < length for position in positions)
    require(inside, f"it names a position outside its prompt, which has 0…{length - 1}")


# Several runs


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
