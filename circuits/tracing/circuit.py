"""`circuit`: every mapping that a pair's difference flows through, and where its tokens are held.

1. The total of every mapping between positions is measured, then the heads of those that carry something.
   In a long prompt all messages into each query are swapped together first, then those of groups of keys, and
   only the mappings of groups that have an effect are measured.
2. The ends of mappings and every other token that matters get a span, each by a counterfactual there.
3. Of a family every number is the mean over its pairs. Prompts of one length share their positions by index,
   others those that roles name (`aligned`). The circuit is shown on the first prompt that the mean holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np

from circuits.components import Edge
from circuits.engine import SWAP, Ablation, Direction, Row, prepare, to_ablation
from circuits.engine.selection import effects_over, mapping_row
from circuits.errors import (
    PromptError,
    as_listed,
    is_number,
    names_its_keywords,
    shortened,
)
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    ProbeMetric,
    QuestionSpec,
    Swap,
    to_prompt,
    to_question,
)
from circuits.prompts.prompt import check_roles
from circuits.results import Progress, silent
from circuits.tracing.aligned import Aligned, effects_at, mapped, shared_places
from circuits.tracing.asked import Asked
from circuits.tracing.averaged import AveragedPairs
from circuits.tracing.batches import judge_batches, run_family
from circuits.tracing.family import bootstrap, each_once
from circuits.tracing.inputs import is_family, one_counterfactual, to_family_asked
from circuits.tracing.measure import measure_mapping
from circuits.tracing.parts import (
    CARRIES,
    SHARE,
    SHORT,
    Ends,
    FamilyControl,
    Interval,
    Mapping,
    Position,
    RoleNames,
    Span,
    check_share,
)
from circuits.tracing.records import Circuit
from circuits.tracing.spans import MOST_NOISED, label_of, span_of, tokens_that_matter
from circuits.tracing.trace import to_circuit

KEYS_AT_ONCE: Final = 16  # keys of a long prompt that are first measured together
_NAMED: Final = 3  # mappings in a note


@names_its_keywords
def circuit(
    model: Any,
    text: Any,
    *,
    key: Position | None = None,
    roles: RoleNames | None = None,
    swap: Swap | None = None,
    counterfactual: str | Sequence[str] | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    groups: MappingType[str, Sequence[Position]] | None = None,
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

    `text` is a prompt, or a family in any of the forms that `trace` takes; then every number is the mean over
    its pairs. Prompts of different lengths are aligned by `roles` (or the roles of each line).

        >>> whole = circuits.circuit(model, TEXT, swap={"large": "hot"})
        >>> [mapping.ends for mapping in whole.mappings]
        [(5, 8)]
    """
    check_share(share)
    check_roles(roles)
    _check(least, groups, counterfactuals)
    model = as_model(model)
    chosen = to_ablation(model, ablation, reference)
    spec = QuestionSpec(swap=swap, answer=answer, foil=foil, metric=metric, seed=seed)
    options: dict[str, Any] = {"share": share, "least": least, "seed": seed}
    options |= {"groups": groups or {}, "progress": progress}
    if is_family(text):
        if counterfactuals:
            raise PromptError("counterfactuals= are texts of one prompt; leave them out")
        asked = to_family_asked(model, text, counterfactual, spec, key=key, roles=roles)
        return family_circuit(model, asked, ablation=chosen, **options)
    own = one_counterfactual(counterfactual)
    noise_at = None
    if key is not None and (swap or own is not None):
        raise PromptError(
            "key= is where noise is put if there is no counterfactual; leave it out"
        )
    if key is not None:
        noise_at = (to_prompt(model, text).position(key, roles),)
    spec = replace(spec, counterfactual=own, noise_at=noise_at)
    runs = prepare(model, [to_question(model, text, spec)], ablation=chosen)
    whole = Aligned.whole(runs)
    return measure_circuit([whole], counterfactuals=counterfactuals or {}, **options)


def _check(least: Any, groups: Any, counterfactuals: Any) -> None:
    """Refuse what `circuit` alone takes where it is of another kind."""
    if not is_number(least) or not 0 < least < math.inf:
        raise PromptError(
            f"least= is the smallest total of a mapping, above 0, not {shortened(least)}"
        )
    example = {
        "groups": 'labels to positions, such as {"brackets": (4, 6)}',
        "counterfactuals": 'a token or a group to a text, such as {"large": "The hot is"}',
    }
    for name, given in (("groups", groups), ("counterfactuals", counterfactuals)):
        is_mapping = isinstance(given, MappingType) and all(
            isinstance(own, str) for own in given
        )
        if given is not None and not is_mapping:
            raise PromptError(f"{name}= maps {example[name]}, not {shortened(given)}")


