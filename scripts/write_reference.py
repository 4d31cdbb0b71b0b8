"""Pages that code writes: `python scripts/write_reference.py` writes these, and a test fails if one is stale.

1. docs/cli.md is what `--help` of every command says.
2. `docs/api.md` names every public name with a sentence. `docs/api/` has a page for each group of names, where
   the docs build puts their docstrings.
3. llms.txt is the index of the docs for language models.
"""

from __future__ import annotations

import inspect
import re
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
        "open_result",
        "verify",
        "Verification",
    ),
    "Maps, rankings and sweeps": (
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
# What many results can do stands once, on the page of this group, and not with each of them.
SHARED_ON = "Results"
SHARED = (
    "circuits.results.Saved",
    "circuits.results.Pictured",
    "circuits.results.Tabular",
    "circuits.results.OfHeads",
    "circuits.instruments.grids.OnAxes",
    "circuits.instruments.grids.OfPairs",
)


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
    """docs/api.md: every public name with a sentence, and a link to its page."""
    lines = [
        "# Python",
        "",
        "All of it is offered by `import circuits`; names are imported when first used. Figures are drawn by "
        "functions of `circuits.show`.",
        "",
        "Versions are semantic. Before 1.0 a minor version may change names and files, and the changelog "
        "says how; from 0.2.0 on a public name warns for one minor version before it goes.",
        "",
    ]
    for title, names in groups().items():
        lines += [f"## [{title}](api/{slug(title)}.md)", "", "| | |", "|---|---|"]
        lines += [
            f"| {{py:obj}}`{name}` | {sentence_on(offered)} |"
            for name, offered in names.items()
        ]
        lines.append("")
    lines += [
        "## The examples",
        "",
        "Each example is run by the tests. They begin with:",
        "",
        "```python",
        SETUP + "```",
        "",
        "```{toctree}",
        ":hidden:",
        "",
        *(f"api/{slug(title)}" for title in groups()),
        "```",
        "",
    ]
    return "\n".join(lines)


def group_page(title: str) -> str:
    """The page of a group of names, where their docstrings are put."""
    lines = [f"# {title}", "", "```{eval-rst}"]
    for name, offered in groups()[title].items():
        lines += ["", *directive(name, offered)]
    lines += ["```", ""]
    if title == SHARED_ON:
        lines += ["## What results share", ""]
        lines += ["The bases of a result say which of these it has.", ""]
        lines.append("```{eval-rst}")
        for name in SHARED:
            lines += ["", f".. autoclass:: {name}", "   :members:"]
        lines += ["```", ""]
    return "\n".join(lines)


def groups() -> dict[str, dict[str, object]]:
    """What is offered by its full name, by the title of its group."""
    found: dict[str, dict[str, object]] = {}
    for title, names in GROUPS.items():
        found[title] = {f"circuits.{name}": getattr(circuits, name) for name in names}
    found["Drawing"] = {f"circuits.show.{name}": getattr(show, name) for name in show.__all__}
    return found


def slug(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"\W+", "-", title.lower())


def sentence_on(offered: object) -> str:
    """The first sentence of a docstring, for the cell of a table."""
    if not callable(offered):
        return "`" + repr(offered) + "`"
    paragraph = " ".join((inspect.getdoc(offered) or "").partition("\n\n")[0].split())
    sentence = re.match(r".*?[.?!](?= |$)", paragraph)
    return (sentence[0] if sentence else paragraph).replace("|", "\\|")


def directive(name: str, offered: object) -> list[str]:
    if isinstance(offered, type):
        bases = ["   :show-inheritance:"] if issubclass(offered, Saved | Pictured) else []
        return [f".. autoclass:: {name}", "   :members:", *bases]
    return [f".. autofunction:: {name}" if callable(offered) else f".. autodata:: {name}"]


def pages() -> dict[str, str]:
    """Every page that is written, by its path in docs."""
    written = {"cli.md": command_page(), "api.md": api_page()}
    return written | {f"api/{slug(title)}.md": group_page(title) for title in groups()}


def main() -> None:
    for path, text in pages().items():
        (FOLDER / path).parent.mkdir(exist_ok=True)
        (FOLDER / path).write_text(text)
    write_llms.main()


if __name__ == "__main__":
    main()
