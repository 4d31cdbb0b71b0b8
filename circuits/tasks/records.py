"""A task as a record: its items, and how many were left out for which reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from circuits.errors import PromptError
from circuits.prompts import Pair

END = "END"


@dataclass(frozen=True, slots=True)
class Item:
    """One pair with its named positions, for example ("IO", 2), ("S1", 4), ("S2", 10), ("END", 14)."""

    pair: Pair
    roles: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        wrong = [(name, at) for name, at in self.roles if not 0 <= at < len(self.pair)]
        if wrong:
            raise PromptError(
                f"role {wrong[0][0]!r} stands at {wrong[0][1]}, outside the prompt, which has 0…{len(self.pair) - 1}"
            )
        unspeakable = [name for name, _ in self.roles if not name or "→" in name]
        if unspeakable:
            raise PromptError(
                f"a role cannot be called {unspeakable[0]!r}; give it a name without →, such as S1"
            )

    def position(self, role: str) -> int:
        """Where a role stands."""
        for name, at in self.roles:
            if name == role:
                return at
        raise PromptError(
            f"no role {role!r} in this item; it has {', '.join(name for name, _ in self.roles) or 'none'}"
        )

    def name_of(self, at: int) -> str:
        """A position's name: its role, or the role before it and the distance (`S2+1`), or its index where no role stands before."""
        named = {place: name for name, place in reversed(self.roles)}
        if at in named:
            return named[at]
        offsets = {f"{name}+{distance}" for name, _ in self.roles for distance in range(len(self.pair))}
        before = [(place, name) for place, name in named.items() if place < at and name not in offsets]
        if not before:
            return str(at)
        place, name = max(before)
        return f"{name}+{at - place}"


@dataclass(frozen=True, slots=True)
class Task:
    """Many seeded pairs of one kind, for one model."""

    name: str
    items: tuple[Item, ...]
    left_out: tuple[tuple[str, int], ...] = ()  # reason -> how many
    about: str = ""  # what the counterfactual changes, in one line

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(item.pair for item in self.items)

    @property
    def alike(self) -> tuple[Item, ...]:
        """The largest group of items whose roles stand at the same positions, as `trace` wants a family."""
        layouts = Counter(item.roles for item in self.items)
        most = max(layouts.values(), default=0)
        common = next((roles for roles, count in layouts.items() if count == most), None)
        return tuple(item for item in self.items if item.roles == common)

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        left_out = "; ".join(f"{count} {reason}" for reason, count in self.left_out)
        return f"{self.name}: {len(self)} pairs" + (f"; left out: {left_out}" if left_out else "")
