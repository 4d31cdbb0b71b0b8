"""From lines to rows of the table: questions of one shape are run together, and one that fails takes no other down.

1. Each question becomes a pair with its key and query. Questions of the same length, key, query and kind of counterfactual are
   cut into batches, as large as was asked for and as memory allows.
2. The runs of a batch show what the model predicts, which settles the answers and foils that were not given.
3. A pair that cannot be measured gets its error as its row; the others go on without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from circuits.engine import Runs, prepare
from circuits.engine.runs import SMALLEST_GAP
from circuits.errors import CircuitsError, PromptError
from circuits.mapping import measure_mapping
from circuits.prompts import Noise, Pair, to_pair, to_prompt
from circuits.sweeps.greedy import Found, measure_pairs, only
from circuits.sweeps.lines import Asked, Line, brief

if TYPE_CHECKING:
    from circuits.models import Model

MEMORY: Final = 256 * 2**20  # bytes of cached runs in a batch, at most
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the numbers of a sweep."""

    share: float
    seed: int
    controls: bool


@dataclass(frozen=True, slots=True)
class Question:
    """A line as the model reads it. The metric of its pair is settled later."""

    line: Line
    asked: Asked
    pair: Pair
    key: int
    query: int

    @property
    def shape(self) -> tuple[int, int, int, bool]:
        return len(self.pair), self.key, self.query, isinstance(self.pair.counterfactual, Noise)


class _Foreseen:
    """A model whose predictions at the last position are known already: `to_pair` reads them off without running it."""

    def __init__(self, model: Model, seen: Mapping[tuple[int, ...], torch.Tensor]) -> None:
        self._model, self._seen = model, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        known = self._seen.get(tuple(tokens[0].tolist()))
        return torch.zeros(1, 1, self._model.vocab_size) if known is None else known[None, None]


def measure_lines(
    model: Model, lines: Sequence[Line], settings: Settings, *, batch: int, finished: Set[int] = frozenset()
) -> Iterator[list[Row]]:
    """The rows of the lines that are not finished, a batch at a time, bad lines first. The finished ones have their place in batches."""
    shaped: dict[tuple[int, int, int, bool], list[Question]] = defaultdict(list)
    bad: list[Row] = []
    for line in lines:
        read = _to_question(model, line, settings)
        if isinstance(read, Question):
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


def _to_question(model: Model, line: Line, settings: Settings) -> Question | Row:
    if line.asked is None:
        return bad_row(line, line.error or "not read")
    try:
        prompt = to_prompt(model, line.asked.prompt)
        key, query = prompt.position(line.asked.key), prompt.position(line.asked.query)
        if key > query:
            raise PromptError(f"key {key} stands after query {query}: a query reads keys at or before itself")
        return Question(line, line.asked, _to_pair(model, line.asked, key, settings, metric="logprob"), key, query)
    except (CircuitsError, ValueError, TypeError, OverflowError) as why:  # the last three: texts that a tokenizer cannot take
        return bad_row(line, brief(why))


def _to_pair(
    model: Model,
    asked: Asked,
    key: int,
    settings: Settings,
    *,
    metric: str | None,
    seen: Mapping[tuple[int, ...], torch.Tensor] | None = None,
) -> Pair:
    named: Any = metric
    return to_pair(
        cast("Model", _Foreseen(model, seen or {})),
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
def _measure(model: Model, questions: Sequence[Question], settings: Settings) -> list[Row]:
    """The rows of questions of one shape."""
    try:
        runs = prepare(model, [question.pair for question in questions], smallest_gap=0.0)
    except CircuitsError as why:
        if len(questions) == 1:
            return [bad_row(questions[0].line, brief(why))]
        return [row for question in questions for row in _measure(model, [question], settings)]
    rows: list[Row] = []
    settled: dict[str, list[int]] = defaultdict(list)
    pairs = [question.pair for question in questions]
    for place, (question, seen) in enumerate(zip(questions, _predictions(runs), strict=True)):
        try:
            pairs[place] = _to_pair(model, question.asked, question.key, settings, metric=question.asked.metric, seen=seen)
            settled[pairs[place].metric.kind].append(place)
        except CircuitsError as why:
            rows.append(bad_row(question.line, brief(why)))
    runs = replace(runs, pairs=tuple(pairs))
    for places in settled.values():
        rows += _measure_settled(only(runs, places), [questions[place] for place in places], settings)
    return rows


def _predictions(runs: Runs) -> Iterator[dict[tuple[int, ...], torch.Tensor]]:
    """What the model says after the prompt and after the counterfactual of each pair, by their tokens."""
    at = 0
    for pair in runs.pairs:
        seen = {pair.clean.tokens: runs.clean.logits[at]}
        if isinstance(pair.counterfactual, Noise):
            at += pair.counterfactual.draws
        else:
            seen[pair.counterfactual.tokens] = runs.counterfactual.logits[at]
            at += 1
        yield seen


def _measure_settled(runs: Runs, questions: Sequence[Question], settings: Settings) -> list[Row]:
    """The rows of pairs with one kind of metric, those with too small a gap apart."""
    wide = [place for place, gap in enumerate(runs.gap.tolist()) if abs(gap) >= SMALLEST_GAP]
    rows: list[Row] = []
    for place in sorted(set(range(len(questions))) - set(wide)):
        try:
            rows += _rows(prepare(runs.model, [runs.pairs[place]]), [questions[place]], settings)
        except CircuitsError as why:
            rows.append(bad_row(questions[place].line, brief(why)))
    return rows + (_rows(only(runs, wide), [questions[place] for place in wide], settings) if wide else [])


def _rows(runs: Runs, questions: Sequence[Question], settings: Settings) -> list[Row]:
    key, query = questions[0].key, questions[0].query
    if settings.controls:
        alone = (only(runs, [place]) for place in range(len(questions)))
        mappings = (measure_mapping(each, key, query, share=settings.share, seed=settings.seed) for each in alone)
        found = [Found.of(mapping, settings.share) for mapping in mappings]
    else:
        found = measure_pairs(runs, key, query, share=settings.share)
    values = [runs.values(side).tolist() for side in (runs.clean, runs.counterfactual)]
    return [_row(*told) for told in zip(questions, runs.pairs, found, *values, strict=True)]


def _row(question: Question, pair: Pair, found: Found, clean: float, other: float) -> Row:
    controls, line, noisy = found.controls, question.line, isinstance(pair.counterfactual, Noise)
    numbers = (clean, other, found.total, found.restore)
    if not all(-1e30 < number < 1e30 for number in numbers):
        return bad_row(line, f"the model gives no finite number here: {', '.join(f'{number:g}' for number in numbers)}")
    return {
        "line": line.number,
        "id": line.id,
        "prompt": question.asked.prompt,
        "counterfactual": str(pair.counterfactual) if isinstance(pair.counterfactual, Noise) else pair.counterfactual.text,
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
    return {"line": line.number, "id": line.id, "prompt": known, "error": error, "asked": asked, "metadata": line.metadata}
