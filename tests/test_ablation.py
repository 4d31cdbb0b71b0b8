"""Every kind of ablation on every verb equals hooks written by hand; what has no meaning is refused in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from small_models import PROMPT, SWAPS, loaded

import circuits
from circuits.cli import main
from circuits.engine import DIRECTIONS, Ablation, Direction, prepare, to_ablation
from circuits.engine.kept import KeptRuns
from circuits.engine.prepare import noise_draws
from circuits.engine.selection import mapping_row
from circuits.engine.wires import wire_effects
from circuits.errors import CircuitsError
from circuits.models.model import Model
from circuits.prompts import Noise, Pair
from circuits.tasks.task import Item, Task

CLOSE = 1e-4
KEY, QUERY = 5, 8
SWAP = SWAPS[0]
REFERENCE = [PROMPT.replace("large", word) for word in ("rich", "old", "wet")]
WHOLE: tuple[Direction, ...] = tuple(kind for kind in DIRECTIONS if kind != "knockout")
Hooks = list[tuple[str, Any]]


@pytest.fixture
def model(model: Model) -> Model:
    """Every architecture with BOS in front, so that `large` is at 5 in all of them."""
    return replace(model, reads_bos=True)


def pair_of(model: Model) -> Pair:
    return circuits.to_pair(model, PROMPT, swap=SWAP, answer="small", foil="cold")


def options_of(kind: Direction) -> dict[str, Any]:
    return {"ablation": kind, "reference": REFERENCE if kind == "mean" else None}


def kind_of(kind: Direction) -> dict[str, Any]:
    return {"kind": kind, "reference": REFERENCE if kind == "mean" else None}


class ByHand:
    """One pair and one kind of ablation, by hooks on the model's own forward; no code of the engine."""

    def __init__(self, model: Model, pair: Pair, kind: Direction) -> None:
        assert isinstance(pair.counterfactual, circuits.Prompt)
        self.model, self.pair, self.kind = model, pair, kind
        self.clean = torch.tensor([pair.clean.tokens])
        self.other = torch.tensor([pair.counterfactual.tokens])
        self.base = self.other if kind == "restore" else self.clean
        self.gap = self.value(self.clean) - self.value(self.other)
        self.start = self.value(self.base)
        self.sources = self._sources()

    def _sources(self) -> list[tuple[torch.Tensor, Hooks]]:
        """The runs whose values stand in: tokens, and hooks that put noise on the embedding."""
        if self.kind == "swap":
            return [(self.other, [])]
        if self.kind == "restore":
            return [(self.clean, [])]
        if self.kind == "mean":
            texts = [self.model.tokenize(text) for text in REFERENCE]
            return [(torch.tensor([tokens]), []) for tokens in texts]
        noisy = []
        for draw in noise_draws(self.model, Noise(self.pair.differs_at)):

            def add(value: torch.Tensor, hook: object, draw: torch.Tensor = draw) -> Any:
                changed = value.clone()
                changed[0, list(self.pair.differs_at)] += draw
                return changed

            noisy.append((self.clean, [("hook_embed", add)]))
        return noisy

    def value(self, tokens: torch.Tensor, hooks: Hooks | None = None) -> float:
        with self.model.hooked(hooks or []):
            last = self.model.logits(tokens)[0, -1]
        assert self.pair.metric.foil is not None
        return float(last[self.pair.metric.answer] - last[self.pair.metric.foil])

    def noted(self, tokens: torch.Tensor, names: Sequence[str], hooks: Hooks) -> dict[str, Any]:
        kept: dict[str, torch.Tensor] = {}

        def note(name: str) -> tuple[str, Any]:
            return name, lambda value, hook: kept.__setitem__(name, value.clone())

        with self.model.hooked([*hooks, *map(note, names)]):
            self.model.logits(tokens)
        return kept

    def new(self, names: Sequence[str]) -> list[dict[str, torch.Tensor]]:
        """What stands in at these hooks, once for every draw of the noise."""
        if self.kind in ("zero", "knockout"):
            run = self.noted(self.clean, names, [])
            return [{name: torch.zeros_like(value) for name, value in run.items()}]
        runs = [self.noted(tokens, names, hooks) for tokens, hooks in self.sources]
        if self.kind != "mean":
            return runs
        return [{name: torch.stack([run[name] for run in runs]).mean(0) for name in names}]

    def effect(self, value: float) -> float:
        change = self.start - value
        return change / (-self.gap if self.kind == "restore" else self.gap)

    def sites(self, names: Sequence[str], where: Any = slice(None)) -> float:
        """The effect of the sites at these hooks, `where` they are changed."""
        values = []
        for new in self.new(names):

            def put(value: torch.Tensor, hook: Any, name: str, new: Any = new) -> torch.Tensor:
                changed = value.clone()
                changed[where] = new[name][where]
                return changed

            hooks = [(name, lambda v, hook, name=name: put(v, hook, name)) for name in names]
            values.append(self.value(self.base, hooks))
        return self.effect(float(np.mean(values)))

    def mapping(self, key: int, query: int, heads: Sequence[tuple[int, int]]) -> float:
        """The effect of the messages of these heads from key to query."""
        layers = sorted({layer for layer, _ in heads})
        if self.kind == "knockout":
            hooks = [
                (f"blocks.{n}.attn.hook_attn_scores", self._shut(n, heads)) for n in layers
            ]
            return self.effect(self.value(self.base, hooks))
        names = []
        for layer in layers:
            names += [f"blocks.{layer}.attn.hook_{part}" for part in ("pattern", "v")]
        if self.kind == "mean":  # the mean message, not the message of means
            runs = [self.noted(tokens, names, []) for tokens, _ in self.sources]
            found = [self._messages(run, heads, key, query) for run in runs]
            new = [{each: torch.stack([run[each] for run in found]).mean(0) for each in heads}]
        else:
            new = [self._messages(run, heads, key, query) for run in self.new(names)]
        values = [self.value(self.base, self._replacing(heads, key, query, one)) for one in new]
        return self.effect(float(np.mean(values)))

    def _messages(self, run: dict[str, Any], heads: Any, key: int, query: int) -> Any:
        sharing = self.model.n_heads // self.model.n_key_value_heads
        found = {}
        for layer, head in heads:
            weight = run[f"blocks.{layer}.attn.hook_pattern"][0, head, query, key]
            found[layer, head] = (
                weight * run[f"blocks.{layer}.attn.hook_v"][0, key, head // sharing]
            )
        return found

    def _shut(self, layer: int, heads: Sequence[tuple[int, int]]) -> Any:
        def shut(scores: torch.Tensor, hook: object) -> torch.Tensor:
            changed = scores.clone()
            for own, head in heads:
                if own == layer:
                    changed[0, head, QUERY, KEY] = -torch.inf
            return changed

        return shut

    def _replacing(self, heads: Any, key: int, query: int, new: Any) -> Hooks:
        now: dict[str, torch.Tensor] = {}
        hooks: Hooks = []
        for layer in sorted({layer for layer, _ in heads}):
            for part in ("pattern", "v"):
                name = f"blocks.{layer}.attn.hook_{part}"
                hooks.append(
                    (name, lambda value, hook, name=name: now.__setitem__(name, value.clone()))
                )

            def replaced(z: torch.Tensor, hook: object, layer: int = layer) -> torch.Tensor:
                changed = z.clone()
                by_head = changed.flatten(2).unflatten(2, (self.model.n_heads, -1))
                own = [each for each in heads if each[0] == layer]
                for each, old in self._messages(now, own, key, query).items():
                    by_head[0, query, each[1]] += new[each] - old
                return changed

            hooks.append((f"blocks.{layer}.attn.hook_z", replaced))
        return hooks


# Each verb


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_messages_equal_hooks_by_hand(model: Model, kind: Direction) -> None:
    pair = pair_of(model)
    runs = prepare(model, [pair], ablation=to_ablation(model, **kind_of(kind)))
    hand = ByHand(model, pair, kind)
    every = [(layer, head) for layer in range(3) for head in range(4)]
    sets = [every, [(0, 1)], [(2, 3)], [(0, 2), (1, 1), (2, 0)]]
    rows = []
    for heads in sets:
        rows.append(mapping_row([circuits.Head(*head) for head in heads], KEY, QUERY))
    expected = [hand.mapping(KEY, QUERY, heads) for heads in sets]
    assert runs.effects(rows)[:, 0].tolist() == pytest.approx(expected, abs=CLOSE)
    assert abs(expected[0]) > 100 * CLOSE


@pytest.mark.long
@pytest.mark.parametrize("kind", DIRECTIONS)
def test_a_trace_equals_hooks_by_hand(model: Model, kind: Direction) -> None:
    found = circuits.trace(
        model, PROMPT, key=KEY, swap=SWAP, answer="small", foil="cold", **options_of(kind)
    )
    hand = ByHand(model, pair_of(model), kind)
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    mapping = found.mapping()
    assert found.ablation.kind == kind and f"{kind}: " in str(found)
    assert mapping.total == pytest.approx(hand.mapping(KEY, QUERY, heads), abs=CLOSE)
    assert abs(mapping.total) > 100 * CLOSE
    for name, head in (("L0H1", (0, 1)), ("L2H3", (2, 3))):
        effect = hand.mapping(KEY, QUERY, [head])
        assert mapping.effect_of(name).effect == pytest.approx(effect, abs=CLOSE)
    if mapping.path:
        carriers = [(head.layer, head.index) for head in mapping.carriers(1.0)]
        joint = mapping.path[-1].joint
        assert joint == pytest.approx(hand.mapping(KEY, QUERY, carriers), abs=CLOSE)
    assert (mapping.sides == ()) == (kind == "knockout" or not mapping.path)


@pytest.mark.long
@pytest.mark.parametrize("kind", WHOLE)
def test_maps_and_paths_equal_hooks_by_hand(model: Model, kind: Direction) -> None:
    pair = pair_of(model)
    hand = ByHand(model, pair, kind)
    for site, hook in (("residual", "hook_resid_pre"), ("mlp", "hook_mlp_out")):
        patched = circuits.patch(model, pair, site, **options_of(kind))  # type: ignore[arg-type]
        expected = hand.sites([f"blocks.1.{hook}"], (slice(None), 6))
        assert patched.values[1, 6] == pytest.approx(expected, abs=CLOSE)
    heads = circuits.patch(model, pair, "head", **options_of(kind))
    expected = hand.sites(["blocks.1.attn.hook_z"], (slice(None), slice(None), 2))
    assert heads.values[1, 2] == pytest.approx(expected, abs=CLOSE)
    assert kind in str(heads) and heads.ablation.kind == kind


@pytest.mark.long
@pytest.mark.parametrize("kind", ["zero", "mean", "noise"])
def test_a_path_adds_what_the_sender_writes_less_to_the_receivers_stream(
    model: Model, kind: Direction
) -> None:
    pair = pair_of(model)
    hand = ByHand(model, pair, kind)
    written = "blocks.1.hook_mlp_out"
    own = hand.noted(hand.clean, [written], [])[written]
    values = []
    for new in hand.new([written]):
        change = new[written] - own
        hooks = [("blocks.2.hook_resid_post", lambda value, hook, add=change: value + add)]
        values.append(hand.value(hand.clean, hooks))
    found = circuits.path(model, pair, "M1 → logits", **options_of(kind))
    assert found.effect() == pytest.approx(hand.effect(float(np.mean(values))), abs=CLOSE)


def everything(model: Model) -> list[str]:
    """The hooks where everything that writes does."""
    names = ["blocks.0.hook_resid_pre"]
    for layer in range(model.n_layers):
        names += [f"blocks.{layer}.attn.hook_z", f"blocks.{layer}.hook_mlp_out"]
    return names


@pytest.mark.parametrize("kind", ["swap", "zero", "mean", "noise"])
def test_circuits_of_wires_lie_between_the_model_and_the_ablated_one(
    model: Model, kind: Direction
) -> None:
    pair = pair_of(model)
    reference = tuple(circuits.to_prompt(model, text) for text in REFERENCE)
    runs = prepare(model, [pair], ablation=Ablation(kind, reference if kind == "mean" else ()))
    kept = KeptRuns.everywhere([(runs, [0])])
    everywhere = torch.ones(len(kept.table), dtype=torch.bool)
    chosen = [3, 40, 101, len(everywhere) - 1]
    without = everywhere.repeat(len(chosen), 1)
    without[torch.arange(len(chosen)), chosen] = False
    none = ~everywhere
    measured = kept.kept(torch.stack((everywhere, none, *without)))[:, 0].tolist()
    assert measured[0] == pytest.approx(1.0, abs=CLOSE)
    whole = ByHand(model, pair, kind).sites(everything(model))
    assert measured[1] == pytest.approx(1 - whole, abs=CLOSE)
    wires = [kept.table.edges.wires[number] for number in chosen]
    effects, _ = wire_effects(runs, wires)
    assert measured[2:] == pytest.approx((1 - effects[:, 0]).tolist(), abs=CLOSE)


def a_task(model: Model) -> Task:
    pairs = [
        circuits.to_pair(model, PROMPT, swap=swap, answer="small", foil="cold")
        for swap in SWAPS
    ]
    return Task("opposites", tuple(Item(pair, (("END", 8),)) for pair in pairs))


@pytest.mark.long
@pytest.mark.parametrize("kind", WHOLE)
def test_ranked_heads_equal_hooks_by_hand(
    model: Model, kind: Direction, tmp_path: Path
) -> None:
    task = a_task(model)
    ranking = circuits.rank(model, task, **options_of(kind))
    hands = [ByHand(model, pair, kind) for pair in task.pairs]
    effect_of = {str(each.unit): each.effect for each in ranking.ranked}
    z = "blocks.1.attn.hook_z"
    alone = [hand.sites([z], (slice(None), slice(None), 2)) for hand in hands]
    assert effect_of["L1H2"] == pytest.approx(float(np.mean(alone)), abs=CLOSE)
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    changed = float(np.mean([hand.sites(names) for hand in hands]))
    ends = (ranking.keep.explained[0], ranking.keep.explained[-1])
    expected = (0.0, changed) if kind == "restore" else (1 - changed, 1.0)
    assert ends == pytest.approx(expected, abs=CLOSE)
    assert ranking.ablation.kind == ranking.protocol.source == kind
    assert circuits.Ranking.load(ranking.save(tmp_path / "ranked")) == ranking


@pytest.mark.long
def test_an_attention_edge_is_knocked_out_in_a_ranking(model: Model) -> None:
    task = replace(a_task(model), items=a_task(model).items[:1])
    ranking = circuits.rank(model, task, units="edges", ablation="knockout")
    hand = ByHand(model, task.pairs[0], "knockout")
    effect_of = {str(each.unit): each.effect for each in ranking.ranked}
    expected = hand.mapping(KEY, QUERY, [(1, 2)])
    assert effect_of["L1H2:5→8"] == pytest.approx(expected, abs=CLOSE)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_a_family_of_one_kind_is_its_own_reference(
    models: dict[str, Model], kind: Direction
) -> None:
    model = replace(models["gpt2"], reads_bos=True)
    named: dict[str, Any] = {"key": KEY, "ablation": kind, "answer": "small", "foil": "cold"}
    texts = [PROMPT, *REFERENCE[:2]]
    swaps = {"large": "hot", "rich": "hot", "old": "hot"}
    family = circuits.trace(model, texts, swap=swaps, **named)
    others = {"reference": texts} if kind == "mean" else {}
    totals = []
    for text, word in zip(texts, swaps, strict=True):
        one = circuits.trace(model, text, swap={word: "hot"}, **named, **others)
        if any(pair.clean.text == text for pair in family.pairs):  # not left out
            totals.append(one.mapping().total)
    assert family.total.mean == pytest.approx(np.mean(totals), abs=1e-3)
    assert kind in str(family)
    assert circuits.verify(family, model=model).holds


def test_equal_prompts_have_the_mean_of_themselves_which_changes_nothing(
    models: dict[str, Model],
) -> None:
    model = replace(models["gpt2"], reads_bos=True)
    runs = prepare(model, [pair_of(model)], family=[pair_of(model)])
    rows = [circuits.Row.of_heads([circuits.Head(1, 2)], range(9))]
    assert float(runs.effects(rows, direction="mean")) == pytest.approx(0.0, abs=CLOSE)


# Records


@pytest.mark.long
@pytest.mark.parametrize("kind", ["zero", "mean", "noise"])
def test_a_saved_trace_is_asked_again_by_its_own_ablation(
    models: dict[str, Model], kind: Direction, tmp_path: Path
) -> None:
    model = replace(models["llama"], reads_bos=True)
    options: dict[str, Any] = {"answer": "small", "foil": "cold", **options_of(kind)}
    found = circuits.trace(model, PROMPT, key=KEY, swap=SWAP, **options)
    file = found.save(tmp_path / "saved")
    stored = circuits.Circuit.load(file)
    assert stored == found
    assert circuits.verify(stored, model=model).holds
    other = replace(stored, ablation=Ablation("swap"))
    assert not circuits.verify(other, model=model).holds


@pytest.mark.long
def test_an_explanation_takes_the_ablation_of_its_circuit() -> None:
    model = loaded("mini")
    found = circuits.trace(model, PROMPT, key=KEY, swap=SWAP, ablation="zero")
    answer = circuits.why(found, "L5H1", model=model)
    assert answer.effect == pytest.approx(found.mapping().effect_of("L5H1").effect, abs=CLOSE)
    assert answer.ablation.kind == "zero" and "zero" in str(answer)
    shut = circuits.trace(model, PROMPT, key=KEY, swap=SWAP, ablation="knockout")
    with pytest.raises(CircuitsError, match="there are swap"):
        circuits.why(shut, "L5H1", model=model)


# Refusals


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        ("trace", {"ablation": "burn"}, "there are swap"),
        ("trace", {"ablation": "mean"}, "reference"),
        ("trace", {"ablation": "mean", "reference": ["The cat"]}, "9 tokens"),
        ("trace", {"ablation": "mean", "reference": [PROMPT]}, "other prompts"),
        ("trace", {"ablation": "mean", "reference": PROMPT}, "a list of texts"),
        ("trace", {"ablation": "zero", "reference": REFERENCE}, "leave it out"),
        ("trace", {"ablation": "zero", "stability": 4}, "stability"),
        ("wiring", {"ablation": "knockout"}, "there are swap, zero, mean, noise"),
        ("wiring", {"ablation": "restore"}, "there are swap, zero, mean, noise"),
        ("patch", {"ablation": "knockout"}, "there are swap"),
        ("path", {"ablation": "knockout"}, "there are swap"),
        ("rank", {"ablation": "knockout"}, "heads; there are swap"),
        ("rank", {"ablation": "knockout", "units": "wires"}, "component edges"),
        ("rank", {"ablation": "zero", "mlps": "held"}, "mlps"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(
    verb: str, options: dict[str, Any], said: str
) -> None:
    model = loaded("mini")
    calls: dict[str, Any] = {
        "trace": lambda: circuits.trace(model, PROMPT, key=KEY, swap=SWAP, **options),
        "wiring": lambda: circuits.wiring(model, PROMPT, swap=SWAP, **options),
        "patch": lambda: circuits.patch(model, PROMPT, swap=SWAP, **options),
        "path": lambda: circuits.path(model, PROMPT, "M0 → logits", swap=SWAP, **options),
        "rank": lambda: circuits.rank(model, "opposites", count=2, **options),
    }
    with pytest.raises(CircuitsError, match=said) as refused:
        calls[verb]()
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_commands_take_an_ablation_and_print_it() -> None:
    def said(*arguments: str) -> str:
        return CliRunner().invoke(main, arguments).output

    asked = ("--swap", "large=hot", "--ablation")
    assert "zero: zeros" in said("trace", PROMPT, "--key", "large", *asked, "zero")
    mean = said("patch", PROMPT, *asked, "mean", "--reference", REFERENCE[0])
    assert "the mean over 1 other prompt" in mean
    assert "there are swap" in said("patch", PROMPT, *asked, "knockout")
