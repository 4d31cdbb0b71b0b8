"""Pictures and tables of results: pure functions over records that measure nothing. Names are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from circuits.show.canvas import save_figure as save_figure
    from circuits.show.curves import keep_curves as keep_curves
    from circuits.show.dot import draw as draw
    from circuits.show.dot import to_dot as to_dot
    from circuits.show.figure import mapping_figure as mapping_figure
    from circuits.show.grids import Panel as Panel
    from circuits.show.grids import contrast_grid as contrast_grid
    from circuits.show.grids import effect_map as effect_map
    from circuits.show.grids import head_grid as head_grid
    from circuits.show.grids import to_panel as to_panel
    from circuits.show.page import to_page as to_page
    from circuits.show.scene import to_graph as to_graph

_HOMES: Final = {
    "canvas": ("save_figure",),
    "curves": ("keep_curves",),
    "dot": ("draw", "to_dot"),
    "figure": ("mapping_figure",),
    "grids": ("Panel", "contrast_grid", "effect_map", "head_grid", "to_panel"),
    "page": ("to_page",),
    "scene": ("to_graph",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
