"""What a question is answered with: frozen records of plain values that are saved, loaded and queried.

1. A `Circuit` holds `Mapping`s (which heads carry key → query), `Span`s (which layers hold a token's
   information) and the `Output`.
2. `circuit.json` holds every number, `circuit.safetensors` beside it the attention patterns: of all heads, or
   of a long prompt those of the heads that do most. How results are written and read is in `circuits.files`.
3. Queries only read. What they need from above this module (drawing, tables, measuring again) is listed in
   `circuits.links`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np

from circuits.components import ROUNDING, Edge, Head
from circuits.errors import EdgeError, PromptError
from circuits.links import Arrays, Faults, Pictured, Saved, above
from circuits.prompts import Metric, Noise, Prompt
from circuits.tracing import SHARE

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

CORE: Final = 0.8  # of the runs in which a head of the core carries
_LEAST_TOTAL: Final = 1e-6  # of a mapping that has carriers; modulation divides by it


@dataclass(frozen=True, slots=True)
class HeadEffect:
    """What one head does on one mapping; effects are shares of the gap, loadings too."""

    head: Head
    effect: float  # swap: its counterfactual message put into the clean run
    restore: float  # its clean message put back into the counterfactual run
    loading: float | None  # the linear share, patterns and norms frozen; None where it was not measured
    weight: float  # attention weight of the edge in the clean run (zero if its gate is shut)
    counterfactual_weight: float


@dataclass(frozen=True, slots=True)
class SideEffects:
    """Where a carrier looks and what it moves: effects of its query, key and value side, each alone read from
    the counterfactual stream, and of its weight on the edge alone."""

    head: Head
    query: float
    key: float
    value: float
    pattern: float  # the counterfactual's weight on the clean value
    query_weight: float  # the attention weight on the edge with the query side swapped
    key_weight: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the greedy path: the head added, and the joint effect of all heads up to here."""

    head: Head
    joint: float


@dataclass(frozen=True, slots=True)
class Controls:
    """How far to trust a mapping."""

    random_mean: float  # effect of as many random heads as there are carriers
    random_p95: float
    random_draws: int
    key_totals: tuple[float, ...]  # total of every key 0…query to the same query: is this key special?
    sufficiency: float  # all heads but the carriers swapped: the share of the total that is left
    identity: float  # clean patched into clean; 0 up to rounding
    share: float = SHARE  # the share at which `random_*` and `sufficiency` were measured


@dataclass(frozen=True, slots=True)
class Mapping(Pictured):
    """Key → query: its total, what each head does, and the greedy path from one head to all that help."""

    key: int
    query: int
    total: float
    restore: float  # the total in the other direction
    heads: tuple[HeadEffect, ...] = ()  # strongest first
    path: tuple[Step, ...] = ()
    controls: Controls | None = None
    sides: tuple[SideEffects, ...] = ()  # of the carriers, in their order
    doubts: tuple[str, ...] = ()  # why its modulation is withheld

    @property
    def ends(self) -> tuple[int, int]:
        return self.key, self.query

    def carriers(self, share: float = SHARE) -> tuple[Head, ...]:
        """The heads found by greedy forward selection until they reach `share` of the total."""
        return tuple(step.head for step in self._steps(share))

    def modulation(self, share: float = SHARE) -> float:
        """Joint effect of the carriers as a share of the total (0 where nothing is carried)."""
        steps = self._steps(share)
        return steps[-1].joint / self.total if steps else 0.0

    def _steps(self, share: float) -> tuple[Step, ...]:
        check_share(share)
        for count, step in enumerate(self.path, 1):
            if step.joint >= share * self.total - ROUNDING:
                return self.path[:count]
        return self.path

    @property
    def negative(self) -> tuple[HeadEffect, ...]:
        """The heads that work against the answer, strongest first."""
        against = (each for each in self.heads if each.effect < -0.01)
        return tuple(sorted(against, key=lambda each: each.effect))

    def effect_of(self, head: str | Head) -> HeadEffect:
        """What one head does on this mapping."""
        wanted = Head.parse(head)
        for each in self.heads:
            if each.head == wanted:
                return each
        raise PromptError(f"no head {wanted} was measured on {self.key}→{self.query}")


