"""The files of a result folder: the circuit, its figures, its page and its DOT text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from circuits.files import new_folder
from circuits.results import FORMATS
from circuits.show.canvas import save_figure, write_file
from circuits.show.diagram import circuit_figure
from circuits.show.dot import draw, to_dot
from circuits.show.figure import mapping_figure
from circuits.show.page import to_page
from circuits.show.scene import Scene, to_scene

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit
    from circuits.tracing.why_record import Why


def draw_files(
    folder: Path,
    circuit: Circuit | Scene,
    share: float | None = None,
    formats: Sequence[str] = FORMATS,
    *,
    by_graphviz: bool = False,
    why: Sequence[Why] = (),
) -> None:
    """Those of `figure` and `circuit` (.svg, .png, .pdf), `page.html` and `circuit.dot` that `formats` names.

    With `by_graphviz` the diagram is also drawn by Graphviz, in the same formats; the page shows `why`.
    """
    scene = to_scene(circuit, share)
    pictures = [form for form in formats if form not in ("html", "dot")]
    if pictures:
        save_figure(mapping_figure(scene), folder, pictures)
        save_figure(circuit_figure(scene), folder, pictures, name="circuit")
    if "html" in formats:
        write_file(folder / "page.html", to_page(scene, why=why).encode())
    if "dot" in formats:
        diagram = to_dot(scene)
        write_file(folder / "circuit.dot", diagram.source.encode())
        if by_graphviz:
            for form in pictures:
                draw(diagram, folder / f"graphviz.{form}")


def fill_with_one(folder: Path, circuit: Circuit, share: float | None = None) -> None:
    """Write the circuit and everything that is drawn of it."""
    circuit.save(folder)
    draw_files(folder, circuit, share)


def fill_with_several(
    folder: Path, circuits: Sequence[Circuit], share: float | None = None
) -> None:
    """A folder for each circuit, named after its model; beside them a page of all, and of two the figure."""
    scenes = [to_scene(circuit, share) for circuit in circuits]
    for scene in scenes:
        own = new_folder(folder, scene.circuit.source.name)
        scene.circuit.save(own)
        draw_files(own, scene, share)
    if len(scenes) == 2:
        save_figure(mapping_figure(*scenes), folder)
    write_file(folder / "page.html", to_page(scenes).encode())
