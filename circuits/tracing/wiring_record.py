"""The result of `wiring`: the circuit of components of one pair, a frozen record of plain values.

1. Nodes are components at positions (`L4H4@13`) and the logits; wires run from what writes to what reads. A
   head is read into on three sides: `M3@9→L4H4@13.value`.
2. Queries only read. A node is named by its component, with or without a position and a side: `L4H4`,
   `L4H4@13`, `L4H4@END` where END is a role, `L4H4@13.query`, `M3@9`, `embed@5`, `logits`.
3. `wiring.json` holds all of it, wires by their spoken names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from circuits.components import ALL, SIDES, Component, Head, Reader, Wire, by_name
from circuits.errors import EdgeError, PromptError
from circuits.files import to_record
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.results import Arrays, Pictured, Saved, require
from circuits.tracing.parts import MeasuredModel, Output, check_positions

if TYPE_CHECKING:
    import networkx as nx

MOST_PATHS: Final = 1000


@dataclass(frozen=True, slots=True)
class Node:
    """A component at a position; without both it is the logits."""

    component: Component | None = None
    position: int | None = None

    def __str__(self) -> str:
        return "logits" if self.component is None else f"{self.component}@{self.position}"

    @classmethod
    def parse(cls, name: str) -> Node:
        """Read `L4H4@13`, `M3@9`, `embed@5` and `logits`."""
        if name == "logits":
            return cls()
        component, _, position = name.partition("@")
        if not (position.isascii() and position.isdigit() and len(position) < 10):
            raise EdgeError(
                f"{name!r} is not a node; write it as L4H4@13, M3@9, embed@5 or logits"
            )
        return cls(Component.parse(component), int(position))

    @classmethod
    def written(cls, wire: Wire) -> Node:
        """Where a wire begins."""
        return cls(wire.writer, wire.position)

    @classmethod
    def read(cls, wire: Wire) -> Node:
        """Where a wire ends; its side is not part of it."""
        if wire.reader.component is None:
            return cls()
        return cls(wire.reader.component, wire.position if wire.query is None else wire.query)

    __get_pydantic_core_schema__ = classmethod(by_name)


LOGITS: Final = Node()


@dataclass(frozen=True, slots=True)
class WireEffect:
    """A wire that is drawn, or with `all` as its writer the whole side of a reader."""

    wire: Wire
    effect: float  # in a run of its own

    def __str__(self) -> str:
        return f"{self.wire} {self.effect:z.3f}"


@dataclass(frozen=True, slots=True)
class RandomCircuits:
    """How much random circuits of as many wires keep; each is found by walking back from the logits, too."""

    mean: float
    largest: float
    draws: int


@dataclass(frozen=True, slots=True)
class Wiring(Saved, Pictured):
    """The wires of one pair on one model, from the embeddings to the logits, and how much they explain.

    >>> wires = circuits.wiring(model, TEXT, swap={"large": "hot"}, least=0.1, most=8)
    >>> len(wires.into("logits")) > 0
    True
    """

    KIND: ClassVar = "wiring"
    NAME: ClassVar = "a wiring"

    source: MeasuredModel
    prompt: Prompt
    counterfactual: Prompt | Noise
    metric: Metric
    clean_value: float  # the metric on the clean prompt
    counterfactual_value: float
    output: Output
    wires: tuple[WireEffect, ...]  # strongest first
    sides: tuple[WireEffect, ...]  # the sides that were followed, strongest first
    cut: tuple[Node, ...]  # nodes that were not explored, because `most` had been
    least: float  # the smallest effect of a wire that is drawn
    most: int  # nodes to explore
    measured: int  # how many wires and sides were measured, each in a run of its own
    kept: float  # the share of the gap that is left when all other wires are swapped in one run
    random: RandomCircuits
    roles: tuple[tuple[str, int], ...]  # names of positions, for print
    engine: Literal["fast", "plain"]  # the path that ran
    seed: int
    versions: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()  # what a reader must know before the numbers

    @property
    def gap(self) -> float:
        """How far the metric lies apart between both prompts; effects are shares of it."""
        return self.clean_value - self.counterfactual_value

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that a wire touches, from the embeddings up."""
        touched: set[Node] = set()
        for each in self.wires:
            touched |= {Node.written(each.wire), Node.read(each.wire)}
        return tuple(sorted(touched, key=self._height))

    def _height(self, node: Node) -> tuple[int, bool, int, int]:
        """Sorts nodes by layer, the MLP after the heads, then by position and head."""
        if node.component is None:
            return self.source.layers, False, 0, 0
        is_mlp = node.component.kind == "mlp"
        return node.component.layer, is_mlp, node.position or 0, node.component.index

    # Questions

    def into(self, node: str | Node | Reader | Head) -> tuple[WireEffect, ...]:
        """The wires that end at a node, or at one side of it, strongest first."""
        wanted = self._selector(node)
        return tuple(each for each in self.wires if wanted.is_reader_of(each.wire))

    def out_of(self, node: str | Node | Component | Head) -> tuple[WireEffect, ...]:
        """The wires that begin at a node, strongest first."""
        wanted = self._selector(node)
        if wanted.side is not None:
            raise EdgeError(
                f"{node} is a side, where wires end; those of a head begin at {wanted.component}"
            )
        return tuple(each for each in self.wires if wanted.is_writer_of(each.wire))

    def side(self, reader: str | Reader) -> tuple[WireEffect, ...]:
        """The effect of whole sides: all that a reader sees there swapped at once."""
        wanted = self._selector(reader)
        return tuple(each for each in self.sides if wanted.is_reader_of(each.wire))

    def paths(
        self, start: str | Node, end: str | Node = "logits"
    ) -> tuple[tuple[str, ...], ...]:
        """Every path along the wires from one node to another, as the nodes passed."""
        first, last = self._selector(start), self._selector(end)
        following: dict[
            Node, list[Node]
        ] = {}  # where the wires out of each node lead, each node once
        for each in self.wires:
            after = following.setdefault(Node.written(each.wire), [])
            if Node.read(each.wire) not in after:
                after.append(Node.read(each.wire))
        paths: list[tuple[str, ...]] = []
        for node in self.nodes:
            if first.matches(node):
                paths += islice(_paths(node, following, last), MOST_PATHS + 1)
        if len(paths) > MOST_PATHS:
            many = f"there are more than {MOST_PATHS} paths from {start} to {end}"
            raise EdgeError(
                f"{many}; name a nearer end, or draw fewer wires with a larger least"
            )
        return tuple(paths)

    def without(
        self, *parts: str | Wire | Node | Component | Head, model: Any = None
    ) -> Wiring:
        """The wiring less some wires or nodes; what is kept then is measured anew, never subtracted."""
        from circuits.tracing.wiring import measure_kept

        removed: set[Wire] = set()
        for part in parts:
            named = self._wires_of(part)
            if not named:
                raise EdgeError(f"{part} is not in this wiring; it has {self._some_nodes()}")
            removed |= named
        left = tuple(each for each in self.wires if each.wire not in removed)
        return measure_kept(replace(self, wires=left), model=model)

    def _wires_of(self, part: str | Wire | Node | Component | Head) -> set[Wire]:
        """The wire of this name, or all wires into and out of a node."""
        name = str(part)
        wires = {each.wire for each in self.wires}
        if "→" in name or "->" in name:
            return {Wire.parse(name, layers=self.source.layers)} & wires
        wanted = self._selector(name)
        return {
            wire for wire in wires if wanted.is_reader_of(wire) or wanted.is_writer_of(wire)
        }

    def _some_nodes(self) -> str:
        names = [str(node) for node in reversed(self.nodes)]
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        return ", ".join(names[:12]) + more

    def _selector(self, name: object) -> Selector:
        """What a name such as `L4H4@END.query` means in this model and prompt."""
        owner, side = str(name).strip(), None
        before, _, last = owner.rpartition(".")
        if last in SIDES:
            owner, side = before, last
        component, sign, place = owner.partition("@")
        position = self.position(place) if sign else None
        if component.strip().lower() == "logits":
            return Selector(None, position, None)
        parsed = Component.parse(component)
        if (
            parsed.kind == "all"
            or parsed.layer >= self.source.layers
            or parsed.index >= self.source.heads
        ):
            last_head = Head(self.source.layers - 1, self.source.heads - 1)
            there = f"embed, L0H0…{last_head}, M0…M{self.source.layers - 1} and logits"
            raise EdgeError(f"no {component} in {self.source.name}, which has {there}")
        if side is not None and parsed.kind != "head":
            raise EdgeError(f"{parsed} has no {side} side; only heads have sides")
        return Selector(parsed, position, side)

    def position(self, name: int | str) -> int:
        """The index of a position: by its role, its index or its token."""
        for role, position in self.roles:
            if role == name:
                return position
        return self.prompt.position(name)

    def position_name(self, position: int) -> str:
        """The role of a position, or its index."""
        for role, index in self.roles:
            if index == position:
                return role
        return str(position)

    # Other forms

    def to_graph(self) -> nx.MultiDiGraph:
        """Nodes with kind, layer, position and label; an edge for each wire, with its side and effect."""
        from circuits.show.wiring import wiring_graph

        return wiring_graph(self)

    def __str__(self) -> str:
        from circuits.show.wiring import wiring_text

        return wiring_text(self)

    # Files

    @classmethod
    def from_stored(cls, stored: dict[str, Any], arrays: Arrays | None = None) -> Wiring:
        """The record. Its wires are parsed last: the layer of the logits is the model's."""
        named = {"wires": stored.get("wires"), "sides": stored.get("sides")}
        written = to_record(_StoredWires, named)
        wiring = to_record(cls, stored | {"wires": [], "sides": []})
        layers = wiring.source.layers
        return replace(
            wiring, wires=_parsed(written.wires, layers), sides=_parsed(written.sides, layers)
        )

    def check(self) -> None:
        # Refuses prompts of different lengths.
        Pair(self.prompt, self.counterfactual, self.metric)
        check_limits(self.least, self.most)
        self.source.check(self.output)
        wires = [each.wire for each in self.wires]
        sides = [each.wire for each in self.sides]
        require(len(set(wires)) == len(wires), "it has a wire twice")
        require(all(wire.writer != ALL for wire in wires), "it has a wire without a writer")
        require(all(side.writer == ALL for side in sides), "it has a side with a writer")
        for wire in (*wires, *sides):
            _check_wire(wire, self.source)
        nodes = [
            *self.cut,
            *map(Node.written, (*wires, *sides)),
            *map(Node.read, (*wires, *sides)),
        ]
        positions = [position for _, position in self.roles]
        for node in nodes:
            if node.component is not None:
                require(node.position is not None, f"{node} has no position")
            positions.append(node.position or 0)
        check_positions(positions, len(self.prompt))


