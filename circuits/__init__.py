"""Which attention heads carry the mapping from this key position to that query position, and what circuit are they part of?

    import circuits

    model = circuits.load("mini")
    found = circuits.trace(model, 'The opposite of "large" is "', key="large", query=-1, swap={"large": "hot"})
    print(found)

Names are looked up when they are first used, so that importing the package imports neither torch nor a model library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from circuits.comparison import Comparison, compare
    from circuits.contrasts import Contrast, contrast
    from circuits.discover import circuit, trace
    from circuits.edges import Edge, Head
    from circuits.engine import Row, prepare, scan
    from circuits.errors import CircuitsError
    from circuits.family import FamilyTrace, trace_family
    from circuits.models import Model, as_model, load
    from circuits.patterns import PanelFigures, Pattern, classify, measure_panel
    from circuits.prompts import Pair, Prompt, to_pair, to_prompt
    from circuits.ranking import Ranking, rank
    from circuits.result import Circuit
    from circuits.sweeps.opened import Sweep, open_sweep
    from circuits.sweeps.work import sweep
    from circuits.tasks import Task, to_task

_ROOMS = {
    "result": ("Circuit",),
    "comparison": ("Comparison", "compare"),
    "contrasts": ("Contrast", "contrast"),
    "discover": ("circuit", "trace"),
    "edges": ("Edge", "Head"),
    "engine": ("Row", "prepare", "scan"),
    "errors": ("CircuitsError",),
    "family": ("FamilyTrace", "trace_family"),
    "models": ("Model", "as_model", "load"),
    "patterns": ("PanelFigures", "Pattern", "classify", "measure_panel"),
    "prompts": ("Pair", "Prompt", "to_pair", "to_prompt"),
    "ranking": ("Ranking", "rank"),
    "sweeps.opened": ("Sweep", "open_sweep"),
    "sweeps.work": ("sweep",),
    "tasks": ("Task", "to_task"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Circuit",
    "CircuitsError",
    "Comparison",
    "Contrast",
    "Edge",
    "FamilyTrace",
    "Head",
    "Model",
    "Pair",
    "PanelFigures",
    "Pattern",
    "Prompt",
    "Ranking",
    "Row",
    "Sweep",
    "Task",
    "as_model",
    "circuit",
    "classify",
    "compare",
    "contrast",
    "load",
    "measure_panel",
    "open_sweep",
    "prepare",
    "rank",
    "scan",
    "sweep",
    "to_pair",
    "to_prompt",
    "to_task",
    "trace",
    "trace_family",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"circuits has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"circuits.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
