"""Files: read with care, written whole or not at all.

1. Only regular files are read, up to a stated size; whatever is wrong with one is a FileError of one line.
2. A record is read from JSON by the types of its own dataclass; nothing in a file is ever run.
3. A folder is filled aside and moved into place, all of it or none. A file that is in the way is replaced
   only in a folder that holds a result of ours, or if it says that we made it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from circuits.errors import FileError

SIGNATURE: Final = "keyquery-circuits"  # what files and pictures name as their creator
LARGEST: Final = 512 * 2**20  # bytes of a file that is read whole
_LARGEST_NUMBER: Final = 1e18  # no measured value comes near it, and quotients of such values stay finite
_FIELDS: Final = {  # where a page, a picture or a drawing names what made it: a page in its head
    ".html": rb"\A(?:(?!<(?:body|script|style|svg|pre|!--)).){0,4000}?<meta name=.generator. content=.@",
    ".svg": rb"\A.{0,2000}?<dc:title>@</dc:title>",
    ".png": rb"\A.{0,2000}?Software\0@",
    ".pdf": rb"/Creator \(@\)",
    ".dot": rb"\A// @",
}
RESULTS: Final = {  # what a file says that it is: the module and the class that read it
    "circuit": ("circuits.tracing.records", "Circuit"),
    "stability": ("circuits.tracing", "Stability"),
    "why": ("circuits.tracing.records", "Why"),
    "wiring": ("circuits.tracing.wiring_record", "Wiring"),
    "family": ("circuits.tracing.family", "FamilyTrace"),
    "verification": ("circuits.tracing.verify", "Verification"),
    "ranking": ("circuits.tasks.ranking", "Ranking"),
    "panel": ("circuits.tasks.patterns", "PanelFigures"),
    "comparison": ("circuits.tasks.compare", "Comparison"),
    "task_comparison": ("circuits.tasks.compare", "TaskComparison"),
    "mean": ("circuits.sweeps.results", "MeanCircuit"),
}
FILE_OF: Final = {kind: f"{kind}.json" for kind in RESULTS} | {"task_comparison": "comparison.json"}
_INVISIBLE: Final = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_KIND: Final = re.compile(r"str|int|float|bool|none|(list|tuple|dict)\[.*")  # of a union: no part of a name
T = TypeVar("T")


@contextmanager
def reading_file(path: Path) -> Iterator[None]:
    """Whatever the disk refuses, as one line."""
    try:
        yield
    except (OSError, ValueError) as why:
        raise FileError(f"cannot read {path}: {getattr(why, 'strerror', None) or why}") from why


def check_regular(path: Path, *, most: int = LARGEST) -> None:
    """Refuse what is missing, not a regular file (links are followed), or larger than `most` bytes."""
    with reading_file(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise FileError(f"cannot read {path}: it is {kind}")
    if status.st_size > most:
        raise FileError(f"{path} has {status.st_size} bytes, more than the {most} that such a file may have")


def read_bytes(path: Path, *, most: int = LARGEST) -> bytes:
    """All bytes of a regular file."""
    check_regular(path, most=most)
    with reading_file(path):
        return path.read_bytes()


def read_text(path: Path, *, most: int = LARGEST) -> str:
    """All text of a UTF-8 file."""
    return _decoded(read_bytes(path, most=most), path)


def _decoded(raw: bytes, name: object) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as why:
        raise FileError(f"{name} is not UTF-8 text (byte {why.start}); save it as UTF-8") from why


def read_object(path: Path, *, most: int = LARGEST) -> dict[str, Any]:
    """The object in a JSON file."""
    value = parse_json(read_bytes(path, most=most), path)
    if not isinstance(value, dict):
        raise FileError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def parse_json(raw: bytes | str, name: object) -> Any:
    """The value of a JSON text; `name` stands for it in the error."""
    text = _decoded(raw, name) if isinstance(raw, bytes) else raw
    numbers = {"parse_constant": _finite, "parse_float": _finite, "parse_int": _whole}
    try:
        value = json.loads(text, object_pairs_hook=_once, **numbers)
        json.dumps(value, ensure_ascii=False).encode()  # an escape can name half a character
    except RecursionError as why:
        raise FileError(f"{name} is nested too deeply") from why
    except ValueError as why:
        raise FileError(f"{name} is not valid JSON: {why}") from why
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {name[:40]!r} twice")
    return values


def _finite(digits: str) -> float:
    number = float(digits)
    if not abs(number) <= _LARGEST_NUMBER:
        raise ValueError(f"{digits[:20]} is not a finite number of a sensible size")
    return number


def _whole(digits: str) -> int:
    if len(digits) > 40:  # tokenizers write "no limit" as 10**30
        raise ValueError(f"the number {digits[:20]}… has {len(digits)} digits")
    return int(digits)


def to_record(kind: type[T], values: Any, name: object = "it") -> T:
    """A record from the values of a JSON text: every field must be there, of its type, and nothing else."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(json.dumps(values))
    except ValidationError as why:
        wrong = why.errors(include_url=False)[0]
        named = (str(part)[:40] for part in wrong["loc"] if not _KIND.fullmatch(str(part)))
        where = ".".join(named) or "the value"
        said = f"{str(wrong['input'])[:40]!r}: {wrong['msg']}" if wrong["type"] != "missing" else "missing"
        raise FileError(f"{name}: {where} is {said}") from why


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter, with_config

    rules = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(with_config(rules)(kind))


