"""A sheet measured in points, and the few shapes that every matplotlib picture here is made of.

1. A sheet is one figure with one axes that fills it; x runs right and y runs down, in points, so a font size and a length compare.
2. Attention maps are laid out as tiles and drawn as ONE image per group, however many heads there are.
3. `save_figure` writes the same bytes for the same figure.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from circuits.errors import FileError
from circuits.files import SIGNATURE
from circuits.show import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_FORMATS: Final = ("svg", "png", "pdf")
_DOTS_PER_INCH: Final = 300
_MOST_DOTS: Final = 7_000_000  # of a PNG; a larger sheet is drawn less finely
_SHARPEST: Final = 144  # pixels along a tile's side; a longer map is pooled by its largest weights
_MOST_PIXELS: Final = 6_000_000  # of the image that holds a group of maps


@dataclass(frozen=True, slots=True)
class Tiles:
    """Where a group of maps stands: its left top corner, the side of a tile, and the room between tiles."""

    x: float
    y: float
    side: float
    across: int
    gap: float = 5.0
    below: float = 5.0  # room under each row, for names

    def corner(self, number: int) -> tuple[float, float]:
        row, column = divmod(number, self.across)
        return self.x + column * (self.side + self.gap), self.y + row * (self.side + self.below)

    def height(self, count: int) -> float:
        return -(-count // self.across) * (self.side + self.below)


@contextlib.contextmanager
def looks() -> Iterator[None]:
    """The settings under which everything is drawn and saved; letters without a glyph are no reason to complain."""
    import matplotlib

    settings: dict[Any, Any] = style.RC | {"font.family": list(_fonts())}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@functools.cache
def _fonts() -> tuple[str, ...]:
    """The font that comes with matplotlib, then what this machine has for letters that it lacks."""
    from matplotlib.font_manager import get_font_names

    return (style.FONT, *(name for name in style.FALLBACKS if name in set(get_font_names())))


def new_sheet(width: float, height: float, figure: Figure | None = None) -> Axes:
    """An empty sheet of this size in points, on a new figure unless one is given."""
    from matplotlib.figure import Figure

    with looks():
        if figure is None:
            figure = Figure(dpi=_DOTS_PER_INCH)
        figure.set_size_inches(width / 72, height / 72)
        sheet = figure.add_axes((0, 0, 1, 1))
        sheet.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
        sheet.set_axis_off()
    return sheet


def write(
    sheet: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float = style.BODY,
    colour: str = style.INK,
    bold: bool = False,
    ha: Literal["left", "center", "right"] = "left",
    va: Literal["top", "center", "baseline"] = "baseline",
) -> Text:
    """Text at a point; `ha` and `va` say which of its points."""
    return sheet.text(
        x, y, text, fontsize=size, color=colour, fontweight="bold" if bold else "normal", ha=ha, va=va
    )


@functools.lru_cache(maxsize=4096)
def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """How wide a text is, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    with looks():
        font = FontProperties(family=list(_fonts()), size=size, weight="bold" if bold else "normal")
        return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def draw_box(
    sheet: Axes,
    left: float,
    top: float,
    width: float,
    height: float,
    *,
    edge: str,
    fill: str,
    line: float = 0.8,
    round_by: float = 5.0,
    depth: float = 1.0,
) -> None:
    """A rounded box."""
    from matplotlib.patches import FancyBboxPatch

    shape = f"round,pad=0,rounding_size={round_by}"
    sheet.add_patch(
        FancyBboxPatch(
            (left, top),
            width,
            height,
            boxstyle=shape,
            edgecolor=edge,
            facecolor=fill,
            linewidth=line,
            zorder=depth,
        )
    )


