"""How stable a mapping is: the same question under other counterfactuals of the same kind.

1. Of a swap: other words in the place of the counterfactual's, those nearest to it by their embedding that
   are written alike and keep the length. Where the foil is what the counterfactual says, words that leave the
   prediction as it is are passed over, found by a run of each to its prediction alone. Of noise: other draws,
   one a run. Rephrasings, if the user gives them.
2. All runs of one length are measured together, the turned one of step 4 among them; each has its own path of
   carriers. Heads are tried that by themselves do a twentieth of what the strongest does, in any run; where
   these fall short of the share, all are. Runs whose gap is too small to divide by are left out and counted.
3. A head in the carriers of at least 80% of the runs belongs to the core, any other carrier to the rim.
4. The same at neighbouring shares, and in the other direction (the counterfactual as the clean prompt, which
   is `restore`), so that a reader sees what hangs on a choice.
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
from circuits.engine.search import WHOLE, mapping_rows, select
from circuits.errors import PromptError, names_its_keywords
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    Noise,
    Pair,
    Prompt,
    Question,
    Swap,
    Wording,
    to_prompt,
    to_question,
)
from circuits.results import Progress, silent
from circuits.tracing import CORE, SHARE, HeadStability, Stability
from circuits.tracing.family import bootstrap
from circuits.tracing.trust import nearest_words, weak_pairs

RUNS: Final = 16
_SPREAD: Final = 0.1  # neighbouring shares
_LEAST: Final = 0.05  # of the strongest head's effect: what a head does that is tried
Path = list[tuple[Head, float]]


@names_its_keywords
def stability(
    model: Any,
    text: str,
    *,
    key: int | str,
    query: int | str = -1,
    n: int = RUNS,
    swap: Swap | None = None,
    counterfactual: str | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | None = None,
    rephrasings: Sequence[str] = (),
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
) -> Stability:
    """Which heads carry key → query whatever the counterfactual, over `n` of the same kind.

    `rephrasings` are other texts in which key, query and the words of the swap stand by the same names.

        >>> steady = circuits.stability(model, TEXT, key="large", swap={"large": "hot"}, n=3)
        >>> print(*steady.core)
        L5H1 L5H0 L4H5 L5H3 L4H0
    """
    measured = as_model(model)
    if n < 2:
        raise PromptError(f"stability compares runs, so n is at least 2, not {n}")
    ends = to_prompt(measured, text).ends(key, query)
    wording = Wording(counterfactual, swap, ends[:1], answer, foil, metric, seed)
    question = to_question(measured, text, wording)
    alike = _alike(measured, question, n, seed)
    groups = [_measure(measured, _settled(measured, alike, n), ends, share, turn=True)]
    for number, other in enumerate(rephrasings):
        progress("rephrasings", number, len(rephrasings))
        own = to_prompt(measured, other).ends(key, query)
        reworded = to_question(measured, other, replace(wording, noise_at=own[:1]))
        groups.append(_measure(measured, _settled(measured, [reworded]), own, share))
    record = _to_record(measured, ends, groups, share=share, seed=seed)
    return replace(record, weak=max(0, n + len(rephrasings) - len(record.counterfactuals)))


# Other counterfactuals of the same kind


def _alike(model: Model, question: Question, count: int, seed: int) -> list[Question]:
    """The question and others of its kind, more than are needed: some may not change the prediction."""
    noise = question.counterfactual
    if isinstance(noise, Noise):
        draws = [replace(noise, draws=1, seed=seed * count + number) for number in range(count)]
        return [replace(question, counterfactual=draw) for draw in draws]
    others = _other_prompts(model, question, count)
    return [question, *(replace(question, counterfactual=prompt) for prompt in others)]


def _other_prompts(model: Model, question: Question, count: int) -> list[Prompt]:
    """The counterfactual with other words where it differs, the same one wherever it has the same."""
    clean, prompt = question.clean, question.counterfactual
    assert isinstance(prompt, Prompt)
    differing = [p for p, (a, b) in enumerate(zip(clean.tokens, prompt.tokens, strict=True)) if a != b]
    words = {prompt.tokens[p] for p in differing}
    near = {word: nearest_words(model, word, 4 * count, besides={*clean.tokens, *words}) for word in words}
    listed = []
    for number in range(min(len(tokens) for tokens in near.values())):
        tokens = tuple(
            near[token][number] if p in differing else token for p, token in enumerate(prompt.tokens)
        )
        spelled = tuple(map(model.spell, tokens))
        listed.append(Prompt("".join(spelled[model.reads_bos :]), tokens, spelled))
    return listed


def _settled(model: Model, questions: Sequence[Question], count: int = 1) -> list[Pair]:
    """The first so many questions as pairs, without those that do not change the prediction where it is to be
    the foil. The first of all must be a question."""
    first = questions[0]
    runs = prepare(model, [first], smallest_gap=0.0)
    clean, _ = runs.predictions(0)
    if first.kind != "logit_diff" or first.foil is not None:
        return [question.settle(model, clean, None) for question in questions[:count]]
    pairs = [*runs.pairs]
    for start in range(1, len(questions), count):
        if len(pairs) >= count:
            break
        part = questions[start : start + count]
        prompts = [each.counterfactual for each in part if isinstance(each.counterfactual, Prompt)]
        tokens = torch.tensor([prompt.tokens for prompt in prompts])
        said = predictions_of_others(runs, tokens, runs.pairs[0].differs_at)
        for question, prediction in zip(part, said, strict=True):
            with suppress(PromptError):
                pairs.append(question.settle(model, clean, prediction))
    return pairs[:count]


# Measuring


@dataclass(frozen=True)
class _Group:
    """Runs of one length: their pairs, the path of each, the effects of each head and last of all heads, and
    the carriers of the turned pair, if there is one."""

    pairs: tuple[Pair, ...]
    paths: list[Path]
    effects: Float[np.ndarray, "row run"]
    turned: frozenset[Head] | None = None

    def carriers(self, share: float) -> list[frozenset[Head]]:
        """Each run's heads up to a share of its own total."""
        return [_up_to(path, share * total) for path, total in zip(self.paths, self.effects[-1], strict=True)]


