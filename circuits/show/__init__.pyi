# What `from circuits.show import …` offers; the names of `__all__` are public, the others are shared inside
# the package.
from .canvas import save_figure as save_figure
from .curves import keep_curves as keep_curves
from .diagram import circuit_figure as circuit_figure
from .dot import draw as draw, to_dot as to_dot
from .figure import mapping_figure as mapping_figure
from .grids import (
    Panel as Panel,
    comparison_grid as comparison_grid,
    effect_map as effect_map,
    head_grid as head_grid,
    to_panel as to_panel,
)
from .page import to_page as to_page
from .scene import (
    LONGEST as LONGEST,
    OUTPUT as OUTPUT,
    Scene as Scene,
    gains as gains,
    kept_positions as kept_positions,
    node_at as node_at,
    routes as routes,
    to_graph as to_graph,
    to_scene as to_scene,
)
from .words import (
    LONGEST_WORD as LONGEST_WORD,
    counterfactual_words as counterfactual_words,
    listed as listed,
    metric_words as metric_words,
    name_rows as name_rows,
    plural as plural,
    spell as spell,
    verdict_words as verdict_words,
)

__all__ = [
    "Panel",
    "circuit_figure",
    "comparison_grid",
    "draw",
    "effect_map",
    "head_grid",
    "keep_curves",
    "mapping_figure",
    "save_figure",
    "to_dot",
    "to_graph",
    "to_page",
    "to_panel",
]