@dataclass(frozen=True, slots=True)
class Selector:
    """A part of the wiring that a user named: a component or the logits (None), at one position or at any,
    and one side of it or all."""

    component: Component | None
    position: int | None
    side: str | None

    def matches(self, node: Node) -> bool:
        anywhere = self.position is None or node.component is None
        return node.component == self.component and (anywhere or node.position == self.position)

    def is_reader_of(self, wire: Wire) -> bool:
        return self.matches(Node.read(wire)) and self.side in (None, wire.reader.kind)

    def is_writer_of(self, wire: Wire) -> bool:
        return self.matches(Node.written(wire)) and self.component is not None


def _paths(
    node: Node, following: dict[Node, list[Node]], last: Selector
) -> Iterator[tuple[str, ...]]:
    """Every path from a node to the selected ones; there are no circles, as wires run upwards."""
    if last.matches(node):
        yield (str(node),)
        return
    for after in following.get(node, ()):
        for path in _paths(after, following, last):
            yield (str(node), *path)


def check_limits(least: float, most: int) -> None:
    """Refuse a threshold that draws everything or nothing, and a walk of no steps."""
    if not 0 < least <= 1:
        raise PromptError(
            f"least is a share of the gap, above 0 and at most 1 such as 0.03, not {least}"
        )
    if most < 1:
        raise PromptError(f"most counts the nodes to explore, at least 1, not {most}")


# Files


@dataclass(frozen=True, slots=True)
class _StoredWire:
    wire: str
    effect: float


@dataclass(frozen=True, slots=True)
class _StoredWires:
    wires: tuple[_StoredWire, ...]
    sides: tuple[_StoredWire, ...]


def _parsed(stored: Sequence[_StoredWire], layers: int) -> tuple[WireEffect, ...]:
    return tuple(
        WireEffect(Wire.parse(each.wire, layers=layers), each.effect) for each in stored
    )


def _check_wire(wire: Wire, source: MeasuredModel) -> None:
    """Refuse a wire between components that the model lacks, or one that runs downwards."""
    layers = source.layers + 1 if wire.reader.kind == "logits" else source.layers
    inside = (
        wire.reader.layer < layers and max(wire.writer.index, wire.reader.index) < source.heads
    )
    require(inside, f"{wire} names a component that its model lacks")
    upwards = wire.reader.sees(wire.writer, parallel=source.parallel)
    has_query = (wire.query is not None) == (wire.reader.kind in ("key", "value"))
    require(upwards and has_query, f"{wire} runs downwards, or lacks the query of its side")
