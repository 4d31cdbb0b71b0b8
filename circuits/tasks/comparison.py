"""The records of `compare`: one mapping in two circuits, and one task in two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from circuits.components import Head
from circuits.errors import PromptError, escaped
from circuits.prompts import Pair, Prompt
from circuits.results import Arrays, OfHeads, Pictured, Saved, Tabular, require
from circuits.tasks.patterns import Changed, PanelFigures, changed
from circuits.tasks.ranking import COUNTED, EXPLAINED, Ranking, Units
from circuits.tracing.parts import Verdict

Maps = tuple[np.ndarray, ...]  # (query, key), one for each head
SIDES: Final = ("first", "second")  # the names of the arrays of a TaskComparison
NOTICEABLE: Final = 0.05  # a head whose effect changes by less has not moved


@dataclass(frozen=True, slots=True)
class Moved:
    """One head that does more or less of a mapping in the second model than in the first."""

    head: Head
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.head} {self.before:+.2f} → {self.after:+.2f}"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(OfHeads, Saved, Pictured):
    """One mapping in two models.

    >>> both = circuits.compare(found, found)
    >>> both.jaccard, both.ratio
    (1.0, 1.0)
    >>> circuits.Comparison.load(both.save(folder / "compared")) == both
    True
    """

    KIND: ClassVar = "comparison"
    NAME: ClassVar = "a comparison of two circuits"

    names: tuple[str, str]
    key: int
    query: int
    share: float
    totals: tuple[float, float]
    modulations: tuple[float, float]
    carriers: tuple[tuple[Head, ...], tuple[Head, ...]]
    open_edges: tuple[int, int]
    edges: tuple[int, int]
    # Heads whose effect changed and carriers, largest change first; empty where the models differ in shape.
    moved: tuple[Moved, ...]
    # The verdict on each circuit's question; None in files of version 0.2.
    verdicts: tuple[Verdict | None, Verdict | None] = (None, None)
    reasons: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # why each is not clear
    # Why each modulation is withheld.
    doubts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    pair: Pair | None = None  # what the first circuit was asked; None in older files

    @property
    def summary(self) -> str:
        """Models, mapping and totals."""
        totals = " against ".join(f"{total:.3f}" for total in self.totals)
        return (
            f"of {self.names[0]} with {self.names[1]}: {self.key}→{self.query}, total {totals}"
        )

    @property
    def ratio(self) -> float:
        """How many times more heads the first needs (infinite if the second needs none)."""
        first, second = (len(heads) for heads in self.carriers)
        return first / second if second else float("inf")

    @property
    def overlap(self) -> tuple[Head, ...]:
        """The carriers that both share."""
        return tuple(head for head in self.carriers[0] if head in self.carriers[1])

    @property
    def jaccard(self) -> float:
        """Shared carriers as a share of all carriers of either."""
        either = {*self.carriers[0], *self.carriers[1]}
        return len(self.overlap) / len(either) if either else 0.0

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each head whose effect changed, and for each carrier."""
        rows = []
        for each in self.moved:
            carries = [each.head in heads for heads in self.carriers]
            row = {"head": str(each.head), "before": each.before, "after": each.after}
            row |= {"effect": each.after - each.before}
            rows.append(row | {"carries_before": carries[0], "carries_after": carries[1]})
        return rows

    def check(self) -> None:
        require(0 <= self.key <= self.query, "its key and query run backwards")
        require(0 < self.share <= 1, f"its share is {self.share}, not above 0 and at most 1")
        for heads in self.carriers:
            require(len(set(heads)) == len(heads), "it names a carrier twice")

    def _column(self, side: int) -> tuple[str, ...]:
        """What the printed table says of one model, from its name down."""
        modulation = f"{self.modulations[side]:.0%}"
        if self.doubts[side]:
            modulation = "withheld"
        return (
            escaped(self.names[side]),
            self.verdicts[side] or "not judged",
            f"{self.totals[side]:.3f}",
            str(len(self.carriers[side])),
            modulation,
            f"{self.open_edges[side]} of {self.edges[side]}",
        )

    def __str__(self) -> str:
        names = [escaped(name) for name in self.names]
        total = f"total {self.key}→{self.query}"
        heads = f"heads for {self.share:.0%}"
        labels = ("", "question", total, heads, "modulation", "open edges")
        first, second = self._column(0), self._column(1)
        lines = []
        for label, one, two in zip(labels, first, second, strict=True):
            lines.append(f"{label:16}{one:>20}{two:>20}")
        for side, name in enumerate(names):
            for reason in dict.fromkeys((*self.reasons[side], *self.doubts[side])):
                lines.append(f"{name}: {escaped(reason)}")
            lines.append(f"{name}: {_names(self.carriers[side])}")
        lines.append(
            f"shared: {_names(self.overlap)} ({self.jaccard:.0%} of all carriers of either)"
        )
        moved = [each for each in self.moved if abs(each.after - each.before) >= NOTICEABLE]
        if moved:
            lines.append(f"moved: {', '.join(map(str, moved[:5]))}")
        return "\n".join(lines)