@dataclass(frozen=True, slots=True)
class Span:
    """Where in depth a token's information lives: `layers` leave it there, `built` write it there."""

    label: str
    positions: tuple[int, ...]
    layers: tuple[int, int] | None
    built: tuple[tuple[int, int], ...]
    effect: float  # the largest effect of replacing the residual stream there
    residual: tuple[float, ...]  # effect of replacing the residual stream at the input of layer 0…L
    writes: tuple[float, ...]  # effect of replacing what block 0…L-1 writes there
    counterfactual: str  # what was put in the token's place
    moves: float = 1.0  # how far that moves the metric, in gaps of the pair

    def __str__(self) -> str:
        held = "no layer" if self.layers is None else f"layer {self.layers[0]}-{self.layers[1]}"
        return f"{self.label} / {held}" + (f" / built in {self.built_text}" if self.built else "")

    @property
    def remark(self) -> str:
        """A word on layers that write where nothing is held; empty where the two agree."""
        first, last = self.layers or (0, -1)
        built = [layer for low, high in self.built for layer in range(low, high + 1)]
        apart = ", ".join(str(layer) for layer in built if not first <= layer <= last)
        if not apart:
            return ""
        return f"{self.label}: what layer {apart} writes matters, though afterwards too little is held here"

    @property
    def built_text(self) -> str:
        return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.built)


