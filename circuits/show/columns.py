"""The columns of a printed picture: the words of a prompt side by side in the largest font that fits.

Where none fits, the words stand upright in columns of equal width. Lengths are points (1/72 inch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from circuits.show import Scene, spell
from circuits.show.canvas import Font, width_of

_NARROWEST: Final = 10.0  # the least width of a column
_UPRIGHT: Final = 24.0  # the largest width of a column of upright words
_WIDEST_STEP: Final = 56.0
_LEAST_GAP: Final = 5.0  # between words
_MOST_GAP: Final = 26.0
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

    def x_of(self, position: int) -> float | None:
        """The centre of a position's column; None if the position is not shown."""
        if position not in self.positions:
            return None
        return self.centres[self.positions.index(position)]

    @property
    def height(self) -> float:
        """The height of the words with the numbers above them."""
        if not self.upright:
            return self.size + 13
        font = Font(self.size)
        return 12 + max(width_of(word, font) for word in self.words)


def fit_columns(scene: Scene, left: float, right: float, *, most: int) -> Columns:
    """Columns between `left` and `right`."""
    space = right - left - 6
    positions = scene.shown(most=min(most, int(space / _NARROWEST)), bos=True)
    for longest, size in _WORD_SIZES:
        words = _words_of(scene, positions, longest)
        word_widths = [max(width_of(word, Font(size)), 12.0) for word in words]
        gap = (space - sum(word_widths)) / len(words)
        if gap >= _LEAST_GAP:
            widths = [width + min(gap, _MOST_GAP) for width in word_widths]
            return _columns(positions, words, widths, left + 3, space, size=size, upright=False)
    longest, size = _WORD_SIZES[-1]
    words = _words_of(scene, positions, longest)
    widths = [min(space / len(words), _UPRIGHT)] * len(words)
    return _columns(positions, words, widths, left + 3, space, size=size, upright=True)


def _columns(
    positions: Sequence[int | None],
    words: Sequence[str],
    widths: Sequence[float],
    left: float,
    space: float,
    *,
    size: float,
    upright: bool,
) -> Columns:
    """Columns of these widths in the middle of the space."""
    centres = []
    x = left + (space - sum(widths)) / 2
    for width in widths:
        centres.append(x + width / 2)
        x += width
    steps = [after - before for before, after in pairwise(centres)]
    step = min([*steps, _WIDEST_STEP])
    return Columns(tuple(positions), tuple(words), tuple(centres), step, size, upright)


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
