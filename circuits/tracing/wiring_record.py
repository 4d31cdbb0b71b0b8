"""What `wiring` is answered with: the circuit of components of one pair, a frozen record of plain values.

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
from circuits.results import Faults, Pictured, Saved, above
from circuits.tracing import MeasuredModel, Output

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
            raise EdgeError(f"{name!r} is not a node; write it as L4H4@13, M3@9, embed@5 or logits")
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
    """What random circuits of as many wires explain, each walked back from the logits as the drawn one is."""

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
    CALLED: ClassVar = "a wiring"

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
        touched = {end(each.wire) for each in self.wires for end in (Node.written, Node.read)}
        return tuple(sorted(touched, key=self._height))

    def _height(self, node: Node) -> tuple[int, bool, int, int]:
        if node.component is None:
            return self.source.layers, False, 0, 0
        is_mlp = node.component.kind == "mlp"
        return node.component.layer, is_mlp, node.position or 0, node.component.index

    # Questions

    def into(self, node: str | Node | Reader | Head) -> tuple[WireEffect, ...]:
        """The wires that end at a node, or at one side of it, strongest first."""
        wanted = self._selector(node)
        return tuple(each for each in self.wires if wanted.reads(each.wire))

    def out_of(self, node: str | Node | Component | Head) -> tuple[WireEffect, ...]:
        """The wires that begin at a node, strongest first."""
        wanted = self._selector(node)
        if wanted.side is not None:
            raise EdgeError(f"{node} is a side, where wires end; those of a head begin at {wanted.component}")
        return tuple(each for each in self.wires if wanted.writes(each.wire))

    def side(self, reader: str | Reader) -> tuple[WireEffect, ...]:
        """The effect of whole sides: all that a reader sees there swapped at once."""
        wanted = self._selector(reader)
        return tuple(each for each in self.sides if wanted.reads(each.wire))

    def paths(self, start: str | Node, end: str | Node = "logits") -> tuple[tuple[str, ...], ...]:
        """Every path along the wires from one node to another, as the nodes passed."""
        first, last = self._selector(start), self._selector(end)
        onward: dict[Node, dict[Node, None]] = {}
        for each in self.wires:
            onward.setdefault(Node.written(each.wire), {})[Node.read(each.wire)] = None
        every = (path for node in self.nodes if first.holds(node) for path in _paths(node, onward, last))
        paths = tuple(islice(every, MOST_PATHS + 1))
        if len(paths) > MOST_PATHS:
            many = f"there are more than {MOST_PATHS} paths from {start} to {end}"
            raise EdgeError(f"{many}; name a nearer end, or draw fewer wires with a larger least")
        return paths

    def without(self, *parts: str | Wire | Node | Component | Head, model: Any = None) -> Wiring:
        """The circuit less some wires or nodes; what is kept then is measured anew, never subtracted."""
        gone: set[Wire] = set()
        for part in parts:
            named = self._wires_of(part)
            if not named:
                raise EdgeError(f"{part} is not in this wiring; it has {self._some_nodes()}")
            gone |= named
        left = tuple(each for each in self.wires if each.wire not in gone)
        return above("measure_kept")(replace(self, wires=left), model=model)

    def _wires_of(self, part: str | Wire | Node | Component | Head) -> set[Wire]:
        """The wire of this name, or all wires into and out of a node."""
        name = str(part)
        if "→" in name or "->" in name:
            return {Wire.parse(name, layers=self.source.layers)} & {each.wire for each in self.wires}
        wanted = self._selector(name)
        return {each.wire for each in self.wires if wanted.reads(each.wire) or wanted.writes(each.wire)}

    def _some_nodes(self) -> str:
        names = [str(node) for node in reversed(self.nodes)]
        return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")

    def _selector(self, name: object) -> Selector:
        """What a name means in this model and prompt."""
        spoken = str(name).strip()
        bare, _, last = spoken.rpartition(".")
        owner, side = (bare, last) if last in SIDES else (spoken, None)
        component, sign, after = owner.partition("@")
        position = self.position(after) if sign else None
        if component.strip().lower() == "logits":
            return Selector(None, position, None)
        parsed = Component.parse(component)
        if parsed.kind == "all" or parsed.layer >= self.source.layers or parsed.index >= self.source.heads:
            last_head = Head(self.source.layers - 1, self.source.heads - 1)
            there = f"embed, L0H0…{last_head}, M0…M{self.source.layers - 1} and logits"
            raise EdgeError(f"no {component} in {self.source.name}, which has {there}")
        if side is not None and parsed.kind != "head":
            raise EdgeError(f"{parsed} has no {side} side; only heads have sides")
        return Selector(parsed, position, side)

    def position(self, name: int | str) -> int:
        """The index of a position: by its role, its index or its token."""
        roles = dict(self.roles)
        return roles[name] if isinstance(name, str) and name in roles else self.prompt.position(name)

    def position_name(self, position: int) -> str:
        """The role of a position, or its index."""
        return next((role for role, index in self.roles if index == position), str(position))

    # Other forms

    def to_graph(self) -> nx.MultiDiGraph:
        """Nodes with kind, layer, position and label; an edge for each wire, with its side and effect."""
        return above("wiring_graph")(self)

    def __str__(self) -> str:
        return above("wiring_text")(self)

    # Files

    @classmethod
    def from_stored(cls, stored: dict[str, Any], packed: bytes | None = None) -> Wiring:
        """The record, with wires by their names: how far up the logits are is the model's."""
        listed = {name: stored.pop(name, None) for name in ("wires", "sides")}
        wiring, named = to_record(cls, stored | {"wires": [], "sides": []}), to_record(_Stored, listed)
        return replace(
            wiring, **{name: _parsed(getattr(named, name), wiring.source.layers) for name in listed}
        )

    def faults(self) -> Faults:
        Pair(self.prompt, self.counterfactual, self.metric)  # refuses prompts of different lengths
        check_limits(self.least, self.most)
        source, length = self.source, len(self.prompt)
        sized = min(source.layers, source.heads, source.width) >= 1 and self.output.layer == source.layers
        yield not sized, "its model has no size, or its output is not above all layers"
        whole = any(each.wire.writer == ALL for each in self.wires)
        part = any(each.wire.writer != ALL for each in self.sides)
        yield whole or part, "it has a wire without a writer, or a side with one"
        positions = [position for _, position in self.roles] + [node.position for node in self.cut]
        for each in (*self.wires, *self.sides):
            yield from _faults_of_wire(each.wire, source)
            positions += [each.wire.position, Node.read(each.wire).position or 0]
        outside = any(position is None or not 0 <= position < length for position in positions)
        yield outside, f"it names a position outside its prompt, which has 0…{length - 1}"
        yield len({each.wire for each in self.wires}) < len(self.wires), "it has a wire twice"


