"""A saved wiring on a model again: another circuit of the same search, or the same circuit on other questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from circuits.components import Wire
from circuits.errors import PromptError
from circuits.prompts import Pair, QuestionSpec
from circuits.results import silent
from circuits.tracing.asked import Asked, to_family
from circuits.tracing.measure import finite
from circuits.tracing.rerun import model_of
from circuits.wires.measured import circuit_of, measure_circuit
from circuits.wires.pairs import PAIRS, SplitRuns, kept_runs
from circuits.wires.parts import WiredPair
from circuits.wires.record import Wiring


def measure_again(
    wiring: Wiring, wires: Sequence[Wire], *, model: Any = None, searched: bool = False
) -> Wiring:
    """The same pairs with another circuit: what it keeps, its values and its controls are measured anew.
    `searched` says that the circuit is one of the search."""
    runs = _runs_again(wiring, model)
    chosen = circuit_of(runs.seen.table, wires)
    parts = measure_circuit(runs, chosen, seed=wiring.seed, progress=silent)
    return replace(wiring, **vars(parts), overlap=None, against=None, searched=searched)


def _runs_again(wiring: Wiring, model: Any) -> SplitRuns:
    """The runs of a saved wiring's pairs."""
    loaded = model_of(wiring.source.name, wiring.source, model)
    asked = asked_again(wiring)
    split = len(wiring.seen)
    return SplitRuns.of(
        loaded,
        asked[:split],
        asked[split:],
        at_places=bool(wiring.places),
        ablation=wiring.ablation,
    )


def asked_again(wiring: Wiring) -> list[Asked]:
    """The questions of a saved wiring: those seen, then those held out."""
    if any(pair.metric.kind == "custom" for pair in wiring.pairs):
        raise PromptError(
            "a metric function is not in the wiring's record; call wiring with it again"
        )
    return [to_asked(pair) for pair in wiring.pairs]


def to_asked(pair: WiredPair) -> Asked:
    """The question of a pair."""
    return Asked(Pair(pair.prompt, pair.counterfactual, pair.metric), pair.roles)


def kept_on(
    wiring: Wiring, given: Any, *, model: Any = None, **question: Any
) -> tuple[float, ...]:
    """What the circuit keeps on other questions."""
    loaded = model_of(wiring.source.name, wiring.source, model)
    count = question.pop("count", PAIRS)
    roles = question.pop("roles", None)
    spec = QuestionSpec(**question)
    at_places = bool(wiring.places)
    if at_places and roles is None:
        roles = dict(wiring.pairs[0].roles)
    family = to_family(loaded, given, spec, roles=roles, count=count, seed=wiring.seed)
    ablation = wiring.ablation.over([pair.prompt for pair in wiring.seen])
    runs = kept_runs(
        loaded, family.asked, at_places=at_places, first=wiring.places, ablation=ablation
    )
    if at_places and runs.table.places != wiring.places:
        raise PromptError(
            "this circuit's wires stand at other positions than these prompts have; "
            "name roles, or search with positions=False"
        )
    chosen = circuit_of(runs.table, [each.wire for each in wiring.wires])
    return tuple(finite(share) for share in runs.kept(chosen[None])[0].tolist())
