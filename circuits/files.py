"""Reading files, and writing them whole or not at all.

1. Only regular files up to a stated size are read. Whatever is wrong with a file is a FileError of one line.
2. pydantic parses JSON and checks it against the field types of a dataclass. Nothing in a file is ever run.
3. The files of a folder are written into a temporary folder first and moved into place when all of them are
   complete. An existing file is replaced only if circuits wrote it (see `_check_replaceable`).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from circuits.errors import FileError, shortened

# Every picture, page and result names this as its creator.
SIGNATURE: Final = "keyquery-circuits"
LARGEST: Final = 512 * 2**20  # bytes of a file that is read whole
_SIGNS_OF_OURS: Final = (SIGNATURE.encode(), b'"arrays_sha256"', b'"circuits sweep"')
_INVISIBLE: Final = re.compile(
    "[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
# Pydantic adds the type to the place of a value in a union; no field has such a name.
_TYPE_NAME: Final = re.compile(r"str|int|float|bool|none|(list|tuple|dict)\[.*")
T = TypeVar("T")


# Reading


@contextmanager
def reading_file(path: Path) -> Iterator[None]:
    """Turn every error of the operating system into a FileError of one line."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot read {path}: {reason}") from error


def check_regular(path: Path, *, most: int = LARGEST) -> None:
    """Refuse what is missing, not a regular file (links are followed), or larger than `most` bytes."""
    with reading_file(path):
        status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise FileError(f"cannot read {path}: it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"cannot read {path}: it is not a regular file")
    if status.st_size > most:
        raise FileError(
            f"{path} has {status.st_size} bytes, more than the {most} that such a file may have"
        )


def to_path(given: Any) -> Path:
    """A path that a user gave. An empty one is refused: it would mean the current folder."""
    is_text = isinstance(given, str)
    if not is_text and not isinstance(given, os.PathLike):
        raise FileError(
            f"a path is text, not {shortened(given)}; give the name of a file or folder"
        )
    if is_text and not given.strip():
        raise FileError("a path must not be empty; write . for the current folder")
    return Path(given)


def read_bytes(path: Path, *, most: int = LARGEST) -> bytes:
    """All bytes of a regular file."""
    check_regular(path, most=most)
    with reading_file(path):
        return path.read_bytes()


def read_text(path: Path, *, most: int = LARGEST) -> str:
    """All text of a UTF-8 file."""
    return _decode(read_bytes(path, most=most), path)


def _decode(raw: bytes, name: object) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error


def read_object(path: Path, *, most: int = LARGEST) -> dict[str, Any]:
    """The object in a JSON file."""
    value = parse_json(read_bytes(path, most=most), path)
    if not isinstance(value, dict):
        raise FileError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def parse_json(raw: bytes | str, name: object) -> Any:
    """The value of a JSON text; `name` stands for it in the error."""
    from pydantic_core import from_json

    text = _decode(raw, name) if isinstance(raw, bytes) else raw
    try:
        value = from_json(text, allow_inf_nan=False)
        json.dumps(value, allow_nan=False)  # refuses 1e999, which was read as infinity
    except ValueError as error:
        raise FileError(f"{name} is not valid JSON: {error}") from error
    return value


def to_record(kind: type[T], values: Any, name: object = "it") -> T:
    """A record from the values of a JSON text: every field must be there, of its type, and nothing else."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parts = [str(part)[:40] for part in first["loc"]]
        fields = [part for part in parts if not _TYPE_NAME.fullmatch(part)]
        where = ".".join(fields) or "the value"
        if first["type"] == "missing":
            raise FileError(f"{name}: {where} is missing") from error
        value = str(first["input"])[:40]
        raise FileError(f"{name}: {where} is {value!r}: {first['msg']}") from error


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter, with_config

    rules = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )
    return TypeAdapter(with_config(rules)(kind))


# Writing


def to_json(value: Any, *, indent: int | None = 1, **options: Any) -> str:
    """A value as JSON text. Invisible characters are escaped, so that no terminal obeys them."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, **options)
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column holds words, all others numbers."""
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for cells in rows:
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written."""
    if not str(folder).strip() or "\0" in str(folder):
        raise FileError("an output folder needs a name that can be written; choose another")
    existing = folder.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise FileError(f"cannot write to {folder}: {existing} is not a folder; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FileError(
            f"cannot write to {folder}: no permission to write to {existing}; choose another"
        )


def write_folder(folder: Path, fill: Callable[[Path], object]) -> list[Path]:
    """Let `fill` write into a temporary folder, then move all it wrote into `folder`; return the paths."""
    made: list[Path] = []
    try:
        check_folder(folder)
        made = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
        folder.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(folder)
        prefix = f"{_unfinished()}{os.getpid()}-"
        with TemporaryDirectory(dir=folder, prefix=prefix) as temporary:
            fill(Path(temporary))
            return _move_files(Path(temporary), folder)
    except BaseException as error:
        for path in made:  # the deepest first; a folder that is not empty stays
            with suppress(OSError):
                path.rmdir()
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or error
        raise FileError(f"cannot write to {folder}: {reason}; choose another folder") from error


def _unfinished() -> str:
    """How the names of folders begin that processes of this machine are filling; the process follows."""
    machine = re.sub(r"\W", "_", platform.node())
    return f".unfinished-{machine}-"


def _clear_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that were killed left unfinished in a folder."""
    named = re.compile(re.escape(_unfinished()) + r"(\d{1,9})-.*")
    for path in folder.glob(".unfinished-*"):
        match = named.fullmatch(path.name)
        if match is not None and not _is_running(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    """Whether there is a process of this number; where that cannot be known, it counts as running."""
    if os.name != "posix":  # on Windows, signal 0 ends the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True


def new_folder(parent: Path, name: str) -> Path:
    """A new folder named after something, as far as its name can be that of a folder. Where there is one of
    that name, it gets the next free number; of several that are made at once each gets its own."""
    name = re.sub(r"[^\w.-]+", "-", name).strip("-.")[-60:] or "unnamed"
    folder = parent / name
    for number in count(2):
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            if not os.path.lexists(folder):  # else it is only the name that is taken
                reason = error.strerror or error
                raise FileError(
                    f"cannot make {folder}: {reason}; choose another folder"
                ) from error
            folder = parent / f"{name}-{number}"
        else:
            break
    return folder


def _move_files(temporary: Path, folder: Path) -> list[Path]:
    """Move every file into place once all of them are on the disk."""
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    targets = [folder / file.relative_to(temporary) for file in files]
    for target in targets:
        check_folder(target.parent)
        _check_replaceable(target)
    for file in files:
        _sync(file)
    for file, target in zip(files, targets, strict=True):
        target.parent.mkdir(exist_ok=True)
        file.replace(target)
    return targets


def _check_replaceable(target: Path) -> None:
    """Refuse to replace a file unless it names circuits as its creator or stands beside a result of ours."""
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise FileError(
            f"cannot write {target}: there is a folder of that name; choose another folder"
        )
    results_beside = target.parent.glob("*.json")
    if not _is_ours(target) and not any(map(_is_ours, results_beside)):
        raise FileError(
            f"{target} was not written by circuits; move it away or choose another folder"
        )


def _is_ours(path: Path) -> bool:
    """Whether a file carries a sign that circuits wrote it."""
    try:
        content = read_bytes(path)
    except FileError:
        return False
    return any(sign in content for sign in _SIGNS_OF_OURS)


def write_whole(
    path: Path, fill: Callable[[Path], object], *, aside: Path | None = None
) -> None:
    """Let `fill` write a temporary file, then move it to `path`: whole or not at all, even after a power
    cut."""
    temporary = aside or path.with_suffix(".unfinished")
    try:
        fill(temporary)
        _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
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
