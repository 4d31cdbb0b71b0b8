"""The folder that the user gave: tools read and write files there and nowhere else.

1. Names of files are relative to the folder. A name that leads out of it, also by a link, is refused.
2. A model is a name that `circuits.load` knows, a hub id, or a path inside the folder. An adapter's base must
   be one of these, too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from circuits.errors import FileError, ModelError
from circuits.models.adapter import base_of, is_adapter
from circuits.models.known import lookup

_HUB_ID: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True, slots=True)
class GivenFolder:
    """The one folder whose files the tools may read and write."""

    path: Path  # absolute, without links

    @classmethod
    def of(cls, path: Path) -> GivenFolder:
        """The folder at a path, which must exist."""
        if not path.is_dir():
            raise FileError(f"there is no folder {path}; make it first")
        return cls(path.resolve())

    def inside(self, name: str) -> Path:
        """The path of a file or folder by its name; an error if it, or a file in it, lies outside."""
        if "\0" in name:
            raise FileError("a file's name cannot hold a null character; choose another")
        path = self._checked(self.path / name, name)
        for below in path.rglob("*") if path.is_dir() else ():
            self._checked(below, name)
        return path

    def existing(self, name: str) -> Path:
        """As `inside`, of something that is there."""
        path = self.inside(name)
        if not path.exists():
            raise FileError(f"there is no {name!r} in the given folder; it has {self._names()}")
        return path

    def model_name(self, name: str) -> str:
        """What `circuits.load` is given: a known name, a hub id, or a path inside the folder."""
        if lookup(name) is not None:
            return name
        if "\0" not in name and os.path.lexists(self.path / name):
            path = self.inside(name)
            self._check_bases(path)
            return str(path)
        if _HUB_ID.fullmatch(name) and not os.path.lexists(name):
            return name
        allowed = "a name of `circuits models`, a hub id, or a path inside the given folder"
        raise ModelError(f"{name!r} is not a model here; name {allowed}")

    def _checked(self, path: Path, name: str) -> Path:
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError) as error:  # such as a link that leads to itself
            raise FileError(f"{name!r} cannot be followed: {error}") from error
        if not resolved.is_relative_to(self.path):
            raise FileError(f"{name!r} lies outside the given folder; name a path inside it")
        return resolved

    def _check_bases(self, path: Path) -> None:
        """Refuse an adapter whose base lies outside; that of a base is checked, too."""
        seen: set[Path] = set()
        while is_adapter(path) and path not in seen:
            seen.add(path)
            base = base_of(path)
            if lookup(base) is not None or not os.path.lexists(base):
                return
            path = self._checked(Path(base), base)

    def _names(self) -> str:
        names = sorted(each.name for each in self.path.iterdir() if each.name[:1] != ".")
        return ", ".join(names[:20]) or "nothing yet"
