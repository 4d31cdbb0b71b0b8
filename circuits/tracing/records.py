"""What `trace`, `circuit` and `why` answer with: frozen records of plain values that are saved and queried.

1. A `Circuit` holds mappings, spans and the output. `circuit.json` has every number, `circuit.safetensors`
   beside it the attention patterns: of all heads, or of a long prompt those of the heads that do most.
2. `Why` says of one head on one mapping who wrote what each of its sides reads, and has the ledger of its
   score.
3. Queries only read. What they need from above this module (drawing, tables, measuring again) is listed in
   `circuits.results`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from circuits.components import SIDES, Component, Edge, Head, Side
from circuits.errors import EdgeError, PromptError
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.results import Arrays, Faults, Pictured, Saved, above
from circuits.tracing import (
    SHARE,
    HeadEffect,
    Mapping,
    MeasuredModel,
    Output,
    QuestionControl,
    Span,
    Stability,
)

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

Position = int | str | None  # by index or by its token
Heads = tuple[Head, ...]
Edges = tuple[tuple[Edge, HeadEffect], ...]


@dataclass(frozen=True, slots=True)
class Circuit(Saved, Pictured):
    """Spans, mappings with their carriers, and the output, for one pair on one model.

    >>> print(*found.carriers(share=0.5))
    L5H1 L4H0 L5H0 L5H3
    >>> f"{found.mapping().total:.2f}", f"{found.gap:.1f}"
    ('1.00', '26.0')
    >>> saved = found.save(folder / "saved")
    >>> circuits.Circuit.load(folder / "saved") == found
    True
    """

    KIND: ClassVar = "circuit"
    CALLED: ClassVar = "a circuit"

    source: MeasuredModel
    prompt: Prompt
    counterfactual: Prompt | Noise
    metric: Metric
    clean_value: float  # the metric on the clean prompt
    counterfactual_value: float
    mappings: tuple[Mapping, ...]  # strongest first
    spans: tuple[Span, ...]
    output: Output
    focus: tuple[int, int] | None  # the mapping that the user asked for, if any
    engine: Literal["fast", "plain"]  # the path that ran
    seed: int
    versions: tuple[tuple[str, str], ...]
    arrays_sha256: str
    # "patterns": (layer, head, query, key); or (map, query, key), and "heads": (map, layer and index)
    arrays: Arrays = field(compare=False, repr=False, hash=False)
    notes: tuple[str, ...] = ()  # what a reader must know before the numbers
    question: QuestionControl | None = None  # None in files of the first version
    stability: Stability | None = None  # where it was asked for

    @property
    def gap(self) -> float:
        """How far the metric lies apart between both prompts; effects are shares of it."""
        return self.clean_value - self.counterfactual_value

    @property
    def front(self) -> Mapping | None:
        """The mapping to show first, if there is any: the one that the user asked for, or the strongest."""
        if self.focus is None:
            return self.mappings[0] if self.mappings else None
        return next((mapping for mapping in self.mappings if mapping.ends == self.focus), None)

    @property
    def share(self) -> float:
        """The share at which this circuit was measured, and at which it is shown."""
        return SHARE if self.front is None or self.front.controls is None else self.front.controls.share

    def mapping(self, key: Position = None, query: Position = None) -> Mapping:
        """The mapping key → query; with neither named, the one in front."""
        if key is None and query is None:
            if self.front is None:
                raise PromptError("no mapping of this prompt carries anything, so there is none to show")
            return self.front
        wanted = self.prompt.ends(0 if key is None else key, -1 if query is None else query)
        for mapping in self.mappings:
            if mapping.ends == wanted:
                return mapping
        carried = ", ".join(f"{mapping.key}→{mapping.query}" for mapping in self.mappings) or "none"
        raise PromptError(f"mapping {wanted[0]}→{wanted[1]} is not in this circuit; it has {carried}")

    def carriers(
        self, key: Position | float = None, query: Position = None, *, share: float | None = None
    ) -> Heads:
        """The heads that carry `share` of a mapping; `carriers(0.9)` means the share, too, as no position is
        a fraction."""
        if isinstance(key, float) and query is None and share is None:
            key, share = None, key
        if isinstance(key, float):
            raise PromptError(f"{key} is no position; write carriers(share={key}) or carriers(5, 8, share=…)")
        return self.mapping(key, query).carriers(SHARE if share is None else share)

    def heads(self, *, min_effect: float = 0.05) -> tuple[Head, ...]:
        """Every head that has at least this effect on some mapping, strongest first."""
        strongest: dict[Head, float] = {}
        for each in (effect for mapping in self.mappings for effect in mapping.heads):
            strongest[each.head] = max(abs(each.effect), strongest.get(each.head, 0.0))
        kept = (head for head, effect in strongest.items() if effect >= min_effect)
        return tuple(sorted(kept, key=lambda head: (-strongest[head], head)))

    def into(self, query: int | str) -> tuple[Mapping, ...]:
        """The mappings that end at a position, strongest first."""
        end = self.prompt.position(query)
        return tuple(mapping for mapping in self.mappings if mapping.query == end)

    def edges(self, *, head: str | Head | None = None, min_effect: float = 0.0) -> Edges:
        """Every measured edge (of one head) with what it does, strongest first."""
        wanted = None if head is None else self.checked(head)
        kept = [
            (Edge(each.head, *mapping.ends), each)
            for mapping in self.mappings
            for each in mapping.heads
            if wanted in (None, each.head) and abs(each.effect) >= min_effect
        ]
        return tuple(sorted(kept, key=lambda pair: (-abs(pair[1].effect), pair[0])))

    def paths(self, start: int | str, end: int | str) -> tuple[tuple[str, ...], ...]:
        """Every route through the graph from a token to a token or to the output, as the labels passed."""
        return above("routes")(self, start, end)

    def without(self, *heads: str | Head, model: Any = None) -> Circuit:
        """The circuit measured anew with these heads swapped to the counterfactual; never a subtraction."""
        return above("measure_without")(self, tuple(map(self.checked, heads)), model=model)

    def pattern(self, head: str | Head) -> np.ndarray:
        """The attention map of a head in the clean run, (query, key)."""
        checked = self.checked(head)
        patterns, heads = self.arrays["patterns"], self.arrays.get("heads")
        if heads is None:
            return patterns[checked.layer, checked.index]
        kept = np.flatnonzero((heads == (checked.layer, checked.index)).all(1))
        if not len(kept):
            others = f"of a prompt of {len(self.prompt)} tokens those of the {len(heads)} strongest heads are"
            raise EdgeError(f"the attention map of {checked} is not in this circuit: {others} kept")
        return patterns[kept[0]].astype(np.float32)

    def has_map(self, head: str | Head) -> bool:
        """Whether the attention map of a head was kept; of a short prompt all are."""
        checked, heads = self.checked(head), self.arrays.get("heads")
        return heads is None or bool((heads == (checked.layer, checked.index)).all(1).any())

    def checked(self, head: str | Head) -> Head:
        """The head, if this model has it."""
        return self.source.checked(head)

    def to_graph(self, *, share: float | None = None) -> nx.MultiDiGraph:
        """Spans and the output as nodes, mappings and the residual stream as edges; carriers of `share`."""
        return above("to_graph")(self, share=share)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per measured edge."""
        import pandas as pd

        rows = []
        for edge, effect in self.edges():
            ends = {"edge": str(edge), "key": edge.key, "query": edge.query}
            rows.append(ends | asdict(effect) | {"head": str(effect.head)})
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        return above("to_text")(self)

    # Files

    @classmethod
    def header(cls) -> dict[str, Any]:
        return {"schema": cls.SCHEMA}  # as in its first version: what says no kind is a circuit

    def faults(self) -> Faults:
        Pair(self.prompt, self.counterfactual, self.metric)  # refuses prompts of different lengths
        length, model, other = len(self.prompt), self.source, self.counterfactual
        patterns, heads = self.arrays.get("patterns", np.zeros(0)), self.arrays.get("heads")
        size = (model.layers, model.heads) if heads is None else (len(np.atleast_1d(heads)),)
        whole = patterns.shape == (*size, length, length) and patterns.dtype.kind == "f"
        whole = whole and bool(np.isfinite(patterns).all())
        counted = " × ".join(map(str, size))
        yield not whole, f"its patterns are not finite numbers of {counted} heads and its tokens"
        if heads is not None:
            listed = heads.ndim == 2 and heads.shape[1] == 2 and heads.dtype.kind == "i"
            there = listed and bool(((heads >= 0) & (heads < (model.layers, model.heads))).all())
            once = there and len(np.unique(heads, axis=0)) == len(heads)
            yield not once, "its list of heads with a map names one twice, or one that its model lacks"
        named = [position for span in self.spans for position in span.positions]
        named += [*(self.focus or ()), *(other.positions if isinstance(other, Noise) else ())]
        outside = not set(named) <= set(range(length))
        yield outside, f"it names a position outside its prompt, which has 0…{length - 1}"
        sized = min(model.layers, model.heads, model.width, model.edges) >= 1
        yield not sized or self.output.layer != model.layers, "its model has no size, or no output on top"
        for mapping in self.mappings:
            for effect in mapping.heads:
                self.checked(effect.head)
            yield from mapping.faults(length)
        for span in self.spans:
            yield from span.faults(model.layers)


# Why


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
        Pair(self.prompt, self.counterfactual, self.metric)  # refuses prompts of different lengths
        self.source.checked(self.head)
        length = len(self.prompt)
        inside = 0 <= self.key <= self.query < length
        yield not inside, "its key and query are not in its prompt, or run backwards"
        if self.attention is not None:
            square = [len(row) for row in self.attention] == [length] * length
            yield not square, "its attention map is not that of its prompt"
        yield [side.side for side in self.sides] != list(SIDES), f"its sides are not {', '.join(SIDES)}"
        yield any(side.leading > len(side.writers) for side in self.sides), "it has fewer writers than lead"
        positions = [each.position for side in self.sides for each in side.writers]
        outside = any(position is not None and not 0 <= position < length for position in positions)
        yield outside, f"a writer stands outside its prompt, which has 0…{length - 1}"
