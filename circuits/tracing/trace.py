"""`trace`: which heads carry one mapping from a key to a query, with controls.

1. Prompt and counterfactual are run once. Where the user named no answer or foil, their predictions are it.
2. The mapping is measured first, then the spans of its two ends (`measure`).
3. The result is a `Circuit`, with a verdict on the question (`judge`) and doubts about the mapping (`trust`).

A family of pairs is traced as one mean mapping (`family`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import torch

from circuits.components import Head
from circuits.engine import Direction, Runs, prepare, to_ablation
from circuits.engine.selection import Mapped
from circuits.errors import PromptError, check_whole, names_its_keywords
from circuits.models.load import as_model
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
from circuits.results import Progress, Watch, sha256_of, silent, unwatched
from circuits.tracing.aligned import Aligned
from circuits.tracing.family import FamilyTrace, trace_asked
from circuits.tracing.inputs import is_family, one_counterfactual, to_family_asked
from circuits.tracing.judge import judge_each
from circuits.tracing.measure import both_values, measure_mapping, measured_model
from circuits.tracing.parts import (
    CARRIES,
    SHARE,
    Ends,
    FamilyControl,
    Mapping,
    Output,
    Position,
    RoleNames,
    Span,
    check_share,
)
from circuits.tracing.records import Circuit
from circuits.tracing.spans import span_of
from circuits.tracing.trust import doubts_about, notes_on

if TYPE_CHECKING:
    import pandas as pd


MOST_MAPS: Final = 128 * 2**20  # bytes of attention maps in a circuit
_PACKAGES: Final = ("keyquery-circuits", "torch", "transformer-lens", "transformers")
# What `asked.to_family` reads; a single text is not one.
Family: TypeAlias = "list[Any] | tuple[Any, ...] | Path | pd.DataFrame"


class Options(TypedDict, total=False):
    """The optional keywords of `trace`, for type checkers."""

    roles: RoleNames | None
    swap: Swap | None
    counterfactual: str | Sequence[str] | None
    answer: Answer | None
    foil: Answer | None
    metric: MetricKind | MetricFunction | ProbeMetric | None
    stability: int
    ablation: Direction
    reference: Sequence[str] | None
    share: float
    seed: int
    progress: Progress
    watch: Watch[Circuit]


@overload
def trace(
    model: Any, text: str, *, key: Position, query: Position = -1, **options: Unpack[Options]
) -> Circuit: ...
@overload
def trace(
    model: Any,
    text: Family,
    *,
    key: Position | None = None,
    query: Position = -1,
    **options: Unpack[Options],
) -> FamilyTrace: ...
@names_its_keywords
def trace(
    model: Any,
    text: Any,
    *,
    key: Position | None = None,
    query: Position = -1,
    roles: RoleNames | None = None,
    swap: Swap | None = None,
    counterfactual: str | Sequence[str] | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    stability: int = 0,
    ablation: Direction = "swap",
    reference: Sequence[str] | None = None,
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
    watch: Watch[Circuit] = unwatched,
) -> Circuit | FamilyTrace:
    """Which heads carry the mapping from `key` to `query`, how much of it, and how sure that is.

    `swap` replaces whole words (`{"large": "hot"}`) or tokens (`{5: "hot"}`). Of several answers any counts;
    an answer of several tokens is measured by its log-probability (`metric="logprob"`).

    `text` is a prompt; or a family, and then the answer is the mean with bootstrap intervals: a list of
    prompts, of (prompt, counterfactual), of pairs or of dicts, a pandas table, or a jsonl file. Prompts may
    differ in length: key and query are found in each, by token, by index, or by a name that `roles` (or a
    line's own) gives to a position. Each prompt of a family takes the words of the swap that it has, or the
    counterfactual at its place in the list; a list of answers or foils has one for each prompt. `stability=16`
    measures the mapping of one prompt under as many other counterfactuals, too.

    `ablation` says what stands in the place of a message: "swap" (the counterfactual's), "restore" (the clean
    one, in the counterfactual run), "zero", "mean" (over the texts of `reference`, or over the family),
    "knockout" (the edge is shut, other keys renormalise) or "noise" (runs with noise on the changed tokens).

    `watch` is called with the circuit of one prompt as far as it is measured: with the total, the carriers,
    the controls, each span. What it raises ends the work.

        >>> found = circuits.trace(model, TEXT, key="large", query=-1, swap={"large": "hot"})
        >>> print(*found.carriers())
        L5H1 L4H0 L5H0 L5H3 L4H5 L3H11
        >>> f"{found.mapping().modulation():.0%}"
        '80%'
    """
    check_share(share)
    check_whole("stability", stability)
    check_roles(roles)
    model = as_model(model)
    chosen = to_ablation(model, ablation, reference)
    if stability and chosen.kind != "swap":
        raise PromptError("stability= compares counterfactuals, by ablation 'swap' alone")
    options: dict[str, Any] = {"share": share, "seed": seed, "progress": progress}
    spec = QuestionSpec(swap=swap, answer=answer, foil=foil, metric=metric, seed=seed)
    if is_family(text):
        if stability:
            raise PromptError(
                "stability= is of one prompt; trace the prompts of a family one by one, or leave it out"
            )
        family = to_family_asked(model, text, counterfactual, spec, key=key, roles=roles)
        asked = [(each.question, each.ends(key, query)) for each in family]
        return trace_asked(model, asked, ablation=chosen, **options)
    own = one_counterfactual(counterfactual)
    if key is None:
        raise PromptError("name the position that is read: key=…, its index or its token")
    ends = to_prompt(model, text).ends(key, query, roles)
    # Without swap and counterfactual, the noise is at the key.
    spec = replace(spec, counterfactual=own, noise_at=(ends[0],))
    runs = prepare(model, [to_question(model, text, spec)], ablation=chosen)
    circuit = trace_pair(runs, ends, watch=watch, **options)
    if not stability:
        return circuit
    from circuits.tracing.stability import measure_stability

    measured = measure_stability(
        model,
        text,
        spec,
        key=ends[0],
        query=ends[1],
        n=stability,
        share=share,
        progress=progress,
    )
    # The question is that of the circuit, so it is not judged again.
    judged = replace(measured, question=circuit.question, doubts=circuit.mapping().doubts)
    return replace(circuit, stability=judged)


def trace_pair(
    runs: Runs,
    ends: Ends,
    *,
    share: float,
    seed: int,
    progress: Progress,
    watch: Watch[Circuit],
) -> Circuit:
    """The mapping and the spans of its two ends on the one pair of `runs`."""
    spans: list[Span] = []

    def show(mapping: Mapping) -> None:
        if watch is not unwatched:  # a draft is costly: it copies the attention maps
            watch(draft([runs], [mapping], spans, focus=ends, seed=seed))

    part = Mapped(runs, *ends)
    mapping = measure_mapping([part], share=share, seed=seed, progress=progress, watch=show)
    if ends[1] >= runs.first_difference:  # else both runs are the same wherever the query reads
        for position in dict.fromkeys(ends):
            show(mapping)
            span = span_of([Aligned.whole(runs)], position, seed=seed, progress=progress)
            if abs(span.moves) >= CARRIES:
                spans.append(span)
    return to_circuit([runs], [mapping], spans, focus=ends, seed=seed)


# The record


def to_circuit(
    batches: Sequence[Runs],
    mappings: Sequence[Mapping],
    spans: Sequence[Span],
    *,
    focus: Ends | None,
    seed: int,
    notes: tuple[str, ...] = (),
    question: FamilyControl | None = None,
) -> Circuit:
    """The record of what was measured on one pair, or on the mean of several, with how far to trust it.

    `question` is the verdict on several pairs. Without it there is one pair, which is judged here.
    """
    runs = batches[0]
    judged = question or judge_each(runs, ends=focus)[0]
    checked = []
    for mapping in mappings:
        doubts = doubts_about(mapping, judged, named=mapping.ends == focus)
        checked.append(replace(mapping, doubts=doubts))
    circuit = draft(batches, checked, spans, focus=focus, seed=seed)
    return replace(
        circuit,
        notes=(*notes_on(runs, judged, checked, ends=focus), *notes),
        question=judged,
    )


def draft(
    batches: Sequence[Runs],
    mappings: Sequence[Mapping],
    spans: Sequence[Span],
    *,
    focus: Ends | None,
    seed: int,
) -> Circuit:
    """The record of what is measured so far, without the verdict on the question."""
    runs = batches[0]
    pair = runs.pairs[0]
    clean, other = both_values(batches)
    arrays = attention_maps(runs, mappings)
    return Circuit(
        source=measured_model(runs),
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        clean_value=clean,
        counterfactual_value=other,
        mappings=tuple(mappings),
        spans=tuple(spans),
        output=output_of(runs),
        focus=focus,
        engine=runs.path,
        seed=seed,
        versions=package_versions(),
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
        ablation=runs.ablation,
    )


def attention_maps(
    runs: Runs, mappings: Sequence[Mapping], *, most_bytes: int = MOST_MAPS
) -> dict[str, np.ndarray]:
    """The attention patterns of the first clean prompt, as `Circuit.arrays` holds them.

    Where the patterns of all heads would take more than `most_bytes`, those of the carriers and then of the
    strongest heads are kept, in half precision.
    """
    layers = runs.first_input().clean.cache.layers
    cells = runs.length**2
    if 4 * len(runs.heads) * cells <= most_bytes:
        # (layer, head, query, key)
        patterns = torch.stack([layer.pattern()[0] for layer in layers])
        return {"patterns": patterns.float().cpu().numpy()}
    most_heads = max(1, most_bytes // (2 * cells))  # half precision: 2 bytes a weight
    heads = _most_important_heads(runs, mappings)[:most_heads]
    maps: dict[Head, torch.Tensor] = {}
    for number, layer in enumerate(layers):
        wanted = [head for head in heads if head.layer == number]
        if wanted:
            # (head, query, key); copies of single heads are kept, so that the whole layer can be freed
            pattern = layer.pattern()[0]
            for head in wanted:
                maps[head] = pattern[head.index].half()
    patterns = torch.stack([maps[head] for head in heads])
    names = np.array([(head.layer, head.index) for head in heads], dtype=np.int32)
    return {"patterns": patterns.cpu().numpy(), "heads": names}


def _most_important_heads(runs: Runs, mappings: Sequence[Mapping]) -> list[Head]:
    """All heads of the model: first those on greedy paths, then the others by their strongest effect."""
    on_paths: list[Head] = []
    effects: list[tuple[float, Head]] = []
    for mapping in mappings:
        on_paths += [step.head for step in mapping.path]
        effects += [(-abs(each.effect), each.head) for each in mapping.heads]
    strongest = [head for _, head in sorted(effects)]
    return list(dict.fromkeys([*on_paths, *strongest, *runs.heads]))


def output_of(runs: Runs) -> Output:
    """The prediction at the last position of the first clean prompt."""
    probabilities = runs.clean.logits[0, runs.metric.prediction].float().softmax(-1)
    predicted = int(probabilities.argmax())
    word = runs.model.spell(predicted)
    return Output(word.strip() or word, float(probabilities[predicted]), runs.model.n_layers)


def package_versions() -> tuple[tuple[str, str], ...]:
    """The packages that a measurement depends on."""
    versions: list[tuple[str, str]] = []
    for package in _PACKAGES:
        try:
            versions.append((package, version(package)))
        except PackageNotFoundError:
            versions.append((package, "not installed"))
    return tuple(versions)
