from . import components as components
from . import engine as engine
from . import errors as errors
from . import executors as executors
from . import live as live
from . import models as models
from . import prompts as prompts
from . import show as show
from . import sparsify as sparsify
from . import sweeps as sweeps
from . import tasks as tasks
from . import tracing as tracing
from . import zoo as zoo
from .checks.verify import Verification as Verification
from .checks.verify import verify as verify
from .components import SIDES as SIDES
from .components import Component as Component
from .components import Edge as Edge
from .components import Head as Head
from .components import Reader as Reader
from .components import Wire as Wire
from .engine import Row as Row
from .engine import prepare as prepare
from .engine.loadings import scan as scan
from .errors import CircuitsError as CircuitsError
from .executors.executor import ModelSource as ModelSource
from .executors.local import Local as Local
from .executors.on_ray import OnRay as OnRay
from .executors.on_slurm import OnSlurm as OnSlurm
from .instruments.grids import Axis as Axis
from .instruments.grids import Patching as Patching
from .instruments.grids import Paths as Paths
from .instruments.head_scores import head_scores as head_scores
from .instruments.patch import patch as patch
from .instruments.path import path as path
from .instruments.reading_records import HeadScores as HeadScores
from .instruments.reading_records import LogitAttribution as LogitAttribution
from .instruments.reading_records import LogitLens as LogitLens
from .instruments.readings import logit_attribution as logit_attribution
from .instruments.readings import logit_lens as logit_lens
from .live import explore as explore
from .models.load import as_model as as_model
from .models.load import load as load
from .models.model import Model as Model
from .prompts import FunctionMetric as FunctionMetric
from .prompts import Pair as Pair
from .prompts import ProbeMetric as ProbeMetric
from .prompts import Prompt as Prompt
from .prompts import to_pair as to_pair
from .prompts import to_prompt as to_prompt
from .results import open_result as open_result
from .sweeps.plan import SweepPlan as SweepPlan
from .sweeps.plan import plan_sweep as plan_sweep
from .sweeps.results import Sweep as Sweep
from .sweeps.results import open_sweep as open_sweep
from .sweeps.sweep import sweep as sweep
from .tasks.compare import compare as compare
from .tasks.comparison import Comparison as Comparison
from .tasks.comparison import TaskComparison as TaskComparison
from .tasks.eap import EapGraph as EapGraph
from .tasks.eap import from_eap as from_eap
from .tasks.edges import edge_effects as edge_effects
from .tasks.patterns import PanelFigures as PanelFigures
from .tasks.patterns import Pattern as Pattern
from .tasks.patterns import classify as classify
from .tasks.patterns import measure_panel as measure_panel
from .tasks.rank import rank as rank
from .tasks.ranking import Ranking as Ranking
from .tasks.task import Task as Task
from .tasks.task import to_task as to_task
from .tracing.circuit import circuit as circuit
from .tracing.family import FamilyTrace as FamilyTrace
from .tracing.family import trace_family as trace_family
from .tracing.neuron_record import Neurons as Neurons
from .tracing.neurons import neurons as neurons
from .tracing.records import Circuit as Circuit
from .tracing.stability import stability as stability
from .tracing.stability_record import Stability as Stability
from .tracing.trace import trace as trace
from .tracing.why import why as why
from .tracing.why_record import Why as Why
from .wires.record import Wiring as Wiring
from .wires.wiring import wiring as wiring

__version__: str
__all__ = [
    "SIDES",
    "Axis",
    "Circuit",
    "CircuitsError",
    "Comparison",
    "Component",
    "EapGraph",
    "Edge",
    "FamilyTrace",
    "FunctionMetric",
    "Head",
    "HeadScores",
    "Local",
    "LogitAttribution",
    "LogitLens",
    "Model",
    "ModelSource",
    "Neurons",
    "OnRay",
    "OnSlurm",
    "Pair",
    "PanelFigures",
    "Patching",
    "Paths",
    "Pattern",
    "ProbeMetric",
    "Prompt",
    "Ranking",
    "Reader",
    "Row",
    "Stability",
    "Sweep",
    "SweepPlan",
    "Task",
    "TaskComparison",
    "Verification",
    "Why",
    "Wire",
    "Wiring",
    "as_model",
    "circuit",
    "classify",
    "compare",
    "components",
    "edge_effects",
    "engine",
    "errors",
    "executors",
    "explore",
    "from_eap",
    "head_scores",
    "live",
    "load",
    "logit_attribution",
    "logit_lens",
    "measure_panel",
    "models",
    "neurons",
    "open_result",
    "open_sweep",
    "patch",
    "path",
    "plan_sweep",
    "prepare",
    "prompts",
    "rank",
    "scan",
    "show",
    "sparsify",
    "stability",
    "sweep",
    "sweeps",
    "tasks",
    "to_pair",
    "to_prompt",
    "to_task",
    "trace",
    "trace_family",
    "tracing",
    "verify",
    "why",
    "wiring",
    "zoo",
]
