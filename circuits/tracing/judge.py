"""The verdict on a question: whether its gap is worth dividing by, and whether it is about its key.

1. Each pair is judged by itself (`judge_each`). It is *none* if the gap is tiny compared with the two values
   that it lies between. It is *weak* if most random words in the same place move the metric more, if both
   runs predict the same and the gap is less than a tenfold change of odds, if the answer is improbable, if
   the clean run prefers the foil, if half of the change or more is not at the key, or if nothing shows that
   the model has learned anything (`learned`). Otherwise it is *clear*.
2. What of the change is at the key is measured: the key's own token alone is swapped, and all other changed
   tokens without it. Where the counterfactual leaves the key's token as it is, it is what the key sends to
   the query: all its messages there, swapped.
3. The random words are the same for every seed, so that the seed does not decide the verdict.
4. Several pairs together (`judge`) are clear if more than half of them are.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from circuits.engine import SMALLEST_GAP, Row, Runs, values_of_others
from circuits.engine.selection import mapping_row
from circuits.prompts import Prompt
from circuits.tracing.learned import nothing_learned
from circuits.tracing.other_words import OTHER_WORDS, words_like
from circuits.tracing.parts import CARRIES, Ends, FamilyControl, QuestionControl, Verdict

SMALL_GAP: Final = 0.05  # of the larger of the two values between which it lies
LEAST_GAP: Final = 0.1  # nats or logits
TENFOLD: Final = math.log(10)  # a gap of this many nats changes odds tenfold
LEAST_PROBABILITY: Final = 0.05  # of the answer on the clean prompt
QUARTILE: Final = 0.25  # a weak gap is smaller than what three of four random words do
# Of the change: the key alone must make it, the other changed tokens must not.
HALF: Final = 0.5
_NAMED: Final = 4  # changed tokens in a sentence


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why a question is not clear; `withholds` where a modulation would mislead."""

    text: str
    withholds: bool = False


@dataclass(frozen=True, slots=True)
class _Parts:
    """What of a pair's change is at the key, and what is elsewhere, as shares of the gap."""

    at_key: float | None = None
    elsewhere: float | None = None


# One pair


@torch.inference_mode()
def judge_each(runs: Runs, *, ends: Ends | None = None) -> list[QuestionControl]:
    """The verdict on each pair of `runs`; on a question about a key, `ends` are its key and query."""
    clean = runs.values(runs.clean).double().tolist()
    other = runs.values(runs.counterfactual).double().tolist()
    other_gaps = _gaps_of_other_words(runs, clean)
    parts = [_Parts()] * len(clean) if ends is None else _parts_of_change(runs, ends)
    judged = []
    for pair, values in enumerate(zip(clean, other, strict=True)):
        said = _predictions(runs, pair)
        probability = _answer_probability(runs, pair)
        reasons = [
            *_reasons_of_size(runs, pair, values, other_gaps[pair]),
            *_reasons_of_prediction(runs, pair, values, probability, said),
            *_reasons_of_sign(runs, pair, values),
            *_reasons_of_key(runs, pair, ends, parts[pair]),
        ]
        unlearned = nothing_learned(runs, pair)
        if unlearned is not None:
            reasons.append(_Reason(unlearned, withholds=True))
        judged.append(
            QuestionControl(
                verdict=_verdict(values, reasons),
                reasons=tuple(reason.text for reason in reasons),
                other_gaps=tuple(other_gaps[pair]),
                probability=probability,
                said=said,
                withheld=tuple(reason.text for reason in reasons if reason.withholds),
                at_key=parts[pair].at_key,
                elsewhere=parts[pair].elsewhere,
            )
        )
    return judged


def _verdict(values: tuple[float, float], reasons: Sequence[_Reason]) -> Verdict:
    if is_small(*values):
        return "none"
    return "weak" if reasons else "clear"


def is_small(clean: float, other: float) -> bool:
    """Whether the gap between two values is too small to be divided by, compared with them or at all."""
    gap = abs(clean - other)
    return gap < SMALLEST_GAP or gap < SMALL_GAP * max(abs(clean), abs(other))


def is_wrong_side(metric_has_foil: bool, clean: float, other: float) -> bool:
    """Whether the clean run prefers the foil, or the counterfactual favours the answer."""
    return (metric_has_foil and clean < 0) or clean < other


def _reasons_of_size(
    runs: Runs, pair: int, values: tuple[float, float], other_gaps: Sequence[float]
) -> list[_Reason]:
    """Why the gap is too small, if it is."""
    clean, other = values
    gap = clean - other
    reasons = []
    if is_small(clean, other):
        both = f"compared with its two values ({clean:.2f} and {other:.2f})"
        text = f"the gap of {gap:.2g} is next to nothing {both}"
        reasons.append(_Reason(text, withholds=True))
    lower_quartile = sorted(other_gaps)[int(QUARTILE * len(other_gaps))] if other_gaps else 0.0
    if abs(gap) < lower_quartile:
        random_words = (
            f"three of four random words there move it by {lower_quartile:.2g} or more"
        )
        reasons.append(
            _Reason(f"the gap of {gap:.2g} is smaller than a random word's ({random_words})")
        )
    elif runs.pairs[pair].metric.is_of_predictions and abs(gap) < LEAST_GAP:
        reasons.append(_Reason(f"the gap is only {gap:.2g}"))
    return reasons


