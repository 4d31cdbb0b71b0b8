"""What stands around a figure: the finding and the question above it, a legend and a caption below it.

Lengths are points (1/72 inch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from circuits.show.canvas import NOTE, Font, Sheet, width_of

FINDING: Final = Font(8.0, bold=True)
LINE_HEIGHT: Final = 8.2
_TITLE_HEIGHT: Final = 9.8
_KEY_HEIGHT: Final = 10.0
_SAMPLE: Final = 15.0  # the width of what a key of the legend draws
_BETWEEN_KEYS: Final = 7.0


def wrapped(text: str, font: Font, width: float) -> list[str]:
    """A text in lines that are no wider than `width`, unless a single word is."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer, font) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines if text else []


def balanced(text: str, font: Font, width: float) -> list[str]:
    """A text in as few lines as `width` allows, the longest of them as short as it can be: no last word stands
    alone."""
    lines = wrapped(text, font, width)
    while len(lines) > 1:
        longest = max(width_of(line, font) for line in lines)
        narrower = wrapped(text, font, longest - 0.1)
        if len(narrower) > len(lines) or narrower == lines:
            break
        lines = narrower
    return lines


def write_lines(sheet: Sheet, x: float, y: float, lines: Sequence[str]) -> None:
    """Write lines of small letters below each other; the first hangs from y."""
    for number, line in enumerate(lines):
        sheet.write(x, y + LINE_HEIGHT * (number + 1) - 2, line, NOTE)


@dataclass(frozen=True, slots=True)
class Heading:
    """What was found, and below it what was asked, in lines."""

    finding: list[str]
    question: list[str]

    @property
    def height(self) -> float:
        return _TITLE_HEIGHT * len(self.finding) + LINE_HEIGHT * len(self.question)

    @property
    def lines(self) -> list[tuple[float, str, Font]]:
        """Every line with its font and its distance from the top to the baseline."""
        lines = []
        y = 0.0
        for line in self.finding:
            y += _TITLE_HEIGHT
            lines.append((y - 2.5, line, FINDING))
        for line in self.question:
            y += LINE_HEIGHT
            lines.append((y - 2.0, line, NOTE))
        return lines

    def draw(self, sheet: Sheet, x: float, y: float) -> None:
        """Write both; the first line hangs from y."""
        for down, line, font in self.lines:
            sheet.write(x, y + down, line, font)


def to_heading(finding: str, question: str, width: float) -> Heading:
    """A heading in lines that fit this width."""
    return Heading(balanced(finding, FINDING, width), balanced(question, NOTE, width))


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend: its words and its sample.

    `draw` is given a sheet that is measured from the middle of the sample's left end, and the sample's width.
    """

    words: str
    draw: Callable[[Sheet, float], None] | None = None
    sample: float = _SAMPLE

    @property
    def words_at(self) -> float:
        """From the left end of the entry to its words."""
        return self.sample + 3 if self.draw else 0.0

    @property
    def width(self) -> float:
        return self.words_at + width_of(self.words, NOTE)


@dataclass(frozen=True, slots=True)
class Legend:
    """Entries in rows."""

    rows: list[list[Key]]

    @property
    def height(self) -> float:
        return _KEY_HEIGHT * len(self.rows)

    def draw(self, sheet: Sheet, x: float, y: float) -> None:
        """Draw the entries below y."""
        for number, row in enumerate(self.rows):
            left = x
            middle = y + _KEY_HEIGHT * number + 4
            for key in row:
                if key.draw is not None:
                    key.draw(sheet.moved(left, middle), key.sample)
                sheet.write(left + key.words_at, middle + 2.1, key.words, NOTE)
                left += key.width + _BETWEEN_KEYS


def to_legend(keys: Sequence[Key], width: float) -> Legend:
    """The entries in rows that fit this width."""
    rows: list[list[Key]] = []
    used = 0.0
    for key in keys:
        if not rows or used + key.width > width:
            rows.append([])
            used = 0.0
        rows[-1].append(key)
        used += key.width + _BETWEEN_KEYS
    return Legend(rows)
