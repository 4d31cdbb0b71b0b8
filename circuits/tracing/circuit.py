"""`circuit`: every mapping that a pair's difference flows through, and where its tokens are held.

1. The total of every mapping between positions is measured; the heads of those that carry something, too.
   Of a long prompt only those are measured that can matter: first all messages into each query together, then
   those of groups of keys, then the mappings of the groups that have an effect.
2. Spans are those of the ends of mappings and of every other token that matters, each by a counterfactual.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from circuits.components import Edge, Head
from circuits.engine import Row, Runs, prepare
from circuits.errors import ModelError, PromptError, names_its_keywords
from circuits.models.load import Device, as_model, load, to_device
from circuits.models.model import Model
from circuits.prompts import Answer, MetricFunction, MetricKind, Pair, Swap, Wording, to_question
from circuits.results import Progress, silent
from circuits.tracing import CARRIES, SHARE, SHORT, Mapping, Span
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
from circuits.tracing.records import Circuit
from circuits.tracing.trace import to_circuit

if TYPE_CHECKING:
    from circuits.tracing.records import Why
    from circuits.tracing.wiring_record import Wiring

KEYS_TOGETHER: Final = 16  # that are measured together first, in a long prompt
_NAMED: Final = 3  # mappings in a note


@names_its_keywords
def circuit(
    model: Any,
    text: str,
    *,
    swap: Swap | None = None,
    counterfactual: str | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | None = None,
    groups: MappingType[str, Sequence[int | str]] | None = None,
    counterfactuals: MappingType[str, str] | None = None,
    share: float = SHARE,
    least: float = CARRIES,
    seed: int = 0,
    progress: Progress = silent,
) -> Circuit:
    """Every mapping of at least `least` that the pair's difference flows through; spans of what matters.

    `groups` names positions that belong together (`{"brackets": (4, 6)}`); `counterfactuals` gives a text for
    a token or group of its own (`{"opposite": 'The colour of "large" is "'}`), in the place of noise.

        >>> whole = circuits.circuit(model, TEXT, swap={"large": "hot"})
        >>> [mapping.ends for mapping in whole.mappings]
        [(5, 8)]
    """
    measured, wording = as_model(model), Wording(counterfactual, swap, None, answer, foil, metric, seed)
    runs = prepare(measured, [to_question(measured, text, wording)])
    total_of = _totals(runs, least, progress)
    carrying = sorted((-total, *end) for end, total in total_of.items() if total >= least)
    mappings, ends = [], [(key, query) for _, key, query in carrying]
    for key, query in ends:
        progress("mappings", len(mappings), len(ends))
        mappings.append(measure_mapping(runs, key, query, share=share, seed=seed))
    spans = _spans(runs, mappings, groups or {}, counterfactuals or {}, seed=seed, progress=progress)
    notes = (*_notes_on_search(runs), *_notes_on_others(total_of, least))
    return to_circuit(runs, mappings, spans, focus=None, seed=seed, notes=notes)


def measure_without(circuit: Circuit, heads: Sequence[Head], *, model: Any = None) -> Circuit:
    """The same question on the same pair, with some heads absent."""
    runs = run_again(circuit, model=model).without(heads)
    mappings = []
    for old in circuit.mappings:
        share = SHARE if old.controls is None else old.controls.share
        how = {"share": share, "controls": old.controls is not None, "seed": circuit.seed}
        mappings.append(measure_mapping(runs, *old.ends, **how))
    own = counterfactual_text(runs.pairs[0])
    kept = (span for span in circuit.spans if span.counterfactual == own)
    spans = [measure_span(runs, span.label, span.positions) for span in kept]
    mappings.sort(key=lambda mapping: -mapping.total)
    return to_circuit(runs, mappings, spans, focus=circuit.focus, seed=circuit.seed)


def model_of(name: str, record: Any, given: Any, *, device: Device = "cpu") -> Model:
    """The model that a record with a fingerprint was measured on: the given one, or the one of this name."""
    dtype = getattr(record, "dtype", "float32")
    how: dict[str, Any] = {"gate": record.gated or None, "bos": record.reads_bos, "dtype": dtype}
    model = load(name, device=to_device(device), **how) if given is None else as_model(given)
    for part in ("fingerprint", "gated", "reads_bos"):
        if getattr(model, part) != getattr(record, part):
            what = {"fingerprint": "weights"}.get(part, "gate or BOS rule")
            raise ModelError(f"{model.name} has other {what} than {name} had; give the right model=…")
    return model


def run_again(circuit: Circuit | Wiring | Why, *, model: Any = None, device: Device = "cpu") -> Runs:
    """The runs of a circuit's pair on its own model, which is loaded by its name unless it is given."""
    if circuit.metric.kind == "custom":
        raise PromptError("a metric function is not in the circuit's record; call trace with it again")
    measured = model_of(circuit.source.name, circuit.source, model, device=device)
    return prepare(measured, [Pair(circuit.prompt, circuit.counterfactual, circuit.metric)])


