"""The questions of a jsonl file, one a line, cut into shards.

The file is read once, so that later changes of it do not change the sweep; blank lines do not count. A line
holds the fields of `SweepQuestion`, of which prompt and key are required; all others are metadata. A line
that cannot be read has its error in place of its question.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from circuits.errors import FileError, PromptError
from circuits.files import parse_json, read_bytes, to_path, to_record

LARGEST_FILE: Final = 2**32  # bytes
LONGEST_LINE: Final = 2**20  # bytes
LONGEST_ERROR: Final = 500  # characters
_EXAMPLE: Final = (
    'write it like {"prompt": "Hot is not", "key": "Hot", "swap": {"Hot": "Big"}, "query": -1}'
)


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
            raise PromptError(
                'swap is empty; give words, such as {"large": "hot"}, or leave it out'
            )

    def to_json(self) -> str:
        """What was given, without the id, so that the question can be asked again."""
        given = {}
        for name, value in asdict(self).items():
            if value is not None and name != "id":
                given[name] = value
        return json.dumps(given, ensure_ascii=False)


_FIELDS: Final = frozenset(field.name for field in fields(SweepQuestion))


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
class Shard:
    """A block of lines, as they stand in the file: the unit that is measured whole or not at all."""

    numbers: tuple[int, ...]
    raw: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def lines(self) -> list[Line]:
        """Its lines, read."""
        return [read_line(*each) for each in zip(self.numbers, self.raw, strict=True)]


@dataclass(frozen=True, slots=True)
class Lines:
    """A file of questions: its lines that are not blank, with their numbers, and the sha256 of the whole."""

    name: str
    sha256: str
    raw: tuple[bytes, ...]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def shards(self, size: int) -> list[Shard]:
        """All lines, cut into blocks of this size."""
        shards = []
        for start in range(0, len(self), size):
            block = slice(start, start + size)
            shards.append(Shard(self.numbers[block], self.raw[block]))
        return shards


def read_lines(path: str | Path) -> Lines:
    """The lines of a jsonl file; each is parsed when it is needed."""
    file = to_path(path)
    content = read_bytes(file, most=LARGEST_FILE)
    numbers = []
    raw = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            numbers.append(number)
            raw.append(line)
    if not numbers:
        raise FileError(f"{path} has no lines; write one question on each line")
    return Lines(file.name, hashlib.sha256(content).hexdigest(), tuple(raw), tuple(numbers))


def read_line(number: int, raw: bytes) -> Line:
    """A line with its question, or with one sentence on what is wrong with it; null counts as not given."""
    given: dict[str, Any] = {}
    question = error = None
    try:
        given = _read_object(raw)
        values = {}
        for name, value in given.items():
            if name in _FIELDS and value is not None:
                values[name] = value
        question = to_record(SweepQuestion, values, "the line")
    except FileError as why:
        error = brief(f"{why}; {_EXAMPLE}")
    except PromptError as why:
        error = brief(why)
    id = given.get("id")
    prompt = given.get("prompt")
    metadata = {name: value for name, value in given.items() if name not in _FIELDS}
    return Line(
        number=number,
        id=str(id) if isinstance(id, str | int) else str(number),
        question=question,
        metadata=json.dumps(metadata, ensure_ascii=False),
        prompt=prompt if isinstance(prompt, str) else None,
        error=error,
    )


def _read_object(raw: bytes) -> dict[str, Any]:
    if len(raw) > LONGEST_LINE:
        raise PromptError(f"the line is longer than {LONGEST_LINE} bytes")
    stored = parse_json(raw, "the line")
    if not isinstance(stored, dict):
        raise FileError("the line is not a JSON object")
    return stored


def brief(why: object) -> str:
    """An error as one line, short enough for a table."""
    message = " ".join(str(why).split())
    return message if len(message) <= LONGEST_ERROR else message[: LONGEST_ERROR - 1] + "…"
