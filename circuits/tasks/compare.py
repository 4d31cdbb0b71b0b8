"""Two circuits of the same question, side by side: usually a dense model and its sparse twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from circuits.errors import PromptError
from circuits.heads import Head
from circuits.tracing.records import SHARE, Circuit, Mapping

_NOTICEABLE: Final = 0.05  # a head whose effect changes by less has not moved


@dataclass(frozen=True, slots=True)
class Moved:
    """One head that does more or less of a mapping in the second model than in the first."""

    head: Head
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One mapping in two models."""

    names: tuple[str, str]
    key: int
    query: int
    share: float
    totals: tuple[float, float]
    modulations: tuple[float, float]
    carriers: tuple[tuple[Head, ...], tuple[Head, ...]]
    open_edges: tuple[int, int]
    edges: tuple[int, int]
    moved: tuple[Moved, ...]  # largest change first; empty where the models differ in shape

    @property
    def ratio(self) -> float:
        """How many times more heads the first needs (infinite if the second needs none)."""
        first, second = (len(heads) for heads in self.carriers)
        return first / second if second else float("inf")

    @property
    def overlap(self) -> tuple[Head, ...]:
        """The carriers that both share."""
        return tuple(head for head in self.carriers[0] if head in self.carriers[1])

    @property
    def jaccard(self) -> float:
        """Shared carriers as a share of all carriers of either."""
        either = {*self.carriers[0], *self.carriers[1]}
        return len(self.overlap) / len(either) if either else 0.0

    def __str__(self) -> str:
        lines = [f"{'':16}{self.names[0]:>20}{self.names[1]:>20}"]

        def line(name: str, *values: str) -> None:
            lines.append(f"{name:16}{values[0]:>20}{values[1]:>20}")

        line(f"total {self.key}→{self.query}", *(f"{total:.3f}" for total in self.totals))
        line(f"heads for {self.share:.0%}", *(str(len(heads)) for heads in self.carriers))
        line("modulation", *(f"{value:.0%}" for value in self.modulations))
        line(
            "open edges",
            *(f"{count} of {whole}" for count, whole in zip(self.open_edges, self.edges, strict=True)),
        )
        lines += [
            f"{name}: {' '.join(map(str, heads)) or 'none'}"
            for name, heads in zip(self.names, self.carriers, strict=True)
        ]
        lines.append(
            f"shared: {' '.join(map(str, self.overlap)) or 'none'} ({self.jaccard:.0%} of all carriers of either)"
        )
        if self.moved:
            lines.append(
                "moved: " + ", ".join(f"{m.head} {m.before:+.2f} → {m.after:+.2f}" for m in self.moved[:5])
            )
        return "\n".join(lines)


def compare(first: Circuit, second: Circuit, *, share: float = SHARE) -> Comparison:
    """How two models carry the same mapping: the one asked for in `first`, or its strongest."""
    before = first.mapping()
    if len(first.prompt) != len(second.prompt):
        raise PromptError(
            f"the two circuits have prompts of {len(first.prompt)} and {len(second.prompt)} tokens; compare circuits of the same prompt"
        )
    after = second.mapping(before.key, before.query)
    return Comparison(
        names=(first.source.name, second.source.name),
        key=before.key,
        query=before.query,
        share=share,
        totals=(before.total, after.total),
        modulations=(before.modulation(share), after.modulation(share)),
        carriers=(before.carriers(share), after.carriers(share)),
        open_edges=(first.source.open_edges, second.source.open_edges),
        edges=(first.source.edges, second.source.edges),
        moved=_moved(before, after),
    )


def _moved(before: Mapping, after: Mapping) -> tuple[Moved, ...]:
    was, now = ({known.head: known.effect for known in mapping.heads} for mapping in (before, after))
    if was.keys() != now.keys():
        return ()
    changed = (Moved(head, was[head], now[head]) for head in was if abs(now[head] - was[head]) >= _NOTICEABLE)
    return tuple(sorted(changed, key=lambda m: (-abs(m.after - m.before), m.head)))
