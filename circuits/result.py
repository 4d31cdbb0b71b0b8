"""The circuit of one pair: what was measured, on disk and back, and questions that read like the question.

1. `circuit.json` holds every number; `circuit.safetensors` beside it holds the attention patterns. The JSON carries the sidecar's
   sha256 and its own, so that a truncated or edited file is refused.
2. Queries only read: nothing is computed again except by `without`, which measures anew.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping as MappingType
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_type_hints

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from circuits.edges import Edge, Head
from circuits.errors import CircuitsError, EdgeError, FileError, PromptError
from circuits.prompts import Metric, Noise, Prompt
from circuits.records import SHARE, HeadEffect, Mapping, Output, Source, Span
from circuits.strict.building import build
from circuits.strict.reading import parse_json, read_bytes, to_json
from circuits.strict.writing import write_folder

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

SCHEMA: Final = 1
_LEAST_TOTAL: Final = 1e-6  # of a mapping that has carriers; their share of it is a quotient


@dataclass(frozen=True, slots=True)
class Circuit:
    """Spans, mappings with their carriers, and the output, for one pair on one model."""

    source: Source
    prompt: Prompt
    counterfactual: Prompt | Noise
    metric: Metric
    clean_value: float  # the metric on the clean prompt
    counterfactual_value: float
    mappings: tuple[Mapping, ...]  # strongest first
    spans: tuple[Span, ...]
    output: Output
    focus: tuple[int, int] | None  # the mapping that was asked for, if one was
    engine: Literal["fast", "plain"]  # the path that ran
    seed: int
    versions: tuple[tuple[str, str], ...]
    arrays_sha256: str
    arrays: MappingType[str, np.ndarray] = field(compare=False, repr=False, hash=False)  # "patterns": (layer, head, query, key)

    @property
    def gap(self) -> float:
        return self.clean_value - self.counterfactual_value

    # Questions

    def mapping(self, key: int | str | None = None, query: int | str | None = None) -> Mapping:
        """The mapping key → query; with neither named, the one that was asked for, or the strongest."""
        if key is None and query is None:
            if self.focus is None and self.mappings:
                return self.mappings[0]
            if self.focus is None:
                raise PromptError("no mapping of this prompt carries anything, so there is none to show")
            wanted = self.focus
        else:
            wanted = (self.prompt.position(0 if key is None else key), self.prompt.position(-1 if query is None else query))
        for known in self.mappings:
            if (known.key, known.query) == wanted:
                return known
        carried = ", ".join(f"{m.key}→{m.query}" for m in self.mappings)
        raise PromptError(f"mapping {wanted[0]}→{wanted[1]} is not in this circuit; it has {carried or 'none'}")

    def carriers(self, key: int | str | None = None, query: int | str | None = None, *, share: float = SHARE) -> tuple[Head, ...]:
        """The heads that carry `share` of a mapping."""
        return self.mapping(key, query).carriers(share)

    def heads(self, *, min_effect: float = 0.05) -> tuple[Head, ...]:
        """Every head that has at least this effect on some mapping, strongest first."""
        strongest: dict[Head, float] = {}
        for known in (effect for mapping in self.mappings for effect in mapping.heads):
            strongest[known.head] = max(abs(known.effect), strongest.get(known.head, 0.0))
        kept = (head for head, effect in strongest.items() if effect >= min_effect)
        return tuple(sorted(kept, key=lambda head: (-strongest[head], head)))

    def into(self, query: int | str) -> tuple[Mapping, ...]:
        """The mappings that end at a position, strongest first."""
        at = self.prompt.position(query)
        return tuple(mapping for mapping in self.mappings if mapping.query == at)

    def edges(self, *, head: str | Head | None = None, min_effect: float = 0.0) -> tuple[tuple[Edge, HeadEffect], ...]:
        """Every measured edge (of one head) with what it does, strongest first."""
        wanted = None if head is None else self._known(Head.parse(head))
        found = [
            (Edge(effect.head, mapping.key, mapping.query), effect)
            for mapping in self.mappings
            for effect in mapping.heads
            if wanted in (None, effect.head) and abs(effect.effect) >= min_effect
        ]
        return tuple(sorted(found, key=lambda pair: (-abs(pair[1].effect), pair[0])))

    def paths(self, start: int | str, end: int | str) -> tuple[tuple[str, ...], ...]:
        """Every route through the graph from a token to a token or to the output, as the labels passed."""
        from circuits.graph import routes

        return routes(self, start, end)

    def without(self, *heads: str | Head, model: Any = None) -> Circuit:
        """The circuit measured anew with these heads swapped to the counterfactual throughout (never a subtraction)."""
        from circuits.discover import remeasure_without

        return remeasure_without(self, tuple(self._known(Head.parse(head)) for head in heads), model=model)

    def pattern(self, head: str | Head) -> np.ndarray:
        """The attention map of a head in the clean run, (query, key)."""
        known = self._known(Head.parse(head))
        return self.arrays["patterns"][known.layer, known.index]

    def _known(self, head: Head) -> Head:
        if head.layer >= self.source.layers or head.index >= self.source.heads:
            raise EdgeError(f"no head {head} in {self.source.name}, which has L0H0…L{self.source.layers - 1}H{self.source.heads - 1}")
        return head

    # Other forms

    def to_graph(self) -> nx.MultiDiGraph:
        """Spans and the output as nodes, mappings and residual streams as edges."""
        from circuits.graph import to_graph

        return to_graph(self)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per measured edge."""
        import pandas as pd

        rows = [
            {"edge": str(edge), "key": edge.key, "query": edge.query} | asdict(effect) | {"head": str(effect.head)}
            for edge, effect in self.edges()
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        from circuits.tables import to_text

        return to_text(self)

    def _repr_html_(self) -> str:
        from circuits.tables import to_html

        return to_html(self)

    # Files

    def to_json(self) -> str:
        """Every number of the circuit; the same circuit gives the same bytes."""
        plain = {"schema": SCHEMA} | {name: getattr(self, name) for name in self.__slots__ if name != "arrays"}
        body = to_json(plain, default=_to_plain, sort_keys=True)
        return body[:-2] + f',\n "sha256": "{_sha256(body.encode())}"\n}}\n'

    def save(self, folder: str | Path) -> Path:
        """Write `circuit.json` and `circuit.safetensors` into a folder and return the path of the first."""
        contents = {"circuit.safetensors": to_bytes(self.arrays), "circuit.json": self.to_json().encode()}
        write_folder(Path(folder), lambda room: [(room / name).write_bytes(content) for name, content in contents.items()])
        return Path(folder) / "circuit.json"

    @classmethod
    def load(cls, path: str | Path) -> Circuit:
        """Read a circuit from its folder or its `circuit.json`."""
        file = Path(path)
        file = file / "circuit.json" if os.path.isdir(file) else file  # noqa: PTH112
        stored = _checked(read_bytes(file), file)
        sidecar = file.with_suffix(".safetensors")
        packed = read_bytes(sidecar)
        if _sha256(packed) != stored.get("arrays_sha256"):
            raise FileError(f"{sidecar} does not belong to {file} (its sha256 differs); copy both files of a circuit together")
        try:
            return _from_plain(stored, _arrays(packed))
        except CircuitsError as why:
            raise FileError(f"{file} is not a circuit as this version writes it ({why}); measure it again") from why


def to_bytes(arrays: MappingType[str, np.ndarray]) -> bytes:
    """The sidecar's content."""
    return write_arrays({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)})


