"""`Circuit`, the result of `trace` and `circuit`: a frozen record of plain values that answers queries.

It holds the mappings, the spans and the output of one pair, or their means over a family (`parts`).
`circuit.json` has every number, `circuit.safetensors` beside it the attention patterns of the clean run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from circuits.components import Edge, Head
from circuits.engine.ablation import SWAP, Ablation
from circuits.errors import EdgeError, PromptError
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.results import Arrays, OfHeads, Pictured, Saved, require
from circuits.tracing.averaged import AveragedPairs
from circuits.tracing.parts import (
    SHARE,
    FamilyControl,
    HeadEffect,
    Mapping,
    MeasuredModel,
    Output,
    Position,
    QuestionControl,
    Span,
    check_positions,
    share_of,
)
from circuits.tracing.stability_record import Stability

if TYPE_CHECKING:
    import networkx as nx


# The circuit


@dataclass(frozen=True, slots=True, repr=False)
class Circuit(OfHeads, Saved, Pictured):
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
    NAME: ClassVar = "a circuit"

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
    # "patterns": (layer, head, query, key) of all heads. Of a long prompt (map, query, key) of the strongest
    # heads, and "heads": (map, 2) with the layer and index of each.
    arrays: Arrays = field(compare=False, repr=False, hash=False)
    notes: tuple[str, ...] = ()  # sentences that are printed above the numbers
    # The verdict on the pair, or on all of a family; None in files of the first version.
    question: QuestionControl | FamilyControl | None = None
    stability: Stability | None = None  # where it was asked for
    # The smallest total of a mapping that was sought; None where one mapping was asked for, and in files of 0.2.
    least: float | None = None
    ablation: Ablation = SWAP
    # Where the numbers are means over the pairs of a family; prompt and counterfactual are then the first's.
    family: AveragedPairs | None = None

    @property
    def gap(self) -> float:
        """How far the metric lies apart between both prompts; effects are shares of it."""
        return self.clean_value - self.counterfactual_value

    @property
    def summary(self) -> str:
        """Model, mapping and total, of several mappings those of the one to show first."""
        front = self.front
        if front is None:
            return f"of {self.source.name}: no mapping carries anything, gap {self.gap:.3g}"
        more = f", and {len(self.mappings) - 1} more" if len(self.mappings) > 1 else ""
        ends = " → ".join(self.prompt.named(position) for position in front.ends)
        return f"of {self.source.name}: {ends}, {front.measured}{more}"

    @property
    def front(self) -> Mapping | None:
        """The mapping to show first, if there is any: the one that the user asked for, or the strongest."""
        if self.focus is None:
            return self.mappings[0] if self.mappings else None
        return next((mapping for mapping in self.mappings if mapping.ends == self.focus), None)

    @property
    def share(self) -> float:
        """The share at which this circuit was measured, and at which it is shown."""
        return share_of(self.front)

    # Queries

    def mapping(self, key: Position | None = None, query: Position | None = None) -> Mapping:
        """The mapping key → query; with neither named, the one to show first."""
        if key is None and query is None:
            if self.front is None:
                raise PromptError(
                    "no mapping of this prompt carries anything, so there is none to show"
                )
            return self.front
        wanted = self.prompt.ends(0 if key is None else key, -1 if query is None else query)
        for mapping in self.mappings:
            if mapping.ends == wanted:
                return mapping
        carried = (
            ", ".join(f"{mapping.key}→{mapping.query}" for mapping in self.mappings) or "none"
        )
        raise PromptError(
            f"mapping {wanted[0]}→{wanted[1]} is not in this circuit; it has {carried}"
        )

    def carriers(
        self,
        key: Position | float | None = None,
        query: Position | None = None,
        *,
        share: float | None = None,
    ) -> tuple[Head, ...]:
        """The heads that carry `share` of a mapping. `carriers(0.9)` means the share, too: no position is a
        fraction."""
        if isinstance(key, float) and query is None and share is None:
            return self.mapping().carriers(key)
        if isinstance(key, float):
            raise PromptError(
                f"{key} is no position; write carriers(share={key}) or carriers(5, 8, share=…)"
            )
        return self.mapping(key, query).carriers(SHARE if share is None else share)

    def heads(self, *, min_effect: float = 0.05) -> tuple[Head, ...]:
        """Every head that has at least this effect on some mapping, strongest first."""
        strongest: dict[Head, float] = {}
        for mapping in self.mappings:
            for each in mapping.heads:
                strongest[each.head] = max(abs(each.effect), strongest.get(each.head, 0.0))
        kept = [head for head, effect in strongest.items() if effect >= min_effect]
        return tuple(sorted(kept, key=lambda head: (-strongest[head], head)))

    def into(self, query: int | str) -> tuple[Mapping, ...]:
        """The mappings that end at a position, strongest first."""
        end = self.prompt.position(query)
        return tuple(mapping for mapping in self.mappings if mapping.query == end)

    def edges(
        self, *, head: str | Head | None = None, min_effect: float = 0.0
    ) -> tuple[tuple[Edge, HeadEffect], ...]:
        """Every measured edge (of one head) with its effect, strongest first."""
        wanted = None if head is None else self.checked(head)
        kept: list[tuple[Edge, HeadEffect]] = []
        for mapping in self.mappings:
            for each in mapping.heads:
                if wanted in (None, each.head) and abs(each.effect) >= min_effect:
                    kept.append((Edge(each.head, mapping.key, mapping.query), each))
        return tuple(sorted(kept, key=lambda pair: (-abs(pair[1].effect), pair[0])))

    def paths(
        self, start: int | str | Output, end: int | str | Output
    ) -> tuple[tuple[str, ...], ...]:
        """Every route through the graph from a token to a token or to the output, as the labels passed.

        A text that is a token of the prompt means the token. `output`, or the output's word where it is no
        token of the prompt, means the output.
        """
        from circuits.show import routes

        return routes(self, start, end)

    def without(self, *heads: str | Head, model: Any = None) -> Circuit:
        """The circuit measured anew with these heads swapped to the counterfactual; never a subtraction."""
        from circuits.tracing.rerun import measure_without

        return measure_without(self, [self.checked(head) for head in heads], model=model)

    def checked(self, head: str | Head) -> Head:
        """The head of this name; an error if the model does not have it."""
        return self.source.checked(head)

    # Attention patterns

    def pattern(self, head: str | Head) -> np.ndarray:
        """The attention pattern of a head in the clean run, (query, key)."""
        checked = self.checked(head)
        patterns = self.arrays["patterns"]
        if "heads" not in self.arrays:
            return patterns[checked.layer, checked.index]
        (kept,) = self._rows_of(checked).nonzero()
        if not len(kept):
            stored = f"of a prompt of {len(self.prompt)} tokens those of the {len(patterns)} strongest heads"
            raise EdgeError(
                f"the attention map of {checked} is not in this circuit: {stored} are kept"
            )
        return patterns[kept[0]].astype(np.float32)

    def has_map(self, head: str | Head) -> bool:
        """Whether the attention pattern of a head was kept; of a short prompt all are."""
        checked = self.checked(head)
        return "heads" not in self.arrays or bool(self._rows_of(checked).any())

    def _rows_of(self, head: Head) -> np.ndarray:
        """For each stored pattern of a long prompt whether it is the head's, (map,)."""
        return (self.arrays["heads"] == (head.layer, head.index)).all(1)

    # Other forms

    def to_graph(self, *, share: float | None = None) -> nx.MultiDiGraph:
        """Spans and the output as nodes, mappings and the residual stream as edges; carriers of `share`."""
        from circuits.show import to_graph

        return to_graph(self, share=share)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per measured edge."""
        rows = []
        for edge, effect in self.edges():
            row = {"edge": str(edge), "key": edge.key, "query": edge.query, **asdict(effect)}
            rows.append(row | {"head": str(effect.head)})
        return rows

    def head_shape(self) -> tuple[int, int]:
        """How many layers, and heads a layer, the model has."""
        return self.source.layers, self.source.heads

    def head_array(
        self,
        value: str = "effect",
        *,
        key: Position | None = None,
        query: Position | None = None,
    ) -> np.ndarray:
        """A number of every head, (layer, head), on one mapping, by default the one to show first."""
        array = np.full(self.head_shape(), np.nan)
        own = self.mapping(key, query).head_array(value)
        array[: own.shape[0], : own.shape[1]] = own
        return array

    def __str__(self) -> str:
        from circuits.show.tables import to_text

        return to_text(self)

    # Files

    @classmethod
    def header(cls) -> dict[str, Any]:
        # As in the first version: a file that names no kind is a circuit.
        return {"schema": cls.SCHEMA}

    def check(self) -> None:
        # Refuses prompts of different lengths.
        Pair(self.prompt, self.counterfactual, self.metric)
        length = len(self.prompt)
        self.source.check(self.output)
        self._check_patterns(length)
        check_positions(self.focus or (), length)
        if isinstance(self.counterfactual, Noise):
            check_positions(self.counterfactual.positions, length)
        for mapping in self.mappings:
            for effect in mapping.heads:
                self.checked(effect.head)
            mapping.check(length)
        for span in self.spans:
            span.check(self.source.layers, length)
        if self.family is not None:
            self.family.check(len(self.mappings))

    def _check_patterns(self, length: int) -> None:
        """Refuse patterns that are not finite numbers, one square matrix for each stored head."""
        size: tuple[int, ...] = (self.source.layers, self.source.heads)
        heads = self.arrays.get("heads")
        if heads is not None:
            listed = heads.ndim == 2 and heads.shape[1] == 2 and heads.dtype.kind == "i"
            require(listed, "its list of heads with a map is not a list of layers and indices")
            inside = bool(((heads >= 0) & (heads < size)).all())
            once = len(np.unique(heads, axis=0)) == len(heads)
            require(
                inside and once,
                "its list of heads with a map names one twice, or one that its model lacks",
            )
            size = (len(heads),)
        patterns = self.arrays.get("patterns", np.zeros(0))
        shaped = patterns.shape == (*size, length, length) and patterns.dtype.kind == "f"
        finite = shaped and bool(np.isfinite(patterns).all())
        require(finite, f"its patterns are not finite numbers of {size} heads and its tokens")
