"""The pairs of a wiring, run: those that the search sees, and those held out.

A circuit of component edges holds at all positions together and serves pairs of any length. A circuit of wires
at places needs pairs of one length, or roles that name their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from circuits.engine import SMALLEST_GAP, SWAP, Ablation
from circuits.engine.kept import KeptRuns
from circuits.engine.runs import Runs
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Pair
from circuits.tracing.asked import Asked, names_of_positions
from circuits.tracing.batches import run_batches
from circuits.tracing.measure import finite
from circuits.tracing.parts import Roles
from circuits.wires.parts import WiredPair

PAIRS: Final = 16  # of a task, unless the user says otherwise
HELD_OUT: Final = 0.25  # of the pairs of a family
_FEW: Final = 4  # pairs of a family from which on some are held out


def split_off(
    asked: Sequence[Asked], held_out: float, seed: int
) -> tuple[list[Asked], list[Asked]]:
    """The questions that the search sees, and those held out: a seeded draw, in their order."""
    count = round(held_out * len(asked)) if len(asked) >= _FEW else 0
    left_out = set(Random(f"held out/{seed}").sample(range(len(asked)), count))
    seen = [each for number, each in enumerate(asked) if number not in left_out]
    unseen = [each for number, each in enumerate(asked) if number in left_out]
    return seen, unseen


@dataclass(frozen=True)
class SplitRuns:
    """The runs of the pairs that the search sees, and of those held out."""

    seen: KeptRuns
    unseen: KeptRuns | None
    roles: tuple[Roles, ...]  # of the pairs seen, then of those held out

    @classmethod
    def of(
        cls,
        model: Model,
        seen: Sequence[Asked],
        unseen: Sequence[Asked],
        *,
        at_places: bool,
        ablation: Ablation,
    ) -> SplitRuns:
        ablation = ablation.over([each.prompt for each in seen])
        own = kept_runs(model, seen, at_places=at_places, ablation=ablation)
        places = own.table.places
        other = None
        if unseen:
            other = kept_runs(
                model, unseen, at_places=at_places, first=places, ablation=ablation
            )
        return cls(own, other, tuple(each.roles for each in (*seen, *unseen)))

    @property
    def first(self) -> Runs:
        """The runs with the first pair in front."""
        return self.seen.batches[0].runs


def kept_runs(
    model: Model,
    asked: Sequence[Asked],
    *,
    at_places: bool,
    first: Sequence[str] = (),
    ablation: Ablation = SWAP,
) -> KeptRuns:
    """Run the questions; circuits on them have wires at places, or at all positions together."""
    alike = [(len(each), each.metric_kind, each.roles if at_places else None) for each in asked]
    questions = [each.question for each in asked]
    ran = run_batches(model, questions, alike, ablation=ablation, smallest_gap=SMALLEST_GAP)
    batches = [(batch.runs, list(batch.numbers)) for batch in ran]
    if not at_places:
        return KeptRuns.everywhere(batches)
    names = []
    for runs, numbers in batches:
        names.append(names_of_positions(asked[numbers[0]].roles, runs.length))
    lengths = {runs.length for runs, _ in batches}
    if len(lengths) > 1 and not all(each.roles for each in asked):
        raise PromptError(
            f"wires at positions need prompts of one length, or roles that name their positions; "
            f"these have {sorted(lengths)} tokens"
        )
    return KeptRuns.at_places(batches, names, first=first)


def wired_pairs(runs: SplitRuns, kept: Sequence[float]) -> tuple[WiredPair, ...]:
    """Every pair with what the circuit keeps on it: those seen, then those held out."""
    pairs: list[WiredPair] = []
    for part, held_out in ((runs.seen, False), (runs.unseen, True)):
        if part is None:
            continue
        by_number = _pairs_with_values(part)
        first = len(pairs)
        for number in sorted(by_number):
            pair, clean_value, other_value = by_number[number]
            wired = WiredPair(
                pair.clean,
                pair.counterfactual,
                pair.metric,
                clean_value,
                other_value,
                kept=finite(kept[first + number]),
                held_out=held_out,
                roles=runs.roles[first + number],
            )
            pairs.append(wired)
    return tuple(pairs)


def _pairs_with_values(runs: KeptRuns) -> dict[int, tuple[Pair, float, float]]:
    """Every pair by its number, with the metric on its clean prompt and on its counterfactual."""
    by_number = {}
    for batch in runs.batches:
        clean = batch.runs.values(batch.runs.clean).tolist()
        other = batch.runs.values(batch.runs.counterfactual).tolist()
        for at, number in enumerate(batch.pairs):
            by_number[number] = (batch.runs.pairs[at], clean[at], other[at])
    return by_number
