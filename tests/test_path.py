"""`path`: named paths equal hooks written by hand; the names of other tools are read; what cannot be is refused
in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import PROMPT, SWAPS, loaded
from test_patch import CLOSE, ByHand, pair_of
from transformer_lens.patching import get_act_patch_direct_path

import circuits
from circuits.engine.wires import wire_effects
from circuits.errors import CircuitsError
from circuits.instruments.path_names import parse_paths
from circuits.models.model import Model

SENDERS = ("L0H1", "L0H3", "M0")


@pytest.fixture
def model(model: Model) -> Model:
    return replace(model, reads_bos=True)


def change_of(hand: ByHand, sender: str, position: int) -> Any:
    """What a sender writes at a position in the other run less what it writes in this one, (d_model)."""
    if sender.startswith("M"):
        name = f"blocks.{sender[1]}.hook_mlp_out"
        return (hand.noted(hand.new, name) - hand.noted(hand.base, name))[0, position]
    written = f"blocks.{sender[1]}.hook_attn_out"
    z = hand.put(f"blocks.{sender[1]}.attn.hook_z", (slice(None), position, int(sender[3])))
    return (hand.noted(hand.base, written, [z]) - hand.noted(hand.base, written))[0, position]


def with_change(change: torch.Tensor, position: int) -> Any:
    def add(value: torch.Tensor, hook: object) -> torch.Tensor:
        changed = value.clone()
        changed[0, position] += change
        return changed

    return add


def test_a_path_into_a_query_equals_hooks_by_hand(model: Model) -> None:
    """The receiver's query is noted in a run whose stream has the sender's change, and set in a clean run."""
    pair = pair_of(model)
    hand = ByHand(model, pair, "swap")
    found = circuits.path(model, pair, f"{', '.join(SENDERS)} → L2H1.query@8, L1H2.query@8")
    assert found.values.shape == (3, 2) and np.abs(found.values).max() > CLOSE
    for row, sender in enumerate(SENDERS):
        for column, (layer, head) in enumerate(((2, 1), (1, 2))):
            add = with_change(change_of(hand, sender, 8), 8)
            name = f"blocks.{layer}.attn.hook_q"
            query = hand.noted(hand.base, name, [(f"blocks.{layer}.hook_resid_pre", add)])

            def set_query(value: torch.Tensor, hook: object, query=query, head=head) -> Any:
                changed = value.clone()
                changed[:, 8, head] = query[:, 8, head]
                return changed

            expected = hand.effect([(name, set_query)])
            assert found.values[row, column] == pytest.approx(expected, abs=CLOSE)


def test_a_path_to_the_logits_equals_hooks_by_hand(model: Model) -> None:
    pair = pair_of(model)
    hand = ByHand(model, pair, "swap")
    found = circuits.path(model, pair, f"{', '.join(SENDERS)} → logits")
    top = f"blocks.{model.n_layers - 1}.hook_resid_post"
    for row, sender in enumerate(SENDERS):
        expected = hand.effect([(top, with_change(change_of(hand, sender, 8), 8))])
        assert found.values[row, 0] == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize(
    ("name", "sides"), [("gpt2", ("query", "key", "value")), ("llama", ("query",))]
)
def test_paths_between_heads_equal_those_of_transformer_lens(
    models: dict[str, Model], name: str, sides: tuple[str, ...]
) -> None:
    """Of heads that share keys and values TransformerLens patches the query alone."""
    model = replace(models[name], reads_bos=True)
    pair = pair_of(model)
    hand = ByHand(model, pair, "restore")
    with torch.inference_mode():
        _, clean = model.bridge.run_with_cache(hand.new)
        _, other = model.bridge.run_with_cache(hand.base)

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return pair.metric.read(logits[:, -1:])[0]

    for side in sides:
        letter: Any = side[0]
        with torch.inference_mode():
            values = get_act_patch_direct_path(
                model.bridge, hand.base, clean, other, metric, 0, 1, letter, verbose=False
            )
        expected = (values[1:] - hand.base_value) / hand.gap
        receivers = [f"L{layer}H{head}.{side}" for layer in (1, 2) for head in range(4)]
        found = circuits.path(model, pair, f"L0H1 → {', '.join(receivers)}", ablation="restore")
        np.testing.assert_allclose(found.values[0], expected.flatten(), atol=CLOSE)
        assert np.abs(found.values).max() > 10 * CLOSE


def test_paths_are_wires_and_cells_without_one_are_empty() -> None:
    mini = loaded("mini")
    pair = circuits.to_pair(mini, PROMPT, swap=SWAPS[0])
    found = circuits.path(mini, pair, "M0@5, L4H0@8, M5@8 → L5H1@8.value, L5H1.query@8, M5@8")
    wires = [circuits.Wire.parse(name, layers=12) for name in found.wires]
    effects = wire_effects(circuits.prepare(mini, [pair]), wires)[0].flatten().tolist()
    values = found.values[~np.isnan(found.values)]
    np.testing.assert_allclose(sorted(values), sorted(effects), atol=1e-9)
    # M0 stands at 5 and M5 on the same layer, so of nine paths four remain.
    into_the_head = ("M0@5→L5H1@8.value", "L4H0@8→L5H1@8.value", "L4H0@8→L5H1@8.query")
    assert found.wires == (*into_the_head, "L4H0@8→M5")
    assert found.effect("M0@5") == found.values[0, 0]
    assert "L4H0@8" in str(found) and len(found.to_dataframe()) == 2 * 3


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("L4H4@13 → L5H1.query@13", "L4H4@13→L5H1@13.query"),
        ("L4H4@13 -> L5H1@13.q", "L4H4@13→L5H1@13.query"),
        ("a4.h4 → a5.h1<q>", "L4H4→L5H1.query"),
        ("4.4 → 5.1.value", "L4H4→L5H1.value"),
        ("4.4 → 5.1.v", "L4H4→L5H1.value"),
        ("m3@9 → a4.h4<v>@13", "M3@9→L4H4@13.value"),
        ("input → m3", "embed→M3"),
        ("M3@-1 → logits", "M3@14→logits"),
        ("M3@John(10) → M4", None),
        ("M3@gave → M4", "M3@11→M4"),
        ("blocks.4.attn.hook_z[4] → blocks.5.attn.hook_q[1]", "L4H4→L5H1.query"),
        (
            "blocks.4.attn.hook_result[:, 13, 4] → blocks.5.hook_k_input[:, 14, 1]",
            "L4H4@13→L5H1@14.key",
        ),
        ("blocks.3.hook_mlp_out[:, 9] → blocks.4.attn.hook_v[:, :, 4]", "M3@9→L4H4.value"),
        ("hook_embed → blocks.3.hook_mlp_in", "embed→M3"),
        ("blocks.3.mlp.hook_out → ln_final.hook_in", "M3→logits"),
        ("M3 → blocks.11.hook_resid_post", "M3→logits"),
        ("M3 → blocks.10.hook_resid_post", None),
        ("blocks.4.attn.hook_z → M5", None),
        ("blocks.4.attn.hook_q[1] → M5", None),
        ("hook_pos_embed → M5", None),
        ("blocks.4.attn.hook_z[x] → M5", None),
        ("L4H4@13 → L5H1.query@12", None),
        ("L4H4@14 → L5H1.key@12", None),
        ("L4H4 → M5 → logits", None),
        ("L4H4", None),
        (" → M5", None),
        ("logits → M5", None),
        ("L4H4 → L5H1.score", None),
    ],
)
def test_names_of_paths_are_read_or_refused_in_one_line(
    written: str, means: str | None
) -> None:
    mini = loaded("mini")
    prompt = circuits.to_prompt(
        mini, "When Mary and John went to the store, John gave a drink to"
    )
    if means is not None:
        (path,) = parse_paths(written, layers=12, position_of=prompt.position)
        assert str(path.wire) == means
        return
    with pytest.raises(CircuitsError) as refused:
        for path in parse_paths(written, layers=12, position_of=prompt.position):
            _ = path.wire
    assert "\n" not in str(refused.value)


def test_a_head_without_a_side_means_its_three_sides() -> None:
    found = circuits.path(loaded("mini"), PROMPT, "L4H0 → L5H1", swap=SWAPS[0])
    assert found.axes[1].labels == ("L5H1.query", "L5H1.key", "L5H1.value")


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ("L9H0 → L5H1.query", "runs downwards"),
        ("L4H99 → L5H1.query", "no L4H99"),
        ([], "there is no path"),
        ("M3@40 → M4", "outside the prompt"),
    ],
)
def test_a_path_that_cannot_be_is_refused(paths: Any, said: str) -> None:
    with pytest.raises(CircuitsError, match=said):
        circuits.path(loaded("mini"), PROMPT, paths, swap=SWAPS[0])
