"""The questions of a jsonl file, one a line, and the rows of the table that they become.

1. The file is read once, so that later changes of it do not change the sweep; blank lines do not count. A
   line holds the fields of `SweepQuestion`, of which prompt and key are required; all others are metadata.
2. Lines with the same length, key, query, kind of counterfactual and metric are cut into batches, as large as
   the user allows and memory permits. Both runs of each pair in a batch show what the model predicts; from
   that come the answers and foils that were not given.
3. Each line's question is judged as `trace` judges it.
4. An error belongs to its line alone: a line that cannot be read or measured gets its error as its row.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import torch

from circuits.components import Head
from circuits.engine import SMALLEST_GAP, Runs, bytes_of_run, prepare
from circuits.engine.selection import mapping_row, select
from circuits.errors import CircuitsError, FileError, PromptError
from circuits.files import parse_json, read_bytes, to_record
from circuits.models.model import Model
from circuits.prompts import (
    NOISE_DRAWS,
    Noise,
    Pair,
    Question,
    QuestionSpec,
    to_prompt,
    to_question,
)
from circuits.sweeps.store import Manifest, TableRow
from circuits.tracing import Mapping, QuestionControl
from circuits.tracing.judge import judge_each
from circuits.tracing.measure import measure_mapping
from circuits.tracing.trust import doubts_about, doubts_of_carriers, doubts_of_sums

LARGEST_FILE: Final = 2**32  # bytes
LONGEST_LINE: Final = 2**20  # bytes
LONGEST_ERROR: Final = 500  # characters
_EXAMPLE: Final = (
    'write it like {"prompt": "Hot is not", "key": "Hot", "swap": {"Hot": "Big"}, "query": -1}'
)
MEMORY: Final = 256 * 2**20  # bytes of cached runs in a batch, at most
LARGEST: Final = 1e30  # no number of a model that works comes near it
# Columns
CONTROLS: Final = ("random_mean", "random_p95", "key_totals", "sufficiency", "identity")


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
        given = {
            name: value
            for name, value in asdict(self).items()
            if value is not None and name != "id"
        }
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
class Lines:
    """A file of questions: its lines that are not blank, with their numbers, and the sha256 of the whole."""

    name: str
    sha256: str
    raw: tuple[bytes, ...]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: int) -> Line:
        """The line with this index among those that are not blank."""
        return read_line(self.numbers[index], self.raw[index])


def read_lines(path: str | Path) -> Lines:
    """The lines of a jsonl file; each is parsed when it is needed."""
    content = read_bytes(Path(path), most=LARGEST_FILE)
    numbers, raw = [], []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            numbers.append(number)
            raw.append(line)
    if not numbers:
        raise FileError(f"{path} has no lines; write one question on each line")
    return Lines(
        Path(path).name, hashlib.sha256(content).hexdigest(), tuple(raw), tuple(numbers)
    )


def read_line(number: int, raw: bytes) -> Line:
    """A line with its question, or with one sentence on what is wrong with it; null counts as not given."""
    given: dict[str, Any] = {}
    question = error = None
    try:
        given = _read_object(raw)
        values = {
            name: value
            for name, value in given.items()
            if name in _FIELDS and value is not None
        }
        question = to_record(SweepQuestion, values, "the line")
    except FileError as why:
        error = brief(f"{why}; {_EXAMPLE}")
    except PromptError as why:
        error = brief(why)
    id, prompt = given.get("id"), given.get("prompt")
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


@dataclass(frozen=True, slots=True)
class TokenizedLine:
    """A line as the model reads it. Its answer and foil may still depend on the model's predictions."""

    line: Line
    question: Question
    key: int
    query: int

    @property
    def is_noisy(self) -> bool:
        return isinstance(self.question.counterfactual, Noise)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Lines of equal shape can be measured together."""
        question = self.question
        sizes = (len(question.clean), len(question.sequence))
        return (*sizes, self.is_noisy, self.key, self.query, question.kind)


def measure_lines(
    model: Model,
    lines: Sequence[Line],
    manifest: Manifest,
    *,
    batch: int,
    finished: Set[int] = frozenset(),
) -> Iterator[list[TableRow]]:
    """The rows of the lines that are not finished, a batch at a time, bad lines first.

    Finished lines keep their place in the batches, so the other lines of a batch stay the same.
    """
    shapes: dict[tuple[Any, ...], list[TokenizedLine]] = defaultdict(list)
    bad: list[TableRow] = []
    for line in lines:
        tokenized = _tokenize(model, line, manifest)
        if isinstance(tokenized, TokenizedLine):
            shapes[tokenized.shape].append(tokenized)
        elif line.number not in finished:
            bad.append(tokenized)
    if bad:
        yield bad
    for alike in shapes.values():
        size = min(batch, _pairs_in_memory(model, alike[0]))
        for start in range(0, len(alike), size):
            left = [
                each for each in alike[start : start + size] if each.line.number not in finished
            ]
            if left:
                yield _measure(model, left, manifest)


def _pairs_in_memory(model: Model, line: TokenizedLine) -> int:
    """How many pairs of this shape may be cached at once."""
    draws = NOISE_DRAWS if line.is_noisy else 1
    return max(1, MEMORY // (2 * draws * bytes_of_run(model, len(line.question.clean))))


def _tokenize(model: Model, line: Line, manifest: Manifest) -> TokenizedLine | TableRow:
    """The line for the model, or its row with an error."""
    given = line.question
    if given is None:
        return to_row(line, line.error)
    try:
        key, query = to_prompt(model, given.prompt).ends(given.key, given.query)
        metric: Any = given.metric  # a name that is checked when the question is made
        spec = QuestionSpec(
            counterfactual=given.counterfactual,
            swap=given.swap,
            noise_at=(key,),
            answer=given.answer,
            foil=given.foil,
            metric=metric,
            seed=manifest.seed,
        )
        return TokenizedLine(line, to_question(model, given.prompt, spec), key, query)
    except (
        CircuitsError,
        ValueError,
        TypeError,
        OverflowError,
    ) as why:  # the last three: from a tokenizer
        return to_row(line, brief(why))


@torch.inference_mode()
def _measure(
    model: Model, lines: Sequence[TokenizedLine], manifest: Manifest
) -> list[TableRow]:
    """The rows of lines of one shape: run all pairs, then read answers and foils off the predictions."""
    try:
        runs = prepare(
            model, [line.question.pair_without_answer for line in lines], smallest_gap=0.0
        )
    except CircuitsError as why:
        if len(lines) == 1:
            return [to_row(lines[0].line, brief(why))]
        rows = []
        for line in lines:
            rows += _measure(model, [line], manifest)
        return rows
    rows: list[TableRow] = []
    pairs: dict[int, Pair] = {}
    for index, line in enumerate(lines):
        try:
            pairs[index] = line.question.with_predictions(model, *runs.predictions(index))
        except CircuitsError as why:
            rows.append(to_row(line.line, brief(why)))
    if pairs:
        settled = replace(runs.only(list(pairs)), pairs=tuple(pairs.values()))
        rows += _measure_settled(settled, [lines[index] for index in pairs], manifest)
    return rows


def _measure_settled(
    runs: Runs, lines: Sequence[TokenizedLine], manifest: Manifest
) -> list[TableRow]:
    """The rows of pairs whose metric is known; those with too small a gap get their own errors."""
    rows: list[TableRow] = []
    wide = []
    for index, gap in enumerate(runs.gap.tolist()):
        if abs(gap) >= SMALLEST_GAP:
            wide.append(index)
            continue
        try:  # `prepare` says what is wrong with the gap
            rows += _to_rows(prepare(runs.model, [runs.pairs[index]]), [lines[index]], manifest)
        except CircuitsError as why:
            rows.append(to_row(lines[index].line, brief(why)))
    if wide:
        rows += _to_rows(runs.only(wide), [lines[index] for index in wide], manifest)
    return rows


def _to_rows(runs: Runs, lines: Sequence[TokenizedLine], manifest: Manifest) -> list[TableRow]:
    """The rows of prepared runs, one for each of the lines."""
    key, query = lines[0].key, lines[0].query
    judged = judge_each(runs, ends=(key, query))
    mappings = _mapping_columns(runs, key, query, manifest, judged)
    clean = runs.values(runs.clean).tolist()
    counterfactual = runs.values(runs.counterfactual).tolist()
    rows = []
    for index, line in enumerate(lines):
        values = {"clean_value": clean[index], "counterfactual_value": counterfactual[index]}
        rows.append(_measured_row(line, runs.pairs[index], values | mappings[index]))
    return rows


def _mapping_columns(
    runs: Runs,
    key: int,
    query: int,
    manifest: Manifest,
    judged: Sequence[QuestionControl],
) -> list[TableRow]:
    """The columns of each pair's mapping and verdict: all pairs together, or with controls one pair after the
    other."""
    share = manifest.share
    columns = []
    if manifest.controls:
        for index in range(len(runs.pairs)):
            alone = runs.only([index])
            mapping = measure_mapping(alone, key, query, share=share, seed=manifest.seed)
            doubts = doubts_about(mapping, judged[index], named=True)
            verdict = _verdict_columns(judged[index], doubts)
            columns.append(_controlled_columns(mapping, share) | verdict)
        return columns
    all_heads = mapping_row(runs.heads, key, query)
    single_heads = [mapping_row([head], key, query) for head in runs.heads]
    effects = runs.effects([*single_heads, all_heads])  # (row, pair)
    restored = runs.effects([all_heads], direction="restore")[0].double().tolist()
    paths = select(runs, key, query, effects=effects[:-1], totals=effects[-1], share=share)
    totals = effects[-1].double().tolist()
    by_pair = effects[:-1].double().T.tolist()
    for index, path in enumerate(paths):
        measured = _columns(totals[index], restored[index], by_pair[index], path)
        doubts = [
            *judged[index].withheld,
            *doubts_of_sums(totals[index], restored[index]),
            *doubts_of_carriers(totals[index], measured["modulation"] if path else None),
        ]
        columns.append(measured | _verdict_columns(judged[index], doubts))
    return columns


def _verdict_columns(question: QuestionControl, doubts: Sequence[str]) -> TableRow:
    """The verdict on a line's question, why it is not clear, and why its modulation is withheld."""
    return {
        "verdict": question.verdict,
        "reasons": list(question.reasons),
        "doubts": list(doubts),
    }


