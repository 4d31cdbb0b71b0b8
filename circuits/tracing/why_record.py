"""What `why` is answered with: a frozen record of plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from circuits.components import SIDES, Component, Head, Side
from circuits.errors import FileError
from circuits.files import parse_json, read_bytes, to_json, to_record, write_folder
from circuits.links import PICTURES, Pictured, above
from circuits.prompts import Metric, Noise, Prompt
from circuits.tracing.records import MeasuredModel, to_plain

if TYPE_CHECKING:
    pass

SCHEMA: Final = 1


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
class Why(Pictured):
    """Why one head looks from one query at one key, and who wrote what it moves.

    >>> answer = circuits.why(found, "L5H1")
    >>> [side.side for side in answer.sides]
    ['query', 'key', 'value']
    """

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

    # Files

    def to_json(self) -> str:
        """Every number; the same answer gives the same bytes."""
        record = {"schema": SCHEMA, "kind": "why"} | {name: getattr(self, name) for name in self.__slots__}
        return to_json(record, default=_to_plain, sort_keys=True)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write a picture by its ending (.svg, .png, .pdf, .html, .dot), or `why.json` into a folder."""
        if Path(path).suffix in PICTURES:
            return above("save_picture")(self, path, **options)
        data = self.to_json().encode()
        write_folder(Path(path), lambda aside: [(aside / "why.json").write_bytes(data)])
        return Path(path) / "why.json"

    @classmethod
    def load(cls, path: str | Path) -> Why:
        """Read an answer from its folder or its `why.json`."""
        file = Path(path) / "why.json" if Path(path).is_dir() else Path(path)
        record = parse_json(read_bytes(file), file)
        if not isinstance(record, dict) or record.pop("kind", None) != "why":
            raise FileError(f"{file} is not an answer of why; circuits why writes one")
        if record.pop("schema", None) != SCHEMA:
            raise FileError(f"{file} is of another version, this one reads {SCHEMA}; measure it again")
        why = to_record(cls, record, file)
        if fault := next((fault for wrong, fault in _faults(why) if wrong), None):
            raise FileError(f"{file} is not an answer that this version can read ({fault}); ask again")
        return why


def _faults(why: Why) -> Iterator[tuple[bool, str]]:
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


def _to_plain(value: Any) -> Any:
    return str(value) if isinstance(value, Component) else to_plain(value)
