"""How stable a mapping is: the same question under other counterfactuals of the same kind.

1. Other counterfactuals. Of a swap: other words in the place of the counterfactual's, those nearest to it by
   their embedding that are spelled alike. Where the foil is what the counterfactual predicts, words that
   leave the prediction as it is are passed over. Of noise: other draws, one for each run. Rephrasings of the
   whole prompt, if the user gives them.
2. All runs of one length are measured together; each has its own path of carriers. Only heads that by
   themselves have a twentieth of the strongest head's effect in some run are tried at first; where these fall
   short of the share, all are. Runs whose gap is too small to divide by are left out and counted.
3. A head in the carriers of at least 80% of the runs belongs to the core, any other carrier to the rim.
4. The same at neighbouring shares, and in the other direction (the counterfactual as the clean prompt, which
   is `restore`), so that a reader sees what depends on a choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float

from circuits.components import ROUNDING, Head
from circuits.engine import Runs, predictions_of_others, prepare
from circuits.engine.runs import every_head
from circuits.engine.selection import WHOLE, mapping_rows, select
from circuits.errors import PromptError, as_listed, check_whole, names_its_keywords
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    Noise,
    Pair,
    ProbeMetric,
    Prompt,
    Question,
    QuestionSpec,
    Swap,
    to_prompt,
    to_question,
)
from circuits.prompts.prompt import check_roles
from circuits.results import Progress, silent
from circuits.tracing.asked import to_family
from circuits.tracing.batches import RunBatch, judge_batches, run_batches
from circuits.tracing.family import bootstrap
from circuits.tracing.inputs import is_family
from circuits.tracing.judge import judge_each
from circuits.tracing.other_words import nearest_words
from circuits.tracing.parts import CORE, SHARE, Ends, Position, RoleNames, check_share
from circuits.tracing.stability_record import HeadStability, Stability
from circuits.tracing.trust import weak_pairs

RUNS: Final = 16
_SPREAD: Final = 0.1  # how far the neighbouring shares are from the share asked for
_LEAST: Final = 0.05  # of the strongest head's effect: weaker heads are not tried at first
# Heads in the order in which they were added, with the joint effect so far.
Path = list[tuple[Head, float]]
Heads = frozenset[Head]


@names_its_keywords
def stability(
    model: Any,
    text: Any,
    *,
    key: Position | None = None,
    query: Position = -1,
    roles: RoleNames | None = None,
    n: int = RUNS,
    swap: Swap | None = None,
    counterfactual: str | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    rephrasings: Sequence[str] = (),
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
) -> Stability:
    """Which heads carry key → query whatever the counterfactual, over `n` of the same kind.

    `rephrasings` are other texts in which key, query and the words of the swap stand by the same names. Of a
    family (what `trace` takes) each pair is a run, and `n` is not used: which heads carry in most of them?

        >>> steady = circuits.stability(model, TEXT, key="large", swap={"large": "hot"}, n=3)
        >>> print(*steady.core)
        L5H1 L5H0 L4H5 L5H3 L4H0
    """
    spec = QuestionSpec(
        counterfactual, swap, answer=answer, foil=foil, metric=metric, seed=seed
    )
    check_share(share)
    check_roles(roles)
    model = as_model(model)
    if is_family(text):
        return _of_family(model, text, spec, key, query, roles, share)
    if key is None:
        raise PromptError("name the position that is read: key=…, its index or its token")
    named = roles or {}
    measured = measure_stability(
        model,
        text,
        spec,
        key=named.get(str(key), key),
        query=named.get(str(query), query),
        n=n,
        rephrasings=as_listed(rephrasings),
        share=share,
        progress=progress,
    )
    ends = (measured.key, measured.query)
    asked = to_question(model, text, replace(spec, noise_at=(measured.key,)))
    question = judge_each(prepare(model, [asked], smallest_gap=0.0), ends=ends)[0]
    return replace(measured, question=question, doubts=question.withheld)


def _of_family(
    model: Model,
    given: Any,
    spec: QuestionSpec,
    key: Position | None,
    query: Position,
    roles: RoleNames | None,
    share: float,
) -> Stability:
    """The pairs of a family, each with carriers of its own."""
    noise_at = None if key is None else (key,)
    family = to_family(model, given, spec, roles=roles, noise_at=noise_at, lines=True)
    asked = [(each.question, each.ends(key, query)) for each in family.asked]
    alike = [(len(question.clean), ends) for question, ends in asked]
    ran = run_batches(model, [question for question, _ in asked], alike)

    def ends_of(batch: RunBatch) -> Ends:
        return asked[batch.numbers[0]][1]

    batches = [_measure(model, batch.runs.pairs, ends_of(batch), share) for batch in ran]
    record = _to_record(model, ends_of(ran[0]), batches, share=share, seed=spec.seed)
    question = judge_batches(ran, ends_of)
    weak = max(0, len(asked) - len(record.counterfactuals))
    return replace(record, weak=weak, question=question, doubts=question.withheld)


def measure_stability(
    model: Model,
    text: str,
    spec: QuestionSpec,
    *,
    key: Position,
    query: Position,
    n: int,
    rephrasings: Sequence[str] = (),
    share: float = SHARE,
    progress: Progress = silent,
) -> Stability:
    """What `stability` measures, given the question as one record; without a verdict on it."""
    check_whole("n", n)
    if n < 2:
        raise PromptError(f"stability compares runs, so n is at least 2, not {n}")
    ends = to_prompt(model, text).ends(key, query)
    question = to_question(model, text, replace(spec, noise_at=ends[:1]))
    alike = _alike(model, question, n, spec.seed)
    batches = [_measure(model, _to_pairs(model, alike, n), ends, share, turn=True)]
    for number, other in enumerate(rephrasings):
        progress("rephrasings", number, len(rephrasings))
        other_ends = to_prompt(model, other).ends(key, query)
        reworded = to_question(model, other, replace(spec, noise_at=other_ends[:1]))
        batches.append(_measure(model, _to_pairs(model, [reworded], 1), other_ends, share))
    record = _to_record(model, ends, batches, share=share, seed=spec.seed)
    return replace(record, weak=max(0, n + len(rephrasings) - len(record.counterfactuals)))


# Other counterfactuals of the same kind


def _alike(model: Model, question: Question, count: int, seed: int) -> list[Question]:
    """The question and others of its kind, more than are needed: some may not change the prediction."""
    noise = question.counterfactual
    if isinstance(noise, Noise):
        draws = [replace(noise, draws=1, seed=seed * count + number) for number in range(count)]
        return [replace(question, counterfactual=draw) for draw in draws]
    prompts = _other_prompts(model, question.clean, noise, count)
    return [question, *(replace(question, counterfactual=prompt) for prompt in prompts)]


def _other_prompts(
    model: Model, clean: Prompt, counterfactual: Prompt, count: int
) -> list[Prompt]:
    """The counterfactual with other words where it differs. A word that stands there twice is replaced by the
    same word twice."""
    tokens = counterfactual.tokens
    differing = [
        position for position, token in enumerate(tokens) if token != clean.tokens[position]
    ]
    words = {tokens[position] for position in differing}
    besides = {*clean.tokens, *words}
    near = {word: nearest_words(model, word, 4 * count, besides=besides) for word in words}
    prompts: list[Prompt] = []
    for number in range(min(len(listed) for listed in near.values())):
        changed = list(tokens)
        for position in differing:
            changed[position] = near[tokens[position]][number]
        spelled = tuple(model.spell(token) for token in changed)
        text = "".join(spelled[model.reads_bos :])
        prompts.append(Prompt(text, tuple(changed), spelled))
    return prompts


def _to_pairs(model: Model, questions: Sequence[Question], count: int) -> list[Pair]:
    """The first `count` questions as pairs. Where the foil is the counterfactual's prediction, questions that
    do not change the prediction are left out; the first must change it."""
    first = questions[0]
    runs = prepare(model, [first], smallest_gap=0.0)
    clean, _ = runs.predictions(0)
    if first.kind != "logit_diff" or first.foil is not None:
        return [question.with_predictions(model, clean, None) for question in questions[:count]]
    pairs = list(runs.pairs)
    for start in range(1, len(questions), count):
        if len(pairs) >= count:
            break
        part = questions[start : start + count]
        prompts = [
            each.counterfactual for each in part if isinstance(each.counterfactual, Prompt)
        ]
        tokens = torch.tensor([prompt.tokens for prompt in prompts])
        predictions = predictions_of_others(runs, tokens, runs.pairs[0].differs_at)
        for question, prediction in zip(part, predictions, strict=True):
            with suppress(PromptError):
                pairs.append(question.with_predictions(model, clean, prediction))
    return pairs[:count]


# Measuring


@dataclass(frozen=True)
class _Measured:
    """Runs of one length that were measured together."""

    pairs: tuple[Pair, ...]
    paths: list[Path]  # the carriers of each run, as a greedy path
    effects: Float[np.ndarray, "row run"]  # of each head, and last of all heads together
    turned: Heads | None = None  # the carriers of the turned pair, if it was measured

    def carriers(self, share: float) -> list[Heads]:
        """Each run's heads up to a share of its own total."""
        totals = self.effects[-1]
        return [
            _up_to(path, share * total) for path, total in zip(self.paths, totals, strict=True)
        ]


