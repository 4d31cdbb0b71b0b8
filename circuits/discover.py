"""The two questions: `trace` asks about one key and one query, `circuit` asks for everything that a pair's difference flows through.

1. The pair is run clean and counterfactual.
2. `trace` measures one mapping with all its controls, and the spans of its two ends.
3. `circuit` measures the total of every mapping between positions; those that carry something get the head-level sweep. Spans are
   measured for the ends of those mappings and for every other token that matters, each from its own counterfactual.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypedDict, Unpack, overload

import torch

from circuits.edges import Head
from circuits.engine import Runs, prepare
from circuits.errors import ModelError, PromptError
from circuits.family import FamilyTrace, trace_family
from circuits.mapping import Progress, measure_mapping, silent, totals
from circuits.models import Model, as_model, load
from circuits.prompts import MetricFunction, MetricKind, Noise, Pair, Prompt, to_pair, to_prompt
from circuits.records import CARRIES, SHARE, Mapping, Output, Source, Span
from circuits.result import Circuit, finite, sha256_of
from circuits.spans import measure_span, own_pair, tokens_that_matter

_PACKAGES: Final = ("keyquery-circuits", "torch", "transformer-lens", "transformers")


class Asked(TypedDict, total=False):
    """How a pair is asked for."""

    counterfactual: str | None
    swap: dict[str, str] | None
    answer: str | None
    foil: str | None
    metric: MetricKind | MetricFunction | None


class Options(Asked, total=False):
    """What else a trace takes."""

    share: float
    seed: int
    progress: Progress


@overload
def trace(model: Any, text: str, *, key: int | str, query: int | str = -1, **options: Unpack[Options]) -> Circuit: ...
@overload
def trace(model: Any, text: Sequence[Pair], *, key: int | str, query: int | str = -1, **options: Unpack[Options]) -> FamilyTrace: ...
def trace(
    model: Any,
    text: str | Sequence[Pair],
    *,
    key: int | str,
    query: int | str = -1,
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
    **asked: Unpack[Asked],
) -> Circuit | FamilyTrace:
    """Which heads carry the mapping from `key` to `query`, how much of it, and how sure that is.

    `text` is a prompt; or a family of pairs of equal length, and then the answer is their mean with bootstrap intervals.
    """
    known = as_model(model)
    if not isinstance(text, str):
        return trace_family(known, text, key=key, query=query, share=share, seed=seed, progress=progress)
    prompt_ends = _ends(known, text, key, query)
    pair = to_pair(known, text, noise_at=prompt_ends[:1], seed=seed, **asked)
    runs = prepare(known, [pair])
    found = measure_mapping(runs, *prompt_ends, share=share, seed=seed, progress=progress)
    spans = [_span(runs, pair.clean.words[at].strip(), (at,), seed=seed) for at in dict.fromkeys(prompt_ends)]
    return _record(runs, [found], spans, focus=prompt_ends, seed=seed)


def circuit(
    model: Any,
    text: str,
    *,
    groups: MappingType[str, Sequence[int | str]] | None = None,
    counterfactuals: MappingType[str, str] | None = None,
    share: float = SHARE,
    least: float = CARRIES,
    seed: int = 0,
    progress: Progress = silent,
    **asked: Unpack[Asked],
) -> Circuit:
    """Every mapping of at least `least` that the pair's difference flows through, and the spans of every token that matters.

    `groups` names positions that belong together (`{"brackets": (4, 6)}`); `counterfactuals` gives a text for a token or group of
    its own (`{"opposite": 'The colour of "large" is "'}`), in the place of noise.
    """
    known = as_model(model)
    pair = to_pair(known, text, seed=seed, **asked)
    runs = prepare(known, [pair])
    length, first = len(pair), min(pair.differs_at)
    places = [(key, query) for query in range(first, length) for key in range(query + 1)]
    carried = [(place, total) for place, total in zip(places, totals(runs, places, progress=progress), strict=True) if total >= least]
    carried.sort(key=lambda item: (-item[1], item[0]))
    mappings = []
    for (key, query), _ in carried:
        progress("mappings", len(mappings), len(carried))
        mappings.append(measure_mapping(runs, key, query, share=share, seed=seed))
    spans = _spans(runs, mappings, groups or {}, counterfactuals or {}, seed=seed, progress=progress)
    return _record(runs, mappings, spans, focus=None, seed=seed)


def remeasure_without(known: Circuit, heads: Sequence[Head], *, model: Any = None) -> Circuit:
    """The same question on the same pair, with some heads absent."""
    if known.metric.kind == "custom":
        raise PromptError("a circuit of a metric function cannot be measured again from its record; call trace with the function")
    found = load(known.source.name, gate=known.source.gated or None) if model is None else as_model(model)
    if found.fingerprint != known.source.fingerprint:
        raise ModelError(f"{found.name} has other weights than the circuit was measured on; give the right one as model=…")
    runs = prepare(found, [Pair(known.prompt, known.counterfactual, known.metric)]).without(heads)
    mappings = [measure_mapping(runs, m.key, m.query, controls=m.controls is not None, seed=known.seed) for m in known.mappings]
    spans = [measure_span(runs, s.label, s.positions) for s in known.spans if s.counterfactual == _spoken(known.counterfactual)]
    return _record(runs, sorted(mappings, key=lambda m: -m.total), spans, focus=known.focus, seed=known.seed)


def _ends(model: Model, text: str, key: int | str, query: int | str) -> tuple[int, int]:
    prompt = to_prompt(model, text)
    ends = prompt.position(key), prompt.position(query)
    if ends[0] > ends[1]:
        raise PromptError(
            f"key {ends[0]} stands after query {ends[1]}: a query reads keys at or before itself, so name the earlier one as key"
        )
    return ends


def _spoken(counterfactual: Prompt | Noise) -> str:
    return counterfactual.text if isinstance(counterfactual, Prompt) else str(counterfactual)


def _span(runs: Runs, label: str, positions: tuple[int, ...], *, seed: int, text: str | None = None) -> Span:
    """A span from the pair itself where its difference is or passes, else from a counterfactual of the token's own."""
    pair, model = runs.pairs[0], runs.model
    if text is not None:
        return measure_span(prepare(model, [to_pair(model, pair.clean.text, counterfactual=text)]), label, positions)
    passes = measure_span(runs, label, positions)
    if passes.effect >= CARRIES:
        return passes
    try:
        own = prepare(model, [own_pair(pair, positions, seed=seed)])
    except PromptError:  # noise there changes nothing to divide by: what passes is all there is
        return passes
    return measure_span(own, label, positions)


