"""The result of `stability`: which heads carry a mapping under other counterfactuals of the same kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from circuits.components import Head
from circuits.errors import escaped
from circuits.prompts import Pair
from circuits.results import OfHeads, Pictured, Saved, require
from circuits.tracing.parts import CORE, FamilyControl, Interval, QuestionControl


@dataclass(frozen=True, slots=True)
class HeadStability:
    """A head that carries the mapping under some counterfactuals."""

    head: Head
    carries: float  # the share of runs in which it is a carrier
    effect: Interval  # over all runs

    def __str__(self) -> str:
        return f"{self.head!s:8}carries in {self.carries:.0%} of runs, effect {self.effect}"


@dataclass(frozen=True, slots=True, repr=False)
class Stability(OfHeads, Saved, Pictured):
    """A mapping under other counterfactuals of the same kind.

    >>> steady = circuits.stability(model, TEXT, key="large", swap={"large": "hot"}, n=3)
    >>> len(steady.counterfactuals), set(steady.core) <= {each.head for each in steady.heads}
    (3, True)
    """

    KIND: ClassVar = "stability"
    NAME: ClassVar = "a record of stability"

    key: int
    query: int
    share: float
    counterfactuals: tuple[str, ...]  # one for each run
    total: Interval
    heads: tuple[HeadStability, ...]  # carriers of any run, the most frequent first
    overlap: float  # the mean share that two runs' carriers have in common
    shares: tuple[tuple[float, tuple[Head, ...]], ...]  # the core at neighbouring shares
    restore: tuple[Head, ...] | None  # the carriers in the other direction; None for noise
    weak: int = 0  # counterfactuals that were left out: they hardly move the answer
    # The verdict on the pair that was asked first, or on all pairs of a family.
    question: QuestionControl | FamilyControl | None = None
    doubts: tuple[str, ...] = ()  # reasons why the modulation of that pair is withheld
    # The model and the first pair; empty and None in older files.
    model: str = ""
    pair: Pair | None = None

    @property
    def core(self) -> tuple[Head, ...]:
        """The heads that carry in at least 80% of the runs."""
        return tuple(each.head for each in self.heads if each.carries >= CORE)

    @property
    def rim(self) -> tuple[Head, ...]:
        """The other carriers."""
        return tuple(each.head for each in self.heads if each.carries < CORE)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each head that carries in any run."""
        rows = []
        for each in self.heads:
            mean = {"head": str(each.head), "carries": each.carries, "effect": each.effect.mean}
            rows.append(mean | {"low": each.effect.low, "high": each.effect.high})
        return rows

    def check(self) -> None:
        require(0 <= self.key <= self.query, "its key and query run backwards")
        require(bool(self.counterfactuals), "it has no counterfactuals")
        heads = [each.head for each in self.heads]
        require(len(set(heads)) == len(heads), "it names a head twice")
        shares = [
            self.share,
            *(each.carries for each in self.heads),
            *(share for share, _ in self.shares),
        ]
        require(all(0 <= share <= 1 for share in shares), "it has a share below 0 or above 1")

    def __str__(self) -> str:
        weak = f" ({self.weak} more hardly move the answer)" if self.weak else ""
        runs = (
            f"{self.key}→{self.query} under {len(self.counterfactuals)} counterfactuals{weak}"
        )
        lines = [f"{runs}: total {self.total}, carriers overlap by {self.overlap:.0%}"]
        if self.doubts:
            lines.append(
                f"Modulation withheld: {escaped(self.doubts[0])}; that holds for this core, too"
            )
        elif self.question is not None:
            lines.append(f"Verdict on the question: {self.question.verdict}")
        lines.append(f"core (in {CORE:.0%} of runs or more): {_names(self.core)}")
        lines.append(f"rim: {_names(self.rim)}")
        for share, core in self.shares:
            lines.append(f"core at a share of {share:.0%}: {_names(core)}")
        if self.restore is not None:
            lines.append(f"carriers in the other direction (restore): {_names(self.restore)}")
        lines += [f"  {each}" for each in self.heads[:8]]
        return "\n".join(lines)


def _names(heads: tuple[Head, ...]) -> str:
    return " ".join(map(str, heads)) or "none"
