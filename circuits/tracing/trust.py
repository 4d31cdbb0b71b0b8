"""How far to trust an answer: whether the pair asks a clear question, and which mappings are doubtful.

1. A question is *clear* if its gap is large enough to divide by. Its controls: the gaps of other words in the
   same place (seeded, in one batch), the probability of the answer, the predictions of both runs, and whether
   the clean run prefers the answer to the foil.
2. It is *none* if the gap is tiny compared with the two values that it lies between. It is *weak* if most
   random words in the same place move the metric more, if both runs predict the same, if the answer is
   improbable, or if the clean run prefers the foil.
3. The modulation of a mapping is withheld where a number that looks good would mislead.
4. A note is a sentence on either, or on how it was measured; notes are printed above the numbers.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from statistics import median
from typing import Final

import torch

from circuits.engine import Runs, values_of_others
from circuits.models.model import Model
from circuits.prompts import Noise
from circuits.tracing.measure import both_values
from circuits.tracing.parts import CARRIES, Mapping, QuestionControl

OTHER_WORDS: Final = 16
SMALL_GAP: Final = 0.05  # of the larger of the two values between which it lies
LEAST_GAP: Final = 0.1  # nats or logits
LEAST_PROBABILITY: Final = 0.05  # of the answer on the clean prompt
FAMILY_GAP: Final = 0.1  # of the median gap of a family
QUARTILE: Final = 0.25  # a weak gap is smaller than what three of four random words do
RANDOM: Final = 0.5  # of the carriers' joint effect that as many random heads must not reach
MOST_MODULATION: Final = 1.2
SAME: Final = "both runs say"
_TRIES: Final = 200  # for each word


# The question


def control_question(runs: Runs, *, seed: int = 0) -> QuestionControl:
    """Whether the first pair asks a clear question."""
    clean, other = both_values(runs)
    other_gaps = _gaps_of_other_words(runs, clean, seed)
    probability = _answer_probability(runs)
    predictions = _predictions(runs)
    reasons = [
        *_reasons_of_size(runs, clean - other, other_gaps),
        *_reasons_of_prediction(runs, probability, predictions),
        *_reasons_of_sign(runs, clean, other),
    ]
    if is_small(clean, other):
        both = f"compared with its two values ({clean:.2f} and {other:.2f})"
        reasons.insert(0, f"the gap of {clean - other:.2g} is next to nothing {both}")
        return QuestionControl(
            "none", tuple(reasons), tuple(other_gaps), probability, predictions
        )
    verdict = "weak" if reasons else "clear"
    return QuestionControl(verdict, tuple(reasons), tuple(other_gaps), probability, predictions)


def is_small(clean: float, other: float) -> bool:
    """Whether the gap between two values is too small, compared with them, to be divided by."""
    return abs(clean - other) < SMALL_GAP * max(abs(clean), abs(other))


def weak_pairs(clean: Sequence[float], other: Sequence[float]) -> list[bool]:
    """For each pair of a family whether its gap is too small, compared with its own values or with the other
    gaps. Such a pair would dominate the mean of the effects, which are divided by the gap."""
    gaps = [abs(one - two) for one, two in zip(clean, other, strict=True)]
    smallest = FAMILY_GAP * median(gaps)
    values = zip(clean, other, gaps, strict=True)
    return [is_small(one, two) or gap < smallest for one, two, gap in values]


def _reasons_of_size(runs: Runs, gap: float, other_gaps: Sequence[float]) -> list[str]:
    """Why the gap is too small, if it is."""
    lower_quartile = sorted(other_gaps)[int(QUARTILE * len(other_gaps))] if other_gaps else 0.0
    if abs(gap) < lower_quartile:
        random_words = (
            f"three of four random words there move it by {lower_quartile:.2g} or more"
        )
        return [f"the gap of {gap:.2g} is smaller than a random word's ({random_words})"]
    if runs.metric.kind != "custom" and abs(gap) < LEAST_GAP:
        return [f"the gap is only {gap:.2g}"]
    return []


def _reasons_of_prediction(
    runs: Runs, probability: float | None, predictions: tuple[str, str | None]
) -> list[str]:
    """Whether both runs predict the same, and whether the answer is improbable."""
    reasons = []
    if predictions[0] == predictions[1]:
        reasons.append(f"{SAME} {predictions[0]!r}")
    if probability is not None and probability < LEAST_PROBABILITY:
        reasons.append(
            f"the model hardly says {runs.metric.answer_text!r} (probability {probability:.2g})"
        )
    return reasons


def _reasons_of_sign(runs: Runs, clean: float, other: float) -> list[str]:
    """Whether the clean run prefers the foil, or the counterfactual favours the answer."""
    metric = runs.metric
    if metric.foil is not None and clean < 0:
        prefers = f"the clean run prefers the foil {metric.foil_text!r} to the answer {metric.answer_text!r}"
        return [
            f"{prefers} ({metric} is {clean:.2f}): exchange them, or name what the model says"
        ]
    if clean < other:
        return [f"the counterfactual favours the answer (the gap is {clean - other:.2f})"]
    return []


def _gaps_of_other_words(runs: Runs, clean: float, seed: int) -> list[float]:
    """How far the metric moves, up or down, with random words where the pair differs."""
    pair = runs.pairs[0]
    tokens = torch.tensor([pair.clean.tokens] * OTHER_WORDS)  # (word, pos)
    draw = random.Random(f"other words/{seed}")
    for position in pair.differs_at:
        words = words_like(runs.model, pair.clean.tokens[position], draw)
        if not words:
            return []
        tokens[:, position] = torch.tensor(words)
    values = values_of_others(runs, tokens, pair.differs_at)
    return [abs(clean - value) for value in values.double().tolist()]


def _answer_probability(runs: Runs) -> float | None:
    """The probability of the answer on the clean prompt; None where the metric has no answer."""
    return runs.metric.answer_probability(runs.clean.logits[0])


def _predictions(runs: Runs) -> tuple[str, str | None]:
    """The prediction of each run. Of several draws of noise it is that of the majority, else None."""
    clean = int(runs.clean.logits[0, runs.metric.prediction].argmax(-1))
    counterfactual = runs.pairs[0].counterfactual
    draws = counterfactual.draws if isinstance(counterfactual, Noise) else 1
    predicted = runs.counterfactual.logits[:draws, runs.metric.prediction].argmax(-1)
    tokens, counts = predicted.unique(return_counts=True)
    majority = 2 * int(counts.max()) > draws
    other = runs.model.spell(int(tokens[counts.argmax()])) if majority else None
    return runs.model.spell(clean), other


# Words that are written alike


def words_like(
    model: Model, token: int, draw: random.Random, count: int = OTHER_WORDS
) -> list[int]:
    """Random tokens that are spelled as this one is: a word or not, with a space in front or without."""
    kind = spelling(model.spell(token))
    special = set(model.tokenizer.all_special_ids)
    size = min(model.vocab_size, len(model.tokenizer))
    words: list[int] = []
    for _ in range(_TRIES * count):
        other = draw.randrange(size)
        if other != token and other not in special and spelling(model.spell(other)) == kind:
            words.append(other)
            if len(words) == count:
                return words
    return []


def spelling(text: str) -> tuple[bool, bool]:
    """Whether it begins with a space, and whether it is a word: letters, more than one."""
    word = text.strip()
    return text[:1].isspace(), word.isalpha() and len(word) > 1


def nearest_words(
    model: Model, token: int, count: int, *, besides: Collection[int] = ()
) -> list[int]:
    """The tokens that are spelled like this one, nearest to it in the embedding first."""
    embedding = model.bridge.W_E.detach().float()  # (vocab, d_model)
    norms = embedding.norm(dim=-1).clamp(min=1e-8)  # a row of zeros is near to nothing
    similarity = embedding @ embedding[token] / norms
    kind = spelling(model.spell(token))
    size = min(model.vocab_size, len(model.tokenizer))
    refused = {token, *besides, *model.tokenizer.all_special_ids}
    words: list[int] = []
    for other in similarity.argsort(descending=True).tolist():
        if len(words) == count:
            break
        if other < size and other not in refused:
            word = model.spell(other)
            if word.strip() and spelling(word) == kind:
                words.append(other)
    return words


# Mappings


def doubts_about(
    mapping: Mapping, question: QuestionControl | None, *, named: bool
) -> tuple[str, ...]:
    """Why the modulation of a mapping is withheld; `named` if the user named this key."""
    doubts: list[str] = []
    if question is not None:
        if question.verdict == "none":
            doubts.append(question.reasons[0])
        doubts += [reason for reason in question.reasons if reason.startswith(SAME)]
    if abs(mapping.total) < CARRIES:
        doubts.append(
            f"a total of {mapping.total:z.2f} carries next to nothing (less than {CARRIES:g})"
        )
    elif mapping.total * mapping.restore < 0:
        doubts.append(f"restore ({mapping.restore:.2f}) has the other sign")
    if mapping.total >= CARRIES and mapping.heads and not mapping.path:
        doubts.append("no head by itself moves the metric, though all together do")
    return (*doubts, *_doubts_of_controls(mapping, named))


def _doubts_of_controls(mapping: Mapping, named: bool) -> list[str]:
    """What the controls of a mapping say against its modulation."""
    controls = mapping.controls
    if controls is None or not mapping.path:
        return []
    doubts = []
    modulation = mapping.modulation(controls.share)
    joint = modulation * mapping.total
    if modulation > MOST_MODULATION:
        doubts.append(
            f"its carriers alone reach {modulation:.0%} of the total, which others take back"
        )
    largest = max(controls.key_totals)
    best_key = max(key for key, total in enumerate(controls.key_totals) if total == largest)
    if named and best_key != mapping.key and largest > mapping.total:
        doubts.append(f"another key, {best_key}, carries more ({largest:.2f})")
    if controls.random_draws and controls.random_p95 >= RANDOM * joint:
        chance = f"as many random heads reach {controls.random_p95:.2f} (95th percentile)"
        doubts.append(f"{chance} where the carriers reach {joint:.2f}")
    return doubts


# Notes


def notes_on(
    runs: Runs, question: QuestionControl, mappings: Sequence[Mapping]
) -> tuple[str, ...]:
    """One sentence for each reason to be careful with a pair and its mappings."""
    notes = list(question.reasons)
    pair = runs.pairs[0]
    if isinstance(pair.counterfactual, Noise):
        words = [f"{pair.clean.words[p].strip()}({p})" for p in pair.counterfactual.positions]
        given = (
            f"no counterfactual was given: noise on {', '.join(words)}, read by {pair.metric}"
        )
        better = "a swap of that word for another of its kind, such as large=hot, asks a sharper question"
        notes.append(f"{given}; {better}")
    for mapping in mappings:
        own = [doubt for doubt in mapping.doubts if doubt not in notes]
        notes += [f"{mapping.key}→{mapping.query}: {doubt}" for doubt in own]
    if runs.path == "plain":
        slow = "measured on the plain path, through the model's own forward: as exact, slower"
        notes.append(f"{slow}, and without loadings")
    return tuple(notes)
