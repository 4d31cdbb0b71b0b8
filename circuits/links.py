"""How modules reach others late: the functions behind the methods of results, names that a package offers,
and a place to report progress.

Results are plain records at the bottom of the package; drawing, tables and measuring stand above them. A
method such as `Circuit.to_graph` therefore calls `above("to_graph")`, and this table, the only one of its
kind, says where that leads.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from graphviz import Digraph
    from matplotlib.figure import Figure

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is under way, how much is done, how much there is
Watch = Callable[[T], None]  # is shown a result as far as it is measured; whatever it raises ends the work

DRAWN_AS: Final = ("svg", "png", "pdf")  # the formats of a figure and of a drawn diagram
FORMATS: Final = (*DRAWN_AS, "html", "dot")  # of the files of a result: figure, page and diagram
PICTURES: Final = tuple(f".{name}" for name in FORMATS)  # their endings
ABOVE: Final = {
    "to_text": "circuits.show.tables",
    "ranking_text": "circuits.show.task_tables",
    "figure_of": "circuits.show.results",
    "page_of": "circuits.show.results",
    "dot_of": "circuits.show.results",
    "html_of": "circuits.show.results",
    "save_picture": "circuits.show.results",
    "to_graph": "circuits.show",
    "routes": "circuits.show",
    "measure_without": "circuits.tracing.circuit",
    "why_text": "circuits.show.wiring",
    "measure_kept": "circuits.tracing.wiring",
    "wiring_text": "circuits.show.wiring",
    "wiring_graph": "circuits.show.wiring",
    "task_comparison_text": "circuits.show.task_tables",
    "panel_text": "circuits.show.task_tables",
}
RESULTS: Final = {  # what a file says that it is: the module and the class that read it
    "circuit": ("circuits.tracing.records", "Circuit"),
    "stability": ("circuits.tracing.records", "Stability"),
    "why": ("circuits.tracing.why_record", "Why"),
    "wiring": ("circuits.tracing.wiring_record", "Wiring"),
    "family": ("circuits.tracing.family", "FamilyTrace"),
    "verification": ("circuits.tracing.verify", "Verification"),
    "ranking": ("circuits.tasks.ranking", "Ranking"),
    "panel": ("circuits.tasks.patterns", "PanelFigures"),
    "comparison": ("circuits.tasks.compare", "Comparison"),
    "task_comparison": ("circuits.tasks.compare", "TaskComparison"),
    "mean": ("circuits.sweeps.results", "MeanCircuit"),
}


def above(name: str) -> Callable[..., Any]:
    """The function of this name in the module above that has it."""
    return getattr(import_module(ABOVE[name]), name)


def reader_of(kind: str) -> Any:
    """The class that reads results of a kind."""
    module, name = RESULTS[kind]
    return getattr(import_module(module), name)


class Pictured:
    """What every result can be asked for: its figure, its page, its diagram, and files of them."""

    __slots__ = ()

    def figure(self, **options: Any) -> Figure:
        """The result as a matplotlib figure; `ax=` where a single panel makes sense."""
        return above("figure_of")(self, **options)

    def page(self, **options: Any) -> str:
        """The result as one HTML file, its text."""
        return above("page_of")(self, **options)

    def to_dot(self, **options: Any) -> Digraph:
        """The result as a Graphviz diagram, to be restyled, saved or rendered."""
        return above("dot_of")(self, **options)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the figure (.svg, .png, .pdf), the page (.html) or the diagram (.dot), by the ending."""
        return above("save_picture")(self, path, **options)

    def _repr_html_(self) -> str:
        return above("html_of")(self)


def silent(stage: str, done: int, total: int) -> None:
    """No progress shown."""


def unwatched(partial: object) -> None:
    """Nobody looks at a result before it is complete."""


def offer(
    package: str,
    homes: dict[str, tuple[str, ...]],
    modules: tuple[str, ...] = (),
    *,
    own: tuple[str, ...] = (),
) -> tuple[list[str], Any, Any]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose names are imported when they are first used.

    `homes` says which of its modules has which names, `modules` which modules are names themselves, `own`
    what the package defines itself. So importing the package imports no model library.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    offered = sorted({*home_of, *modules, *own})

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(offered)}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return sorted({*home_of, *own}), find, lambda: offered