def _reasons_of_prediction(
    runs: Runs,
    pair: int,
    values: tuple[float, float],
    probability: float | None,
    said: tuple[str, str | None],
) -> list[_Reason]:
    """Whether both runs predict the same although the gap is not large, and whether the answer is
    improbable."""
    metric = runs.pairs[pair].metric
    reasons = []
    # A user who names answer and foil asks about these two, whatever a third word does; but then their odds
    # must change.
    large = metric.is_of_predictions and abs(values[0] - values[1]) >= TENFOLD
    if said[0] == said[1] and not large and metric.kind != "probe":
        reasons.append(_Reason(f"both runs say {said[0]!r}", withholds=True))
    if probability is not None and probability < LEAST_PROBABILITY:
        hardly = f"the model hardly says {metric.answer_text!r} (probability {probability:.2g})"
        reasons.append(_Reason(hardly))
    return reasons


def _reasons_of_sign(runs: Runs, pair: int, values: tuple[float, float]) -> list[_Reason]:
    """Whether the clean run prefers the foil, or the counterfactual favours the answer."""
    metric = runs.pairs[pair].metric
    clean, other = values
    if metric.foil is not None and clean < 0:
        prefers = f"the clean run prefers the foil {metric.foil_text!r} to the answer {metric.answer_text!r}"
        exchange = "exchange them, or name what the model says"
        return [_Reason(f"{prefers} ({metric} is {clean:.2f}): {exchange}")]
    if clean < other:
        return [
            _Reason(f"the counterfactual favours the answer (the gap is {clean - other:.2f})")
        ]
    return []


def _gaps_of_other_words(runs: Runs, clean: Sequence[float]) -> list[list[float]]:
    """For each pair how far the metric moves, up or down, with random words where the pair differs."""
    gaps: list[list[float]] = [[] for _ in clean]
    for positions, numbers in _by_differences(runs).items():
        others = {}
        for number in numbers:
            tokens = _with_other_words(runs, number, positions)
            if tokens is not None:
                others[number] = tokens
        if not others:
            continue
        tokens = torch.stack(list(others.values()))  # (pair, word, pos)
        values = values_of_others(runs.only(list(others)), tokens, positions).double().tolist()
        for number, of_pair in zip(others, values, strict=True):
            gaps[number] = [abs(clean[number] - value) for value in of_pair]
    return gaps


def _by_differences(runs: Runs) -> dict[tuple[int, ...], list[int]]:
    """The numbers of the pairs that differ at the same positions."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, pair in enumerate(runs.pairs):
        groups[pair.differs_at].append(number)
    return dict(groups)


def _with_other_words(runs: Runs, pair: int, positions: Sequence[int]) -> torch.Tensor | None:
    """A pair's clean prompt with random words at these positions, (word, pos); None if none are alike."""
    clean = runs.pairs[pair].clean.tokens
    tokens = torch.tensor([clean] * OTHER_WORDS)
    draw = random.Random("other words/0")
    for position in positions:
        words = words_like(runs.model, clean[position], draw)
        if not words:
            return None
        tokens[:, position] = torch.tensor(words)
    return tokens


def _answer_probability(runs: Runs, pair: int) -> float | None:
    """The probability of the answer on the clean prompt; None where the metric has no answer."""
    first = runs.inputs_of(pair).start
    return runs.pairs[pair].metric.answer_probability(runs.clean.logits[first])


def _predictions(runs: Runs, pair: int) -> tuple[str, str | None]:
    """The prediction of each run. Of several draws of noise it is that of the majority, else None."""
    inputs = runs.inputs_of(pair)
    clean = int(runs.clean.logits[inputs.start, runs.metric.prediction].argmax(-1))
    others = runs.counterfactual.logits[list(inputs), runs.metric.prediction]  # (draw, vocab)
    predicted = others.argmax(-1)
    tokens, counts = predicted.unique(return_counts=True)
    most = int(counts.argmax())
    is_majority = 2 * int(counts[most]) > len(inputs)
    other = runs.model.spell(int(tokens[most])) if is_majority else None
    return runs.model.spell(clean), other


# The part of the change that is at the key


