"""Reading files that anyone may have made: bounded, no devices, JSON without surprises, one line for whatever is wrong.

1. Only regular files are read, up to a size that is said; a pipe or a device would never end.
2. Text is UTF-8, a byte order mark in front is taken off.
3. JSON holds each key once, finite numbers of at most 40 digits, no half characters, and is nested at most 64 deep.
4. What is written as JSON has its control characters escaped, so that no terminal obeys them.
"""

from __future__ import annotations

import json
import math
import re
import stat
from pathlib import Path
from typing import Any, Final

from circuits.errors import FileError

LARGEST: Final = 512 * 2**20  # bytes of a file that is read whole
DEEPEST: Final = 64  # lists and objects within one another
LONGEST_NUMBER: Final = 40  # digits of a whole number; tokenizers say "no limit" as 10**30
_UNSEEN: Final = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def check_regular(path: Path, *, most: int = LARGEST) -> None:
    """Refuse what is missing, no regular file (links are followed), or larger than `most` bytes."""
    try:
        found = path.stat()
    except (OSError, ValueError) as why:
        raise FileError(f"cannot read {path}: {getattr(why, 'strerror', None) or why}") from why
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"cannot read {path}: it is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no regular file'}")
    if found.st_size > most:
        raise FileError(f"{path} has {found.st_size} bytes and such a file at most {most}")


def read_bytes(path: Path, *, most: int = LARGEST) -> bytes:
    """All bytes of a regular file."""
    check_regular(path, most=most)
    try:
        return path.read_bytes()
    except OSError as why:
        raise FileError(f"cannot read {path}: {why.strerror or why}") from why


def read_text(path: Path, *, most: int = LARGEST) -> str:
    """All text of a regular file, as it stands there."""
    return to_text(read_bytes(path, most=most), path)


def to_text(raw: bytes, what: object) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as why:
        raise FileError(f"{what} is not UTF-8 text (byte {why.start}); save it as UTF-8") from why


def read_json(path: Path, *, most: int = LARGEST) -> Any:
    """The value in a JSON file."""
    return parse_json(read_bytes(path, most=most), path)


def read_object(path: Path, *, most: int = LARGEST) -> dict[str, Any]:
    """The object in a JSON file."""
    stored = read_json(path, most=most)
    if not isinstance(stored, dict):
        raise FileError(f"{path} must hold a JSON object, not {_kind(stored)}")
    return stored


def parse_json(raw: bytes | str, what: object) -> Any:
    """The value that JSON text says. `what` names it in the error."""
    text = to_text(raw, what) if isinstance(raw, bytes) else raw
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=_fitting, object_pairs_hook=_once)
        _check_values(value)
    except RecursionError as why:
        raise FileError(f"{what} is nested deeper than {DEEPEST}") from why
    except ValueError as why:
        raise FileError(f"{what} is not JSON as it must be: {why}") from why
    return value


def to_json(value: Any, *, indent: int | None = 1, sort_keys: bool = False, default: Any = None) -> str:
    """A value as JSON text that reads as itself and holds nothing that a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, sort_keys=sort_keys, default=default)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _fitting(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"the number {digits[:20]}… has {len(digits)} digits")
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    stored = dict(pairs)
    if len(stored) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"it has the key {twice[:40]!r} twice")
    return stored


def _check_values(value: Any) -> None:
    """No text with half a character (JSON can say one as an escape), nothing deeper than allowed."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        for text in (each for each in level if isinstance(each, str) and not each.isascii()):
            _check_text(text)
        lists = [each for each in level if isinstance(each, list)]
        objects = [each for each in level if isinstance(each, dict)]
        level = [inner for each in lists for inner in each] + [inner for each in objects for pair in each.items() for inner in pair]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST}")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as why:
        raise ValueError(f"a text holds half a character ({text[why.start]!a})") from why