def _measure(
    model: Model,
    pairs: Sequence[Pair],
    ends: Ends,
    share: float,
    *,
    turn: bool = False,
) -> _Measured:
    """Measure all pairs together, without those whose gap is too small. With `turn`, the first pair is
    measured with clean and counterfactual exchanged, too."""
    rows = mapping_rows(every_head(model), *ends)
    measured = list(pairs)
    first = pairs[0]
    if turn and isinstance(first.counterfactual, Prompt):
        measured.append(Pair(first.counterfactual, first.clean, first.metric))
    runs = prepare(model, measured, smallest_gap=0.0)
    weak = weak_pairs(
        runs.values(runs.clean).tolist(), runs.values(runs.counterfactual).tolist()
    )
    kept = [number for number in range(len(measured)) if not weak[number]]
    if not kept:
        return _Measured((), [], np.zeros((len(rows), 0)))
    runs = runs.only(kept)
    effects = runs.effects(rows)
    paths = _paths(runs, ends, effects, min(1.0, share + _SPREAD))
    of_runs = effects.double().cpu().numpy()
    own = [index for index, number in enumerate(kept) if number < len(pairs)]
    turned = None
    if len(own) < len(kept):  # the turned pair is the last
        turned = _up_to(paths[-1], share * float(of_runs[-1, -1]))
    own_pairs = tuple(runs.pairs[index] for index in own)
    return _Measured(own_pairs, [paths[index] for index in own], of_runs[:, own], turned)


