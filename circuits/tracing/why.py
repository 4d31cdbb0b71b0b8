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

from dataclasses import replace
from typing import Any, Final, overload

from circuits.components import SIDES, Component, Head, Side, components
from circuits.engine import Row, Runs, prepare
from circuits.engine.qk import score_parts
from circuits.engine.rows import Layer
from circuits.engine.selection import mapping_row
from circuits.engine.wires import wire_effects
from circuits.errors import EdgeError, PromptError
from circuits.results import Progress, silent
from circuits.tracing.circuit import model_of, run_again
from circuits.tracing.family import FamilyTrace
from circuits.tracing.judge import judge
from circuits.tracing.measure import (
    measured_model,
    pattern_effects,
    side_wire,
    tells_sides,
)
from circuits.tracing.neuron_record import Neurons
from circuits.tracing.neurons import is_mlp, neurons
from circuits.tracing.records import (
    BIASES,
    Circuit,
    QKAttribution,
    QKPart,
    SideWriters,
    Why,
    WriterEffect,
)
from circuits.tracing.trust import notes_on

LEADING: Final = 8  # writers of a side that are swapped together
LONGEST_MAP: Final = 256  # tokens of a prompt whose map is kept
PARTS: Final = 20  # parts of the score that are kept; the rest is one number
Position = int | str


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
    and value sides are those of all keys of the query. Of a trace of a family the numbers are means over its
    pairs. `model` is needed where the circuit's own cannot be loaded by name.

        >>> answer = circuits.why(found, "L5H1")
        >>> print(answer.side("value").writers[0])
        M0@5
    """
    if isinstance(circuit, FamilyTrace):
        return _why_of_family(
            circuit, head, key, query, every_key=every_key, model=model, progress=progress
        )
    if not isinstance(circuit, Circuit):
        kind = getattr(circuit, "NAME", type(circuit).__name__)
        raise PromptError(f"why explains a circuit or a trace of a family, not {kind}")
    if is_mlp(head):
        if key is not None or query is not None or every_key:
            raise PromptError("an MLP reads where it stands; name its position as in M3@9")
        return neurons(circuit, head, model=model, progress=progress)  # type: ignore[arg-type]
    checked = circuit.checked(head.head if isinstance(head, Component) else head)
    if key is None and query is None:
        if circuit.front is None:
            raise PromptError("no mapping of this circuit carries anything; name key and query")
        ends = circuit.front.ends
    else:
        ends = circuit.prompt.ends(0 if key is None else key, -1 if query is None else query)
    runs = run_again(circuit, model=model)
    return explain(
        runs, checked, *ends, every_key=every_key, seed=circuit.seed, progress=progress
    )


def _why_of_family(
    family: FamilyTrace,
    head: str | Head | Component,
    key: Position | None,
    query: Position | None,
    *,
    every_key: bool,
    model: Any,
    progress: Progress,
) -> Why:
    """The same of the mean over the pairs of a family."""
    if is_mlp(head):
        raise PromptError("the neurons of an MLP are those of one prompt; trace one of them")
    if key is not None or query is not None:
        raise PromptError("a trace of a family has one mapping; leave key and query out")
    if family.source is None:
        raise PromptError(
            "this trace does not say which weights it was measured on: trace again"
        )
    if family.all_ends:
        raise PromptError(
            "key and query stand at different places in these prompts; trace those of one length"
        )
    if any(pair.metric.kind == "custom" for pair in family.pairs):
        raise PromptError("a metric function is not in the record; call trace with it again")
    measured = model_of(family.source.name, family.source, model)
    runs = prepare(measured, family.pairs, ablation=family.ablation)
    name = head.head if isinstance(head, Component) else head
    seed = family.seed or 0
    answer = explain(
        runs, name, *family.mapping.ends, every_key=every_key, seed=seed, progress=progress
    )
    return replace(answer, pairs=family.pairs)


def explain(
    runs: Runs,
    name: str | Head,
    key: int,
    query: int,
    *,
    every_key: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> Why:
    """The answer for one head on key → query, from runs that were already made; numbers are means over their
    pairs."""
    source = measured_model(runs)
    head = source.checked(name)
    if not tells_sides(runs):
        raise EdgeError(
            f"the sides of a head cannot be told apart on the plain path: {runs.model.no_scores}"
        )
    pair = runs.pairs[0]
    own_key = None if every_key else key
    ends = (key, query)
    question = judge(runs, ends=ends)
    sides = []
    for number, side in enumerate(SIDES):
        progress("writers", number, len(SIDES))
        sides.append(_side(runs, head, side, own_key, query, watch=(key, query)))
    return Why(
        source=source,
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        gap=float(runs.gap.double().mean()),
        head=head,
        key=key,
        query=query,
        every_key=every_key,
        weight=_mean_weight(runs.clean.cache.layers[head.layer], head, key, query),
        counterfactual_weight=_mean_weight(
            runs.counterfactual.cache.layers[head.layer], head, key, query
        ),
        effect=_edge_effect(runs, head, own_key, query),
        pattern=pattern_effects(runs, [head], key, query)[0],
        sides=tuple(sides),
        qk_attribution=None if runs.layout is None else _qk_attribution(runs, head, key, query),
        attention=_attention_map(runs, head) if runs.length <= LONGEST_MAP else None,
        engine=runs.path,
        seed=seed,
        question=question,
        notes=notes_on(runs, question, ends=ends),
        ablation=runs.ablation,
    )


def _mean_weight(layer: Layer, head: Head, key: int, query: int) -> float:
    """The head's attention weight on key → query, averaged over the inputs."""
    return float(layer.pattern_at(query)[:, head.index, key].double().mean())


