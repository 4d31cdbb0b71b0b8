"""`wiring`: the smallest circuit of components that was found to keep a behaviour.

1. The questions are run clean and counterfactual. Of a family, some are held out (`pairs`).
2. `search` finds circuits of every size: all other wires are swapped to the counterfactual in one run, and
   what is left of the gap is kept. The smallest that keeps `share` is the answer.
3. Each of its wires is left out in an exact run (its value in the circuit), and swapped alone in the whole
   model (its effect) (`measured`).
4. Controls: the pairs that were held out; circuits of as many random wires (`random_circuits`); all other wires
   without the circuit; circuits of resampled pairs; the circuit of another behaviour; and the verdict on the
   question itself.

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
from circuits.engine.wire_table import Chosen, WireTable
from circuits.errors import (
    PromptError,
    as_listed,
    check_whole,
    is_number,
    names_its_keywords,
    shortened,
)
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Answer, MetricFunction, MetricKind, ProbeMetric, QuestionSpec, Swap
from circuits.results import Progress, silent
from circuits.tracing.asked import Asked, Family, to_family
from circuits.tracing.judge import judge_each, together
from circuits.tracing.measure import finite, measured_model
from circuits.tracing.parts import SHARE, FamilyControl, QuestionControl, check_share
from circuits.tracing.trace import output_of, package_versions
from circuits.tracing.trust import notes_on
from circuits.wires.measured import measure_circuit, named_wires
from circuits.wires.pairs import HELD_OUT, PAIRS, SplitRuns, split_off, wired_pairs
from circuits.wires.parts import CurvePoint, Member, OtherCircuit, Overlap
from circuits.wires.record import Wiring
from circuits.wires.search import AIMS, Aim, SearchResult, Stage, search

# What can stand in the place of wires that are not kept.
ABLATIONS: Final[tuple[Direction, ...]] = ("swap", "zero", "mean", "noise")
MOST_MEMBERS: Final = 1000  # wires of the largest circuit that `at` can find
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
    against: Any = None,
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
    the search sees) or "noise". `against` is another behaviour, given as `text` is: a control is how much the
    circuit of as many component edges keeps here that the same search finds for it.

        >>> wires = circuits.wiring(model, "opposites", count=4)
        >>> wires.kept >= 0.8, len(wires.wires) < 200
        (True, True)
    """
    check_share(share)
    check_whole("count", count, least=1)
    _check(aim, held_out, resamples)
    model = as_model(model)
    chosen = to_ablation(model, ablation, reference, allowed=ABLATIONS, of="a search of wires")
    spec = QuestionSpec(
        counterfactual, swap, answer=answer, foil=foil, metric=metric, seed=seed
    )
    family = to_family(
        model, text, spec, roles=roles, count=count, seed=seed, progress=progress
    )
    at_places = not family.several if positions is None else positions
    if at_places and against is not None:
        raise PromptError(
            "the circuit of another behaviour is a control for component edges; wires at positions have "
            "none: leave out `against`, or take positions=False"
        )
    seen, unseen = split_off(family.asked, held_out, seed)
    other = None
    if against is not None:
        other = to_family(model, against, QuestionSpec(seed=seed), count=len(seen), seed=seed)
    asking = Asking(
        task=family.name,
        at_places=at_places,
        share=share,
        aim=aim,
        without=tuple(Head.parse(name) for name in as_listed(without)),
        resamples=resamples,
        against=other,
        ablation=chosen,
        seed=seed,
    )
    return search_family(model, seen, unseen, asking, progress=progress)


def _check(aim: Any, held_out: Any, resamples: Any) -> None:
    if not isinstance(aim, str) or aim not in AIMS:
        raise PromptError(f"no aim {shortened(aim)}; there are {' and '.join(AIMS)}")
    if not is_number(held_out) or not 0 <= held_out < 1:
        share = "held_out is a share of the pairs, at least 0 and below 1"
        raise PromptError(f"{share}: {shortened(held_out)}")
    check_whole("resamples", resamples)
    if resamples < 0:
        raise PromptError(f"resamples counts searches, 0 or more, not {resamples}")


@dataclass(frozen=True)
class Asking:
    """What is asked of a family of questions, whichever questions these are."""

    task: str  # its name; empty where the user gave prompts
    at_places: bool
    share: float
    aim: Aim
    without: tuple[Head, ...] = ()
    resamples: int = 0
    against: Family | None = None  # the questions of another behaviour
    ablation: Ablation = SWAP
    seed: int = 0


def search_family(
    model: Model,
    seen: Sequence[Asked],
    unseen: Sequence[Asked],
    asking: Asking,
    *,
    progress: Progress = silent,
) -> Wiring:
    """Search on some questions, and measure what was found on those and on others."""
    runs = SplitRuns.of(
        model, seen, unseen, at_places=asking.at_places, ablation=asking.ablation
    )
    table = runs.seen.table
    start = _all_but(table, asking.without)
    found = search(runs.seen, aim=asking.aim, start=start, progress=progress)
    reachable = float(found.stages[0].kept.mean())
    found = found.refined(runs.seen, asking.share * reachable)
    stage = _smallest(found, asking.share)
    measures = measure_circuit(runs, stage.wires, seed=asking.seed, progress=progress)
    newcomers = _newcomers(runs.seen, stage, asking, progress)
    wires = [replace(each, new=each.wire in newcomers) for each in measures.wires]
    question = _judged(runs.seen)
    first = runs.first.only([0])
    return Wiring(
        source=measured_model(first),
        task=asking.task,
        pairs=measures.pairs,
        output=output_of(first),
        aim=asking.aim,
        share=asking.share,
        places=() if table.everywhere else table.places,
        wires=tuple(wires),
        curve=tuple(_point(each) for each in found.stages),
        members=_members(table, found),
        all_wires=len(found.stages[0]),
        complement=measures.complement,
        random=measures.random,
        overlap=_overlap(runs.seen, found, asking, progress),
        without_heads=asking.without,
        reachable=finite(reachable) if asking.without else 1.0,
        question=question,
        passes=found.passes,
        seed=asking.seed,
        versions=package_versions(),
        notes=notes_on(first, question),
        ablation=asking.ablation,
        against=_other_circuit(model, runs.seen, stage, asking, progress),
    )


