"""A saved result measured again: the same question, with the settings that the record states.

1. The model is loaded by its name; weights, gate and BOS rule must be those of the record.
2. Of the pair only token ids are taken from the record. Its words and texts are spelled anew by the model's
   tokenizer, so that words that were changed in a file are seen.
3. What was asked becomes a question of its own (`question_of`): plain values, equal where the same is asked.
4. The verb that made the record measures all of it anew (`Question.measure`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from circuits.components import Head, Wire
from circuits.engine import Ablation, prepare
from circuits.engine.selection import Mapped
from circuits.errors import CircuitsError, FileError, PromptError
from circuits.models.load import Device
from circuits.models.model import Model
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.prompts.metric import COMPARES_WITH_FOIL
from circuits.results import Progress, unwatched
from circuits.tracing.aligned import Aligned
from circuits.tracing.asked import Asked, Family
from circuits.tracing.circuit import family_circuit, measure_circuit
from circuits.tracing.family import FamilyTrace, trace_asked
from circuits.tracing.parts import CARRIES, Span
from circuits.tracing.records import Circuit
from circuits.tracing.rerun import model_of
from circuits.tracing.spans import counterfactual_text, label_of
from circuits.tracing.trace import trace_pair
from circuits.tracing.why import explain, of_family, placed_parts
from circuits.tracing.why_record import Why
from circuits.wires.again import asked_again, to_asked
from circuits.wires.again import measure_again as measure_wires_again
from circuits.wires.record import Wiring
from circuits.wires.wiring import Asking, search_family

Measurable = Circuit | Wiring | Why | FamilyTrace


def own_model(record: Measurable, model: Any, *, device: Device) -> Model:
    """The model that a record was measured on, loaded by its name unless it is given."""
    source = record.source
    if source is None:
        raise FileError(
            "this trace of a family does not say which weights it was measured on; trace it again"
        )
    return model_of(source.name, source, model, device=device)


def question_of(record: Measurable, model: Model) -> Question:
    """What a record asked: its pairs, spelled anew by its model, and the settings that it states."""
    if isinstance(record, FamilyTrace):
        return _family_question(record, model)
    if isinstance(record, Wiring):
        return _wiring_question(record, model)
    ablation = _respelled_ablation(model, record.ablation)
    pair = respelled_pair(model, Pair(record.prompt, record.counterfactual, record.metric))
    if isinstance(record, Why):
        return _why_question(record, model, pair, ablation)
    if record.focus is not None:
        return TraceQuestion(pair, ablation, record.focus, record.share, record.seed)
    return _circuit_question(record, model, pair, ablation)


# The questions, one for each verb. They are frozen and hashable: equal questions have equal answers.


@dataclass(frozen=True)
class TraceQuestion:
    """One mapping of one pair."""

    pair: Pair
    ablation: Ablation
    ends: tuple[int, int]
    share: float
    seed: int

    def measure(self, model: Model, progress: Progress) -> Circuit:
        return trace_pair(
            prepare(model, [self.pair], ablation=self.ablation),
            self.ends,
            share=self.share,
            seed=self.seed,
            progress=progress,
            watch=unwatched,
        )


@dataclass(frozen=True)
class CircuitQuestion:
    """All mappings of one pair that carry enough, or of several on the mean."""

    asked: tuple[Asked, ...]
    of_family: bool
    ablation: Ablation
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # names that the user gave to positions
    texts: tuple[tuple[str, str], ...]  # spans with a counterfactual of their own, and its text
    share: float
    least: float
    seed: int

    def measure(self, model: Model, progress: Progress) -> Circuit:
        options: dict[str, Any] = {"share": self.share, "least": self.least, "seed": self.seed}
        options |= {"groups": dict(self.groups), "progress": progress}
        if self.of_family:
            return family_circuit(model, self.asked, ablation=self.ablation, **options)
        runs = prepare(model, [self.asked[0].question], ablation=self.ablation)
        whole = [Aligned.whole(runs)]
        return measure_circuit(whole, counterfactuals=dict(self.texts), **options)


@dataclass(frozen=True)
class WhyQuestion:
    """One head at one key and query, on one pair or on several together."""

    pairs: tuple[Pair, ...]
    of_family: bool
    ablation: Ablation
    head: Head
    ends: tuple[tuple[int, int], ...]  # key and query of each pair
    every_key: bool
    seed: int

    def measure(self, model: Model, progress: Progress) -> Why:
        if self.of_family:
            parts = placed_parts(model, self.pairs, self.ends, self.ablation)
        else:
            runs = prepare(model, self.pairs, ablation=self.ablation)
            parts = [Mapped(runs, *self.ends[0])]
        answer = explain(
            parts, self.head, every_key=self.every_key, seed=self.seed, progress=progress
        )
        return of_family(answer, parts) if self.of_family else answer


@dataclass(frozen=True)
class WiringQuestion:
    """The smallest circuit that keeps a share, or what chosen wires keep."""

    seen: tuple[Asked, ...]
    held_out: tuple[Asked, ...]
    asking: Asking
    chosen: tuple[Wire, ...] | None  # of a circuit that the user made smaller

    def measure(self, model: Model, progress: Progress) -> Wiring:
        found = search_family(model, self.seen, self.held_out, self.asking, progress=progress)
        if self.chosen is None:
            return found
        return measure_wires_again(found, self.chosen, model=model)


@dataclass(frozen=True)
class FamilyQuestion:
    """One mapping of several pairs, each with its key and query."""

    pairs: tuple[Pair, ...]
    ends: tuple[tuple[int, int], ...]
    share: float
    ablation: Ablation
    seed: int

    def measure(self, model: Model, progress: Progress) -> FamilyTrace:
        return trace_asked(
            model,
            list(zip(self.pairs, self.ends, strict=True)),
            share=self.share,
            ablation=self.ablation,
            seed=self.seed,
            progress=progress,
        )


Question = TraceQuestion | CircuitQuestion | WhyQuestion | WiringQuestion | FamilyQuestion


def _why_question(record: Why, model: Model, pair: Pair, ablation: Ablation) -> WhyQuestion:
    pairs = (pair,)
    if record.pairs:
        pairs = tuple(respelled_pair(model, each) for each in record.pairs)
    return WhyQuestion(
        pairs,
        of_family=bool(record.pairs),
        ablation=ablation,
        head=record.head,
        ends=record.all_ends or ((record.key, record.query),) * len(pairs),
        every_key=record.every_key,
        seed=record.seed,
    )


def _circuit_question(
    record: Circuit, model: Model, pair: Pair, ablation: Ablation
) -> CircuitQuestion:
    groups = []
    texts = []
    for span in record.spans:
        name = str(span.positions[0])
        if is_group(span, record):
            name = span.label
            groups.append((name, span.positions))
        text = None if record.family is not None else _own_text(span, pair)
        if text is not None:
            texts.append((name, text))
    asked = [Asked(pair)]
    if record.family is not None:
        pairs = [respelled_pair(model, each) for each in record.family.pairs]
        asked = [Asked(*each) for each in zip(pairs, record.family.roles, strict=True)]
    return CircuitQuestion(
        asked=tuple(asked),
        of_family=record.family is not None,
        ablation=ablation,
        groups=tuple(groups),
        texts=tuple(texts),
        share=record.share,
        least=CARRIES if record.least is None else record.least,
        seed=record.seed,
    )


def is_group(span: Span, record: Circuit) -> bool:
    """Whether a user named the positions of a span: its label is neither a role nor the word of its token."""
    position = span.positions[0]
    if len(span.positions) > 1:
        return True
    role = None if record.family is None else record.family.role_at(position)
    return span.label not in (label_of(record.prompt, position), role)


def _own_text(span: Span, pair: Pair) -> str | None:
    """The text that a user gave as the counterfactual of a span; None if it is the pair's, or noise."""
    noise = str(Noise(span.positions)).partition("(")[0]  # whatever its scale, draws and seed
    if span.counterfactual.startswith(noise):
        return None
    if span.counterfactual == counterfactual_text(pair):
        return None
    return span.counterfactual