def _parts_of_change(runs: Runs, ends: Ends) -> list[_Parts]:
    """For each pair the effect of its key alone, and of all other changed tokens without the key's."""
    parts = [_Parts()] * len(runs.pairs)
    gaps = runs.gap.tolist()
    key, query = ends
    for changed, numbers in _by_differences(runs).items():
        measured = [number for number in numbers if abs(gaps[number]) >= SMALLEST_GAP]
        others = [position for position in changed if position != key]
        if not measured:
            continue
        if not others:
            for number in measured:
                parts[number] = _Parts(at_key=1.0)
            continue
        if key in changed:
            rows = [Row.of_residual(0, [key]), Row.of_residual(0, others)]
        else:
            rows = [mapping_row(runs.heads, key, query)]
        swapped = runs.only(measured).effects(rows, direction="swap")
        effects = swapped.double().T.tolist()  # (pair, row)
        for number, of_pair in zip(measured, effects, strict=True):
            elsewhere = of_pair[1] if key in changed else 1.0
            parts[number] = _Parts(of_pair[0], elsewhere)
    return parts


def _reasons_of_key(runs: Runs, pair: int, ends: Ends | None, parts: _Parts) -> list[_Reason]:
    """Whether the change from clean to counterfactual is not at the key."""
    sentence = part_at_key(runs, pair, ends, parts.at_key, parts.elsewhere)
    if not sentence or ends is None or parts.at_key is None:
        return []
    key, query = ends
    changed = runs.pairs[pair].differs_at
    if key in changed:
        if parts.at_key >= HALF and abs(parts.elsewhere or 0.0) < HALF:
            return []
        return [_Reason(f"the question is not about the key alone: {sentence}", withholds=True)]
    if query in changed:
        return [_Reason(f"the question is about the query: {sentence}", withholds=True)]
    if abs(parts.at_key) < CARRIES:
        return [_Reason(f"the question is not about the key: {sentence}")]
    return []


def part_at_key(
    runs: Runs, pair: int, ends: Ends | None, at_key: float | None, elsewhere: float | None
) -> str:
    """Which part of a pair's change is attributed to the key and which is not; empty where all of it is."""
    if ends is None or at_key is None or elsewhere is None:
        return ""
    prompt = runs.pairs[pair].clean
    changed = runs.pairs[pair].differs_at
    key, query = (_token(prompt, position) for position in ends)
    others = [_token(prompt, position) for position in changed if position != ends[0]]
    listed = ", ".join(others[:_NAMED])
    if len(others) > _NAMED:
        listed += f" and {len(others) - _NAMED} more"
    if ends[0] in changed:
        alone = f"{key} alone makes {at_key:z.2f} of the change"
        return f"{alone}, without it {listed} {elsewhere:z.2f}"
    sent = f"what {key} sends to {query} makes {at_key:z.2f} of the change"
    return f"{sent}, which the counterfactual makes at {listed}"


def _token(prompt: Prompt, position: int) -> str:
    """`large(5)`."""
    word = prompt.words[position]
    return f"{word.strip() or repr(word)}({position})"


# Several pairs


def judge(runs: Runs, *, ends: Ends | None = None) -> FamilyControl:
    """The verdict on all pairs of `runs` together, be it one or many."""
    return together(judge_each(runs, ends=ends))


def together(judged: Sequence[QuestionControl], *, noun: str = "pairs") -> FamilyControl:
    """One verdict on several pairs that were judged one by one; sentences call them by the noun."""
    counts: dict[Verdict, int] = {"clear": 0, "weak": 0, "none": 0}
    for each in judged:
        counts[each.verdict] += 1
    reasons, withheld, notes = _reasons_together(judged, noun)
    if 2 * counts["clear"] > len(judged):
        verdict: Verdict = "clear"
    else:
        verdict = "none" if 2 * counts["none"] > len(judged) else "weak"
    return FamilyControl(
        verdict=verdict,
        reasons=reasons,
        clear=counts["clear"],
        weak=counts["weak"],
        none=counts["none"],
        withheld=withheld,
        notes=notes,
        at_key=_mean([each.at_key for each in judged]),
        elsewhere=_mean([each.elsewhere for each in judged]),
    )


Texts = tuple[str, ...]


def _reasons_together(
    judged: Sequence[QuestionControl], noun: str
) -> tuple[Texts, Texts, Texts]:
    """Why several pairs are not clear, why their modulation is withheld, and notes where most are clear."""
    if len(judged) == 1:
        return judged[0].reasons, judged[0].withheld, ()
    unclear = [each.reasons[0] for each in judged if each.verdict != "clear"]
    withheld = [each.withheld[0] for each in judged if each.withheld]
    count = f"of {len(judged)} {noun}"
    reasons, why_withheld, notes = (), (), ()
    if unclear and 2 * len(unclear) >= len(judged):
        reasons = (f"{len(unclear)} {count} are not clear; the first: {unclear[0]}",)
    elif unclear:
        verb = "is" if len(unclear) == 1 else "are"
        notes = (f"{len(unclear)} {count} {verb} not clear; the first: {unclear[0]}",)
    if withheld and 2 * len(withheld) >= len(judged):
        why_withheld = (f"in {len(withheld)} {count}: {withheld[0]}",)
    return reasons, why_withheld, notes


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that were measured; None where none was."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None
