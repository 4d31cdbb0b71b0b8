"""One shard as a Parquet file: its name, its columns, its checksum.

1. The name is that of its first and last line: 000000001-000000125.parquet. Model, fingerprint and seed stand
   in every row, so that the files are a data set for readers that know nothing of the manifest.
2. The footer has the sha256 of the rest of the file, and the checksum of the manifest. A shard that was
   damaged, or that belongs to another sweep, is refused.
3. Shards of version 0.2 are read, too: they have part of their sha256 in their names, and fewer columns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from circuits.errors import FileError
from circuits.sweeps.manifest import Manifest

_NAME: Final = re.compile(r"(\d{9,18})-(\d{9,18})\.parquet", re.ASCII)
_OLDER_NAME: Final = re.compile(r"(\d{9,18})-\d{1,9}-([0-9a-f]{16})\.parquet", re.ASCII)
_SHA256: Final = b"circuits-sha256:"  # what the checksum in a footer begins with
_NO_SHA256: Final = b"0" * 64  # stands in its place while it is computed
_TEXT: Final = pa.string()
_TEXTS: Final = pa.list_(pa.string())
_NUMBER: Final = pa.float64()
_NUMBERS: Final = pa.list_(pa.float32())
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


def name_of(numbers: Sequence[int]) -> str:
    """The name of the shard of these lines."""
    return f"{numbers[0]:09d}-{numbers[-1]:09d}.parquet"


def is_name(name: str) -> bool:
    """Whether a file of this name is a shard, of this version or of 0.2."""
    return _NAME.fullmatch(name) is not None or _OLDER_NAME.fullmatch(name) is not None


def to_parquet(rows: Sequence[TableRow], manifest: Manifest) -> bytes:
    """Rows as a Parquet file whose footer has the sha256 of all its other bytes."""
    in_every_row = {
        "model": manifest.model,
        "fingerprint": manifest.fingerprint,
        "seed": manifest.seed,
    }
    table = pa.Table.from_pylist([row | in_every_row for row in rows], schema=COLUMNS)
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


def read_parquet(shard: Path, manifest: Manifest, columns: Collection[str]) -> pa.Table:
    """Some columns of a shard, `line` among them, if it is undamaged and belongs to the sweep."""
    try:
        content = shard.read_bytes()
        _check_sha256(content, shard.name)
        file = pq.ParquetFile(pa.BufferReader(content))
        _check_manifest(file, shard.name, manifest)
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


def _check_sha256(content: bytes, name: str) -> None:
    """Refuse a shard whose bytes do not fit the checksum in its footer, or in an older name."""
    older = _OLDER_NAME.fullmatch(name)
    if older is not None:
        fits = hashlib.sha256(content).hexdigest()[:16] == older[2]
    else:
        before, sign, after = content.rpartition(_SHA256)
        bare = before + sign + _NO_SHA256 + after[len(_NO_SHA256) :]
        fits = hashlib.sha256(bare).hexdigest().encode() == after[: len(_NO_SHA256)]
    if not fits:
        raise ValueError("its checksum does not match: it was damaged or edited")


def _check_manifest(file: pq.ParquetFile, name: str, manifest: Manifest) -> None:
    """Refuse a shard of another sweep; those of version 0.2 do not say whose they are."""
    if _OLDER_NAME.fullmatch(name) is not None:
        return
    signs = file.metadata.metadata or {}
    if signs.get(b"circuits_manifest") != manifest.checksum.encode():
        raise ValueError("it belongs to another sweep than the manifest beside it")
