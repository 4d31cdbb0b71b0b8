"""Readings: logit attribution adds up, the lens is the output applied below, heads score what they were built
to do; each equals hooks or Hugging Face modules by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from architectures import ARCHITECTURES as GEMMA
from conftest import ARCHITECTURES
from small_models import PROMPT, loaded
from test_wires import ByHand

import circuits
from circuits.engine.prepare import known_layout
from circuits.errors import CircuitsError
from circuits.instruments.head_scores import (
    copying_scores,
    known_series,
    random_sequences,
    successor_scores,
)
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.zoo.language import tokenizer

CLOSE = 1e-4


@pytest.fixture(scope="module")
def by_hand() -> dict[str, ByHand]:
    return {name: ByHand(name, gated=False) for name in ARCHITECTURES}


def final_norm(hand: ByHand) -> Any:
    names = {"gpt2": "ln_f", "llama": "norm", "neox": "final_layer_norm"}
    return getattr(hand.body, names[hand.architecture])


def unembedding(hand: ByHand) -> torch.Tensor:
    return hand.hf.get_output_embeddings().weight


def note_in(kept: list[Any]) -> Any:
    return lambda value, hook: kept.append(value[0].clone())


def with_bos(models: dict[str, Model], name: str) -> Model:
    return replace(models[name], reads_bos=True)


# Direct logit attribution


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_parts_of_a_logit_difference_equal_the_writes_by_hand_and_add_up(
    models: dict[str, Model], by_hand: dict[str, ByHand], name: str
) -> None:
    model, hand = with_bos(models, name), by_hand[name]
    read = circuits.logit_attribution(model, PROMPT, answer="small", foil="cold")
    prompt = read.prompts[0]
    answer, foil = (model.tokenize(word)[-1] for word in ("small", "cold"))
    last = model.logits(torch.tensor([prompt.tokens]))[0, -1]
    assert read.values.sum() == pytest.approx(float(last[answer] - last[foil]), abs=CLOSE)
    assert read.totals[0] == pytest.approx(float(last[answer] - last[foil]), abs=CLOSE)
    _, written = hand.plain(prompt.tokens)
    norm, direction = final_norm(hand), unembedding(hand)[answer] - unembedding(hand)[foil]
    kept: list[torch.Tensor] = []
    top = f"blocks.{model.n_layers - 1}.hook_resid_post"
    with model.hooked([(top, lambda value, hook: kept.append(value[0, -1].clone()))]):
        model.logits(torch.tensor([prompt.tokens]))
    stream = kept[0]
    centre = stream.mean() if name != "llama" else torch.zeros(())
    scale = ((stream - centre).pow(2).mean() + 1e-5).sqrt()
    for component, value in written.items():
        part = value[-1] - (value[-1].mean() if name != "llama" else 0.0)
        expected = float((part * norm.weight / scale) @ direction)
        assert read.part(str(component)) == pytest.approx(expected, abs=1e-3)
    assert read.by_head.shape == (3, 4) and read.by_mlp.shape == (3,)
    assert read.by_head[1, 2] == read.part("L1H2") and read.by_mlp[2] == read.part("M2")


@torch.no_grad()
def test_parts_add_up_below_the_soft_cap_of_gemma_with_normed_writes() -> None:
    model = as_model((GEMMA["gemma2"].make(), tokenizer()), bos=True)
    read = circuits.logit_attribution(model, PROMPT, answer="small", foil="cold")
    logits = model.logits(torch.tensor([read.prompts[0].tokens]))[0, -1]
    uncapped = 3.0 * (logits / 3.0).atanh()
    answer, foil = (model.tokenize(word)[-1] for word in ("small", "cold"))
    expected = float(uncapped[answer] - uncapped[foil])
    assert read.values.sum() == pytest.approx(expected, abs=1e-3)


def test_a_pair_names_the_foil_and_several_prompts_are_averaged() -> None:
    mini = loaded("mini")
    pairs = [circuits.to_pair(mini, PROMPT, swap={"large": other}) for other in ("hot", "rich")]
    alone = [circuits.logit_attribution(mini, pair) for pair in pairs]
    both = circuits.logit_attribution(mini, pairs)
    assert both.foils == tuple(each.foils[0] for each in alone)
    np.testing.assert_allclose(both.values, np.mean([each.values for each in alone], 0))
    swapped = circuits.logit_attribution(mini, PROMPT, swap={"large": "hot"})
    np.testing.assert_allclose(swapped.values, alone[0].values, atol=1e-9)
    line = {"prompt": PROMPT, "swap": {"large": "hot"}, "answer": float("nan")}
    other = PROMPT.replace("large", "hot")
    for given in ((PROMPT, other), [(PROMPT, other)], [line], pandas.DataFrame([line])):
        same = circuits.logit_attribution(mini, given)
        assert same.foils == alone[0].foils
        np.testing.assert_allclose(same.values, alone[0].values, atol=1e-9)


@torch.no_grad()
def test_without_a_foil_the_answer_is_compared_with_the_mean_logit() -> None:
    mini = loaded("mini")
    read = circuits.logit_attribution(mini, PROMPT)
    last = mini.logits(torch.tensor([read.prompts[0].tokens]))[0, -1]
    assert read.values.sum() == pytest.approx(float(last.max() - last.mean()), abs=1e-3)
    assert "a reading, not an effect" in str(read) and "mean logit" in str(read)


# Logit lens


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_the_lens_is_norm_and_unembedding_of_every_stream_by_hand(
    models: dict[str, Model], by_hand: dict[str, ByHand], name: str
) -> None:
    model, hand = with_bos(models, name), by_hand[name]
    lens = circuits.logit_lens(model, PROMPT, answer="small")
    tokens = torch.tensor([lens.prompt.tokens])
    kept: list[torch.Tensor] = []
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    names.append(f"blocks.{model.n_layers - 1}.hook_resid_post")
    with model.hooked(
        [(each, lambda value, hook: kept.append(value[0].clone())) for each in names]
    ):
        logits = model.logits(tokens)[0]
    answer = model.tokenize("small")[-1]
    for layer, stream in enumerate(kept):
        probabilities = hand.logits(stream).softmax(-1)
        np.testing.assert_allclose(lens.values[layer], probabilities[:, answer], atol=1e-5)
        words = [model.spell(token) for token in probabilities.argmax(-1).tolist()]
        assert list(lens.top[layer]) == words
        ranks = (probabilities > probabilities[:, answer, None]).sum(-1)
        np.testing.assert_array_equal(lens.ranks[layer], ranks)
    np.testing.assert_allclose(lens.values[-1], logits.softmax(-1)[:, answer], atol=1e-5)


def test_the_lens_says_from_which_layer_on_the_answer_stands_first() -> None:
    lens = circuits.logit_lens(loaded("mini"), PROMPT)
    first = lens.first_layer
    assert first is not None and (lens.ranks[first:, -1] == 0).all()
    assert lens.ranks[first - 1, -1] > 0
    assert f"from layer {first}" in str(lens) and "a reading, not an effect" in str(lens)


# Scores of heads


def test_planted_heads_score_what_they_were_planted_for_and_others_do_not() -> None:
    scores = circuits.head_scores(circuits.load("planted-induction"))
    planted = {"induction": (1, 2), "previous token": (0, 1)}
    for name, head in planted.items():
        own = scores.score(name)
        others = np.delete(own.flatten(), head[0] * 4 + head[1])
        assert own[head] > 0.9 and others.max() < 0.2
    assert scores.score("duplicate token").max() < 0.2
    assert scores.name("L1H2").startswith("induction") and scores.name("L0H2") == ""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_scores_of_attention_equal_patterns_by_hand(
    models: dict[str, Model], name: str
) -> None:
    model, length = with_bos(models, name), 6
    scores = circuits.head_scores(model, sequences=3, length=length, seed=5)
    tokens = random_sequences(model, 3, length, 5)
    assert tokens.shape == (3, 13) and torch.equal(tokens[:, 1:7], tokens[:, 7:])
    kept: list[Any] = []
    where = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    with model.hooked(
        [(each, lambda value, hook: kept.append(value.clone())) for each in where]
    ):
        model.logits(tokens)
    sought = {
        "induction": [(query, query - length + 1) for query in range(7, 13)],
        "duplicate token": [(query, query - length) for query in range(7, 13)],
        "previous token": [(query, query - 1) for query in range(1, 13)],
    }
    for score, places in sought.items():
        for layer in range(3):
            weights = [kept[layer][:, :, query, key].mean(0) for query, key in places]
            expected = torch.stack(weights).mean(0)
            np.testing.assert_allclose(scores.score(score)[layer], expected, atol=1e-5)


def logits_of_heads(model: Model, hand: ByHand, word: int) -> torch.Tensor:
    """What each head would predict that attends to one token alone, (layer, head, vocab)."""
    tokens = torch.tensor([[model.tokenizer.bos_token_id, word]])
    streams: list[Any] = []
    names = [f"blocks.{layer}.hook_resid_pre" for layer in (0, 1)]
    with model.hooked([(each, note_in(streams)) for each in names]):
        model.logits(tokens)
    logits = []
    for layer, block in enumerate(hand.blocks):
        stream = streams[min(layer, 1)]
        value = hand.project(block, hand.norms(block)[0](stream))[2][-1]  # (head, d_head)
        written = torch.einsum("hd,hdm->hm", value, hand.output(block)[0])
        logits.append(hand.logits(written))
    return torch.stack(logits)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_copying_equals_the_output_of_a_head_that_attends_to_one_token_by_hand(
    models: dict[str, Model], by_hand: dict[str, ByHand], name: str
) -> None:
    model, hand = with_bos(models, name), by_hand[name]
    words = list(range(20, 60))
    expected = np.zeros((3, 4))
    for word in words:
        top = logits_of_heads(model, hand, word).topk(5).indices
        expected += (top == word).any(-1).numpy()
    layout = known_layout(model, torch.zeros(1, 2, dtype=torch.long))
    assert layout is not None
    measured = copying_scores(model, layout, words)
    np.testing.assert_allclose(measured, expected / len(words), atol=1e-9)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_a_successor_is_the_largest_of_its_series_in_what_a_head_writes_by_hand(
    models: dict[str, Model], by_hand: dict[str, ByHand], name: str
) -> None:
    model, hand = with_bos(models, name), by_hand[name]
    series = [list(range(20, 32)), list(range(50, 57))]
    expected = np.zeros((3, 4))
    for each in series:
        for word, following in pairwise(each):
            logits = logits_of_heads(model, hand, word)  # (layer, head, vocab)
            place = logits[..., each].argmax(-1).numpy()
            expected += np.array(each)[place] == following
    layout = known_layout(model, torch.zeros(1, 2, dtype=torch.long))
    assert layout is not None
    measured = successor_scores(model, layout, series)
    np.testing.assert_allclose(measured, expected / (11 + 6), atol=1e-9)
    assert measured.max() > 0


def test_successors_are_those_of_series_that_the_vocabulary_has() -> None:
    mini = loaded("mini")
    spelled = [[mini.spell(token) for token in series] for series in known_series(mini)]
    assert any(series[:3] == ["one", "two", "three"] for series in spelled)
    assert circuits.head_scores(mini).successions == sum(len(each) - 1 for each in spelled)


def test_a_vocabulary_without_series_has_no_successor_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "circuits.instruments.head_scores.SERIES", ("uno due tre quattro cinque",)
    )
    scores = circuits.head_scores(loaded("planted-induction"))
    assert "successor" not in scores.axes[0].labels and "no series" in str(scores)


# What they share


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda model: circuits.logit_attribution(model, []), "no prompt to read"),
        (lambda model: circuits.logit_attribution(model, 3), "a prompt is text, not 3"),
        (lambda model: circuits.logit_attribution(model, [{"text": "a"}]), "needs a prompt"),
        (lambda model: circuits.logit_attribution(model, PROMPT).part("L99H0"), "no component"),
        (lambda model: circuits.logit_lens(model, PROMPT, answer="zzzz"), "zzzz"),
        (lambda model: circuits.head_scores(model, length=2), "cannot be scored"),
        (lambda model: circuits.head_scores(model).name("L99H0"), "no head L99H0"),
        (lambda model: circuits.head_scores(model).score("magic"), "no score 'magic'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(ask: Any, said: str) -> None:
    with pytest.raises(CircuitsError, match=said) as refused:
        ask(loaded("planted-induction"))
    assert "\n" not in str(refused.value)


def test_readings_have_tables_and_figures_of_one_column() -> None:
    mini = loaded("mini")
    read = circuits.logit_attribution(mini, PROMPT, answer="small", foil="cold")
    assert len(read.to_dataframe()) == 2 + 12 * 13
    scores = circuits.head_scores(mini)
    assert list(scores.to_dataframe().columns) == ["score", "layer", "head", "value"]
    for result in (read, scores):
        assert result.figure().get_size_inches()[0] <= 3.4
    lens = circuits.logit_lens(mini, PROMPT)
    words = [text.get_text() for text in lens.figure().axes[0].texts]
    assert "small" in words and len(words) == 13 * 9
