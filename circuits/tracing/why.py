"""`why`: why a head looks where it looks, and who wrote what it moves.

1. The circuit's pair is run again on its model, and its question is judged as `trace` judges it. The three
   sides of the head on its edge are measured.
2. On each side every writer below is measured: one run in which that side alone sees the writer's
   counterfactual output. The leading writers are then swapped together, which says how much they explain.
3. QK attribution (`engine.qk`) splits the head's clean score into one part for each pair
   of a writer of the query and a writer of the key. Like a loading it is read off the clean run: it stands
   beside effects and never replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, overload

import torch

from circuits.components import SIDES, Component, Head, Side, components
from circuits.engine import Ablation, Row, Runs
from circuits.engine.qk import score_parts
from circuits.engine.selection import Mapped
from circuits.engine.wires import wire_effects
from circuits.errors import EdgeError, PromptError
from circuits.models.model import Model
from circuits.prompts import Pair
from circuits.results import Progress, silent
from circuits.tracing.aligned import mapped
from circuits.tracing.batches import mean_over, only_of, run_batches
from circuits.tracing.family import FamilyTrace
from circuits.tracing.judge import judge_each, together
from circuits.tracing.measure import (
    both_values,
    measured_model,
    pattern_effects,
    side_wire,
    tells_sides,
)
from circuits.tracing.neuron_record import Neurons
from circuits.tracing.neurons import is_mlp, neurons
from circuits.tracing.parts import Ends, Position
from circuits.tracing.records import Circuit
from circuits.tracing.rerun import model_of, run_again
from circuits.tracing.trust import notes_on
from circuits.tracing.why_record import (
    BIASES,
    QKAttribution,
    QKPart,
    SideWriters,
    Why,
    WriterEffect,
)

LEADING: Final = 8  # writers of a side that are swapped together
LONGEST_MAP: Final = 256  # tokens of a prompt whose map is kept
PARTS: Final = 20  # parts of the score that are kept; the rest is one number


@overload
def why(
    circuit: Circuit, head: Component, *, model: Any = None, progress: Progress = silent
) -> Neurons: ...
@overload
def why(
    circuit: Circuit | FamilyTrace,
    head: str | Head,
    *,
    key: Position | None = None,
    query: Position | None = None,
    every_key: bool = False,
    model: Any = None,
    progress: Progress = silent,
) -> Why: ...
def why(
    circuit: Circuit | FamilyTrace,
    head: str | Head | Component,
    *,
    key: Position | None = None,
    query: Position | None = None,
    every_key: bool = False,
    model: Any = None,
    progress: Progress = silent,
) -> Why | Neurons:
    """Why this head looks where it looks on a mapping of the circuit, and who wrote what it moves.

    Of an MLP, such as `M3@9`: which of its neurons carry its effect (`circuits.neurons`).

    Without `key` and `query` it is the mapping that the circuit shows first. With `every_key` the head's key
    and value sides are those of all keys of the query. Of a family the numbers are means over its pairs.
    `model` is needed where the circuit's own cannot be loaded by name.

        >>> answer = circuits.why(found, "L5H1")
        >>> print(answer.side("value").writers[0])
        M0@5
    """
    if not isinstance(circuit, Circuit | FamilyTrace):
        kind = getattr(circuit, "NAME", type(circuit).__name__)
        raise PromptError(f"why explains a circuit or a trace of a family, not {kind}")
    of_one = isinstance(circuit, Circuit) and circuit.family is None
    if is_mlp(head):
        if not of_one:
            raise PromptError(
                "the neurons of an MLP are those of one prompt; trace one of them"
            )
        if key is not None or query is not None or every_key:
            raise PromptError("an MLP reads where it stands; name its position as in M3@9")
        return neurons(circuit, head, model=model, progress=progress)  # type: ignore[arg-type]
    name = head.head if isinstance(head, Component) else head
    if isinstance(circuit, FamilyTrace):
        if key is not None or query is not None:
            raise PromptError("a trace of a family has one mapping; leave key and query out")
        parts = _parts_of_trace(circuit, model)
        seed = circuit.seed or 0
    else:
        circuit.checked(name)
        parts = _parts_of_circuit(circuit, key, query, model, every_key=every_key)
        seed = circuit.seed
    answer = explain(parts, name, every_key=every_key, seed=seed, progress=progress)
    return answer if of_one else of_family(answer, parts)


def _parts_of_circuit(
    circuit: Circuit,
    key: Position | None,
    query: Position | None,
    model: Any,
    *,
    every_key: bool,
) -> list[Mapped]:
    """The mapping that is asked about, on the pairs of a circuit."""
    if key is None and query is None:
        if circuit.front is None:
            raise PromptError("no mapping of this circuit carries anything; name key and query")
        ends = circuit.front.ends
    elif key is None and not every_key:
        raise PromptError("name the key, too: key=…; or ask of all keys, by every_key=True")
    else:
        ends = circuit.prompt.ends(0 if key is None else key, -1 if query is None else query)
    parts = run_again(circuit, model=model)
    shared = parts[0].places
    if not set(ends) <= set(shared):
        raise PromptError(
            f"{ends[0]}→{ends[1]} is not in all prompts of this family; their shared positions are "
            f"{', '.join(map(str, shared))}"
        )
    return mapped(parts, shared.index(ends[0]), shared.index(ends[1]))


def _parts_of_trace(family: FamilyTrace, model: Any) -> list[Mapped]:
    """The mapping of a trace of a family, on the pairs that its mean holds."""
    if family.source is None:
        raise PromptError(
            "this trace does not say which weights it was measured on: trace again"
        )
    if any(pair.metric.kind == "custom" for pair in family.pairs):
        raise PromptError("a metric function is not in the record; call trace with it again")
    measured = model_of(family.source.name, family.source, model)
    left_out = [number for number, _ in family.left_out]
    return placed_parts(
        measured, family.all_pairs, family.ends_of_each, family.ablation, left_out=left_out
    )


def placed_parts(
    model: Model,
    pairs: Sequence[Pair],
    ends: Sequence[Ends],
    ablation: Ablation,
    *,
    left_out: Sequence[int] = (),
) -> list[Mapped]:
    """Pairs that each come with a key and a query, run in batches, without those that are left out."""
    alike = [(len(pair), own) for pair, own in zip(pairs, ends, strict=True)]
    batches = run_batches(model, pairs, alike, ablation=ablation)
    kept = only_of(batches, [n for n in range(len(pairs)) if n not in left_out])
    return [Mapped(batch.runs, *ends[batch.numbers[0]]) for batch in kept]


def of_family(answer: Why, parts: Sequence[Mapped]) -> Why:
    """The answer with the pairs whose mean it is, and their key and query where these differ."""
    pairs = tuple(pair for part in parts for pair in part.runs.pairs)
    ends = [(part.key, part.query) for part in parts for _ in part.runs.pairs]
    return replace(answer, pairs=pairs, all_ends=tuple(ends) if len(parts) > 1 else ())


def explain(
    parts: Sequence[Mapped],
    name: str | Head,
    *,
    every_key: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> Why:
    """The answer for one head on a mapping, from runs that were already made; numbers are means over the pairs
    of all parts. Positions are those of the first part."""
    runs, key, query = parts[0].runs, parts[0].key, parts[0].query
    source = measured_model(runs)
    head = source.checked(name)
    if not tells_sides(runs):
        raise EdgeError(
            f"the sides of a head cannot be told apart on the plain path: {runs.model.no_scores}"
        )
    pair = runs.pairs[0]
    question = together(
        [each for part in parts for each in judge_each(part.runs, ends=(part.key, part.query))]
    )
    sides = []
    for number, side in enumerate(SIDES):
        progress("writers", number, len(SIDES))
        sides.append(_side(parts, head, side, every_key=every_key))
    clean, other = both_values([part.runs for part in parts])
    patterns = [_effects_of_pattern(part, head) for part in parts]
    return Why(
        source=source,
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        gap=clean - other,
        head=head,
        key=key,
        query=query,
        every_key=every_key,
        weight=_mean_weight(parts, head, "clean"),
        counterfactual_weight=_mean_weight(parts, head, "counterfactual"),
        effect=_edge_effect(parts, head, every_key=every_key),
        pattern=float(mean_over(parts, patterns)),
        sides=tuple(sides),
        qk_attribution=None if runs.layout is None else _qk_attribution(parts, head),
        attention=_attention_map(runs, head) if runs.length <= LONGEST_MAP else None,
        engine=runs.path,
        seed=seed,
        question=question,
        notes=notes_on(runs, question, ends=(key, query)),
        ablation=runs.ablation,
    )


def _effects_of_pattern(part: Mapped, head: Head) -> torch.Tensor:
    return torch.tensor(
        pattern_effects(part.runs, [head], part.key, part.query)[0], dtype=torch.float64
    )


def _mean_weight(
    parts: Sequence[Mapped], head: Head, side: Literal["clean", "counterfactual"]
) -> float:
    """The head's attention weight on key → query, averaged over the inputs."""
    weights = []
    for part in parts:
        layer = getattr(part.runs, side).cache.layers[head.layer]
        weights.append(layer.pattern_at(part.query)[:, head.index, part.key].double().mean())
    return float(mean_over(parts, weights))


