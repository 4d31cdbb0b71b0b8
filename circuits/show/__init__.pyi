# What `from circuits.show import …` offers; the names of `__all__` are public, the others are shared inside
# the package.
from .canvas import save_figure as save_figure
from .curves import keep_curves as keep_curves
from .diagram import circuit_figure as circuit_figure
from .dot import draw as draw
from .dot import to_dot as to_dot
from .figure import mapping_figure as mapping_figure
from .graph import LONGEST as LONGEST
from .graph import OUTPUT as OUTPUT
from .graph import gains as gains
from .graph import kept_positions as kept_positions
from .graph import node_at as node_at
from .graph import routes as routes
from .graph import to_graph as to_graph
from .grids import Panel as Panel
from .grids import comparison_grid as comparison_grid
from .grids import head_grid as head_grid
from .grids import to_panel as to_panel
from .heatmaps import effect_map as effect_map
from .heatmaps import grid_figure as grid_figure
from .neuron_figures import neurons_figure as neurons_figure
from .page import to_page as to_page
from .reading_figures import attribution_figure as attribution_figure
from .reading_figures import lens_figure as lens_figure
from .reading_figures import scores_figure as scores_figure
from .scene import Scene as Scene
from .scene import to_scene as to_scene
from .words import LONGEST_WORD as LONGEST_WORD
from .words import counterfactual_words as counterfactual_words
from .words import listed as listed
from .words import metric_words as metric_words
from .words import name_rows as name_rows
from .words import plural as plural
from .words import spell as spell
from .words import verdict_words as verdict_words

__all__ = [
    "Panel",
    "attribution_figure",
    "circuit_figure",
    "comparison_grid",
    "draw",
    "effect_map",
    "grid_figure",
    "head_grid",
    "keep_curves",
    "lens_figure",
    "mapping_figure",
    "neurons_figure",
    "save_figure",
    "scores_figure",
    "to_dot",
    "to_graph",
    "to_page",
    "to_panel",
]
