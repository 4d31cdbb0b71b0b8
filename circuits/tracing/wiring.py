"""`wiring`: the circuit of components of one pair, walked back from the logits.

1. At a node its sides are measured first: all that a side reads is swapped at once. A head at a query has the
   query side, and a key and a value side for every position that it can read; MLPs and logits have one side.
2. On the sides that carry at least `least` of the gap every writer below is measured by itself. Wires of at
   least `least`, for the answer or against it, are drawn.
3. The heads and MLPs that wrote them are explored in turn, those with the strongest wires first, until none
   is left or `most` were explored. Without such a cut the order does not matter. Embeddings are leaves.
4. The circuit is checked: how much of the gap is left when all other wires are swapped in one run, compared
   with random circuits of as many wires that are walked back from the logits, too.

Positions before the first difference are the same in both runs: nothing there is measured or drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean
from typing import Any, Final

from circuits.components import ALL, Component, Reader, Wire, components
from circuits.engine import Runs, prepare
from circuits.engine.joint import kept_effects
from circuits.engine.wires import wire_effects
from circuits.errors import EdgeError, PromptError, names_its_keywords
from circuits.models.load import as_model
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    Prompt,
    QuestionSpec,
    Swap,
    to_question,
)
from circuits.results import Progress, silent
from circuits.tracing.circuit import run_again
from circuits.tracing.judge import judge
from circuits.tracing.measure import both_values, finite, tells_sides
from circuits.tracing.parts import DRAWN, NODES
from circuits.tracing.trace import measured_model, output_of, package_versions
from circuits.tracing.trust import notes_on
from circuits.tracing.wiring_record import (
    LOGITS,
    Node,
    RandomCircuits,
    WireEffect,
    Wiring,
    check_limits,
)

DRAWS: Final = 10  # random circuits
_ROUND: Final = 16  # nodes that are explored together


@names_its_keywords
def wiring(
    model: Any,
    text: str,
    *,
    swap: Swap | None = None,
    counterfactual: str | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | None = None,
    least: float = DRAWN,
    most: int = NODES,
    roles: Mapping[str, int | str] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Wiring:
    """Which components write what the answer needs, who wrote what those read, and so on to the embeddings.

    `least` is the smallest effect of a wire that is drawn, as a share of the gap; at most `most` nodes are
    explored. `roles` names positions in print: `{"S2": 9, "END": -1}`.

        >>> wires = circuits.wiring(model, TEXT, swap={"large": "hot"}, least=0.1, most=8)
        >>> print(wires.wires[0].wire)
        M10@8→logits
    """
    check_limits(least, most)
    model = as_model(model)
    spec = QuestionSpec(
        counterfactual, swap, answer=answer, foil=foil, metric=metric, seed=seed
    )
    question = to_question(model, text, spec)
    named = _checked_roles(question.clean, roles or {})
    runs = prepare(model, [question])
    if not tells_sides(runs):
        raise EdgeError(
            f"the sides of heads cannot be told apart in this model: {model.no_scores}"
        )
    search = Search(runs, least, most, progress)
    search.run()
    drawn = _strongest_first(search.wires)
    kept, random = _kept(
        search.readers, [each.wire for each in drawn], seed=seed, progress=progress
    )
    pair = runs.pairs[0]
    clean, other = both_values(runs)
    return Wiring(
        source=measured_model(runs),
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        clean_value=clean,
        counterfactual_value=other,
        output=output_of(runs),
        wires=drawn,
        sides=_strongest_first(search.sides),
        cut=tuple(search.waiting()),
        least=least,
        most=most,
        measured=search.measured,
        kept=kept,
        random=random,
        roles=named,
        engine=runs.path,
        seed=seed,
        versions=package_versions(),
        notes=notes_on(runs, judge(runs)),
    )


def measure_kept(wiring: Wiring, *, model: Any = None) -> Wiring:
    """The same wires on the same pair, with what they explain, and random ones, measured anew."""
    return kept_again(wiring, run_again(wiring, model=model))


def kept_again(wiring: Wiring, runs: Runs) -> Wiring:
    """The same from runs of its pair that were already made."""
    wires = [each.wire for each in wiring.wires]
    kept, random = _kept(Readers(runs), wires, seed=wiring.seed, progress=silent)
    return replace(wiring, kept=kept, random=random)


# What there is to explore


class Readers:
    """The sides of every node of one pair, and the writers below them, from the first difference on."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.first = runs.first_difference
        self.parallel = runs.blocks[0].parallel
        self.components = components(layers=runs.model.n_layers, heads=runs.model.n_heads)

    def sides(self, node: Node) -> list[Wire]:
        """The sides of a node, each as a wire from `all`; an embedding has none."""
        if node.component is None:
            logits = Reader(self.runs.model.n_layers, "logits")
            first_read = max(self.first, self.runs.length - self.runs.metric.positions_read)
            return [
                Wire(ALL, logits, position) for position in range(first_read, self.runs.length)
            ]
        layer, index, position = node.component.layer, node.component.index, node.position
        assert position is not None
        if node.component.kind == "mlp":
            return [Wire(ALL, Reader(layer, "mlp"), position)]
        if node.component.kind != "head":
            return []
        sides = [Wire(ALL, Reader(layer, "query", index), position)]
        for key in range(self.first, position + 1):
            sides.append(Wire(ALL, Reader(layer, "key", index), key, position))
            sides.append(Wire(ALL, Reader(layer, "value", index), key, position))
        return sides

    def writers(self, side: Wire) -> list[Component]:
        """Every component that stands below a side."""
        return [
            each for each in self.components if side.reader.sees(each, parallel=self.parallel)
        ]


