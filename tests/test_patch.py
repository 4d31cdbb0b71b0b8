"""`patch`: every kind of map equals hooks written by hand, over one pair and several; maps are saved, drawn
and refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from small_models import PROMPT, SWAPS, loaded

import circuits
from circuits.engine import Ablation, Direction
from circuits.engine.sites import PATCH_SITES, PatchSite
from circuits.errors import CircuitsError
from circuits.instruments.patch import patch_runs
from circuits.models.model import Model
from circuits.prompts import Pair

CLOSE = 1e-4
SWAP = SWAPS[0]
HOOKS = {
    "residual": "hook_resid_pre",
    "attention": "hook_attn_out",
    "mlp": "hook_mlp_out",
    "head": "attn.hook_z",
    "query": "attn.hook_q",
    "key": "attn.hook_k",
    "value": "attn.hook_v",
    "pattern": "attn.hook_pattern",
}
OF_LAYERS = ("residual", "attention", "mlp")
Edit = Callable[[torch.Tensor], None]


@pytest.fixture
def model(model: Model) -> Model:
    """Every architecture with BOS in front, so that `large` is at 5 in all of them."""
    return replace(model, reads_bos=True)


def pair_of(model: Model, swap: dict[str, str] = SWAP) -> Pair:
    return circuits.to_pair(model, PROMPT, swap=swap, answer="small", foil="cold")


class ByHand:
    """One pair, run with hooks on the model's own forward; no code of the engine."""

    def __init__(self, model: Model, pair: Pair, direction: Direction) -> None:
        assert isinstance(pair.counterfactual, circuits.Prompt)
        self.model, self.pair = model, pair
        clean = torch.tensor([pair.clean.tokens])
        other = torch.tensor([pair.counterfactual.tokens])
        self.base, self.new = (other, clean) if direction == "restore" else (clean, other)
        self.direction = direction
        self.gap = self.value(clean) - self.value(other)
        self.base_value = self.value(self.base)
        self.known: dict[str, torch.Tensor] = {}  # hook -> what stands there in the other run

    def value(self, tokens: torch.Tensor, hooks: list[Any] | None = None) -> float:
        with self.model.hooked(hooks or []):
            last = self.model.logits(tokens)[0, -1]
        assert self.pair.metric.foil is not None
        return float(last[self.pair.metric.answer] - last[self.pair.metric.foil])

    def noted(self, tokens: torch.Tensor, name: str, hooks: list[Any] | None = None) -> Any:
        kept: list[torch.Tensor] = []
        note = (name, lambda value, hook: kept.append(value.clone()))
        with self.model.hooked([*(hooks or []), note]):
            self.model.logits(tokens)
        return kept[0]

    def effect(self, hooks: list[Any]) -> float:
        change = self.base_value - self.value(self.base, hooks)
        return change / (-self.gap if self.direction == "restore" else self.gap)

    def put(self, name: str, where: tuple[Any, ...]) -> Any:
        """A hook that puts the other run's values there."""
        if name not in self.known:
            self.known[name] = self.noted(self.new, name)
        new = self.known[name]

        def set_there(value: torch.Tensor, hook: object) -> torch.Tensor:
            changed = value.clone()
            changed[where] = new[where]
            return changed

        return name, set_there

    def of_head(self, site: str, layer: int, head: int, positions: Any) -> float:
        """One head's site. Heads that share a key or a value are told apart at their outputs: the output of
        one is taken from a run in which the shared one was set."""
        name = f"blocks.{layer}.{HOOKS[site]}"
        if site == "pattern":
            return self.effect([self.put(name, (slice(None), head, positions))])
        sharing = self.model.n_heads // self.model.n_key_value_heads
        if site in ("head", "query") or sharing == 1:
            return self.effect([self.put(name, (slice(None), positions, head))])
        shared = self.put(name, (slice(None), positions, head // sharing))
        at_z = f"blocks.{layer}.{HOOKS['head']}"
        z = self.noted(self.base, at_z, [shared])

        def set_head(value: torch.Tensor, hook: object) -> torch.Tensor:
            changed = value.clone()
            heads, new = (v.flatten(2).unflatten(2, (4, -1)) for v in (changed, z))
            heads[:, :, head] = new[:, :, head]
            return changed

        return self.effect([(at_z, set_head)])


@pytest.mark.parametrize("direction", ["swap", "restore"])
@pytest.mark.parametrize("site", OF_LAYERS)
def test_maps_of_layers_equal_hooks_by_hand(
    model: Model, site: PatchSite, direction: Direction
) -> None:
    pair = pair_of(model)
    hand = ByHand(model, pair, direction)
    patched = circuits.patch(model, pair, site, ablation=direction)
    for layer in range(model.n_layers):
        for position in range(len(pair)):
            name = f"blocks.{layer}.{HOOKS[site]}"
            expected = hand.effect([hand.put(name, (slice(None), position))])
            assert patched.values[layer, position] == pytest.approx(expected, abs=CLOSE)
    if site == "residual":
        assert patched.values[model.n_layers, -1] == pytest.approx(1.0, abs=CLOSE)


@pytest.mark.parametrize("positions", [None, (5, 8)])
@pytest.mark.parametrize("site", [site for site in PATCH_SITES if site not in OF_LAYERS])
def test_maps_of_heads_equal_hooks_by_hand(
    model: Model, site: PatchSite, positions: tuple[int, ...] | None
) -> None:
    pair = pair_of(model)
    hand = ByHand(model, pair, "swap")
    where = slice(None) if positions is None else list(positions)
    patched = circuits.patch(model, pair, site, positions=positions)
    assert np.abs(patched.values).max() > CLOSE
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            expected = hand.of_head(site, layer, head, where)
            assert patched.values[layer, head] == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("site", ["head", "query", "key", "value", "pattern"])
def test_a_head_at_each_position_equals_that_position_alone(model: Model, site: Any) -> None:
    pair = pair_of(model)
    each = circuits.patch(model, pair, site, each_position=True)
    assert [axis.name for axis in each.axes] == ["layer", "head", "position"]
    for position in (3, 5, 8):
        alone = circuits.patch(model, pair, site, positions=[position])
        np.testing.assert_allclose(each.values[:, :, position], alone.values, atol=CLOSE)


@pytest.mark.parametrize("site", ["head", "query", "key", "value", "pattern"])
def test_the_order_in_which_positions_are_named_changes_nothing(
    model: Model, site: Any
) -> None:
    runs = circuits.prepare(model, [pair_of(model)])
    sorted_positions = patch_runs(runs, site, (5, 8))
    named_otherwise = patch_runs(runs, site, (8, 5))
    np.testing.assert_allclose(named_otherwise.values, sorted_positions.values, atol=1e-6)


@pytest.mark.parametrize("site", PATCH_SITES)
def test_both_paths_of_the_engine_agree(models: dict[str, Model], site: PatchSite) -> None:
    model = replace(models["llama"], reads_bos=True)
    fast, plain = (
        patch_runs(
            circuits.prepare(
                model,
                [pair_of(model)],
                path=path,  # type: ignore[arg-type]
                ablation=Ablation("restore"),
            ),
            site,
            tuple(range(9)),
        )
        for path in ("fast", "plain")
    )
    assert (fast.engine, plain.engine) == ("fast", "plain")
    np.testing.assert_allclose(fast.values, plain.values, atol=CLOSE)


def test_several_pairs_are_averaged_and_each_is_kept(models: dict[str, Model]) -> None:
    model = replace(models["gpt2"], reads_bos=True)
    pairs = [pair_of(model, swap) for swap in SWAPS]
    together = circuits.patch(model, pairs, "mlp")
    alone = [circuits.patch(model, pair, "mlp").values for pair in together.pairs]
    np.testing.assert_allclose(together.per_pair, alone, atol=CLOSE)
    np.testing.assert_allclose(together.values, np.mean(alone, 0), atol=CLOSE)
    assert len(together.pairs) + together.weak == len(pairs)


def test_a_text_with_its_counterfactual_is_the_pair_of_a_swap() -> None:
    mini = loaded("mini")
    other = PROMPT.replace("large", "hot")
    swapped = circuits.patch(mini, PROMPT, "attention", swap=SWAP)
    for asked in ((PROMPT, other), [(PROMPT, other)]):
        assert circuits.patch(mini, asked, "attention") == swapped
    assert circuits.patch(mini, [PROMPT], "attention", counterfactual=[other]) == swapped


@pytest.mark.parametrize("site", PATCH_SITES)
def test_patching_with_the_mean_of_equal_prompts_changes_nothing(
    models: dict[str, Model], site: PatchSite
) -> None:
    model = replace(models["neox"], reads_bos=True)
    pairs = [pair_of(model), pair_of(model)]
    runs = circuits.prepare(model, pairs, family=pairs, ablation=Ablation("mean"))
    mean = patch_runs(runs, site, tuple(range(9)))
    np.testing.assert_allclose(mean.values, 0, atol=CLOSE)
    zero = circuits.patch(model, pairs, site, ablation="zero")
    assert np.abs(zero.values).max() > 0.01


def test_noise_on_the_subject_is_restored_as_causal_tracing_does() -> None:
    mini = loaded("mini")
    traced = circuits.patch(
        mini, PROMPT, "residual", noise_at=["large"], ablation="restore", answer="small"
    )
    assert traced.metric.kind == "logprob" and "noise" in str(traced)
    assert traced.values[0, 5] == pytest.approx(1.0, abs=1e-3)  # the clean embedding is back
    assert traced.values[-1, 8] == pytest.approx(1.0, abs=1e-3)


def test_a_map_has_names_a_table_and_a_figure(tmp_path: Path) -> None:
    patched = circuits.patch(loaded("mini"), PROMPT, "residual", swap=SWAP)
    frame = patched.to_dataframe()
    assert list(frame.columns) == ["layer", "position", "effect"] and len(frame) == 13 * 9
    wide = patched.to_dataframe(wide=True)
    assert wide.loc[0, "large(5)"] == pytest.approx(1.0, abs=1e-3)
    assert frame["layer"].tolist()[-1] == 12  # a number
    figure = patched.figure()
    axes = figure.axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("layer", "position")
    drawn: Any = axes.get_images()[0].get_array()
    assert drawn.shape == (13, 9)
    assert figure.get_size_inches()[0] <= 3.4
    own = figure.add_subplot()
    assert patched.figure(ax=own) is figure and own.get_images()
    assert "clear" in str(patched) and "large(5)" in str(patched)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sites": "neuron"}, "there are residual"),
        ({"sites": "residual", "each_position": True}, "leave each_position out"),
        ({"positions": []}, "a list of indices"),
        ({"positions": ["huge"]}, "no token 'huge'"),
        ({"ablation": "mean"}, "reference"),
        ({"ablation": "knockout"}, "there are swap"),
        ({"sites": "query", "ablation": "knockout"}, "there are swap"),
        ({"swap": {"huge": "hot"}}, "swap"),
        ({"swap": None}, "no counterfactual"),
        ({"swap": None, "counterfactual": ["a", "b"]}, "as many counterfactuals"),
        ({"swop": 1}, "swap"),
    ],
)
def test_what_cannot_be_patched_is_refused_in_one_line(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(CircuitsError, match=said) as refused:
        circuits.patch(loaded("mini"), PROMPT, **{"swap": SWAP, **options})
    assert "\n" not in str(refused.value)


def test_a_table_and_lines_are_asked_as_a_list_of_prompts_is() -> None:
    mini = loaded("mini")
    lines: list[Any] = []
    for word, other in (("large", "hot"), ("fast", "wet")):
        lines.append({"prompt": f'The opposite of "{word}" is "', "swap": {word: other}})
    pairs = [circuits.to_pair(mini, line["prompt"], swap=line["swap"]) for line in lines]
    expected = circuits.patch(mini, pairs, sites="mlp").values
    np.testing.assert_allclose(circuits.patch(mini, lines, sites="mlp").values, expected)
    table = pandas.DataFrame(lines)
    np.testing.assert_allclose(circuits.patch(mini, table, sites="mlp").values, expected)
