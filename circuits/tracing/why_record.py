"""What `why` is answered with: a frozen record of plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from circuits.components import SIDES, Component, Head, Side
from circuits.links import Faults, Pictured, Saved, above
from circuits.prompts import Metric, Noise, Prompt
from circuits.tracing.records import MeasuredModel


@dataclass(frozen=True, slots=True)
class WriterEffect:
    """What one writer does on one side; the weight is the head's attention on the edge when it is swapped."""

    writer: Component
    position: int | None  # None: at every key
    effect: float
    weight: float

    def __str__(self) -> str:
        return f"{self.writer}" if self.position is None else f"{self.writer}@{self.position}"


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
class LedgerPart:
    """What one writer of the query and one of the key add to the score."""

    query_writer: str
    key_writer: str
    part: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """The clean score by writers; parts, sums and rest add up to it."""

    score: float
    parts: tuple[LedgerPart, ...]  # the largest
    rest: float  # all others
    by_query_writer: tuple[tuple[str, float], ...]
    by_key_writer: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Why(Saved, Pictured):
    """Why one head looks from one query at one key, and who wrote what it moves.

    >>> answer = circuits.why(found, "L5H1")
    >>> [side.side for side in answer.sides]
    ['query', 'key', 'value']
    """

    KIND: ClassVar = "why"
    CALLED: ClassVar = "an answer of why"

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
    ledger: Ledger | None  # None on the plain path
    attention: tuple[tuple[float, ...], ...] | None  # the head's clean map, (query, key); None if too long
    engine: Literal["fast", "plain"]
    seed: int

    def side(self, name: Side) -> SideWriters:
        """The query, key or value side."""
        return next(side for side in self.sides if side.side == name)

    def __str__(self) -> str:
        return above("why_text")(self)

    def faults(self) -> Faults:
        return _faults(self)


def _faults(why: Why) -> Faults:
    """What does not belong together: what reads an answer relies on this."""
    length, model, other = len(why.prompt), why.source, why.counterfactual
    yield not 0 <= why.key <= why.query < length, "its key and query are not in its prompt, or run backwards"
    yield why.head.layer >= model.layers or why.head.index >= model.heads, "its model lacks its head"
    if isinstance(other, Prompt):
        yield len(other) != length, f"its counterfactual has {len(other)} tokens and its prompt {length}"
    if why.attention is not None:
        square = [len(row) for row in why.attention] == [length] * length
        yield not square, "its attention map is not that of its prompt"
    yield [side.side for side in why.sides] != list(SIDES), f"its sides are not {', '.join(SIDES)}"
    yield any(side.leading > len(side.writers) for side in why.sides), "it has fewer writers than lead"
    positions = [each.position for side in why.sides for each in side.writers]
    outside = any(position is not None and not 0 <= position < length for position in positions)
    yield outside, f"a writer stands outside its prompt, which has 0…{length - 1}"
