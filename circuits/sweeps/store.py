"""The folder of a sweep: a manifest that says what is measured, and shards that appear whole or not at all.

    DIR/manifest.json          settings, sha256 of the input, the model and its fingerprint, and a checksum
    DIR/shards/*.parquet       rows; the file is named after its first line, its number of rows and its sha256
    DIR/summary.json           written when every line has its row
    DIR/.locks/                a lock for each block of lines, and one for manifest and summary; beside each
                               of them the file that its holder is writing

1. A file is written aside, synced, renamed, and its folder synced: after a crash it is whole or absent.
2. The manifest is written before the first shard. A sweep with another manifest is refused.
3. A shard that does not fit its name (a bit flipped) is refused, and so is a line that is in two shards (one
   of them is a copy). A sweep is complete when it has as many rows as the manifest has lines.
4. Only the process that holds the lock of a block writes rows of its lines. The operating system releases the
   locks of a process that dies; the next process to lock the block removes what it left half-written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from circuits.errors import FileError
from circuits.files import check_folder, read_object, to_json, to_record, write_whole

KIND: Final = "circuits sweep"
SCHEMA: Final = 1
_LARGEST_MANIFEST: Final = 2**20  # bytes
_MANIFEST: Final = "manifest"  # the lock of manifest and summary
_PATIENCE: Final = 30.0  # seconds that a process waits for it
# Without a sum: of version 0.1, which is refused.
_SHARD: Final = re.compile(r"(\d{9,18})-(\d{1,9})(?:-([0-9a-f]{16}))?\.parquet", re.ASCII)
_TEXT, _NUMBER, _NUMBERS, _TEXTS = (
    pa.string(),
    pa.float64(),
    pa.list_(pa.float32()),
    pa.list_(pa.string()),
)
COLUMNS: Final = pa.schema(
    [
        pa.field("line", pa.int64(), nullable=False),
        pa.field("id", _TEXT, nullable=False),
        *((name, _TEXT) for name in ("prompt", "counterfactual")),
        ("noise", pa.bool_()),
        ("key", pa.int32()),
        ("key_token", _TEXT),
        ("query", pa.int32()),
        ("query_token", _TEXT),
        ("tokens", _TEXTS),
        *((name, _TEXT) for name in ("metric", "answer", "foil")),
        *(
            (name, _NUMBER)
            for name in ("clean_value", "counterfactual_value", "total", "restore")
        ),
        ("carriers", _TEXTS),
        ("joint", pa.list_(_NUMBER)),
        ("modulation", _NUMBER),
        ("effects", _NUMBERS),
        *((name, _NUMBER) for name in ("random_mean", "random_p95")),
        ("key_totals", _NUMBERS),
        *((name, _NUMBER) for name in ("sufficiency", "identity")),
        *((name, _TEXT) for name in ("error", "asked", "metadata")),
        ("verdict", _TEXT),
        *((name, _TEXTS) for name in ("reasons", "doubts")),
    ]
)
_LATER: Final = ("verdict", "reasons", "doubts")  # columns that shards of version 0.2 lack
TableRow = dict[str, Any]  # values by the names of COLUMNS


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

    def refuse_unless(self, wanted: Manifest, folder: Path) -> None:
        """Refuse to go on with anything other than what the folder holds."""
        difference = None
        for name in ("share", "seed", "controls"):
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


class Store:
    """The folder of one sweep, open for writing; finished lines are those on disk, whoever wrote them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards = folder / "shards"
        self.locks = folder / ".locks"
        self._finished: set[int] = set()  # lines with a row in a shard that was read
        self._read: set[str] = set()  # the names of these shards

    def begin(self, wanted: Manifest) -> None:
        """Write the manifest, or check that the one that is here says the same."""
        with writing(self.folder), self._alone():
            present = manifest_in(self.folder)
            self.shards.mkdir(exist_ok=True)
            if present is None:
                values = {"kind": KIND, "schema": SCHEMA} | asdict(wanted)
                self._write("manifest.json", values | {"checksum": _checksum_of(values)})
            else:
                present.refuse_unless(wanted, self.folder)

    def taken(self, block: int) -> AbstractContextManager[bool]:
        """Whether this process alone may write rows of a block of lines, until the end of the `with`."""
        return self._locked(f"{block:09d}")

    def finished(self) -> set[int]:
        """The lines that have their row by now."""
        for shard in shards_in(self.folder):
            if shard.name not in self._read:
                self._finished.update(_read_shard(shard, ["line"]).column("line").to_pylist())
                self._read.add(shard.name)
        return self._finished

    def count(self) -> int:
        """How many lines have their row, by the names of the shards alone."""
        return sum(_parts_of_name(shard)[1] for shard in shards_in(self.folder))

    def put(self, rows: Sequence[TableRow], block: int) -> None:
        """Add rows of a block that is taken, as a shard."""
        ordered = sorted(rows, key=lambda row: row["line"])
        table = pa.Table.from_pylist(ordered, schema=COLUMNS)
        packed = pa.BufferOutputStream()
        pq.write_table(table, packed, compression="zstd")
        content = packed.getvalue().to_pybytes()
        first = ordered[0]["line"]
        shard = self.shards / f"{first:09d}-{len(ordered)}-{_checksum(content)}.parquet"
        with writing(self.folder):
            aside = self._unfinished(f"{block:09d}")
            write_whole(shard, lambda file: file.write_bytes(content), aside=aside)

    def end(self, manifest: Manifest) -> None:
        """Write the summary, once every line has its row."""
        if len(self.finished()) < manifest.lines or (self.folder / "summary.json").exists():
            return
        column = read_table(self.folder, ["line", "error"]).column("error")
        errors = len(column) - column.null_count
        summary = {
            "lines": manifest.lines,
            "measured": manifest.lines - errors,
            "errors": errors,
        }
        with writing(self.folder), self._alone():
            self._write("summary.json", summary)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only this process writes the manifest and the summary until the end of the `with`."""
        self.locks.mkdir(parents=True, exist_ok=True)
        with self._locked(_MANIFEST, patience=_PATIENCE) as ours:
            if not ours:
                held = f"another process has been starting a sweep in {self.folder} for {_PATIENCE:g} s"
                raise FileError(f"{held}; see what it is doing, or choose another folder")
            yield

    @contextmanager
    def _locked(self, name: str, *, patience: float = 0.0) -> Iterator[bool]:
        """Whether this process holds the lock of this name, until the end of the `with`."""
        lock = FileLock(self.locks / f"{name}.lock")
        try:
            with suppress(Timeout):
                lock.acquire(timeout=patience)
                self._unfinished(name).unlink(missing_ok=True)
        except (OSError, NotImplementedError) as why:  # the last: a file system without locks
            raise FileError(
                f"cannot lock {lock.lock_file} ({why}); choose a folder on another disk"
            ) from why
        try:
            yield lock.is_locked
        finally:
            lock.release()

    def _unfinished(self, name: str) -> Path:
        """What the holder of a lock is writing, or what a holder that died left."""
        return self.locks / f"{name}.unfinished"

    def _write(self, name: str, values: dict[str, Any]) -> None:
        """Write the manifest or the summary."""
        text = to_json(values) + "\n"
        aside = self._unfinished(_MANIFEST)
        write_whole(
            self.folder / name, lambda file: file.write_bytes(text.encode()), aside=aside
        )


def copy_lines(folder: Path, manifest: Manifest, table: pa.Table) -> None:
    """Write rows of a sweep as a sweep of their own, in a folder that holds none."""
    if manifest_in(folder) is not None:
        raise FileError(f"{folder} holds a sweep already; choose another folder")
    store = Store(folder)
    store.begin(manifest)
    if len(table):
        with store.taken(0):
            store.put(table.to_pylist(), 0)
    store.end(manifest)


def shards_in(folder: Path) -> list[Path]:
    """The shards that are complete, in the order of their first lines."""
    return sorted(
        file for file in (folder / "shards").glob("*.parquet") if _SHARD.fullmatch(file.name)
    )


def read_table(folder: Path, columns: Sequence[str] = COLUMNS.names) -> pa.Table:
    """Every row so far, in the order of the lines; each line once."""
    tables = []
    shard_of: dict[int, Path] = {}
    for shard in shards_in(folder):
        table = _read_shard(shard, columns)
        tables.append(table)
        for line in table.column("line").to_pylist():
            if line in shard_of:
                twice = f"line {line} of {folder} is in two shards, {shard_of[line].name} and {shard.name}"
                raise FileError(f"{twice}; delete the one that is a copy")
            shard_of[line] = shard
    return pa.concat_tables(tables).sort_by("line") if tables else COLUMNS.empty_table()


def _read_shard(shard: Path, columns: Sequence[str] = COLUMNS.names) -> pa.Table:
    """Some columns of a shard, `line` among them. Its rows must be those that its name says."""
    first, count, checksum = _parts_of_name(shard)
    try:
        content = shard.read_bytes()
        if checksum is None:
            raise ValueError("its name has no checksum, so damage would not be seen")
        if checksum != _checksum(content):
            raise ValueError("its checksum does not match: it was damaged or edited")
        table = pq.ParquetFile(pa.BufferReader(content)).read(columns=list(columns))
        for name in _LATER:
            if name in columns and name not in table.column_names:
                missing = pa.nulls(len(table), COLUMNS.field(name).type)
                table = table.append_column(name, missing)
        lines = table.column("line").to_pylist()
        if lines[:1] != [first] or len(lines) != count:
            raise ValueError(
                f"its name says {count} lines from {first} on, and it holds others"
            )
        return table.select(columns).cast(pa.schema([COLUMNS.field(name) for name in columns]))
    except (pa.ArrowException, OSError, KeyError, ValueError) as why:
        advice = "delete it, and the same command measures its lines again"
        raise FileError(
            f"cannot read {shard} ({' '.join(str(why).split())[:120]}); {advice}"
        ) from why


def _parts_of_name(shard: Path) -> tuple[int, int, str | None]:
    """The first line, the number of lines and the checksum that a shard is named after."""
    named = _SHARD.fullmatch(shard.name)
    assert named is not None
    return int(named[1]), int(named[2]), named[3]


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _checksum_of(values: dict[str, Any]) -> str:
    """The checksum of the values of a manifest, in whatever order they stand."""
    return _checksum(to_json(values, sort_keys=True).encode())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a sweep, if the folder holds one."""
    path = folder / "manifest.json"
    stored = read_object(path, most=_LARGEST_MANIFEST)
    checksum = stored.pop("checksum", None)  # none in those of version 0.2
    if stored.get("kind") == KIND and checksum not in (None, _checksum_of(stored)):
        raise FileError(f"{path} was edited or damaged; sweep again into another folder")
    if stored.pop("kind", None) != KIND:
        raise FileError(f"{path} is not the manifest of a sweep; choose another folder")
    if stored.pop("schema", None) != SCHEMA:
        raise FileError(
            f"{path} was written by another version; sweep again into another folder"
        )
    return to_record(
        Manifest, stored, f"{path} was edited or damaged, so sweep again into another folder"
    )


def manifest_in(folder: Path) -> Manifest | None:
    """The manifest of the sweep in a folder, if there is one.

    A folder that cannot be written, or that holds something else under the names of a sweep, is refused.
    """
    check_folder(folder)
    if os.path.lexists(folder / "manifest.json"):
        return read_manifest(folder)
    for path in (folder / "summary.json", *(folder / "shards").glob("*")):
        if os.path.lexists(path):
            raise FileError(
                f"{folder} has {path.name} but no manifest of a sweep; choose another folder"
            )
    return None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into one line."""
    try:
        yield
    except OSError as why:
        wrong = f"cannot write to {folder}: {why.strerror or why}"
        raise FileError(f"{wrong}; rows written so far are kept") from why
