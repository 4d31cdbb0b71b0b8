"""The questions of a jsonl file, one a line; an error belongs to its line alone.

1. One pass over the file takes its sha256 and notes where each line starts; blank lines do not count.
2. A line is read when it is needed. It holds the fields of `SweepQuestion`, of which only prompt and key are
   required; all other fields are metadata, which are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

from circuits.errors import FileError, PromptError
from circuits.files import check_regular, parse_json, reading_file, to_record

LARGEST_FILE: Final = 2**40  # bytes; only one line is in memory at a time
LONGEST_LINE: Final = 2**20  # bytes
LONGEST_ERROR: Final = 500  # characters


@dataclass(frozen=True, slots=True)
class SweepQuestion:
    """The question of one line, as it was written."""

    prompt: str
    key: int | str
    query: int | str = -1
    counterfactual: str | None = None
    swap: dict[str, str] | None = None
    answer: str | list[str] | None = None
    foil: str | list[str] | None = None
    metric: str | None = None
    id: int | str | None = None

    def __post_init__(self) -> None:
        if self.swap == {}:
            raise PromptError('swap is empty; give words, such as {"large": "hot"}, or leave it out')

    def to_json(self) -> str:
        """What was given, without the id, so that the question can be asked again."""
        given = {name: value for name, value in asdict(self).items() if value is not None and name != "id"}
        return json.dumps(given, ensure_ascii=False)


_FIELDS: Final = frozenset(field.name for field in fields(SweepQuestion))
_EXAMPLE: Final = 'write it like {"prompt": "Hot is not", "key": "Hot", "swap": {"Hot": "Big"}, "query": -1}'


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file, numbered from 1 as in an editor: a question, or an error."""

    number: int
    id: str
    question: SweepQuestion | None
    metadata: str  # a JSON object
    prompt: str | None  # also where the rest of the line is wrong
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """An open file of questions: where each line that is not blank starts, and the sha256 of the whole."""

    path: Path
    file: BinaryIO
    sha256: str
    starts: array[int]
    numbers: array[int]
    size_and_time: tuple[int, int]

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: int) -> Line:
        """The line with this index among those that are not blank."""
        if _size_and_time(self.file) != self.size_and_time:
            raise FileError(f"{self.path} changed during the sweep; start again in a new folder")
        with reading_file(self.path):
            self.file.seek(self.starts[index])
            raw = self.file.readline(LONGEST_LINE + 1)
        return read_line(self.numbers[index], raw)


@contextmanager
def opened_lines(path: str | Path) -> Iterator[Lines]:
    """The file, open for as long as it is needed."""
    path = Path(path)
    check_regular(path, most=LARGEST_FILE)
    with reading_file(path):
        file = path.open("rb")
    with file:
        yield _index(path, file)


def _index(path: Path, file: BinaryIO) -> Lines:
    digest, starts, numbers = hashlib.sha256(), array("Q"), array("Q")
    size_and_time, offset, number, blank = _size_and_time(file), 0, 1, True  # blank: up to here
    with reading_file(path):
        while part := file.readline(LONGEST_LINE):
            digest.update(part)
            if blank and part.strip():
                starts.append(offset)
                numbers.append(number)
                blank = False
            offset += len(part)
            if part.endswith(b"\n"):
                number, blank = number + 1, True
    if not numbers:
        raise FileError(f"{path} has no lines; write one question on each line")
    return Lines(path, file, digest.hexdigest(), starts, numbers, size_and_time)


def _size_and_time(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def read_line(number: int, raw: bytes) -> Line:
    """A line with its question, or with one sentence on what is wrong with it; null counts as not given."""
    given: dict[str, Any] = {}
    question = error = None
    try:
        given = _to_fields(raw)
        values = {name: value for name, value in given.items() if name in _FIELDS and value is not None}
        question = to_record(SweepQuestion, values, "the line")
    except FileError as why:
        error = brief(f"{why}; {_EXAMPLE}")
    except PromptError as why:
        error = brief(why)
    name, prompt = given.get("id"), given.get("prompt")
    id = str(name if isinstance(name, str | int) else number)
    metadata = json.dumps({name: given[name] for name in given if name not in _FIELDS}, ensure_ascii=False)
    return Line(number, id, question, metadata, prompt if isinstance(prompt, str) else None, error)


def _to_fields(raw: bytes) -> dict[str, Any]:
    if len(raw) > LONGEST_LINE:
        raise PromptError(f"the line is longer than {LONGEST_LINE} bytes")
    given = parse_json(raw, "the line")
    if not isinstance(given, dict):
        raise FileError("the line is not a JSON object")
    return given


def brief(why: object) -> str:
    """An error as one line, short enough for a table."""
    message = " ".join(str(why).split())
    return message if len(message) <= LONGEST_ERROR else message[: LONGEST_ERROR - 1] + "…"
