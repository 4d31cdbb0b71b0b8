"""A saved result measured again: the same question, with the settings that the record states.

1. The model is loaded by its name; weights, gate and BOS rule must be those of the record.
2. Of the pair only token ids are taken from the record. Its words and texts are spelled anew by the model's
   tokenizer, so that words that were changed in a file are seen.
3. The verb that made the record measures all of it anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from circuits.engine import Ablation, Runs, prepare
from circuits.errors import CircuitsError, FileError, PromptError
from circuits.models.load import Device
from circuits.models.model import Model
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.prompts.metric import COMPARES_WITH_FOIL
from circuits.results import Progress, unwatched
from circuits.tracing.circuit import measure_circuit, model_of
from circuits.tracing.family import FamilyTrace, trace_asked
from circuits.tracing.measure import counterfactual_text
from circuits.tracing.parts import CARRIES, MeasuredModel, Span
from circuits.tracing.records import Circuit, Why
from circuits.tracing.trace import trace_pair
from circuits.tracing.why import explain
from circuits.wires.record import Wiring
from circuits.wires.wiring import asked_again, search_family
from circuits.wires.wiring import measure_again as measure_wires_again

Measurable = Circuit | Wiring | Why | FamilyTrace


def measure_again(
    record: Measurable, *, model: Any, device: Device, progress: Progress
) -> Measurable:
    """The same question asked again of the record's own model, which is loaded by its name unless given."""
    source = _source_of(record)
    loaded = model_of(source.name, source, model, device=device)
    if isinstance(record, FamilyTrace):
        return _family(record, loaded, progress)
    if isinstance(record, Wiring):
        return _wiring(record, loaded, progress)
    asked = (Pair(record.prompt, record.counterfactual, record.metric),)
    if isinstance(record, Why) and record.pairs:
        asked = record.pairs
    pairs = [respelled_pair(loaded, pair) for pair in asked]
    runs = prepare(loaded, pairs, ablation=_respelled_ablation(loaded, record.ablation))
    if isinstance(record, Circuit):
        return _circuit(record, runs, progress)
    return _why(record, runs, progress)


def _source_of(record: Measurable) -> MeasuredModel:
    source = record.source
    if source is None:
        raise FileError(
            "this trace of a family does not say which weights it was measured on; trace it again"
        )
    return source


# The pair


def respelled_pair(model: Model, pair: Pair) -> Pair:
    """The pair of the same tokens with its words, texts and metric spelled by this model's tokenizer."""
    _check_metric(pair.metric)
    metric = _respelled_metric(model, pair.metric)
    appended = len(metric.sequence[:-1])
    other = pair.counterfactual
    if isinstance(other, Prompt):
        other = _respelled_prompt(model, other, appended)
    return Pair(_respelled_prompt(model, pair.clean, appended), other, metric)


def _respelled_ablation(model: Model, ablation: Ablation) -> Ablation:
    """The same ablation over prompts of the same tokens, which the model must have."""
    reference = [_respelled_prompt(model, prompt, 0) for prompt in ablation.reference]
    return replace(ablation, reference=tuple(reference))


def _respelled_prompt(model: Model, prompt: Prompt, appended: int) -> Prompt:
    """The prompt with its words spelled anew. Its text stays if it has these tokens, else it is their
    spelling. The last `appended` tokens belong to the answer and are no part of the text."""
    words = _spell(model, prompt.tokens)
    own = prompt.tokens[: len(prompt) - appended]
    try:
        text_holds = model.tokenize(prompt.text) == own
    except CircuitsError:
        text_holds = False
    spelled = "".join(words[model.reads_bos : len(own)])
    return Prompt(prompt.text if text_holds else spelled, prompt.tokens, words)


def _check_metric(metric: Metric) -> None:
    """Refuse a metric that cannot be measured again, or that has parts of another kind of metric."""
    if metric.kind == "custom":
        raise PromptError("a metric function is not in a file; call trace with it again")
    if metric.kind in COMPARES_WITH_FOIL and metric.foil is None:
        raise PromptError(f"a {metric.kind} compares the answer with a foil, and it has none")
    if metric.sequence and metric.kind != "logprob":
        raise PromptError("an answer of several tokens is measured by its logprob alone")


