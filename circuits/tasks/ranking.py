"""The records of a ranking: which unit has which effect, the keep curve, its control, and the protocol that all of it depends on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from circuits.errors import CircuitsError, EdgeError, FileError, PromptError, escaped
from circuits.files import SIGNATURE, read_object, to_json, to_record, write_folder
from circuits.heads import Head, by_name
from circuits.tasks.curves import band_of_first, first_at_least

Units = Literal["heads", "edges"]
Mlps = Literal["computed", "held", "swapped"]
UNITS: Final[tuple[Units, ...]] = ("heads", "edges")
MLPS: Final[tuple[Mlps, ...]] = ("computed", "held", "swapped")
SHARES: Final = (0.8, 0.9, 0.95)
_BESIDE: Final = ("written_by", "counts", "panel")  # what files hold beside the record, for other readers

_MLPS_IN_WORDS: Final = {
    "computed": "MLPs computed from what reaches them",
    "held": "MLPs held at what they write in the clean run",
    "swapped": "MLPs swapped to what they write in the counterfactual run",
}
_POSITIONS_IN_WORDS: Final = {
    "all": "all positions",
    "roles": "positions by role",
    "absolute": "positions by index",
}
_ORDER_IN_WORDS: Final = {
    "exact": "ranked by exact single effects under the same protocol",
    "loading": "ranked by first-order estimates (each message's change times the gradient), since measuring every edge would cost too much",
}


@dataclass(frozen=True, slots=True)
class RoleEdge:
    """One head, one key and one query, each by role (`S1`, `S2+1`) or, where all prompts are laid out alike, by index."""

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
                f"{name!r} is not the name of an edge; write it as L11H7:S1→END (head, key, query)"
            )
        return cls(Head.parse(head), key, query)

    __get_pydantic_core_schema__ = classmethod(by_name)


@dataclass(frozen=True, slots=True)
class Protocol:
    """What was kept, what was swapped and how units were put in order: every count depends on it."""

    units: Units
    mlps: Mlps = "computed"
    positions: Literal["all", "roles", "absolute"] = "all"
    order: Literal["exact", "loading"] = "exact"
    source: Literal["swap"] = "swap"

    def __str__(self) -> str:
        return (
            f"{self.units}, {_POSITIONS_IN_WORDS[self.positions]}; all that are not kept are swapped to the counterfactual in one run; "
            f"{_MLPS_IN_WORDS[self.mlps]}; embeddings clean; {_ORDER_IN_WORDS[self.order]}"
        )


@dataclass(frozen=True, slots=True)
class Ranked:
    """A head or an edge, its mean single effect over pairs, and the range of 95% of the bootstrap resamples."""

    unit: Head | RoleEdge
    effect: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.unit!s:10} {self.effect:6.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Curve:
    """Explained effect (mean over pairs) for each number of units kept, with its bootstrap band."""

    sizes: tuple[int, ...]
    explained: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The heads or edges of a task in order, and how many of them it takes."""

    task: str
    model: str
    fingerprint: str
    gated: bool
    protocol: Protocol
    pairs: int
    left_out: tuple[tuple[str, int], ...]
    units: int  # how many heads or edges there are
    ranked: tuple[Ranked, ...]  # strongest first; edges that change nothing in any pair are not listed
    keep: Curve
    random: Curve  # the mean of several random orders
    cpr: float  # area under the keep curve over the share of units kept
    cmd: float  # area between the keep curve and 1
    seed: int
    each: tuple[tuple[float, ...], ...] = field(repr=False)  # explained effect for each size, for each pair

    def count(self, share: float = 0.9) -> tuple[int | None, int | None, int | None]:
        """The fewest units, in ranked order, that explain `share`, and the range of 95% of the bootstrap resamples.

        None stands where the share is never reached. Sizes between those of the curve are never counted.
        """
        if not 0 < share <= 1:
            raise PromptError(f"a share lies above 0 and at most at 1, not at {share}")
        low, high = band_of_first(self.keep.sizes, self.each, share, seed=self.seed)
        return first_at_least(self.keep.sizes, self.keep.explained, share), low, high

    def needed(self, share: float = 0.9) -> tuple[Head | RoleEdge, ...]:
        """The units that explain `share`; all that are listed where it is never reached."""
        count = self.count(share)[0]
        return tuple(known.unit for known in self.ranked[:count])

    def random_at(self, size: int) -> float:
        """The explained effect of as many random units, read off the control between its nearest sizes."""
        sizes, values = self.random.sizes, self.random.explained
        after = next((index for index, known in enumerate(sizes) if known >= size), len(sizes) - 1)
        if sizes[after] == size or after == 0:
            return values[after]
        share = (size - sizes[after - 1]) / (sizes[after] - sizes[after - 1])
        return values[after - 1] + share * (values[after] - values[after - 1])

    # Files

    def to_values(self) -> dict[str, Any]:
        """The record as plain values, units by name."""
        ranked = [
            {"unit": str(known.unit), "effect": known.effect, "low": known.low, "high": known.high}
            for known in self.ranked
        ]
        return asdict(self) | {"ranked": ranked}

    def save(self, folder: str | Path) -> Path:
        """Write `ranking.json` into a folder and return its path."""
        text = to_json({"written_by": SIGNATURE} | self.to_values()) + "\n"
        write_folder(Path(folder), lambda room: (room / "ranking.json").write_bytes(text.encode()))
        return Path(folder) / "ranking.json"

    @classmethod
    def load(cls, path: str | Path) -> Ranking:
        """Read a ranking from a file that `save`, `circuits rank -o` or `circuits compare -o` wrote, or from its folder."""
        file = Path(path)
        file = file / "ranking.json" if file.is_dir() else file
        stored = {name: value for name, value in read_object(file).items() if name not in _BESIDE}
        if isinstance(protocol := stored.get("protocol"), dict):
            protocol.pop("words", None)
        try:
            known = to_record(cls, stored)
            _check(known)
        except CircuitsError as why:
            raise FileError(
                f"{file} is not a ranking as this version writes it ({why}); rank the task again"
            ) from why
        return known

    def __str__(self) -> str:
        lines = [
            f"{self.task} on {self.model}: {self.pairs} pairs, {self.units} {self.protocol.units}",
            f"protocol: {self.protocol}",
        ]
        lines += [f"left out: {count} {reason}" for reason, count in self.left_out]
        lines.append(
            f"none kept explain {_share(self.keep.explained[0])}, all kept explain {_share(self.keep.explained[-1])}"
        )
        for share in SHARES:
            count, low, high = self.count(share)
            chance = "" if count is None else f"; as many random ones explain {_share(self.random_at(count))}"
            lines.append(f"n{share * 100:g}: {_count(count)} [{_count(low)}, {_count(high)}]{chance}")
        lines.append(f"CPR {self.cpr:.3f}, CMD {self.cmd:.3f}")
        lines += [f"  {known}" for known in self.ranked[:10]]
        return "\n".join(map(escaped, lines))  # names may come from a file


def _check(known: Ranking) -> None:
    """Refuse a ranking whose parts do not belong together: what reads it relies on this."""
    for curve in (known.keep, known.random):
        if (
            len({len(curve.sizes), len(curve.explained), len(curve.low), len(curve.high)}) > 1
            or not curve.sizes
        ):
            raise FileError("its curves have not one value for each size")
        if (
            curve.sizes[0] != 0
            or list(curve.sizes) != sorted(set(curve.sizes))
            or curve.sizes[-1] > known.units
        ):
            raise FileError("its curves do not go from no unit to all, each size once")
    if (
        len(known.each) != len(known.keep.sizes)
        or known.pairs < 1
        or any(len(values) != known.pairs for values in known.each)
    ):
        raise FileError(f"it has not one value for each size and each of its {known.pairs} pairs")
    kind = Head if known.protocol.units == "heads" else RoleEdge
    if len(known.ranked) > known.units or any(not isinstance(each.unit, kind) for each in known.ranked):
        raise FileError(f"what it ranks is not at most {known.units} {known.protocol.units}")


def _share(value: float) -> str:
    return "nothing" if math.isclose(value, 0, abs_tol=5e-4) else f"{value:.1%}"


def _count(value: int | None) -> str:
    return "never" if value is None else str(value)
