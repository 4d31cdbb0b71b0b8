"""One palette and one type scale for every picture: the diagram, the grids, the figure and the page.

Red is the mapping that was asked about (its key, its cell, its carriers), blue is attention and effects for the answer, orange
effects against it. Red, dark blue and orange differ in lightness as well as in hue, so they stay apart for colour-blind readers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

INK: Final = "#1c2430"
MUTED: Final = "#647080"
LINE: Final = "#c3ccd6"
WASH: Final = "#f5f7fa"
PAPER: Final = "#ffffff"
RED: Final = "#d62839"
BLUE: Final = "#08306b"

# What a weight of 0…1 looks like, as (value, colour); between the stops colours are mixed linearly.
ATTENTION: Final = ((0.0, "#ffffff"), (0.2, "#cfe0f1"), (0.5, "#74a9d8"), (0.75, "#2a6cae"), (1.0, BLUE))
ATTENTION_DARK: Final = (
    (0.0, "#171d26"),
    (0.2, "#223a5c"),
    (0.5, "#3a78bd"),
    (0.75, "#7fb4ec"),
    (1.0, "#dcecff"),
)
# What an effect of -1…1 (of the strongest) looks like.
EFFECT: Final = ((-1.0, "#a04a00"), (-0.5, "#f1a55a"), (0.0, "#ffffff"), (0.5, "#74a9d8"), (1.0, BLUE))
EFFECT_DARK: Final = (
    (-1.0, "#ffb86b"),
    (-0.5, "#a4621d"),
    (0.0, "#171d26"),
    (0.5, "#3a78bd"),
    (1.0, "#dcecff"),
)

# Points, at the size of print. Nothing is smaller than SMALL.
TITLE: Final = 9.0
BODY: Final = 7.5
SMALL: Final = 6.0
WIDTH: Final = 7.0  # inches: a page of two columns

SVG_FONT: Final = "Helvetica,Arial,sans-serif"
FONT: Final = "DejaVu Sans"  # matplotlib brings it along, so a figure looks the same on every machine
FALLBACKS: Final = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "PingFang SC",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Sans",
    "Noto Emoji",
    "Segoe UI Symbol",
)

RC: Final = {
    "font.size": BODY,
    "text.color": INK,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "path",
    "svg.hashsalt": "circuits",
    "pdf.fonttype": 42,
    "image.composite_image": False,
}


def shade(value: float, stops: tuple[tuple[float, str], ...] = ATTENTION) -> str:
    """The colour of a value as `#rrggbb`; values outside the scale take its ends."""
    value = min(max(value, stops[0][0]), stops[-1][0])
    (low, start), (high, end) = next(pair for pair in pairwise(stops) if value <= pair[1][0])
    part = (value - low) / (high - low)
    mixed = (round(a + (b - a) * part) for a, b in zip(_channels(start), _channels(end), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def colormap(stops: tuple[tuple[float, str], ...] = ATTENTION) -> Colormap:
    """The same scale for matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap

    low, high = stops[0][0], stops[-1][0]
    return LinearSegmentedColormap.from_list(
        "circuits", [((value - low) / (high - low), colour) for value, colour in stops]
    )


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