def _totals(runs: Runs, least: float, progress: Progress) -> dict[tuple[int, int], float]:
    """The total of every (key, query), or in a long prompt of those worth measuring."""
    queries = list(range(runs.first_difference, runs.length))
    if runs.length <= SHORT:
        ends = [(key, query) for query in queries for key in range(query + 1)]
    else:
        ends = _worth_measuring(runs, queries, least / 2, progress)
    return dict(zip(ends, totals(runs, ends, progress=progress), strict=True))


def _worth_measuring(
    runs: Runs, queries: Sequence[int], least: float, progress: Progress
) -> list[tuple[int, int]]:
    """Of a long prompt, the mappings of queries and of groups of keys whose messages together have an
    effect."""

    def into(query: int) -> Row:
        return Row.of_heads(runs.heads, [query])

    def messages(group: tuple[int, range]) -> Row:
        query, keys = group
        return Row.of_edges(Edge(head, key, query) for head in runs.heads for key in keys)

    joint = measured_in_parts(runs, queries, into, "queries", progress)
    reading = [query for query, effect in zip(queries, joint, strict=True) if abs(effect) >= least]
    groups = [
        (query, range(first, min(first + KEYS_TOGETHER, query + 1)))
        for query in reading
        for first in range(0, query + 1, KEYS_TOGETHER)
    ]
    joint = measured_in_parts(runs, groups, messages, "groups of keys", progress)
    worth = [group for group, effect in zip(groups, joint, strict=True) if abs(effect) >= least]
    return [(key, query) for query, keys in worth for key in keys]


def _notes_on_search(runs: Runs) -> tuple[str, ...]:
    """What was not measured because the prompt is long."""
    if runs.length <= SHORT:
        return ()
    sought = "mappings were sought query by query, then by groups of"
    unseen = "what cancels within a query or a group is not seen"
    notes = [f"a prompt of {runs.length} tokens: {sought} {KEYS_TOGETHER} keys; {unseen}"]
    if runs.length > MOST_NOISED:
        notes.append("in so long a prompt only ends of mappings have spans")
    return tuple(notes)


def _notes_on_others(total_of: MappingType[tuple[int, int], float], least: float) -> tuple[str, ...]:
    """What works against the answer: it has no carriers, so it is not in the circuit."""
    against = sorted((total, *end) for end, total in total_of.items() if total <= -least)
    if not against:
        return ()
    named = ", ".join(f"{key}→{query} ({total:.2f})" for total, key, query in against[:_NAMED])
    rest = f", and {len(against) - _NAMED} more" if len(against) > _NAMED else ""
    return (f"works against the answer, and is left out: {named}{rest}",)


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
    named = {label: tuple(prompt.position(name) for name in members) for label, members in groups.items()}
    own = {named.get(label) or (prompt.position(label),): text for label, text in texts.items()}
    grouped = {position for members in named.values() for position in members}
    ends = {position for mapping in mappings for position in (mapping.key, mapping.query)}
    ends = (ends | {position for positions in own for position in positions}) - grouped
    every = range(int(runs.model.reads_bos), len(prompt))
    others = [position for position in every if position not in grouped | ends]
    matter = tokens_that_matter(runs, others, seed=seed, progress=progress)
    wanted: list[tuple[tuple[int, ...], str | None]] = [(members, label) for label, members in named.items()]
    wanted += [((position,), None) for position in sorted(ends | set(matter))]
    spans: list[Span] = []
    for positions, label in sorted(wanted, key=lambda item: item[0]):
        progress("spans", len(spans), len(wanted))
        spans.append(span_of(runs, *positions, label=label, text=own.get(positions), seed=seed))
    return spans
