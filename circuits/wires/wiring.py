"""`wiring`: the smallest circuit of components that was found to keep a behaviour.

1. The questions are run clean and counterfactual. Of a family, some are held out.
2. `search` finds circuits of every size: all other wires are swapped to the counterfactual in one run, and
   what is left of the gap is kept. The smallest that keeps `share` is the answer.
3. Each of its wires is left out in an exact run (its value in the circuit), and swapped alone in the whole
   model (its effect).
4. Controls: the pairs that were held out; circuits of as many random wires; all other wires without the
   circuit; circuits of resampled pairs; and the verdict on the question itself.

A family or a task has wires that hold at all positions together (component edges, as EAP, ACDC and MIB count
them), one prompt has wires at its positions. `positions` says otherwise: with roles, prompts of different
lengths have wires at roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any, Final

import torch

from circuits.components import Component, Head, Wire
from circuits.engine import SWAP, Ablation, Direction, to_ablation
from circuits.engine.kept import KeptRuns
from circuits.engine.runs import Runs
from circuits.engine.wire_table import Chosen, WireTable
from circuits.engine.wires import wire_effects
from circuits.errors import PromptError, names_its_keywords
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    Pair,
    ProbeMetric,
    QuestionSpec,
    Swap,
)
from circuits.results import Progress, silent
from circuits.tracing.asked import Asked, Roles, names_of_positions, prepared, to_family
from circuits.tracing.judge import judge_each, together
from circuits.tracing.measure import finite, measured_model
from circuits.tracing.parts import SHARE, QuestionControl, check_share
from circuits.tracing.rerun import model_of
from circuits.tracing.trace import output_of, package_versions
from circuits.tracing.trust import notes_on
from circuits.wires.record import (
    CurvePoint,
    Member,
    Overlap,
    RandomCircuits,
    WiredPair,
    WireValue,
    Wiring,
)
from circuits.wires.search import AIMS, Aim, Found, Stage, search

# What can stand in the place of wires that are not kept.
ABLATIONS: Final[tuple[Direction, ...]] = ("swap", "zero", "mean", "noise")
PAIRS: Final = 16  # of a task, unless the user says otherwise
HELD_OUT: Final = 0.25  # of the pairs of a family
DRAWS: Final = 10  # random circuits
MOST_MEMBERS: Final = 1000  # wires of the largest circuit that `at` can find
_FEW: Final = 4  # pairs of a family from which on some are held out
_RESAMPLED_FROM: Final = 8  # resamples search among so many times the wires of the circuit


@names_its_keywords
def wiring(
    model: Any,
    text: Any,
    *,
    swap: Swap | None = None,
    counterfactual: str | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    share: float = SHARE,
    aim: Aim = "faithful",
    positions: bool | None = None,
    roles: Mapping[str, int | str] | None = None,
    without: Sequence[str | Head] = (),
    resamples: int = 0,
    held_out: float = HELD_OUT,
    count: int = PAIRS,
    ablation: Direction = "swap",
    reference: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Wiring:
    """The smallest circuit of heads, MLPs and embeddings that keeps `share` of what the model does.

    `text` is a prompt, a list of prompts, of (prompt, counterfactual), of pairs or of dicts, a pandas table,
    or a task by its name or jsonl file, of which `count` pairs are taken. `aim` is "faithful" (behave as the
    whole model does: too much is as wrong as too little) or "performance" (keep the metric, however high).
    `positions` tells positions apart (default: for one prompt); `roles` names some of them:
    `{"S2": 9, "END": -1}`. `without` swaps heads away first, which finds those that then step in.
    `resamples` searches again on as many bootstrap resamples of the pairs. `held_out` is the share of a
    family's pairs that the search does not see. `ablation` is what stands in the place of the other wires:
    "swap" (the counterfactual's writes), "zero", "mean" (over the texts of `reference`, or over the pairs that
    the search sees) or "noise".

        >>> wires = circuits.wiring(model, "opposites", count=4)
        >>> wires.kept >= 0.8, len(wires.wires) < 200
        (True, True)
    """
    check_share(share)
    _check(aim, held_out, resamples)
    model = as_model(model)
    chosen = to_ablation(model, ablation, reference, allowed=ABLATIONS, of="a search of wires")
    spec = QuestionSpec(
        counterfactual, swap, answer=answer, foil=foil, metric=metric, seed=seed
    )
    family = to_family(
        model, text, spec, roles=roles, count=count, seed=seed, progress=progress
    )
    seen, unseen = _split(family.asked, held_out, seed)
    return search_family(
        model,
        seen,
        unseen,
        task=family.name,
        at_places=not family.several if positions is None else positions,
        share=share,
        aim=aim,
        without=without,
        resamples=resamples,
        ablation=chosen,
        seed=seed,
        progress=progress,
    )


def search_family(
    model: Model,
    seen: Sequence[Asked],
    unseen: Sequence[Asked],
    *,
    task: str,
    at_places: bool,
    share: float,
    aim: Aim,
    without: Sequence[str | Head],
    resamples: int,
    seed: int,
    progress: Progress,
    ablation: Ablation = SWAP,
) -> Wiring:
    """Search on some questions, and measure what was found on those and on others."""
    circuits = _Circuits.of(model, seen, unseen, at_places=at_places, ablation=ablation)
    heads = _named_heads(circuits.seen.table, without)
    start = _start(circuits.seen.table, heads)
    found = search(circuits.seen, aim=aim, start=start, progress=progress)
    result = _measured(circuits, found, share, heads, seed=seed, progress=progress)
    overlap = _overlap(circuits, found, aim, share, resamples, seed, progress)
    newcomers = _newcomers(circuits, found, heads, aim, share, progress)
    wires = [replace(each, new=each.wire in newcomers) for each in result.wires]
    return replace(
        result,
        task=task,
        aim=aim,
        overlap=overlap,
        wires=tuple(wires),
        passes=found.passes,
        versions=package_versions(),
        ablation=ablation,
    )


def _check(aim: str, held_out: float, resamples: int) -> None:
    if aim not in AIMS:
        raise PromptError(f"no aim {aim!r}; there are {' and '.join(AIMS)}")
    if not 0 <= held_out < 1:
        raise PromptError(
            f"held_out is a share of the pairs, at least 0 and below 1: {held_out}"
        )
    if resamples < 0:
        raise PromptError(f"resamples counts searches, 0 or more, not {resamples}")


def _split(
    asked: Sequence[Asked], held_out: float, seed: int
) -> tuple[list[Asked], list[Asked]]:
    """The questions that the search sees, and those held out: a seeded draw, in their order."""
    count = round(held_out * len(asked)) if len(asked) >= _FEW else 0
    hidden = set(Random(f"held out/{seed}").sample(range(len(asked)), count))
    seen = [each for number, each in enumerate(asked) if number not in hidden]
    unseen = [each for number, each in enumerate(asked) if number in hidden]
    return seen, unseen


# The pairs


@dataclass(frozen=True)
class _Circuits:
    """The pairs of a wiring: those that the search sees, and those held out."""

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
    ) -> _Circuits:
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
    batches = prepared(model, asked, by_roles=at_places, ablation=ablation)
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


def _pairs_of(circuits: _Circuits, kept: Sequence[float]) -> tuple[WiredPair, ...]:
    """Every pair with what the circuit keeps on it: those seen, then those held out."""
    pairs: list[WiredPair] = []
    for part, held_out in ((circuits.seen, False), (circuits.unseen, True)):
        if part is None:
            continue
        by_number: dict[int, tuple[Pair, float, float]] = {}
        for batch in part.batches:
            clean = batch.runs.values(batch.runs.clean).tolist()
            other = batch.runs.values(batch.runs.counterfactual).tolist()
            for number, *values in zip(
                batch.pairs, batch.runs.pairs, clean, other, strict=True
            ):
                by_number[number] = tuple(values)  # type: ignore[assignment]
        first = len(pairs)
        for number in sorted(by_number):
            pair, clean_value, other_value = by_number[number]
            pairs.append(
                WiredPair(
                    pair.clean,
                    pair.counterfactual,
                    pair.metric,
                    clean_value,
                    other_value,
                    kept=finite(kept[first + number]),
                    held_out=held_out,
                    roles=circuits.roles[first + number],
                )
            )
    return tuple(pairs)


# The search


def _start(table: WireTable, without: Sequence[Head]) -> Chosen:
    """All wires but those out of heads that are swapped away."""
    start = torch.ones(len(table), dtype=torch.bool)
    gone = {table.edges.writers.index(Component.of(head)) for head in without}
    writer = table.ends[1]
    for number in gone:
        start &= writer != number
    return start


def _named_heads(table: WireTable, names: Sequence[str | Head]) -> tuple[Head, ...]:
    heads = tuple(Head.parse(name) for name in names)
    for head in heads:
        if Component.of(head) not in table.edges.writers:
            last = Head(table.edges.layers - 1, table.edges.heads - 1)
            raise PromptError(f"no head {head} in this model, which has L0H0…{last}")
    return heads


def _chosen(found: Found, share: float) -> Stage:
    """The smallest circuit that keeps a share of what all its wires keep; else the one that keeps most."""
    reachable = float(found.stages[0].kept.mean())
    stage = found.smallest(share * reachable)
    if stage is not None:
        return stage
    return max(found.stages, key=lambda each: float(each.kept.mean()))


def _newcomers(
    circuits: _Circuits,
    found: Found,
    without: Sequence[Head],
    aim: Aim,
    share: float,
    progress: Progress,
) -> set[Wire]:
    """Wires at heads that the circuit has only because others were swapped away."""
    if not without:
        return set()
    table = circuits.seen.table
    whole = _chosen(search(circuits.seen, aim=aim, progress=progress), share)
    before = set()
    for wire in named_wires(table, whole.wires):
        before |= {wire.writer, wire.reader.component}
    new = set()
    for wire in named_wires(table, _chosen(found, share).wires):
        ends = (wire.writer, wire.reader.component)
        if any(end is not None and end.kind == "head" and end not in before for end in ends):
            new.add(wire)
    return new


def _overlap(
    circuits: _Circuits,
    found: Found,
    aim: Aim,
    share: float,
    resamples: int,
    seed: int,
    progress: Progress,
) -> Overlap | None:
    """Search again on resampled pairs, among the wires of a larger circuit of the first search."""
    if not resamples:
        return None
    circuit = _chosen(found, share).wires
    larger = found.of_size(_RESAMPLED_FROM * int(circuit.sum()))
    start = circuit if larger is None else larger.wires
    shared = circuit.clone()
    similarities = []
    for number in range(resamples):
        draw = Random(f"resample/{seed}/{number}")
        numbers = [draw.randrange(circuits.seen.pairs) for _ in range(circuits.seen.pairs)]
        again = search(circuits.seen.of_pairs(numbers), aim=aim, start=start)
        other = _chosen(again, share).wires
        similarities.append(int((circuit & other).sum()) / int((circuit | other).sum()))
        shared &= other
        progress("resamples", number + 1, resamples)
    core = named_wires(circuits.seen.table, shared)
    return Overlap(resamples, fmean(similarities), tuple(core))


# What is measured of the circuit


def _measured(
    circuits: _Circuits,
    found: Found,
    share: float,
    without: tuple[Head, ...],
    *,
    seed: int,
    progress: Progress,
) -> Wiring:
    stage = _chosen(found, share)
    curve = tuple(_point(each) for each in found.stages)
    runs = circuits.first
    judged: list[QuestionControl] = []
    for batch in circuits.seen.batches:
        judged += judge_each(batch.runs)
    question = together(judged)
    parts = _measure_circuit(circuits, stage.wires, seed=seed, progress=progress)
    return Wiring(
        source=measured_model(runs.only([0])),
        task="",
        output=output_of(runs.only([0])),
        aim="faithful",
        share=share,
        places=() if circuits.seen.table.everywhere else circuits.seen.table.places,
        curve=curve,
        members=_members(circuits.seen.table, found),
        all_wires=len(found.stages[0]),
        overlap=None,
        without_heads=without,
        reachable=finite(curve[0].kept) if without else 1.0,
        question=question,
        passes=0,
        seed=seed,
        versions=(),
        notes=notes_on(runs.only([0]), question),
        **parts,
    )


def _measure_circuit(
    circuits: _Circuits, chosen: Chosen, *, seed: int, progress: Progress
) -> dict[str, Any]:
    """What depends on the circuit alone: kept on every pair, values and effects of its wires, controls."""
    seen = circuits.seen
    kept = seen.kept(chosen[None])[0].tolist()
    if circuits.unseen is not None:
        unseen = circuits.unseen
        same = numbers_of(unseen.table, named_wires(seen.table, chosen))
        kept += unseen.kept(same[None])[0].tolist()
    complement = _start(seen.table, ()) & ~chosen
    left = float(seen.kept(complement[None]).mean())
    return {
        "pairs": _pairs_of(circuits, kept),
        "wires": _values(seen, chosen, progress),
        "complement": finite(left),
        "random": _random(seen, chosen, seed, progress),
    }


def _point(stage: Stage) -> CurvePoint:
    kept = stage.kept
    distance = (1 - kept).abs().mean()
    return CurvePoint(
        len(stage),
        finite(float(kept.mean())),
        finite(float(kept.min())),
        finite(float(distance)),
    )


def _members(table: WireTable, found: Found) -> tuple[Member, ...]:
    """The wires of the smaller circuits, each with the size of the smallest that has it, that one first."""
    stages = [stage for stage in found.stages if len(stage) <= MOST_MEMBERS]
    members: list[Member] = []
    known = torch.zeros(len(table), dtype=torch.bool)
    for stage in reversed(stages):
        for wire in named_wires(table, stage.wires & ~known):
            members.append(Member(wire, len(stage)))
        known |= stage.wires
    return tuple(members)


def _values(seen: KeptRuns, chosen: Chosen, progress: Progress) -> tuple[WireValue, ...]:
    """The value of each wire in the circuit and its effect alone, the most valuable first."""
    numbers = chosen.nonzero().flatten()
    left_out = chosen.repeat(len(numbers), 1)
    left_out[torch.arange(len(numbers)), numbers] = False
    circuits = torch.cat((chosen[None], left_out))

    def report(done: int, total: int) -> None:
        progress("values", done, total)

    kept = seen.kept(circuits, progress=report).mean(1)
    values = (kept[0] - kept[1:]).tolist()
    wires = named_wires(seen.table, chosen)
    effects = _effects_alone(seen, wires)
    listed = []
    for wire, value, effect in zip(wires, values, effects, strict=True):
        listed.append(WireValue(wire, finite(value), finite(effect)))
    return tuple(sorted(listed, key=lambda each: (-each.value, str(each.wire))))


def _effects_alone(seen: KeptRuns, wires: Sequence[Wire]) -> list[float]:
    """The effect of swapping each wire alone in the whole model, mean over the pairs."""
    effects = torch.zeros(len(wires), seen.pairs, dtype=torch.float64)
    for batch in seen.batches:
        position_of = {place: at for at, place in enumerate(batch.place_of.tolist())}
        here, standing = [], []
        for number, wire in enumerate(wires):
            if wire.position is None:
                here.append(number)
                standing.append(wire)
            elif wire.position in position_of and _is_read(wire, position_of, batch.runs):
                here.append(number)
                standing.append(replace(wire, position=position_of[wire.position]))
        measured, _ = wire_effects(batch.runs, standing)
        effects[torch.tensor(here)[:, None], torch.tensor(batch.pairs)] = measured
    return effects.mean(1).tolist()


def _is_read(wire: Wire, position_of: Mapping[int, int], runs: Runs) -> bool:
    """Whether the metric reads where a wire into the logits stands."""
    if wire.reader.kind != "logits" or wire.position is None:
        return True
    return position_of[wire.position] >= runs.length - runs.metric.positions_read


def named_wires(table: WireTable, chosen: Chosen) -> list[Wire]:
    """The wires of a circuit; the position of a wire is the number of its place."""
    wires = []
    for number in chosen.nonzero().flatten().tolist():
        edge, place = divmod(number, len(table.places))
        wire = table.edges.wires[edge]
        wires.append(wire if table.everywhere else replace(wire, position=place))
    return wires


def numbers_of(table: WireTable, wires: Sequence[Wire]) -> Chosen:
    """The circuit of these wires."""
    chosen = torch.zeros(len(table), dtype=torch.bool)
    for wire in wires:
        edge = table.edges.number_of[replace(wire, position=None)]
        chosen[edge * len(table.places) + (wire.position or 0)] = True
    return chosen


# Random circuits


def _random(seen: KeptRuns, chosen: Chosen, seed: int, progress: Progress) -> RandomCircuits:
    """What circuits of as many random wires keep."""
    count = int(chosen.sum())
    draws = [
        random_circuit(seen.table, count, besides=chosen, seed=f"{seed} {number}")
        for number in range(DRAWS)
    ]

    def report(done: int, total: int) -> None:
        progress("random circuits", done, total)

    kept = seen.kept(torch.stack(draws), progress=report).mean(1)
    return RandomCircuits(finite(float(kept.mean())), finite(float(kept.max())), DRAWS)


def random_circuit(table: WireTable, count: int, *, besides: Chosen, seed: str) -> Chosen:
    """About so many random wires that are not in another circuit: random ways from the logits down to the
    embedding, until there are enough."""
    draw = Random(seed)
    chosen = torch.zeros(len(table), dtype=torch.bool)
    places = len(table.places)
    for _ in range(8 * count):
        way = _random_way(table, draw, places - 1)
        if way is None or any(bool(besides[number]) for number in way):
            continue
        chosen[way] = True
        if int(chosen.sum()) >= count:
            break
    return chosen


def _random_way(table: WireTable, draw: Random, place: int) -> list[int] | None:
    """The numbers of the wires on one random way from the logits, at a place, to the embedding."""
    edges = table.edges
    row = len(edges.readers) - 1
    way = []
    while True:
        writers = edges.exists[row].nonzero().flatten().tolist()
        writer = edges.writers[draw.choice(writers)]
        edge = edges.number_of[Wire(writer, edges.readers[row])]
        way.append(edge * len(table.places) + place)
        if writer.kind == "embed":
            return way
        row = draw.choice(list(edges.rows_of(writer)))
        if edges.readers[row].kind in ("key", "value"):
            place = draw.choice(table.readable[place].nonzero().flatten().tolist())


# Measuring again


def measure_again(
    wiring: Wiring, wires: Sequence[Wire], *, model: Any = None, searched: bool = False
) -> Wiring:
    """The same pairs with another circuit: what it keeps, its values and its controls are measured anew.
    `searched` says that the circuit is one of the search."""
    circuits = _again(wiring, model)
    chosen = numbers_of(circuits.seen.table, wires)
    parts = _measure_circuit(circuits, chosen, seed=wiring.seed, progress=silent)
    return replace(wiring, **parts, overlap=None, searched=searched)


def _again(wiring: Wiring, model: Any) -> _Circuits:
    """The runs of a saved wiring's pairs."""
    loaded = model_of(wiring.source.name, wiring.source, model)
    asked = asked_again(wiring)
    split = len(wiring.seen)
    return _Circuits.of(
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
    asked = []
    for pair in wiring.pairs:
        asked.append(Asked(Pair(pair.prompt, pair.counterfactual, pair.metric), pair.roles))
    return asked


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
    chosen = numbers_of(runs.table, [each.wire for each in wiring.wires])
    return tuple(finite(share) for share in runs.kept(chosen[None])[0].tolist())
