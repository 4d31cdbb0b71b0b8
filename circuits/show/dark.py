"""A figure in the colours for a dark ground: light becomes dark and dark light, and hues stay.

A colour c, with channels from 0 to 1, becomes R (1 − c), where R turns the hue by 180° and keeps grey. This is
the CSS filter `invert(1) hue-rotate(180deg)`, by which the docs show figures in dark mode. So an attention of 0
is as dark as the ground, and 1 is light blue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
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
    """Turn the colours of one artist; what is yielded turns them back."""
    if isinstance(artist, AxesImage) and np.asarray(artist.get_array()).ndim == 3:
        yield _darken_pixels(artist)
    elif isinstance(artist, ScalarMappable) and artist.get_array() is not None:
        yield _darken_scale(artist)
    else:
        for name in _COLOURS:
            getter = getattr(artist, f"get_{name}", None)
            setter = getattr(artist, f"set_{name}", None)
            if getter is not None and setter is not None:
                before = getter()
                turned = darkened(to_rgba_array(before))
                if not len(turned):  # "none": an open circle has no colour inside
                    continue
                setter(turned[0] if len(turned) == 1 else turned)
                yield partial(setter, before)


def _darken_pixels(image: AxesImage) -> Callable[[], Any]:
    """Turn an image that has a colour at every pixel, (row, column, channel)."""
    pixels = np.asarray(image.get_array())
    scale = 255 if pixels.dtype == np.uint8 else 1
    image.set_data((darkened(pixels / scale) * 255).round().astype(np.uint8))
    return partial(image.set_data, pixels)


def _darken_scale(drawn: ScalarMappable) -> Callable[[], Any]:
    """Turn the scale of what has a number at every place."""
    before = drawn.get_cmap()
    turned = ListedColormap(list(darkened(before(np.arange(before.N)))))
    bad = darkened(np.asarray(before.get_bad()))
    drawn.set_cmap(turned.with_extremes(bad=tuple(bad)))
    return partial(drawn.set_cmap, before)
