"""Finds the figures that a script of docs/gallery has drawn, for sphinx-gallery.

Our drawing functions return matplotlib figures that pyplot does not know of, so its own search finds none. Every
figure that stands in a variable of the script is saved, in the order in which the variables were set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure


def save_figures(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Save every figure of a block of a script that was not saved before; the text that shows them."""
    from sphinx_gallery.scrapers import figure_rst

    paths: list[str] = []
    for value in list(variables["example_globals"].values()):
        if isinstance(value, Figure) and not getattr(value, "is_in_gallery", False):
            path = next(variables["image_path_iterator"])
            value.savefig(path, dpi=200, facecolor="white")
            value.is_in_gallery = True  # type: ignore[attr-defined]
            paths.append(str(path))
    return figure_rst(paths, settings["src_dir"])


def _get_sg_image_scraper() -> Callable[..., str]:
    """Where sphinx-gallery looks for the function."""
    return save_figures
