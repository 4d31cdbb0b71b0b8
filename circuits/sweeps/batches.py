"""From lines to rows of the table: questions of one shape are run together, and one that fails takes no other down.

1. Each question becomes a pair with its key and query. Questions of the same length, key, query and kind of counterfactual are
   cut into batches, as large as was asked for and as memory allows.
2. The runs of a batch show what the model predicts, which settles the answers and foils that were not given.
3. A pair that cannot be measured gets its error as its row; the others go on without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from circuits.engine import Runs, prepare
from circuits.engine.runs import SMALLEST_GAP
from circuits.errors import CircuitsError, PromptError
from circuits.prompts import Noise, Pair, Question, to_prompt, to_question
from circuits.sweeps.greedy import Found, measure_pairs, only
from circuits.sweeps.lines import Asked, Line, brief
from circuits.tracing.mapping import measure_mapping

if TYPE_CHECKING:
    from circuits.models.model import Model

MEMORY: Final = 256 * 2**20  # bytes of cached runs in a batch, at most
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What decides the numbers of a sweep."""

    share: float
    seed: int
    controls: bool


@dataclass(frozen=True, slots=True)
class LineQuestion:
    """A line as the model reads it. The metric of its pair is settled later."""

    line: Line
    asked: Asked
    question: Question
    key: int
    query: int

    @property
    def shape(self) -> tuple[int, int, int, bool]:
        return len(self.question.clean), self.key, self.query, isinstance(self.question.counterfactual, Noise)


def measure_lines(
    model: Model,
    lines: Sequence[Line],
    settings: SweepSettings,
    *,
    batch: int,
    finished: Set[int] = frozenset(),
) -> Iterator[list[Row]]:
    """The rows of the lines that are not finished, a batch at a time, bad lines first. The finished ones have their place in batches."""
    shaped: dict[tuple[int, int, int, bool], list[LineQuestion]] = defaultdict(list)
    bad: list[Row] = []
    for line in lines:
        read = _to_question(model, line, settings)
        if isinstance(read, LineQuestion):
            shaped[read.shape].append(read)
        elif line.number not in finished:
            bad.append(read)
    if bad:
        yield bad
    for (length, *_, noisy), questions in shaped.items():
        step = min(batch, _fitting(model, length, noisy=noisy))
        for part in (questions[at : at + step] for at in range(0, len(questions), step)):
            left = [question for question in part if question.line.number not in finished]
            if left:
                yield _measure(model, left, settings)


