"""The result of `wiring`: a small circuit of components that keeps a behaviour, a frozen record.

1. Nodes are components, at places (`L4H4@13`, `L4H4@S2`) or at all positions together (`L4H4`), and the
   logits. A wire runs from what writes to what reads; a head is read into on three sides:
   `M3@9→L4H4.value`. The place of a wire is where its writer stands; a key or value at a place may be read
   by every query after it.
2. `wires` is the smallest circuit of the search that keeps `share`. `curve` has all circuits of the search,
   and `members` the wires of the smaller ones, so that `at` finds a circuit of another size.
3. What it is asked is answered by `queries`; what must be measured for an answer, by `again`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from circuits.components import SIDES, Component, Head, Reader, Wire
from circuits.engine.ablation import SWAP, Ablation
from circuits.errors import EdgeError, PromptError
from circuits.files import to_record
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.results import Arrays, Pictured, Saved, require
from circuits.tracing.parts import FamilyControl, MeasuredModel, Output, check_share
from circuits.wires.parts import (
    LOGITS,
    CurvePoint,
    Member,
    Node,
    OtherCircuit,
    Overlap,
    RandomCircuits,
    WiredPair,
    WireValue,
)

if TYPE_CHECKING:
    import networkx as nx


# Held-out pairs keep at least so much of what the pairs keep that the search saw; else a wiring warns.
GENERALISES: Final = 0.8


@dataclass(frozen=True, slots=True, repr=False)
class Wiring(Saved, Pictured):
    """A circuit of components from the embeddings to the logits, and how much of a behaviour it keeps.

    >>> wires = circuits.wiring(model, "opposites", count=4)
    >>> len(wires.into("logits")) > 0
    True
    """

    KIND: ClassVar = "wiring"
    NAME: ClassVar = "a wiring"
    SCHEMA: ClassVar = 2

    source: MeasuredModel
    task: str  # its name; empty where the user gave prompts
    pairs: tuple[WiredPair, ...]
    output: Output  # of the first pair
    aim: Literal["faithful", "performance"]
    share: float  # of the gap that the circuit was asked to keep
    places: tuple[str, ...]  # names of the places; empty: all positions together
    wires: tuple[WireValue, ...]  # the most valuable first
    curve: tuple[CurvePoint, ...]  # the largest circuit first
    members: tuple[Member, ...] = field(repr=False)  # of circuits that `at` can find
    all_wires: int  # how many wires lie on a path from the embedding to the logits
    complement: float  # what all other wires keep while those of the circuit are swapped
    random: RandomCircuits
    overlap: Overlap | None
    without_heads: tuple[Head, ...]  # swapped away before the search
    reachable: float  # what all wires keep without those heads; 1 where there are none
    question: FamilyControl  # on all pairs seen
    passes: int  # forward passes of the search; a backward pass counts as two
    seed: int
    versions: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()  # what a reader must know before the numbers
    searched: bool = True  # False: a user took wires away from what the search found
    ablation: Ablation = SWAP
    against: OtherCircuit | None = None

    # The first pair stands for all in figures

    @property
    def prompt(self) -> Prompt:
        return self.pairs[0].prompt

    @property
    def counterfactual(self) -> Prompt | Noise:
        return self.pairs[0].counterfactual

    @property
    def metric(self) -> Metric:
        return self.pairs[0].metric

    @property
    def clean_value(self) -> float:
        return self.pairs[0].clean_value

    @property
    def counterfactual_value(self) -> float:
        return self.pairs[0].counterfactual_value

    @property
    def gap(self) -> float:
        return self.pairs[0].gap

    # What it keeps

    @property
    def seen(self) -> tuple[WiredPair, ...]:
        """The pairs that the search saw."""
        return tuple(pair for pair in self.pairs if not pair.held_out)

    @property
    def held_out(self) -> tuple[WiredPair, ...]:
        """The pairs that the search did not see."""
        return tuple(pair for pair in self.pairs if pair.held_out)

    @property
    def kept(self) -> float:
        """The share of the gap that is left when all other wires are swapped, mean over the pairs seen."""
        return fmean(pair.kept for pair in self.seen)

    @property
    def enough(self) -> bool:
        """Whether it keeps what it was asked to keep."""
        return self.kept >= self.share * self.reachable - 1e-9

    @property
    def generalises(self) -> bool:
        """Whether held-out pairs keep about as much as those that the search saw; True where none are held
        out."""
        if not self.held_out:
            return True
        return fmean(pair.kept for pair in self.held_out) >= GENERALISES * self.kept

    @property
    def verdict(self) -> str:
        """Whether the question is clear, weak or none, as `trace` judges it."""
        return self.question.verdict

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that a wire touches, from the embeddings up."""
        touched: set[Node] = set()
        for each in self.wires:
            touched.add(Node.written(each.wire))
            touched |= set(self.readers_of(each.wire))
        return tuple(sorted(touched, key=self._height))

    def readers_of(self, wire: Wire) -> tuple[Node, ...]:
        """Where a wire ends. A key or value at a place is read by the head at this and every later place at
        which the circuit has that head write."""
        component = wire.reader.component
        if component is None:
            return (LOGITS,)
        if wire.position is None or wire.reader.kind in ("query", "mlp"):
            return (Node(component, wire.position),)
        places = {each.wire.position for each in self.wires if each.wire.writer == component}
        queries = [place for place in places if place is not None and place >= wire.position]
        return tuple(Node(component, place) for place in sorted(queries))

    @property
    def output_place(self) -> int | None:
        """The place at which the logits are read, which is that of the wires into them; None where wires hold at
        all positions together. Of prompts of several lengths it need not be the last in `places`."""
        for each in self.wires:
            if each.wire.reader.component is None:
                return each.wire.position
        return len(self.places) - 1 if self.places else None

    def _height(self, node: Node) -> tuple[int, bool, int, int]:
        """Sorts nodes by layer, the MLP after the heads, then by place and head."""
        if node.component is None:
            return self.source.layers, False, 0, 0
        is_mlp = node.component.kind == "mlp"
        return node.component.layer, is_mlp, node.place or 0, node.component.index

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads that write in the circuit, layer by layer."""
        writers = {each.wire.writer for each in self.wires}
        return tuple(sorted(writer.head for writer in writers if writer.kind == "head"))

    # Questions

    def into(self, node: str | Node | Reader | Head) -> tuple[WireValue, ...]:
        """The wires that end at a node, or at one side of it, the most valuable first."""
        from circuits.wires.queries import into

        return into(self, node)

    def out_of(self, node: str | Node | Component | Head) -> tuple[WireValue, ...]:
        """The wires that begin at a node, the most valuable first."""
        from circuits.wires.queries import out_of

        return out_of(self, node)

    def paths(
        self, start: str | Node, end: str | Node = "logits"
    ) -> tuple[tuple[str, ...], ...]:
        """Every path along the wires from one node to another, as the nodes passed."""
        from circuits.wires.queries import paths

        return paths(self, start, end)

    # Other circuits of the search, and other pairs

    def at(
        self, share: float | None = None, *, edges: int | None = None, model: Any = None
    ) -> Wiring:
        """The circuit of this search that keeps another share, or the largest one of at most so many wires.
        What it keeps, and the value of each wire, is measured anew."""
        from circuits.wires.again import measure_again

        if share is not None and edges is None:
            point = self._point_of(share)
        elif edges is not None and share is None:
            point = self._point_up_to(edges)
        else:
            raise PromptError("name a share such as 0.9, or a number of edges, one of the two")
        largest = max([member.size for member in self.members], default=0)
        if point.wires > largest:
            raise PromptError(
                f"that circuit has {point.wires} wires; the record holds those of up to {largest}"
            )
        chosen = [member.wire for member in self.members if member.size <= point.wires]
        asked = share if share is not None else point.kept
        other = replace(self, share=asked)
        return measure_again(other, chosen, model=model, searched=self.searched)

    def _point_of(self, share: float) -> CurvePoint:
        """The smallest circuit of the search that keeps a share."""
        check_share(share)
        enough = [point for point in self.curve if point.kept >= share]
        if not enough:
            most = max(point.kept for point in self.curve)
            raise PromptError(
                f"no circuit of this search keeps {share}; the most is {most:.3f}"
            )
        return enough[-1]

    def _point_up_to(self, edges: int) -> CurvePoint:
        """The largest circuit of the search of at most so many wires."""
        fitting = [point for point in self.curve if point.wires <= edges]
        if not fitting:
            smallest = self.curve[-1].wires
            raise PromptError(f"the smallest circuit of this search has {smallest} wires")
        return fitting[0]

    def without(
        self, *parts: str | Wire | Node | Component | Head, model: Any = None
    ) -> Wiring:
        """The circuit less some wires or nodes; what is kept then is measured anew, never subtracted."""
        from circuits.wires.again import measure_again
        from circuits.wires.queries import wires_of

        removed: set[Wire] = set()
        for part in parts:
            removed |= wires_of(self, part)
        left = [each.wire for each in self.wires if each.wire not in removed]
        return measure_again(self, left, model=model)

    def keeps(self, given: Any, *, model: Any = None, **question: Any) -> tuple[float, ...]:
        """How much of the gap this circuit keeps on other questions: a task, prompts or pairs, given as to
        `wiring`."""
        from circuits.wires.again import kept_on

        return kept_on(self, given, model=model, **question)

    def place(self, name: int | str) -> int:
        """The number of a place: by its name, or, in a single prompt, by its index or its token."""
        if not self.places:
            raise EdgeError(
                "these wires hold at all positions together: leave the position out"
            )
        if str(name) in self.places:
            return self.places.index(str(name))
        if len(self.places) == len(self.prompt):
            return self.prompt.position(name)
        raise EdgeError(f"no place {name!r}; there are {', '.join(self.places)}")

    def node_name(self, node: Node) -> str:
        """A node with the name of its place: `L4H4@END`."""
        if node.component is None or node.place is None:
            return str(node)
        return f"{node.component}@{self.places[node.place]}"

    def wire_name(self, wire: Wire) -> str:
        """A wire with the name of its place: `M3@S2→L4H4.value`."""
        return f"{self.node_name(Node.written(wire))}→{wire.reader}"

    # Other forms

    def to_graph(self) -> nx.MultiDiGraph:
        """Nodes with kind, layer, place and label; an edge for each wire, with its side, value and effect."""
        from circuits.show.wiring import wiring_graph

        return wiring_graph(self)

    def to_dataframe(self) -> Any:
        """One line for each wire: writer, reader, side, place, value, effect."""
        import pandas as pd

        rows = []
        for each in self.wires:
            wire = each.wire
            place = "" if wire.position is None else self.places[wire.position]
            side = wire.reader.kind if wire.reader.kind in SIDES else ""
            reader = str(wire.reader.component or "logits")
            rows.append((str(wire.writer), reader, side, place, each.value, each.effect))
        columns = ["writer", "reader", "side", "place", "value", "effect"]
        return pd.DataFrame(rows, columns=columns)

    def __str__(self) -> str:
        from circuits.show.wiring import wiring_text

        return wiring_text(self)

    # Files

    @classmethod
    def from_stored(cls, stored: dict[str, Any], arrays: Arrays | None = None) -> Wiring:
        """The record. Its wires are parsed last: the layer of the logits is the model's."""
        names = ("wires", "members", "overlap")
        written = to_record(_StoredWires, {name: stored.get(name) for name in names})
        wiring = to_record(cls, stored | {"wires": [], "members": [], "overlap": None})
        layers = wiring.source.layers

        def parse(name: str) -> Wire:
            return Wire.parse(name, layers=layers)

        wires = []
        for each in written.wires:
            wires.append(WireValue(parse(each.wire), each.value, each.effect, each.new))
        members = [Member(parse(each.wire), each.size) for each in written.members]
        overlap = None
        if written.overlap is not None:
            core = tuple(map(parse, written.overlap.core))
            overlap = Overlap(written.overlap.resamples, written.overlap.jaccard, core)
        return replace(wiring, wires=tuple(wires), members=tuple(members), overlap=overlap)

    def check(self) -> None:
        require(bool(self.seen) and bool(self.curve), "it has no pairs or no curve")
        others = () if self.against is None else self.against.pairs
        for pair in (*self.pairs, *others):
            # Refuses prompts of different lengths.
            Pair(pair.prompt, pair.counterfactual, pair.metric)
        self.source.check(self.output)
        check_share(min(1.0, self.share))
        wires = [each.wire for each in self.wires]
        require(len(set(wires)) == len(wires), "it has a wire twice")
        for wire in (*wires, *(member.wire for member in self.members)):
            _check_wire(wire, self.source, len(self.places))
        sizes = [point.wires for point in self.curve]
        require(sizes == sorted(sizes, reverse=True), "its curve does not fall")


# Files


@dataclass(frozen=True, slots=True)
class _StoredWire:
    wire: str
    value: float
    effect: float
    new: bool


@dataclass(frozen=True, slots=True)
class _StoredMember:
    wire: str
    size: int


@dataclass(frozen=True, slots=True)
class _StoredOverlap:
    resamples: int
    jaccard: float
    core: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _StoredWires:
    wires: tuple[_StoredWire, ...]
    members: tuple[_StoredMember, ...]
    overlap: _StoredOverlap | None


def _check_wire(wire: Wire, source: MeasuredModel, places: int) -> None:
    """Refuse a wire between components that the model lacks, one that runs downwards, or one at a place that
    is not there."""
    layers = source.layers + 1 if wire.reader.kind == "logits" else source.layers
    head = max(wire.writer.index, wire.reader.index)
    inside = wire.reader.layer < layers and head < source.heads
    require(inside, f"{wire} names a component that its model lacks")
    upwards = wire.reader.sees(wire.writer, parallel=source.parallel)
    require(upwards and wire.writer.kind != "all", f"{wire} runs downwards, or has no writer")
    placed = wire.position in range(places) if places else wire.position is None
    require(placed and wire.query is None, f"{wire} stands at a place that the record lacks")
