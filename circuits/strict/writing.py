"""Folders that are filled whole or not at all, and in which nothing is overwritten that is not ours.

1. A folder is filled in a room of its own inside it; all its files are on the disk before the first is moved into place.
2. A command that fails takes away the room, and the folder if it made it.
3. A file that is in the way is replaced only if we wrote it: it carries a mark of ours, or opens as what comes in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from circuits.errors import FileError
from circuits.strict.reading import LARGEST

SIGNATURE: Final = "keyquery-circuits"  # what pictures name as their creator
_MARKS: Final = (SIGNATURE.encode(), b'"arrays_sha256": "', b"digraph circuit {", b"Which heads carry it", b'{"patterns":')
_COMMON: Final = (".svg", ".png", ".pdf", ".html")  # formats in which all files open alike
_OPENING: Final = 24  # bytes


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written."""
    if "\0" in str(folder):
        raise FileError("cannot write to a folder whose name holds a NUL; choose another")
    existing = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not existing.is_dir():
        raise FileError(f"cannot write to {folder}: {existing} is not a folder; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FileError(f"cannot write to {folder}: {existing} is not yours to write; choose another")
    check_ours(folder / "circuit.json")


def check_ours(place: Path, coming: Path | None = None) -> None:
    """Refuse a place where something lies that we did not write; `coming` is the file that would replace it."""
    if not os.path.lexists(place):
        return
    if place.is_dir():
        raise FileError(f"cannot write {place}: there is a folder of that name; choose another folder")
    if not place.is_file() or not _is_ours(place, coming):
        raise FileError(f"cannot write {place}: what lies there was not written by circuits; move it away or choose another folder")


def _is_ours(place: Path, coming: Path | None) -> bool:
    try:
        known = place.read_bytes() if place.stat().st_size < LARGEST else b"too large"
    except OSError as why:
        raise FileError(f"cannot write {place}: {why.strerror or why}; choose another folder") from why
    if not known or any(mark in known for mark in _MARKS):  # nothing is lost with an empty file
        return True
    new = b"" if coming is None else coming.read_bytes()
    alike = len(known) >= _OPENING and known[:_OPENING] == new[:_OPENING] and place.suffix.lower() not in _COMMON
    return alike or known == new


def write_folder(folder: Path, fill: Callable[[Path], object]) -> list[Path]:
    """Let `fill` write into an empty room, then move all it wrote into the folder; returns where each file went."""
    made: list[Path] = []
    try:
        check_folder(folder)
        made = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".unfinished-") as room:
            fill(Path(room))
            return _moved(Path(room), folder)
    except BaseException as why:
        for place in made:  # the deepest first
            with suppress(OSError):
                place.rmdir()
        if isinstance(why, OSError):
            raise FileError(f"cannot write to {folder}: {why.strerror or why}; choose another folder") from why
        raise


def _moved(room: Path, folder: Path) -> list[Path]:
    places = {made: folder / made.relative_to(room) for made in sorted(room.rglob("*")) if made.is_file()}
    for made, place in places.items():
        check_folder(place.parent)
        check_ours(place, made)
        with made.open("rb") as written:
            os.fsync(written.fileno())
    for made, place in places.items():
        place.parent.mkdir(exist_ok=True)
        made.replace(place)
    return list(places.values())
