"""A ranking: the effects of heads, attention edges or component edges, the keep curve with its control, and
the protocol behind it all.

1. Up to 200 units the curve has every size. Beyond, it has small sizes and a geometric grid; where it first
   reaches a share, sizes are added until the count is exact between the two neighbours on the grid.
2. Bands are percentiles of seeded bootstrap resamples of the pairs.
3. CPR is the area under the curve over the share of units kept, CMD the area between the curve and 1, by the
   trapezoid rule (the two integrated measures of the MIB benchmark, arXiv 2504.13151). Of component edges,
   which MIB counts, they are MIB's own: ten sizes from 0.1% to all, and at each the mean of the metric over
   the pairs, less that of the counterfactual, over the mean gap. Of other units: all sizes from none to all,
   and the mean of each pair's explained effect.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal

import numpy as np
from jaxtyping import Float

from circuits.components import Component, Head, Reader, Wire, by_name
from circuits.errors import EdgeError
from circuits.files import to_record
from circuits.results import Arrays, Pictured, Saved, require
from circuits.tracing import check_share
from circuits.tracing.family import RESAMPLES, bootstrap, resampled

Units = Literal["heads", "edges", "wires"]
Mlps = Literal["computed", "held", "swapped"]
UNITS: Final[tuple[Units, ...]] = ("heads", "edges", "wires")
COUNTED: Final[dict[Units, str]] = {  # what a count counts; two kinds of edges are never mixed
    "heads": "heads",
    "edges": "attention edges",
    "wires": "component edges",
}
MLPS: Final[tuple[Mlps, ...]] = ("computed", "held", "swapped")
EXPLAINED: Final = 0.9  # the share of a task's effect that the units must explain, unless told otherwise
SHARES: Final = (0.8, EXPLAINED, 0.95)
EVERY_SIZE: Final = 200  # up to so many units every size is measured
ROUNDING: Final = 1e-6
MIB_SHARES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of all component edges
_PROBES: Final = 7  # sizes measured at once inside a bracket
_BESIDE: Final = ("counts", "panel")  # what files hold beside the record, for other readers

_WORDS: Final = {
    "computed": "MLPs computed from what reaches them",
    "held": "MLPs held at what they write in the clean run",
    "swapped": "MLPs swapped to what they write in the counterfactual run",
    "all": "all positions",
    "roles": "positions by role",
    "absolute": "positions by index",
    "exact": "ranked by exact single effects under the same protocol",
    "loading": "ranked by first-order estimates (each message's change times the gradient), "
    "since measuring every edge would cost too much",
    "front": "the {} that edge attribution patching (EAP) puts in front ranked by exact single effects, "
    "the others by that estimate",
    "given": "in the order of a file, by the size of its scores; the exact effects of the first {} "
    "stand beside it, of the others their EAP estimates",
}

Values = Float[np.ndarray, "size pair"]


@dataclass(frozen=True, slots=True)
class RoleEdge:
    """One head, one key, one query: positions by role (`S1`, `S2+1`), or by index if prompts are alike."""

    head: Head
    key: str
    query: str

    def __str__(self) -> str:
        return f"{self.head}:{self.key}→{self.query}"

    @classmethod
    def parse(cls, name: str) -> RoleEdge:
        """Read `L11H7:S1→END`."""
        head, _, ends = name.partition(":")
        key, _, query = ends.partition("→")
        if not key or not query:
            example = "L11H7:S1→END: head, key, query"
            raise EdgeError(f"{name!r} is not the name of an edge; write it as {example}")
        return cls(Head.parse(head), key, query)

    __get_pydantic_core_schema__ = classmethod(by_name)


@dataclass(frozen=True, slots=True)
class ComponentEdge:
    """One writer, one reader, at all positions together: `L4H4→L5H1.query`, `M5→logits`."""

    writer: Component
    reader: str  # its name, since the layer of the logits is the model's

    def __str__(self) -> str:
        return f"{self.writer}→{self.reader}"

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads at its ends."""
        ends = (self.writer, Reader.parse(self.reader, layers=0).component)
        return tuple(end.head for end in ends if end is not None and end.kind == "head")

    @classmethod
    def of(cls, wire: Wire) -> ComponentEdge:
        return cls(wire.writer, str(wire.reader))

    @classmethod
    def parse(cls, name: str) -> ComponentEdge:
        """Read `L4H4→L5H1.query`, or EAP's `a4.h4->a5.h1<q>`."""
        wire = Wire.parse(name, layers=0)
        if wire.position is not None or wire.query is not None or wire.writer.kind == "all":
            raise EdgeError(
                f"{name!r} is not a component edge; write it as L4H4→L5H1.query, with no position"
            )
        return cls.of(wire)

    __get_pydantic_core_schema__ = classmethod(by_name)


