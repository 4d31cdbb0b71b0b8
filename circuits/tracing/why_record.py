"""`Why`, the result of `why`: which writers each side of one head reads, and the QK attribution of its score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np

from circuits.components import SIDES, Component, Head, Side
from circuits.engine.ablation import SWAP, Ablation
from circuits.errors import EdgeError, shortened
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.results import Arrays, OfHeads, Pictured, Saved, require
from circuits.tracing.parts import FamilyControl, MeasuredModel, check_positions

BIASES: Final = "biases"  # what no component wrote into a score


@dataclass(frozen=True, slots=True)
class WriterEffect:
    """The effect of one writer on one side, and the head's attention weight on the edge with it swapped."""

    writer: Component
    position: int | None  # None: at every key
    effect: float
    weight: float

    def __str__(self) -> str:
        return str(self.writer) if self.position is None else f"{self.writer}@{self.position}"


@dataclass(frozen=True, slots=True)
class SideWriters:
    """One side of the head: its effect, and who wrote what it reads, strongest first."""

    side: Side
    effect: float  # the whole side read from the counterfactual stream
    weight: float  # the attention weight on the edge then
    writers: tuple[WriterEffect, ...]
    together: float  # the leading writers swapped in one run
    leading: int  # how many these are


@dataclass(frozen=True, slots=True)
class QKPart:
    """The part of the score that comes from one writer of the query and one writer of the key."""

    query_writer: str
    key_writer: str
    part: float


@dataclass(frozen=True, slots=True)
class QKAttribution:
    """The QK attribution of the clean score; `parts` and `rest` add up to it, and so do both sums."""

    score: float
    parts: tuple[QKPart, ...]  # the largest
    rest: float  # all others
    by_query_writer: tuple[tuple[str, float], ...]
    by_key_writer: tuple[tuple[str, float], ...]

    def check(self) -> None:
        """Refuse a writer that is neither the name of a component nor the biases."""
        names = [name for name, _ in (*self.by_query_writer, *self.by_key_writer)]
        for part in self.parts:
            names += [part.query_writer, part.key_writer]
        for name in set(names) - {BIASES}:
            require(str(Component.parse(name)) == name, f"{name!r} is not the name of a writer")


@dataclass(frozen=True, slots=True, repr=False)
class Why(OfHeads, Saved, Pictured):
    """Why one head looks from one query at one key, and who wrote what it moves.

    >>> answer = circuits.why(found, "L5H1")
    >>> [side.side for side in answer.sides]
    ['query', 'key', 'value']
    """

    KIND: ClassVar = "why"
    NAME: ClassVar = "an explanation of a head"

    source: MeasuredModel
    prompt: Prompt
    counterfactual: Prompt | Noise
    metric: Metric
    gap: float
    head: Head
    key: int
    query: int
    every_key: bool
    weight: float
    counterfactual_weight: float
    effect: float  # of the message: pattern and value
    pattern: float  # of the weight alone
    sides: tuple[SideWriters, ...]
    qk_attribution: QKAttribution | None  # None on the plain path
    # The head's clean map, (query, key); None if too long.
    attention: tuple[tuple[float, ...], ...] | None
    engine: Literal["fast", "plain"]
    seed: int
    question: FamilyControl | None = None  # the verdict; None in files of version 0.2
    notes: tuple[str, ...] = ()  # sentences that are printed above the numbers
    ablation: Ablation = SWAP
    # The pairs whose mean it is; empty where there is one, which `prompt` and `counterfactual` are.
    pairs: tuple[Pair, ...] = ()
    # Key and query of each of them; empty where they are the same in all.
    all_ends: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_stored(cls, stored: dict[str, Any], arrays: Arrays | None = None) -> Why:
        """The record. Files of version 0.2 call QK attribution the ledger."""
        values = dict(stored)
        if "ledger" in values:
            values["qk_attribution"] = values.pop("ledger")
        return super(Why, cls).from_stored(values, arrays)

    @property
    def summary(self) -> str:
        """Model, head, edge and effect."""
        ends = " → ".join(self.prompt.named(position) for position in (self.key, self.query))
        return f"of {self.source.name}: {self.head} reads {ends}, effect {self.effect:.3f}"

    def side(self, name: Side) -> SideWriters:
        """The query, key or value side."""
        for side in self.sides:
            if side.side == name:
                return side
        raise EdgeError(f"no side {shortened(name)} of a head; there are {', '.join(SIDES)}")

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each writer of each side."""
        rows = []
        for side in self.sides:
            for each in side.writers:
                named = {
                    "side": side.side,
                    "writer": str(each.writer),
                    "position": each.position,
                }
                rows.append(named | {"effect": each.effect, "weight": each.weight})
        return rows

    def head_array(self, value: str = "query") -> np.ndarray:
        """The effects of the heads that write what one side reads, (layer, head); NaN above the head."""
        if value not in SIDES:
            raise EdgeError(f"no side {value!r} of a head; there are {', '.join(SIDES)}")
        array = np.full((self.source.layers, self.source.heads), np.nan)
        for each in self.side(value).writers:  # type: ignore[arg-type]
            if each.writer.kind == "head":
                array[each.writer.layer, each.writer.index] = each.effect
        return array

    def __str__(self) -> str:
        from circuits.show.why import why_text

        return why_text(self)

    def check(self) -> None:
        # Refuses prompts of different lengths.
        Pair(self.prompt, self.counterfactual, self.metric)
        self.source.checked(self.head)
        length = len(self.prompt)
        inside = 0 <= self.key <= self.query < length
        require(inside, "its key and query are not in its prompt, or run backwards")
        one_each = len(self.all_ends) in (0, len(self.pairs))
        require(one_each, "it does not have the key and query of every pair")
        if self.attention is not None:
            square = len(self.attention) == length and all(
                len(row) == length for row in self.attention
            )
            require(square, "its attention map is not that of its prompt")
        names = tuple(side.side for side in self.sides)
        require(names == SIDES, f"its sides are not {', '.join(SIDES)}")
        if self.qk_attribution is not None:
            self.qk_attribution.check()
        for side in self.sides:
            require(side.leading <= len(side.writers), "it has fewer writers than lead")
            check_positions(
                [each.position for each in side.writers if each.position is not None], length
            )
