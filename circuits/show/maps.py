"""Attention maps on a sheet: many maps as one image, the cell of a mapping in each, the axis cross, the scale."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from circuits.show.canvas import (
    DOTS_PER_INCH,
    LINE,
    MUTED,
    NOTE,
    RED,
    Area,
    Point,
    Sheet,
    colormap,
    shade,
)

# Along a map's side; the weights of a longer map are pooled by their maximum.
_MOST_MAP_PIXELS: Final = 144
_MOST_PIXELS: Final = 6_000_000  # of the image that holds a group of maps


@dataclass(frozen=True, slots=True)
class Tiles:
    """Where a group of maps stands: its top left corner, the side of a map, and the space between maps."""

    x: float
    y: float
    side: float
    across: int  # maps in a row
    gap: float = 5.0
    below: float = 5.0  # space under each row, for names
    query_up: bool = True  # query 0 is the lowest row of a map, else the highest

    def corner(self, number: int) -> Point:
        """The top left corner of a map."""
        row, column = divmod(number, self.across)
        return self.x + column * (self.side + self.gap), self.y + row * (self.side + self.below)


def draw_tiles(
    sheet: Sheet,
    tiles: Tiles,
    maps: Sequence[np.ndarray],
    *,
    cell: tuple[int, int] | None = None,
    hatched: Collection[int] = (),
) -> None:
    """Draw maps (query, key) as one image, each in a thin frame; a red frame marks the cell (key, query).

    The cells of the maps with the numbers in `hatched` have red stripes.
    """
    if not maps:
        return
    last_in_row = min(tiles.across, len(maps)) - 1
    right = tiles.corner(last_in_row)[0] + tiles.side
    bottom = tiles.corner(len(maps) - 1)[1] + tiles.side
    _draw_image(
        sheet, _joined(tiles, maps), Area(tiles.x, tiles.y, right - tiles.x, bottom - tiles.y)
    )
    frames = [_square(sheet, *tiles.corner(number), tiles.side) for number in range(len(maps))]
    sheet.axes.add_collection(
        PolyCollection(frames, facecolors="none", edgecolors=LINE, linewidths=0.5, zorder=4)
    )
    if cell is not None:
        _draw_cells(sheet, tiles, maps, cell, hatched)


def _draw_cells(
    sheet: Sheet,
    tiles: Tiles,
    maps: Sequence[np.ndarray],
    cell: tuple[int, int],
    hatched: Collection[int],
) -> None:
    """A red frame around the cell (key, query) of each map, filled with the cell's colour."""
    key, query = cell
    line = min(1.4, 0.5 + tiles.side / 60)
    corners = [tiles.corner(number) for number in range(len(maps))]
    frames = []
    for (x, y), weights in zip(corners, maps, strict=True):
        step = tiles.side / len(weights)
        # So the frame does not cover the cell, and is never too small to see.
        side = max(step, 2.0) + line
        middle_x = x + (key + 0.5) * step
        from_top = len(weights) - 1 - query if tiles.query_up else query
        middle_y = y + (from_top + 0.5) * step
        frames.append(_square(sheet, middle_x - side / 2, middle_y - side / 2, side))
    fills = [shade(float(weights[query, key])) for weights in maps]
    sheet.axes.add_collection(
        PolyCollection(frames, facecolors=fills, edgecolors=RED, linewidths=line, zorder=4.5)
    )
    for number in hatched:
        draw_stripes(sheet.axes, frames[number])


def draw_stripes(axes: Axes, square: Sequence[Point]) -> None:
    """Three diagonal stripes in a square whose corners run from the upper left one."""
    (left, top), _, (right, bottom), _ = square
    half = (right - left) / 2
    for shift in (-half, 0.0, half):
        x = (max(left, left + shift), min(right, right + shift))
        y = (min(bottom, bottom + shift), max(top, top + shift))
        axes.plot(x, y, color=RED, linewidth=0.6, zorder=4.6, solid_capstyle="butt")


