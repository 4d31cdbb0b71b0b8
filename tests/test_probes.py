"""A probe as a metric: effects on a direction in the residual stream equal hooks written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import PROMPT, SWAPS, loaded

import circuits
from circuits.errors import CircuitsError
from circuits.models.model import Model

CLOSE = 1e-4
SWAP = SWAPS[0]
LAYER, AT = 2, 6


@pytest.fixture
def model(model: Model) -> Model:
    """Every architecture with BOS in front, so that `large` is at 5 in all of them."""
    return replace(model, reads_bos=True)


def direction_of(model: Model) -> torch.Tensor:
    return torch.randn(model.d_model, generator=torch.Generator().manual_seed(1))


def test_effects_on_a_probe_equal_hooks_by_hand(model: Model) -> None:
    direction = direction_of(model)
    probe = circuits.ProbeMetric(direction, layer=LAYER, position=AT)  # type: ignore[arg-type]
    pair = circuits.to_pair(model, PROMPT, swap=SWAP, metric=probe)
    assert isinstance(pair.counterfactual, circuits.Prompt)
    clean = torch.tensor([pair.clean.tokens])
    other = torch.tensor([pair.counterfactual.tokens])
    site = "blocks.1.attn.hook_z"
    kept: dict[str, Any] = {}

    def note(value: torch.Tensor, hook: object) -> None:
        kept["z"] = value.clone()

    def value(tokens: torch.Tensor, *hooks: Any) -> float:
        def read(stream: torch.Tensor, hook: object) -> None:
            kept["value"] = float(stream[0, AT] @ direction)

        with model.hooked([*hooks, (f"blocks.{LAYER}.hook_resid_pre", read)]):
            model.logits(tokens)
        return kept["value"]

    def put(stream: torch.Tensor, hook: object) -> torch.Tensor:
        changed = stream.clone()
        changed[:, :, 2] = kept["z"][:, :, 2]
        return changed

    start = value(clean)
    gap = start - value(other, (site, note))
    expected = (start - value(clean, (site, put))) / gap
    patched = circuits.patch(model, pair, "head")
    assert patched.values[1, 2] == pytest.approx(expected, abs=CLOSE)
    assert abs(expected) > CLOSE
    assert np.abs(patched.values[LAYER:]).max() < CLOSE  # heads above the probe
    stream = circuits.patch(model, pair, "residual")
    assert stream.values[LAYER, AT] == pytest.approx(1.0, abs=CLOSE)
    assert np.abs(stream.values[:, AT + 1 :]).max() < CLOSE  # behind it
    assert np.abs(stream.values[LAYER + 1 :]).max() < CLOSE


def test_a_probe_is_saved_with_its_result_and_asked_again(models: dict[str, Model]) -> None:
    model = replace(models["gpt2"], reads_bos=True)
    probe = circuits.ProbeMetric(direction_of(model), layer=LAYER, position=AT)  # type: ignore[arg-type]
    found = circuits.trace(model, PROMPT, key=5, query=AT, swap=SWAP, metric=probe)
    assert "probe at layer 2, position 6" in str(found)
    assert all(each.loading is None for each in found.mapping().heads)
    assert circuits.verify(found, model=model).holds


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ({"direction": [1.0], "layer": 2}, "dimensions"),
        ({"direction": [1.0] * 144, "layer": 13}, "1…12"),
        ({"direction": [[1.0]], "layer": 2}, "list of finite numbers"),
        ({"direction": [1.0] * 144, "layer": 2, "site": "mlp"}, "residual stream"),
        ({"direction": [1.0] * 144, "layer": 2, "position": "huge"}, "no token"),
    ],
)
def test_a_probe_that_cannot_be_is_refused_in_one_line(probe: Any, said: str) -> None:
    with pytest.raises(CircuitsError, match=said):
        circuits.to_pair(
            loaded("mini"), PROMPT, swap=SWAP, metric=circuits.ProbeMetric(**probe)
        )


def test_circuits_of_wires_refuse_a_probe() -> None:
    model = loaded("mini")
    probe = circuits.ProbeMetric([1.0] * model.d_model, layer=4)
    with pytest.raises(CircuitsError, match="end at the logits"):
        circuits.wiring(model, PROMPT, swap=SWAP, metric=probe)
