"""Questions from a jsonl file: one line, one question; what is wrong with a line is said on that line alone.

1. One pass over the file takes its sha256 and notes where each line starts; blank lines do not count.
2. A line is read when it is its turn. It holds `prompt`, `key` and, each optional, `counterfactual` or `swap`, `query`, `answer`,
   `foil`, `metric` and `id`; everything else on it is metadata, which is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from circuits.errors import CircuitsError, FileError, PromptError
from circuits.files import check_regular, parse_json

LARGEST_FILE: Final = 2**40  # bytes; only one line is in memory at a time
LONGEST_LINE: Final = 2**20  # bytes
LONGEST_ERROR: Final = 500  # characters
TEXTS: Final = ("counterfactual", "answer", "foil", "metric")
FIELDS: Final = ("id", "prompt", "swap", "key", "query", *TEXTS)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one line asks, as it was written."""

    prompt: str
    key: int | str
    query: int | str = -1
    counterfactual: str | None = None
    swap: dict[str, str] | None = None
    answer: str | None = None
    foil: str | None = None
    metric: str | None = None

    def to_json(self) -> str:
        """Only what was given, so that the question can be asked again."""
        given = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(
            {name: value for name, value in given.items() if value is not None}, ensure_ascii=False
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file, numbered from 1 as editors do: a question, or what is wrong with it."""

    number: int
    id: str
    asked: Asked | None
    metadata: str  # a JSON object
    prompt: str | None = None  # kept where the rest of the line is wrong
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """A file of questions, opened: where each line that is not blank starts, and the sha256 of all of it."""

    path: Path
    file: BinaryIO
    sha256: str
    starts: array[int]
    numbers: array[int]
    stamp: tuple[int, int]

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, place: int) -> Line:
        """The line at this place among those that are not blank."""
        if _stamp(self.file) != self.stamp:
            raise FileError(
                f"{self.path} was changed while it was being swept; start again into a new folder"
            )
        try:
            self.file.seek(self.starts[place])
            raw = self.file.readline(LONGEST_LINE + 1)
        except OSError as why:
            raise FileError(f"cannot read {self.path}: {why.strerror or why}") from why
        return read_line(self.numbers[place], raw)


@contextmanager
def opened_lines(path: str | Path) -> Iterator[Lines]:
    """The file, open for as long as it is needed."""
    place = Path(path)
    check_regular(place, most=LARGEST_FILE)
    try:
        file = place.open("rb")
    except OSError as why:
        raise FileError(f"cannot read {place}: {why.strerror or why}") from why
    with file:
        yield _indexed(place, file)


def _indexed(path: Path, file: BinaryIO) -> Lines:
    digest, starts, numbers = hashlib.sha256(), array("Q"), array("Q")
    stamp, at, number, fresh = _stamp(file), 0, 1, True  # fresh: no word of this line was seen yet
    try:
        while part := file.readline(LONGEST_LINE):
            digest.update(part)
            if fresh and part.strip():
                starts.append(at)
                numbers.append(number)
                fresh = False
            at += len(part)
            if part.endswith(b"\n"):
                number, fresh = number + 1, True
    except OSError as why:
        raise FileError(f"cannot read {path}: {why.strerror or why}") from why
    if not numbers:
        raise FileError(f"{path} has no line; give one question a line")
    return Lines(path, file, digest.hexdigest(), starts, numbers, stamp)


def _stamp(file: BinaryIO) -> tuple[int, int]:
    known = os.fstat(file.fileno())
    return known.st_size, known.st_mtime_ns


def read_line(number: int, raw: bytes) -> Line:
    """A line as a question, or with one sentence on what is wrong with it."""
    fields: dict[str, Any] = {}
    metadata = "{}"
    try:
        fields = _to_fields(raw)
        metadata = json.dumps(
            {name: value for name, value in fields.items() if name not in FIELDS}, ensure_ascii=False
        )
        return Line(number, _to_id(fields.get("id"), number), _to_asked(fields), metadata)
    except CircuitsError as why:
        named = fields.get("id")
        known = str(named) if isinstance(named, str | int) else str(number)
        prompt = fields.get("prompt")
        return Line(number, known, None, metadata, prompt if isinstance(prompt, str) else None, brief(why))


def brief(why: BaseException) -> str:
    """An error on one line that is not too long for a table."""
    said = " ".join(str(why).split())
    return said if len(said) <= LONGEST_ERROR else said[: LONGEST_ERROR - 1] + "…"


def _to_fields(raw: bytes) -> dict[str, Any]:
    if len(raw) > LONGEST_LINE:
        raise PromptError(f"the line is longer than {LONGEST_LINE} bytes")
    fields = parse_json(raw, "the line")
    if not isinstance(fields, dict):
        raise PromptError(f"a line is a JSON object with prompt and key, not {_kind(fields)}")
    return fields


def _to_id(given: object, number: int) -> str:
    if given is None:
        return str(number)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise PromptError(f"id is a text or a whole number, not {_kind(given)}")
    return str(given)


def _to_asked(fields: dict[str, Any]) -> Asked:
    for name in ("prompt", "key"):
        if fields.get(name) is None:
            raise PromptError(
                f"the line has no {name}; it needs prompt and key, and has {', '.join(map(repr, fields)) or 'nothing'}"
            )
    texts = {name: _to_text(name, fields.get(name)) for name in TEXTS}
    prompt = _to_text("prompt", fields["prompt"]) or ""
    query = fields.get("query")
    return Asked(
        prompt,
        _to_end("key", fields["key"]),
        _to_end("query", -1 if query is None else query),
        swap=_to_swap(fields),
        **texts,
    )


def _to_text(name: str, given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise PromptError(f"{name} is a text, not {_kind(given)}")
    return given


def _to_end(name: str, given: object) -> int | str:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise PromptError(
            f"{name} is a position, given as a whole number or as its token, not {_kind(given)}"
        )
    return given


def _to_swap(fields: dict[str, Any]) -> dict[str, str] | None:
    given = fields.get("swap")
    if given is None:
        return None
    if not isinstance(given, dict) or not given or not all(isinstance(new, str) for new in given.values()):
        raise PromptError(f'swap is an object of words, such as {{"large": "hot"}}, not {_kind(given)}')
    return given


def _kind(value: object) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")
