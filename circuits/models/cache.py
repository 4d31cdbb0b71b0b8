"""Folders that are expensive to make, kept under the user's cache folder: written whole or not at all, verified at every use.

1. A folder is filled under a temporary name beside its place, its files' sha256 are noted in it, and it is moved into place.
2. At every use the files are hashed again. A folder that is not what was written is made anew, with one line on stderr.
3. Something of that name that carries no sums is not ours: it is left alone, and refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from circuits.errors import FileError, ModelError, in_one_line
from circuits.files import check_regular, read_object
from circuits.zoo import cache_folder

_SUMS: Final = "sha256.json"


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; `make(folder)` fills it if it is not there or damaged."""
    place = cache_folder() / name
    if os.path.lexists(place):
        if not (place / _SUMS).is_file():
            raise ModelError(
                f"{place} was not made by circuits; move it away, or choose another cache with CIRCUITS_CACHE"
            )
        if _whole(place):
            return place
        sys.stderr.write(in_one_line(f"circuits: {place} is damaged, making it anew") + "\n")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{name}-") as room:
            fresh = Path(room) / "fresh"
            fresh.mkdir()
            make(fresh)
            (fresh / _SUMS).write_text(json.dumps(_sums(fresh), indent=1))
            if place.exists():
                place.rename(Path(room) / "damaged")
            fresh.rename(place)
    except OSError as error:
        if place.exists() and _whole(place):  # another process was faster
            return place
        raise ModelError(
            f"cannot write the cache {place}: {error.strerror or error}; choose another with CIRCUITS_CACHE"
        ) from error
    return place


def _whole(folder: Path) -> bool:
    try:
        return read_object(folder / _SUMS) == _sums(folder)
    except (OSError, FileError):
        return False


def _sums(folder: Path) -> dict[str, str]:
    return {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != _SUMS}


def _sha256(path: Path) -> str:
    check_regular(path, most=2**63)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
