"""How far to trust an answer: whether the pair is a question at all, and which mappings are doubtful.

1. A question is *clear* if its gap is worth dividing by. Its controls: the gaps of other words in the same
   place (seeded, in one batch), the probability of the answer, what both runs say, and which side the clean
   run is on.
2. It is *none* if the gap is nothing beside the two values that it lies between; *weak* if most random words
   in the same place move the metric more, if both runs say the same, if the model hardly says the answer, or
   if it prefers the foil.
3. A mapping is doubtful, and its modulation is withheld, where a number that looks good would mislead.
4. A note is a sentence on either, or on how it was measured; notes are printed above the numbers.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import islice
from statistics import median
from typing import Final, Literal

import torch

from circuits.engine import Runs, values_of_others
from circuits.models.model import Model
from circuits.prompts import Noise, Pair
from circuits.tracing import CARRIES, Mapping, QuestionControl
from circuits.tracing.measure import both_values

OTHER_WORDS: Final = 16
SMALL_GAP: Final = 0.05  # of the larger of the two values between which it lies
LEAST_GAP: Final = 0.1  # nats or logits
LEAST_PROBABILITY: Final = 0.05  # of the answer on the clean prompt
FAMILY_GAP: Final = 0.1  # of the median gap of a family
QUARTILE: Final = 0.25  # a weak gap is smaller than what three of four random words do
RANDOM: Final = 0.5  # of the carriers' joint effect that as many random heads must not reach
MOST_MODULATION: Final = 1.2
_TRIES: Final = 200  # for each word
SAME: Final = "both runs say"


# The question


def control_question(runs: Runs, *, seed: int = 0) -> QuestionControl:
    """Whether the first pair is a question."""
    pair, metric = runs.pairs[0], runs.metric
    clean, other = both_values(runs)
    gaps = _gaps_of_others(runs, clean, seed)
    probability, said = _probability(runs), _said(runs)
    verdict: Literal["clear", "weak", "none"] = "clear"
    reasons = _weaknesses(pair, clean - other, gaps, probability, said)
    if metric.kind == "logit_diff" and clean < 0:
        side = f"the clean run prefers the foil {metric.foil_text!r} to the answer {metric.answer_text!r}"
        reasons.append(f"{side} ({metric} is {clean:.2f}): exchange them, or name what the model says")
    elif clean < other:
        reasons.append(f"the counterfactual favours the answer (the gap is {clean - other:.2f})")
    if reasons:
        verdict = "weak"
    if is_small(clean, other):
        verdict, small = "none", f"the gap of {clean - other:.2g} is nothing beside its two values"
        reasons.insert(0, f"{small} ({clean:.2f} and {other:.2f})")
    return QuestionControl(verdict, tuple(reasons), tuple(gaps), probability, said)


def is_small(clean: float, other: float) -> bool:
    """Whether the gap between two values is too small beside them to be divided by."""
    return abs(clean - other) < SMALL_GAP * max(abs(clean), abs(other))


def weak_pairs(clean: Sequence[float], other: Sequence[float]) -> list[bool]:
    """Which pairs of a family would blow up its mean: a gap that is small beside its own values, or beside
    those of the others."""
    gaps = [abs(one - two) for one, two in zip(clean, other, strict=True)]
    least = FAMILY_GAP * median(gaps)
    return [is_small(*pair) or gap < least for *pair, gap in zip(clean, other, gaps, strict=True)]


def _weaknesses(
    pair: Pair, gap: float, gaps: Sequence[float], probability: float | None, said: tuple[str, str | None]
) -> list[str]:
    reasons = []
    lower = sorted(gaps)[int(QUARTILE * len(gaps))] if gaps else 0.0
    if abs(gap) < lower:
        most = f"three of four random words there move it by {lower:.2g} or more"
        reasons.append(f"the gap of {gap:.2g} is smaller than a random word's ({most})")
    elif pair.metric.kind != "custom" and abs(gap) < LEAST_GAP:
        reasons.append(f"the gap is only {gap:.2g}")
    if said[0] == said[1]:
        reasons.append(f"{SAME} {said[0]!r}")
    if probability is not None and probability < LEAST_PROBABILITY:
        reasons.append(f"the model hardly says {pair.metric.answer_text!r} (probability {probability:.2g})")
    return reasons


def _gaps_of_others(runs: Runs, clean: float, seed: int) -> list[float]:
    """How far the metric moves, up or down, with random words where the pair differs."""
    pair = runs.pairs[0]
    tokens = torch.tensor([pair.clean.tokens] * OTHER_WORDS)
    draw = random.Random(f"other words/{seed}")
    for position in pair.differs_at:
        words = words_like(runs.model, pair.clean.tokens[position], draw)
        if not words:
            return []
        tokens[:, position] = torch.tensor(words)
    values = values_of_others(runs, tokens, pair.differs_at)
    return [abs(clean - value) for value in values.double().tolist()]


def words_like(model: Model, token: int, draw: random.Random, count: int = OTHER_WORDS) -> list[int]:
    """Random tokens that are written as this one is: a word or not, with a space in front or without."""
    text, special = model.spell(token), set(model.tokenizer.all_special_ids)
    kind, size = spelling(text), min(model.vocab_size, len(model.tokenizer))
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
    return text[:1].isspace(), text.strip().isalpha() and len(text.strip()) > 1


def nearest_words(model: Model, token: int, count: int, *, besides: Collection[int] = ()) -> list[int]:
    """The tokens that are written like this one, nearest to it in the embedding first."""
    embedded = model.bridge.W_E.detach().float()
    sizes = embedded.norm(dim=-1).clamp(min=1e-8)  # a row of zeros is near to nothing
    near = (embedded @ embedded[token] / sizes).argsort(descending=True).tolist()
    kind, size = spelling(model.spell(token)), min(model.vocab_size, len(model.tokenizer))
    refused = {token, *besides, *model.tokenizer.all_special_ids}
    words = ((other, model.spell(other)) for other in near if other < size and other not in refused)
    alike = (other for other, word in words if spelling(word) == kind and word.strip())
    return [*islice(alike, count)]


def _probability(runs: Runs) -> float | None:
    """Of the answer on the clean prompt; None where the metric has none."""
    metric = runs.metric
    if metric.kind not in ("logit_diff", "logprob"):
        return None
    chances = runs.clean.logits[0].float().softmax(-1)
    if metric.sequence:
        each = [float(chances[index, token]) for index, token in enumerate(metric.sequence)]
        return float(torch.tensor(each, dtype=torch.float64).prod())
    return float(chances[-1, list(metric.answers or (metric.answer,))].sum())


def _said(runs: Runs) -> tuple[str, str | None]:
    """What each run predicts; of draws of noise what most of them do, None where they disagree."""
    clean, others = runs.clean.logits[0, 0].argmax(-1), runs.counterfactual.logits[:, 0].argmax(-1)
    count = runs.pairs[0].counterfactual.draws if isinstance(runs.pairs[0].counterfactual, Noise) else 1
    values, counts = others[:count].unique(return_counts=True)
    common = int(values[counts.argmax()]) if 2 * int(counts.max()) > count else None
    spell = runs.model.spell
    return spell(int(clean)), None if common is None else spell(common)


# Mappings


def _doubts_of(question: QuestionControl) -> list[str]:
    nothing = [question.reasons[0]] if question.verdict == "none" else []
    return [*nothing, *(reason for reason in question.reasons if reason.startswith(SAME))]


def doubts_about(mapping: Mapping, question: QuestionControl | None, *, named: bool) -> tuple[str, ...]:
    """Why the modulation of a mapping is withheld; `named` if the user named this key."""
    doubts = [] if question is None else _doubts_of(question)
    controls = mapping.controls
    if abs(mapping.total) < CARRIES:
        doubts.append(f"a total of {mapping.total:z.2f} carries next to nothing (less than {CARRIES:g})")
    elif mapping.total * mapping.restore < 0:
        doubts.append(f"restore ({mapping.restore:.2f}) has the other sign")
    if mapping.total >= CARRIES and mapping.heads and not mapping.path:
        doubts.append("no head by itself moves the metric, though all together do")
    if controls is None or not mapping.path:
        return tuple(doubts)
    modulation = mapping.modulation(controls.share)
    joint = modulation * mapping.total
    if modulation > MOST_MODULATION:
        doubts.append(f"its carriers alone reach {modulation:.0%} of the total, which others take back")
    most, best = max(zip(controls.key_totals, range(len(controls.key_totals)), strict=True))
    if named and best != mapping.key and most > mapping.total:
        doubts.append(f"another key, {best}, carries more ({most:.2f})")
    if controls.random_draws and controls.random_p95 >= RANDOM * joint:
        chance = f"as many random heads reach {controls.random_p95:.2f} (95th percentile)"
        doubts.append(f"{chance} where the carriers reach {joint:.2f}")
    return tuple(doubts)


# Notes


def notes_on(runs: Runs, question: QuestionControl, mappings: Sequence[Mapping]) -> tuple[str, ...]:
    """One sentence for each reason to be careful with a pair and its mappings."""
    notes = [*question.reasons]
    pair = runs.pairs[0]
    if isinstance(pair.counterfactual, Noise):
        words = ", ".join(f"{pair.clean.words[p].strip()}({p})" for p in pair.counterfactual.positions)
        given = f"no counterfactual was given: noise on {words}, read by {pair.metric}"
        better = "a swap of that word for another of its kind, such as large=hot, asks a sharper question"
        notes.append(f"{given}; {better}")
    for mapping in mappings:
        own = [doubt for doubt in mapping.doubts if doubt not in notes]
        notes += [f"{mapping.key}→{mapping.query}: {doubt}" for doubt in own]
    if runs.path == "plain":
        slow = "measured on the plain path, through the model's own forward: as exact, slower"
        notes.append(f"{slow}, and without loadings")
    return tuple(notes)
