"""The record of a ranking: units in order with their effects, the keep curve with its control, and the
protocol behind it all.

A unit is a head, an attention edge (one head, one key, one query) or a component edge (one writer, one
reader, all positions together). CPR and CMD of component edges, which MIB counts, are MIB's own: ten sizes
from 0.1% to all, and at each the mean of the metric over the pairs, less that of the counterfactual, over the
mean gap. Of other units they go over all sizes from none to all, and average each pair's explained effect.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal

import numpy as np

from circuits.components import ROUNDING, Component, Head, Reader, Wire, by_name
from circuits.engine.ablation import SWAP, Ablation
from circuits.engine.rows import Direction
from circuits.errors import EdgeError, PromptError
from circuits.files import to_record
from circuits.results import Arrays, OfHeads, Pictured, Saved, require
from circuits.tasks.curve import Curve, first_at_least
from circuits.tracing import check_share
from circuits.tracing.family import RESAMPLES, resampled
from circuits.tracing.parts import FamilyControl

Units = Literal["heads", "edges", "wires"]
Mlps = Literal["computed", "held", "swapped"]
UNITS: Final[tuple[Units, ...]] = ("heads", "edges", "wires")
# What a count counts; the two kinds of edges are never mixed.
COUNTED: Final[dict[Units, str]] = {
    "heads": "heads",
    "edges": "attention edges",
    "wires": "component edges",
}
MLPS: Final[tuple[Mlps, ...]] = ("computed", "held", "swapped")
# The share of a task's effect that the units must explain, unless told otherwise.
EXPLAINED: Final = 0.9
SHARES: Final = (0.8, EXPLAINED, 0.95)

_SOURCES: Final[dict[Direction, str]] = {
    "swap": "all that are not kept are swapped to the counterfactual in one run",
    "restore": "those that are kept are put back, clean, into the counterfactual run",
    "zero": "all that are not kept write nothing, in one run",
    "mean": "all that are not kept write their mean over prompts, in one run",
    "knockout": "all that are not kept are shut in one run, the other keys renormalise",
    "noise": "all that are not kept write what they do with noise on the changed tokens, in one run",
}
_BESIDE: Final = (
    "the exact effects of the first {} stand beside it, of the others their EAP estimates"
)
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
    "given": "in the order of a file, by the size of its scores; " + _BESIDE,
    "search": "in the order in which the search for small circuits kept them, the longest first; "
    + _BESIDE,
    "eap": "in the order of edge attribution patching (EAP), by size; " + _BESIDE,
    "eap-ig": "in the order of EAP with integrated gradients (5 steps), by size; " + _BESIDE,
}


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
            raise EdgeError(
                f"{name!r} is not the name of an edge; write head, key, query as L11H7:S1→END"
            )
        return cls(Head.parse(head), key, query)

    __get_pydantic_core_schema__ = classmethod(by_name)


@dataclass(frozen=True, slots=True)
class ComponentEdge:
    """One writer, one reader, at all positions together: `L4H4→L5H1.query`, `M5→logits`."""

    writer: Component
    reader: str  # its name, since the layer of the logits depends on the model

    def __str__(self) -> str:
        return f"{self.writer}→{self.reader}"

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads at its two ends."""
        ends = (self.writer, Reader.parse(self.reader, layers=0).component)
        return tuple(end.head for end in ends if end is not None and end.kind == "head")

    @classmethod
    def of(cls, wire: Wire) -> ComponentEdge:
        return cls(wire.writer, str(wire.reader))

    @classmethod
    def parse(cls, name: str) -> ComponentEdge:
        """Read `L4H4→L5H1.query`, or EAP's `a4.h4->a5.h1<q>`."""
        wire = Wire.parse(name, layers=0)
        if not holds_everywhere(wire):
            raise EdgeError(
                f"{name!r} is not a component edge; write it as L4H4→L5H1.query, with no position"
            )
        return cls.of(wire)

    __get_pydantic_core_schema__ = classmethod(by_name)


Unit = Head | RoleEdge | ComponentEdge
_CLASS_OF: Final = {"heads": Head, "edges": RoleEdge, "wires": ComponentEdge}


def holds_everywhere(wire: Wire) -> bool:
    """Whether a wire is a component edge: one writer, one reader, and no position."""
    return wire.position is None and wire.query is None and wire.writer.kind != "all"


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
    order: Literal["exact", "loading", "front", "given", "search", "eap", "eap-ig"] = "exact"
    source: Direction = "swap"  # what stands in the place of units that are not kept
    measured: int = 0  # of component edges: how many effects are exact where not all are

    def __str__(self) -> str:
        parts = [_SOURCES[self.source]]
        if self.units == "wires":
            parts.append("MLPs and the embedding are writers and readers as heads are")
        else:
            embeddings = "counterfactual's" if self.source == "restore" else "clean"
            parts += [_WORDS[self.mlps], f"embeddings {embeddings}"]
        parts.append(_WORDS[self.order].format(f"{self.measured:,}"))
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


