"""The parts of a wiring's record: nodes, pairs, wires with their values, circuits of the search, controls.

A node is a component at a place (`L4H4@13`, `L4H4@S2`) or at all positions together (`L4H4`), or the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from circuits.components import Component, Wire, by_name
from circuits.errors import EdgeError
from circuits.prompts import Metric, Noise, Prompt


@dataclass(frozen=True, slots=True)
class Node:
    """A component at a place, or at all positions together; without component it is the logits."""

    component: Component | None = None
    place: int | None = None

    def __str__(self) -> str:
        if self.component is None:
            return "logits"
        return str(self.component) if self.place is None else f"{self.component}@{self.place}"

    @classmethod
    def parse(cls, name: str) -> Node:
        """Read `L4H4@13`, `M3@9`, `embed@5`, `L4H4` and `logits`."""
        if name == "logits":
            return cls()
        component, sign, place = name.partition("@")
        if not sign:
            return cls(Component.parse(component))
        if not (place.isascii() and place.isdigit() and len(place) < 10):
            raise EdgeError(
                f"{name!r} is not a node; write it as L4H4@13, M3@9, embed@5 or logits"
            )
        return cls(Component.parse(component), int(place))

    @classmethod
    def written(cls, wire: Wire) -> Node:
        """Where a wire begins."""
        return cls(wire.writer, wire.position)

    __get_pydantic_core_schema__ = classmethod(by_name)


LOGITS: Final = Node()


@dataclass(frozen=True, slots=True)
class WiredPair:
    """One pair, and how much of its gap the circuit keeps."""

    prompt: Prompt
    counterfactual: Prompt | Noise
    metric: Metric
    clean_value: float  # the metric on the clean prompt
    counterfactual_value: float
    kept: float
    held_out: bool = False  # the search did not see it
    roles: tuple[tuple[str, int], ...] = ()

    @property
    def gap(self) -> float:
        return self.clean_value - self.counterfactual_value


@dataclass(frozen=True, slots=True)
class WireValue:
    """A wire of the circuit."""

    wire: Wire
    value: float  # what the circuit keeps less without this wire, in an exact run
    effect: float  # of swapping this wire alone in the whole model
    new: bool = False  # a head of it joined only after others were swapped away

    def __str__(self) -> str:
        return f"{self.wire} {self.value:z.3f}"


@dataclass(frozen=True, slots=True)
class Member:
    """A wire, and the size of the smallest circuit of the search that has it."""

    wire: Wire
    size: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One circuit of the search, on the pairs that the search saw."""

    wires: int
    kept: float  # mean over pairs
    worst: float  # of any pair
    distance: float  # from the whole model: the mean of |1 − kept|


@dataclass(frozen=True, slots=True)
class RandomCircuits:
    """How much circuits of as many random wires keep. They are made of paths from the embedding to the logits,
    as the circuit is, and share no wire with it."""

    mean: float
    largest: float
    draws: int


@dataclass(frozen=True, slots=True)
class OtherCircuit:
    """A control: the circuit of another behaviour, found by the same search, of as many wires."""

    task: str  # its name; empty where the user gave prompts
    pairs: tuple[WiredPair, ...]  # on which it was found, and what it keeps there
    wires: int
    kept: float  # on the pairs of the wiring that it is compared with, mean
    shared: int  # wires that both circuits have


@dataclass(frozen=True, slots=True)
class Overlap:
    """How alike circuits are that were searched on bootstrap resamples of the pairs."""

    resamples: int
    jaccard: float  # mean over the resamples: shared wires over all wires of both
    core: tuple[Wire, ...]  # wires of the circuit that every resample has
