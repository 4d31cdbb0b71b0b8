"""How lower modules reach higher ones: the functions behind the methods of results, and a place to report
progress.

Results are plain records at the bottom of the package; drawing, tables and measuring stand above them. A
method such as `Circuit.to_graph` therefore calls `above("to_graph")`, and this table, the only one of its
kind, says where that leads.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

Progress = Callable[[str, int, int], None]  # what is under way, how much is done, how much there is

ABOVE: Final = {
    "to_text": "circuits.show.tables",
    "ranking_text": "circuits.show.task_tables",
    "to_html": "circuits.show.tables",
    "to_graph": "circuits.show.scene",
    "routes": "circuits.show.scene",
    "measure_without": "circuits.tracing.circuit",
    "why_text": "circuits.show.why",
    "why_html": "circuits.show.why",
    "why_figure": "circuits.show.why",
    "measure_kept": "circuits.tracing.wiring",
    "wiring_text": "circuits.show.wiring",
    "wiring_html": "circuits.show.wiring",
    "wiring_graph": "circuits.show.wiring",
}


def above(name: str) -> Callable[..., Any]:
    """The function of this name in the module above that has it."""
    return getattr(import_module(ABOVE[name]), name)


def silent(stage: str, done: int, total: int) -> None:
    """No progress shown."""
