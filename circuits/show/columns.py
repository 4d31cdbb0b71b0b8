"""The columns of a printed picture: the words of a prompt side by side in the largest font that fits.

Where none fits, the words stand upright in columns of equal width. Lengths are points (1/72 inch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from circuits.show import Scene, spell
from circuits.show.canvas import NAME, Font, width_of

_NARROWEST: Final = 10.0  # the least width of a column
_UPRIGHT: Final = 32.0  # the largest width of a column of upright words
_WIDEST_STEP: Final = 56.0
_LEAST_WORD: Final = 12.0  # the least width of a word
_LEAST_GAP: Final = 5.0  # between words
_MOST_GAP: Final = 26.0
_HALF_BOX: Final = 7.0  # half the largest width of a box
NOTE_STEP: Final = 7.4  # from one line under a word to the next
NOTE_NAMES: Final = "held; built"  # what turned notes are
_MOST_BUILT: Final = 3  # lines of ranges under a word
_LONGEST_NOTE: Final = 24  # letters of a note that is turned
# (letters of a word, font size), the best first
_WORD_SIZES: Final = ((14, 8.0), (14, 7.0), (10, 6.0))


@dataclass(frozen=True, slots=True)
class Columns:
    """The tokens that are shown (None for a gap) and where they stand; upright where they are too many."""

    positions: tuple[int | None, ...]
    words: tuple[str, ...]
    centres: tuple[float, ...]
    step: float  # the least distance between two centres
    size: float  # of the font
    upright: bool
    # Under each word: the layers that hold it, and that build it.
    notes: tuple[tuple[str, str], ...] = ()

    def x_of(self, position: int) -> float | None:
        """The centre of a position's column; None if the position is not shown."""
        if position not in self.positions:
            return None
        return self.centres[self.positions.index(position)]

    @property
    def half(self) -> float:
        """Half the width of a box."""
        return min(0.3 * self.step, _HALF_BOX)

    @property
    def words_height(self) -> float:
        """The height of the words with the numbers above them."""
        if not self.upright:
            return self.size + 13
        font = Font(self.size, bold=True)  # as the key's is
        return 12 + max(width_of(word, font) for word in self.words)

    @property
    def height(self) -> float:
        """The height of all that stands under the picture, the notes included."""
        if not any(map(any, self.notes)):
            return self.words_height
        if self.upright:
            texts = [NOTE_NAMES, *map(upright_note, self.notes)]
            return self.words_height + 3 + max(map(_note_width, texts))
        return self.words_height + NOTE_STEP * max(map(len, map(note_lines, self.notes))) + 1


def note_lines(note: tuple[str, str]) -> list[str]:
    """The layers that hold, then those that build, in lines of at most two ranges; at most three of these."""
    held, built = note
    ranges = built.split(", ")
    lines = [", ".join(ranges[start : start + 2]) for start in range(0, len(ranges), 2)]
    if len(lines) > _MOST_BUILT:
        lines = [*lines[: _MOST_BUILT - 1], f"{lines[_MOST_BUILT - 1]}, …"]
    return [held, *lines] if held else []


def upright_note(note: tuple[str, str]) -> str:
    """`0–21; 0, 20–21`, turned by 90°; of many ranges the first."""
    held, built = note
    if not held:
        return ""
    text = f"{held}; {built or 'none'}"
    while len(text) > _LONGEST_NOTE:
        text = f"{text.removesuffix(', …').rpartition(', ')[0]}, …"
    return text


def fit_columns(
    scene: Scene,
    left: float,
    right: float,
    *,
    most: int,
    notes: Mapping[int, tuple[str, str]] | None = None,
) -> Columns:
    """Columns between `left` and `right`; `notes` has what stands under the words, by position."""
    space = right - left - 6
    positions = scene.shown(most=min(most, int(space / _NARROWEST)))
    below = []
    for position in positions:
        note = None if notes is None or position is None else notes.get(position)
        below.append(note or ("", ""))
    words, size, widths = _fit_words(scene, positions, below, space)
    upright = widths is None
    if widths is None:
        widths = [min(space / len(words), _UPRIGHT)] * len(words)
    centres = []
    x = left + 3 + (space - sum(widths)) / 2
    for width in widths:
        centres.append(x + width / 2)
        x += width
    step = min([after - before for before, after in pairwise(centres)] + [_WIDEST_STEP])
    return Columns(
        tuple(positions), tuple(words), tuple(centres), step, size, upright, tuple(below)
    )


def _fit_words(
    scene: Scene,
    positions: Sequence[int | None],
    notes: Sequence[tuple[str, str]],
    space: float,
) -> tuple[list[str], float, list[float] | None]:
    """The words in the largest font in which they stand side by side, its size, and the widths of their columns.

    The widths are None where even words of the smallest font do not fit.
    """
    for_notes = [max(map(_note_width, note_lines(note)), default=0.0) for note in notes]
    for longest, size in _WORD_SIZES:
        words = _words_of(scene, positions, longest)
        least = []
        for word, for_note in zip(words, for_notes, strict=True):
            least.append(max(width_of(word, Font(size)), for_note, _LEAST_WORD))
        gap = (space - sum(least)) / len(words)
        if gap >= _LEAST_GAP:
            return words, size, [width + min(gap, _MOST_GAP) for width in least]
    longest, size = _WORD_SIZES[-1]
    return _words_of(scene, positions, longest), size, None


def _note_width(line: str) -> float:
    return width_of(line, NAME)


def _words_of(scene: Scene, positions: Sequence[int | None], longest: int) -> list[str]:
    """The words at these positions, `…` for a gap; BOS is cut shorter, as it is never the point."""
    words = []
    for position in positions:
        is_bos = position == 0 and scene.graph.graph["reads_bos"]
        if position is None:
            words.append("…")
        else:
            words.append(spell(scene.words[position], longest=7 if is_bos else longest))
    return words