def family_circuit(
    model: Model,
    asked: Sequence[Asked],
    *,
    groups: MappingType[str, Sequence[Position]],
    share: float,
    least: float,
    ablation: Ablation = SWAP,
    seed: int = 0,
    progress: Progress = silent,
) -> Circuit:
    """The circuit whose numbers are means over the pairs of these questions."""
    different = each_once(asked)
    alike = [(len(each), each.roles) for each in different]
    places = shared_places(alike)
    questions = [each.question for each in different]
    family = run_family(model, questions, alike, ablation=ablation)
    parts = [Aligned(batch.runs, places[batch.numbers[0]]) for batch in family.kept]
    roles = different[family.numbers[0]].roles  # of the pair that the circuit is shown on
    found = measure_circuit(
        parts,
        groups=groups,
        counterfactuals={},
        names=dict(roles),
        question=judge_batches(family.every),
        share=share,
        least=least,
        seed=seed,
        progress=progress,
    )
    averaged = AveragedPairs(
        pairs=family.pairs,
        roles=tuple(each.roles for each in different),
        left_out=tuple(n for n in range(len(different)) if n not in family.numbers),
        weak=family.weak,
        wrong=family.wrong,
        repeated=len(asked) - len(different),
        totals=_intervals(parts, found.mappings, np.argsort(family.numbers), seed),
    )
    notes = [str(averaged), *found.notes]
    missing = len(found.prompt) - len(parts[0].places)
    if missing:
        notes.append(
            f"{missing} tokens of the first prompt have no counterpart in all others and are left out"
        )
    return replace(found, notes=tuple(notes), family=averaged)


def _intervals(
    parts: Sequence[Aligned], mappings: Sequence[Mapping], order: np.ndarray, seed: int
) -> tuple[Interval, ...]:
    """The total of each mapping with its interval over the pairs, which `order` puts into the user's."""
    shown = parts[0].places
    totals = []
    for mapping in mappings:
        key, query = (shown.index(position) for position in mapping.ends)
        effects = effects_over(mapped(parts, key, query), [parts[0].runs.heads])
        totals.append(effects[0].double().cpu().numpy()[order])
    return tuple(bootstrap(np.stack(totals), seed=seed)) if totals else ()


def measure_circuit(
    parts: Sequence[Aligned],
    *,
    groups: MappingType[str, Sequence[Position]],
    counterfactuals: MappingType[str, str],
    share: float,
    least: float,
    seed: int,
    names: MappingType[str, int] | None = None,
    question: FamilyControl | None = None,
    progress: Progress = silent,
) -> Circuit:
    """The circuit of the pairs of all parts, which were already run; `names` are those that a user gave to
    positions of the first prompt, `question` the verdict on a family."""
    total_of = _totals(parts, least, progress)
    carrying = [end for end, total in total_of.items() if total >= least]
    carrying.sort(key=lambda end: (-total_of[end], end))
    mappings: list[Mapping] = []
    for ends in carrying:
        progress("mappings", len(mappings), len(carrying))
        mappings.append(measure_mapping(mapped(parts, *ends), share=share, seed=seed))
    spans = _spans(
        parts,
        carrying,
        groups,
        counterfactuals,
        names=names or {},
        seed=seed,
        progress=progress,
    )
    shown = parts[0].places
    named = {(shown[key], shown[query]): total for (key, query), total in total_of.items()}
    longest = max(part.runs.length for part in parts)
    notes = (*notes_on_search(longest), *_notes_on_negative(named, least))
    found = to_circuit(
        [part.runs for part in parts],
        mappings,
        spans,
        focus=None,
        seed=seed,
        notes=notes,
        question=question,
    )
    return replace(found, least=least)


# The search


def _totals(parts: Sequence[Aligned], least: float, progress: Progress) -> dict[Ends, float]:
    """The total of every (key, query), as shared positions; in a long prompt of those that can matter."""
    longest = max(part.runs.length for part in parts)
    queries = _queries(parts)
    if longest <= SHORT:
        ends = [(key, query) for query in queries for key in range(len(parts[0].places))]
        ends = [end for end in ends if is_forward(parts, end)]
    else:
        ends = ends_that_can_matter(parts, queries, least / 2, progress=progress)

    def all_heads(part: Aligned, end: Ends) -> Row:
        return mapping_row(part.runs.heads, *part.at(end))

    return dict(zip(ends, effects_at(parts, ends, all_heads, "totals", progress), strict=True))