def _paths(
    runs: Runs, ends: Ends, effects: Float[torch.Tensor, "row run"], share: float
) -> list[Path]:
    """Each run's path up to a share: among the heads that have an effect by themselves, or where these fall
    short of the share among all."""
    single, total = effects[:-1], effects[-1]
    strong = (single >= _LEAST * single.amax(0)).any(1).tolist()
    among = [head for head, is_strong in zip(runs.heads, strong, strict=True) if is_strong]
    paths = list(select(runs, *ends, effects=single, totals=total, share=share, among=among))
    if len(among) == len(runs.heads):
        return paths
    goals = (min(share, WHOLE) * total).tolist()
    short = []
    for number, path in enumerate(paths):
        if path and path[-1][1] < goals[number] - ROUNDING:
            short.append(number)
    if short:
        part = runs.only(short)
        among_all = select(
            part, *ends, effects=single[:, short], totals=total[short], share=share
        )
        for number, path in zip(short, among_all, strict=True):
            paths[number] = path
    return paths


def _up_to(path: Path, goal: float) -> Heads:
    """The heads of a path until they reach the goal."""
    heads: set[Head] = set()
    for head, joint in path:
        heads.add(head)
        if joint >= goal - ROUNDING:
            break
    return frozenset(heads)


# The record


def _to_record(
    model: Model,
    ends: Ends,
    batches: Sequence[_Measured],
    *,
    share: float,
    seed: int,
) -> Stability:
    """What all runs have in common, and what they do not; key and query are those of the first batch."""
    lower = round(max(_SPREAD, share - _SPREAD), 2)
    higher = round(min(1.0, share + _SPREAD), 2)
    carriers_at: dict[float, list[Heads]] = {}  # of each run, by share
    for level in sorted({lower, share, higher}):
        carriers_at[level] = [heads for batch in batches for heads in batch.carriers(level)]
    runs = len(carriers_at[share])
    if runs < 2:
        raise PromptError(
            "fewer than two counterfactuals of this kind move the answer: nothing to compare"
        )
    *single, total = bootstrap(
        np.concatenate([batch.effects for batch in batches], axis=1), seed=seed
    )
    times = _times_carried(carriers_at[share])
    heads: list[HeadStability] = []
    for head, effect in zip(every_head(model), single, strict=True):
        if times[head]:
            heads.append(HeadStability(head, times[head] / runs, effect))
    heads.sort(key=lambda each: (-each.carries, -each.effect.mean, each.head))
    turned = batches[0].turned
    return Stability(
        key=ends[0],
        query=ends[1],
        share=share,
        counterfactuals=tuple(_name(pair) for batch in batches for pair in batch.pairs),
        total=total,
        heads=tuple(heads),
        overlap=_overlap(carriers_at[share]),
        shares=tuple((level, _core(sets)) for level, sets in carriers_at.items()),
        restore=None if turned is None else tuple(sorted(turned)),
        model=model.name,
        pair=batches[0].pairs[0].without_function(),
    )


def _times_carried(sets: Sequence[Heads]) -> Counter[Head]:
    """In how many runs each head is a carrier."""
    return Counter(head for heads in sets for head in heads)


def _core(sets: Sequence[Heads]) -> tuple[Head, ...]:
    """The heads that are carriers in at least 80% of the runs."""
    times = _times_carried(sets)
    return tuple(sorted(head for head, count in times.items() if count >= CORE * len(sets)))


def _overlap(sets: Sequence[Heads]) -> float:
    """The mean share that two runs' carriers have in common, of all that either has."""
    overlaps = [
        len(one & two) / len(one | two) for one, two in combinations(sets, 2) if one | two
    ]
    return sum(overlaps) / len(overlaps) if overlaps else 1.0


def _name(pair: Pair) -> str:
    """The counterfactual in short: the words where it differs, or its noise."""
    other = pair.counterfactual
    if isinstance(other, Noise):
        return str(other)
    return " ".join(other.words[position].strip() for position in pair.differs_at)
