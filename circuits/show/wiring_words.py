"""What is written into the picture of a wiring: its boxes, the names of its columns, subtitle and caption."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from circuits.components import Component
from circuits.errors import PromptError
from circuits.show.canvas import SMALL, Font, width_of
from circuits.show.wiring_grid import kind_of
from circuits.show.wiring_lanes import Size
from circuits.show.words import question_words, spell, verdict_words
from circuits.wires.parts import LOGITS, Node

if TYPE_CHECKING:
    from circuits.wires.record import Wiring

NAME: Final = Font(6.5, bold=True)
_LONGEST_TOKEN: Final = 12


def checked_names(wiring: Wiring, names: Mapping[str, str]) -> dict[Component, str]:
    """The names by component; a component that the circuit lacks is an error."""
    present = {node.component for node in wiring.nodes if node.component is not None}
    checked = {}
    for key, name in names.items():
        component = Component.parse(key)
        if component not in present:
            there = " ".join(sorted(map(str, present)))
            raise PromptError(f"names has {key}, which is not in this circuit; it has {there}")
        checked[component] = name
    return checked


@dataclass(frozen=True, slots=True)
class BoxLabels:
    """What is written in the boxes and below the columns."""

    wiring: Wiring
    names: Mapping[Component, str]

    def lines(self, node: Node) -> list[tuple[str, Font]]:
        """The lines in a box."""
        if node == LOGITS:
            if len(self.wiring.pairs) > 1:
                return [("logits", NAME)]
            output = self.wiring.output
            token = spell(output.token, longest=_LONGEST_TOKEN)
            return [("logits", NAME), (f"{token} {output.probability:.0%}", Font(SMALL))]
        assert node.component is not None
        lines = [(str(node.component), NAME)]
        name = self.names.get(node.component)
        if name is not None:
            wrapped = textwrap.wrap(spell(name, longest=48), 12) or [""]
            lines += [(line, Font(SMALL)) for line in wrapped]
        return lines

    def size(self, node: Node) -> Size:
        """The room that the lines of a box take, with the letters of a head's sides."""
        lines = self.lines(node)
        kind = kind_of(node)
        widest = max(map(text_width, lines))
        aside = 12.0 if kind == "mlp" else 6.0  # the tips of a hexagon
        height = 7.0 * len(lines) + 3.5
        if kind == "head":
            height += 5.5  # the letters of its sides
        return Size(widest + aside, height)

    def footer(self, place: int | None) -> list[tuple[str, Font]]:
        """The name of a place and, in the first prompt, its token."""
        if place is None:
            return []
        name = spell(self.wiring.places[place], longest=_LONGEST_TOKEN)
        lines = [(name, NAME)]
        token = place_token(self.wiring, place)
        if token:
            lines.append((spell(token, longest=_LONGEST_TOKEN), Font(SMALL)))
        return lines


def place_token(wiring: Wiring, place: int) -> str:
    """The token of the first prompt at a place; empty where that prompt does not reach it."""
    words = wiring.prompt.words
    if len(words) == len(wiring.places):
        return words[place]
    role, _, steps = wiring.places[place].partition("+")
    position = dict(wiring.pairs[0].roles).get(role)
    if position is None or (steps and not steps.isdigit()):
        return ""
    position += int(steps or 0)
    return words[position] if position < len(words) else ""


def text_width(line: tuple[str, Font]) -> float:
    return width_of(*line)


def subtitle(wiring: Wiring) -> str:
    """`Ben(9) → Tom; logit(Tom) − logit(Ben); stories15m`; of a task its name and how many pairs."""
    source = spell(wiring.source.name, longest=40)
    if wiring.task:
        return f"{spell(wiring.task)}, {len(wiring.pairs)} pairs; {source}"
    roles = {position: role for role, position in wiring.pairs[0].roles}
    more = len(wiring.pairs) - 1
    alike = f" and {more} pairs like it" if more else ""
    return question_words(wiring, source, roles=roles, more=alike)


def caption(wiring: Wiring) -> str:
    """What is kept, on held-out pairs too, and by random circuits."""
    parts = [f"Kept {wiring.kept:z.2f}"]
    if len(wiring.seen) > 1:
        worst = min(pair.kept for pair in wiring.seen)
        parts = [
            f"Kept: mean {wiring.kept:z.2f}, worst {worst:z.2f} of {len(wiring.seen)} pairs"
        ]
    if wiring.held_out:
        kept = [pair.kept for pair in wiring.held_out]
        mean = sum(kept) / len(kept)
        parts.append(f"held out: mean {mean:z.2f}, worst {min(kept):z.2f} of {len(kept)}")
    parts.append(f"as many random wires {wiring.random.mean:z.2f}")
    parts.append(f"all wires but these {wiring.complement:z.2f}")
    if wiring.without_heads:
        gone = " ".join(map(str, wiring.without_heads[:6]))
        parts.append(f"{gone} swapped away")
    verdict = verdict_words(wiring)
    start = f"{verdict[0].upper()}{verdict[1:]}. " if verdict else ""
    return f"{start}{'; '.join(parts)}."