def sha256_of(arrays: MappingType[str, np.ndarray]) -> str:
    """What `arrays_sha256` must be for these arrays."""
    return _sha256(to_bytes(arrays))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _to_plain(value: Any) -> Any:
    if isinstance(value, Head):
        return str(value)
    if isinstance(value, Metric):
        return {name: getattr(value, name) for name in value.__slots__ if name != "function"}
    if hasattr(value, "__slots__"):
        return {name: getattr(value, name) for name in value.__slots__}
    raise TypeError(f"{type(value).__name__} has no place in circuit.json")


def _checked(raw: bytes, file: Path) -> dict[str, Any]:
    """The JSON object in `raw`, if it is whole, unedited and of this schema."""
    stored = parse_json(raw, file)
    if not isinstance(stored, dict) or "schema" not in stored:
        raise FileError(f"{file} is not a circuit: it has no schema")
    if stored["schema"] != SCHEMA or type(stored["schema"]) is not int:
        raise FileError(f"{file} has schema {repr(stored['schema'])[:40]}, this version reads {SCHEMA}; measure the circuit again")
    claimed = stored.pop("sha256", None)
    if claimed != _sha256(to_json(stored, sort_keys=True).encode()):
        raise FileError(f"{file} was edited or damaged (its sha256 differs); measure the circuit again")
    return stored


