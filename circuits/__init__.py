"""Which attention heads carry the mapping from this key to that query, and what circuit are they part of?

import circuits

model = circuits.load("mini")
circuit = circuits.trace(model, 'The opposite of "large" is "', key="large", swap={"large": "hot"})
print(circuit)
"""

from typing import TYPE_CHECKING

from circuits.results import offer

if TYPE_CHECKING:
    from circuits import (
        components,
        engine,
        errors,
        live,
        models,
        prompts,
        show,
        sparsify,
        sweeps,
        tasks,
        tracing,
        zoo,
    )
    from circuits.components import SIDES, Component, Edge, Head, Reader, Wire
    from circuits.engine import Row, prepare
    from circuits.engine.search import scan
    from circuits.errors import CircuitsError
    from circuits.live import explore
    from circuits.models.load import as_model, load
    from circuits.models.model import Model
    from circuits.prompts import Pair, Prompt, to_pair, to_prompt
    from circuits.results import open_result
    from circuits.sweeps.results import Sweep, open_sweep
    from circuits.sweeps.sweep import sweep
    from circuits.tasks.compare import Comparison, TaskComparison, compare
    from circuits.tasks.patterns import PanelFigures, Pattern, classify, measure_panel
    from circuits.tasks.rank import rank
    from circuits.tasks.ranking import Ranking
    from circuits.tasks.task import Task, to_task
    from circuits.tasks.wires import EapGraph, from_eap
    from circuits.tracing import Stability
    from circuits.tracing.circuit import circuit
    from circuits.tracing.family import FamilyTrace, trace_family
    from circuits.tracing.records import Circuit, Why
    from circuits.tracing.stability import stability
    from circuits.tracing.trace import trace
    from circuits.tracing.verify import Verification, verify
    from circuits.tracing.why import why
    from circuits.tracing.wiring import wiring
    from circuits.tracing.wiring_record import Wiring

_HOMES = {
    "engine": ("Row", "prepare"),
    "engine.search": ("scan",),
    "components": ("SIDES", "Component", "Edge", "Head", "Reader", "Wire"),
    "errors": ("CircuitsError",),
    "results": ("open_result",),
    "live": ("explore",),
    "models.load": ("as_model", "load"),
    "models.model": ("Model",),
    "prompts": ("Pair", "Prompt", "to_pair", "to_prompt"),
    "sweeps.results": ("Sweep", "open_sweep"),
    "sweeps.sweep": ("sweep",),
    "tasks.compare": ("Comparison", "TaskComparison", "compare"),
    "tasks.patterns": ("PanelFigures", "Pattern", "classify", "measure_panel"),
    "tasks.rank": ("rank",),
    "tasks.ranking": ("Ranking",),
    "tasks.task": ("Task", "to_task"),
    "tasks.wires": ("EapGraph", "from_eap"),
    "tracing.circuit": ("circuit",),
    "tracing.family": ("FamilyTrace", "trace_family"),
    "tracing": ("Stability",),
    "tracing.records": ("Circuit", "Why"),
    "tracing.stability": ("stability",),
    "tracing.trace": ("trace",),
    "tracing.verify": ("Verification", "verify"),
    "tracing.why": ("why",),
    "tracing.wiring": ("wiring",),
    "tracing.wiring_record": ("Wiring",),
}
_MODULES = (
    *("components", "engine", "errors", "live", "models", "prompts", "show", "sparsify", "sweeps", "tasks"),
    *("tracing", "zoo"),
)
__version__ = "0.2.0"
__all__, __getattr__, __dir__ = offer(__name__, _HOMES, _MODULES)
