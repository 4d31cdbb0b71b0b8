"""Pictures and tables of results: pure functions over records. Names are imported when first used."""

from typing import TYPE_CHECKING, Final

from circuits.links import offer

if TYPE_CHECKING:
    from circuits.show.canvas import save_figure
    from circuits.show.curves import keep_curves
    from circuits.show.diagram import circuit_figure
    from circuits.show.dot import draw, to_dot
    from circuits.show.figure import mapping_figure
    from circuits.show.grids import Panel, comparison_grid, effect_map, head_grid, to_panel
    from circuits.show.page import to_page
    from circuits.show.scene import to_graph

FORMATS: Final = ("svg", "png", "pdf", "html", "dot")  # of the files that `figure.draw_files` draws
_HOMES: Final = {
    "canvas": ("save_figure",),
    "curves": ("keep_curves",),
    "diagram": ("circuit_figure",),
    "dot": ("draw", "to_dot"),
    "figure": ("mapping_figure",),
    "grids": ("Panel", "comparison_grid", "effect_map", "head_grid", "to_panel"),
    "page": ("to_page",),
    "scene": ("to_graph",),
}
__all__, __getattr__, __dir__ = offer(__name__, _HOMES)
