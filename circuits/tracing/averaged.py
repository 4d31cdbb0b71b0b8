"""The pairs whose mean a circuit is, and which of them the mean holds."""

from __future__ import annotations

from dataclasses import dataclass

from circuits.prompts import Pair
from circuits.results import require
from circuits.tracing.parts import Interval, Roles


@dataclass(frozen=True, slots=True)
class AveragedPairs:
    """All pairs that a circuit was asked about, and which of them its means hold."""

    pairs: tuple[Pair, ...]  # in the user's order, each once
    roles: tuple[Roles, ...]  # of each pair
    left_out: tuple[int, ...]  # the numbers of pairs that the means do not hold
    weak: int  # of these: their gap is too small, compared with their own values or the others'
    wrong: int  # of these: they are on the wrong side
    repeated: int  # pairs that were given more than once, and counted once
    totals: tuple[Interval, ...]  # of each mapping of the circuit, over the pairs

    @property
    def counted(self) -> tuple[int, ...]:
        """The numbers of the pairs that the means hold."""
        return tuple(n for n in range(len(self.pairs)) if n not in self.left_out)

    def role_at(self, position: int) -> str | None:
        """The name of a position of the circuit's own prompt, which is the first that the means hold."""
        for name, place in self.roles[self.counted[0]]:
            if place == position:
                return name
        return None

    def check(self, mappings: int) -> None:
        """Refuse pairs that cannot be those of a circuit with so many mappings."""
        require(bool(self.counted), "its means hold no pair")
        require(len(self.roles) == len(self.pairs), "it does not have the roles of every pair")
        require(len(self.totals) == mappings, "it does not have an interval for every mapping")
        for pair, roles in zip(self.pairs, self.roles, strict=True):
            inside = all(0 <= place < len(pair) for _, place in roles)
            require(inside, "a role stands outside of its prompt")

    def __str__(self) -> str:
        left = len(self.left_out)
        more = f", {left} more left out" if left else ""
        return f"mean of {len(self.counted)} pairs{more}; words are those of the first"