def _respelled_metric(model: Model, metric: Metric) -> Metric:
    """The metric of the same answer and foil tokens, with their texts spelled anew."""
    if metric.sequence:
        text = "".join(_spell(model, metric.sequence))
        return Metric(metric.kind, metric.sequence[0], text, sequence=metric.sequence)
    answers = metric.answers or (metric.answer,)
    foils = metric.foils
    if not foils and metric.foil is not None:
        foils = (metric.foil,)
    return Metric(
        metric.kind,
        answer=answers[0],
        answer_text=" or ".join(_spell(model, answers)),
        foil=foils[0] if foils else None,
        foil_text=" or ".join(_spell(model, foils)) if foils else None,
        answers=answers if len(answers) > 1 else (),
        foils=foils if len(foils) > 1 else (),
        sees=metric.sees,
        probe=metric.probe,
    )


def _spell(model: Model, tokens: tuple[int, ...]) -> tuple[str, ...]:
    """The texts of tokens; an error if the model does not have one of them."""
    for token in tokens:
        if not 0 <= token < model.vocab_size:
            raise PromptError(
                f"{model.name} has no token {token}; its tokens are 0…{model.vocab_size - 1}"
            )
    return tuple(model.spell(token) for token in tokens)


# Each kind of result


def _circuit(record: Circuit, runs: Runs, progress: Progress) -> Circuit:
    """The mapping that was asked for, or all that carry enough, with controls, spans and verdict."""
    seed, share = record.seed, record.share
    if record.focus is not None:
        ends = record.focus
        return trace_pair(
            runs, ends, share=share, seed=seed, progress=progress, watch=unwatched
        )
    groups: dict[str, tuple[int, ...]] = {}
    texts: dict[str, str] = {}
    for span in record.spans:
        if is_group(span, record.prompt):
            groups[span.label] = span.positions
        text = _own_text(span, runs.pairs[0])
        if text is not None:
            name = span.label if is_group(span, record.prompt) else str(span.positions[0])
            texts[name] = text
    return measure_circuit(
        runs,
        groups=groups,
        counterfactuals=texts,
        share=share,
        least=CARRIES if record.least is None else record.least,
        seed=seed,
        progress=progress,
    )


def is_group(span: Span, prompt: Prompt) -> bool:
    """Whether a user named the positions of a span: its label is not the word of its one token."""
    word = prompt.words[span.positions[0]]
    return len(span.positions) > 1 or span.label != (word.strip() or repr(word))


def _own_text(span: Span, pair: Pair) -> str | None:
    """The text that a user gave as the counterfactual of a span; None if it is the pair's, or noise."""
    noise = str(Noise(span.positions)).partition("(")[0]
    of_pair = span.counterfactual == counterfactual_text(pair)
    return None if of_pair or span.counterfactual.startswith(noise) else span.counterfactual


def _why(record: Why, runs: Runs, progress: Progress) -> Why:
    answer = explain(
        runs,
        record.head,
        record.key,
        record.query,
        every_key=record.every_key,
        seed=record.seed,
        progress=progress,
    )
    return replace(answer, pairs=runs.pairs) if record.pairs else answer


def _wiring(record: Wiring, model: Model, progress: Progress) -> Wiring:
    """The search made again; of a circuit that a user made smaller, what its wires keep."""
    asked = []
    for each in asked_again(record):
        assert isinstance(each.question, Pair)
        asked.append(replace(each, question=respelled_pair(model, each.question)))
    split = len(record.seen)
    found = search_family(
        model,
        asked[:split],
        asked[split:],
        task=record.task,
        at_places=bool(record.places),
        share=record.share,
        aim=record.aim,
        without=record.without_heads,
        resamples=0 if record.overlap is None else record.overlap.resamples,
        ablation=_respelled_ablation(model, record.ablation),
        seed=record.seed,
        progress=progress,
    )
    if record.searched:
        return found
    return measure_wires_again(found, [each.wire for each in record.wires], model=model)


def _family(record: FamilyTrace, model: Model, progress: Progress) -> FamilyTrace:
    pairs = [respelled_pair(model, pair) for pair in record.all_pairs]
    ends = record.all_ends or [record.mapping.ends] * len(pairs)
    return trace_asked(
        model,
        list(zip(pairs, ends, strict=True)),
        share=record.share,
        ablation=_respelled_ablation(model, record.ablation),
        seed=record.seed or 0,
        progress=progress,
    )
