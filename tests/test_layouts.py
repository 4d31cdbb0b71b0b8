"""Architectures: what a block's description says is what the model does, on the fast path and on the plain
one, against hooks written by hand in plain `transformers`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, GPT_LIKE, WINDOW, Architecture, ByHand, _make
from test_engine import OF_PREPARED, joint_rows, pairs_of, single_rows, site_rows

from circuits import Circuit, trace
from circuits.components import SIDES, Edge, Head
from circuits.engine import Direction, Row, Runs, prepare
from circuits.engine.loadings import loadings
from circuits.errors import ModelError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.sparsify.attention import dense, logits_under
from circuits.zoo.language import tokenizer

KEY, MIDDLE, LAST = 5, 6, 8
CLOSE = 1e-4
TEXT = 'The opposite of "large" is "'


@dataclass(frozen=True)
class Loaded:
    """One architecture: as a model with BOS in front, so that `large` is at 5 in all of them, and by hand."""

    architecture: Architecture
    model: Model
    hand: ByHand
    runs: Runs  # by the path that the engine chooses
    plain: Runs


@cache
def load(name: str) -> Loaded:
    architecture = ARCHITECTURES[name]
    model = as_model((architecture.make(), tokenizer()), bos=True)
    pairs = pairs_of(model)
    runs, plain = (prepare(model, pairs, family=pairs, path=path) for path in (None, "plain"))
    return Loaded(architecture, model, ByHand(architecture), runs, plain)


@pytest.fixture(params=ARCHITECTURES)
def loaded(request: pytest.FixtureRequest) -> Loaded:
    """One architecture after the other."""
    return load(request.param)


@pytest.fixture(params=[name for name, each in ARCHITECTURES.items() if each.path == "fast"])
def known(request: pytest.FixtureRequest) -> Loaded:
    """One architecture that the fast path knows after the other."""
    return load(request.param)


@torch.no_grad()
def effects_by_hand(loaded: Loaded, query: int, direction: Direction) -> torch.Tensor:
    """Of every head's edge from KEY: below it nothing changes, so its own message is the unpatched run's."""
    hand, runs = loaded.hand, loaded.runs
    clean, other = (hand.read(side.tokens[:1]) for side in (runs.clean, runs.counterfactual))

    def new(z: torch.Tensor, edge: Edge) -> torch.Tensor:
        without = z - clean.message(edge)
        return (
            without / (1 - clean.weight(edge))
            if direction == "knockout"
            else without + other.message(edge)
        )

    edges = [
        [Edge(Head(layer, head), KEY, query) for head in range(hand.heads)]
        for layer in range(3)
    ]
    patched = torch.cat(
        [hand.patched(runs.clean.tokens[:1], of_layer, new) for of_layer in edges]
    )
    logits = torch.cat((clean.logits, other.logits, patched))
    full, none, *values = logits.log_softmax(-1)[:, runs.pairs[0].metric.answer]
    return torch.stack([(full - value) / (full - none) for value in values])


@pytest.mark.parametrize("query", [LAST, MIDDLE], ids=["last", "middle"])
def test_effects_are_those_of_hooks_on_the_output_projection(
    loaded: Loaded, query: int
) -> None:
    rows, model = single_rows(loaded.model, query), loaded.model
    assert loaded.runs.path == loaded.architecture.path
    by_hand = effects_by_hand(loaded, query, "swap")
    assert by_hand.abs().max() > 0.01
    for runs in (loaded.runs, loaded.plain):
        torch.testing.assert_close(runs.effects(rows)[:, 0], by_hand, rtol=CLOSE, atol=CLOSE)
    if model.edits_attention or loaded.runs.path == "fast":
        measured = loaded.runs.effects(rows, direction="knockout")[:, 0]
        torch.testing.assert_close(
            measured, effects_by_hand(loaded, query, "knockout"), rtol=0, atol=CLOSE
        )


def test_many_rows_that_change_one_head_each_agree_with_the_plain_path(known: Loaded) -> None:
    late = [
        tuple(at for at in range(KEY, LAST + 1) if mask >> (at - KEY) & 1)
        for mask in range(1, 2 ** (LAST - KEY + 1))
    ]
    rows = [Row.of_heads([head], positions) for head in known.runs.heads for positions in late]
    mine, own = (runs.effects(rows) for runs in (known.runs, known.plain))
    torch.testing.assert_close(mine, own, rtol=CLOSE, atol=CLOSE)


@pytest.mark.long
def test_both_paths_agree_on_joint_rows_streams_and_writes_in_every_direction(
    known: Loaded,
) -> None:
    joint, sites = joint_rows(known.model, LAST + 1, count=4), site_rows(LAST + 1)
    for direction in OF_PREPARED:
        if direction == "knockout" and not known.model.edits_attention:
            with pytest.raises(
                ModelError, match=r"knockout cannot be measured here: .* discards .* use zero"
            ):
                known.plain.effects(joint, direction=direction)
            continue
        rows = joint if direction == "knockout" else [*joint, *sites]
        mine, own = (
            runs.effects(rows, direction=direction) for runs in (known.runs, known.plain)
        )
        # Zeroed streams: effects of up to 60.
        torch.testing.assert_close(mine, own, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("name", ["gemma3", "opt-350m"])
@torch.no_grad()
def test_noise_is_as_large_as_the_embedding_that_the_model_reads(name: str) -> None:
    model, hand = load(name).model, load(name).hand
    pair = to_pair(model, TEXT, noise_at=(KEY,), metric="logprob")
    runs = [prepare(model, [pair], path=path) for path in (None, "plain")]
    noise, embed = runs[0].counterfactual.noise, hand.model.get_input_embeddings()
    assert noise is not None
    assert float(
        noise[:, KEY].std() / embed(torch.arange(model.vocab_size)).std()
    ) == pytest.approx(3, rel=0.15)
    effects = [each.effects(single_rows(model, LAST)) for each in runs]
    torch.testing.assert_close(*effects, rtol=0, atol=CLOSE)


def test_loadings_are_those_of_the_gradient_with_patterns_and_norms_frozen(
    known: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = prepare(known.model, known.runs.pairs[:1])
    hand, answer = ByHand(known.architecture), runs.pairs[0].metric.answer
    for module in hand.model.modules():
        if "Norm" in type(module).__name__:
            module.register_forward_hook(_frozen_norm)
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda *a, **k: softmax(*a, **k).detach()
    )
    kept: list[torch.Tensor] = []
    for output in hand.outputs:
        output.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    read = hand.read(runs.clean.tokens.clone())
    gradients = torch.autograd.grad(read.logits.log_softmax(-1)[0, answer], kept)
    measured = loadings(runs)
    for layer, gradient in enumerate(gradients):
        split = gradient[0].unflatten(-1, (hand.heads, hand.d_head))
        expected = torch.einsum(
            "qhd,hqk,khd->hqk", split, read.patterns[layer][0], read.values[layer][0]
        )
        torch.testing.assert_close(
            measured[layer], (expected / runs.gap[0]).detach(), rtol=0, atol=CLOSE
        )


def _frozen_norm(
    module: Any, inputs: tuple[torch.Tensor], output: torch.Tensor
) -> torch.Tensor:
    """The same numbers as a linear function of the input, scale and gain held."""
    stream, bias = inputs[0], getattr(module, "bias", None)
    centred = (
        stream - stream.mean(-1, keepdim=True)
        if isinstance(module, torch.nn.LayerNorm)
        else stream
    )
    shift = 0 if bias is None else bias
    return centred * ((output - shift) / centred).detach() + shift


@torch.inference_mode()
def test_the_parts_of_a_block_are_those_of_the_whole(known: Loaded) -> None:
    """One side alone is that side of all three; what the heads write adds up to what attention writes."""
    layout, cache = known.runs.layout, known.runs.clean.cache
    assert layout is not None
    positions = torch.arange(LAST + 1)
    for block, layer in zip(layout.on_prompt(cache.layers[0].pre), cache.layers, strict=True):
        for side in SIDES:
            own_streams = layer.pre[:, None].expand(-1, layout.heads, -1, -1)
            alone = block.side(own_streams, side, range(layout.heads), positions).transpose(
                1, 2
            )
            torch.testing.assert_close(alone, getattr(layer, side), rtol=0, atol=1e-5)
        z = layer.z[:, -1:]
        nothing = (
            block.write(torch.zeros_like(z)) if block.block.attention_write_norm is None else 0
        )
        written = block.head_writes(z).sum(-2) + nothing
        torch.testing.assert_close(written, layer.attention[:, -1:], rtol=0, atol=1e-4)


def test_a_query_does_not_read_beyond_its_window() -> None:
    runs = load("gemma2").runs
    assert runs.layout is not None
    assert [block.window for block in runs.layout.blocks] == [WINDOW, None, WINDOW]
    for layer, key in product((0, 1, 2), range(LAST + 1)):
        reads = runs.clean.cache.layers[layer].pattern()[0, :, LAST, key].gt(0).all()
        assert bool(reads) == (layer == 1 or key > LAST - WINDOW)


def test_a_gate_needs_scores_that_can_be_edited(loaded: Loaded) -> None:
    assert loaded.model.edits_attention == loaded.architecture.edits_attention
    if not loaded.model.edits_attention:
        with pytest.raises(
            ModelError, match=r"cannot be gated: the bridge of .* discards edits"
        ):
            replace(loaded.model, gated=True)


def test_what_the_plain_path_does_not_measure_is_said(tmp_path: Path) -> None:
    found = trace(
        load("opt-350m").model, TEXT, key="large", swap={"large": "hot"}, metric="logprob"
    )
    assert [each.loading for each in found.mappings[0].heads] == [None] * 12
    assert "not measured" in str(found) and "plain path" in str(found)
    assert Circuit.load(found.save(tmp_path / "out")) == found


def test_a_model_whose_parts_have_other_names_takes_the_plain_path() -> None:
    """BLOOM's MLP calls its activation function `gelu_impl`."""
    bloom = _make("BloomForCausalLM", "BloomConfig", **GPT_LIKE)
    model = as_model((bloom(), tokenizer()), bos=True)
    assert prepare(model, pairs_of(model)).path == "plain"


@torch.no_grad()
def test_training_attends_with_the_soft_cap_and_window_of_the_model() -> None:
    case = load("gemma2")
    tokens = case.runs.clean.tokens
    under = logits_under(dense, case.hand.model, tokens)[:, -1]
    torch.testing.assert_close(under, case.hand.read(tokens).logits, rtol=0, atol=1e-5)
