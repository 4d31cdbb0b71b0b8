"""Models on several devices, in half precision, and what they keep in memory: planned and measured.

There is no GPU here: a model is split over two devices that are both the CPU, so accelerate's hooks are at
work and no number crosses from one device to another.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from small_models import PROMPT, SWAPS, random_model
from torch.profiler import ProfilerActivity, profile

import circuits
from circuits.engine import Ablation
from circuits.engine.cache import Cache, Layer, LayersOnCPU
from circuits.engine.memory import BUDGET, free_memory, plan_memory
from circuits.errors import ModelError
from circuits.models.model import Model
from circuits.zoo.language import tokenizer

QUESTION: Any = {"key": "large", "swap": {"large": "hot"}, "answer": "small", "foil": "cold"}


def split(model: Any, *, last: Any) -> Any:
    """A Llama whose last layers are on another device, by accelerate."""
    parts = ("model.embed_tokens", "model.rotary_emb", "model.layers.0", "lm_head")
    others = ("model.layers.1", "model.layers.2", "model.norm")
    places: Any = dict.fromkeys(parts, "cpu") | dict.fromkeys(others, last)
    # As a string: accelerate takes a torch.device for another place than "cpu", and offloads.
    main: Any = "cpu"
    return dispatch_model(model, places, main_device=main, force_hooks=True)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_on_two_devices_is_measured_by_its_own_forward(dtype: torch.dtype) -> None:
    model: Any = random_model("llama")
    other: Any = random_model("llama")
    whole = circuits.as_model((other.to(dtype), tokenizer()), dtype=dtype)
    placed = split(model.to(dtype), last=torch.device("cpu"))
    parted = circuits.as_model((placed, tokenizer()), dtype=dtype)
    assert parted.is_split and not whole.is_split
    assert parted.fingerprint == whole.fingerprint
    pair = circuits.to_pair(whole, PROMPT, swap=SWAPS[0], answer="small", foil="cold")
    heads = circuits.engine.every_head(whole)
    rows = [circuits.Row.of_heads([head], [len(pair) - 1]) for head in heads]
    runs = circuits.prepare(parted, [pair])
    assert runs.path == "plain"
    expected = circuits.prepare(whole, [pair], path="plain").effects(rows)
    assert torch.equal(runs.effects(rows), expected)
    found = circuits.trace(parted, PROMPT, **QUESTION)
    assert found.engine == "plain"


def test_a_model_with_parts_on_the_disk_is_refused_in_one_line(tmp_path: Any) -> None:
    model = random_model("llama")
    places: dict[str, Any] = {"lm_head": "cpu", "model.layers.1": "disk"}
    for name in ("embed_tokens", "rotary_emb", "layers.0", "layers.2", "norm"):
        places[f"model.{name}"] = "cpu"
    here = torch.device("cpu")
    placed: Any = dispatch_model(model, places, main_device=here, offload_dir=tmp_path)
    with pytest.raises(ModelError, match="offloaded"):
        circuits.as_model((placed, tokenizer()))


# Memory


def kept_bytes(cache: Cache) -> int:
    """Bytes of all tensors of a run."""
    total = 0
    for layer in cache.layers:
        for each in fields(layer):
            value = getattr(layer, each.name)
            if isinstance(value, torch.Tensor):
                total += value.numel() * value.element_size()
    return total


@pytest.mark.parametrize("kind", ["swap", "noise", "mean"])
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_what_is_offloaded_is_on_the_cpu_and_changes_no_effect(
    models: dict[str, Model], path: Any, kind: Any
) -> None:
    model = models["llama"]
    pairs = []
    for swap in SWAPS:
        pairs.append(circuits.to_pair(model, PROMPT, swap=swap, answer="small", foil="cold"))
    last = len(pairs[0]) - 1
    rows = [circuits.Row.of_heads([head], [last]) for head in circuits.engine.every_head(model)]
    rows.append(circuits.Row.of_residual(1, [last]))
    asked: Any = {"path": path, "ablation": Ablation(kind), "family": pairs}
    here = circuits.prepare(model, pairs, **asked)
    offloaded = circuits.prepare(model, pairs, **asked, offload=True)
    for cache in (offloaded.clean.cache, offloaded.counterfactual.cache):
        assert isinstance(cache.layers, LayersOnCPU)
        devices = {layer.pre.device.type for layer in cache.layers.kept}
        assert devices == {"cpu"} and len(cache.layers) == model.n_layers
    assert torch.equal(offloaded.effects(rows), here.effects(rows))
    assert torch.equal(offloaded.only([1]).effects(rows), here.only([1]).effects(rows))


def test_a_layer_that_was_offloaded_comes_back_to_its_own_device() -> None:
    """The device `meta` holds no numbers, but a tensor knows that it is there."""
    kept = LayersOnCPU()
    stream = torch.randn(1, 3, 4)
    heads = torch.randn(1, 2, 3, 2)
    layer = Layer(stream, heads, heads.transpose(1, 2), stream, stream)
    kept.append(layer, torch.device("meta"))
    assert kept.kept[0].pre.device.type == "cpu"
    back = kept[0]
    assert {back.pre.device.type, back.value.device.type, back.z.device.type} == {"meta"}
    chosen = kept.of_inputs(slice(0, 1))
    assert chosen.kept[0].pre.device.type == "cpu" and chosen[0].mlp.device.type == "meta"


@pytest.mark.parametrize("budget", [2**18, 2**20, BUDGET])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_rows_on_their_way_stay_within_the_plan(
    models: dict[str, Model], architecture: str, budget: int
) -> None:
    model = models[architecture]
    pair = circuits.to_pair(model, PROMPT, swap=SWAPS[0], answer="small", foil="cold")
    runs = circuits.prepare(model, [pair], budget=budget)
    rows = []
    for layer in range(model.n_layers):
        for position in range(len(pair)):
            rows.append(circuits.Row.of_residual(layer, [position]))
    rows = 4 * rows
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        runs.effects(rows)
    plan = runs.plan()
    # What is read at the end is kept for all rows: a stream each.
    read = 2 * 4 * len(rows) * model.d_model
    assert peak_bytes(recorded) <= plan.streams + read


def peak_bytes(recorded: Any) -> int:
    """The most bytes of tensors that were in memory at once, beside those that were there before."""
    changes = []
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            changes.append((event.start_ns(), event.nbytes()))
    held = most = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        held += change
        most = max(most, held)
    return most


@pytest.mark.parametrize("path", ["fast", "plain"])
def test_runs_keep_what_was_planned(models: dict[str, Model], path: Any) -> None:
    model = models["gpt2"]
    pairs = []
    for swap in SWAPS:
        pairs.append(circuits.to_pair(model, PROMPT, swap=swap, answer="small", foil="cold"))
    runs = circuits.prepare(model, pairs, path=path)
    planned = runs.plan()
    kept = kept_bytes(runs.clean.cache) + kept_bytes(runs.counterfactual.cache)
    # The plain path keeps no queries and keys.
    assert 0.7 * planned.runs <= kept <= planned.runs
    assert planned.streams <= BUDGET and planned.rows > 1


def test_what_torch_keeps_of_a_gpu_for_new_tensors_counts_as_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 24 GB the system has 10 left; torch has 12, of which its tensors take 9."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * 10**9, 24 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 12 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 9 * 10**9)
    assert free_memory(torch.device("cuda:0")) == 13 * 10**9


def test_a_plan_needs_no_weights() -> None:
    seventy_billion: Any = SimpleNamespace(
        n_layers=80, n_heads=64, d_model=8192, vocab_size=128_256
    )
    planned = plan_memory(seventy_billion, length=1000, inputs=2)
    assert planned.run == 4 * 7 * 80 * 1000 * 8192 and planned.runs == 4 * planned.run
    assert planned.rows == 1  # at least one row passes, whatever the budget
    long = plan_memory(seventy_billion, length=1000, plain=True)
    assert long.run - planned.run == 4 * 80 * 64 * 1000**2
