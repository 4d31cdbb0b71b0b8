"""The files of a circuit: what belongs into a folder. How all of it gets there or none is `strict.writing`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from circuits.files import check_folder as check_folder
from circuits.files import write_folder as write_folder

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

FORMATS: Final = ("svg", "png", "pdf", "html", "dot")


def put(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


def draw_files(room: Path, circuit: Circuit, share: float, formats: Sequence[str] = FORMATS) -> None:
    """`figure.svg`, `figure.png`, `figure.pdf`, `page.html` and `circuit.dot`, those that are asked for."""
    from circuits.show import mapping_figure, save_figure, to_dot, to_page

    pictures = [form for form in formats if form not in ("html", "dot")]
    if pictures:
        save_figure(mapping_figure(circuit, share=share), room, pictures)
    if "html" in formats:
        put(room / "page.html", to_page(circuit))
    if "dot" in formats:
        put(room / "circuit.dot", to_dot(circuit, share=share))


def fill_with_one(room: Path, circuit: Circuit, share: float) -> None:
    """The circuit itself and all that is drawn of it."""
    circuit.save(room)
    draw_files(room, circuit, share)


def fill_with_several(room: Path, circuits: Sequence[Circuit], share: float) -> None:
    """A folder for each circuit, named after its model; beside them one page of all, and of two the figure."""
    from circuits.show import mapping_figure, save_figure, to_page

    for number, circuit in enumerate(circuits):
        name = re.sub(r"[^\w.-]+", "-", circuit.source.name).strip("-.")[-60:] or "model"
        fill_with_one(room / (f"{name}-{number}" if (room / name).exists() else name), circuit, share)
    if len(circuits) == 2:
        save_figure(mapping_figure(*circuits, share=share), room)
    put(room / "page.html", to_page(circuits))