@dataclass(frozen=True, slots=True, repr=False)
class Ranking(OfHeads, Saved, Pictured):
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
    # Explained effect for each size, for each pair.
    each: tuple[tuple[float, ...], ...] = field(repr=False)
    shape: Shape | None = None  # of the model, where component edges are ranked
    # The verdict on its pairs; None in files of version 0.2.
    question: FamilyControl | None = None
    ablation: Ablation = SWAP

    @property
    def summary(self) -> str:
        """Model, task and how many units it takes."""
        needed, low, high = self.count()
        units = f"{self.units} {self.protocol.units}"
        return f"of {self.model} on {self.task}: n90 {needed} [{low}, {high}] of {units}"

    def count(self, share: float = EXPLAINED) -> tuple[int | None, int | None, int | None]:
        """The fewest units, in ranked order, that explain `share`, with the range of 95% of the resamples.

        None stands where the share is never reached. Only sizes of the curve are counted.
        """
        check_share(share)
        sizes = np.array(self.keep.sizes)
        means = resampled(np.array(self.each), seed=self.seed)  # (resample, size)
        reached = means >= share - ROUNDING
        counts = np.where(reached.any(1), sizes[reached.argmax(1)], np.inf)
        counts.sort()
        low = counts[int(0.025 * RESAMPLES)]
        high = counts[int(0.975 * RESAMPLES) - 1]
        return (
            first_at_least(self.keep.sizes, self.keep.explained, share),
            _finite(low),
            _finite(high),
        )

    def needed(self, share: float = EXPLAINED) -> tuple[Unit, ...]:
        """The units that explain `share`; all that are listed where it is never reached."""
        count, _, _ = self.count(share)
        return tuple(each.unit for each in self.ranked[:count])

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each ranked head or edge, in order; a head by the name `head`, an edge by `edge`."""
        rows = []
        for each in self.ranked:
            name = "head" if isinstance(each.unit, Head) else "edge"
            interval = {"effect": each.effect, "low": each.low, "high": each.high}
            rows.append({name: str(each.unit), **interval, "exact": each.exact})
        return rows

    def head_array(self, value: str = "effect") -> np.ndarray:
        """A number of every head, (layer, head)."""
        if self.protocol.units != "heads":
            raise PromptError(f"this ranking is of {self.protocol.units}, not of heads")
        return super(Ranking, self).head_array(value)

    def random_at(self, size: int) -> float:
        """The explained effect of as many random units, read off the control between its nearest sizes."""
        return float(np.interp(size, self.random.sizes, self.random.explained))

    def to_values(self) -> dict[str, Any]:
        """The record as plain values, units by name."""
        ranked = [asdict(each) | {"unit": str(each.unit)} for each in self.ranked]
        return asdict(self) | {"ranked": ranked}

    @classmethod
    def from_stored(cls, stored: dict[str, Any], arrays: Arrays | None = None) -> Ranking:
        """The record, without what the command line writes beside it for other readers."""
        record = dict(stored)
        record.pop("counts", None)
        record.pop("panel", None)
        if isinstance(record.get("protocol"), dict):
            record["protocol"].pop("words", None)
        return to_record(cls, record)

    def check(self) -> None:
        for curve in (self.keep, self.random):
            one_each = curve.fits(self.units)
            require(
                one_each, "its curves do not have one value for each size, from no unit to all"
            )
        whole = self.pairs >= 1 and [len(row) for row in self.each] == [self.pairs] * len(
            self.keep.sizes
        )
        require(
            whole,
            f"it does not have one value for each size and each of its {self.pairs} pairs",
        )
        kind = _CLASS_OF[self.protocol.units]
        of_this_kind = all(isinstance(each.unit, kind) for each in self.ranked)
        listed = f"{self.units} {COUNTED[self.protocol.units]}"
        require(
            len(self.ranked) <= self.units and of_this_kind,
            f"what it ranks is not at most {listed}",
        )

    def __str__(self) -> str:
        from circuits.show.task_tables import ranking_text

        return ranking_text(self)


def _finite(count: float) -> int | None:
    return None if math.isinf(count) else int(count)


def heads_of(ranking: Ranking, share: float = EXPLAINED) -> tuple[Head, ...]:
    """The heads that explain a share, in ranked order; of a ranking of edges, the heads of those edges."""
    heads: list[Head] = []
    for unit in ranking.needed(share):
        if isinstance(unit, ComponentEdge):
            heads += unit.heads
        else:
            heads.append(unit.head if isinstance(unit, RoleEdge) else unit)
    return tuple(dict.fromkeys(heads))


def random_count(ranking: Ranking, share: float = EXPLAINED) -> int | None:
    """How many units in random order explain a share, read off the control between its sizes."""
    curve = ranking.random
    count = first_at_least(curve.sizes, curve.explained, share)
    if not count:
        return count
    upper = curve.sizes.index(count)
    around = slice(upper - 1, upper + 1)
    return math.ceil(np.interp(share, curve.explained[around], curve.sizes[around]) - 1e-9)
