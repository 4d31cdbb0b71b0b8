"""Pages that code writes: `python scripts/write_reference.py` writes docs/cli.md, docs/api.md and llms.txt.

The first is what `--help` of every command says; the second lists every public name, whose docstring the docs
build puts there; the third is the index of the docs for language models. A test fails if one is stale.
"""

from __future__ import annotations

from pathlib import Path

import click
import write_llms
from click.testing import CliRunner

import circuits
from circuits import show
from circuits.cli import main as commands
from circuits.results import Pictured, Saved

FOLDER = Path(__file__).parent.parent / "docs"
SETUP = """\
import json
import tempfile
from pathlib import Path

import circuits
from circuits import show
from circuits.show.export import export

TEXT = 'The opposite of "large" is "'
model = circuits.load("mini")
pair = circuits.to_pair(model, TEXT, swap={"large": "hot"})
found = circuits.trace(model, TEXT, key="large", swap={"large": "hot"})
folder = Path(tempfile.mkdtemp())
"""  # what the examples of all docstrings begin with
GROUPS = {
    "Load a model and name a question": (
        "load",
        "as_model",
        "Model",
        "to_prompt",
        "Prompt",
        "to_pair",
        "Pair",
        "FunctionMetric",
        "ProbeMetric",
    ),
    "Measure": (
        "trace",
        "circuit",
        "trace_family",
        "stability",
        "why",
        "wiring",
        "neurons",
        "patch",
        "path",
        "rank",
        "edge_effects",
        "compare",
        "sweep",
        "explore",
    ),
    "Read": ("logit_attribution", "logit_lens", "head_scores"),
    "Results": (
        "Circuit",
        "FamilyTrace",
        "Stability",
        "Why",
        "Wiring",
        "Neurons",
        "Patching",
        "Paths",
        "LogitAttribution",
        "LogitLens",
        "HeadScores",
        "Axis",
        "Ranking",
        "Comparison",
        "TaskComparison",
        "Sweep",
        "open_sweep",
        "open_result",
        "verify",
        "Verification",
    ),
    "Where long work runs": (
        "plan_sweep",
        "SweepPlan",
        "ModelSource",
        "Local",
        "OnRay",
        "OnSlurm",
    ),
    "Heads, edges and components": ("Head", "Edge", "Component", "Reader", "Wire", "SIDES"),
    "Tasks and patterns": (
        "to_task",
        "Task",
        "classify",
        "Pattern",
        "measure_panel",
        "PanelFigures",
    ),
    "Other people's circuits": ("from_eap", "EapGraph"),
    "The engine": ("prepare", "Row", "scan"),
    "Errors": ("CircuitsError",),
}


def help_of(name: str) -> str:
    """What `circuits NAME --help` prints, 100 columns wide."""
    wide = {"terminal_width": 100, "max_content_width": 100, "prog_name": "circuits"}
    said = CliRunner().invoke(commands, [name, "--help"], **wide)
    return f"## circuits {name}\n\n```text\n{said.output.rstrip()}\n```\n"


def command_page() -> str:
    """docs/cli.md."""
    context = click.Context(commands, info_name="circuits")
    parts = [help_of(name) for name in commands.list_commands(context)]
    codes = "Exit codes: 0 done, 1 one line on what was wrong, 2 a wrong call, 130 interrupted, 143 terminated."
    said = "What was measured goes to stdout, as tables or with `--json` as one JSON value; all else to stderr."
    return "\n".join(["# Command line\n", f"{said} {codes}\n", *parts])


def api_page() -> str:
    """docs/api.md."""
    lines = [
        "# Python",
        "",
        "All of it is offered by `import circuits`; names are imported when first used.",
        "",
        "Versions are semantic. Before 1.0 a minor version may change names and files, and the changelog "
        "says how; from 0.2.0 on a public name warns for one minor version before it goes.",
        "",
    ]
    lines += [
        "Each example is run by the tests. They begin with:",
        "",
        "```python",
        SETUP + "```",
        "",
    ]
    for title, names in GROUPS.items():
        lines += [f"## {title}", "", "```{eval-rst}"]
        for name in names:
            lines += ["", *directive(f"circuits.{name}", getattr(circuits, name))]
        lines += ["```", ""]
    lines += ["## Drawing", "", "`from circuits.show import …`", "", "```{eval-rst}"]
    for name in show.__all__:
        lines += ["", *directive(f"circuits.show.{name}", getattr(show, name))]
    return "\n".join([*lines, "```", ""])


def directive(name: str, offered: object) -> list[str]:
    if isinstance(offered, type):
        shared = ["   :inherited-members:"] if issubclass(offered, Saved | Pictured) else []
        return [f".. autoclass:: {name}", "   :members:", *shared]
    return [f".. autofunction:: {name}" if callable(offered) else f".. autodata:: {name}"]


def main() -> None:
    (FOLDER / "cli.md").write_text(command_page())
    (FOLDER / "api.md").write_text(api_page())
    write_llms.main()


if __name__ == "__main__":
    main()