def draw_tiles(
    sheet: Axes,
    tiles: Tiles,
    maps: Sequence[np.ndarray],
    *,
    query_up: bool = False,
    cell: tuple[int, int] | None = None,
) -> None:
    """All maps (query, key) as one image, each in a thin frame, with the cell (key, query) in red."""
    from matplotlib.collections import PolyCollection

    if not maps:
        return
    pixels = _pixels_of(maps)
    gap, below = (round(room / tiles.side * pixels) for room in (tiles.gap, tiles.below))
    rows = -(-len(maps) // tiles.across)
    across = min(tiles.across, len(maps))
    picture = np.zeros((rows * (pixels + below) - below, across * (pixels + gap) - gap), dtype=np.uint8)
    for number, weights in enumerate(maps):
        row, column = divmod(number, tiles.across)
        top, left = row * (pixels + below), column * (pixels + gap)
        picture[top : top + pixels, left : left + pixels] = _resized(
            weights[::-1] if query_up else weights, pixels
        )
    scale = (style.colormap()(np.arange(256)) * 255).round().astype(np.uint8)
    right = tiles.x + across * (tiles.side + tiles.gap) - tiles.gap
    bottom = tiles.y + rows * (tiles.side + tiles.below) - tiles.below
    sheet.imshow(
        scale[picture],
        extent=(tiles.x, right, bottom, tiles.y),
        interpolation="none",
        aspect="auto",
        zorder=2,
    )
    corners = [tiles.corner(number) for number in range(len(maps))]
    sheet.add_collection(
        PolyCollection(
            [_square(x, y, tiles.side) for x, y in corners],
            facecolors="none",
            edgecolors=style.LINE,
            linewidths=0.5,
            zorder=4,
        )
    )
    if cell is not None:
        marks = [
            _cell(x, y, tiles.side, cell, len(weights), query_up=query_up)
            for (x, y), weights in zip(corners, maps, strict=True)
        ]
        sheet.add_collection(PolyCollection(marks, facecolors=style.RED, edgecolors="none", zorder=3))


def draw_scale(sheet: Axes, right: float, y: float) -> None:
    """The colour scale of attention, 0 to 1, ending at `right`."""
    ramp = style.colormap()(np.linspace(0, 1, 256))[None, :, :3]
    name = "attention"
    write(sheet, right, y, "1", size=style.SMALL, colour=style.MUTED, ha="right", va="center")
    sheet.imshow(
        ramp, extent=(right - 60, right - 7, y + 3, y - 3), interpolation="none", aspect="auto", zorder=2
    )
    draw_box(sheet, right - 60, y - 3, 53, 6, edge=style.LINE, fill="none", line=0.5, round_by=0.01)
    write(sheet, right - 63, y, f"{name} 0", size=style.SMALL, colour=style.MUTED, ha="right", va="center")


def save_figure(
    figure: Figure, folder: str | Path, formats: Sequence[str] = _FORMATS, *, name: str = "figure"
) -> tuple[Path, ...]:
    """Write the figure as `folder/name.svg`, `.png`, `.pdf`; the same figure gives the same bytes."""
    unknown = [form for form in formats if form not in _FORMATS]
    if unknown:
        raise FileError(
            f"cannot write a figure as {', '.join(unknown)}; it is drawn as {', '.join(_FORMATS)}"
        )
    target = Path(folder)
    undated = {
        "svg": {"Date": None, "Creator": SIGNATURE},
        "pdf": {"CreationDate": None, "Creator": SIGNATURE},
    }
    undated["png"] = {"Software": SIGNATURE}
    width, height = figure.get_size_inches()
    dots = min(_DOTS_PER_INCH, (_MOST_DOTS / (width * height)) ** 0.5, 60_000 / max(width, height))
    paths = tuple(target / f"{name}.{form}" for form in formats)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with looks():
            for path, form in zip(paths, formats, strict=True):
                figure.savefig(path, format=form, dpi=dots, metadata=undated[form])
    except OSError as why:
        raise FileError(
            f"cannot write the figure to {target}: {why.strerror or why}; choose another folder"
        ) from why
    return paths


def _pixels_of(maps: Sequence[np.ndarray]) -> int:
    """Pixels along a tile's side: a whole number for each position of the longest map, as long as the image stays small."""
    most = max(8, min(_SHARPEST, int((_MOST_PIXELS / len(maps)) ** 0.5)))
    longest = max(len(weights) for weights in maps)
    return longest * (most // longest) if longest <= most else most


def _resized(weights: np.ndarray, pixels: int) -> np.ndarray:
    """A map as 0…255 on a square of `pixels`; where several weights share a pixel the largest is shown."""
    length = len(weights)
    shown = np.asarray(weights, dtype=float)
    if length > pixels:
        starts = np.linspace(0, length, pixels, endpoint=False).astype(int)
        shown = np.maximum.reduceat(np.maximum.reduceat(shown, starts, axis=0), starts, axis=1)
    nearest = np.arange(pixels) * len(shown) // pixels
    return (np.clip(shown[np.ix_(nearest, nearest)], 0, 1) * 255).round().astype(np.uint8)


def _square(x: float, y: float, side: float) -> list[tuple[float, float]]:
    return [(x, y), (x + side, y), (x + side, y + side), (x, y + side)]


def _cell(
    x: float, y: float, side: float, cell: tuple[int, int], length: int, *, query_up: bool
) -> list[tuple[float, float]]:
    """The mapping's cell, never so small that it cannot be seen."""
    key, query = cell
    step = side / length
    size = max(step, 2.0)
    row = length - 1 - query if query_up else query
    left = min(max(x + (key + 0.5) * step - size / 2, x), x + side - size)
    top = min(max(y + (row + 0.5) * step - size / 2, y), y + side - size)
    return _square(left, top, size)
