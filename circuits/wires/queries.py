"""What a wiring is asked without measuring: wires into and out of a node, paths, the meaning of a name.

A node is named by its component, with or without a place and a side: `L4H4`, `L4H4@13`, `L4H4@END`,
`L4H4.query`, `M3@9`, `embed@5`, `logits`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from circuits.components import SIDES, Component, Head, Wire
from circuits.errors import EdgeError
from circuits.wires.parts import Node, WireValue

if TYPE_CHECKING:
    from circuits.wires.record import Wiring

MOST_PATHS: Final = 1000
_NAMED: Final = 12  # nodes that an error lists


# Wires and paths


def into(wiring: Wiring, node: object) -> tuple[WireValue, ...]:
    """The wires that end at a node, or at one side of it."""
    wanted = selected(wiring, node)
    return tuple(each for each in wiring.wires if wanted.is_end_of(wiring, each.wire))


def out_of(wiring: Wiring, node: object) -> tuple[WireValue, ...]:
    """The wires that begin at a node."""
    wanted = selected(wiring, node)
    if wanted.side is not None:
        raise EdgeError(
            f"{node} is a side, where wires end; those of a head begin at {wanted.component}"
        )
    return tuple(each for each in wiring.wires if wanted.is_writer_of(each.wire))


def paths(wiring: Wiring, start: object, end: object) -> tuple[tuple[str, ...], ...]:
    """Every path along the wires from one node to another, as the nodes passed."""
    first, last = selected(wiring, start), selected(wiring, end)
    following = _following(wiring)
    found: list[tuple[str, ...]] = []
    for node in wiring.nodes:
        if first.matches(node):
            found += islice(_paths(node, following, last), MOST_PATHS + 1)
    if len(found) > MOST_PATHS:
        many = f"there are more than {MOST_PATHS} paths from {start} to {end}"
        raise EdgeError(f"{many}; name a nearer end, or take a circuit of a smaller share")
    return tuple(found)


def _following(wiring: Wiring) -> dict[Node, list[Node]]:
    """Where the wires out of each node lead, each node once."""
    following: dict[Node, list[Node]] = {}
    for each in wiring.wires:
        after = following.setdefault(Node.written(each.wire), [])
        after += [node for node in wiring.readers_of(each.wire) if node not in after]
    return following


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


def wires_of(wiring: Wiring, part: object) -> set[Wire]:
    """The wire of this name, or all wires into and out of a node."""
    name = str(part)
    present = {each.wire for each in wiring.wires}
    if "→" in name or "->" in name:
        wire = Wire.parse(_with_number(wiring, name), layers=wiring.source.layers)
        named = {wire} & present
    else:
        wanted = selected(wiring, name)
        into_it = {wire for wire in present if wanted.is_end_of(wiring, wire)}
        out_of_it = {wire for wire in present if wanted.is_writer_of(wire)}
        named = into_it | out_of_it
    if not named:
        raise EdgeError(f"{part} is not in this wiring; it has {_some_nodes(wiring)}")
    return named


def _with_number(wiring: Wiring, name: str) -> str:
    """A wire's name with the number of its place instead of its role."""
    writer, sign, rest = name.replace("->", "→").partition("@")
    place, arrow, reader = rest.partition("→")
    if not sign or place.isdigit():
        return name
    return f"{writer}@{wiring.place(place)}{arrow}{reader}"


def _some_nodes(wiring: Wiring) -> str:
    names = [wiring.node_name(node) for node in reversed(wiring.nodes)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# Names


@dataclass(frozen=True, slots=True)
class Selector:
    """A part of a wiring that a user named: a component or the logits (None), at one place or at any, and
    one side of it or all."""

    component: Component | None
    place: int | None
    side: str | None

    def matches(self, node: Node) -> bool:
        """Whether a node is meant. The logits stand at no place, whatever place was named."""
        if node.component != self.component:
            return False
        return self.place is None or node.component is None or node.place == self.place

    def is_writer_of(self, wire: Wire) -> bool:
        """Whether a wire begins here."""
        return self.matches(Node.written(wire))

    def is_end_of(self, wiring: Wiring, wire: Wire) -> bool:
        """Whether a wire ends here, at the side that was named."""
        if self.side not in (None, wire.reader.kind):
            return False
        return any(self.matches(node) for node in wiring.readers_of(wire))


def selected(wiring: Wiring, name: object) -> Selector:
    """What a name such as `L4H4@END.query` means in this model and prompt."""
    owner = str(name).strip()
    side = None
    before, _, last = owner.rpartition(".")
    if last in SIDES:
        owner = before
        side = last
    component, sign, place_name = owner.partition("@")
    place = wiring.place(place_name) if sign else None
    if component.strip().lower() == "logits":
        return Selector(None, place, None)
    parsed = Component.parse(component)
    source = wiring.source
    is_there = parsed.layer < source.layers and parsed.index < source.heads
    if parsed.kind == "all" or not is_there:
        last_head = Head(source.layers - 1, source.heads - 1)
        there = f"embed, L0H0…{last_head}, M0…M{source.layers - 1} and logits"
        raise EdgeError(f"no {component} in {source.name}, which has {there}")
    if side is not None and parsed.kind != "head":
        raise EdgeError(f"{parsed} has no {side} side; only heads have sides")
    return Selector(parsed, place, side)