def _controlled_columns(mapping: Mapping, share: float) -> TableRow:
    """The columns of a mapping that was measured by itself."""
    by_head = sorted(mapping.heads, key=lambda effect: effect.head)
    effects = [effect.effect for effect in by_head]
    path = [(step.head, step.joint) for step in mapping.path[: len(mapping.carriers(share))]]
    controls = {name: getattr(mapping.controls, name) for name in CONTROLS}
    return _columns(mapping.total, mapping.restore, effects, path) | controls


def _columns(
    total: float, restore: float, effects: Sequence[float], path: Sequence[tuple[Head, float]]
) -> TableRow:
    """A mapping up to the share: effects in the order of heads, carriers in the order they were found."""
    joint = [effect for _, effect in path]
    return {
        "total": total,
        "restore": restore,
        "carriers": [str(head) for head, _ in path],
        "joint": joint,
        "modulation": joint[-1] / total if joint else 0.0,
        "effects": list(effects),
    }


def _measured_row(line: TokenizedLine, pair: Pair, columns: TableRow) -> TableRow:
    """The row of a line: what was asked, and the measured `columns`."""
    names = ("clean_value", "counterfactual_value", "total", "restore")
    numbers = [columns[name] for name in names]
    if not all(-LARGEST < number < LARGEST for number in numbers):
        listed = ", ".join(f"{number:g}" for number in numbers)
        return to_row(line.line, f"the model gives no finite number here: {listed}")
    words, counterfactual = pair.clean.words, pair.counterfactual
    asked = {
        "key": line.key,
        "query": line.query,
        "key_token": words[line.key],
        "query_token": words[line.query],
        "tokens": list(words),
        "noise": line.is_noisy,
        "counterfactual": str(counterfactual)
        if isinstance(counterfactual, Noise)
        else counterfactual.text,
        "metric": pair.metric.kind,
        "answer": pair.metric.answer_text,
        "foil": pair.metric.foil_text,
    }
    return to_row(line.line) | asked | columns


def to_row(line: Line, error: str | None = None) -> TableRow:
    """The columns that every line has, measured or not."""
    return {
        "line": line.number,
        "id": line.id,
        "prompt": line.prompt,
        "error": error,
        "asked": None if line.question is None else line.question.to_json(),
        "metadata": line.metadata,
    }
