"""EAP and EAP-IG: the scores are those of a computation by hand on Hugging Face's own modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES
from small_models import random_model

from circuits.components import SIDES, Component, Reader, Wire
from circuits.engine import prepare
from circuits.engine.attribution import attribution, integrated_attribution
from circuits.engine.kept import KeptRuns
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt, to_pair
from circuits.zoo.language import tokenizer

TEXT, OTHER = 'The opposite of "large" is "', 'The opposite of "hot" is "'
HEADS = 4


class ByHand:
    """GPT-2's shape in Hugging Face modules: what writers write, and the gradients where readers read."""

    def __init__(self) -> None:
        self.hf: Any = random_model("gpt2")
        self.blocks = self.hf.transformer.h

    def embeddings(self, prompt: Prompt) -> torch.Tensor:
        return self.hf.transformer.wte(torch.tensor(prompt.tokens)[None]).detach()

    def run(self, embeddings: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Logits at the last position, and the tensors by their names; all of them keep gradients."""
        stored: dict[str, torch.Tensor] = {}

        def keep(name: str, of_input: bool) -> Any:
            def hook(module: Any, given: Any, output: Any) -> None:
                tensor = given[0] if of_input else output
                tensor.retain_grad()
                stored[name] = tensor

            return hook

        handles = []
        for layer, block in enumerate(self.blocks):
            for name, module, of_input in (
                ("pre", block.ln_1, True),
                ("sides", block.attn.c_attn, False),
                ("z", block.attn.c_proj, True),
                ("middle", block.ln_2, True),
                ("normed", block.mlp, True),
                ("mlp", block.mlp, False),
            ):
                hook = keep(f"{name} {layer}", of_input)
                handles.append(module.register_forward_hook(hook))
        handles.append(self.hf.transformer.ln_f.register_forward_hook(keep("final", False)))
        handles.append(self.hf.transformer.ln_f.register_forward_hook(keep("top", True)))
        given = embeddings.clone().requires_grad_()
        logits = self.hf(inputs_embeds=given).logits[0, -1]
        for handle in handles:
            handle.remove()
        return logits, stored | {"embed": given}

    def written(self, stored: dict[str, torch.Tensor]) -> dict[Component, torch.Tensor]:
        """What every writer adds to the stream, (pos, d_model); positions are in both prompts the same."""
        written = {Component(-1, "embed"): stored["embed"][0].detach()}
        for layer, block in enumerate(self.blocks):
            z = stored[f"z {layer}"][0].detach().unflatten(-1, (HEADS, -1))
            matrix = block.attn.c_proj.weight.unflatten(0, (HEADS, -1))
            for head in range(HEADS):
                value = z[:, head] @ matrix[head]
                written[Component(layer, "head", head)] = value.detach()
            written[Component(layer, "mlp")] = stored[f"mlp {layer}"][0].detach()
        return written

    def gradients(self, stored: dict[str, Any]) -> dict[Reader, torch.Tensor]:
        """The gradient of the metric with respect to what each reader alone sees, (pos, d_model): back from
        what it computes, through its norm."""
        gradients = {}
        for layer, block in enumerate(self.blocks):
            at_sides = gradient_at(stored[f"sides {layer}"]).unflatten(-1, (3, HEADS, -1))
            for number, side in enumerate(SIDES):
                for head in range(HEADS):
                    own = torch.zeros_like(at_sides)
                    own[:, number, head] = at_sides[:, number, head]
                    seen = stored[f"pre {layer}"][0].detach().requires_grad_()
                    block.attn.c_attn(block.ln_1(seen)).backward(own.flatten(1))
                    gradients[Reader(layer, side, head)] = seen.grad
            seen = stored[f"middle {layer}"][0].detach().requires_grad_()
            block.ln_2(seen).backward(gradient_at(stored[f"normed {layer}"]))
            gradients[Reader(layer, "mlp")] = seen.grad
        seen = stored["top"][0].detach().requires_grad_()
        self.hf.transformer.ln_f(seen).backward(gradient_at(stored["final"]))
        gradients[Reader(len(self.blocks), "logits")] = seen.grad
        return gradients

    def scores(self, pair: Pair, wires: tuple[Wire, ...], steps: int) -> list[float]:
        """EAP-IG with these steps; with one step, EAP."""
        assert isinstance(pair.counterfactual, Prompt)
        clean, other = self.embeddings(pair.clean), self.embeddings(pair.counterfactual)
        metric = pair.metric
        values, writes = [], []
        for embeddings in (clean, other):
            logits, stored = self.run(embeddings)
            values.append((logits[metric.answer] - logits[metric.foil]).item())
            writes.append(self.written(stored))
        gap = values[0] - values[1]
        scores = torch.zeros(len(wires))
        for step in range(1, steps + 1):
            logits, stored = self.run(other + step / steps * (clean - other))
            (logits[metric.answer] - logits[metric.foil]).backward()
            gradients = self.gradients(stored)
            for number, wire in enumerate(wires):
                difference = writes[0][wire.writer] - writes[1][wire.writer]
                scores[number] += (gradients[wire.reader] * difference).sum() / steps / gap
        return scores.tolist()


def gradient_at(tensor: torch.Tensor) -> torch.Tensor:
    """The gradient that reached a tensor (1, pos, d), without its first axis."""
    assert tensor.grad is not None
    return tensor.grad[0]


@pytest.fixture(scope="module")
def loaded() -> dict[str, Model]:
    models = {}
    for name in ARCHITECTURES:
        model = as_model((random_model(name), tokenizer()))
        models[name] = replace(model, reads_bos=True)
    return models


def pair_of(model: Model) -> Pair:
    return to_pair(model, TEXT, counterfactual=OTHER, answer="small", foil="cold")


def kept_runs(model: Model) -> KeptRuns:
    return KeptRuns.everywhere([(prepare(model, [pair_of(model)]), [0])])


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_integrated_attribution_is_what_it_is_by_hand(
    loaded: dict[str, Model], steps: int
) -> None:
    kept = kept_runs(loaded["gpt2"])
    wires = kept.table.edges.wires
    by_hand = ByHand().scores(pair_of(loaded["gpt2"]), wires, steps)
    ours = integrated_attribution(kept, steps=steps)[:, 0].tolist()
    assert ours == pytest.approx(by_hand, abs=1e-4 * max(map(abs, by_hand)))


def test_attribution_is_what_it_is_by_hand(loaded: dict[str, Model]) -> None:
    kept = kept_runs(loaded["gpt2"])
    by_hand = ByHand().scores(pair_of(loaded["gpt2"]), kept.table.edges.wires, 1)
    ours = attribution(kept)[:, 0].tolist()
    assert ours == pytest.approx(by_hand, abs=1e-4 * max(map(abs, by_hand)))


@pytest.mark.parametrize("gated", [False, True], ids=["dense", "gated"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_step_is_attribution_and_more_steps_are_not(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    kept = kept_runs(replace(loaded[architecture], gated=gated))
    plain = attribution(kept)
    one = integrated_attribution(kept, steps=1)
    largest = float(plain.abs().max())
    torch.testing.assert_close(one, plain, atol=1e-4 * largest, rtol=0)
    assert float((integrated_attribution(kept) - plain).abs().max()) > 0.01 * largest


def test_pairs_that_run_together_have_the_scores_that_they_have_alone(
    loaded: dict[str, Model],
) -> None:
    model = loaded["llama"]
    pair = pair_of(model)
    other = to_pair(model, TEXT, counterfactual=OTHER, answer="wet", foil="dry")
    both = KeptRuns.everywhere([(prepare(model, [pair, other]), [0, 1])])
    alone = KeptRuns.everywhere([(prepare(model, [other]), [0])])
    together = integrated_attribution(both)[:, 1:]
    torch.testing.assert_close(together, integrated_attribution(alone), atol=1e-5, rtol=1e-3)
