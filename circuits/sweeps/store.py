"""The folder of a sweep: a manifest that says what is being measured, and Parquet shards that appear whole or not at all.

    DIR/manifest.json          settings, sha256 of the input, the model and its fingerprint
    DIR/shards/*.parquet       rows; each named after its first line and its number of rows; no line stands in two of them
    DIR/summary.json           written when every line has its row
    DIR/.lock                  who is at work (`lock`)

1. A file is written aside, synced, renamed, and its folder synced: after a crash it is there in full or not there.
2. The manifest is written before the first shard. Whoever comes later must ask for the same, or is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from circuits.errors import FileError
from circuits.files import check_folder, read_object, to_json, to_record

KIND: Final = "circuits sweep"
SCHEMA: Final = 1
_LARGEST_MANIFEST: Final = 2**20
_SHARD: Final = re.compile(r"\d{9,18}-\d{1,9}\.parquet", re.ASCII)
_HEADS: Final = pa.list_(pa.float32())
COLUMNS: Final = pa.schema(
    [
        pa.field("line", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        ("prompt", pa.string()),
        ("counterfactual", pa.string()),
        ("noise", pa.bool_()),
        ("key", pa.int32()),
        ("key_token", pa.string()),
        ("query", pa.int32()),
        ("query_token", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("metric", pa.string()),
        ("answer", pa.string()),
        ("foil", pa.string()),
        ("clean_value", pa.float64()),
        ("counterfactual_value", pa.float64()),
        ("total", pa.float64()),
        ("restore", pa.float64()),
        ("carriers", pa.list_(pa.string())),
        ("joint", pa.list_(pa.float64())),
        ("modulation", pa.float64()),
        ("effects", _HEADS),
        ("random_mean", pa.float64()),
        ("random_p95", pa.float64()),
        ("key_totals", _HEADS),
        ("sufficiency", pa.float64()),
        ("identity", pa.float64()),
        ("error", pa.string()),
        ("asked", pa.string()),
        ("metadata", pa.string()),
    ]
)


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

    def to_json(self) -> str:
        return to_json({"kind": KIND, "schema": SCHEMA} | asdict(self)) + "\n"

    def refuse_unless(self, wanted: Manifest, folder: Path) -> None:
        """Refuse to go on with anything other than what the folder holds."""
        start_anew = "go on as before, or choose another folder"
        for name in ("share", "seed", "controls"):
            mine, asked = getattr(self, name), getattr(wanted, name)
            if mine != asked:
                raise FileError(f"{folder} holds a sweep with {name} {mine}, not {asked}; {start_anew}")
        if self.sha256 != wanted.sha256:
            raise FileError(
                f"{folder} holds a sweep of another input ({self.input}, {self.lines} lines) than {wanted.input}; {start_anew}"
            )
        if (self.fingerprint, self.gated, self.reads_bos) != (
            wanted.fingerprint,
            wanted.gated,
            wanted.reads_bos,
        ):
            raise FileError(
                f"{folder} holds a sweep of another model ({self.model}) than {wanted.model}; {start_anew}"
            )


class Store:
    """The folder of one sweep, opened for writing; counts and finished lines are those on disk, whoever wrote them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shards = folder, folder / "shards"
        self._finished: set[int] = set()
        self._read: set[str] = set()

    def begin(self, wanted: Manifest) -> None:
        """Write the manifest, or check that the one that is here says the same."""
        with writing(self.folder):
            if (self.folder / "manifest.json").exists():
                read_manifest(self.folder).refuse_unless(wanted, self.folder)
                self.shards.mkdir(exist_ok=True)
                return
            self.shards.mkdir(exist_ok=True)
            put_whole(self.folder / "manifest.json", wanted.to_json().encode())

    def remove_unfinished(self) -> None:
        """Remove what dead processes left half-written; only for one who is alone here."""
        with writing(self.folder):
            for place in (self.folder, self.shards):
                for left in place.glob(".*.unfinished"):
                    left.unlink(missing_ok=True)

    def finished(self) -> set[int]:
        """The lines that have their row, by now."""
        for shard in shards_in(self.folder):
            if shard.name not in self._read:
                self._finished.update(_reading(shard, ["line"]).column("line").to_pylist())
                self._read.add(shard.name)
        return self._finished

    def count(self) -> int:
        """How many lines have their row, by the names of the shards alone."""
        return sum(int(shard.stem.partition("-")[2]) for shard in shards_in(self.folder))

    def put(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows as a shard."""
        ordered = sorted(rows, key=lambda row: row["line"])
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ordered, schema=COLUMNS), sink, compression="zstd")
        with writing(self.folder):
            put_whole(self.shards / f"{ordered[0]['line']:09d}-{len(ordered)}.parquet", sink.getvalue())

    def end(self, manifest: Manifest) -> None:
        """Say in `summary.json` how it went, once every line has its row."""
        if self.count() < manifest.lines or (self.folder / "summary.json").exists():
            return
        errors = sum(
            len(shard) - shard.column("error").null_count for shard in map(_errors, shards_in(self.folder))
        )
        told = {"lines": manifest.lines, "measured": manifest.lines - errors, "errors": errors}
        with writing(self.folder):
            put_whole(self.folder / "summary.json", (to_json(told) + "\n").encode())


def _errors(shard: Path) -> pa.Table:
    return _reading(shard, ["error"])


def shards_in(folder: Path) -> list[Path]:
    """The shards that are complete, by their first line."""
    return sorted(place for place in (folder / "shards").glob("*.parquet") if _SHARD.fullmatch(place.name))


def read_table(folder: Path) -> pa.Table:
    """Every row so far, ordered by line."""
    parts = [_reading(shard) for shard in shards_in(folder)]
    return pa.concat_tables(parts).sort_by("line") if parts else COLUMNS.empty_table()


def _reading(shard: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        table = pq.ParquetFile(shard).read(columns=columns)
        return table.cast(
            COLUMNS if columns is None else pa.schema([COLUMNS.field(name) for name in columns])
        )
    except (pa.ArrowException, OSError, KeyError, ValueError) as why:
        said = " ".join(str(why).split())[:120]
        raise FileError(
            f"cannot read {shard} ({said}); delete it, and its lines are measured again by the same command"
        ) from why


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a sweep, if the folder holds one."""
    place = folder / "manifest.json"
    stored = read_object(place, most=_LARGEST_MANIFEST)
    if stored.pop("kind", None) != KIND:
        raise FileError(f"{place} is not the manifest of a sweep; choose another folder")
    if stored.pop("schema", None) != SCHEMA:
        raise FileError(f"{place} was written by another version; sweep again into another folder")
    try:
        return to_record(Manifest, stored, place)
    except FileError as why:
        raise FileError(f"{place} was edited or damaged ({why}); sweep again into another folder") from why


def check_place(folder: Path) -> None:
    """Refuse a folder that is a file, or that holds something of another kind under the names that a sweep uses."""
    check_folder(folder)
    if os.path.lexists(folder / "manifest.json"):
        read_manifest(folder)
        return
    for name in ("shards", "summary.json"):
        if (folder / name).exists() and (name != "shards" or any((folder / name).iterdir())):
            raise FileError(
                f"{folder} has {name} of something else in it and no manifest of a sweep; choose another folder"
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Whatever the disk refuses, in one line."""
    try:
        yield
    except OSError as why:
        raise FileError(
            f"cannot write to {folder}: {why.strerror or why}; rows written so far are kept"
        ) from why


def put_whole(path: Path, data: bytes | pa.Buffer) -> None:
    """Write a file so that it is there in full or not at all, also after a power cut."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
