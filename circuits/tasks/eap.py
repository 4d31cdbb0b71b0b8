"""Circuits of EAP-IG and MIB, read from their JSON: component edges with scores.

    {"cfg": {"n_layers": 12, "n_heads": 12, …},
     "edges": {"a9.h9->a10.h0<q>": {"score": 0.1, "in_graph": true}, …}}

Their tools put edges in the order of the size of their scores; so does `EapGraph.order`. Where no edge has a
score, those that are in the graph come first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circuits.components import Wire
from circuits.errors import EdgeError, FileError
from circuits.files import read_object


@dataclass(frozen=True, slots=True)
class EapEdge:
    """One component edge of a file."""

    wire: Wire
    score: float | None
    in_graph: bool


@dataclass(frozen=True, slots=True)
class EapGraph:
    """What a file says.

    >>> file = folder / "eap.json"
    >>> _ = file.write_text(export(found, "eap"))
    >>> graph = circuits.EapGraph.load(file)
    >>> graph.layers, graph.heads
    (12, 12)
    """

    layers: int
    heads: int
    edges: tuple[EapEdge, ...]

    @property
    def wires(self) -> tuple[Wire, ...]:
        """The edges that are in the graph."""
        return tuple(edge.wire for edge in self.edges if edge.in_graph)

    def order(self) -> tuple[Wire, ...]:
        """All edges of the file, the one that it takes for most important first."""

        def key(edge: EapEdge) -> tuple[float, bool]:
            return -abs(edge.score or 0.0), not edge.in_graph

        return tuple(edge.wire for edge in sorted(self.edges, key=key))

    @classmethod
    def load(cls, path: str | Path) -> EapGraph:
        """Read a file of EAP-IG, of MIB, or one that `circuits export --to eap` wrote."""
        file = Path(path)
        stored = read_object(file)
        config, edges = stored.get("cfg"), stored.get("edges")
        if not isinstance(config, Mapping) or not isinstance(edges, Mapping) or not edges:
            raise FileError(f"{file} is not a circuit of EAP-IG or MIB: it needs `cfg` and `edges`")
        layers, heads = (_whole(file, config, name) for name in ("n_layers", "n_heads"))
        return cls(layers, heads, tuple(_edge(file, name, value, layers) for name, value in edges.items()))


def from_eap(path: str | Path) -> EapGraph:
    """The component edges of a circuit that EAP-IG or MIB wrote as JSON, with their scores.

    >>> file = folder / "eap.json"
    >>> _ = file.write_text(export(found, "eap"))
    >>> len(circuits.from_eap(file).edges) > 0
    True
    """
    return EapGraph.load(path)


def _whole(file: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10_000:
        raise FileError(f"{file} is not a circuit of EAP-IG or MIB: its cfg has no {name}")
    return value


def _edge(file: Path, name: str, value: Any, layers: int) -> EapEdge:
    try:
        wire = Wire.parse(name, layers=layers)
    except EdgeError as why:
        raise FileError(f"{file}: {why}") from why
    if wire.position is not None or wire.query is not None or wire.writer.kind == "all":
        raise FileError(f"{file}: {name!r} names a position; an edge of EAP holds at all of them")
    stored = value if isinstance(value, Mapping) else {}
    score, inside = stored.get("score"), stored.get("in_graph", False)
    is_number = isinstance(score, int | float) and math.isfinite(score)
    if not (score is None or is_number) or not isinstance(inside, bool):
        raise FileError(f"{file}: {name!r} needs a `score` that is a number and `in_graph`, true or false")
    return EapEdge(wire, None if score is None else float(score), inside)