def _side(parts: Sequence[Mapped], head: Head, side: Side, *, every_key: bool) -> SideWriters:
    """One side: all of it, each writer alone, and the leading writers together.

    The head's attention weight is read on the edge of the mapping.
    """
    runs = parts[0].runs
    writers = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
    writers = [writer for writer in writers if writer.layer < head.layer]
    wholes = []
    for part in parts:
        wholes.append(side_wire(side, head, None if every_key else part.key, part.query))
    effects: list[torch.Tensor] = []  # of each part, (wire,)
    weights: list[torch.Tensor] = []
    for part, whole in zip(parts, wholes, strict=True):
        wires = [whole, *(replace(whole, writer=writer) for writer in writers)]
        # Both (wire, pair)
        effect_of, weight_of = wire_effects(part.runs, wires, watch=(part.key, part.query))
        effects.append(effect_of.mean(1))
        weights.append(weight_of.mean(1))
    effect, *of_writers = mean_over(parts, effects).tolist()
    weight, *weights_of = mean_over(parts, weights).tolist()
    order = sorted(range(len(writers)), key=lambda number: (-abs(of_writers[number]), number))
    leading = [writers[number] for number in order[:LEADING]]
    together_in = []
    for part, whole in zip(parts, wholes, strict=True):
        joint, _ = wire_effects(part.runs, [whole], all_means=leading)
        together_in.append(joint.mean())
    listed = []
    for number in order:
        position = wholes[0].position
        listed.append(
            WriterEffect(writers[number], position, of_writers[number], weights_of[number])
        )
    return SideWriters(
        side=side,
        effect=effect,
        weight=weight,
        writers=tuple(listed),
        together=float(mean_over(parts, together_in)),
        leading=len(leading),
    )


