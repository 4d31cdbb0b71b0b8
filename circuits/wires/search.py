"""The search for small circuits: which wires can go while the behaviour stays.

1. It starts with every wire that lies on a path from the embedding to the logits.
2. Each round asks what every wire is worth inside the present circuit: the gradient of what is kept, with
   respect to the wire's presence, averaged over the circuit at full and at reduced strength. (At full
   strength alone, wires that back each other up look worthless.)
3. Several rules read these values and each proposes wires to drop. No single rule serves everywhere: dropping
   what works against the answer first gives the smallest circuits and ruins large ones. So every proposal is
   run, and the one that the aim likes best is taken.
4. If even the best proposal loses far more than the values promised, the step is halved and tried again.
5. Small circuits lose one wire a round. There the wires that seem to matter least are left out one at a time
   in exact runs, and these compete with the rules.
6. Larger circuits lose many wires a round. Around the share that is wanted, the wires of that round leave one by
   one, so that every size there is tried (`SearchResult.refined`).

Wires that no longer lie on a path from the embedding to the logits leave with the others. Every circuit that
the search returns was run; each contains the next smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

import torch
from jaxtyping import Float

from circuits.components import ROUNDING
from circuits.engine.kept import KeptRuns
from circuits.engine.wire_table import Chosen
from circuits.results import Progress, silent

Aim = Literal["faithful", "performance"]
AIMS: Final[tuple[Aim, ...]] = ("faithful", "performance")
Values = Float[torch.Tensor, "wire pair"]
KeptShares = Float[torch.Tensor, " pair"]

SCALES: Final = (0.6, 0.8, 1.0)  # strengths of the circuit at which gradients are taken
LARGE: Final = 600  # wires above which a round drops a quarter
SMALL: Final = 60  # wires below which a round drops one
_LARGE_STEP: Final = 0.25
_STEP: Final = 0.06
_CANDIDATES: Final = 12  # wires that are left out one at a time
_BROKEN_PROMISE: Final = 0.05  # of the gap, by which a step may lose more than its values say
_SMALLEST: Final = 1
_SAME_VALUE: Final = 1e-6  # of the gap: values that differ by less count as equal
_PASSES_A_GRADIENT: Final = 3  # one forward, and one backward, which counts as two


@dataclass(frozen=True)
class Stage:
    """A circuit that the search passed, and what it keeps of the gap on every pair."""

    wires: Chosen
    kept: KeptShares
    # The value of each wire inside this circuit, mean over the pairs; None of the smallest circuit.
    values: Float[torch.Tensor, " wire"] | None = None

    def __len__(self) -> int:
        return int(self.wires.sum())


@dataclass(frozen=True)
class SearchResult:
    """All circuits of one search, the largest first."""

    stages: tuple[Stage, ...]
    passes: int  # forward passes; a backward pass counts as two

    def smallest(self, share: float) -> Stage | None:
        """The smallest circuit that keeps a share, in the mean over the pairs."""
        enough = [stage for stage in self.stages if float(stage.kept.mean()) >= share]
        return enough[-1] if enough else None

    def refined(self, runs: KeptRuns, share: float) -> SearchResult:
        """The same search, with circuits of every size between the smallest that keeps a share and the next."""
        enough = self.smallest(share)
        if enough is None or enough is self.stages[-1]:
            return self
        following = 1 + next(n for n, stage in enumerate(self.stages) if stage is enough)
        between = _between(runs, enough, self.stages[following])
        stages = (*self.stages[:following], *between, *self.stages[following:])
        return SearchResult(stages, self.passes + len(between))

    def of_size(self, wires: int) -> Stage | None:
        """The largest circuit of at most so many wires."""
        fitting = [stage for stage in self.stages if len(stage) <= wires]
        return fitting[0] if fitting else None

    def order(self) -> list[int]:
        """All wires by number, those that the search kept longest first. Wires that left in one round stand
        by the size of their values in the circuit that they left; those that no circuit had come last."""
        order = self.stages[-1].wires.nonzero().flatten().tolist()
        for larger, smaller in reversed(list(pairwise(self.stages))):
            left = (larger.wires & ~smaller.wires).nonzero().flatten()
            assert larger.values is not None
            by_value = larger.values[left].abs().argsort(descending=True, stable=True)
            order += left[by_value].tolist()
        never = (~self.stages[0].wires).nonzero().flatten()
        return order + never.tolist()


def search(
    runs: KeptRuns,
    *,
    aim: Aim = "faithful",
    start: Chosen | None = None,
    progress: Progress = silent,
) -> SearchResult:
    """Search circuits of every size, from `start` (all wires) down to one wire."""
    if start is None:
        start = torch.ones(len(runs.table), dtype=torch.bool)
    chosen = runs.table.alive(start)
    stage = Stage(chosen, runs.kept(chosen[None])[0])
    stages = [stage]
    passes = 1
    total = len(stage)
    while len(stage) > _SMALLEST:
        values = runs.values(stage.wires, scales=SCALES)
        stages[-1] = replace(stage, values=values.mean(1))
        step = _Round(runs, stage, values, aim)
        following = step.best()
        passes += _PASSES_A_GRADIENT * len(SCALES) + step.passes
        if following is None:
            break
        stage = following
        stages.append(stage)
        progress("search", total - len(stage), total)
    return SearchResult(tuple(stages), passes)


def _between(runs: KeptRuns, larger: Stage, smaller: Stage) -> list[Stage]:
    """Circuits between two of a search: the wires that left in one round leave one by one, those of least value
    first."""
    assert larger.values is not None
    left = (larger.wires & ~smaller.wires).nonzero().flatten()
    by_value = larger.values[left].abs().argsort(stable=True)
    circuits = [larger.wires]
    for wire in left[by_value].tolist():
        circuit = circuits[-1].clone()
        circuit[wire] = False
        circuit = runs.table.alive(circuit)
        if len(smaller) < int(circuit.sum()) < int(circuits[-1].sum()):
            circuits.append(circuit)
    kept = runs.kept(torch.stack(circuits))
    # The first is `larger` itself.
    between = zip(circuits[1:], kept[1:], strict=True)
    return [Stage(circuit, shares, larger.values) for circuit, shares in between]


class _Round:
    """One round: from one circuit to a smaller one."""

    def __init__(self, runs: KeptRuns, stage: Stage, values: Values, aim: Aim) -> None:
        self.runs = runs
        self.stage = stage
        self.numbers = stage.wires.nonzero().flatten()  # of the circuit's wires among all
        self.values = values[self.numbers]  # of these wires, on every pair
        self.aim: Aim = aim
        self.passes = 0

    def best(self) -> Stage | None:
        """The best of all proposals; None where nothing smaller is connected."""
        count = _step(len(self.stage))
        best = self._best_without(count)
        while best is not None and count > 1 and not self._as_promised(best):
            count //= 2
            best = self._best_without(count)
        return best

    def _best_without(self, count: int) -> Stage | None:
        """The best circuit with at least so many wires fewer."""
        proposals = list(self._proposals(count))
        if not proposals:
            return None
        circuits = torch.stack(proposals)
        kept = self.runs.kept(circuits)  # (proposal, pair)
        self.passes += len(circuits)
        merits = merit(kept, self.aim)
        winner = int(
            (merits >= merits.max() - ROUNDING).nonzero()[0]
        )  # of equal ones the first
        return Stage(circuits[winner], kept[winner])

    def _proposals(self, count: int) -> Iterator[Chosen]:
        """Smaller circuits that are still connected, each once."""
        dropped = list(drops(self.values, self.stage.kept, count))
        if len(self.stage) <= SMALL:
            least = _lowest(self.values.mean(1).abs(), _CANDIDATES)
            dropped += [[wire] for wire in least.tolist()]  # each alone
        seen: set[tuple[int, ...]] = set()
        for wires in dropped:
            smaller = self.stage.wires.clone()
            smaller[self.numbers[wires]] = False
            smaller = self.runs.table.alive(smaller)
            members = tuple(smaller.nonzero().flatten().tolist())
            if members and members not in seen:
                seen.add(members)
                yield smaller

    def _as_promised(self, found: Stage) -> bool:
        """Whether a smaller circuit is about as good as the values of the dropped wires said."""
        gone = (self.stage.wires & ~found.wires)[self.numbers]
        promised = self.stage.kept - self.values[gone].sum(0)  # (pair)
        lost = merit(promised, self.aim) - merit(found.kept, self.aim)
        return float(lost) <= _BROKEN_PROMISE


def _step(wires: int) -> int:
    """How many wires a round drops."""
    if wires <= SMALL:
        return 1
    share = _LARGE_STEP if wires > LARGE else _STEP
    return max(1, int(share * wires))


def merit(
    kept: Float[torch.Tensor, "*circuit pair"], aim: Aim
) -> Float[torch.Tensor, "*circuit"]:
    """How good circuits are: near to the whole model on every pair, or high in the mean."""
    if aim == "performance":
        return kept.mean(-1)
    return -(1 - kept).abs().mean(-1)


def drops(
    values: Values, kept: KeptShares, count: int
) -> Iterator[Sequence[int] | torch.Tensor]:
    """What each rule would drop: the numbers of `count` wires. A wire is worth what the circuit would lose
    without it, so a wire that works against the answer has a value below zero."""
    mean = values.mean(1)
    yield _lowest(mean, count)  # what works against the answer, then what helps least
    yield _lowest(mean.abs(), count)  # what matters least
    yield _lowest(values.square().mean(1).sqrt(), count)  # what matters least on any pair
    yield _lowest(values.amax(1), count)  # what helps no pair much
    # What leaves the pairs nearest to the whole model: without a wire, a pair lacks this much.
    lacking = 1 - kept + values  # (wire, pair)
    yield _lowest(lacking.square().mean(1).sqrt(), count)


def _lowest(scores: Float[torch.Tensor, " wire"], count: int) -> torch.Tensor:
    """The numbers of the lowest scores. Thousands of wires do nothing, and their scores are what rounding
    leaves; so that these do not decide, scores are rounded, and of equal ones the first wire is taken."""
    return (scores / _SAME_VALUE).round().argsort(stable=True)[:count]
