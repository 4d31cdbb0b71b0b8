"""What a reader must know before the numbers: where the question, or its answer, is weaker than it looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from circuits.engine import Runs
from circuits.prompts import Noise
from circuits.tracing.records import Mapping

SMALL_GAP: Final = 0.05  # of the larger of the two values between which it lies
RANDOM: Final = 0.5  # of the carriers' joint effect that as many random heads must not reach


def notes_on(runs: Runs, mappings: Sequence[Mapping]) -> tuple[str, ...]:
    """One sentence for each reason to be careful with a pair and its mappings."""
    clean, other = (float(runs.values(side)[0]) for side in (runs.clean, runs.counterfactual))
    notes = [*_on_metric(runs, clean, other), *_on_noise(runs)]
    notes += [note for mapping in mappings for note in _on_carriers(mapping)]
    if runs.path == "plain":
        slow = "measured on the plain path, through the model's own forward: as exact, slower"
        notes.append(f"{slow}, and without loadings")
    return tuple(notes)


def _on_metric(runs: Runs, clean: float, other: float) -> list[str]:
    notes, metric, gap = [], runs.metric, clean - other
    if metric.kind == "logit_diff" and clean < 0:
        side = f"the clean run prefers the foil {metric.foil_text!r} to the answer {metric.answer_text!r}"
        notes.append(f"{side} ({metric} is {clean:.2f}); exchange them, or name what the model says")
    elif gap < 0:
        notes.append(
            f"the answer is likelier on the counterfactual (the gap is {gap:.2f}), so effects change sign"
        )
    if abs(gap) < SMALL_GAP * max(abs(clean), abs(other)):
        small = f"the gap of {gap:.2g} is small beside its two values ({clean:.2f} and {other:.2f})"
        notes.append(f"{small}, so effects are shares of almost nothing; swap a word that matters more")
    return notes


def _on_noise(runs: Runs) -> list[str]:
    pair = runs.pairs[0]
    if not isinstance(pair.counterfactual, Noise):
        return []
    words = ", ".join(f"{pair.clean.words[p].strip()}({p})" for p in pair.counterfactual.positions)
    given = f"no counterfactual was given: noise on {words}, read by {pair.metric}"
    return [
        f"{given}; a swap of that word for another of its kind, such as large=hot, asks a sharper question"
    ]


def _on_carriers(mapping: Mapping) -> list[str]:
    controls = mapping.controls
    if controls is None or not controls.random_draws:
        return []
    joint = mapping.modulation(controls.share) * mapping.total
    if controls.random_p95 < RANDOM * joint:
        return []
    who = f"{mapping.key}→{mapping.query}: as many random heads reach {controls.random_p95:.2f}"
    return [
        f"{who} (95th percentile) where the carriers reach {joint:.2f}, so which heads they are says little"
    ]