def _spans(
    runs: Runs,
    mappings: Sequence[Mapping],
    groups: MappingType[str, Sequence[int | str]],
    texts: MappingType[str, str],
    *,
    seed: int,
    progress: Progress,
) -> list[Span]:
    """Spans of named groups, ends of mappings, tokens with a text of their own and all others that matter, in the sentence's order."""
    prompt = runs.pairs[0].clean
    named = {label: tuple(prompt.position(at) for at in members) for label, members in groups.items()}
    own = {named[label] if label in named else (prompt.position(label),): text for label, text in texts.items()}
    grouped = {at for members in named.values() for at in members}
    ends = ({at for m in mappings for at in (m.key, m.query)} | {at for positions in own for at in positions}) - grouped
    others = [at for at in range(1 if runs.model.reads_bos else 0, len(prompt)) if at not in grouped | ends]
    matter = tokens_that_matter(runs.model, runs.pairs[0], [(at,) for at in others], seed=seed)
    single = {at: prompt.words[at].strip() or repr(prompt.words[at]) for at in sorted(ends | {others[index] for index in matter})}
    wanted = sorted([*((members, label) for label, members in named.items()), *(((at,), word) for at, word in single.items())])
    found = []
    for positions, label in wanted:
        progress("spans", len(found), len(wanted))
        found.append(_span(runs, label, positions, seed=seed, text=own.get(positions)))
    return found


def _record(runs: Runs, mappings: Sequence[Mapping], spans: Sequence[Span], *, focus: tuple[int, int] | None, seed: int) -> Circuit:
    model, pair = runs.model, runs.pairs[0]
    patterns = torch.stack([layer.pattern[0] for layer in runs.clean.cache.layers]).float().cpu().numpy()
    arrays = {"patterns": patterns}
    chance = runs.clean.logits[0].float().softmax(-1)
    said = int(chance.argmax())
    edges = model.n_layers * model.n_heads * len(pair) * (len(pair) + 1) // 2
    source = Source(
        name=model.name,
        fingerprint=model.fingerprint,
        layers=model.n_layers,
        heads=model.n_heads,
        gated=model.gated,
        reads_bos=model.reads_bos,
        width=model.d_model,
        parallel=runs.layout is not None and runs.layout.parallel,
        open_edges=int((patterns > 0).sum()),
        edges=edges,
    )
    return Circuit(
        source=source,
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        clean_value=finite(float(runs.values(runs.clean)[0])),
        counterfactual_value=finite(float(runs.values(runs.counterfactual)[0])),
        mappings=tuple(mappings),
        spans=tuple(spans),
        output=Output(model.spell(said).strip() or model.spell(said), float(chance[said]), model.n_layers),
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
