"""`circuit`: every mapping that a pair's difference flows through, and where its tokens are held.

1. The total of every mapping between positions is measured, then the heads of those that carry something.
   In a long prompt all messages into each query are swapped together first, then those of groups of keys, and
   only the mappings of groups that have an effect are measured.
2. The ends of mappings and every other token that matters get a span, each by a counterfactual there.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from circuits.components import Edge, Head
from circuits.engine import Ablation, Direction, Row, Runs, prepare, to_ablation
from circuits.errors import ModelError, PromptError, names_its_keywords
from circuits.models.load import as_model, load
from circuits.models.model import Model
from circuits.models.placement import Device, to_device
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    Pair,
    ProbeMetric,
    QuestionSpec,
    Swap,
    to_prompt,
    to_question,
)
from circuits.results import Progress, silent
from circuits.tracing.measure import (
    MOST_NOISED,
    counterfactual_text,
    measure_mapping,
    measure_span,
    measured_in_parts,
    span_of,
    tokens_that_matter,
    totals,
)
from circuits.tracing.parts import CARRIES, SHARE, SHORT, Mapping, Span
from circuits.tracing.records import Circuit
from circuits.tracing.trace import to_circuit

if TYPE_CHECKING:
    from circuits.tracing.records import Why

KEYS_AT_ONCE: Final = 16  # keys of a long prompt that are first measured together
_NAMED: Final = 3  # mappings in a note
Ends = tuple[int, int]  # key and query


@names_its_keywords
def circuit(
    model: Any,
    text: str,
    *,
    key: int | str | None = None,
    swap: Swap | None = None,
    counterfactual: str | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    groups: MappingType[str, Sequence[int | str]] | None = None,
    counterfactuals: MappingType[str, str] | None = None,
    share: float = SHARE,
    least: float = CARRIES,
    ablation: Direction = "swap",
    reference: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Circuit:
    """Every mapping of at least `least` that the pair's difference flows through; spans of what matters.

    Without swap and counterfactual, noise is added at `key`. `groups` names positions that belong together
    (`{"brackets": (4, 6)}`); `counterfactuals` gives a text for a token or group of its own
    (`{"opposite": 'The colour of "large" is "'}`), in the place of noise. `ablation` and `reference` are those
    of `trace`.

        >>> whole = circuits.circuit(model, TEXT, swap={"large": "hot"})
        >>> [mapping.ends for mapping in whole.mappings]
        [(5, 8)]
    """
    if not isinstance(text, str):
        ways = "trace (one mapping), stability, patch and wiring take a family"
        raise PromptError(f"circuit measures one prompt, a text; {ways}")
    model = as_model(model)
    noise_at = None if key is None else (to_prompt(model, text).position(key),)
    spec = QuestionSpec(counterfactual, swap, noise_at, answer, foil, metric, seed)
    chosen = to_ablation(model, ablation, reference)
    runs = prepare(model, [to_question(model, text, spec)], ablation=chosen)
    return measure_circuit(
        runs,
        groups=groups or {},
        counterfactuals=counterfactuals or {},
        share=share,
        least=least,
        seed=seed,
        progress=progress,
    )


def measure_circuit(
    runs: Runs,
    *,
    groups: MappingType[str, Sequence[int | str]],
    counterfactuals: MappingType[str, str],
    share: float,
    least: float,
    seed: int,
    progress: Progress = silent,
) -> Circuit:
    """The circuit of the one pair of `runs`, which were already made."""
    total_of = _totals(runs, least, progress)
    carrying = [end for end, total in total_of.items() if total >= least]
    carrying.sort(key=lambda end: (-total_of[end], end))
    mappings: list[Mapping] = []
    for ends in carrying:
        progress("mappings", len(mappings), len(carrying))
        mappings.append(measure_mapping(runs, *ends, share=share, seed=seed))
    spans = _spans(runs, mappings, groups, counterfactuals, seed=seed, progress=progress)
    notes = (*notes_on_search(runs.length), *_notes_on_negative(total_of, least))
    found = to_circuit(runs, mappings, spans, focus=None, seed=seed, notes=notes)
    return replace(found, least=least)


# A saved circuit, measured again


def measure_without(circuit: Circuit, heads: Sequence[Head], *, model: Any = None) -> Circuit:
    """The same question on the same pair, with some heads swapped to the counterfactual throughout."""
    runs = run_again(circuit, model=model).without(heads)
    mappings: list[Mapping] = []
    for old in circuit.mappings:
        controlled = old.controls is not None
        share = old.controls.share if old.controls is not None else SHARE
        mappings.append(
            measure_mapping(
                runs, *old.ends, share=share, controls=controlled, seed=circuit.seed
            )
        )
    mappings.sort(key=lambda mapping: -mapping.total)
    spans: list[Span] = []
    for old_span in circuit.spans:
        if old_span.counterfactual == counterfactual_text(runs.pairs[0]):
            spans.append(measure_span(runs, old_span.label, old_span.positions))
    return to_circuit(runs, mappings, spans, focus=circuit.focus, seed=circuit.seed)


def model_of(name: str, record: Any, given: Any, *, device: Device = "cpu") -> Model:
    """The model that a record was measured on: the given one, or the one that is loaded by this name.

    `record` has a fingerprint, the gate, the BOS rule and perhaps a dtype; the model must have the same.
    """
    if given is None:
        dtype = getattr(record, "dtype", "float32")
        gate = record.gated or None
        model = load(
            name, device=to_device(device), gate=gate, bos=record.reads_bos, dtype=dtype
        )
    else:
        model = as_model(given)
    if model.fingerprint != record.fingerprint:
        raise ModelError(
            f"{model.name} has other weights than {name} had; give the right model=…"
        )
    if (model.gated, model.reads_bos) != (record.gated, record.reads_bos):
        raise ModelError(
            f"{model.name} has other gate or BOS rule than {name} had; give the right model=…"
        )
    return model


def run_again(
    circuit: Circuit | Why,
    *,
    model: Any = None,
    device: Device = "cpu",
    ablation: Ablation | None = None,
) -> Runs:
    """The runs of a saved pair on its own model, which is loaded by its name unless it is given; with the
    circuit's own ablation unless another is named."""
    if circuit.metric.kind == "custom":
        raise PromptError(
            "a metric function is not in the circuit's record; call trace with it again"
        )
    measured = model_of(circuit.source.name, circuit.source, model, device=device)
    pair = Pair(circuit.prompt, circuit.counterfactual, circuit.metric)
    return prepare(measured, [pair], ablation=ablation or circuit.ablation)


