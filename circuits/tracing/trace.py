"""`trace`: which heads carry one mapping from a key to a query, with controls.

The predictions on prompt and counterfactual settle answer and foil where the user named none. The mapping is
measured first, then the spans of its two ends (`measure`). A family of pairs is traced as one (`family`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, overload

import numpy as np
import torch

from circuits.engine import Runs, prepare
from circuits.engine.runs import every_head
from circuits.engine.search import mapping_rows
from circuits.errors import PromptError, names_its_keywords
from circuits.models.load import as_model
from circuits.prompts import Answer, MetricFunction, MetricKind, Pair, Swap, Wording, to_prompt, to_question
from circuits.results import Progress, Watch, sha256_of, silent, unwatched
from circuits.tracing import CARRIES, SHARE, Mapping, MeasuredModel, Output, Span
from circuits.tracing.measure import both_values, measure_mapping, span_of
from circuits.tracing.records import Circuit
from circuits.tracing.trust import control_question, doubts_about, notes_on

if TYPE_CHECKING:
    from circuits.tracing.family import FamilyTrace

MOST_MAPS: Final = 128 * 2**20  # bytes of attention maps in a circuit
_PACKAGES: Final = ("keyquery-circuits", "torch", "transformer-lens", "transformers")
Position = int | str
Family = list[Pair] | tuple[Pair, ...] | list[str] | tuple[str, ...]


class Options(TypedDict, total=False):
    """What a trace of pairs takes beside key and query."""

    share: float
    seed: int
    progress: Progress


class TextOptions(Options, total=False):
    """What a trace of a text takes: how the question is worded, too."""

    swap: Swap | None
    counterfactual: str | Sequence[str] | None
    answer: Answer | None
    foil: Answer | None
    metric: MetricKind | MetricFunction | None
    stability: int
    watch: Watch[Circuit]


@overload
def trace(
    model: Any, text: str, *, key: Position, query: Position = -1, **options: Unpack[TextOptions]
) -> Circuit: ...
@overload
def trace(
    model: Any, text: Family, *, key: Position, query: Position = -1, **options: Unpack[TextOptions]
) -> FamilyTrace: ...
@names_its_keywords
def trace(
    model: Any,
    text: str | Family,
    *,
    key: Position,
    query: Position = -1,
    swap: Swap | None = None,
    counterfactual: str | Sequence[str] | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | None = None,
    stability: int = 0,
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
    watch: Watch[Circuit] = unwatched,
) -> Circuit | FamilyTrace:
    """Which heads carry the mapping from `key` to `query`, how much of it, and how sure that is.

    `swap` replaces whole words (`{"large": "hot"}`) or tokens (`{5: "hot"}`). Of several answers any counts;
    an answer of several tokens is measured by its log-probability (`metric="logprob"`).

    `text` is a prompt; or a family of prompts or pairs of equal length, and then the answer is their mean
    with bootstrap intervals. Each prompt of a family takes the words of the swap that it has, or the
    counterfactual at its place in the list. `stability=16` measures the mapping under as many other
    counterfactuals, too.

    `watch` is called with the circuit of one prompt as far as it is measured: with the total, the carriers,
    the controls, each span. What it raises ends the work.

        >>> found = circuits.trace(model, TEXT, key="large", query=-1, swap={"large": "hot"})
        >>> print(*found.carriers())
        L5H1 L4H0 L5H0 L5H3 L4H5 L3H11
        >>> f"{found.mapping().modulation():.0%}"
        '80%'
    """
    measured = as_model(model)
    how: dict[str, Any] = {"share": share, "seed": seed, "progress": progress}
    if not isinstance(text, str):
        from circuits.tracing.family import trace_family, trace_texts

        pairs = [each for each in text if isinstance(each, Pair)]
        texts = [each for each in text if isinstance(each, str)]
        if len(pairs) == len(text):
            return trace_family(measured, pairs, key=key, query=query, **how)
        if len(texts) != len(text):
            raise PromptError("a family is a list of texts or a list of pairs, not both")
        wording = Wording(None, swap, None, answer, foil, metric, seed)
        others = [None] * len(texts) if counterfactual is None else counterfactual
        return trace_texts(measured, texts, others, wording, key=key, query=query, **how)
    if not (counterfactual is None or isinstance(counterfactual, str)):
        raise PromptError("one prompt takes one counterfactual; give its text, not a list")
    ends = to_prompt(measured, text).ends(key, query)
    wording = Wording(counterfactual, swap, ends[:1], answer, foil, metric, seed)
    first = mapping_rows(every_head(measured), *ends)
    runs = prepare(measured, [to_question(measured, text, wording)], rows=first)
    spans: list[Span] = []

    def show(mapping: Mapping) -> None:
        if watch is not unwatched:
            watch(draft(runs, [mapping], spans, focus=ends, seed=seed))

    mapping = measure_mapping(runs, *ends, share=share, seed=seed, progress=progress, watch=show)
    reached = ends[1] >= runs.first_difference  # else nothing differs where the query reads
    for position in dict.fromkeys(ends) if reached else ():
        show(mapping)
        span = span_of(runs, position, seed=seed, progress=progress)
        spans += [span] if abs(span.moves) >= CARRIES else []
    circuit = to_circuit(runs, [mapping], spans, focus=ends, seed=seed)
    if not stability:
        return circuit
    from circuits.tracing import stability as other_runs

    how |= {"swap": swap, "counterfactual": counterfactual, "answer": answer, "foil": foil, "metric": metric}
    others = other_runs.stability(measured, text, key=ends[0], query=ends[1], n=stability, **how)
    return replace(circuit, stability=others)


def to_circuit(
    runs: Runs,
    mappings: Sequence[Mapping],
    spans: Sequence[Span],
    *,
    focus: tuple[int, int] | None,
    seed: int,
    notes: tuple[str, ...] = (),
) -> Circuit:
    """The record of what was measured on one pair, with how far to trust it."""
    question = control_question(runs, seed=seed)
    mappings = [
        replace(mapping, doubts=doubts_about(mapping, question, named=mapping.ends == focus))
        for mapping in mappings
    ]
    notes = (*notes_on(runs, question, mappings), *notes)
    return replace(draft(runs, mappings, spans, focus=focus, seed=seed), notes=notes, question=question)


def draft(
    runs: Runs,
    mappings: Sequence[Mapping],
    spans: Sequence[Span],
    *,
    focus: tuple[int, int] | None,
    seed: int,
) -> Circuit:
    """The record of what is measured so far; nobody has asked yet how far to trust it."""
    pair, arrays = runs.pairs[0], attention_maps(runs, mappings)
    clean, other = both_values(runs)
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
    )


def attention_maps(runs: Runs, mappings: Sequence[Mapping]) -> dict[str, np.ndarray]:
    """The maps of the clean run: all of them, or of a long prompt those of the heads that do most, first the
    paths of the mappings, in half precision."""
    layers, size = runs.clean.cache.layers, runs.length**2
    if 4 * len(runs.heads) * size <= MOST_MAPS:
        return {"patterns": torch.stack([layer.pattern[0] for layer in layers]).float().cpu().numpy()}
    paths = [step.head for mapping in mappings for step in mapping.path]
    singles = sorted((-abs(each.effect), each.head) for mapping in mappings for each in mapping.heads)
    ordered = dict.fromkeys([*paths, *(head for _, head in singles), *runs.heads])
    heads = [*ordered][: max(1, MOST_MAPS // (2 * size))]
    maps = torch.stack([layers[head.layer].pattern[0, head.index] for head in heads])
    numbers = np.array([(head.layer, head.index) for head in heads], dtype=np.int32)
    return {"patterns": maps.half().cpu().numpy(), "heads": numbers}


def measured_model(runs: Runs) -> MeasuredModel:
    """The model of these runs, and how many of its edges are open on the first clean prompt."""
    model, length = runs.model, runs.length
    opened = sum(int((layer.pattern[0] > 0).sum()) for layer in runs.clean.cache.layers)
    return MeasuredModel(
        name=model.name,
        fingerprint=model.fingerprint,
        layers=model.n_layers,
        heads=model.n_heads,
        gated=model.gated,
        reads_bos=model.reads_bos,
        width=model.d_model,
        parallel=runs.layout is not None and runs.layout.parallel,
        open_edges=opened,
        edges=model.n_layers * model.n_heads * length * (length + 1) // 2,
        dtype=str(model.dtype).removeprefix("torch."),
    )


def output_of(runs: Runs) -> Output:
    """What the model says at the last position of the first clean prompt."""
    probabilities = runs.clean.logits[0, 0].float().softmax(-1)
    predicted = int(probabilities.argmax())
    word = runs.model.spell(predicted)
    return Output(word.strip() or word, float(probabilities[predicted]), runs.model.n_layers)


def package_versions() -> tuple[tuple[str, str], ...]:
    """The packages that a measurement depends on."""
    return tuple((name, _version(name)) for name in _PACKAGES)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