def _fitting(model: Model, length: int, *, noisy: bool) -> int:
    """How many pairs of this length may be cached at once."""
    draws = Noise(()).draws if noisy else 1
    one_side = model.n_layers * length * (model.n_heads * length + 8 * model.d_model) * 4
    return max(1, MEMORY // (2 * draws * one_side))


def _to_question(model: Model, line: Line, settings: SweepSettings) -> LineQuestion | Row:
    if line.asked is None:
        return bad_row(line, line.error or "not read")
    try:
        prompt = to_prompt(model, line.asked.prompt)
        key, query = prompt.position(line.asked.key), prompt.position(line.asked.query)
        if key > query:
            raise PromptError(f"key {key} stands after query {query}: a query reads keys at or before itself")
        return LineQuestion(line, line.asked, _asked_of(model, line.asked, key, settings), key, query)
    except (
        CircuitsError,
        ValueError,
        TypeError,
        OverflowError,
    ) as why:  # the last three: texts that a tokenizer cannot take
        return bad_row(line, brief(why))


def _asked_of(model: Model, asked: Asked, key: int, settings: SweepSettings) -> Question:
    named: Any = asked.metric
    return to_question(
        model,
        asked.prompt,
        counterfactual=asked.counterfactual,
        swap=asked.swap,
        noise_at=(key,),
        answer=asked.answer,
        foil=asked.foil,
        metric=named,
        seed=settings.seed,
    )


@torch.inference_mode()
def _measure(model: Model, questions: Sequence[LineQuestion], settings: SweepSettings) -> list[Row]:
    """The rows of questions of one shape."""
    try:
        runs = prepare(model, [question.question.unsettled for question in questions], smallest_gap=0.0)
    except CircuitsError as why:
        if len(questions) == 1:
            return [bad_row(questions[0].line, brief(why))]
        return [row for question in questions for row in _measure(model, [question], settings)]
    rows: list[Row] = []
    settled: dict[str, list[int]] = defaultdict(list)
    pairs = list(runs.pairs)
    for place, question in enumerate(questions):
        try:
            pairs[place] = question.question.settle(model, *runs.predictions(place))
            settled[pairs[place].metric.kind].append(place)
        except CircuitsError as why:
            rows.append(bad_row(question.line, brief(why)))
    runs = replace(runs, pairs=tuple(pairs))
    for places in settled.values():
        rows += _measure_settled(only(runs, places), [questions[place] for place in places], settings)
    return rows


def _measure_settled(runs: Runs, questions: Sequence[LineQuestion], settings: SweepSettings) -> list[Row]:
    """The rows of pairs with one kind of metric, those with too small a gap apart."""
    wide = [place for place, gap in enumerate(runs.gap.tolist()) if abs(gap) >= SMALLEST_GAP]
    rows: list[Row] = []
    for place in sorted(set(range(len(questions))) - set(wide)):
        try:
            rows += _rows(prepare(runs.model, [runs.pairs[place]]), [questions[place]], settings)
        except CircuitsError as why:
            rows.append(bad_row(questions[place].line, brief(why)))
    return rows + (_rows(only(runs, wide), [questions[place] for place in wide], settings) if wide else [])


def _rows(runs: Runs, questions: Sequence[LineQuestion], settings: SweepSettings) -> list[Row]:
    key, query = questions[0].key, questions[0].query
    if settings.controls:
        alone = (only(runs, [place]) for place in range(len(questions)))
        mappings = (
            measure_mapping(each, key, query, share=settings.share, seed=settings.seed) for each in alone
        )
        found = [Found.of(mapping, settings.share) for mapping in mappings]
    else:
        found = measure_pairs(runs, key, query, share=settings.share)
    values = [runs.values(side).tolist() for side in (runs.clean, runs.counterfactual)]
    return [_row(*told) for told in zip(questions, runs.pairs, found, *values, strict=True)]


def _row(question: LineQuestion, pair: Pair, found: Found, clean: float, other: float) -> Row:
    controls, line, noisy = found.controls, question.line, isinstance(pair.counterfactual, Noise)
    numbers = (clean, other, found.total, found.restore)
    if not all(-1e30 < number < 1e30 for number in numbers):
        return bad_row(
            line, f"the model gives no finite number here: {', '.join(f'{number:g}' for number in numbers)}"
        )
    return {
        "line": line.number,
        "id": line.id,
        "prompt": question.asked.prompt,
        "counterfactual": str(pair.counterfactual)
        if isinstance(pair.counterfactual, Noise)
        else pair.counterfactual.text,
        "noise": noisy,
        "key": question.key,
        "key_token": pair.clean.words[question.key],
        "query": question.query,
        "query_token": pair.clean.words[question.query],
        "tokens": list(pair.clean.words),
        "metric": pair.metric.kind,
        "answer": pair.metric.answer_text,
        "foil": pair.metric.foil_text,
        "clean_value": clean,
        "counterfactual_value": other,
        "total": found.total,
        "restore": found.restore,
        "carriers": [str(step.head) for step in found.path],
        "joint": [step.joint for step in found.path],
        "modulation": found.modulation,
        "effects": list(found.effects),
        "random_mean": None if controls is None else controls.random_mean,
        "random_p95": None if controls is None else controls.random_p95,
        "key_totals": None if controls is None else list(controls.key_totals),
        "sufficiency": None if controls is None else controls.sufficiency,
        "identity": None if controls is None else controls.identity,
        "error": None,
        "asked": question.asked.to_json(),
        "metadata": line.metadata,
    }


def bad_row(line: Line, error: str) -> Row:
    """A line that could not be measured, and why."""
    known = line.prompt if line.asked is None else line.asked.prompt
    asked = None if line.asked is None else line.asked.to_json()
    return {
        "line": line.number,
        "id": line.id,
        "prompt": known,
        "error": error,
        "asked": asked,
        "metadata": line.metadata,
    }