@dataclass(frozen=True, slots=True)
class Selector:
    """What a user names: a component or the logits (None), at a position or at any, one side of it or all."""

    component: Component | None
    position: int | None
    side: str | None

    def holds(self, node: Node) -> bool:
        anywhere = self.position is None or node.component is None
        return node.component == self.component and (anywhere or node.position == self.position)

    def reads(self, wire: Wire) -> bool:
        return self.holds(Node.read(wire)) and self.side in (None, wire.reader.kind)

    def writes(self, wire: Wire) -> bool:
        return self.holds(Node.written(wire)) and self.component is not None


def _paths(node: Node, onward: dict[Node, dict[Node, None]], last: Selector) -> Iterator[tuple[str, ...]]:
    """Every path from a node to the selected ones; there are no circles, as wires run upwards."""
    if last.holds(node):
        yield (str(node),)
        return
    for following in onward.get(node, ()):
        yield from ((str(node), *path) for path in _paths(following, onward, last))


def check_limits(least: float, most: int) -> None:
    """Refuse a threshold that draws everything or nothing, and a walk of no steps."""
    if not 0 < least <= 1:
        raise PromptError(f"least is a share of the gap, above 0 and at most 1 such as 0.03, not {least}")
    if most < 1:
        raise PromptError(f"most counts the nodes to explore, at least 1, not {most}")


# Files


@dataclass(frozen=True, slots=True)
class _StoredWire:
    wire: str
    effect: float


@dataclass(frozen=True, slots=True)
class _Stored:
    wires: tuple[_StoredWire, ...]
    sides: tuple[_StoredWire, ...]


def _parsed(stored: Sequence[_StoredWire], layers: int) -> tuple[WireEffect, ...]:
    return tuple(WireEffect(Wire.parse(each.wire, layers=layers), each.effect) for each in stored)


def _faults_of_wire(wire: Wire, source: MeasuredModel) -> Faults:
    sided = wire.reader.kind in ("key", "value")
    beyond = wire.reader.layer >= source.layers + (wire.reader.kind == "logits")
    lacking = beyond or max(wire.writer.index, wire.reader.index) >= source.heads
    yield lacking, f"{wire} names a component that its model lacks"
    upwards = wire.reader.sees(wire.writer, parallel=source.parallel) and sided == (wire.query is not None)
    yield not upwards, f"{wire} runs downwards, or lacks the query of its side"
