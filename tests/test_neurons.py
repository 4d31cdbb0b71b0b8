"""Neurons of a named MLP: each effect equals a hook by hand, all together are the MLP, and what a neuron reads
adds up to its change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from small_models import PROMPT, SWAPS, loaded
from test_patch import CLOSE, ByHand, pair_of

import circuits
from circuits.components import Component
from circuits.engine.neurons import MlpNeurons, UnitRuns, block_of
from circuits.errors import CircuitsError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.tracing.neurons import explain_mlp
from circuits.zoo.language import tokenizer

# The linear layer that reads the neurons, in block 1.
OUTPUTS = {
    "gpt2": "transformer.h.1.mlp.c_proj",
    "llama": "model.layers.1.mlp.down_proj",
    "neox": "gpt_neox.layers.1.mlp.dense_4h_to_h",
}


def output_layer(model: Model, name: str) -> Any:
    """Hugging Face's module; the bridge may have put components around those on its way."""
    module: Any = model.bridge.original_model
    for part in name.split("."):
        module = getattr(module, part)
        while getattr(module, "original_component", None) is not None:
            module = module.original_component
    return module


@pytest.fixture(scope="module")
def mini() -> Model:
    return loaded("mini")


@pytest.fixture(scope="module")
def found(mini: Model) -> circuits.Circuit:
    return circuits.trace(mini, PROMPT, key="large", swap=SWAPS[0])


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("position", [5, None])
def test_the_effect_of_each_neuron_equals_a_hook_by_hand(
    models: dict[str, Model], name: str, position: int | None
) -> None:
    model = replace(models[name], reads_bos=True)
    pair = pair_of(model)
    hand = ByHand(model, pair, "swap")
    layer = output_layer(model, OUTPUTS[name])
    noted: list[torch.Tensor] = []

    def note(module: Any, inputs: Any) -> None:
        noted.append(inputs[0].clone())

    handle = layer.register_forward_pre_hook(note)
    model.logits(hand.new)
    handle.remove()
    (other,) = noted
    where = slice(None) if position is None else position
    measured = explain_mlp(circuits.prepare(model, [pair]), Component(1, "mlp"), position)
    clean = hand.value(hand.base)
    assert np.abs(measured.effects).max() > CLOSE
    for neuron in range(0, len(measured.effects), 5):

        def put(module: Any, inputs: Any, neuron: int = neuron) -> Any:
            changed = inputs[0].clone()
            changed[:, where, neuron] = other[:, where, neuron]
            return (changed,)

        handle = layer.register_forward_pre_hook(put)
        expected = (clean - hand.value(hand.base)) / hand.gap
        handle.remove()
        assert measured.effects[neuron] == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("name", OUTPUTS)
def test_all_neurons_together_are_the_mlp(models: dict[str, Model], name: str) -> None:
    model = replace(models[name], reads_bos=True)
    runs = circuits.prepare(model, [pair_of(model)])
    for layer in range(3):
        measured = explain_mlp(runs, Component(layer, "mlp"), 5)
        count, together = measured.joint[-1]
        assert count == len(measured.effects)
        assert together == pytest.approx(measured.effect, abs=CLOSE)
        first, alone = measured.joint[0]
        assert first == 1 and alone == pytest.approx(measured.neurons[0].effect, abs=CLOSE)


def test_all_neurons_together_are_an_mlp_whose_write_is_normed() -> None:
    model = as_model((ARCHITECTURES["gemma2"].make(), tokenizer()), bos=True)
    runs = circuits.prepare(model, [pair_of(model)])
    measured = explain_mlp(runs, Component(1, "mlp"), 5)
    assert runs.layout is not None and runs.layout.blocks[1].mlp_write_norm is not None
    assert measured.joint[-1][1] == pytest.approx(measured.effect, abs=CLOSE)
    assert abs(measured.effect) > CLOSE


@pytest.mark.parametrize("name", OUTPUTS)
@torch.no_grad()
def test_what_a_neuron_reads_adds_up_to_its_change(models: dict[str, Model], name: str) -> None:
    model = replace(models[name], reads_bos=True)
    runs = circuits.prepare(model, [pair_of(model)])
    units = MlpNeurons(block_of(runs, 2))
    measured = UnitRuns(runs, 2, (5, 8), units)
    every = range(len(units.directions))
    writers, parts = measured.readings(every)
    change = measured.activations(clean=True) - measured.activations(clean=False)
    torch.testing.assert_close(parts.sum(0), change.sum(1).mean(0), atol=1e-4, rtol=1e-4)
    assert len(parts) == len(writers) + 1
    own_heads = Component(2, "head", 0) in writers
    assert own_heads == (name != "neox")  # in a parallel block they write beside the MLP


@torch.no_grad()
def test_a_neuron_promotes_the_tokens_that_its_direction_raises(
    mini: Model, found: circuits.Circuit
) -> None:
    answer = circuits.neurons(found, "M10@8", model=mini)
    best = answer.neurons[0]
    layer = output_layer(mini, "transformer.h.10.mlp.c_proj")
    norm = output_layer(mini, "transformer.ln_f")
    direction = layer.weight[best.neuron]
    unembedding = output_layer(mini, "lm_head").weight
    logits = unembedding @ ((direction - direction.mean()) * norm.weight)
    raised = [mini.spell(token) for token in logits.topk(6).indices.tolist()]
    assert list(best.promotes) == raised


def test_why_of_an_mlp_is_its_neurons(mini: Model, found: circuits.Circuit) -> None:
    direct = circuits.neurons(found, "M0@large", model=mini)
    assert circuits.why(found, "M0@5", model=mini) == direct
    assert circuits.why(found, Component(0, "mlp"), model=mini).position is None
    # The neurons of the first MLP at `large` carry nearly all of the gap.
    assert direct.effect > 0.9 and direct.name == "M0@5"
    effects = [abs(each.effect) for each in direct.neurons]
    assert effects == sorted(effects, reverse=True)
    frame: Any = direct.to_dataframe()
    assert len(frame) == 576 and frame["neuron"][0] == direct.neurons[0].neuron
    assert "a reading, not an effect" in str(direct) and "M0 at large(5)" in str(direct)
    axes = direct.figure().axes[0]
    assert axes.get_yticklabels()[0].get_text() == "whole M0@5"
    assert direct.figure().get_size_inches()[0] <= 3.4


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("M99@5", "no M99 in mini"),
        ("M3@40", "outside the prompt"),
        ("M3@huge", "no token 'huge'"),
        ("M3x", "not a component"),
    ],
)
def test_an_mlp_that_is_not_there_is_refused_in_one_line(
    mini: Model, found: circuits.Circuit, name: str, said: str
) -> None:
    with pytest.raises(CircuitsError, match=said) as refused:
        circuits.why(found, name, model=mini)
    assert "\n" not in str(refused.value)


def test_an_mlp_has_no_key(mini: Model, found: circuits.Circuit) -> None:
    with pytest.raises(PromptError, match="M3@9"):
        circuits.why(found, "M3@5", key=5, model=mini)


def test_the_plain_path_cannot_tell_neurons_apart(models: dict[str, Model]) -> None:
    model = replace(models["gpt2"], reads_bos=True)
    runs = circuits.prepare(model, [pair_of(model)], path="plain")
    with pytest.raises(CircuitsError, match="single neurons need the layout"):
        explain_mlp(runs, Component(1, "mlp"), 5)