def _names(heads: Sequence[Head]) -> str:
    return " ".join(map(str, heads)) or "none"


@dataclass(frozen=True, slots=True, repr=False)
class TaskComparison(Tabular, Saved, Pictured):
    """One task in two models.

    >>> sparse = circuits.load("mini-sparse")
    >>> both = circuits.compare(model, sparse, task="opposites", count=4, units=("heads",))
    >>> both.models, len(both.overlap) > 0
    (('mini', 'mini-sparse'), True)
    >>> circuits.TaskComparison.load(both.save(folder / "on a task")) == both
    True
    """

    KIND: ClassVar = "task_comparison"
    NAME: ClassVar = "a comparison on a task"

    task: str
    models: tuple[str, str]
    same_pairs: bool  # both were asked the same pairs
    prompts: tuple[Prompt, Prompt]  # the first clean prompt of each, whose maps are shown
    rankings: tuple[tuple[Ranking, Ranking], ...]  # one couple for each kind of unit
    needed: tuple[PanelFigures, PanelFigures]  # the heads that explain 90%, in ranked order
    panels: tuple[PanelFigures, PanelFigures]  # all heads
    arrays_sha256: str
    # "first", "second": the maps of all heads in `order`, on `prompts`, (head, query, key)
    arrays: Arrays = field(repr=False, compare=False, hash=False)
    examples: tuple[Pair, Pair] | None = None  # the first pair of each; None in older files

    @property
    def summary(self) -> str:
        """Models, task and how many units of each kind it takes."""
        counts = []
        for first, second in self.rankings:
            needed = (first.count()[0], second.count()[0])
            counts.append(f"{first.protocol.units} {needed[0]} against {needed[1]}")
        return (
            f"of {self.models[0]} with {self.models[1]} on {self.task}: n90 {', '.join(counts)}"
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each ranked unit of each model."""
        rows = []
        for couple in self.rankings:
            for ranking in couple:
                units = {"model": ranking.model, "units": ranking.protocol.units}
                rows += [units | row for row in ranking.to_rows()]
        return rows

    @property
    def maps(self) -> tuple[Maps, Maps]:
        """The maps of all heads of each model, in `order`, on `prompts`."""
        return tuple(self.arrays["first"]), tuple(self.arrays["second"])

    def order(self, side: int) -> tuple[Head, ...]:
        """All heads of one model (0 or 1): those that explain 90% first, then the others, as ranked."""
        ranked = [
            each.unit for each in self.rankings[0][side].ranked if isinstance(each.unit, Head)
        ]
        return tuple(
            dict.fromkeys([*self.needed[side].heads, *ranked, *self.panels[side].heads])
        )

    def ranking(self, units: Units) -> tuple[Ranking, Ranking]:
        """Both rankings of heads, of attention edges or of component edges."""
        for couple in self.rankings:
            if couple[0].protocol.units == units:
                return couple
        raise PromptError(
            f"{COUNTED.get(units, units)} were not ranked here; ask for them with units=({units!r},)"
        )

    def ratio(self, units: Units, share: float = EXPLAINED) -> float | None:
        """How many times more the first needs; None where either never reaches the share."""
        first, second = (ranking.count(share)[0] for ranking in self.ranking(units))
        return None if first is None or not second else first / second

    @property
    def comparable(self) -> bool:
        """Whether a head's name means the same head in both models."""
        return self.panels[0].heads == self.panels[1].heads

    @property
    def changes(self) -> tuple[Changed, ...]:
        """The heads that both models take, with their patterns in each; none if models differ in shape."""
        return changed(*self.needed) if self.comparable else ()

    @property
    def overlap(self) -> tuple[Head, ...]:
        """The heads that both models take, in the order of the first."""
        return tuple(each.head for each in self.changes)

    @classmethod
    def file_name(cls) -> str:
        return "comparison.json"

    @classmethod
    def from_stored(
        cls, stored: dict[str, Any], arrays: Arrays | None = None
    ) -> TaskComparison:
        """The record, without the summary that the command line writes beside it for other readers."""
        record = {name: value for name, value in stored.items() if name != "summary"}
        return super(TaskComparison, cls).from_stored(record, arrays)

    def check(self) -> None:
        require(bool(self.rankings), "it has no rankings")
        for first, second in self.rankings:
            alike = first.protocol.units == second.protocol.units
            require(alike, "it has two rankings of different units side by side")
            first.check()
            second.check()
        for panel in (*self.needed, *self.panels):
            panel.check()
        for side, name in enumerate(SIDES):
            maps = self.arrays.get(name, np.zeros(0))
            length = len(self.prompts[side])
            fits = maps.shape == (len(self.order(side)), length, length)
            numbers = maps.dtype.kind == "f" and bool(np.isfinite(maps).all())
            wrong = f"its {name} maps are not finite numbers of its heads and its tokens"
            require(fits and numbers, wrong)

    def __str__(self) -> str:
        from circuits.show.task_tables import task_comparison_text

        return task_comparison_text(self)