# The search


def _totals(runs: Runs, least: float, progress: Progress) -> dict[Ends, float]:
    """The total of every (key, query), or in a long prompt of those that can matter."""
    queries = range(runs.first_changed(), runs.length)
    if runs.length <= SHORT:
        ends = [(key, query) for query in queries for key in range(query + 1)]
    else:
        ends = ends_that_can_matter(runs, queries, least / 2, progress=progress)
    return dict(zip(ends, totals(runs, ends, progress=progress), strict=True))


def ends_that_can_matter(
    runs: Runs,
    queries: Sequence[int],
    least: float,
    *,
    keys_at_once: int = KEYS_AT_ONCE,
    progress: Progress = silent,
) -> list[Ends]:
    """The mappings of a long prompt whose query, and whose group of keys, have an effect of at least `least`
    when all their messages are swapped together."""

    def messages_of_group(group: tuple[int, range]) -> Row:
        query, keys = group
        return Row.of_edges(Edge(head, key, query) for head in runs.heads for key in keys)

    def all_messages(query: int) -> Row:
        if runs.ablation.kind == "knockout":  # it shuts edges, not heads
            return messages_of_group((query, range(query + 1)))
        return Row.of_heads(runs.heads, [query])

    groups: list[tuple[int, range]] = []
    effects = measured_in_parts(runs, queries, all_messages, "queries", progress)
    for query, effect in zip(queries, effects, strict=True):
        if abs(effect) >= least:
            for first in range(0, query + 1, keys_at_once):
                groups.append((query, range(first, min(first + keys_at_once, query + 1))))
    ends: list[Ends] = []
    effects = measured_in_parts(runs, groups, messages_of_group, "groups of keys", progress)
    for (query, keys), effect in zip(groups, effects, strict=True):
        if abs(effect) >= least:
            ends += [(key, query) for key in keys]
    return ends


def notes_on_search(length: int) -> tuple[str, ...]:
    """What is not measured in a prompt of `length` tokens because it is long."""
    if length <= SHORT:
        return ()
    sought = f"mappings were sought query by query, then by groups of {KEYS_AT_ONCE} keys"
    unseen = "effects that cancel within a query or a group are not seen"
    notes = [f"a prompt of {length} tokens: {sought}; {unseen}"]
    if length > MOST_NOISED:
        notes.append("in so long a prompt only ends of mappings have spans")
    return tuple(notes)


def _notes_on_negative(total_of: MappingType[Ends, float], least: float) -> tuple[str, ...]:
    """The mappings that work against the answer. They have no carriers, so they are not in the circuit."""
    against = sorted((total, *end) for end, total in total_of.items() if total <= -least)
    if not against:
        return ()
    named = ", ".join(f"{key}→{query} ({total:.2f})" for total, key, query in against[:_NAMED])
    more = f", and {len(against) - _NAMED} more" if len(against) > _NAMED else ""
    return (f"works against the answer, and is left out: {named}{more}",)


def _spans(
    runs: Runs,
    mappings: Sequence[Mapping],
    groups: MappingType[str, Sequence[int | str]],
    texts: MappingType[str, str],
    *,
    seed: int,
    progress: Progress,
) -> list[Span]:
    """Spans of groups, ends of mappings, tokens with a text and others that matter, in the prompt's order."""
    prompt = runs.pairs[0].clean
    # The positions of every span; a token needs no label.
    label_of: dict[tuple[int, ...], str | None] = {}
    grouped: set[int] = set()
    for label, members in groups.items():
        positions = tuple(prompt.position(member) for member in members)
        label_of[positions] = label
        grouped.update(positions)
    text_of: dict[tuple[int, ...], str] = {}  # counterfactuals of their own
    by_label = {label: positions for positions, label in label_of.items()}
    for label, text in texts.items():
        text_of[by_label.get(label) or (prompt.position(label),)] = text
    alone: set[int] = set()
    for positions in text_of:
        alone.update(positions)
    for mapping in mappings:
        alone.update(mapping.ends)
    alone -= grouped
    first = int(runs.model.reads_bos)
    others = [
        position for position in range(first, len(prompt)) if position not in grouped | alone
    ]
    alone.update(tokens_that_matter(runs, others, seed=seed, progress=progress))
    label_of |= {(position,): None for position in alone}
    spans: list[Span] = []
    for positions in sorted(label_of):
        progress("spans", len(spans), len(label_of))
        label, text = label_of[positions], text_of.get(positions)
        spans.append(span_of(runs, *positions, label=label, text=text, seed=seed))
    return spans