def _queries(parts: Sequence[Aligned]) -> list[int]:
    """The shared positions that are changed in any of the prompts."""
    queries = []
    for number in range(len(parts[0].places)):
        if any(part.places[number] >= part.runs.first_changed() for part in parts):
            queries.append(number)
    return queries


def is_forward(parts: Sequence[Aligned], end: Ends) -> bool:
    """Whether the key stands at the query or before it in the prompts of all parts."""
    return all(part.places[end[0]] <= part.places[end[1]] for part in parts)


def ends_that_can_matter(
    parts: Sequence[Aligned],
    queries: Sequence[int],
    least: float,
    *,
    keys_at_once: int = KEYS_AT_ONCE,
    progress: Progress = silent,
) -> list[Ends]:
    """The mappings of a long prompt whose query, and whose group of keys, have an effect of at least `least`
    when all their messages are swapped together."""

    def messages_of_group(part: Aligned, group: tuple[int, Sequence[int]]) -> Row:
        query, keys = group
        places = [(part.places[key], part.places[query]) for key in keys]
        return Row.of_edges(Edge(head, *ends) for head in part.runs.heads for ends in places)

    def keys_of(query: int) -> list[int]:
        every = range(len(parts[0].places))
        return [key for key in every if is_forward(parts, (key, query))]

    def all_messages(part: Aligned, query: int) -> Row:
        if part.runs.ablation.kind == "knockout":  # it shuts edges, not heads
            return messages_of_group(part, (query, keys_of(query)))
        return Row.of_heads(part.runs.heads, part.at([query]))

    groups: list[tuple[int, Sequence[int]]] = []
    effects = effects_at(parts, queries, all_messages, "queries", progress)
    for query, effect in zip(queries, effects, strict=True):
        if abs(effect) >= least:
            keys = keys_of(query)
            for first in range(0, len(keys), keys_at_once):
                groups.append((query, keys[first : first + keys_at_once]))
    ends: list[Ends] = []
    effects = effects_at(parts, groups, messages_of_group, "groups of keys", progress)
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
    parts: Sequence[Aligned],
    ends: Sequence[Ends],
    groups: MappingType[str, Sequence[Position]],
    texts: MappingType[str, str],
    *,
    names: MappingType[str, int],
    seed: int,
    progress: Progress,
) -> list[Span]:
    """Spans of groups, of the ends of mappings, of tokens with a text and of others that matter, in the prompt's
    order. All positions are shared ones; users name those of the first prompt.

    `groups` are positions by label, `texts` counterfactuals by the label of a group or by a token.
    """
    prompt = parts[0].runs.pairs[0].clean
    shown = parts[0].places

    def shared(position: Position) -> int:
        place = prompt.position(position, names)
        if place not in shown:
            raise PromptError(f"position {place} has no counterpart in all prompts")
        return shown.index(place)

    labels: dict[tuple[int, ...], str] = {}  # of every span, by its positions
    for label, members in groups.items():
        positions = tuple(dict.fromkeys(shared(member) for member in as_listed(members)))
        if not positions or not label.strip():
            raise PromptError(f"the group {label!r} needs a name and at least one position")
        taken = [other for known, other in labels.items() if {*known} & {*positions}]
        if taken:
            raise PromptError(
                f"the groups {taken[0]!r} and {label!r} share a position; name each in one group"
            )
        labels[positions] = label
    grouped = set(chain.from_iterable(labels))

    group_of_label = {label: positions for positions, label in labels.items()}
    text_of: dict[tuple[int, ...], str] = {}
    for label, text in texts.items():
        positions = group_of_label.get(label) or (shared(label),)
        text_of[positions] = text

    # A position in a group has no span of its own.
    single = set(chain.from_iterable([*text_of, *ends])) - grouped
    first_word = int(parts[0].runs.model.reads_bos)
    others = [
        number
        for number, place in enumerate(shown)
        if place >= first_word and number not in grouped | single
    ]
    single.update(tokens_that_matter(parts, others, seed=seed, progress=progress))
    role_at = {place: name for name, place in names.items()}
    for number in single:
        place = shown[number]
        labels[(number,)] = role_at.get(place) or label_of(prompt, place)

    spans: list[Span] = []
    for positions, label in sorted(labels.items()):
        progress("spans", len(spans), len(labels))
        text = text_of.get(positions)
        spans.append(span_of(parts, *positions, label=label, text=text, seed=seed))
    return spans
