"""The files of a circuit: what belongs into a folder, and how all of it gets there or none.

1. A folder is filled in a room of its own inside it, and each file is moved into place when all are there.
2. A command that fails takes away the room, and the folder if it made it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from circuits.errors import FileError

if TYPE_CHECKING:
    from circuits.result import Circuit

FORMATS: Final = ("svg", "png", "pdf", "html", "dot")


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written."""
    existing = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not existing.is_dir():
        raise FileError(f"cannot write to {folder}: {existing} is not a folder; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FileError(f"cannot write to {folder}: {existing} is not yours to write; choose another")


def write_folder(folder: Path, fill: Callable[[Path], None]) -> list[Path]:
    """Let `fill` write into an empty room, then move all it wrote into the folder; returns where each file went."""
    check_folder(folder)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".unfinished-") as room:
            fill(Path(room))
            return _moved(Path(room), folder)
    except BaseException as why:
        for place in missing:  # the deepest first
            with suppress(OSError):
                place.rmdir()
        if isinstance(why, OSError):
            raise FileError(f"cannot write to {folder}: {why.strerror or why}; choose another folder") from why
        raise


def _moved(room: Path, folder: Path) -> list[Path]:
    places = {made: folder / made.relative_to(room) for made in sorted(room.rglob("*")) if made.is_file()}
    for place in places.values():
        if place.is_dir():
            raise FileError(f"cannot write {place}: there is a folder of that name; choose another folder")
        check_folder(place.parent)
    for made, place in places.items():
        place.parent.mkdir(exist_ok=True)
        made.replace(place)
    return list(places.values())


def put(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


def draw_files(room: Path, circuit: Circuit, share: float, formats: Sequence[str] = FORMATS) -> None:
    """`figure.svg`, `figure.png`, `figure.pdf`, `page.html` and `circuit.dot`, those that are asked for."""
    from circuits.render import mapping_figure, save_figure, to_dot, to_page

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
    from circuits.render import mapping_figure, save_figure, to_page

    for number, circuit in enumerate(circuits):
        name = re.sub(r"[^\w.-]+", "-", circuit.source.name).strip("-.")[-60:] or "model"
        fill_with_one(room / (f"{name}-{number}" if (room / name).exists() else name), circuit, share)
    if len(circuits) == 2:
        save_figure(mapping_figure(*circuits, share=share), room)
    put(room / "page.html", to_page(circuits))
