"""How wide texts and the names of heads are on the page, in pixels.

Texts are measured in DejaVu Sans, which comes with matplotlib and is wider than the fonts of browsers.
"""

from __future__ import annotations

import functools
import math
import unicodedata
import warnings
from collections.abc import Sequence
from typing import Final

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from circuits.show.arrows import Sizes

PILL_GAP: Final = 3  # between the pills of two heads
_PILL_LETTER: Final = 8  # the width of a letter of a head's name, on average
MOST_NAMES: Final = 6  # on one arrow


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float, *, bold: bool = False) -> int:
    """How wide a text is, in whole pixels; a letter that is as wide as a Chinese one counts as a square."""
    wide = [letter for letter in text if unicodedata.east_asian_width(letter) in "WF"]
    others = "".join(letter for letter in text if letter not in wide)
    font = FontProperties(
        family=["DejaVu Sans"], size=size, weight="bold" if bold else "normal"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter without a glyph
        width, _, _ = text_to_path.get_text_width_height_descent(others, font, ismath=False)
    return math.ceil(width + size * len(wide))


def pill_width(length: int) -> int:
    """The width of the pill of a head, `L4H11`, or of `+3`, by the number of its letters."""
    return _PILL_LETTER * max(length, 3) + 12


def pills_width(names: Sequence[str]) -> float:
    """The width of pills side by side."""
    return sum(pill_width(len(name)) for name in names) + PILL_GAP * (len(names) - 1)


def _pill_forms(heads: Sequence[str]) -> list[list[str]]:
    """The first six names, three or one, and how many more there are."""
    forms = []
    for most in (MOST_NAMES, 3, 1):
        more = [f"+{len(heads) - most}"] if len(heads) > most else []
        if not forms or len(heads) > most:
            forms.append([*heads[:most], *more])
    return forms


PAGE: Final = Sizes(
    axis=58,
    top=92,
    lane=24,
    thin=15,
    folded=20,
    margin=8,
    visible=26,
    beside=10,
    widest_led=320,
    names_width=pills_width,
    forms=_pill_forms,
)
