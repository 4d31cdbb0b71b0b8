"""Maps drawn by hand are named by their kind at any size and through noise; panels are counted by hand."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.components import Head
from circuits.engine import prepare
from circuits.errors import EdgeError, PromptError
from circuits.models.model import Model
from circuits.prompts import to_pair, to_prompt
from circuits.tasks.patterns import (
    EMPTY,
    KINDS,
    PanelFigures,
    Pattern,
    attention_maps,
    changed,
    classify,
    measure_panel,
)

SIZES = (8, 9, 16, 31)
TEXTS = ('The opposite of "large" is "', "The opposite of", 'The opposite of "hot" is "')


def causal(weights: np.ndarray) -> np.ndarray:
    """Rows that sum to one, nothing above the diagonal."""
    under = np.tril(weights.astype(float))
    return under / under.sum(-1, keepdims=True)


def drawn(name: str, size: int) -> np.ndarray:
    """A map of this kind. Queries too early for an offset read everything before them evenly."""
    query, key = np.indices((size, size))
    if name.startswith("offset"):
        distance = int(name.split()[1])
        return causal((key == query - distance) | (query < distance))
    maps = {
        "first token": key == 0,
        "diagonal": key == query,
        "diffuse": key <= query,
        "stripes": ((key == 2) | (key == size // 2)) + 1e-4,
        "hybrid": (key == 0) | (key == query),
        "nearly empty": key <= query,
        "dots": key
        == (query * (0.618 * query % 1)).astype(
            int
        ),  # the golden ratio: no line, however many rows
    }
    return causal(maps[name]) * (EMPTY / 2 if name == "nearly empty" else 1.0)


def noisy(weights: np.ndarray, amount: float, seed: int) -> np.ndarray:
    return (1 - amount) * weights + amount * causal(
        np.random.default_rng(seed).gamma(1.0, 1.0, weights.shape)
    )


NAMES = (
    "first token",
    "diagonal",
    "offset 1",
    "offset 2",
    "offset 3",
    "diffuse",
    "stripes",
    "hybrid",
    "nearly empty",
    "dots",
)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_map_drawn_by_hand_has_its_name(name: str, size: int) -> None:
    assert str(classify(drawn(name, size))) == name


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nearly empty"])
@pytest.mark.parametrize("size", SIZES)
def test_the_name_survives_noise_of_a_tenth(name: str, size: int) -> None:
    assert {str(classify(noisy(drawn(name, size), 0.1, seed))) for seed in range(10)} == {name}


@pytest.mark.parametrize("name", ["first token", "diagonal", "offset 1", "offset 3", "stripes"])
def test_a_line_survives_noise_of_a_third(name: str) -> None:
    assert {str(classify(noisy(drawn(name, 16), 1 / 3, seed))) for seed in range(10)} == {name}


def test_rows_of_chance_are_diffuse() -> None:
    assert {classify(noisy(drawn("diffuse", 16), 1.0, seed)).kind for seed in range(30)} == {
        "diffuse"
    }


@given(st.sampled_from(NAMES), st.sampled_from(SIZES), st.floats(0.2, 1.0))
@settings(max_examples=40, deadline=None)
def test_rows_that_sum_to_less_than_one_do_not_change_the_kind(
    name: str, size: int, mass: float
) -> None:
    before, after = classify(drawn(name, size)), classify(drawn(name, size) * mass)
    assert before.kind == after.kind and after.mass == pytest.approx(before.mass * mass)
    assert (after.first, after.diagonal, after.peak) == pytest.approx(
        (before.first, before.diagonal, before.peak)
    )


@given(
    st.sampled_from(["first token", "diagonal", "offset 1"]),
    st.sets(st.integers(0, 15), max_size=8),
)
@settings(max_examples=40, deadline=None)
def test_a_line_with_empty_rows_is_still_that_line(name: str, shut: set[int]) -> None:
    maps = drawn(name, 16)
    maps[sorted(shut)] = 0.0
    assert str(classify(maps)) == name


@given(st.integers(2, 12), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_scores_lie_between_zero_and_one_and_the_kind_is_known(size: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    maps = np.tril(
        chance.gamma(0.3, 1.0, (size, size)) * (chance.random((size, size)) < chance.random())
    )
    maps /= np.maximum(maps.sum(-1, keepdims=True), 1.0)
    pattern = classify(maps)
    assert pattern.kind in KINDS
    scores = (
        pattern.first,
        pattern.diagonal,
        pattern.offset,
        pattern.stripes,
        pattern.peak,
        pattern.mass,
    )
    assert min(scores) >= 0 and max(scores) <= 1 + 1e-9


def test_an_empty_map_is_nearly_empty_and_one_dot_is_no_line() -> None:
    maps = np.zeros((9, 9))
    assert classify(maps) == Pattern("nearly empty", 0, 0, 0, 0, 0, 0, 0)
    maps[8, 5] = 1.0
    assert classify(maps).kind == "dots" and classify(maps).mass == 1 / 8


def test_scores_are_those_worked_out_by_hand() -> None:
    """Every query gives 0.55 to key 0 and 0.45 to itself.

    An even spread gives a key (1/2 + 1/3 + 1/4 + 1/5) / 4 = 0.32083. To read a cell takes 0.15 of the way
    from even to all: 0.575, 0.433, 0.3625 and 0.32 for queries 1 to 4, so three queries read each line. The
    peaks are 0.55: 0.1, 0.325, 0.4 and 0.4375 of the way.
    """
    query, key = np.indices((5, 5))
    pattern = classify(np.where(key == 0, 0.55, 0.0) + np.where(key == query, 0.45, 0.0))
    assert pattern.first == pytest.approx((0.55 - 0.320833) / (1 - 0.320833), abs=1e-5)
    assert pattern.diagonal == pytest.approx((0.45 - 0.320833) / (1 - 0.320833), abs=1e-5)
    assert pattern.peak == pytest.approx((0.1 + 0.325 + 0.4 + 0.4375) / 4)
    assert (pattern.kind, pattern.offset, pattern.distance, pattern.stripes) == (
        "hybrid",
        0,
        0,
        0,
    )
    assert pattern.mass == pytest.approx(1)


def test_several_prompts_are_weighted_by_mass_and_may_differ_in_length() -> None:
    line, wash = drawn("offset 2", 9), drawn("diffuse", 16)
    assert str(classify([line, drawn("offset 2", 16)])) == "offset 2"
    assert str(classify([line, wash * 0.01])) == "offset 2"
    assert classify([line * 0.01, wash]).kind == "diffuse"


def test_an_offset_that_changes_from_prompt_to_prompt_is_no_offset() -> None:
    assert (
        classify([drawn(f"offset {distance}", 16) for distance in (1, 2, 3, 4, 5, 6)]).kind
        == "dots"
    )


@pytest.mark.parametrize("wrong", [np.zeros((3, 4)), np.zeros((1, 1)), []])
def test_what_is_no_map_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(PromptError, match="map"):
        classify(wrong)


# A panel of a model


def test_maps_are_those_of_the_engine_in_the_order_of_the_prompts(model: Model) -> None:
    prompts = [to_prompt(model, text) for text in TEXTS]
    maps = attention_maps(model, prompts)
    pair = to_pair(model, TEXTS[0], counterfactual=TEXTS[2], metric="kl")
    cache = prepare(model, [pair]).clean.cache
    assert [each.shape[-1] for each in maps] == [len(prompt) for prompt in prompts]
    np.testing.assert_allclose(
        maps[0], np.stack([layer.pattern()[0].numpy() for layer in cache.layers]), atol=1e-5
    )
    np.testing.assert_allclose(
        np.concatenate([each.sum(-1).ravel() for each in maps]), 1, atol=1e-5
    )


def test_a_panel_counts_what_its_maps_show(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    prompts = [to_prompt(model, text) for text in TEXTS]
    figures = measure_panel(model, prompts)
    maps = attention_maps(model, prompts)
    first = diagonal = mass = 0.0
    peaked, largest, cells = [], [], []
    for each in maps:
        layers, heads, length, _ = each.shape
        for one in each.reshape(layers * heads, length, length):
            for query in range(1, length):
                mass += one[query].sum()
                first += one[query, 0]
                diagonal += one[query, query]
            peaked.append(
                any(one[query, key] > 0.5 for query in range(length) for key in range(query))
            )
            largest.append(one[1:].max())
        cells.append(layers * heads * length * (length + 1) / 2)
    assert figures.first_token == pytest.approx(first / mass, rel=1e-5)
    assert figures.diagonal == pytest.approx(diagonal / mass, rel=1e-5)
    assert figures.peaked == pytest.approx(sum(peaked) / len(prompts))
    assert figures.mean_peak == pytest.approx(np.mean(largest), rel=1e-5)
    assert figures.open_edges == figures.edges == pytest.approx(np.mean(cells))
    assert figures.mass == pytest.approx(1, abs=1e-5)
    assert (figures.prompts, len(figures.heads), sum(count for _, count in figures.kinds)) == (
        3,
        12,
        12,
    )


def test_a_panel_of_some_heads_has_their_patterns(models: dict[str, Model]) -> None:
    model = models["llama"]
    prompts = [to_prompt(model, text) for text in TEXTS]
    whole, part = (
        measure_panel(model, prompts),
        measure_panel(model, prompts, heads=["L2H1", "L0H3"]),
    )
    assert part.heads == (Head(2, 1), Head(0, 3))
    alone = classify([each[0, 3] for each in attention_maps(model, prompts)])
    for pattern in (part.pattern("L0H3"), whole.pattern("L0H3")):
        assert pattern.kind == alone.kind and astuple(pattern)[1:] == pytest.approx(
            astuple(alone)[1:]
        )
    with pytest.raises(EdgeError, match="L1H1"):
        part.pattern("L1H1")
    with pytest.raises(EdgeError, match="3 layers of 4 heads"):
        measure_panel(model, prompts, heads=["L3H0"])
    with pytest.raises(PromptError, match="at least one"):
        measure_panel(model, [])
    empty = measure_panel(model, prompts, heads=[])
    assert (empty.patterns, empty.mass, empty.edges, empty.first_token) == ((), 0, 0, 0)


def test_a_gate_opens_fewer_edges_and_its_maps_are_measured_with_it(
    models: dict[str, Model],
) -> None:
    model = models["gpt2"]
    prompts = [to_prompt(model, text) for text in TEXTS[:1]]
    dense, gated = (
        measure_panel(each, prompts) for each in (model, replace(model, gated=True))
    )
    assert 0 < gated.open_edges < dense.open_edges == gated.edges and gated.mass < dense.mass


def test_a_change_tells_the_heads_that_both_panels_have() -> None:
    def panel(**kinds: str) -> PanelFigures:
        patterns = tuple(classify(drawn(name, 9)) for name in kinds.values())
        return PanelFigures(
            "m", 1, tuple(map(Head.parse, kinds)), patterns, 0, 0, 0, 0, 0, 1, 1, 1
        )

    changes = changed(
        panel(L0H1="first token", L2H0="offset 1", L1H1="diffuse"),
        panel(L1H1="diffuse", L0H1="dots"),
    )
    assert [str(each) for each in changes] == ["L0H1 first token → dots", "L1H1 diffuse"]