# The search


@dataclass
class Search:
    """A search back from the logits: what was measured so far, and what is still to be explored."""

    runs: Runs
    least: float
    most: int
    progress: Progress
    wires: dict[Wire, float] = field(default_factory=dict)
    sides: dict[Wire, float] = field(default_factory=dict)
    explored: set[Node] = field(default_factory=set)
    # Of a node's strongest wire so far.
    strength: dict[Node, float] = field(default_factory=dict)
    measured: int = 0

    def __post_init__(self) -> None:
        self.readers = Readers(self.runs)

    def run(self) -> None:
        """Explore until nothing is left or `most` nodes were."""
        self._explore([LOGITS])
        while self.waiting() and len(self.explored) < self.most:
            left = self.most - len(self.explored)
            chosen = self.waiting()[: min(_ROUND, left)]
            self.explored |= set(chosen)
            self._explore(chosen)

    def waiting(self) -> list[Node]:
        """The nodes still to be explored, those with the strongest wires first."""
        left = [node for node in self.strength if node not in self.explored]
        return sorted(left, key=lambda node: (-self.strength[node], str(node)))

    def _explore(self, nodes: Sequence[Node]) -> None:
        """Measure the sides of some nodes, then every writer of the sides that carry enough."""
        sides = [side for node in nodes for side in self.readers.sides(node)]
        followed = self._measure(sides)
        self.sides |= followed
        singles: list[Wire] = []
        for side in followed:
            singles += [replace(side, writer=writer) for writer in self.readers.writers(side)]
        drawn = self._measure(singles)
        self.wires |= drawn
        for wire, effect in drawn.items():
            if wire.writer.kind != "embed":
                node = Node.written(wire)
                self.strength[node] = max(abs(effect), self.strength.get(node, 0.0))

    def _measure(self, wires: Sequence[Wire]) -> dict[Wire, float]:
        """The wires that carry enough, with their effects."""
        before = self.measured

        def report(done: int, total: int) -> None:
            self.progress("wires", before + done, before + total)

        effects, _ = wire_effects(self.runs, wires, progress=report)
        self.measured += len(wires)
        carrying: dict[Wire, float] = {}
        for wire, effect in zip(wires, effects[:, 0].tolist(), strict=True):
            if abs(finite(effect)) >= self.least:
                carrying[wire] = effect
        return carrying


def _strongest_first(effects: Mapping[Wire, float]) -> tuple[WireEffect, ...]:
    ordered = sorted(effects.items(), key=lambda item: (-abs(item[1]), str(item[0])))
    return tuple(WireEffect(wire, effect) for wire, effect in ordered)


# Checks


def _kept(
    readers: Readers, wires: Sequence[Wire], *, seed: int, progress: Progress
) -> tuple[float, RandomCircuits]:
    """The share of the gap that is left when all other wires are swapped, and the same for random wires."""
    random = [
        random_wires(readers, len(wires), seed=f"{seed} {number}") for number in range(DRAWS)
    ]

    def report(done: int, total: int) -> None:
        progress("kept", done, total)

    kept = kept_effects(readers.runs, [wires, *random], progress=report)  # (set of wires, pair)
    own, *others = [finite(share) for share in kept[:, 0].tolist()]
    return own, RandomCircuits(fmean(others), max(others), DRAWS)


def random_wires(readers: Readers, count: int, *, seed: str) -> list[Wire]:
    """As many wires, walked back from the logits at random: each from a random writer to a side of a node
    that is already there."""
    draw = Random(seed)
    wires: list[Wire] = []
    nodes = {LOGITS}
    unused = {side: readers.writers(side) for side in readers.sides(LOGITS)}
    while unused and len(wires) < count:
        side = draw.choice(list(unused))
        writers = unused[side]
        writer = writers.pop(draw.randrange(len(writers)))
        if not writers:
            del unused[side]
        wire = replace(side, writer=writer)
        wires.append(wire)
        node = Node.written(wire)
        if node not in nodes:
            nodes.add(node)
            unused |= {side: readers.writers(side) for side in readers.sides(node)}
    return wires


def _checked_roles(
    prompt: Prompt, roles: Mapping[str, int | str]
) -> tuple[tuple[str, int], ...]:
    """Names of positions, checked: each can stand behind an @."""
    for name in roles:
        if (
            not name.strip()
            or any(sign in name for sign in "@.→")
            or name.lstrip("-").isdigit()
        ):
            raise PromptError(f"{name!r} cannot name a position; take a word such as S2 or END")
    return tuple((name.strip(), prompt.position(position)) for name, position in roles.items())
