"""The folder of a sweep: a manifest that says what is measured, and shards that appear whole or not at all.

    DIR/manifest.json                          settings, the input's sha256, the model, and a checksum
    DIR/shards/000000001-000000125.parquet     the rows of a block of lines, named by its first and last line
    DIR/summary.json                           written when every line has its row

1. A shard is written aside under a hidden name, synced and renamed: after a crash it is whole or absent.
   Whoever measures a shard a second time replaces it by the same, so no line can be there twice.
2. A folder without a size of shards can be read and not gone on with: some lines that were saved from a
   sweep, or a sweep of version 0.2, whose shards are batches.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from circuits.errors import FileError
from circuits.files import check_folder, to_json, write_whole
from circuits.sweeps.manifest import Manifest, read_manifest
from circuits.sweeps.parquet import (
    COLUMNS,
    TableRow,
    is_name,
    name_of,
    read_parquet,
    to_parquet,
)

UNFINISHED: Final = ".unfinished"  # how files end that are still written


# Writing


def begin(folder: Path, wanted: Manifest) -> Manifest:
    """Write the manifest, or check that the one that is here asks the same; the one that holds."""
    present = manifest_in(folder)
    if present is None:
        with writing(folder):
            (folder / "shards").mkdir(parents=True, exist_ok=True)
            _write(folder / "manifest.json", wanted.to_json())
        present = read_manifest(folder)  # another process may have begun at the same time
    present.refuse_unless(wanted, folder)
    return present


def put(folder: Path, manifest: Manifest, rows: Sequence[TableRow]) -> None:
    """Write the rows of a shard."""
    ordered = sorted(rows, key=lambda row: row["line"])
    shard = folder / "shards" / name_of([row["line"] for row in ordered])
    content = to_parquet(ordered, manifest)
    with writing(folder):
        try:
            write_whole(shard, lambda file: file.write_bytes(content), aside=_aside(shard))
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
        _write(folder / "summary.json", to_json(summary) + "\n")
        for leftover in (folder / "shards").glob(f".*{UNFINISHED}"):
            leftover.unlink(missing_ok=True)


def copy_lines(folder: Path, manifest: Manifest, table: pa.Table) -> None:
    """Write rows of a sweep as a sweep of their own, in a folder that holds none."""
    if manifest_in(folder) is not None:
        raise FileError(f"{folder} holds a sweep already; choose another folder")
    some = replace(manifest, shard=0)
    with writing(folder):
        (folder / "shards").mkdir(parents=True, exist_ok=True)
        _write(folder / "manifest.json", some.to_json())
    if len(table):
        put(folder, some, table.to_pylist())
    end(folder, some)


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write_bytes(text.encode()), aside=_aside(path))


def _aside(path: Path) -> Path:
    """The hidden name under which this process writes a file."""
    return path.with_name(f".{path.stem}-{uuid.uuid4().hex}{UNFINISHED}")


# Reading


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


def holds(folder: Path, manifest: Manifest, numbers: Sequence[int]) -> bool:
    """Whether the shard of these lines is here, undamaged, and of this sweep."""
    shard = folder / "shards" / name_of(numbers)
    if not shard.exists():
        return False
    try:
        table = read_parquet(shard, manifest, ["line"])
    except FileError:
        return False
    return table.column("line").to_pylist() == list(numbers)


def shards_in(folder: Path) -> list[Path]:
    """The shards that are complete, in the order of their first lines. Other Parquet files are refused:
    whoever reads the folder without this package would read them, too."""
    shards = sorted((folder / "shards").glob("*.parquet"))
    for file in shards:
        if not is_name(file.name):
            raise FileError(f"{file} is no shard of this sweep, by its name; move it away")
    return shards


def read_table(folder: Path, columns: Sequence[str] = COLUMNS.names) -> pa.Table:
    """Every row so far, in the order of the lines; each line once."""
    manifest = read_manifest(folder)
    tables = []
    shard_of: dict[int, Path] = {}
    for shard in shards_in(folder):
        table = read_parquet(shard, manifest, columns)
        tables.append(table)
        for line in table.column("line").to_pylist():
            if line in shard_of:
                twice = f"line {line} of {folder} is in two shards, {shard_of[line].name} and {shard.name}"
                raise FileError(f"{twice}; delete the one that is a copy")
            shard_of[line] = shard
    return pa.concat_tables(tables).sort_by("line") if tables else COLUMNS.empty_table()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into one line."""
    try:
        yield
    except OSError as why:
        wrong = f"cannot write to {folder}: {why.strerror or why}"
        raise FileError(f"{wrong}; rows written so far are kept") from why
