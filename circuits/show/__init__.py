"""Pictures, pages and tables of results.

`scene` decides once what pictures of a circuit show; `figure`, `diagram`, `dot` and `page` draw it. `results`
finds the picture of every kind of result. Names are imported when they are first used (they are listed in
`__init__.pyi`), so that importing this package imports no drawing library.
"""

import lazy_loader

__getattr__, __dir__, _ = lazy_loader.attach_stub(__name__, __file__)
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
