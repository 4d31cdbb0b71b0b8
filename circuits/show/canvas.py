"""A sheet measured in points, the shapes that matplotlib pictures are made of, and one palette for all.

A sheet is one figure with one axes that fills it; x runs right, y runs down, in points, so that a font size
and a length compare. Red is the mapping in question (its key, its cell, its carriers), blue is attention and
effects for the answer, orange effects against it. They differ in lightness too, for readers who see no hue.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font_names
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from circuits.errors import FileError
from circuits.files import SIGNATURE
from circuits.results import DRAWN_AS

Stops = tuple[tuple[float, str], ...]  # values and their colours; between them colours are mixed linearly

INK: Final = "#1c2430"
MUTED: Final = "#647080"
LINE: Final = "#c3ccd6"
WASH: Final = "#f5f7fa"
PAPER: Final = "#ffffff"
RED: Final = "#d62839"
BLUE: Final = "#08306b"

_WEIGHTS: Final = (0.0, 0.2, 0.5, 0.75, 1.0)
_EFFECTS: Final = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of the strongest
ATTENTION: Final[Stops] = (*zip(_WEIGHTS, (PAPER, "#cfe0f1", "#74a9d8", "#2a6cae", BLUE), strict=True),)
EFFECT: Final[Stops] = (*zip(_EFFECTS, ("#a04a00", "#f1a55a", PAPER, "#74a9d8", BLUE), strict=True),)

# Points, at the size of print. Nothing is smaller than SMALL.
BODY: Final = 7.5
SMALL: Final = 6.0
WIDTH: Final = 7.0  # inches: a page of two columns
COLUMN: Final = 3.4  # inches: one column of two

SVG_FONT: Final = "Helvetica,Arial,sans-serif"
_FONT: Final = "DejaVu Sans"  # comes with matplotlib, so that a figure looks the same on every machine
_CHINESE: Final = ("Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Microsoft YaHei")
_FALLBACKS: Final = (*_CHINESE, "Arial Unicode MS", "Noto Sans", "Noto Emoji", "Segoe UI Symbol")

_LETTERS: Final = {"font.size": BODY, "text.color": INK, "text.usetex": False, "text.parse_math": False}
_AXES: Final = {"edgecolor": LINE, "labelcolor": INK, "linewidth": 0.6, "labelpad": 2, "titlepad": 6}
_TITLES: Final = {"titlesize": BODY, "titleweight": "bold", "titlelocation": "left"}
_TICKS: Final = {"color": MUTED, "labelsize": SMALL}
_LEGEND: Final = {"frameon": False, "fontsize": SMALL, "borderpad": 0.2, "labelspacing": 0.25}
_PAPER: Final = {"figure.facecolor": PAPER, "savefig.facecolor": PAPER, "image.composite_image": False}
_FILES: Final = {"svg.fonttype": "none", "svg.hashsalt": "circuits", "pdf.fonttype": 42}
_IMAGE: Final[dict[str, Any]] = {"interpolation": "none", "aspect": "auto", "zorder": 2}

_DOTS_PER_INCH: Final = 300
_MOST_DOTS: Final = 7_000_000  # of a PNG; a larger sheet is drawn less finely
_SHARPEST: Final = 144  # pixels along a tile's side; a longer map is pooled by its largest weights
_MOST_PIXELS: Final = 6_000_000  # of the image that holds a group of maps


@dataclass(frozen=True, slots=True)
class Font:
    size: float = BODY
    colour: str = INK
    bold: bool = False


PLAIN: Final = Font()
TITLE: Final = Font(9.0, bold=True)
HEADING: Final = Font(bold=True)
NAME: Final = Font(SMALL)
HEADING_SMALL: Final = Font(SMALL, bold=True)
NOTE: Final = Font(SMALL, MUTED)


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle on the sheet."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


@dataclass(frozen=True, slots=True)
class Tiles:
    """Where a group of maps stands: its top left corner, the side of a tile, and the space between tiles."""

    x: float
    y: float
    side: float
    across: int
    gap: float = 5.0
    below: float = 5.0  # space under each row, for names

    def corner(self, number: int) -> tuple[float, float]:
        row, column = divmod(number, self.across)
        return self.x + column * (self.side + self.gap), self.y + row * (self.side + self.below)

    def height(self, count: int) -> float:
        return -(-count // self.across) * (self.side + self.below)


def shade(value: float, stops: Stops = ATTENTION) -> str:
    """The colour of a value as `#rrggbb`; values outside the scale take its ends."""
    value = min(max(value, stops[0][0]), stops[-1][0])
    (low, start), (high, end) = next(pair for pair in pairwise(stops) if value <= pair[1][0])
    ends = zip(bytes.fromhex(start[1:]), bytes.fromhex(end[1:]), strict=True)
    return "#" + bytes(round(a + (b - a) * (value - low) / (high - low)) for a, b in ends).hex()


def colormap(stops: Stops = ATTENTION) -> Colormap:
    """The same scale for matplotlib."""
    low, high = stops[0][0], stops[-1][0]
    parts = [((value - low) / (high - low), colour) for value, colour in stops]
    return LinearSegmentedColormap.from_list("circuits", parts)


def effect_colour(effect: float) -> str:
    """Blue for the answer, orange against it."""
    return shade(0.75) if effect >= 0 else shade(-0.7, EFFECT)


@contextlib.contextmanager
def looks() -> Iterator[None]:
    """The settings under which everything is drawn and saved; a letter without a glyph causes no warning."""
    groups = {"axes": _AXES | _TITLES, "xtick": _TICKS, "ytick": _TICKS, "legend": _LEGEND}
    settings: dict[Any, Any] = _LETTERS | _PAPER | _FILES | {"font.family": list(_fonts())}
    settings |= {f"{group}.{name}": value for group, part in groups.items() for name, value in part.items()}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@functools.cache
def _fonts() -> tuple[str, ...]:
    """The font that comes with matplotlib, then what this machine has for letters that it lacks."""
    return (_FONT, *(name for name in _FALLBACKS if name in set(get_font_names())))


def new_sheet(width: float, height: float, figure: Figure | None = None) -> Axes:
    """An empty sheet of this size in points, on a new figure unless one is given."""
    with looks():
        if figure is None:
            figure = Figure(dpi=_DOTS_PER_INCH)
        figure.set_size_inches(width / 72, height / 72)
        sheet = figure.add_axes((0, 0, 1, 1))
        sheet.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
        sheet.set_axis_off()
    return sheet


def new_axes(width: float, height: float) -> Axes:
    """Axes for one plot, on a new figure of this size in inches."""
    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained").add_subplot()


def figure_around(axes: Axes) -> Figure:
    """The figure that axes stand in."""
    return cast(Figure, axes.get_figure(root=True))


def save_figure(
    figure: Figure | Axes, folder: str | Path, formats: Sequence[str] = DRAWN_AS, *, name: str = "figure"
) -> tuple[Path, ...]:
    """Write a figure as `folder/name.svg`, `.png`, `.pdf`; the same figure gives the same bytes.

    >>> [path.name for path in show.save_figure(found.figure(), folder, ["svg"])]
    ['figure.svg']
    """
    figure = figure if isinstance(figure, Figure) else figure_around(figure)
    unknown = ", ".join(form for form in formats if form not in DRAWN_AS)
    if unknown:
        raise FileError(f"cannot write a figure as {unknown}; it is drawn as {', '.join(DRAWN_AS)}")
    undated = {"svg": {"Date": None, "Creator": SIGNATURE}, "png": {"Software": SIGNATURE}}
    undated["pdf"] = {"CreationDate": None, "Creator": SIGNATURE}
    target, (width, height) = Path(folder), figure.get_size_inches()
    dots = min(_DOTS_PER_INCH, (_MOST_DOTS / (width * height)) ** 0.5, 60_000 / max(width, height))
    paths = tuple(target / f"{name}.{form}" for form in formats)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with looks():
            for path, form in zip(paths, formats, strict=True):
                figure.savefig(path, format=form, dpi=dots, metadata=undated[form])
    except OSError as why:
        reason = why.strerror or why
        raise FileError(f"cannot write the figure to {target}: {reason}; choose another folder") from why
    return paths


def write_file(path: Path, data: bytes) -> Path:
    """Write a file, and its folder if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as why:
        raise FileError(f"cannot write {path}: {why.strerror or why}; choose another folder") from why
    return path