def _side(
    runs: Runs, head: Head, side: Side, key: int | None, query: int, *, watch: tuple[int, int]
) -> SideWriters:
    """One side: all of it, each writer alone, and the leading writers together.

    The head's attention weight is read on the edge `watch`.
    """
    whole = side_wire(side, head, key, query)
    writers = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
    wires = [replace(whole, writer=writer) for writer in writers if writer.layer < head.layer]
    effects, weights = wire_effects(runs, [whole, *wires], watch=watch)  # both (wire, pair)
    effect, *effect_of = effects.mean(1).tolist()
    weight, *weight_of = weights.mean(1).tolist()
    order = sorted(range(len(wires)), key=lambda number: (-abs(effect_of[number]), number))
    leading = [wires[number].writer for number in order[:LEADING]]
    together, _ = wire_effects(runs, [whole], all_means=leading)
    listed: list[WriterEffect] = []
    for number in order:
        wire = wires[number]
        listed.append(
            WriterEffect(wire.writer, wire.position, effect_of[number], weight_of[number])
        )
    return SideWriters(
        side=side,
        effect=effect,
        weight=weight,
        writers=tuple(listed),
        together=float(together.mean()),
        leading=len(leading),
    )


def _edge_effect(runs: Runs, head: Head, key: int | None, query: int) -> float:
    """The effect of the head's message from the key; without a key, of all its messages at the query."""
    row = Row.of_heads([head], [query]) if key is None else mapping_row([head], key, query)
    return float(runs.effects([row]).double().mean())


def _attention_map(runs: Runs, head: Head) -> tuple[tuple[float, ...], ...]:
    """The head's pattern on the first clean prompt, (query, key), rounded for the file."""
    layer = runs.first_input().clean.cache.layers[head.layer]
    weights = layer.pattern()[0, head.index].double().tolist()
    return tuple(tuple(round(weight, 6) for weight in row) for row in weights)


def _qk_attribution(runs: Runs, head: Head, key: int, query: int) -> QKAttribution:
    """The largest parts of the clean score, the sums over either side, and what is left."""
    measured = score_parts(runs, head, key, query)
    names = [*map(str, measured.writers), BIASES]
    parts = measured.parts.double().cpu()
    order = parts.abs().flatten().argsort(descending=True, stable=True)[:PARTS].tolist()
    listed = []
    for number in order:
        row, column = divmod(number, len(names))
        listed.append(QKPart(names[row], names[column], float(parts[row, column])))
    by_query = tuple(zip(names, parts.sum(1).tolist(), strict=True))
    by_key = tuple(zip(names, parts.sum(0).tolist(), strict=True))
    rest = float(parts.sum()) - sum(part.part for part in listed)
    return QKAttribution(measured.score, tuple(listed), rest, by_query, by_key)
