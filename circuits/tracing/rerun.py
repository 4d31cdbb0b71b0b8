"""A saved circuit on its own model again: the model that it was measured on, and the runs of its pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from circuits.components import Head
from circuits.engine import Ablation, prepare
from circuits.errors import ModelError, PromptError
from circuits.models.load import as_model, load
from circuits.models.model import Model
from circuits.models.placement import Device, to_device
from circuits.prompts import Pair
from circuits.tracing.aligned import Aligned, mapped, shared_places
from circuits.tracing.batches import only_of, run_batches
from circuits.tracing.measure import measure_mapping
from circuits.tracing.parts import Mapping, Span, share_of
from circuits.tracing.records import Circuit
from circuits.tracing.spans import counterfactual_text, measure_span
from circuits.tracing.trace import to_circuit


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
        runs_in = str(model.dtype).removeprefix("torch.")
        if getattr(record, "dtype", runs_in) != runs_in:
            raise ModelError(
                f"{name} was measured in {record.dtype}, and this model runs in {runs_in}; "
                f"load it with dtype={record.dtype!r}"
            )
        raise ModelError(
            f"{model.name} has other weights than {name} had; give the right model=…"
        )
    if (model.gated, model.reads_bos) != (record.gated, record.reads_bos):
        raise ModelError(
            f"{model.name} has other gate or BOS rule than {name} had; give the right model=…"
        )
    return model


def run_again(
    circuit: Circuit, *, model: Any = None, ablation: Ablation | None = None
) -> list[Aligned]:
    """The runs of a circuit's pairs on its own model, which is loaded by its name unless it is given; with the
    circuit's own ablation unless another is named. Positions of the circuit are those of the first part."""
    if circuit.metric.kind == "custom":
        raise PromptError(
            "a metric function is not in the circuit's record; call trace with it again"
        )
    measured = model_of(circuit.source.name, circuit.source, model)
    chosen = ablation or circuit.ablation
    family = circuit.family
    if family is None:
        pair = Pair(circuit.prompt, circuit.counterfactual, circuit.metric)
        return [Aligned.whole(prepare(measured, [pair], ablation=chosen))]
    alike = [(len(pair), own) for pair, own in zip(family.pairs, family.roles, strict=True)]
    places = shared_places(alike)
    batches = run_batches(measured, family.pairs, alike, ablation=chosen)
    kept = only_of(batches, family.counted)
    return [Aligned(batch.runs, places[batch.numbers[0]]) for batch in kept]


def measure_without(circuit: Circuit, heads: Sequence[Head], *, model: Any = None) -> Circuit:
    """The same question on the same pair, with some heads swapped to the counterfactual throughout."""
    if circuit.family is not None:
        raise PromptError(
            "heads are taken out of the circuit of one pair; this one is the mean of a family"
        )
    (part,) = run_again(circuit, model=model)
    part = replace(part, runs=part.runs.without(heads))
    mappings: list[Mapping] = []
    for old in circuit.mappings:
        measured = measure_mapping(
            mapped([part], *old.ends),
            share=share_of(old),
            controls=old.controls is not None,
            seed=circuit.seed,
        )
        mappings.append(measured)
    mappings.sort(key=lambda mapping: -mapping.total)
    spans: list[Span] = []
    for old_span in circuit.spans:
        if old_span.counterfactual == counterfactual_text(part.runs.pairs[0]):
            spans.append(measure_span([part], old_span.label, old_span.positions))
    return to_circuit([part.runs], mappings, spans, focus=circuit.focus, seed=circuit.seed)