def write(
    sheet: Axes,
    x: float,
    y: float,
    text: str,
    font: Font = PLAIN,
    *,
    ha: str = "left",
    va: str = "baseline",
    **more: Any,
) -> Text:
    """Text at a point; `ha` and `va` say which of its points."""
    look: dict[str, Any] = {"fontsize": font.size, "color": font.colour, "ha": ha, "va": va} | more
    return sheet.text(x, y, text, fontweight="bold" if font.bold else "normal", **look)


@functools.lru_cache(maxsize=4096)
def width_of(text: str, font: Font) -> float:
    """How wide a text is, in points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter without a glyph
        weight = "bold" if font.bold else "normal"
        properties = FontProperties(family=list(_fonts()), size=font.size, weight=weight)
        return float(text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0])


def draw_box(
    sheet: Axes,
    area: Area,
    edge: str,
    fill: str,
    *,
    line: float = 0.8,
    depth: float = 1.0,
    rounding: float = 5.0,
) -> FancyBboxPatch:
    """A rounded box."""
    look = {"edgecolor": edge, "facecolor": fill, "linewidth": line, "zorder": depth}
    shape = f"round,pad=0,rounding_size={min(rounding, area.width / 2, area.height / 2)}"
    box = FancyBboxPatch((area.left, area.top), area.width, area.height, boxstyle=shape, **look)
    sheet.add_patch(box)
    return box


def draw_tiles(
    sheet: Axes, tiles: Tiles, maps: Sequence[np.ndarray], *, cell: tuple[int, int] | None = None
) -> None:
    """All maps (query, key) as one image, each in a thin frame; around the cell (key, query) is a red one."""
    if not maps:
        return
    pixels = _pixels_of(maps, tiles.side)
    gap, below = (round(space / tiles.side * pixels) for space in (tiles.gap, tiles.below))
    rows, across = -(-len(maps) // tiles.across), min(tiles.across, len(maps))
    picture = np.zeros((rows * (pixels + below) - below, across * (pixels + gap) - gap), dtype=np.uint8)
    for number, weights in enumerate(maps):
        row, column = divmod(number, tiles.across)
        top, left = row * (pixels + below), column * (pixels + gap)
        picture[top : top + pixels, left : left + pixels] = _resized(np.asarray(weights)[::-1], pixels)
    right = tiles.x + across * (tiles.side + tiles.gap) - tiles.gap
    bottom = tiles.y + rows * (tiles.side + tiles.below) - tiles.below
    sheet.imshow(_palette()[picture], extent=(tiles.x, right, bottom, tiles.y), **_IMAGE)
    corners = [tiles.corner(number) for number in range(len(maps))]
    frames = [_square(x, y, tiles.side) for x, y in corners]
    look = {"facecolors": "none", "edgecolors": LINE, "linewidths": 0.5, "zorder": 4}
    sheet.add_collection(PolyCollection(frames, **look))
    if cell is not None:
        line, (key, query) = min(1.4, 0.5 + tiles.side / 60), cell
        marks = [
            _cell(x, y, tiles.side, cell, len(each), line) for (x, y), each in zip(corners, maps, strict=True)
        ]
        fills = [shade(float(each[query, key])) for each in maps]
        look = {"facecolors": fills, "edgecolors": RED, "linewidths": line, "zorder": 4.5}
        sheet.add_collection(PolyCollection(marks, **look))


def draw_cross(sheet: Axes, x: float, y: float, *, arm: float = 13.0) -> None:
    """How maps are to be read, with its corner at (x, y): keys run to the right, queries up."""
    look = {"arrowstyle": "-|>,head_width=0.15,head_length=0.25", "color": MUTED, "linewidth": 0.7}
    for end in ((x + arm, y), (x, y - arm)):
        sheet.annotate("", end, (x, y), arrowprops=look | {"shrinkA": 0, "shrinkB": 0})
    write(sheet, x + arm + 1, y, "K", NOTE, va="center")
    write(sheet, x, y - arm - 1.5, "Q", NOTE, ha="center")


def draw_scale(sheet: Axes, right: float, y: float) -> None:
    """The colour scale of attention, 0 to 1, ending at `right`."""
    write(sheet, right, y, "1", NOTE, ha="right", va="center")
    sheet.imshow(_palette()[None], extent=(right - 60, right - 7, y + 3, y - 3), **_IMAGE)
    look = {"facecolor": "none", "edgecolor": LINE, "linewidth": 0.5, "zorder": 3}
    sheet.add_patch(Rectangle((right - 60, y - 3), 53, 6, **look))
    write(sheet, right - 63, y, "attention 0", NOTE, ha="right", va="center")


def _palette() -> np.ndarray:
    """The colours of attention weights 0…255, as bytes (weight, channel)."""
    return (colormap()(np.arange(256))[:, :3] * 255).round().astype(np.uint8)


def _pixels_of(maps: Sequence[np.ndarray], side: float) -> int:
    """Pixels along a tile's side: a whole number for each position of the longest map that still fits."""
    printed = int(side / 72 * _DOTS_PER_INCH)
    most = max(8, min(_SHARPEST, printed, int((_MOST_PIXELS / len(maps)) ** 0.5)))
    longest = max(len(weights) for weights in maps)
    return longest * (most // longest) if longest <= most else most


def _resized(weights: np.ndarray, pixels: int) -> np.ndarray:
    """A map as 0…255 on a square of `pixels`; where several weights share a pixel the largest is shown."""
    if len(weights) > pixels:
        starts = np.linspace(0, len(weights), pixels, endpoint=False).astype(int)
        weights = np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=0), starts, axis=1)
    nearest = np.arange(pixels) * len(weights) // pixels
    return (np.clip(weights[np.ix_(nearest, nearest)], 0, 1) * 255).round().astype(np.uint8)


def _square(x: float, y: float, side: float) -> list[tuple[float, float]]:
    return [(x, y), (x + side, y), (x + side, y + side), (x, y + side)]


def _cell(
    x: float, y: float, side: float, cell: tuple[int, int], length: int, line: float
) -> list[tuple[float, float]]:
    """A frame around the mapping's cell, which it does not cover; never so small that it cannot be seen."""
    (key, query), step = cell, side / length
    size = max(step, 2.0) + line
    return _square(x + (key + 0.5) * step - size / 2, y + (length - query - 0.5) * step - size / 2, size)