def _judged(seen: KeptRuns) -> FamilyControl:
    """Whether the questions are clear, weak or none."""
    judged: list[QuestionControl] = []
    for batch in seen.batches:
        judged += judge_each(batch.runs)
    return together(judged)


# Where the search starts, and which of its circuits is the answer


def _all_but(table: WireTable, heads: Sequence[Head]) -> Chosen:
    """All wires but those out of some heads, which are swapped away."""
    writers = table.edges.writers
    chosen = torch.ones(len(table), dtype=torch.bool)
    for head in heads:
        if Component.of(head) not in writers:
            last = Head(table.edges.layers - 1, table.edges.heads - 1)
            raise PromptError(f"no head {head} in this model, which has L0H0…{last}")
        chosen &= table.ends.writer != writers.index(Component.of(head))
    return chosen


def _smallest(found: SearchResult, share: float) -> Stage:
    """The smallest circuit that keeps a share of what all its wires keep; else the one that keeps most."""
    reachable = float(found.stages[0].kept.mean())
    stage = found.smallest(share * reachable)
    if stage is not None:
        return stage
    return max(found.stages, key=lambda each: float(each.kept.mean()))


def _point(stage: Stage) -> CurvePoint:
    kept = stage.kept
    distance = (1 - kept).abs().mean()
    return CurvePoint(
        len(stage),
        finite(float(kept.mean())),
        finite(float(kept.min())),
        finite(float(distance)),
    )


def _members(table: WireTable, found: SearchResult) -> tuple[Member, ...]:
    """The wires of the smaller circuits, each with the size of the smallest that has it, that one first."""
    stages = [stage for stage in found.stages if len(stage) <= MOST_MEMBERS]
    members: list[Member] = []
    known = torch.zeros(len(table), dtype=torch.bool)
    for stage in reversed(stages):
        for wire in named_wires(table, stage.wires & ~known):
            members.append(Member(wire, len(stage)))
        known |= stage.wires
    return tuple(members)


# Further searches


def _newcomers(seen: KeptRuns, stage: Stage, asking: Asking, progress: Progress) -> set[Wire]:
    """Wires at heads that the circuit has only because others were swapped away."""
    if not asking.without:
        return set()
    found = search(seen, aim=asking.aim, progress=progress)
    usual: set[Component] = set()
    for wire in named_wires(seen.table, _smallest(found, asking.share).wires):
        usual |= _heads_of(wire)
    wires = named_wires(seen.table, stage.wires)
    return {wire for wire in wires if _heads_of(wire) - usual}


def _heads_of(wire: Wire) -> set[Component]:
    """The heads at which a wire begins or ends."""
    ends = (wire.writer, wire.reader.component)
    return {end for end in ends if end is not None and end.kind == "head"}


def _overlap(
    seen: KeptRuns, found: SearchResult, asking: Asking, progress: Progress
) -> Overlap | None:
    """Search again on resampled pairs, among the wires of a larger circuit of the first search."""
    if not asking.resamples:
        return None
    circuit = _smallest(found, asking.share).wires
    larger = found.of_size(_RESAMPLED_FROM * int(circuit.sum()))
    start = circuit if larger is None else larger.wires
    shared = circuit.clone()  # by all circuits so far
    similarities = []
    for number in range(asking.resamples):
        draw = Random(f"resample/{asking.seed}/{number}")
        numbers = [draw.randrange(seen.pairs) for _ in range(seen.pairs)]
        again = search(seen.of_pairs(numbers), aim=asking.aim, start=start)
        other = _smallest(again, asking.share).wires
        in_both = int((circuit & other).sum())
        in_any = int((circuit | other).sum())
        similarities.append(in_both / in_any)
        shared &= other
        progress("resamples", number + 1, asking.resamples)
    core = named_wires(seen.table, shared)
    return Overlap(asking.resamples, fmean(similarities), tuple(core))


def _other_circuit(
    model: Model, seen: KeptRuns, stage: Stage, asking: Asking, progress: Progress
) -> OtherCircuit | None:
    """What the circuit of another behaviour keeps of this one, at the size of this one's circuit."""
    other = asking.against
    if other is None:
        return None
    runs = SplitRuns.of(model, other.asked, (), at_places=False, ablation=asking.ablation)
    found = search(runs.seen, aim=asking.aim, progress=progress)
    circuit = found.of_size(len(stage)) or found.stages[-1]
    return OtherCircuit(
        other.name,
        wired_pairs(runs, circuit.kept.tolist()),
        wires=len(circuit),
        kept=finite(float(seen.kept(circuit.wires[None]).mean())),
        shared=int((circuit.wires & stage.wires).sum()),
    )