def _wiring_question(record: Wiring, model: Model) -> WiringQuestion:
    asked = [_respelled(model, each) for each in asked_again(record)]
    against = None
    if record.against is not None:
        others = [_respelled(model, to_asked(pair)) for pair in record.against.pairs]
        against = Family(tuple(others), record.against.task)
    split = len(record.seen)
    asking = Asking(
        task=record.task,
        at_places=bool(record.places),
        share=record.share,
        aim=record.aim,
        without=record.without_heads,
        resamples=0 if record.overlap is None else record.overlap.resamples,
        against=against,
        ablation=_respelled_ablation(model, record.ablation),
        seed=record.seed,
    )
    return WiringQuestion(
        seen=tuple(asked[:split]),
        held_out=tuple(asked[split:]),
        asking=asking,
        chosen=None if record.searched else tuple(each.wire for each in record.wires),
    )


def _respelled(model: Model, asked: Asked) -> Asked:
    """The same question, its pair spelled anew by the model."""
    assert isinstance(asked.question, Pair)
    return replace(asked, question=respelled_pair(model, asked.question))


def _family_question(record: FamilyTrace, model: Model) -> FamilyQuestion:
    pairs = tuple(respelled_pair(model, pair) for pair in record.all_pairs)
    ablation = _respelled_ablation(model, record.ablation)
    return FamilyQuestion(pairs, record.ends_of_each, record.share, ablation, record.seed or 0)


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
    first = 1 if model.reads_bos else 0  # BOS is no part of the text
    spelled = "".join(words[first : len(own)])
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
        # Of a file, only a probe reads other positions than the last.
        sees=metric.sees if metric.probe is not None else 0,
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