def draw_cross(
    sheet: Sheet, x: float, y: float, *, arm: float = 13.0, query_up: bool = True
) -> None:
    """Draw the axes of a map with their corner at (x, y): keys run to the right, queries up or down."""
    look = {
        "arrowstyle": "-|>,head_width=0.15,head_length=0.25",
        "color": MUTED,
        "linewidth": 0.7,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    tip = y - arm if query_up else y + arm
    for end in (sheet.at(x + arm, y), sheet.at(x, tip)):
        sheet.axes.annotate("", end, sheet.at(x, y), arrowprops=look)
    sheet.write(x + arm + 1, y, "K", NOTE, va="center")
    sheet.write(x, tip - 1.5 if query_up else tip + 6, "Q", NOTE, ha="center")


def draw_ramp(sheet: Sheet, width: float) -> None:
    """Draw the colours of attention from 0 to 1, as a sample in a legend."""
    bar = Area(0, -3, width, 6)
    _draw_image(sheet, np.arange(256, dtype=np.uint8)[None], bar)
    sheet.frame(bar, LINE, line=0.5, depth=3)


def _draw_image(sheet: Sheet, weights: np.ndarray, area: Area) -> None:
    """Draw weights, as bytes 0…255, in the colours of attention."""
    # (weight, channel)
    palette = (colormap()(np.arange(256))[:, :3] * 255).round().astype(np.uint8)
    left, top = sheet.at(area.left, area.top)
    right, bottom = sheet.at(area.right, area.bottom)
    extent = (left, right, bottom, top)
    sheet.axes.imshow(
        palette[weights], extent=extent, interpolation="none", aspect="auto", zorder=2
    )


def _joined(tiles: Tiles, maps: Sequence[np.ndarray]) -> np.ndarray:
    """One picture (row, column) of all maps as bytes 0…255."""
    pixels = _pixels_of(maps, tiles.side)
    gap = round(tiles.gap / tiles.side * pixels)
    below = round(tiles.below / tiles.side * pixels)
    rows = -(-len(maps) // tiles.across)
    across = min(tiles.across, len(maps))
    picture = np.zeros((rows, pixels + below, across, pixels + gap), dtype=np.uint8)
    for number, weights in enumerate(maps):
        row, column = divmod(number, tiles.across)
        turned = np.asarray(weights)[::-1] if tiles.query_up else np.asarray(weights)
        picture[row, :pixels, column, :pixels] = _resized(turned, pixels)
    height, width = rows * (pixels + below), across * (pixels + gap)
    return picture.reshape(height, width)[: height - below, : width - gap]


def _pixels_of(maps: Sequence[np.ndarray], side: float) -> int:
    """Pixels along a map's side: a whole number for each position of the longest map, if that fits."""
    printed = int(side / 72 * DOTS_PER_INCH)
    most = max(8, min(_MOST_MAP_PIXELS, printed, int((_MOST_PIXELS / len(maps)) ** 0.5)))
    longest = max(len(weights) for weights in maps)
    return longest * (most // longest) if longest <= most else most


def _resized(weights: np.ndarray, pixels: int) -> np.ndarray:
    """A map as bytes 0…255 on a square of `pixels`; where weights share a pixel the largest is shown."""
    if len(weights) > pixels:
        starts = np.linspace(0, len(weights), pixels, endpoint=False).astype(int)
        weights = np.maximum.reduceat(
            np.maximum.reduceat(weights, starts, axis=0), starts, axis=1
        )
    nearest = np.arange(pixels) * len(weights) // pixels
    return (np.clip(weights[np.ix_(nearest, nearest)], 0, 1) * 255).round().astype(np.uint8)


def _square(sheet: Sheet, x: float, y: float, side: float) -> list[Point]:
    corners = ((0, 0), (side, 0), (side, side), (0, side))
    return [sheet.at(x + right, y + down) for right, down in corners]
