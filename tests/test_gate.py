"""The gate is one formula, and every gated model runs by it."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES
from small_models import PROMPT, random_model

from circuits.errors import ModelError
from circuits.models.load import as_model, load
from circuits.models.model import Model, gated, open_gates
from circuits.zoo.language import tokenizer


def marked(folder: Path, target: Path, text: str) -> Path:
    shutil.copytree(folder, target)
    (target / "circuits.json").write_text(text)
    return target


def prompt_of(model: Model) -> torch.Tensor:
    return torch.tensor([model.tokenize(PROMPT)])


def recorded(model: Model, names: list[str]) -> dict[str, torch.Tensor]:
    """What passes these hooks when the model reads the prompt."""
    seen: dict[str, torch.Tensor] = {}

    def record(tensor: torch.Tensor, hook: object, *, name: str) -> None:
        seen[name] = tensor.clone()

    with model.hooked([(name, partial(record, name=name)) for name in names]):
        model.logits(prompt_of(model))
    return {name: seen[name] for name in names}


def test_the_gate_by_hand() -> None:
    scores = torch.tensor(
        [[0.5, -torch.inf, -torch.inf], [-1.0, 1.0, -torch.inf], [-1.0, -2.0, 0.0]]
    )
    pattern = scores.softmax(-1)
    assert open_gates(scores).tolist() == [
        [True, False, False],
        [False, True, False],
        [False, False, False],
    ]
    # Not renormalised: the open edge keeps its softmax weight 1 / (1 + e^-2). A score of zero is shut, and a
    # row with all gates shut is all zero.
    kept = 1 / (1 + torch.exp(torch.tensor(-2.0)))
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, kept, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(gated(scores, pattern), expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gated_layer_is_the_formula_written_out(architecture: str) -> None:
    """From the scores as the model has them: z = Σ_k 1[s > 0] · softmax(s) · v, for every head and query."""
    model = as_model((random_model(architecture), tokenizer()), gate=True)
    kinds = ("attn_scores", "v", "z")
    seen = recorded(
        model, [f"blocks.{layer}.attn.hook_{kind}" for layer in range(3) for kind in kinds]
    )
    shut = 0
    for layer in range(model.n_layers):
        scores, v, z = (seen[f"blocks.{layer}.attn.hook_{kind}"][0] for kind in kinds)
        for head in range(model.n_heads):
            # Several heads may read one value head.
            values = v[:, head * v.shape[1] // model.n_heads]
            for query in range(len(z)):
                s = scores[head, query, : query + 1]
                weights = (s > 0) * s.exp() / s.exp().sum()
                expected = weights @ values[: query + 1]
                torch.testing.assert_close(z[query, head], expected, atol=1e-5, rtol=1e-4)
                shut += int((s <= 0).sum())
    assert shut > 20  # the claim is about shut edges: there must be some


def test_the_scores_are_queries_times_keys_over_the_root_of_their_size() -> None:
    model = as_model((random_model("gpt2"), tokenizer()))
    names = [f"blocks.1.attn.hook_{kind}" for kind in ("q", "k", "attn_scores")]
    queries, keys, scores = (tensor[0] for tensor in recorded(model, names).values())
    by_hand = torch.einsum("qhd,khd->hqk", queries, keys) / model.d_head**0.5
    causal = torch.ones(by_hand.shape[-2:]).tril().bool()
    torch.testing.assert_close(scores[:, causal], by_hand[:, causal], atol=1e-5, rtol=1e-4)
    assert not open_gates(scores)[:, ~causal].any()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gate_changes_a_model_that_was_not_trained_with_it(
    architecture: str, models: dict[str, Model]
) -> None:
    plain = models[architecture]
    gated_one = as_model((random_model(architecture), tokenizer()), gate=True)
    tokens = prompt_of(plain)
    assert (gated_one.logits(tokens) - plain.logits(tokens)).abs().max() > 0.1


def test_an_edit_of_the_scores_moves_the_gate_and_an_edit_of_the_pattern_has_the_last_word() -> (
    None
):
    model = as_model((random_model("gpt2"), tokenizer()), gate=True)
    tokens = prompt_of(model)
    seen: dict[str, torch.Tensor] = {}
    scores, pattern, z = (
        f"blocks.1.attn.hook_{what}" for what in ("attn_scores", "pattern", "z")
    )

    def shut_all(scores: torch.Tensor, hook: object) -> torch.Tensor:
        return scores - 1000

    with model.hooked(
        [(scores, shut_all), (pattern, lambda tensor, hook: seen.update(pattern=tensor))]
    ):
        model.logits(tokens)
    assert not seen[
        "pattern"
    ].any()  # the user's hook sees the pattern that the edited scores shut

    with (
        model.hooked([(pattern, lambda tensor, hook: torch.ones_like(tensor))]),
        model.hooked([(scores, shut_all), (z, lambda tensor, hook: seen.update(z=tensor))]),
    ):
        model.logits(tokens)
    assert seen["z"].abs().min() > 0


def test_gradients_flow_through_open_gates() -> None:
    model = as_model((random_model("llama"), tokenizer()), gate=True)
    seen: dict[str, Any] = {}

    def keep(tensor: torch.Tensor, hook: object) -> torch.Tensor:
        seen["v"] = tensor
        tensor.retain_grad()
        return tensor

    with model.hooked([("blocks.0.attn.hook_v", keep)]):
        model.forward(prompt_of(model))[0, -1].sum().backward()
    assert seen["v"].grad.abs().max() > 0


def test_a_model_is_gated_if_its_files_say_so(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    folder = marked(
        directories["gpt2"], tmp_path / "sparse", json.dumps({"gate": True, "made": "by hand"})
    )
    as_marked, ungated = load(folder), load(folder, gate=False)
    assert as_marked.gated and not ungated.gated and not load(directories["gpt2"]).gated
    tokens = prompt_of(ungated)
    assert torch.equal(ungated.logits(tokens), load(directories["gpt2"]).logits(tokens))
    assert not torch.equal(as_marked.logits(tokens), ungated.logits(tokens))


def test_a_gate_on_a_model_that_is_not_gated_is_an_error(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    for folder in (
        directories["llama"],
        marked(directories["llama"], tmp_path / "dense", '{"gate": false}'),
    ):
        with pytest.raises(ModelError, match="not a gated model"):
            load(folder, gate=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"gate": "yes"}'])
def test_a_mark_that_cannot_be_read_is_an_error(
    text: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"circuits\.json"):
        load(marked(directories["gpt2"], tmp_path / "m", text))
