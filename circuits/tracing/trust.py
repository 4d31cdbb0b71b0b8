"""How far to trust an answer: which pairs are left out of a mean, and which mappings are doubtful.

1. Pairs whose gap is too small to divide by would dominate a mean of effects, so they are left out of it.
2. The modulation of a mapping is withheld where a number that looks good would mislead.
3. A note is a sentence on either, or on how it was measured; notes are printed above the numbers.

The verdict on the question itself is that of `judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from circuits.engine import Runs
from circuits.prompts import Noise
from circuits.tracing.judge import is_small, part_at_key
from circuits.tracing.parts import (
    CARRIES,
    Ends,
    FamilyControl,
    Mapping,
    QuestionControl,
    share_of,
)

FAMILY_GAP: Final = 0.1  # of the median gap of a family
RANDOM: Final = 0.5  # of the carriers' joint effect that as many random heads must not reach
MOST_MODULATION: Final = 1.2


# Pairs


def weak_pairs(clean: Sequence[float], other: Sequence[float]) -> list[bool]:
    """For each pair of a family whether its gap is too small, compared with its own values or with the other
    gaps. Such a pair would dominate the mean of the effects, which are divided by the gap."""
    gaps = [abs(one - two) for one, two in zip(clean, other, strict=True)]
    smallest = FAMILY_GAP * median(gaps)
    values = zip(clean, other, gaps, strict=True)
    return [is_small(one, two) or gap < smallest for one, two, gap in values]


# Mappings


def doubts_about(
    mapping: Mapping, question: QuestionControl | FamilyControl | None, *, named: bool
) -> tuple[str, ...]:
    """Why the modulation of a mapping is withheld; `named` if the user named this key."""
    modulation = mapping.modulation(share_of(mapping)) if mapping.path else None
    withheld = () if question is None else question.withheld
    doubts = [*withheld, *doubts_of_sums(mapping.total, mapping.restore)]
    if mapping.heads:
        doubts += doubts_of_carriers(mapping.total, modulation)
    return (*doubts, *_doubts_of_controls(mapping, named))


def doubts_of_sums(total: float, restore: float) -> list[str]:
    """What speaks against a total and the total in the other direction."""
    if abs(total) < CARRIES:
        return [f"a total of {total:z.2f} carries next to nothing (less than {CARRIES:g})"]
    if total * restore < 0:
        return [f"restore ({restore:.2f}) has the other sign"]
    return []


def doubts_of_carriers(total: float, modulation: float | None) -> list[str]:
    """What speaks against the carriers; a modulation of None means that there are none."""
    if modulation is None:
        alone = "no head by itself moves the metric, though all together do"
        return [alone] if total >= CARRIES else []
    if modulation > MOST_MODULATION:
        return [
            f"its carriers alone reach {modulation:.0%} of the total, which others take back"
        ]
    return []


def _doubts_of_controls(mapping: Mapping, named: bool) -> list[str]:
    """What the controls of a mapping say against its modulation."""
    controls = mapping.controls
    if controls is None or not mapping.path:
        return []
    doubts = []
    largest = max(controls.key_totals)
    best_key = max(key for key, total in enumerate(controls.key_totals) if total == largest)
    if named and best_key != mapping.key and largest > mapping.total:
        doubts.append(f"another key, {best_key}, carries more ({largest:.2f})")
    joint = mapping.modulation(controls.share) * mapping.total
    if controls.random_draws and controls.random_p95 >= RANDOM * joint:
        pool = "" if controls.random_pool is None else f" of the {controls.random_pool} others"
        chance = f"as many random heads{pool} reach {controls.random_p95:.2f} (95th percentile)"
        doubts.append(f"{chance} where the carriers reach {joint:.2f}")
    return doubts


# Notes


def notes_on(
    runs: Runs,
    question: QuestionControl | FamilyControl,
    mappings: Sequence[Mapping] = (),
    *,
    ends: Ends | None = None,
) -> tuple[str, ...]:
    """One sentence for each reason to be careful with a question and its mappings; `ends` are the key and
    query that were asked about."""
    notes = list(question.reasons)
    if isinstance(question, FamilyControl):
        notes += question.notes
    at_key = part_at_key(runs, 0, ends, question.at_key, question.elsewhere)
    if at_key and not any(at_key in note for note in notes):
        notes.append(at_key)
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