@dataclass(frozen=True, slots=True)
class Output:
    """What the model says at the last position."""

    token: str
    probability: float
    layer: int  # the number of layers: the output stands above them all


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over pairs and the range that holds 95% of its bootstrap resamples."""

    mean: float
    low: float
    high: float
    pairs: int = 0  # 0 where it is not known

    def __str__(self) -> str:
        if self.pairs == 1:  # one pair says nothing about others
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class HeadStability:
    """A head that carries the mapping under some counterfactuals."""

    head: Head
    carries: float  # the share of runs in which it is a carrier
    effect: Interval  # over all runs

    def __str__(self) -> str:
        return f"{self.head!s:8}carries in {self.carries:.0%} of runs, effect {self.effect}"


@dataclass(frozen=True, slots=True)
class Stability(Saved, Pictured):
    """A mapping under other counterfactuals of the same kind.

    >>> steady = circuits.stability(model, TEXT, key="large", swap={"large": "hot"}, n=3)
    >>> len(steady.counterfactuals), set(steady.core) <= {each.head for each in steady.heads}
    (3, True)
    """

    KIND: ClassVar = "stability"
    CALLED: ClassVar = "a record of stability"

    key: int
    query: int
    share: float
    counterfactuals: tuple[str, ...]  # one a run
    total: Interval
    heads: tuple[HeadStability, ...]  # that carry in any run, the most frequent first
    overlap: float  # the mean share that two runs' carriers have in common
    shares: tuple[tuple[float, tuple[Head, ...]], ...]  # the core at neighbouring shares
    restore: tuple[Head, ...] | None  # the carriers in the other direction; None for noise
    weak: int = 0  # counterfactuals that were left out: they hardly move the answer

    @property
    def core(self) -> tuple[Head, ...]:
        """The heads that carry in at least 80% of the runs."""
        return tuple(each.head for each in self.heads if each.carries >= CORE)

    @property
    def rim(self) -> tuple[Head, ...]:
        """The other carriers."""
        return tuple(each.head for each in self.heads if each.carries < CORE)

    def faults(self) -> Faults:
        yield not 0 <= self.key <= self.query, "its key and query run backwards"
        yield not self.counterfactuals, "it has no counterfactuals"
        heads = [each.head for each in self.heads]
        yield len(set(heads)) < len(heads), "it names a head twice"
        shares = [self.share, *(each.carries for each in self.heads), *(share for share, _ in self.shares)]
        yield not all(0 <= share <= 1 for share in shares), "it has a share below 0 or above 1"

    def __str__(self) -> str:
        weak = f" ({self.weak} more hardly move the answer)" if self.weak else ""
        runs = f"{self.key}→{self.query} under {len(self.counterfactuals)} counterfactuals{weak}"
        lines = [f"{runs}: total {self.total}, carriers overlap by {self.overlap:.0%}"]
        lines.append(f"core (in {CORE:.0%} of runs or more): {_named(self.core)}")
        lines.append(f"rim: {_named(self.rim)}")
        lines += [f"core at a share of {share:.0%}: {_named(core)}" for share, core in self.shares]
        if self.restore is not None:
            lines.append(f"carriers in the other direction (restore): {_named(self.restore)}")
        return "\n".join([*lines, *(f"  {each}" for each in self.heads[:8])])


def _named(heads: tuple[Head, ...]) -> str:
    return " ".join(map(str, heads)) or "none"


@dataclass(frozen=True, slots=True)
class QuestionControl:
    """Whether the pair is a question: whether its gap is worth dividing by."""

    verdict: Literal["clear", "weak", "none"]
    reasons: tuple[str, ...]  # why it is not clear
    other_gaps: tuple[float, ...]  # how far random words in the same place move the metric
    probability: float | None  # of the answer on the clean prompt
    said: tuple[str, str | None]  # what both runs predict; None where draws of noise disagree


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The model that was measured."""

    name: str
    fingerprint: str  # sha256 of its weights
    layers: int
    heads: int
    gated: bool
    reads_bos: bool
    width: int  # d_model
    parallel: bool  # attention and MLP read the same stream
    open_edges: int  # edges of the clean run with a weight above zero
    edges: int  # all edges of the prompt: layers × heads × T(T+1)/2
    dtype: str = "float32"


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
            raise PromptError(
                f"{key} is no position; write carriers(share={key}), or carriers(5, 8, share=…)"
            )
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
        every = [
            (Edge(each.head, *mapping.ends), each) for mapping in self.mappings for each in mapping.heads
        ]
        kept = [
            pair for pair in every if wanted in (None, pair[1].head) and abs(pair[1].effect) >= min_effect
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
        if not self.has_map(checked):
            kept = (
                f"of a prompt of {len(self.prompt)} tokens those of the {len(heads)} strongest heads are kept"
            )
            raise EdgeError(f"the attention map of {checked} is not in this circuit: {kept}")
        (place,) = np.flatnonzero((heads == (checked.layer, checked.index)).all(1))
        return patterns[place].astype(np.float32)

    def has_map(self, head: str | Head) -> bool:
        """Whether the attention map of a head was kept; of a short prompt all are."""
        checked, heads = self.checked(head), self.arrays.get("heads")
        return heads is None or bool((heads == (checked.layer, checked.index)).all(1).any())

    def checked(self, head: str | Head) -> Head:
        """The head, if this model has it."""
        parsed = Head.parse(head)
        if parsed.layer >= self.source.layers or parsed.index >= self.source.heads:
            last = Head(self.source.layers - 1, self.source.heads - 1)
            raise EdgeError(f"no head {parsed} in {self.source.name}, which has L0H0…{last}")
        return parsed

    def to_graph(self, *, share: float | None = None) -> nx.MultiDiGraph:
        """Spans and the output as nodes, mappings and the residual stream as edges; carriers of `share`."""
        return above("to_graph")(self, share=share)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per measured edge."""
        import pandas as pd

        ends = [{"edge": str(edge), "key": edge.key, "query": edge.query} for edge, _ in self.edges()]
        effects = [asdict(effect) | {"head": str(effect.head)} for _, effect in self.edges()]
        return pd.DataFrame([each | effect for each, effect in zip(ends, effects, strict=True)])

    def __str__(self) -> str:
        return above("to_text")(self)

    # Files

    @classmethod
    def header(cls) -> dict[str, Any]:
        return {"schema": cls.SCHEMA}  # as in its first version: what says no kind is a circuit

    def faults(self) -> Faults:
        yield from _faults_of_circuit(self)
        for mapping in self.mappings:
            for effect in mapping.heads:
                self.checked(effect.head)
            yield from faults_of_mapping(mapping, len(self.prompt))
        for span in self.spans:
            yield from _faults_of_span(span, self.source.layers)


def check_share(share: float) -> None:
    """Refuse a share that no set of heads could reach, or that every set does."""
    if not 0 < share <= 1:
        raise PromptError(f"a share must be above 0 and at most 1, not {share}")


def finite(value: float) -> float:
    """A number that JSON can hold, or an error that says that the measurement broke down."""
    if not math.isfinite(value):
        raise PromptError("the model gave a value that is not a finite number; check its weights and dtype")
    return float(value)


def _faults_of_circuit(circuit: Circuit) -> Faults:
    length, model, other = len(circuit.prompt), circuit.source, circuit.counterfactual
    patterns, heads = circuit.arrays.get("patterns", np.zeros(0)), circuit.arrays.get("heads")
    size = (model.layers, model.heads) if heads is None else (len(np.atleast_1d(heads)),)
    whole = patterns.shape == (*size, length, length) and patterns.dtype.kind == "f"
    whole = whole and bool(np.isfinite(patterns).all())
    yield (
        not whole,
        f"its patterns are not finite numbers of {' × '.join(map(str, size))} heads and its tokens",
    )
    if heads is not None:
        listed = heads.ndim == 2 and heads.shape[1] == 2 and heads.dtype.kind == "i"
        there = listed and bool(((heads >= 0) & (heads < (model.layers, model.heads))).all())
        once = there and len(np.unique(heads, axis=0)) == len(heads)
        yield not once, "its list of heads with a map names one twice, or one that its model lacks"
    if isinstance(other, Prompt):
        yield len(other) != length, f"its counterfactual has {len(other)} tokens and its prompt {length}"
    named = [*(position for span in circuit.spans for position in span.positions), *(circuit.focus or ())]
    named += other.positions if isinstance(other, Noise) else ()
    outside = not set(named) <= set(range(length))
    yield outside, f"it names a position outside its prompt, which has 0…{length - 1}"
    sized = min(model.layers, model.heads, model.width, model.edges) >= 1
    yield not sized or circuit.output.layer != model.layers, "its model has no size, or no output on top"


def faults_of_mapping(mapping: Mapping, length: int) -> Faults:
    """What does not belong together in a mapping of a prompt of so many tokens."""
    name, controls = f"mapping {mapping.key}→{mapping.query}", mapping.controls
    forward = 0 <= mapping.key <= mapping.query < length
    yield not forward, f"{name} lies outside its prompt or runs backwards"
    measured = {effect.head for effect in mapping.heads}
    once = len(measured) == len(mapping.heads) and {step.head for step in mapping.path} <= measured
    yield not once, f"{name} names a head twice, or a carrier that was not measured"
    yield mapping.path != () and mapping.total < _LEAST_TOTAL, f"{name} carries nothing and yet has carriers"
    if controls is not None:
        own = 0 < controls.share <= 1 and len(controls.key_totals) == mapping.query + 1
        yield not own, f"{name} has controls that are not those of its query"


def _faults_of_span(span: Span, layers: int) -> Faults:
    name = f"the span of {span.label!r}"
    ranges = [*span.built, *([span.layers] if span.layers else [])]
    inside = all(0 <= first <= last <= layers for first, last in ranges)
    yield not inside or not span.positions, f"{name} has no position, or layers that its model lacks"
    each = len(span.residual) == layers + 1 and len(span.writes) == layers
    yield not each, f"{name} does not have one value per layer"
