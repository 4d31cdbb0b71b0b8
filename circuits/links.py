"""How modules reach others late: the functions behind the methods of results, names that a package offers,
and a place to report progress.

Results are plain records at the bottom of the package; drawing, tables and measuring stand above them. A
method such as `Circuit.to_graph` therefore calls `above("to_graph")`, and this table, the only one of its
kind, says where that leads.
"""

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


def offer(package: str, homes: dict[str, tuple[str, ...]]) -> tuple[list[str], Any, Any]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose names are imported when they are first used.

    `homes` says which of its modules has which names. So importing the package imports no model library.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(sorted(home_of))}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return sorted(home_of), find, lambda: sorted(home_of)
