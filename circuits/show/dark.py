"""A figure in the colours for a dark ground: light becomes dark and dark light, and hues stay.

A colour c, with channels from 0 to 1, becomes R (1 − c), where R turns the hue by 180° and keeps grey. This is
the CSS filter `invert(1) hue-rotate(180deg)`, by which the docs show figures in dark mode. So an attention of 0
is as dark as the ground, and 1 is light blue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text

_TURN: Final = np.array(  # hue-rotate(180deg), for rows of (red, green, blue)
    [[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]]
)
_COLOURS: Final = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def darkened(colours: np.ndarray) -> np.ndarray:
    """Colours (…, channel) between 0 and 1 for a dark ground; a fourth channel, the opacity, stays."""
    turned = np.clip((1 - colours[..., :3]) @ _TURN.T, 0, 1)
    return np.concatenate([turned, colours[..., 3:]], axis=-1)


@contextlib.contextmanager
def dark(figure: Figure) -> Iterator[None]:
    """Inside, the figure has the colours for a dark ground; afterwards it has its own again."""
    figure.draw_without_rendering()  # only then has it all its ticks
    restore: list[Callable[[], Any]] = []
    try:
        for artist in _artists(figure):
            restore += _darken(artist)
        yield
    finally:
        for undo in reversed(restore):
            undo()


def _artists(figure: Figure) -> list[Artist]:
    """All artists of a figure, also those that texts have and do not list: boxes and arrows."""
    artists = figure.findobj()
    for text in figure.findobj(Text):
        beside: list[Patch | None] = [text.get_bbox_patch()]
        if isinstance(text, Annotation):
            beside.append(text.arrow_patch)
        artists += [patch for patch in beside if patch is not None]
    return list(dict.fromkeys(artists))


def _darken(artist: Artist) -> Iterator[Callable[[], Any]]:
    """Turn the colours of one artist; what is returned turns them back."""
    values = artist.get_array() if isinstance(artist, AxesImage) else None
    if isinstance(artist, AxesImage) and values is not None and values.ndim == 3:
        pixels = np.asarray(values)
        scale = 255 if pixels.dtype == np.uint8 else 1
        artist.set_data((darkened(pixels / scale) * 255).round().astype(np.uint8))
        yield lambda: artist.set_data(pixels)
    elif isinstance(artist, ScalarMappable) and artist.get_array() is not None:
        scale_of_colours = artist.get_cmap()
        colours = scale_of_colours(np.arange(scale_of_colours.N))
        turned = ListedColormap(list(darkened(colours)))
        bad = darkened(np.asarray(scale_of_colours.get_bad()))
        artist.set_cmap(turned.with_extremes(bad=tuple(bad)))
        yield lambda: artist.set_cmap(scale_of_colours)
        return
    for name in _COLOURS:
        getter, setter = (getattr(artist, f"{verb}_{name}", None) for verb in ("get", "set"))
        if getter is None or setter is None:
            continue
        before = getter()
        turned_colours = darkened(to_rgba_array(before))
        setter(turned_colours[0] if len(turned_colours) == 1 else turned_colours)
        yield lambda setter=setter, before=before: setter(before)
