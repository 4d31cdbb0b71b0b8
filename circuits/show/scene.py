"""What a picture of a circuit shows, decided once for all that draw it.

1. A token is spelled so that it can be seen: spaces around it are left out, what has no shape is written as an escape (`\\n`, `\\u200b`).
2. A prompt of up to 24 tokens is shown whole; of a longer one the tokens that matter stay, with their neighbours, and gaps between.
3. One mapping stands in front (the one that was asked for, or the strongest), others follow while they carry something.
4. A position stands in the box of its span, else (the last one) in the output box, else at its token.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from circuits.tracing.records import CARRIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from circuits.heads import Head
    from circuits.tracing.records import Circuit, Mapping, Span

LONGEST: Final = 24  # tokens of a prompt that is shown whole
LONGEST_WORD: Final = 32  # characters of a token that is shown whole
_SHAPELESS: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})
_JOINERS: Final = frozenset({"\u200c", "\u200d"})  # between letters they shape a word, so they are not shown


def spell(word: str, *, longest: int = LONGEST_WORD) -> str:
    """A token's text as a reader can see it; never empty, never a control character, cut with an ellipsis where it is too long."""
    bare = word.strip(" ")
    if not bare:
        return "␣" * max(1, min(len(word), 4))
    shown = "".join(_visible(letter, inside=0 < at < len(bare) - 1) for at, letter in enumerate(bare))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _visible(letter: str, *, inside: bool) -> str:
    if letter in _JOINERS and inside:
        return letter
    kind = unicodedata.category(letter)
    if kind in _SHAPELESS or (kind == "Zs" and letter != " "):
        return letter.encode("unicode_escape").decode("ascii")
    return letter


def front(circuit: Circuit) -> Mapping | None:
    """The mapping to show: the one that was asked for, or the strongest; None where there is none."""
    if circuit.focus is None:
        return circuit.mappings[0] if circuit.mappings else None
    return next((m for m in circuit.mappings if (m.key, m.query) == circuit.focus), None)


def drawn_mappings(circuit: Circuit, *, most: int = 6) -> tuple[Mapping, ...]:
    """The mappings worth an arrow: the front one first, then the strongest; a position that reads itself is no arrow."""
    first = front(circuit)
    strong = sorted(
        (m for m in circuit.mappings if abs(m.total) >= CARRIES and m.key != m.query),
        key=lambda m: (-abs(m.total), m.key, m.query),
    )
    others = [m for m in strong if m is not first]
    return tuple(([first] if first and first.key != first.query else []) + others)[:most]


def kept_positions(
    length: int, anchors: Iterable[int], *, most: int = LONGEST, reach: int = 1, first: int = 0
) -> tuple[int | None, ...]:
    """The positions to show, in order, with None for each gap; anchors come in order of importance and bring their neighbours."""
    if length - first <= most:
        return tuple(range(first, length))
    chosen: set[int] = set()
    for anchor in anchors:
        around = {at for at in range(anchor - reach, anchor + reach + 1) if first <= at < length}
        if len(chosen | around) <= most:
            chosen |= around
        elif len(chosen) < most:
            chosen.add(anchor)
    lone = {
        at + 1 for at in chosen if at + 2 in chosen
    }  # a gap of one token takes no less room than the token
    return _with_gaps(sorted(chosen | lone), length, first)


def _with_gaps(positions: list[int], length: int, first: int) -> tuple[int | None, ...]:
    shown: list[int | None] = []
    for at in positions:
        if at != (first if not shown else (shown[-1] or 0) + 1):
            shown.append(None)
        shown.append(at)
    return tuple(shown) if positions and positions[-1] == length - 1 else (*shown, None)


def anchors(circuit: Circuit) -> tuple[int, ...]:
    """The positions that matter, most important first."""
    ends = [at for m in drawn_mappings(circuit) for at in (m.key, m.query)]
    in_spans = [at for span in circuit.spans for at in span.positions]
    opening = [0] if not circuit.source.reads_bos else [1] if len(circuit.prompt) > 1 else []
    return tuple(dict.fromkeys([*ends, len(circuit.prompt) - 1, *in_spans, *opening]))


def shown_positions(circuit: Circuit, *, most: int = LONGEST) -> tuple[int | None, ...]:
    """The tokens of the sentence; the BOS that the model reads first is left out unless it plays a part."""
    matter = anchors(circuit)
    skipped = int(circuit.source.reads_bos and len(circuit.prompt) > 1 and 0 not in matter)
    return kept_positions(len(circuit.prompt), matter, most=most, first=skipped)


def span_at(circuit: Circuit, position: int) -> Span | None:
    """The box in which a position stands; of several the one with the fewest positions."""
    return min(
        (s for s in circuit.spans if position in s.positions), key=lambda s: len(s.positions), default=None
    )


def span_lines(span: Span) -> tuple[str, ...]:
    """What a span's box says: `large`, `layer 0-21`, `built in 0, 20-21` (once, if both are the same layers)."""
    held = () if span.layers is None else (f"layer {_range(*span.layers)}",)
    same = span.layers is not None and span.built == (span.layers,)
    built = (f"built in {span.built_text}",) if span.built and not same else ()
    return (spell(span.label), *(held + built or ("no layer",)))


def output_lines(circuit: Circuit) -> tuple[str, ...]:
    """What the output's box says: `small`, `layer 12`, `p = 0.93`."""
    return (
        spell(circuit.output.token),
        f"layer {circuit.output.layer}",
        f"p = {circuit.output.probability:.2f}",
    )


def caption(mapping: Mapping, count: int) -> str:
    """The red line above the maps."""
    who = {0: "No head carries", 1: "One head maps"}.get(
        count, "Both heads map" if count == 2 else "All heads map"
    )
    return f"{who} key pos {mapping.key} to query pos {mapping.query}"


def modulated(mapping: Mapping, share: float) -> str:
    """The line above the carriers' names on an arrow."""
    return (
        f"Modulated at {mapping.modulation(share):.0%} by"
        if mapping.carriers(share)
        else "Carried by no head"
    )


def name_rows(heads: Sequence[Head], *, most: int, in_a_row: int = 4) -> tuple[str, ...]:
    """The names of heads in rows of equal length, the first `most` of them."""
    names = [str(head) for head in heads[:most]]
    rows = -(-len(names) // in_a_row)
    width = -(-len(names) // rows) if rows else 1
    more = (f"and {len(heads) - len(names)} more",) if len(heads) > len(names) else ()
    return (*(" ".join(names[at : at + width]) for at in range(0, len(names), width)), *more)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
