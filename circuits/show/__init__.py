"""Pictures of circuits: pure functions over a `Circuit` that compute nothing about the model. Names are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from circuits.show.canvas import save_figure as save_figure
    from circuits.show.contrast import contrast_grid as contrast_grid
    from circuits.show.curves import keep_curves as keep_curves
    from circuits.show.dot import draw as draw
    from circuits.show.dot import to_dot as to_dot
    from circuits.show.figure import mapping_figure as mapping_figure
    from circuits.show.grids import Panel as Panel
    from circuits.show.grids import effect_map as effect_map
    from circuits.show.grids import head_grid as head_grid
    from circuits.show.grids import to_panel as to_panel
    from circuits.show.page import to_page as to_page

_HOMES: Final = {
    "Panel": "grids",
    "contrast_grid": "contrast",
    "draw": "dot",
    "effect_map": "grids",
    "head_grid": "grids",
    "keep_curves": "curves",
    "mapping_figure": "figure",
    "save_figure": "canvas",
    "to_dot": "dot",
    "to_page": "page",
    "to_panel": "grids",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