Unit = Head | RoleEdge | ComponentEdge


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's component edges depend on."""

    layers: int
    heads: int
    width: int
    parallel: bool


@dataclass(frozen=True, slots=True)
class Protocol:
    """What was kept, what was swapped and how units were put in order: every count depends on it."""

    units: Units
    mlps: Mlps = "computed"
    positions: Literal["all", "roles", "absolute"] = "all"
    order: Literal["exact", "loading", "front", "given"] = "exact"
    source: Literal["swap"] = "swap"
    measured: int = 0  # of component edges: how many effects are exact where not all are

    def __str__(self) -> str:
        swapped = "all that are not kept are swapped to the counterfactual in one run"
        rest = (_WORDS[self.mlps], "embeddings clean")
        if self.units == "wires":
            rest = ("MLPs and the embedding are writers and readers as heads are",)
        parts = (swapped, *rest, _WORDS[self.order].format(f"{self.measured:,}"))
        return f"{COUNTED[self.units]}, {_WORDS[self.positions]}; {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Ranked:
    """A head or an edge, its mean single effect over pairs, and the range of 95% of bootstrap resamples."""

    unit: Unit
    effect: float
    low: float
    high: float
    exact: bool = True  # measured; else a first-order estimate

    def __str__(self) -> str:
        return f"{self.unit!s:10} {self.effect:6.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Curve:
    """Explained effect (mean over pairs) for each number of units kept, with its bootstrap band."""

    sizes: tuple[int, ...]
    explained: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], values: Values, *, seed: int) -> Curve:
        """The curve of what each pair is explained by at each size."""
        bands = bootstrap(values, seed=seed)
        ends = (tuple(getattr(band, name) for band in bands) for name in ("mean", "low", "high"))
        return cls(tuple(sizes), *ends)


@dataclass(frozen=True, slots=True)
class Ranking(Saved, Pictured):
    """The heads, attention edges or component edges of a task in order, and how many of them it takes.

    >>> ranking = circuits.rank(model, "opposites", count=4)
    >>> len(ranking.ranked), ranking.model
    (144, 'mini')
    >>> circuits.Ranking.load(ranking.save(folder / "ranked")) == ranking
    True
    """

    KIND: ClassVar = "ranking"
    NAME: ClassVar = "a ranking"

    task: str
    model: str
    fingerprint: str
    gated: bool
    protocol: Protocol
    pairs: int
    left_out: tuple[tuple[str, int], ...]
    units: int  # how many heads or edges there are
    ranked: tuple[Ranked, ...]  # in order; edges that change nothing in any pair are not listed
    keep: Curve
    random: Curve  # the mean of several random orders
    cpr: float  # area under the keep curve over the share of units kept
    cmd: float  # area between the keep curve and 1
    seed: int
    each: tuple[tuple[float, ...], ...] = field(repr=False)  # explained effect for each size, for each pair
    shape: Shape | None = None  # of the model, where component edges are ranked

    def count(self, share: float = EXPLAINED) -> tuple[int | None, int | None, int | None]:
        """The fewest units, in ranked order, that explain `share`, with the range of 95% of the resamples.

        None stands where the share is never reached. Only sizes of the curve are counted.
        """
        check_share(share)
        sizes, never = np.array(self.keep.sizes), np.iinfo(np.int64).max
        reached = resampled(np.array(self.each), seed=self.seed) >= share - ROUNDING
        counts = np.sort(np.where(reached.any(1), sizes[reached.argmax(1)], never))
        ends = counts[[int(0.025 * RESAMPLES), int(0.975 * RESAMPLES) - 1]].tolist()
        low, high = (None if end == never else end for end in ends)
        return first_at_least(self.keep.sizes, self.keep.explained, share), low, high

    def needed(self, share: float = EXPLAINED) -> tuple[Unit, ...]:
        """The units that explain `share`; all that are listed where it is never reached."""
        return tuple(each.unit for each in self.ranked[: self.count(share)[0]])

    def random_at(self, size: int) -> float:
        """The explained effect of as many random units, read off the control between its nearest sizes."""
        return float(np.interp(size, self.random.sizes, self.random.explained))

    def to_values(self) -> dict[str, Any]:
        """The record as plain values, units by name."""
        return asdict(self) | {"ranked": [asdict(each) | {"unit": str(each.unit)} for each in self.ranked]}

    @classmethod
    def from_stored(cls, stored: dict[str, Any], arrays: Arrays | None = None) -> Ranking:
        """The record, without what files hold beside it for other readers."""
        stored = {name: value for name, value in stored.items() if name not in _BESIDE}
        if isinstance(protocol := stored.get("protocol"), dict):
            protocol.pop("words", None)
        return to_record(cls, stored)

    def check(self) -> None:
        for curve in (self.keep, self.random):
            lengths = {len(values) for values in (curve.sizes, curve.explained, curve.low, curve.high)}
            sizes = sorted({0, *(size for size in curve.sizes if 0 < size <= self.units)})
            each_once = len(lengths) == 1 and list(curve.sizes) == sizes
            require(each_once, "its curves do not have one value for each size, from no unit to all")
        lengths = [len(values) for values in self.each]
        whole = self.pairs >= 1 and lengths == [self.pairs] * len(self.keep.sizes)
        require(whole, f"it does not have one value for each size and each of its {self.pairs} pairs")
        kind = {"heads": Head, "edges": RoleEdge, "wires": ComponentEdge}[self.protocol.units]
        alike = all(isinstance(each.unit, kind) for each in self.ranked)
        listed = f"{self.units} {COUNTED[self.protocol.units]}"
        require(len(self.ranked) <= self.units and alike, f"what it ranks is not at most {listed}")

    def __str__(self) -> str:
        from circuits.show.task_tables import ranking_text

        return ranking_text(self)