def to_json(value: Any, *, indent: int | None = 1, **form: Any) -> str:
    """A value as JSON text in which invisible characters are escaped, so that no terminal obeys them."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, **form)
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column holds words, all others numbers."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head, "|---|" + "---:|" * (len(columns) - 1), *lines])


# Folders


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written."""
    if not str(folder).strip() or "\0" in str(folder):
        raise FileError("an output folder needs a name that can be written; choose another")
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise FileError(f"cannot write to {folder}: {existing} is not a folder; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FileError(f"cannot write to {folder}: no permission to write to {existing}; choose another")


def write_folder(folder: Path, fill: Callable[[Path], object]) -> list[Path]:
    """Let `fill` write into an empty folder, then move all it wrote into place; return the paths."""
    made: list[Path] = []
    try:
        check_folder(folder)
        made = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".unfinished-") as aside:
            fill(Path(aside))
            return _moved(Path(aside), folder)
    except BaseException as why:
        for path in made:  # the deepest first
            with suppress(OSError):
                path.rmdir()
        if not isinstance(why, OSError):
            raise
        raise FileError(f"cannot write to {folder}: {why.strerror or why}; choose another folder") from why


def new_folder(parent: Path, name: str) -> Path:
    """A new folder named after something, as far as its name can be that of a folder."""
    name = re.sub(r"[^\w.-]+", "-", name).strip("-.")[-60:] or "unnamed"
    folder = parent / (f"{name}-{len(list(parent.iterdir()))}" if (parent / name).exists() else name)
    folder.mkdir()
    return folder


def _moved(aside: Path, folder: Path) -> list[Path]:
    """Move every file into place once all of them are on the disk."""
    targets = {file: folder / file.relative_to(aside) for file in sorted(aside.rglob("*")) if file.is_file()}
    for parent in {target.parent for target in targets.values()}:
        check_folder(parent)
        _check_free(parent, [target for target in targets.values() if target.parent == parent])
    for file in targets:
        _sync(file)
    for file, target in targets.items():
        target.parent.mkdir(exist_ok=True)
        file.replace(target)
    return list(targets.values())


def write_whole(path: Path, fill: Callable[[Path], object], *, aside: Path | None = None) -> None:
    """Let `fill` write a file aside, then move it to `path`: whole or not at all, even after a power cut."""
    aside = aside or path.with_suffix(".unfinished")
    try:
        fill(aside)
        _sync(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # Windows opens no folders
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_free(folder: Path, targets: list[Path]) -> None:
    taken = [target for target in targets if os.path.lexists(target)]
    if not taken:
        return
    if not all(target.is_file() for target in taken):
        raise FileError(f"cannot write {taken[0]}: there is a folder of that name; choose another folder")
    if any(_is_result(folder / name) for name in ("manifest.json", *FILE_OF.values())):
        taken = [target for target in taken if target.suffix == ".html"]  # every page of ours says so
    if foreign := next((target for target in taken if not _is_marked(target)), None):
        raise FileError(f"{foreign} was not written by circuits; move it away or choose another folder")


def _is_marked(path: Path) -> bool:
    """Whether a file says in its own field that circuits made it."""
    field = _FIELDS.get(path.suffix, rb"(?!)").replace(b"@", SIGNATURE.encode())
    return re.search(field, read_bytes(path), re.DOTALL) is not None


def _is_result(path: Path) -> bool:
    """Whether a file is a record that circuits wrote."""
    try:
        record = read_object(path)
    except FileError:
        return False
    named = record.get("written_by") == SIGNATURE
    return named or "arrays_sha256" in record or record.get("kind") == "circuits sweep"
