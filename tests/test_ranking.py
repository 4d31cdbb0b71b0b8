"""A ranking is exact: its curve is what hooks by hand give; planted circuits have the planted counts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import loaded

from circuits.components import ROUNDING, Head
from circuits.engine import Row, prepare
from circuits.errors import FileError, PromptError
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt, to_pair
from circuits.tasks.attention import measure_edges, measure_heads
from circuits.tasks.curve import Curve, areas, first_at_least, geometric, measure_curve
from circuits.tasks.rank import rank
from circuits.tasks.ranking import MLPS, SHARES, Mlps, Protocol, Ranking, RoleEdge, Units
from circuits.tasks.task import Item, Task
from circuits.zoo import planted

CLOSE = 1e-4


@pytest.fixture
def model(model: Model) -> Model:
    return replace(model, reads_bos=True)


def task_of(model: Model) -> Task:
    """Three pairs of two lengths; their roles stand at different positions."""
    texts = (
        ('The opposite of "large" is "', "large", 5),
        ('The number of "rich" is "', "rich", 5),
        ('The colour of the word "wet" is "', "wet", 7),
    )
    pairs = [
        to_pair(model, text, swap={word: "hot"}, metric="logprob") for text, word, _ in texts
    ]
    roles = [
        (("IT", position), ("END", len(pair) - 1))
        for pair, (*_, position) in zip(pairs, texts, strict=True)
    ]
    return Task("by hand", tuple(map(Item, pairs, roles)))


def alike(model: Model) -> Task:
    """Two pairs that are laid out alike."""
    return replace(task_of(model), items=task_of(model).items[:2])


# The reference: one whole run, every head's messages mixed by hand.


def kept_by_hand(model: Model, pair: Pair, stays: torch.Tensor, mlps: str) -> float:
    """The explained effect with own messages where `stays` (layer, head, query, key), else foreign ones."""
    assert isinstance(pair.counterfactual, Prompt)
    clean, other = (_noted(model, side) for side in (pair.clean, pair.counterfactual))
    now: dict[str, torch.Tensor] = {}
    hooks: list[Any] = []

    def note(value: torch.Tensor, hook: Any, *, name: str) -> None:
        now[name] = value

    def mixed(z: torch.Tensor, hook: Any, *, layer: int) -> torch.Tensor:
        own, foreign = (_messages(model, values, layer) for values in (now, other))
        return (
            torch.where(stays[layer, ..., None], own, foreign)
            .sum(2)
            .transpose(0, 1)[None]
            .reshape(z.shape)
        )

    for layer in range(model.n_layers):
        where = f"blocks.{layer}."
        hooks += [
            (where + part, lambda v, hook, name=where + part: note(v, hook, name=name))
            for part in ("attn.hook_pattern", "attn.hook_v")
        ]
        hooks.append(
            (where + "attn.hook_z", lambda z, hook, layer=layer: mixed(z, hook, layer=layer))
        )
        if mlps != "computed":
            source = clean if mlps == "held" else other
            hooks.append(
                (
                    where + "hook_mlp_out",
                    lambda v, hook, name=where + "hook_mlp_out", source=source: source[
                        name
                    ].clone(),
                )
            )
    with model.hooked(hooks), torch.inference_mode():
        patched = model.forward(torch.tensor([pair.clean.tokens]))[0, -1]
    values = [
        float(logits.log_softmax(-1)[pair.metric.answer])
        for logits in (clean["logits"], other["logits"], patched)
    ]
    return (values[2] - values[1]) / (values[0] - values[1])


def _noted(model: Model, side: Prompt) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}
    parts = itertools.product(
        range(model.n_layers), ("attn.hook_pattern", "attn.hook_v", "hook_mlp_out")
    )
    names = [f"blocks.{layer}.{part}" for layer, part in parts]
    with (
        model.hooked(
            [
                (name, lambda v, hook, name=name: kept.update({name: v.clone()}))
                for name in names
            ]
        ),
        torch.inference_mode(),
    ):
        kept["logits"] = model.forward(torch.tensor([side.tokens]))[0, -1]
    return kept


def _messages(model: Model, values: dict[str, torch.Tensor], layer: int) -> torch.Tensor:
    """(head, query, key, d_head)"""
    # (key, head, d_head)
    value = values[f"blocks.{layer}.attn.hook_v"][0].repeat_interleave(
        model.n_heads // model.n_key_value_heads, 1
    )
    return torch.einsum("hqk,khd->hqkd", values[f"blocks.{layer}.attn.hook_pattern"][0], value)


def stays_of(ranking: Ranking, model: Model, item: Item, size: int) -> torch.Tensor:
    """Which edges of an item are among the first `size` units."""
    length = len(item.pair)
    by_role = ranking.protocol.positions == "roles"
    names = [item.name_of(position) if by_role else str(position) for position in range(length)]
    stays = torch.zeros(model.n_layers, model.n_heads, length, length, dtype=torch.bool)
    for unit in (each.unit for each in ranking.ranked[:size]):
        if isinstance(unit, Head):
            stays[unit.layer, unit.index] = True
        elif isinstance(unit, RoleEdge) and unit.key in names and unit.query in names:
            stays[
                unit.head.layer, unit.head.index, names.index(unit.query), names.index(unit.key)
            ] = True
    return stays


@pytest.mark.parametrize(
    ("units", "mlps"), [*(("heads", mlps) for mlps in MLPS), ("edges", "computed")]
)
def test_the_curve_is_what_runs_by_hand_give_pair_by_pair(
    model: Model, units: Units, mlps: Mlps
) -> None:
    task = task_of(model)
    ranking = rank(model, task, units=units, mlps=mlps)
    assert ranking.protocol.positions == ("all" if units == "heads" else "roles")
    for index in (1, len(ranking.keep.sizes) // 2):
        size = ranking.keep.sizes[index]
        by_hand = [
            kept_by_hand(model, item.pair, stays_of(ranking, model, item, size), mlps)
            for item in task.items
        ]
        assert ranking.each[index] == pytest.approx(by_hand, abs=CLOSE)
        assert ranking.keep.explained[index] == pytest.approx(np.mean(by_hand), abs=CLOSE)


@pytest.mark.parametrize("gated", [False, True], ids=["dense", "gated"])
def test_keeping_no_head_explains_nothing_and_keeping_all_explains_all_where_the_protocol_says_so(
    model: Model, gated: bool
) -> None:
    model = replace(model, gated=gated)
    for mlps in MLPS:
        ranking = rank(model, alike(model), mlps=mlps)
        none, everything = ranking.keep.explained[0], ranking.keep.explained[-1]
        assert (none == pytest.approx(0, abs=CLOSE)) == (mlps != "held"), mlps
        assert (everything == pytest.approx(1, abs=CLOSE)) == (mlps != "swapped"), mlps
        assert ranking.random.explained[0] == pytest.approx(none, abs=CLOSE)
        assert ranking.random.explained[-1] == pytest.approx(everything, abs=CLOSE)


def test_keeping_no_edge_explains_nothing_and_keeping_all_explains_all(model: Model) -> None:
    ranking = rank(replace(model, gated=True), alike(model), units="edges")
    assert ranking.keep.explained[0] == pytest.approx(0, abs=CLOSE)
    assert ranking.keep.explained[-1] == pytest.approx(1, abs=CLOSE)


def test_the_order_is_that_of_exact_single_effects_over_pairs_of_all_lengths(
    model: Model,
) -> None:
    task = task_of(model)
    ranking = rank(model, task)
    for each in ranking.ranked[:3]:
        assert isinstance(each.unit, Head)
        rows = [
            (prepare(model, [pair], path="plain"), Row.of_heads([each.unit], range(len(pair))))
            for pair in task.pairs
        ]
        assert each.effect == pytest.approx(
            np.mean([float(runs.effects([row])[0, 0]) for runs, row in rows]), abs=CLOSE
        )
        assert each.low <= each.effect <= each.high
    effects = [each.effect for each in ranking.ranked]
    assert all(first >= second - 2 * ROUNDING for first, second in itertools.pairwise(effects))
    assert len(effects) == ranking.units == model.n_layers * model.n_heads


def test_effects_below_rounding_are_equal_and_the_lower_unit_leads(
    models: dict[str, Model],
) -> None:
    heads = measure_heads(models["gpt2"], alike(models["gpt2"]).items)
    edges = replace(heads, protocol=Protocol("edges"))
    effects = np.zeros((len(heads.units), 2))
    effects[6:] = -1.0
    effects[0] = -0.2, -0.3
    effects[2] = -7e-8, -7e-8  # rounding errors, not effects
    effects[4] = 7e-8, 7e-8
    effects[5] = 0.2, 0.3
    assert heads.order(effects)[:6] == [5, 1, 2, 3, 4, 0]
    assert edges.order(effects)[:6] == [
        5,
        2,
        4,
        1,
        3,
        0,
    ]  # edges that change nothing at all come last


def test_heads_that_do_nothing_stand_in_the_order_of_the_layers(sparse_heads: Ranking) -> None:
    heads = [each.unit for each in sparse_heads.ranked if isinstance(each.unit, Head)]
    idle = heads[len(planted._sparse_shares()) :]
    assert len(idle) > 100
    assert idle == sorted(idle)


def test_edges_of_prompts_that_are_laid_out_alike_are_named_by_index_and_others_by_role(
    models: dict[str, Model],
) -> None:
    model = models["gpt2"]
    by_index, by_role = (
        rank(model, task, units="edges") for task in (alike(model), task_of(model))
    )
    assert by_index.units == 12 * 9 * 10 // 2
    assert by_role.units > by_index.units
    named = {str(each.unit) for each in by_role.ranked}
    assert any(name.endswith(":IT→END") for name in named)
    assert all(
        isinstance(each.unit, RoleEdge) and each.unit.query.isdecimal()
        for each in by_index.ranked
    )
    assert "positions by index" in str(by_index)
    assert "positions by role" in str(by_role)


def test_where_measuring_every_edge_costs_too_much_the_order_is_estimated_and_said_to_be(
    models: dict[str, Model],
) -> None:
    model, items = models["gpt2"], task_of(models["gpt2"]).items
    exact, estimated = measure_edges(model, items), measure_edges(model, items, most_work=0)
    assert (exact.protocol.order, estimated.protocol.order) == ("exact", "loading")
    assert "estimates" in str(estimated.protocol)
    assert exact.exact.all() and not estimated.exact.any()
    in_front = [set(each.order(each.single_effects())[:20]) for each in (exact, estimated)]
    assert in_front[0] & in_front[1]
    order = estimated.order(estimated.single_effects())
    assert estimated.explained(order, [0, len(order)]).mean(1) == pytest.approx(
        [0, 1], abs=CLOSE
    )


def test_the_same_seed_gives_the_same_ranking_and_another_another_control(
    models: dict[str, Model],
) -> None:
    model, task = models["gpt2"], alike(models["gpt2"])
    ranking, again, other = rank(model, task), rank(model, task), rank(model, task, seed=1)
    assert ranking == again
    assert ranking.random != other.random
    assert ranking.keep.explained == other.keep.explained
    assert [each.unit for each in ranking.ranked] == [each.unit for each in other.ranked]


# Known circuits


@pytest.fixture(scope="module")
def sparse() -> Model:
    return loaded("planted-sparse")


@pytest.fixture(scope="module")
def sparse_heads(sparse: Model) -> Ranking:
    return rank(sparse, "opposites", count=2)


def needed_by_arithmetic(shares: dict[tuple[int, int], float], share: float) -> int:
    """The planted heads add up, so that the count for a share is that of their running sum."""
    running = itertools.accumulate(sorted(shares.values(), reverse=True))
    return next(count for count, held in enumerate(running, 1) if held >= share)


def test_the_five_planted_carriers_are_n80_and_all_planted_heads_are_needed_for_everything(
    sparse_heads: Ranking,
) -> None:
    assert sparse_heads.count(0.8) == (5, 5, 5)
    assert tuple(map(str, sparse_heads.needed(0.8))) == planted.PLANTED_CARRIERS
    for share in (0.5, 0.9, 0.95):
        assert sparse_heads.count(share)[0] == needed_by_arithmetic(
            planted._sparse_shares(), share
        )
    assert sparse_heads.count(0.999)[0] == len(planted._sparse_shares())


@pytest.mark.long
def test_the_dense_variant_takes_43_heads_for_80_percent() -> None:
    ranking = rank(loaded("planted-dense"), "opposites", count=2)
    assert ranking.count(0.8)[0] == 43
    assert ranking.count(0.9)[0] == needed_by_arithmetic(planted._dense_shares(), 0.9)
    assert {str(unit) for unit in ranking.needed(0.999)} == set(planted.PLANTED_DENSE)


def test_both_planted_heads_of_induction_are_needed_and_no_other() -> None:
    ranking = rank(loaded("planted-induction"), "induction", count=4)
    assert ranking.count(0.9) == (2, 2, 2)
    assert set(map(str, ranking.needed(0.9))) == set(planted.INDUCTION_MAPPINGS)
    # Either alone is worth nothing.
    assert ranking.keep.explained[1] == pytest.approx(0, abs=0.01)


@pytest.mark.long
def test_the_planted_edges_are_the_carriers_reading_the_subject(sparse: Model) -> None:
    ranking = rank(sparse, "opposites", units="edges", count=1)
    assert tuple(map(str, ranking.needed(0.8))) == tuple(
        f"{head}:{planted.KEY}→{planted.QUERY}" for head in planted.PLANTED_CARRIERS
    )
    assert len(ranking.ranked) < ranking.units / 10  # edges whose gates are shut change nothing


def test_random_heads_explain_less_and_swapped_mlps_leave_nothing_to_carry(
    sparse: Model, sparse_heads: Ranking
) -> None:
    assert sparse_heads.random_at(5) < 0.3
    assert sparse_heads.random_at(0) == pytest.approx(0, abs=CLOSE)
    ranking = rank(sparse, "opposites", mlps="swapped", count=1)
    assert ranking.count(0.9) == (None, None, None)
    assert "n90 never never" in " ".join(str(ranking).split())  # of one pair without a band


def test_what_is_printed_names_the_protocol_the_counts_and_the_control(
    sparse_heads: Ranking,
) -> None:
    printed = " ".join(str(sparse_heads).split())
    for words in (
        "opposites on planted-sparse (gated): 2 pairs, 144 heads",
        "swapped to the counterfactual",
        "MLPs computed",
        "embeddings clean",
    ):
        assert words in printed, words
    assert "as many at random" in printed and "n80 5 [5, 5]" in printed
    assert "CPR" in printed


@pytest.mark.long
def test_a_saved_ranking_is_read_again_whole(
    sparse: Model, sparse_heads: Ranking, model: Model, tmp_path: Path
) -> None:
    by_role = rank(model, task_of(model), units="edges")
    for number, ranking in enumerate((sparse_heads, by_role)):
        file = ranking.save(tmp_path / str(number))
        assert Ranking.load(file) == ranking == Ranking.load(file.parent)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"pairs": 3}, "3 pairs"),
        ({"units": 4}, "curves"),
        ({"seed": None}, "seed"),
        ({"each": []}, "each size"),
        ({"more": 1}, "more"),
        (
            {"ranked": [{"unit": "L0H0:S1→END", "effect": 0.0, "low": 0.0, "high": 0.0}]},
            "144 heads",
        ),
        ({"ranked": [{"unit": "L0H0:S1", "effect": 0.0, "low": 0.0, "high": 0.0}]}, "L0H0:S1"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*was edited")
def test_a_ranking_that_was_changed_by_hand_is_refused_in_one_line(
    sparse_heads: Ranking, change: dict[str, Any], wrong: str, tmp_path: Path
) -> None:
    file = sparse_heads.save(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(FileError, match=r"^[^\n]*; measure it again$") as refused:
        Ranking.load(file)
    assert wrong in str(refused.value)


def test_a_call_that_means_nothing_is_refused(sparse: Model, sparse_heads: Ranking) -> None:
    units: Any = "neurons"
    with pytest.raises(PromptError, match="neurons"):
        rank(sparse, "opposites", units=units)
    with pytest.raises(PromptError, match="no pairs"):
        rank(sparse, Task("none", ()))
    with pytest.raises(PromptError, match="share"):
        sparse_heads.count(0)


# Curves


def test_areas_of_a_hand_worked_curve() -> None:
    assert areas((0, 1, 2, 4), (0.0, 0.5, 1.0, 1.0)) == pytest.approx((0.75, 0.25))
    assert areas((0, 2), (0.0, 2.0)) == pytest.approx((1.0, 1.0))


def rising(crossing: int) -> Callable[[list[int]], np.ndarray]:
    """Two pairs of which nothing is explained below a size, and everything from it on."""
    return lambda sizes: np.array([[float(size >= crossing)] * 2 for size in sizes])


def test_few_units_are_measured_at_every_size_and_many_on_a_grid_that_ends_with_all() -> None:
    assert measure_curve(rising(100), 144, shares=SHARES)[0] == list(range(145))
    # Never reached: the grid alone.
    sizes, _ = measure_curve(rising(20_001), 20_000, shares=SHARES)
    assert len(sizes) < 40
    assert (sizes[0], sizes[-1]) == (0, 20_000)
    assert geometric(3, small=8, step=2) == [0, 1, 2, 3]


@pytest.mark.parametrize("crossing", [1, 9, 10, 777, 4999, 5000])
def test_narrowing_finds_the_exact_count_of_a_rising_curve(crossing: int) -> None:
    sizes, values = measure_curve(rising(crossing), 5000, shares=SHARES)
    assert first_at_least(sizes, values.mean(1).tolist(), 0.9) == crossing
    assert sizes == sorted(set(sizes))
    assert len(sizes) < len(geometric(5000, small=8, step=1.5)) + 60


def test_a_band_of_counts_is_wide_where_pairs_disagree_and_ends_in_never(
    sparse_heads: Ranking,
) -> None:
    def counts(share: float, *each: tuple[float, ...]) -> tuple[int | None, ...]:
        curve = Curve.of((0, 1, 2), np.array(each), seed=0)
        return replace(sparse_heads, keep=curve, each=each, seed=0).count(share)

    assert counts(0.9, (0.0,) * 6, (0.5,) * 6, (1.0,) * 6) == (2, 2, 2)
    disagree = ((0.0,) * 6, (1.0, 1.0, 1.0, 0.5, 0.5, 0.5), (1.0, 1.0, 1.0, 0.7, 0.7, 0.7))
    assert counts(0.85, *disagree) == (2, 1, None)
