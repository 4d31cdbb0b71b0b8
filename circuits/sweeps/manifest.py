"""The manifest of a sweep: what is measured, on which model, how the lines are cut into shards.

It is `manifest.json` in the folder of the sweep, with a checksum of its own. Its checksum also stands in every
shard, which so belongs to this sweep and to no other.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from circuits.errors import FileError
from circuits.files import read_object, to_json, to_record

KIND: Final = "circuits sweep"
SCHEMA: Final = 2
OLDER: Final = 1  # version 0.2
LARGEST: Final = 2**20  # bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a sweep measures. Two sweeps with equal manifests give the same table."""

    share: float
    seed: int
    controls: bool
    input: str  # the file's name
    sha256: str  # of the input
    lines: int
    model: str
    fingerprint: str
    gated: bool
    reads_bos: bool
    layers: int
    heads: int
    stability: int = 0  # other counterfactuals of each line
    shard: int = field(default=0, compare=False)  # lines of a shard; 0: not to be gone on with

    @property
    def checksum(self) -> str:
        """The checksum of what is measured and how it is cut."""
        return _checksum_of(asdict(self))

    def refuse_unless(self, wanted: Manifest, folder: Path) -> None:
        """Refuse to go on with anything other than what the folder holds."""
        difference = None
        if not self.shard:
            difference = (
                "of version 0.2, or some lines of one, which is read and not gone on with"
            )
        for name in ("share", "seed", "controls", "stability"):
            if getattr(self, name) != getattr(wanted, name):
                difference = f"with {name} {getattr(self, name)}, not {getattr(wanted, name)}"
        if self.sha256 != wanted.sha256:
            difference = (
                f"of another input ({self.input}, {self.lines} lines) than {wanted.input}"
            )
        for name in ("gated", "reads_bos"):
            if getattr(self, name) != getattr(wanted, name):
                difference = f"of {self.model} with another gate or BOS rule"
        if self.fingerprint != wanted.fingerprint:
            other = "other weights, or the same in another dtype"
            difference = f"of another model ({self.model}) than {wanted.model}"
            if self.model == wanted.model:
                difference = f"of {self.model} with {other}"
        if difference:
            raise FileError(
                f"{folder} holds a sweep {difference}; go on as before, or choose another folder"
            )

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        values = {"kind": KIND, "schema": SCHEMA} | asdict(self)
        return to_json(values | {"checksum": _checksum_of(values)}) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a sweep, if the folder holds one."""
    path = folder / "manifest.json"
    stored = read_object(path, most=LARGEST)
    checksum = stored.pop("checksum", None)  # none in those of version 0.2
    if stored.get("kind") == KIND and checksum not in (None, _checksum_of(stored)):
        raise FileError(f"{path} was edited or damaged; sweep again into another folder")
    if stored.pop("kind", None) != KIND:
        raise FileError(f"{path} is not the manifest of a sweep; choose another folder")
    schema = stored.pop("schema", None)
    if schema not in (OLDER, SCHEMA) or (schema == SCHEMA and checksum is None):
        raise FileError(
            f"{path} was written by another version; sweep again into another folder"
        )
    return to_record(
        Manifest, stored, f"{path} was edited or damaged, so sweep again into another folder"
    )


def _checksum_of(values: dict[str, Any]) -> str:
    """The checksum of the values of a manifest, in whatever order they stand."""
    text = to_json(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