def _arrays(packed: bytes) -> dict[str, np.ndarray]:
    try:
        return read_arrays(packed)
    except (SafetensorError, KeyError, TypeError, ValueError) as why:  # the last three: a type that numpy has not
        raise FileError(f"its arrays cannot be read: {why}") from why


def _from_plain(stored: dict[str, Any], arrays: dict[str, np.ndarray]) -> Circuit:
    types = {name: kind for name, kind in get_type_hints(Circuit).items() if name != "arrays"}
    astray = sorted(types.keys() ^ (stored.keys() - {"schema"}))
    if astray:
        raise FileError(f"it has not the fields it must have, such as {astray[0]!r}")
    known = Circuit(**{name: build(kind, stored[name], name) for name, kind in types.items()}, arrays=arrays)
    _check(known)
    return known


def _check(known: Circuit) -> None:
    """Refuse a circuit whose parts do not belong together: what reads it relies on this."""
    length, source = len(known.prompt), known.source
    size = (source.layers, source.heads, length, length)
    patterns = known.arrays.get("patterns")
    if patterns is None or patterns.shape != size or patterns.dtype.kind != "f" or not np.isfinite(patterns).all():
        raise FileError(f"its patterns are not finite numbers for {source.layers} layers × {source.heads} heads × {length} × {length}")
    other = known.counterfactual
    if isinstance(other, Prompt) and len(other) != length:
        raise FileError(f"its counterfactual has {len(other)} tokens and its prompt {length}")
    groups = [span.positions for span in known.spans] + ([other.positions] if isinstance(other, Noise) else [])
    places = [at for group in groups for at in group] + list(known.focus or ())
    if any(not 0 <= at < length for at in places):
        raise FileError(f"it names a position outside its prompt, which has 0…{length - 1}")
    if min(source.layers, source.heads, source.width, source.edges) < 1 or known.output.layer != source.layers:
        raise FileError("its model has no size, or its output does not stand above all layers")
    for mapping in known.mappings:
        _check_mapping(mapping, known)
    for span in known.spans:
        ranges = [*span.built, *([span.layers] if span.layers else [])]
        if any(not 0 <= first <= last <= source.layers for first, last in ranges) or not span.positions:
            raise FileError(f"the span of {span.label!r} has no position, or layers that its model has not")
        if len(span.residual) != source.layers + 1 or len(span.writes) != source.layers:
            raise FileError(f"the span of {span.label!r} has not one value for each layer")


def _check_mapping(mapping: Mapping, known: Circuit) -> None:
    named = f"mapping {mapping.key}→{mapping.query}"
    if not 0 <= mapping.key <= mapping.query < len(known.prompt):
        raise FileError(f"{named} lies outside its prompt or runs backwards")
    measured = {known._known(effect.head) for effect in mapping.heads}
    if len(measured) < len(mapping.heads) or not {step.head for step in mapping.path} <= measured:
        raise FileError(f"{named} names a head twice, or a carrier that was not measured")
    if mapping.path and mapping.total < _LEAST_TOTAL:
        raise FileError(f"{named} carries nothing and yet has carriers")
    told = mapping.controls
    if told is not None and not (0 < told.share <= 1 and len(told.key_totals) == mapping.query + 1):
        raise FileError(f"{named} has controls that are not those of its query")


def finite(value: float) -> float:
    """A number that JSON can hold, or an error that says that the measurement broke down."""
    if not math.isfinite(value):
        raise PromptError("the model gave a value that is not a finite number; check its weights and dtype")
    return float(value)