def heads_of(ranking: Ranking, share: float = EXPLAINED) -> tuple[Head, ...]:
    """The heads that explain a share, in ranked order; of a ranking of edges, the heads of those edges."""
    return tuple(dict.fromkeys(head for unit in ranking.needed(share) for head in _heads(unit)))


def _heads(unit: Unit) -> tuple[Head, ...]:
    if isinstance(unit, ComponentEdge):
        return unit.heads
    return (unit if isinstance(unit, Head) else unit.head,)


def random_count(ranking: Ranking, share: float = EXPLAINED) -> int | None:
    """How many units in random order explain a share, read off the control between its sizes."""
    sizes, explained = ranking.random.sizes, ranking.random.explained
    count = first_at_least(sizes, explained, share)
    if not count:
        return count
    around = slice(sizes.index(count) - 1, sizes.index(count) + 1)
    return math.ceil(np.interp(share, explained[around], sizes[around]) - 1e-9)


def counted(ranking: Ranking, size: int | None) -> int | None:
    """How many of the first `size` units change anything; those that change nothing stand between units of
    positive and of negative effect, and are in no circuit."""
    if size is None:
        return None
    positive, idle = sum(each.effect > 0 for each in ranking.ranked), ranking.units - len(ranking.ranked)
    return min(size, positive) + max(0, size - positive - idle)


def geometric(total: int, *, small: int, step: float) -> list[int]:
    """0…small, then each `step` times the one before, and total."""
    sizes = list(range(min(small, total) + 1))
    while sizes[-1] < total:
        sizes.append(min(total, math.ceil(sizes[-1] * step)))
    return sizes


def measure_curve(
    measure: Callable[[list[int]], Values], total: int, *, also: Sequence[int] = ()
) -> tuple[list[int], Values]:
    """The sizes of a curve, with those that make the counts for SHARES exact, and the values at each. `also`
    are sizes that must be among them."""
    sizes = list(range(total + 1)) if total <= EVERY_SIZE else geometric(total, small=8, step=1.5)
    sizes = sorted({*sizes, *also})
    values = dict(zip(sizes, measure(sizes), strict=True))
    for share in SHARES:
        while True:
            sizes = sorted(values)
            count = first_at_least(sizes, [float(values[size].mean()) for size in sizes], share)
            below = sizes[bisect_left(sizes, count) - 1] if count else 0
            if not count or count - below <= 1:
                break
            probes = {below + (count - below) * part // (_PROBES + 1) for part in range(1, _PROBES + 1)}
            inside = sorted(probes - {below, count})
            values |= zip(inside, measure(inside), strict=True)
    return sizes, np.stack([values[size] for size in sizes])


def first_at_least(sizes: Sequence[int], explained: Sequence[float], share: float) -> int | None:
    """The first size whose explained effect reaches the share (up to rounding)."""
    reached = (size for size, value in zip(sizes, explained, strict=True) if value >= share - ROUNDING)
    return next(reached, None)


def areas(sizes: Sequence[float], explained: Sequence[float]) -> tuple[float, float]:
    """CPR and CMD."""
    kept, values = np.asarray(sizes) / sizes[-1], np.asarray(explained)
    return float(np.trapezoid(values, kept)), float(np.trapezoid(np.abs(1 - values), kept))


def mib_sizes(total: int) -> list[int]:
    """How many edges MIB keeps at each of its shares."""
    return [int(share * total) for share in MIB_SHARES]