def _edge_effect(parts: Sequence[Mapped], head: Head, *, every_key: bool) -> float:
    """The effect of the head's message from the key; with `every_key`, of all its messages at the query."""
    effects = []
    for part in parts:
        row = Row.of_heads([head], [part.query]) if every_key else part.row([head])
        effects.append(part.runs.effects([row]).double().mean())
    return float(mean_over(parts, effects))


def _attention_map(runs: Runs, head: Head) -> tuple[tuple[float, ...], ...]:
    """The head's pattern on the first clean prompt, (query, key), rounded for the file."""
    layer = runs.first_input().clean.cache.layers[head.layer]
    weights = layer.pattern()[0, head.index].double().tolist()
    return tuple(tuple(round(weight, 6) for weight in row) for row in weights)


def _qk_attribution(parts: Sequence[Mapped], head: Head) -> QKAttribution:
    """The largest parts of the clean score, the sums over either side, and what is left."""
    measured = [score_parts(part.runs, head, part.key, part.query) for part in parts]
    names = [*map(str, measured[0].writers), BIASES]
    split = mean_over(parts, [each.parts.double().cpu() for each in measured])
    scores = [torch.tensor(each.score, dtype=torch.float64) for each in measured]
    order = split.abs().flatten().argsort(descending=True, stable=True)[:PARTS].tolist()
    listed = []
    for number in order:
        row, column = divmod(number, len(names))
        listed.append(QKPart(names[row], names[column], float(split[row, column])))
    by_query = tuple(zip(names, split.sum(1).tolist(), strict=True))
    by_key = tuple(zip(names, split.sum(0).tolist(), strict=True))
    rest = float(split.sum()) - sum(part.part for part in listed)
    return QKAttribution(float(mean_over(parts, scores)), tuple(listed), rest, by_query, by_key)
