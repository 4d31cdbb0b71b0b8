"""`verify`: a saved result measured again on its own pair and model, and whether it holds.

1. The model is loaded by its name; weights, gate, BOS rule and dtype must be those of the record.
2. What was measured then is measured again: of a circuit the values, the verdict, every mapping with its
   heads and carriers, and the spans; of a wiring every wire and side, and what all wires explain; of an
   explanation of a head its sides and writers. Other mappings or wires are not looked for.
3. A number holds if it is within 0.001 (of the gap, for effects): other processors and libraries round
   otherwise. Words hold if they are the same: carriers, layers, the verdict, the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from circuits.engine import Runs
from circuits.errors import FileError, escaped
from circuits.models.load import Device
from circuits.prompts import Noise
from circuits.results import Progress, Saved, open_result, require, silent
from circuits.tracing.circuit import run_again
from circuits.tracing.measure import (
    counterfactual_text,
    measure_mapping,
    measure_span,
    span_of,
)
from circuits.tracing.parts import Span
from circuits.tracing.records import Circuit, Why
from circuits.tracing.trace import package_versions, to_circuit
from circuits.tracing.why import explain
from circuits.tracing.wiring import measure_again
from circuits.tracing.wiring_record import Wiring

TOLERANCE: Final = 1e-3
Measured = Circuit | Wiring | Why
Facts = dict[str, float | str]  # what was measured, by a name that is printed


@dataclass(frozen=True, slots=True)
class Verification(Saved):
    """A saved result beside the same measured again.

    >>> checked = circuits.verify(found, model=model)
    >>> checked.kind, checked.holds
    ('circuit', True)
    >>> circuits.Verification.load(checked.save(folder / "checked")) == checked
    True
    """

    KIND: ClassVar = "verification"
    NAME: ClassVar = "a verification"

    kind: Literal["circuit", "wiring", "why"]
    model: str
    compared: int  # numbers and words
    differences: tuple[str, ...]  # one sentence each
    notes: tuple[str, ...] = ()  # packages of another version than then

    def check(self) -> None:
        require(len(self.differences) <= self.compared, "it has more differences than facts")

    @property
    def holds(self) -> bool:
        """Whether every fact is as it was."""
        return not self.differences

    def __str__(self) -> str:
        same = self.compared - len(self.differences)
        verdict = "holds" if self.holds else "does not hold"
        lines = [
            f"{self.kind} on {self.model} {verdict}: {same} of {self.compared} facts are the same"
        ]
        lines += self.differences
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(map(escaped, lines))


def verify(
    saved: str | Path | Measured,
    *,
    model: Any = None,
    device: Device = "cpu",
    progress: Progress = silent,
) -> Verification:
    """Measure a saved circuit, wiring or explanation of a head again. Name its `model` where the saved name does
    not load it.

    >>> circuits.verify(found, model=model).differences
    ()
    """
    record = saved if isinstance(saved, Circuit | Wiring | Why) else open_saved(saved)
    runs = run_again(record, model=model, device=device)
    if isinstance(record, Circuit):
        kind = "circuit"
        then = _facts_of_circuit(record, record.share)
        now = _circuit_again(record, runs, progress)
    elif isinstance(record, Wiring):
        kind = "wiring"
        then = _facts_of_wiring(record)
        wires = [each.wire for each in record.wires]
        now = _facts_of_wiring(measure_again(record, wires, model=runs.model))
    else:
        kind = "why"
        then = _facts_of_why(record)
        now = _why_again(record, runs, progress)
    return Verification(
        kind=kind,
        model=record.source.name,
        compared=len(then),
        differences=tuple(_differences(then, now)),
        notes=_changed_versions(record),
    )


def open_saved(path: str | Path) -> Measured:
    """A circuit, a wiring or an explanation of a head from its file or its folder: what can be measured again."""
    record = open_result(path)
    if not isinstance(record, Circuit | Wiring | Why):
        raise FileError(
            f"{path} is {record.NAME}; a circuit, a wiring or an explanation of a head is verified"
        )
    return record


def _differences(then: Facts, now: Facts) -> list[str]:
    """One sentence for each fact that does not hold."""
    differences: list[str] = []
    for name, was in then.items():
        value = now.get(name, "not there")
        if isinstance(was, str) or isinstance(value, str):
            if was != value:
                differences.append(
                    f"{name}: was {str(was) or 'none'}, is {str(value) or 'none'}"
                )
        elif abs(was - value) > TOLERANCE * max(1.0, abs(was)):
            differences.append(f"{name}: was {was:.4f}, is {value:.4f}")
    return differences


def _changed_versions(record: Measured) -> tuple[str, ...]:
    """The packages that have another version now than when the record was made."""
    if isinstance(record, Why):  # does not store versions
        return ()
    now = dict(package_versions())
    return tuple(
        f"{name} was {was}, is {now.get(name)}"
        for name, was in record.versions
        if now.get(name) != was
    )


# A circuit


def _facts_of_circuit(circuit: Circuit, share: float) -> Facts:
    facts: Facts = {
        "the clean value": circuit.clean_value,
        "the counterfactual's value": circuit.counterfactual_value,
        "the prediction": circuit.output.token,
        "its probability": circuit.output.probability,
    }
    if circuit.question is not None:
        facts["the verdict"] = circuit.question.verdict
    for mapping in circuit.mappings:
        name = f"{mapping.key}→{mapping.query}"
        facts[f"{name} total"] = mapping.total
        facts[f"{name} restore"] = mapping.restore
        facts[f"{name} carriers at {share:.0%}"] = " ".join(map(str, mapping.carriers(share)))
        for each in mapping.heads:
            facts[f"{name} {each.head}"] = each.effect
            facts[f"{name} {each.head} restored"] = each.restore
    for span in circuit.spans:
        name = f"span of {span.label}({', '.join(map(str, span.positions))})"
        facts[f"{name} held in"] = (
            "no layer" if span.layers is None else f"{span.layers[0]}-{span.layers[1]}"
        )
        facts[f"{name} built in"] = span.built_text
        facts[f"{name} effect"] = span.effect
        facts[f"{name} moves"] = span.moves
    return facts


def _circuit_again(circuit: Circuit, runs: Runs, progress: Progress) -> Facts:
    mappings = []
    for number, old in enumerate(circuit.mappings):
        progress("mappings", number, len(circuit.mappings))
        mappings.append(measure_mapping(runs, *old.ends, controls=False, seed=circuit.seed))
    spans = [_span_again(runs, span, circuit.seed) for span in circuit.spans]
    again = to_circuit(runs, mappings, spans, focus=circuit.focus, seed=circuit.seed)
    return _facts_of_circuit(again, circuit.share)


def _span_again(runs: Runs, span: Span, seed: int) -> Span:
    """The span measured again, by the counterfactual that it names: the pair's, noise, or a text."""
    if span.counterfactual == counterfactual_text(runs.pairs[0]):
        return measure_span(runs, span.label, span.positions)
    noisy = span.counterfactual == str(Noise(span.positions, seed=seed))
    text = None if noisy else span.counterfactual
    return span_of(runs, *span.positions, label=span.label, text=text, seed=seed)


