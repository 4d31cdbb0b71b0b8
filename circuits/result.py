"""The circuit of one pair: what was measured, on disk and back, and questions that read like the question.

1. `circuit.json` holds every number; `circuit.safetensors` beside it holds the attention patterns. The JSON carries the sidecar's
   sha256 and its own, so that a truncated or edited file is refused.
2. Queries only read: nothing is computed again except by `without`, which measures anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping as MappingType
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from circuits.edges import Edge, Head
from circuits.errors import EdgeError, FileError, PromptError
from circuits.prompts import Metric, Noise, Prompt
from circuits.records import SHARE, Controls, HeadEffect, Mapping, Output, Source, Span, Step

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

SCHEMA: Final = 1
_LARGEST_FILE: Final = 512 * 2**20


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
    engine: str  # the path that ran: "fast" or "plain"
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
        body = json.dumps(plain, default=_to_plain, ensure_ascii=False, allow_nan=False, indent=1, sort_keys=True)
        return body[:-2] + f',\n "sha256": "{_sha256(body.encode())}"\n}}\n'

    def save(self, folder: str | Path) -> Path:
        """Write `circuit.json` and `circuit.safetensors` into a folder and return the path of the first."""
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
            _write(target / "circuit.safetensors", to_bytes(self.arrays))
            return _write(target / "circuit.json", self.to_json().encode())
        except OSError as why:
            raise FileError(f"cannot write the circuit to {target}: {why.strerror or why}; choose another folder") from why

    @classmethod
    def load(cls, path: str | Path) -> Circuit:
        """Read a circuit from its folder or its `circuit.json`."""
        file = Path(path)
        file = file / "circuit.json" if file.is_dir() else file
        raw = _read(file)
        stored = _checked(raw, file)
        sidecar = file.with_suffix(".safetensors")
        packed = _read(sidecar)
        if _sha256(packed) != stored.get("arrays_sha256"):
            raise FileError(f"{sidecar} does not belong to {file} (its sha256 differs); copy both files of a circuit together")
        try:
            arrays = read_arrays(packed)
            return _from_plain(stored, arrays)
        except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, PromptError, EdgeError) as why:
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


def _write(path: Path, data: bytes) -> Path:
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise FileError(f"{path} is larger than any circuit ({_LARGEST_FILE // 2**20} MiB)")
        return path.read_bytes()
    except OSError as why:
        raise FileError(f"cannot read {path}: {why.strerror or why}") from why


def _checked(raw: bytes, file: Path) -> dict[str, Any]:
    """The JSON object in `raw`, if it is whole, unedited and of this schema."""
    try:
        stored = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as why:
        raise FileError(f"{file} is not whole JSON ({why}); measure the circuit again") from why
    if not isinstance(stored, dict) or "schema" not in stored:
        raise FileError(f"{file} is not a circuit: it has no schema")
    if stored["schema"] != SCHEMA:
        raise FileError(f"{file} has schema {stored['schema']!r}, this version reads {SCHEMA}; measure the circuit again")
    claimed = stored.pop("sha256", None)
    body = json.dumps(stored, ensure_ascii=False, indent=1, sort_keys=True)
    if claimed != _sha256(body.encode(errors="surrogatepass")):
        raise FileError(f"{file} was edited or damaged (its sha256 differs); measure the circuit again")
    return stored


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that a circuit may hold")


def _from_plain(stored: dict[str, Any], arrays: dict[str, np.ndarray]) -> Circuit:
    other = stored["counterfactual"]
    return Circuit(
        source=Source(**stored["source"]),
        prompt=_prompt(stored["prompt"]),
        counterfactual=_prompt(other) if "text" in other else Noise(**{**other, "positions": tuple(other["positions"])}),
        metric=Metric(**stored["metric"]),
        clean_value=float(stored["clean_value"]),
        counterfactual_value=float(stored["counterfactual_value"]),
        mappings=tuple(_mapping(m) for m in stored["mappings"]),
        spans=tuple(_span(s) for s in stored["spans"]),
        output=Output(**stored["output"]),
        focus=None if stored["focus"] is None else (int(stored["focus"][0]), int(stored["focus"][1])),
        engine=str(stored["engine"]),
        seed=int(stored["seed"]),
        versions=tuple((str(name), str(version)) for name, version in stored["versions"]),
        arrays_sha256=str(stored["arrays_sha256"]),
        arrays=arrays,
    )


def _prompt(stored: dict[str, Any]) -> Prompt:
    return Prompt(stored["text"], tuple(stored["tokens"]), tuple(stored["words"]))


def _mapping(stored: dict[str, Any]) -> Mapping:
    controls = stored["controls"]
    return Mapping(
        **{
            **stored,
            "heads": tuple(HeadEffect(**{**h, "head": Head.parse(h["head"])}) for h in stored["heads"]),
            "path": tuple(Step(Head.parse(s["head"]), s["joint"]) for s in stored["path"]),
            "controls": None if controls is None else Controls(**{**controls, "key_totals": tuple(controls["key_totals"])}),
        }
    )


def _span(stored: dict[str, Any]) -> Span:
    layers = stored["layers"]
    lists = {name: tuple(stored[name]) for name in ("positions", "residual", "writes")}
    ranges = {"layers": None if layers is None else tuple(layers), "built": tuple(tuple(pair) for pair in stored["built"])}
    return Span(**{**stored, **lists, **ranges})


def finite(value: float) -> float:
    """A number that JSON can hold, or an error that says that the measurement broke down."""
    if not math.isfinite(value):
        raise PromptError("the model gave a value that is not a finite number; check its weights and dtype")
    return float(value)
