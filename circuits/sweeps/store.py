"""The folder of a sweep: a manifest that says what is measured, and shards that appear whole or not at all.

    DIR/manifest.json                          settings, the input's sha256, the model, and a checksum
    DIR/shards/000000001-000000125.parquet     the rows of a block of lines, named by its first and last line
    DIR/summary.json                           written when every line has its row

1. `DIR/shards` is a Parquet data set for any reader. Model, question and seed stand in every row.
2. A shard is written aside under a hidden name, synced and renamed: after a crash it is whole or absent.
   Whoever measures a shard a second time replaces it by the same, so no line can be there twice.
3. The footer of a shard has the sha256 of the rest of the file, and the checksum of the manifest. A shard
   that was damaged, or that belongs to another sweep, is refused by readers and measured again by a sweep.
4. A folder without a size of shards can be read and not gone on with: some lines that were saved from a
   sweep, or a sweep of version 0.2, whose shards are batches and have their checksums in their names.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from circuits.errors import FileError
from circuits.files import check_folder, read_object, to_json, to_record, write_whole

KIND: Final = "circuits sweep"
SCHEMA: Final = 2
OLDER: Final = 1  # version 0.2
_LARGEST_MANIFEST: Final = 2**20  # bytes
_SHARD: Final = re.compile(r"(\d{9,18})-(\d{9,18})\.parquet", re.ASCII)
_OLDER_SHARD: Final = re.compile(r"(\d{9,18})-\d{1,9}-([0-9a-f]{16})\.parquet", re.ASCII)
_UNFINISHED: Final = ".unfinished"
_SHA256: Final = b"circuits-sha256:"  # what the checksum in a footer begins with
_NO_SHA256: Final = b"0" * 64  # stands in its place while it is computed
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
        *((name, _TEXT) for name in ("model", "fingerprint")),
        ("seed", pa.int64()),
        ("core", _TEXTS),
        ("overlap", _NUMBER),
        ("counterfactuals", pa.int32()),
    ]
)
_SINCE_0_3: Final = (
    *("verdict", "reasons", "doubts", "model", "fingerprint", "seed"),
    *("core", "overlap", "counterfactuals"),
)
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
    stability: int = 0  # other counterfactuals of each line
    shard: int = field(default=0, compare=False)  # lines of a shard; 0: not to be gone on with

    @property
    def checksum(self) -> str:
        """The checksum of what is measured and how it is cut."""
        return _checksum_of(asdict(self))

    @property
    def columns(self) -> TableRow:
        """What the manifest adds to every row."""
        return {"model": self.model, "fingerprint": self.fingerprint, "seed": self.seed}

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


# Writing


def begin(folder: Path, wanted: Manifest) -> Manifest:
    """Write the manifest, or check that the one that is here asks the same; the one that holds."""
    present = manifest_in(folder)
    if present is None:
        with writing(folder):
            (folder / "shards").mkdir(parents=True, exist_ok=True)
            _write_manifest(folder, wanted)
        present = read_manifest(folder)  # another process may have begun at the same time
    present.refuse_unless(wanted, folder)
    return present


def put(folder: Path, manifest: Manifest, rows: Sequence[TableRow]) -> None:
    """Write the rows of a shard."""
    ordered = sorted(rows, key=lambda row: row["line"])
    named = f"{ordered[0]['line']:09d}-{ordered[-1]['line']:09d}.parquet"
    table = pa.Table.from_pylist([row | manifest.columns for row in ordered], schema=COLUMNS)
    content = _packed(table, manifest)
    shard = folder / "shards" / named
    aside = shard.with_name(f".{shard.stem}-{uuid.uuid4().hex}{_UNFINISHED}")
    with writing(folder):
        try:
            write_whole(shard, lambda file: file.write_bytes(content), aside=aside)
        except FileNotFoundError:  # `end` of another process may have cleared it away
            if not shard.exists():
                raise


def end(folder: Path, manifest: Manifest) -> None:
    """Write the summary and clear what killed processes left, if every line has its row."""
    errors = read_table(folder, ["line", "error"]).column("error")
    if len(errors) < manifest.lines:
        return
    wrong = len(errors) - errors.null_count
    summary = {"lines": len(errors), "measured": len(errors) - wrong, "errors": wrong}
    with writing(folder):
        _write(folder / "summary.json", summary)
        for leftover in (folder / "shards").glob(f".*{_UNFINISHED}"):
            leftover.unlink(missing_ok=True)


def copy_lines(folder: Path, manifest: Manifest, table: pa.Table) -> None:
    """Write rows of a sweep as a sweep of their own, in a folder that holds none."""
    if manifest_in(folder) is not None:
        raise FileError(f"{folder} holds a sweep already; choose another folder")
    values = asdict(manifest) | {"shard": 0}
    some = Manifest(**values)
    with writing(folder):
        (folder / "shards").mkdir(parents=True, exist_ok=True)
        _write_manifest(folder, some)
    if len(table):
        put(folder, some, table.to_pylist())
    end(folder, some)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    values = {"kind": KIND, "schema": SCHEMA} | asdict(manifest)
    _write(folder / "manifest.json", values | {"checksum": _checksum_of(values)})


def _write(path: Path, values: dict[str, Any]) -> None:
    aside = path.with_name(f".{path.stem}-{uuid.uuid4().hex}{_UNFINISHED}")
    text = to_json(values) + "\n"
    write_whole(path, lambda file: file.write_bytes(text.encode()), aside=aside)


def _packed(table: pa.Table, manifest: Manifest) -> bytes:
    """The bytes of a Parquet file whose footer has the sha256 of all its other bytes."""
    packed = pa.BufferOutputStream()
    with pq.ParquetWriter(packed, COLUMNS, compression="zstd") as writer:
        writer.write_table(table)
        signs = {
            "circuits_checksum": _SHA256 + _NO_SHA256,
            "circuits_manifest": manifest.checksum,
        }
        writer.add_key_value_metadata(signs)
    content = packed.getvalue().to_pybytes()
    before, _, after = content.rpartition(_SHA256 + _NO_SHA256)
    return before + _SHA256 + hashlib.sha256(content).hexdigest().encode() + after


# Reading


def holds(folder: Path, manifest: Manifest, numbers: Sequence[int]) -> bool:
    """Whether the shard of these lines is here, undamaged, and of this sweep."""
    shard = folder / "shards" / f"{numbers[0]:09d}-{numbers[-1]:09d}.parquet"
    if not shard.exists():
        return False
    try:
        table = _read_shard(shard, manifest, ["line"])
    except FileError:
        return False
    return table.column("line").to_pylist() == list(numbers)


def shards_in(folder: Path) -> list[Path]:
    """The shards that are complete, in the order of their first lines. Other Parquet files are refused:
    whoever reads the folder without this package would read them, too."""
    shards = sorted((folder / "shards").glob("*.parquet"))
    for file in shards:
        if not _SHARD.fullmatch(file.name) and not _OLDER_SHARD.fullmatch(file.name):
            raise FileError(f"{file} is no shard of this sweep, by its name; move it away")
    return shards


def read_table(folder: Path, columns: Sequence[str] = COLUMNS.names) -> pa.Table:
    """Every row so far, in the order of the lines; each line once."""
    manifest = read_manifest(folder)
    tables = []
    shard_of: dict[int, Path] = {}
    for shard in shards_in(folder):
        table = _read_shard(shard, manifest, columns)
        tables.append(table)
        for line in table.column("line").to_pylist():
            if line in shard_of:
                twice = f"line {line} of {folder} is in two shards, {shard_of[line].name} and {shard.name}"
                raise FileError(f"{twice}; delete the one that is a copy")
            shard_of[line] = shard
    return pa.concat_tables(tables).sort_by("line") if tables else COLUMNS.empty_table()


def _read_shard(shard: Path, manifest: Manifest, columns: Collection[str]) -> pa.Table:
    """Some columns of a shard, `line` among them, if it is undamaged and belongs to the sweep."""
    try:
        content = shard.read_bytes()
        file = pq.ParquetFile(pa.BufferReader(_undamaged(content, shard)))
        signs = file.metadata.metadata or {}
        is_newer = _SHARD.fullmatch(shard.name) is not None
        if is_newer and signs.get(b"circuits_manifest") != manifest.checksum.encode():
            raise ValueError("it belongs to another sweep than the manifest beside it")
        there = file.schema_arrow.names
        table = file.read(columns=[name for name in columns if name in there])
        first = int(shard.name.partition("-")[0])
        if table.column("line")[0].as_py() != first:
            raise ValueError(f"by its name it begins with line {first}, and it does not")
        for name in columns:
            if name in _SINCE_0_3 and name not in there:
                missing = pa.nulls(len(table), COLUMNS.field(name).type)
                table = table.append_column(name, missing)
        return table.select(columns).cast(pa.schema([COLUMNS.field(name) for name in columns]))
    except (pa.ArrowException, OSError, LookupError, ValueError) as why:
        advice = "delete it, and the same command measures its lines again"
        raise FileError(
            f"cannot read {shard} ({' '.join(str(why).split())[:120]}); {advice}"
        ) from why


def _undamaged(content: bytes, shard: Path) -> bytes:
    """The bytes of a shard, if they fit the checksum in its footer, or in an older name."""
    older = _OLDER_SHARD.fullmatch(shard.name)
    if older is not None:
        fits = _checksum(content) == older[2]
    else:
        before, sign, after = content.rpartition(_SHA256)
        bare = before + sign + _NO_SHA256 + after[len(_NO_SHA256) :]
        fits = hashlib.sha256(bare).hexdigest().encode() == after[: len(_NO_SHA256)]
    if not fits:
        raise ValueError("its checksum does not match: it was damaged or edited")
    return content


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
    schema = stored.pop("schema", None)
    if schema not in (OLDER, SCHEMA) or (schema == SCHEMA and checksum is None):
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