# A wiring


def _facts_of_wiring(wiring: Wiring) -> Facts:
    facts: Facts = {"the prediction": wiring.output.token}
    for number, pair in enumerate(wiring.pairs):
        facts[f"pair {number}, the clean value"] = pair.clean_value
        facts[f"pair {number}, the counterfactual's value"] = pair.counterfactual_value
        facts[f"pair {number}, kept"] = pair.kept
    for each in wiring.wires:
        facts[f"{each.wire} value"] = each.value
        facts[f"{each.wire} effect"] = each.effect
    return facts


# An explanation of a head


def _facts_of_why(why: Why) -> Facts:
    facts: Facts = {
        "the gap": why.gap,
        "its weight": why.weight,
        "its effect": why.effect,
        "of its weight alone": why.pattern,
        "its other weight": why.counterfactual_weight,
    }
    for side in why.sides:
        facts[f"{side.side} side"] = side.effect
        facts[f"{side.side} side, leading writers"] = side.together
        for each in side.writers:
            facts[f"{each} on the {side.side} side"] = each.effect
    return facts


def _why_again(why: Why, runs: Runs, progress: Progress) -> Facts:
    again = explain(
        runs,
        why.head,
        why.key,
        why.query,
        every_key=why.every_key,
        seed=why.seed,
        progress=progress,
    )
    return _facts_of_why(again)