def _measure(
    model: Model, pairs: Sequence[Pair], ends: tuple[int, int], share: float, *, turn: bool = False
) -> _Group:
    """All pairs together, and with `turn` the first one turned; without those whose gap is too small."""
    rows = mapping_rows(every_head(model), *ends)
    turned = [_turned(pairs[0])] if turn and not isinstance(pairs[0].counterfactual, Noise) else []
    runs = prepare(model, [*pairs, *turned], rows=rows, smallest_gap=0.0)
    sides = (runs.values(side).tolist() for side in (runs.clean, runs.counterfactual))
    kept = [number for number, weak in enumerate(weak_pairs(*sides)) if not weak]
    if not kept:
        return _Group((), [], np.zeros((len(rows), 0)))
    runs = runs.only(kept)
    effects = runs.effects(rows)
    paths = _paths(runs, ends, effects, min(1.0, share + _SPREAD))
    measured = effects.double().cpu().numpy()
    own = [index for index, number in enumerate(kept) if number < len(pairs)]
    back = _up_to(paths[-1], share * float(measured[-1, -1])) if len(own) < len(kept) else None
    chosen = tuple(runs.pairs[index] for index in own)
    return _Group(chosen, [paths[index] for index in own], measured[:, own], back)


def _paths(
    runs: Runs, ends: tuple[int, int], effects: Float[torch.Tensor, "row run"], share: float
) -> list[Path]:
    """Each run's path up to a share: among the heads that do something by themselves, or where these fall
    short among all."""
    single, total = effects[:-1], effects[-1]
    does = (single >= _LEAST * single.amax(0)).any(1).tolist()
    among = [head for head, wanted in zip(runs.heads, does, strict=True) if wanted]
    paths = select(runs, *ends, effects=single, totals=total, share=share, among=among)
    goals = (min(share, WHOLE) * total).tolist()
    short = [n for n, path in enumerate(paths) if path and path[-1][1] < goals[n] - ROUNDING]
    if short and len(among) < len(runs.heads):
        part = runs.only(short)
        again = select(part, *ends, effects=single[:, short], totals=total[short], share=share)
        paths = [*paths]
        for number, path in zip(short, again, strict=True):
            paths[number] = path
    return paths


def _turned(pair: Pair) -> Pair:
    """The pair with clean and counterfactual exchanged."""
    assert isinstance(pair.counterfactual, Prompt)
    return Pair(pair.counterfactual, pair.clean, pair.metric)


def _to_record(
    model: Model, ends: tuple[int, int], groups: Sequence[_Group], *, share: float, seed: int
) -> Stability:
    near = sorted({round(max(_SPREAD, share - _SPREAD), 2), share, round(min(1.0, share + _SPREAD), 2)})
    sets = {level: [heads for group in groups for heads in group.carriers(level)] for level in near}
    count = len(sets[share])
    if count < 2:
        raise PromptError("fewer than two counterfactuals of this kind move the answer: nothing to compare")
    *single, total = bootstrap(np.concatenate([group.effects for group in groups], axis=1), seed=seed)
    often = Counter(head for heads in sets[share] for head in heads)
    every = zip(every_head(model), single, strict=True)
    heads = [HeadStability(head, often[head] / count, effect) for head, effect in every if often[head]]
    return Stability(
        key=ends[0],
        query=ends[1],
        share=share,
        counterfactuals=tuple(_name(pair) for group in groups for pair in group.pairs),
        total=total,
        heads=tuple(sorted(heads, key=lambda each: (-each.carries, -each.effect.mean, each.head))),
        overlap=_overlap(sets[share]),
        shares=tuple((level, _core(sets[level])) for level in near),
        restore=None if groups[0].turned is None else tuple(sorted(groups[0].turned)),
    )


def _up_to(path: Path, goal: float) -> frozenset[Head]:
    """The heads of a path until they reach the goal."""
    count = next((count for count, (_, joint) in enumerate(path, 1) if joint >= goal - ROUNDING), len(path))
    return frozenset(head for head, _ in path[:count])


def _core(sets: Sequence[frozenset[Head]]) -> tuple[Head, ...]:
    often = Counter(head for heads in sets for head in heads)
    return tuple(sorted(head for head, count in often.items() if count >= CORE * len(sets)))


def _overlap(sets: Sequence[frozenset[Head]]) -> float:
    """The mean share that two runs' carriers have in common, of all that either has."""
    both = [len(one & other) / len(one | other) for one, other in combinations(sets, 2) if one | other]
    return sum(both) / len(both) if both else 1.0


def _name(pair: Pair) -> str:
    other = pair.counterfactual
    if isinstance(other, Noise):
        return str(other)
    return " ".join(other.words[position].strip() for position in pair.differs_at)
