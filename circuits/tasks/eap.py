"""Files of other people's circuits: EAP-IG and MIB write component edges with their scores as JSON.

    {"cfg": {"n_layers": 12, "n_heads": 12, …},
     "edges": {"a9.h9->a10.h0<q>": {"score": 0.1, "in_graph": true}, …}}

EAP-IG and MIB put edges in the order of the size of their scores; so does `EapGraph.order`. Where no edge has a
score, those that are in the graph come first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circuits.components import Wire
from circuits.engine.edges import EdgeTable
from circuits.errors import EdgeError, FileError
from circuits.files import read_object, to_path
from circuits.models.model import Model
from circuits.tasks.names import ORDERS
from circuits.tasks.ranking import holds_everywhere


@dataclass(frozen=True, slots=True)
class EapEdge:
    """One component edge of a file."""

    wire: Wire
    score: float | None
    in_graph: bool


@dataclass(frozen=True, slots=True)
class EapGraph:
    """A circuit that EAP-IG, MIB or `circuits export --to eap` wrote.

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
        """All edges of the file, the one with the largest score first."""

        def key(edge: EapEdge) -> tuple[float, bool]:
            return -abs(edge.score or 0.0), not edge.in_graph

        return tuple(edge.wire for edge in sorted(self.edges, key=key))

    @classmethod
    def load(cls, path: str | Path) -> EapGraph:
        """Read a file of EAP-IG, of MIB, or one that `circuits export --to eap` wrote."""
        file = to_path(path)
        stored = read_object(file)
        config = stored.get("cfg")
        listed = stored.get("edges")
        if not isinstance(config, Mapping) or not isinstance(listed, Mapping) or not listed:
            raise FileError(
                f"{file} is not a circuit of EAP-IG or MIB: it needs `cfg` and `edges`"
            )
        for name in ("n_layers", "n_heads"):
            size = config.get(name)
            if type(size) is not int or size < 1:
                raise FileError(
                    f"{file} is not a circuit of EAP-IG or MIB: its cfg has no {name}"
                )
        layers, heads = config["n_layers"], config["n_heads"]
        edges = tuple(_read_edge(file, name, stored, layers) for name, stored in listed.items())
        return cls(layers, heads, edges)


def from_eap(path: str | Path) -> EapGraph:
    """The component edges of a circuit that EAP-IG or MIB wrote as JSON, with their scores.

    >>> file = folder / "eap.json"
    >>> _ = file.write_text(export(found, "eap"))
    >>> len(circuits.from_eap(file).edges) > 0
    True
    """
    return EapGraph.load(path)


def _read_edge(file: Path, name: str, stored: Any, layers: int) -> EapEdge:
    try:
        wire = Wire.parse(name, layers=layers)
    except EdgeError as why:
        raise FileError(f"{file}: {why}") from why
    if not holds_everywhere(wire):
        raise FileError(
            f"{file}: {name!r} names a position; an edge of EAP holds at all of them"
        )
    fields = stored if isinstance(stored, Mapping) else {}
    score = fields.get("score")
    in_graph = fields.get("in_graph", False)
    is_score = score is None or (isinstance(score, int | float) and math.isfinite(score))
    if not is_score or not isinstance(in_graph, bool):
        raise FileError(
            f"{file}: {name!r} needs a `score` that is a number and `in_graph`, true or false"
        )
    return EapEdge(wire, None if score is None else float(score), in_graph)


# The order of a file


def load_order(path: str | Path) -> EapGraph:
    """The circuit in a file, which is taken for a misspelt order if there is none."""
    if not Path(path).exists():
        allowed = f"{', '.join(ORDERS)}, or the path of a circuit of EAP-IG or MIB"
        raise FileError(f"no order {str(path)!r}, and no such file; there are {allowed}")
    return EapGraph.load(path)


def numbers_in_order(graph: EapGraph, table: EdgeTable, model: Model) -> list[int]:
    """The order of a file by the numbers of the edges; edges that it does not name come last."""
    if (graph.layers, graph.heads) != (table.layers, table.heads):
        theirs = f"the file is of a model of {graph.layers} layers of {graph.heads} heads"
        raise FileError(f"{theirs}; {model.name} has {table.layers} of {table.heads}")
    number_of = {wire: number for number, wire in enumerate(table.wires)}
    order = graph.order()
    missing = [wire for wire in order if wire not in number_of]
    if missing:
        raise FileError(
            f"the file has {len(missing)} edges that {model.name} has not, such as {missing[0]}"
        )
    named = [number_of[wire] for wire in order]
    return list(dict.fromkeys([*named, *range(len(table))]))
