"""The mean over the lines of a sweep, with 95% intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from circuits.components import Head
from circuits.errors import PromptError, escaped
from circuits.results import OfHeads, Pictured, Saved, require
from circuits.show.words import heads_carry, plural, spell, verdict_in_short, verdict_lines
from circuits.sweeps.manifest import Manifest
from circuits.tracing import FamilyControl, Interval
from circuits.tracing.family import bootstrap
from circuits.tracing.trust import weak_pairs

if TYPE_CHECKING:
    from circuits.show.head_plots import HeadPlot


@dataclass(frozen=True, slots=True)
class MeanHead:
    """One head over many lines."""

    head: Head
    effect: Interval
    carries: float  # the share of lines of which it is a carrier

    def __str__(self) -> str:
        return f"{self.head!s:8}{self.effect}  carries in {self.carries:.0%} of lines"


@dataclass(frozen=True, slots=True, repr=False)
class MeanCircuit(OfHeads, Saved, Pictured):
    """The mean over lines. A head that carries in most lines carries in the mean circuit."""

    KIND: ClassVar = "mean"
    NAME: ClassVar = "the mean of a sweep"

    model: str
    lines: int
    share: float
    total: Interval
    restore: Interval
    modulation: Interval
    count: Interval  # carriers a line
    heads: tuple[MeanHead, ...]  # strongest first
    weak: int = 0  # lines that were left out: their gap is too small beside their own values or the others'
    unclear: int = 0  # lines that were left out: their question is not clear
    withheld: int = 0  # of the lines, those whose modulation is withheld and not in its mean
    # The verdict on all lines; None in files of version 0.2.
    question: FamilyControl | None = None

    def check(self) -> None:
        heads = [mean.head for mean in self.heads]
        require(self.lines >= 1 and bool(heads), "it has no lines or no heads")
        require(len(set(heads)) == len(heads), "it names a head twice")
        shares = [self.share, *(mean.carries for mean in self.heads)]
        require(all(0 <= share <= 1 for share in shares), "it has a share below 0 or above 1")

    def carriers(self, least: float = 0.5) -> tuple[Head, ...]:
        """The heads that are carriers in at least this share of the lines, the most frequent first."""
        frequent = [mean for mean in self.heads if mean.carries >= least]
        frequent.sort(key=lambda mean: (-mean.carries, mean.head))
        return tuple(mean.head for mean in frequent)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each head."""
        rows = []
        for each in self.heads:
            mean = {"head": str(each.head), "carries": each.carries, "effect": each.effect.mean}
            rows.append(mean | {"low": each.effect.low, "high": each.effect.high})
        return rows

    def heads_to_plot(self) -> HeadPlot:
        """What its figure shows; `circuits.show.head_plots` draws it."""
        from circuits.show.head_plots import HeadPlot, interval_rows

        carriers = self.carriers()
        finding = (
            f"{heads_carry(len(carriers))} in at least half of {plural(self.lines, 'line')}"
        )
        total = f"total {self.total.mean:z.2f} of the gap"
        question = f"{spell(self.model)}; mean of all lines{verdict_in_short(self)}; {total}"
        rows = interval_rows([(mean.head, mean.effect) for mean in self.heads], carriers)
        return HeadPlot(finding, question, rows, marked="carries in at least half of the lines")

    def _modulation_words(self) -> str:
        if not self.withheld:
            return f"modulation {self.modulation}"
        if self.withheld == self.lines:
            return "modulation withheld in every line"
        return f"modulation {self.modulation} (withheld in {self.withheld})"

    def __str__(self) -> str:
        effects = f"total {self.total}, restore {self.restore}"
        carriers = f"{self.count} a line, {self._modulation_words()}"
        left_out = []
        if self.weak:
            left_out.append(f"{self.weak} more left out as weak")
        if self.unclear:
            left_out.append(f"{self.unclear} more left out as not clear")
        beside = f" ({', '.join(left_out)})" if left_out else ""
        lines = [
            f"{escaped(self.model)}, mean of {plural(self.lines, 'line')}{beside}: {effects}"
        ]
        lines += verdict_lines(self)
        lines.append(f"Carriers at a share of {self.share:.0%}: {carriers}")
        return "\n".join([*lines, *(f"  {mean}" for mean in self.heads[:8])])


def mean_of(
    table: pd.DataFrame, manifest: Manifest, *, question: FamilyControl | None, seed: int
) -> MeanCircuit:
    """The mean of measured lines: of the clear ones, or where none is clear of all whose gap is worth
    dividing by. `question` is the verdict on all of them."""
    is_weak, is_unclear = _left_out(table)
    table = table.loc[~is_weak & ~is_unclear]
    shared = [table[name].to_numpy(np.float64) for name in ("total", "restore")]
    counts = table["carriers"].map(len).to_numpy(np.float64)
    effects = np.stack(list(table["effects"]), 1).astype(np.float64)  # (head, line)
    values = np.vstack([*shared, counts, effects])
    total, restore, count, *mean_effects = bootstrap(values, seed=seed)
    is_withheld = np.array([bool(doubts) for doubts in table["doubts"]])
    modulations = table["modulation"].to_numpy(np.float64)[~is_withheld]
    modulation = Interval(0.0, 0.0, 0.0)
    if len(modulations):
        (modulation,) = bootstrap(modulations[None], seed=seed)
    return MeanCircuit(
        model=manifest.model,
        lines=len(table),
        share=manifest.share,
        total=total,
        restore=restore,
        modulation=modulation,
        count=count,
        heads=_mean_heads(table, mean_effects, manifest.heads),
        weak=int(is_weak.sum()),
        unclear=int(is_unclear.sum()),
        withheld=int(is_withheld.sum()),
        question=question,
    )


def _left_out(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Which lines have too small a gap to divide by, and which of the others are not clear; none of those
    where all others are."""
    clean = table["clean_value"].tolist()
    is_weak = np.array(weak_pairs(clean, table["counterfactual_value"].tolist()))
    if is_weak.all():
        raise PromptError(
            f"none of the {len(table)} measured lines has a gap worth dividing by"
        )
    # Lines of version 0.2 have no verdict, and count as they did.
    is_unclear = ~is_weak & np.array(table["verdict"].isin(["weak", "none"]))
    if (is_weak | is_unclear).all():
        is_unclear[:] = False
    return is_weak, is_unclear


def _mean_heads(
    table: pd.DataFrame, effects: Sequence[Interval], heads_a_layer: int
) -> tuple[MeanHead, ...]:
    """Every head with its mean effect, the strongest first."""
    carries_in: Counter[str] = Counter()  # in how many lines a head is a carrier
    for carriers in table["carriers"]:
        carries_in.update(carriers)
    means = []
    for index, effect in enumerate(effects):
        head = Head(*divmod(index, heads_a_layer))
        means.append(MeanHead(head, effect, carries_in[str(head)] / len(table)))
    means.sort(key=lambda mean: (-mean.effect.mean, mean.head))
    return tuple(means)
