"""Pictures and tables of results: pure functions over records. Names are imported when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from circuits.show.canvas import save_figure
    from circuits.show.curves import keep_curves
    from circuits.show.dot import draw, to_dot
    from circuits.show.figure import mapping_figure
    from circuits.show.grids import Panel, comparison_grid, effect_map, head_grid, to_panel
    from circuits.show.page import to_page
    from circuits.show.scene import to_graph

__all__ = ["FORMATS", "Panel", "comparison_grid", "draw", "effect_map", "head_grid", "keep_curves"]
__all__ += ["mapping_figure", "save_figure", "to_dot", "to_graph", "to_page", "to_panel"]

FORMATS: Final = ("svg", "png", "pdf", "html", "dot")  # of the files that `figure.draw_files` draws
_HOMES: Final = {
    "canvas": ("save_figure",),
    "curves": ("keep_curves",),
    "dot": ("draw", "to_dot"),
    "figure": ("mapping_figure",),
    "grids": ("Panel", "comparison_grid", "effect_map", "head_grid", "to_panel"),
    "page": ("to_page",),
    "scene": ("to_graph",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
