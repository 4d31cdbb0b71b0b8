"""`trace`: which heads carry one mapping from a key to a query, with controls.

1. The prompt and its counterfactual are run once; their predictions settle answer and foil where the user
   named none.
2. The mapping is measured with all its controls (`mapping`), then the spans of its two ends (`spans`).
3. A family of pairs is traced as one, with intervals (`family`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, overload

import torch

from circuits.engine import Runs, prepare
from circuits.engine.runs import every_head
from circuits.engine.select import mapping_rows
from circuits.links import Progress, silent
from circuits.models.load import as_model
from circuits.prompts import MetricFunction, MetricKind, Pair, Wording, to_prompt, to_question
from circuits.tracing.mapping import measure_mapping
from circuits.tracing.records import SHARE, Circuit, Mapping, MeasuredModel, Output, Span, finite, sha256_of
from circuits.tracing.spans import span_of

if TYPE_CHECKING:
    from circuits.tracing.family import FamilyTrace

_PACKAGES: Final = ("keyquery-circuits", "torch", "transformer-lens", "transformers")


class Options(TypedDict, total=False):
    """What a trace of pairs takes beside key and query."""

    share: float
    seed: int
    progress: Progress


class TextOptions(Options, total=False):
    """What a trace of a text takes: how the question is worded, too."""

    swap: dict[str, str] | None
    counterfactual: str | None
    answer: str | None
    foil: str | None
    metric: MetricKind | MetricFunction | None


Position = int | str


@overload
def trace(
    model: Any, text: str, *, key: Position, query: Position = -1, **options: Unpack[TextOptions]
) -> Circuit: ...
@overload
def trace(
    model: Any, text: Sequence[Pair], *, key: Position, query: Position = -1, **options: Unpack[Options]
) -> FamilyTrace: ...
def trace(
    model: Any,
    text: str | Sequence[Pair],
    *,
    key: int | str,
    query: int | str = -1,
    swap: dict[str, str] | None = None,
    counterfactual: str | None = None,
    answer: str | None = None,
    foil: str | None = None,
    metric: MetricKind | MetricFunction | None = None,
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
) -> Circuit | FamilyTrace:
    """Which heads carry the mapping from `key` to `query`, how much of it, and how sure that is.

    `text` is a prompt; or a family of pairs of equal length, and then the answer is their mean with bootstrap
    intervals.
    """
    measured = as_model(model)
    if not isinstance(text, str):
        from circuits.tracing.family import trace_family

        return trace_family(measured, text, key=key, query=query, share=share, seed=seed, progress=progress)
    ends = to_prompt(measured, text).ends(key, query)
    wording = Wording(counterfactual, swap, ends[:1], answer, foil, metric, seed)
    first = mapping_rows(every_head(measured), *ends)
    runs = prepare(measured, [to_question(measured, text, wording)], rows=first)
    mapping = measure_mapping(runs, *ends, share=share, seed=seed, progress=progress)
    spans = [span_of(runs, position, seed=seed) for position in dict.fromkeys(ends)]
    return to_circuit(runs, [mapping], spans, focus=ends, seed=seed)


def to_circuit(
    runs: Runs,
    mappings: Sequence[Mapping],
    spans: Sequence[Span],
    *,
    focus: tuple[int, int] | None,
    seed: int,
) -> Circuit:
    """The record of what was measured on one pair."""
    model, pair = runs.model, runs.pairs[0]
    patterns = torch.stack([layer.pattern[0] for layer in runs.clean.cache.layers]).float().cpu().numpy()
    arrays = {"patterns": patterns}
    probabilities = runs.clean.logits[0].float().softmax(-1)
    predicted = int(probabilities.argmax())
    word = model.spell(predicted)
    return Circuit(
        source=MeasuredModel(
            name=model.name,
            fingerprint=model.fingerprint,
            layers=model.n_layers,
            heads=model.n_heads,
            gated=model.gated,
            reads_bos=model.reads_bos,
            width=model.d_model,
            parallel=runs.layout is not None and runs.layout.parallel,
            open_edges=int((patterns > 0).sum()),
            edges=model.n_layers * model.n_heads * len(pair) * (len(pair) + 1) // 2,
        ),
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        clean_value=finite(float(runs.values(runs.clean)[0])),
        counterfactual_value=finite(float(runs.values(runs.counterfactual)[0])),
        mappings=tuple(mappings),
        spans=tuple(spans),
        output=Output(word.strip() or word, float(probabilities[predicted]), model.n_layers),
        focus=focus,
        engine=runs.path,
        seed=seed,
        versions=tuple((name, _version(name)) for name in _PACKAGES),
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
