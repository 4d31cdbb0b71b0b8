"""Texts that are the same up to rounding.

The search for wires decides by differences that another processor rounds otherwise. There it ends with a few
wires more or less, so what it prints is compared number by number, and everything else to the letter.
"""

from __future__ import annotations

import re

# A number that stands by itself: not the layer in `L5H1`, nor the position in `M0@5`.
_NUMBER = re.compile(r"(?<![\w@.,])-?\d[\d,]*(?:\.\d+)?")
_SHARE = 0.1  # of a count, by which two runs may differ
_DISTANCE = 0.02  # between two effects or shares


def alike(one: str, other: str) -> bool:
    """Whether two texts differ by no more than the rounding of their numbers."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    numbers = [_NUMBER.findall(text) for text in (one, other)]
    return all(_near(*pair) for pair in zip(*numbers, strict=True))


def _near(one: str, other: str) -> bool:
    first, second = (float(number.replace(",", "")) for number in (one, other))
    allowed = _DISTANCE if "." in one else max(2, _SHARE * abs(first))
    return abs(first - second) <= allowed
